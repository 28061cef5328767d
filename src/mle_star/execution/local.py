"""Runs scripts on this machine, confined as well as it allows, and says truthfully how."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import tempfile
import threading
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from mle_star.context import ScriptRequest
from mle_star.errors import ConfigError, ExecutionError
from mle_star.execution.cgroup import Cgroup, CgroupHome, find_cgroup_home
from mle_star.execution.interpreter import InterpreterInfo, locate_interpreter
from mle_star.execution.limits import Limits
from mle_star.execution.output import NOTE, Keeper, LogFile
from mle_star.execution.process import SIGKILL, Report, ScriptProcess
from mle_star.execution.removal import remove_entry
from mle_star.execution.sandbox import (
    Bubblewrap,
    World,
    bubblewrap_command,
    find_bubblewrap,
    hidden_places,
    readable_outside,
    shown_again,
)
from mle_star.models import ExecutionRawResult, Isolation, PipelineConfig

if sys.platform == "win32":
    from mle_star.execution.windows import JobProcess

logger = logging.getLogger("mle_star.execution")

MARKER = "MLE_STAR_SCRIPT"
"""A variable in every script's environment by which its processes can be told from all others."""
PREFIX = "mle-star-"
_ABSENT = (
    "bubblewrap is switched off"
    if sys.platform == "linux"
    else "bubblewrap exists on Linux only; files and network are open to scripts here, so use a container for strangers"
)
_DEVICES = ("null", "zero", "full", "random", "urandom", "shm", "tty", "ptmx", "pts")


@dataclass(frozen=True)
class Means:
    """What this machine offers for confining scripts."""

    bubblewrap: Bubblewrap
    cgroups: CgroupHome | None
    interpreter: InterpreterInfo


class LocalExecutor:
    """Runs each script in a process tree of its own, and leaves nothing of it behind.

    The switches exist for machines and tests that must do without: what they turn off is reported as absent.
    """

    def __init__(
        self,
        config: PipelineConfig | None = None,
        *,
        limits: Limits | None = None,
        sandbox: Literal["auto", "none"] = "auto",
        use_cgroups: bool = True,
        use_landlock: bool = True,
    ) -> None:
        self.config = config or PipelineConfig()
        self.limits = limits or Limits.of(self.config)
        self._sandbox, self._use_cgroups, self._use_landlock = sandbox, use_cgroups, use_landlock
        self._means: Means | None = None
        self._probing = threading.Lock()

    def probe(self) -> Means:
        """Find out once what there is, and warn once about what there is not."""
        with self._probing:
            if self._means is None:
                self._means = self._look_around()
            return self._means

    def _look_around(self) -> Means:
        linux = sys.platform == "linux"
        bubblewrap = find_bubblewrap() if linux and self._sandbox == "auto" else Bubblewrap(reason=_ABSENT)
        if not bubblewrap.works:
            if self.config.require_sandbox:
                raise ConfigError(f"require_sandbox is set, but {bubblewrap.reason}")
            logger.warning("scripts run without a sandbox: %s", bubblewrap.reason)
        _remove_stale_folders()
        home = find_cgroup_home() if linux and self._use_cgroups else None
        return Means(bubblewrap, home, locate_interpreter(self.config.python))

    def isolation(self) -> Isolation:
        """What will confine scripts here, as far as can be told before one has run."""
        means = self.probe()
        boxed = means.bubblewrap.works
        return Isolation(
            sandbox="bubblewrap" if boxed else "none",
            network_blocked=boxed and not self.config.allow_network,
        )

    async def run(self, request: ScriptRequest) -> ExecutionRawResult:
        """Run to the end, to the timeout or to the cancellation; leave no process behind."""
        means = self._means
        if means is None:
            means = await asyncio.to_thread(self.probe)
        temporary = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
        group = means.cgroups.create(self.limits) if means.cgroups else None
        try:
            (temporary / "home").mkdir()
            with LogFile(request.output_file, 2 * self.limits.output_bytes) as log:
                return await self._run(request, means, temporary, group, log)
        finally:
            if group is not None:
                group.remove()
            await asyncio.shield(asyncio.to_thread(remove_entry, temporary))

    async def _run(
        self, request: ScriptRequest, means: Means, temporary: Path, group: Cgroup | None, log: LogFile
    ) -> ExecutionRawResult:
        limits = self.limits
        streams = [Keeper(limits.head_bytes, limits.tail_bytes, log) for _ in range(2)]
        marker = uuid.uuid4().hex
        env = self._environment(request, means, temporary, marker)
        started = time.monotonic()
        if sys.platform == "win32":
            command = [means.interpreter.path, request.script_path]
            process = await JobProcess.start(command, request.working_dir, env, streams, limits)
        else:
            order = self._order(request, means, temporary, group)
            process = await ScriptProcess.start(order, request.working_dir, env, streams)
        try:
            timed_out = not await process.wait(request.timeout_seconds)
            if timed_out:
                await process.stop(b"t", limits.grace_seconds + 3.0)
        except asyncio.CancelledError:
            await asyncio.shield(process.stop(b"c", limits.hurry_seconds + 1.0))
            raise
        finally:
            process.close()
            if process.report is None or sys.platform != "linux":
                _sweep(marker, group)
        seconds = time.monotonic() - started
        report = process.report or Report(signal=SIGKILL)  # the script has killed its supervisor
        if report.error:
            raise ExecutionError(f"{request.script_path} could not be started: {report.error}")
        boxed = means.bubblewrap.works
        stderr = streams[1].text() + self._notes(report, group, timed_out)
        return ExecutionRawResult(
            stdout=streams[0].text(),
            stderr=stderr,
            exit_code=-1 if timed_out else _exit_code(report, boxed, stderr),
            duration_seconds=seconds,
            timed_out=timed_out,
            isolation=self._applied(report, group, boxed),
        )

    # --- orders -----------------------------------------------------------------------------------------------

    def _order(self, request: ScriptRequest, means: Means, temporary: Path, group: Cgroup | None) -> dict[str, Any]:
        limits = self.limits
        boxed = means.bubblewrap.works
        command = [means.interpreter.path, request.script_path]
        if boxed:
            command = bubblewrap_command(means.bubblewrap, self._world(request, means, temporary), command)
        uncounted = group is None or len(group.limited) < 2
        resources = {"FSIZE": limits.file_bytes, "NOFILE": limits.open_files, "CORE": 0}
        if not _uses_gpu(request.env):  # CUDA maps more than it uses
            resources["DATA"] = limits.memory_bytes
        return {
            "command": command,
            "limits": resources,
            "max_tasks": limits.tasks,
            "max_memory": limits.memory_bytes,
            "watch": uncounted,
            "count_user_tasks": uncounted,
            "cgroups": group.members if group else [],
            "fork_gates": group.fork_gates if group else [],
            "unprivileged": not boxed,
            "landlock": None if boxed or not self._use_landlock else _rules(request, means, temporary),
            "grace": limits.grace_seconds,
            "hurry": limits.hurry_seconds,
            "parent": os.getpid(),
        }

    def _world(self, request: ScriptRequest, means: Means, temporary: Path) -> World:
        return World(
            working_dir=request.working_dir,
            temporary_dir=str(temporary),
            input_dir=request.input_dir,
            readable=tuple(_needed(request, means)),
            allow_network=self.config.allow_network,
            gpus=_uses_gpu(request.env),
            shared_memory_bytes=self.limits.memory_bytes // 2,
        )

    def _environment(self, request: ScriptRequest, means: Means, temporary: Path, marker: str) -> dict[str, str]:
        inside = "/tmp" if means.bubblewrap.works else str(temporary)
        env = {**request.env, MARKER: marker, "TMPDIR": inside, "HOME": f"{inside}/home"}
        if means.interpreter.user_base is not None:
            env["PYTHONUSERBASE"] = means.interpreter.user_base  # it would be looked for in the new home
        return env

    # --- outcomes ---------------------------------------------------------------------------------------------

    def _applied(self, report: Report, group: Cgroup | None, boxed: bool) -> Isolation:
        applied, limits = report.applied, self.limits
        counted = group.limited if group is not None and "cgroup" in applied and "no-cgroup" not in applied else set()
        words = ["time"]
        if "memory" in counted or {"DATA", "job", "watch"} & applied:
            words.append(f"memory {limits.memory_bytes / 1e9:.1f} GB")
        if "tasks" in counted or {"job", "watch"} & applied:
            words.append(f"processes {limits.tasks}")
        names = {"FSIZE": f"file size {limits.file_bytes / 1e9:.1f} GB", "NOFILE": f"open files {limits.open_files}"}
        words += [text for name, text in names.items() if name in applied]
        if boxed or "landlock" in applied:
            words.append("writes only in the working directory")
        return Isolation(
            sandbox="bubblewrap" if boxed else "none",
            network_blocked=boxed and not self.config.allow_network,
            limits=tuple(words),
        )

    def _notes(self, report: Report, group: Cgroup | None, timed_out: bool) -> str:
        """What the harness knows about a script's end and the script could not say itself."""
        lines = []
        if report.reason:
            lines.append(f"killed: {report.reason}")
        elif report.killed and group is not None and group.memory_kills():
            lines.append(f"killed: more than {self.limits.memory_bytes / 1e9:.1f} GB of memory")
        if group is not None and group.refused_forks() and not timed_out:
            lines.append(f"refused: more than {self.limits.tasks} processes and threads")
        return "".join(f"\n{NOTE} {line}" for line in lines)


def _remove_stale_folders() -> None:
    """Temporary folders of harnesses that died hard; young ones may belong to another container with the same /tmp."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*-*"):
        owner = folder.name[len(PREFIX) :].split("-")[0]
        with contextlib.suppress(OSError):
            old = time.time() - folder.stat().st_mtime > 3600
            if old and owner.isdigit() and not psutil.pid_exists(int(owner)) and os.access(folder, os.W_OK):
                remove_entry(folder)


def _exit_code(report: Report, boxed: bool, stderr: str) -> int:
    """Exit codes as `subprocess` gives them: negative for a signal, also when bubblewrap passes one on as 128 + n."""
    if report.reason:
        return -SIGKILL  # even if the script itself was gone before its children were killed
    if report.signal is not None:
        return -report.signal
    code = 1 if report.exit_code is None else report.exit_code
    if not boxed:
        return code
    if code and '"exit-code"' not in report.inner and stderr.lstrip().startswith("bwrap:"):
        raise ExecutionError(f"the sandbox could not be set up: {stderr.strip().splitlines()[0]}")
    return 128 - code if code > 128 and code - 128 in set(signal.Signals) else code


def _uses_gpu(env: dict[str, str]) -> bool:
    return env.get("CUDA_VISIBLE_DEVICES") != "" and any(Path("/dev").glob("nvidia[0-9]*"))


def _needed(request: ScriptRequest, means: Means) -> list[str]:
    """All that a script must be able to read, wherever it lies."""
    needed = [*means.interpreter.roots, means.interpreter.path, request.script_path]
    needed += [*request.env.get("LD_LIBRARY_PATH", "").split(os.pathsep), *request.readable]
    if request.input_dir is not None:
        needed.append(request.input_dir)
    shown = Path(request.working_dir) / "input"
    if shown.is_dir():
        needed += [os.path.realpath(entry.path) for entry in os.scandir(shown) if entry.is_symlink()]
    return [path for path in needed if path]


def _rules(request: ScriptRequest, means: Means, temporary: Path) -> dict[str, list[str]]:
    """The same world as allow-lists, for kernels that can enforce them without bubblewrap."""
    hidden = (*hidden_places(), "/tmp")
    gpus = [str(path) for path in Path("/dev").glob("nvidia*")]
    if gpus:
        gpus.append("/proc/self/task")  # CUDA names its threads there, and gives up when it cannot
    return {
        "read": [*readable_outside(hidden), *shown_again(_needed(request, means), hidden)],
        "write": [request.working_dir, str(temporary), *(f"/dev/{name}" for name in _DEVICES), *gpus],
    }


def _sweep(marker: str, group: Cgroup | None) -> None:
    """The last resort when a script has killed its supervisor: find its processes by group and by marker."""
    if group is not None:
        group.kill()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARKER) == marker:
                process.kill()

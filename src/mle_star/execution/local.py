"""Runs scripts on this machine, confined as well as it allows, and says truthfully how."""

import asyncio
import logging
import os
import re
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager, closing, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

import psutil

from mle_star.data.place import holds_homes
from mle_star.errors import ConfigError, ExecutionError
from mle_star.execution import environment, sandbox, workspace
from mle_star.execution.executors import Announcement
from mle_star.execution.limits import PREFIX, Cgroup, DiskQuota, Limits, find_cgroup_parent
from mle_star.execution.process import NOTE, SIGKILL, Keeper, LogFile, Report, ScriptProcess
from mle_star.models import ExecutionRawResult, Isolation, PipelineConfig
from mle_star.run.context import ScriptRequest
from mle_star.seccomp import filter_program

logger = logging.getLogger("mle_star.execution")

MARKER = "MLE_STAR_SCRIPT"
"""A variable in every script's environment by which its processes can be told from all others."""
LEFT_SECONDS = 3600.0
"""After so long the temporary folder of a harness that was killed is removed by the next."""
_SECRET = re.compile(r"\.(env(\..*|rc)?|netrc|pypirc|git|git-credentials|aws|azure|docker|kube|ssh)")


@dataclass(frozen=True)
class Means:
    """What this machine offers for confining scripts."""

    sandbox: sandbox.Sandbox
    cgroups: Path | None  # where groups can be made
    interpreter: environment.InterpreterInfo


Wanted = Literal["auto", "namespaces", "none"]


@lru_cache(maxsize=8)
def _means_of_this_machine(wanted: Wanted, use_cgroups: bool, python: str | None, path: str) -> Means:
    """Found by trials, which take longer than many a script; `path` is where programs are looked for."""
    cgroups = find_cgroup_parent() if use_cgroups else None
    return Means(sandbox.find_sandbox(wanted), cgroups, environment.inspect_interpreter(python))


class LocalExecutor:
    """Runs each script in a process tree of its own, and leaves nothing of it behind.

    The switches exist for machines and tests that must do without: what they turn off is reported as absent.
    """

    def __init__(
        self,
        config: PipelineConfig | None = None,
        *,
        limits: Limits | None = None,
        sandbox: Wanted = "auto",
        use_cgroups: bool = True,
    ) -> None:
        self.config = config or PipelineConfig()
        self.limits = limits or Limits.of(self.config)
        self._sandbox, self._use_cgroups = sandbox, use_cgroups

    @cached_property
    def means(self) -> Means:
        """What there is, found out once, with a warning about what there is not."""
        means = _means_of_this_machine(self._sandbox, self._use_cgroups, self.config.python, os.environ.get("PATH", ""))
        if missing := means.sandbox.missing:
            if self.config.require_sandbox:
                raise ConfigError(f"require_sandbox is set, but scripts would run {missing}")
            logger.warning("scripts run %s", missing)
        workspace.remove_left_behind(Path(tempfile.gettempdir()), PREFIX, LEFT_SECONDS)
        return means

    def announce(self) -> Announcement:
        """What will confine scripts here, as far as can be told before one has run."""
        found = self.means.sandbox
        blocked = found.name != "none" and not self.config.allow_network
        return Announcement(Isolation(sandbox=found.name, network_blocked=blocked), found.missing)

    async def run(self, request: ScriptRequest) -> ExecutionRawResult:
        """Run to the end, to the timeout or to the cancellation; leave no process behind."""
        means = await asyncio.to_thread(lambda: self.means)
        temporary = Path(tempfile.mkdtemp(prefix=workspace.own_prefix(PREFIX)))
        group = Cgroup.create(means.cgroups, self.limits) if means.cgroups else None
        try:
            (temporary / "tmp" / "home").mkdir(parents=True)
            (temporary / "root").mkdir()
            sandbox.write_users(temporary)
            with closing(LogFile(request.output_file, 2 * self.limits.output_bytes)) as log:
                return await self._run(request, means, temporary, group, log)
        finally:
            if group is not None:
                group.remove()
            await asyncio.shield(asyncio.to_thread(workspace.remove_entry, temporary))

    async def _run(
        self, request: ScriptRequest, means: Means, temporary: Path, group: Cgroup | None, log: LogFile
    ) -> ExecutionRawResult:
        limits, started, marker = self.limits, time.monotonic(), uuid.uuid4().hex
        streams = [Keeper(limits.head_bytes, limits.tail_bytes, log) for _ in range(2)]
        env = _environment(request, means, temporary, marker)
        order = self._order(request, means, temporary, group)
        disk = DiskQuota(limits, [Path(request.working_dir), temporary])
        process = ScriptProcess(streams)
        await process.start(order, request.working_dir, env)
        try:
            async with disk.enforced(process):
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
        await asyncio.to_thread(workspace.make_harmless, request.working_dir, set_ids="seccomp" not in report.applied)
        if disk.breach:
            report = report.model_copy(update={"reason": disk.breach})
            await asyncio.to_thread(workspace.reset_working_directory, request.working_dir)
        stderr = streams[1].text()
        if report.error:
            first = f" ({stderr.strip().splitlines()[0]})" if stderr.strip() else ""
            raise ExecutionError(f"{request.script_path} could not be started: {report.error}{first}")
        return ExecutionRawResult(
            stdout=streams[0].text(),
            stderr=stderr + self._note(report, group),
            exit_code=-1 if timed_out else _exit_code(report, bool(means.sandbox.kind)),
            duration_seconds=seconds,
            timed_out=timed_out,
            isolation=self._applied(report),
        )

    def _order(self, request: ScriptRequest, means: Means, temporary: Path, group: Cgroup | None) -> dict[str, Any]:
        """What the supervisor is to do, in plain values."""
        limits, box, interpreter, network = self.limits, means.sandbox, means.interpreter, self.config.allow_network
        hidden = [os.path.realpath(path) for path in (*request.hidden, *_secrets(interpreter.roots))]
        seen = {"readable": tuple(_needed(request, means, self.config)), "hidden": tuple(hidden)}
        shown, memory = request.model_copy(update=seen), limits.memory_bytes
        gpus = request.env.get("CUDA_VISIBLE_DEVICES") != "" and any(Path("/dev").glob("nvidia[0-9]*"))
        mounts: tuple[sandbox.Mount, ...] = ()
        if box.kind:
            mounts = sandbox.mounts_of(shown, temporary, network=network, gpus=gpus, shared_bytes=memory // 2)
        command = sandbox.bubblewrap_command(box, mounts, request.working_dir, network=network)
        own = {"mounts": mounts, "network": network, "root": str(temporary / "root"), "user": sandbox.INSIDE}
        resources = {"FSIZE": limits.file_bytes, "NOFILE": limits.open_files, "CORE": 0}
        if not gpus:  # CUDA maps more than it uses
            resources["DATA"] = memory
        return {
            "bubblewrap": command if box.kind == "bubblewrap" else None,
            "namespaces": own if box.kind == "namespaces" else None,
            "inside": {
                "command": [interpreter.path, request.script_path],
                "launcher": sandbox.child_program(interpreter.path, "confine"),
                # in a network of its own a script may talk to itself
                "seccomp": filter_program(bool(box.kind) or network) if box.seccomp else None,
            },
            "working_dir": request.working_dir,
            "limits": resources,
            "max_tasks": limits.tasks,
            "max_memory": memory,
            "cgroup": str(group.folder) if group else "",
            "grace": limits.grace_seconds,
            "hurry": limits.hurry_seconds,
            "parent": os.getpid(),
        }

    def _applied(self, report: Report) -> Isolation:
        """What really confined a script, in words."""
        applied, limits = report.applied, self.limits
        parts = [name for name in ("bubblewrap", "namespaces", "seccomp") if name in applied]
        boxed = parts[:1] not in ([], ["seccomp"])
        words = {
            "time": True,
            f"memory {limits.memory_bytes / 1e9:.1f} GB": {"cgroup", "DATA", "watch"} & applied,
            f"processes {limits.tasks}": {"cgroup", "watch"} & applied,
            f"file size {limits.file_bytes / 1e9:.1f} GB": "FSIZE" in applied,
            f"open files {limits.open_files}": "NOFILE" in applied,
            f"disk {limits.disk_bytes / 1e9:.1f} GB and {limits.files} files": True,
            "reads only what it is given": boxed,
            "writes only in the working directory": boxed,
            "no root": boxed or os.getuid() != 0,
        }
        closed = bool(parts) and not self.config.allow_network
        held = tuple(word for word, is_held in words.items() if is_held)
        return Isolation(sandbox="+".join(parts) or "none", network_blocked=closed, limits=held)

    def _note(self, report: Report, group: Cgroup | None) -> str:
        """What the harness knows about a script's end and the script could not say itself."""
        reason = report.reason
        killed = report.signal == SIGKILL or report.exit == 128 + SIGKILL  # directly, or as its sandbox tells it
        if killed and not reason and group is not None and group.events("memory.events", "oom_kill"):
            reason = f"more than {self.limits.memory_bytes / 1e9:.1f} GB of memory"
        return f"\n{NOTE} killed: {reason}" if reason else ""


def open_executor(config: PipelineConfig, address: str) -> AbstractAsyncContextManager[LocalExecutor]:
    """Processes of this machine."""
    return nullcontext(LocalExecutor(config))


def _environment(request: ScriptRequest, means: Means, temporary: Path, marker: str) -> dict[str, str]:
    inside = "/tmp" if means.sandbox.kind else str(temporary / "tmp")
    env = {**request.env, MARKER: marker, "TMPDIR": inside, "HOME": f"{inside}/home"}
    if not means.sandbox.kind:
        env["JOBLIB_TEMP_FOLDER"] = inside  # else /dev/shm, where what it leaves would stay
    if means.interpreter.user_base is not None:
        env["PYTHONUSERBASE"] = means.interpreter.user_base  # it would be looked for in the new home
    return env


def _exit_code(report: Report, boxed: bool) -> int:
    """Exit codes as `subprocess` gives them: negative for a signal, also when a sandbox passes one on as 128 + n."""
    if report.reason:
        return -SIGKILL  # even if the script itself was gone before its children were killed
    if report.signal is not None:
        return -report.signal
    code = 1 if report.exit is None else report.exit
    return 128 - code if boxed and code > 128 and code - 128 in set(signal.Signals) else code


def _needed(request: ScriptRequest, means: Means, config: PipelineConfig) -> list[str]:
    """All that a script must be able to read besides the system and its data, wherever it lies."""
    env, interpreter = request.env, means.interpreter
    libraries = [path for path in env.get("LD_LIBRARY_PATH", "").split(os.pathsep) if path]
    needed = [root for root in (*interpreter.roots, *libraries) if not holds_homes(Path(root).resolve())]
    needed += [*sandbox.link_chain(interpreter.path), request.script_path, f"{sandbox.HERE}/child", *request.readable]
    caches = [*config.model_caches, *(env[name] for name in environment.CACHE_VARIABLES if env.get(name))]
    needed += [part for cache in caches for part in environment.readable_parts(cache)]
    needed += [env[name] for name in environment.CERTIFICATE_VARIABLES if env.get(name)]
    if request.input_dir is None:
        needed += workspace.linked_places(Path(request.working_dir) / "input")
    return [path for path in needed if os.path.lexists(path)]


def _secrets(roots: Iterable[str]) -> list[str]:
    """Files of secrets in the folders that modules come from: one of them may be someone's project."""
    found = []
    for root in roots:
        with suppress(OSError), os.scandir(root) as entries:
            found += [entry.path for entry in entries if _SECRET.fullmatch(entry.name)]
    return found


def _sweep(marker: str, group: Cgroup | None) -> None:
    """The last resort when a script has killed its supervisor: find its processes by group and by marker."""
    if group is not None:
        group.kill()
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get(MARKER) == marker:
                process.kill()

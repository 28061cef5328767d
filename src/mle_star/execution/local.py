"""Runs scripts on this machine, confined as well as it allows, and says truthfully how."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import psutil

from mle_star.errors import ConfigError, ExecutionError
from mle_star.execution.cgroup import Cgroup, CgroupHome, find_cgroup_home
from mle_star.execution.environment import CACHE_VARIABLES, CERTIFICATE_VARIABLES
from mle_star.execution.interpreter import InterpreterInfo, locate_interpreter
from mle_star.execution.limits import Limits
from mle_star.execution.output import NOTE, Keeper, LogFile
from mle_star.execution.process import SIGKILL, Report, ScriptProcess
from mle_star.execution.quota import DiskQuota
from mle_star.execution.removal import own_prefix, remove_entry, remove_left_behind
from mle_star.execution.sandbox import (
    HERE,
    INSIDE,
    NOBODY,
    Walls,
    World,
    bubblewrap_command,
    child_program,
    find_walls,
    link_chain,
    mounts_of,
    rules_inside,
    rules_outside,
    too_much,
    write_users,
)
from mle_star.execution.seccomp import filter_program
from mle_star.execution.weights import readable_parts
from mle_star.execution.workspace import clear_working_directory, linked_places, strip_set_ids, unlock
from mle_star.models import ExecutionRawResult, Isolation, PipelineConfig
from mle_star.run.context import ScriptRequest

logger = logging.getLogger("mle_star.execution")

MARKER = "MLE_STAR_SCRIPT"
"""A variable in every script's environment by which its processes can be told from all others."""
PREFIX = "mle-star-"
LEFT_SECONDS = 3600.0
"""After so long the temporary folder of a harness that died hard is removed by the next."""
_SECRET = re.compile(r"\.(env(\..*|rc)?|netrc|pypirc|git|git-credentials|aws|azure|docker|kube|ssh)")
SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Means:
    """What this machine offers for confining scripts."""

    walls: Walls
    cgroups: CgroupHome | None
    interpreter: InterpreterInfo


class LocalExecutor:
    """Runs each script in a process tree of its own, and leaves nothing of it behind.

    The switches exist for machines and tests that must do without: what they turn off is reported as absent. Where
    root runs scripts without a sandbox, they become the user `nobody`.
    """

    def __init__(
        self,
        config: PipelineConfig | None = None,
        *,
        limits: Limits | None = None,
        sandbox: Literal["auto", "namespaces", "none"] = "auto",
        use_cgroups: bool = True,
        use_filters: bool = True,
        nobody: int = NOBODY,
    ) -> None:
        self.config = config or PipelineConfig()
        self.limits = limits or Limits.of(self.config)
        self._sandbox, self._use_cgroups, self._use_filters = sandbox, use_cgroups, use_filters
        self._nobody = nobody
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
        walls = find_walls(self._sandbox) if linux else Walls()
        if not self._use_filters:
            kernel = replace(walls.kernel, landlock=False, seccomp=False, no_seccomp="switched off")
            walls = replace(walls, kernel=kernel)
        if walls.gap:
            if self.config.require_sandbox:
                raise ConfigError(f"require_sandbox is set, but scripts would run {walls.gap}")
            logger.warning("scripts run %s", walls.gap)
        home = find_cgroup_home() if linux and self._use_cgroups else None
        means = Means(walls, home, locate_interpreter(self.config.python))
        remove_left_behind(Path(tempfile.gettempdir()), PREFIX, LEFT_SECONDS)
        return means

    def isolation(self) -> Isolation:
        """What will confine scripts here, as far as can be told before one has run."""
        walls = self.probe().walls
        closed = bool(walls.world) or walls.kernel.seccomp
        return Isolation(sandbox=walls.sandbox, network_blocked=closed and not self.config.allow_network)

    async def run(self, request: ScriptRequest) -> ExecutionRawResult:
        """Run to the end, to the timeout or to the cancellation; leave no process behind."""
        means = self._means
        if means is None:
            means = await asyncio.to_thread(self.probe)
        temporary = Path(tempfile.mkdtemp(prefix=own_prefix(PREFIX)))
        group = means.cgroups.create(self.limits) if means.cgroups else None
        try:
            (temporary / "tmp" / "home").mkdir(parents=True)
            (temporary / "root").mkdir()
            write_users(temporary)
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
        order = self._order(request, means, temporary, group)
        disk = DiskQuota(limits, [Path(request.working_dir), temporary], None if means.walls.world else SHARED_MEMORY)
        process = await ScriptProcess.start(order, request.working_dir, env, streams)
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
        await asyncio.to_thread(self._clean_up, request, report, disk)
        if disk.breach:
            report = replace(report, reason=disk.breach)
            await asyncio.to_thread(clear_working_directory, request.working_dir)
        stderr = streams[1].text()
        if report.error:
            first = f" ({stderr.strip().splitlines()[0]})" if stderr.strip() else ""
            raise ExecutionError(f"{request.script_path} could not be started: {report.error}{first}")
        return ExecutionRawResult(
            stdout=streams[0].text(),
            stderr=stderr + self._notes(report, group, timed_out),
            exit_code=-1 if timed_out else _exit_code(report, bool(means.walls.world)),
            duration_seconds=seconds,
            timed_out=timed_out,
            isolation=self._applied(report, group),
        )

    def _clean_up(self, request: ScriptRequest, report: Report, disk: DiskQuota) -> None:
        """What a script must not leave to others, and what would keep us from what it made."""
        unlock(request.working_dir)
        if "seccomp" not in report.applied:
            strip_set_ids(request.working_dir)
        disk.sweep_shared(self._nobody if "nobody" in report.applied else os.getuid())

    # --- orders -----------------------------------------------------------------------------------------------

    def _order(self, request: ScriptRequest, means: Means, temporary: Path, group: Cgroup | None) -> dict[str, Any]:
        limits = self.limits
        world = self._world(request, means, temporary)
        uncounted = group is None or len(group.limited) < 2
        resources = {"FSIZE": limits.file_bytes, "NOFILE": limits.open_files, "CORE": 0}
        if not _uses_gpu(request.env):  # CUDA maps more than it uses
            resources["DATA"] = limits.memory_bytes
        return {
            "bubblewrap": bubblewrap_command(means.walls.bubblewrap, world)
            if means.walls.world == "bubblewrap"
            else None,
            "namespaces": self._namespaces(world) if means.walls.world == "namespaces" else None,
            "inside": self._inside(request, means, world),
            "working_dir": request.working_dir,
            "limits": resources,
            "max_tasks": limits.tasks,
            "max_memory": limits.memory_bytes,
            "watch": uncounted,
            "count_user_tasks": uncounted,
            "cgroups": group.members if group else [],
            "fork_gates": group.fork_gates if group else [],
            "grace": limits.grace_seconds,
            "hurry": limits.hurry_seconds,
            "parent": os.getpid(),
        }

    def _namespaces(self, world: World) -> dict[str, Any]:
        return {
            "root": str(Path(world.private_dir) / "root"),
            "mounts": list(mounts_of(world)),
            "network": world.allow_network,
            "user": INSIDE,
        }

    def _inside(self, request: ScriptRequest, means: Means, world: World) -> dict[str, Any]:
        """What the script's own process has to do at the very last."""
        rules: dict[str, Any] | None = None
        if means.walls.kernel.landlock:
            rules = dict(rules_inside(world) if means.walls.world else rules_outside(world))
            rules["close_tcp"] = not means.walls.world and not world.allow_network
        work, temporary = Path(request.working_dir), Path(world.private_dir)
        return {
            "command": [means.interpreter.path, request.script_path],
            "launcher": child_program(means.interpreter.path, "inside"),
            "landlock": rules,
            # in a network of its own a script may talk to itself
            "seccomp": filter_program(bool(means.walls.world) or world.allow_network)
            if means.walls.kernel.seccomp
            else None,
            "nobody": self._nobody if not means.walls.world and self._use_filters else None,
            "needed": [*world.readable, request.working_dir, *filter(None, [request.input_dir])],
            "owned": [str(work), str(work / "final"), *(str(temporary / name) for name in ("", "tmp", "tmp/home"))],
        }

    def _world(self, request: ScriptRequest, means: Means, temporary: Path) -> World:
        return World(
            working_dir=request.working_dir,
            private_dir=str(temporary),
            input_dir=request.input_dir,
            readable=tuple(_needed(request, means, self.config)),
            hidden=tuple(os.path.realpath(path) for path in (*request.hidden, *_secrets(means.interpreter.roots))),
            allow_network=self.config.allow_network,
            gpus=_uses_gpu(request.env),
            shared_memory_bytes=self.limits.memory_bytes // 2,
        )

    def _environment(self, request: ScriptRequest, means: Means, temporary: Path, marker: str) -> dict[str, str]:
        inside = "/tmp" if means.walls.world else str(temporary / "tmp")
        env = {**request.env, MARKER: marker, "TMPDIR": inside, "HOME": f"{inside}/home"}
        if not means.walls.world:
            env["JOBLIB_TEMP_FOLDER"] = inside  # else /dev/shm, of which only what is open is known to be in use
        if means.interpreter.user_base is not None:
            env["PYTHONUSERBASE"] = means.interpreter.user_base  # it would be looked for in the new home
        return env

    # --- outcomes ---------------------------------------------------------------------------------------------

    def _applied(self, report: Report, group: Cgroup | None) -> Isolation:
        applied, limits = report.applied, self.limits
        counted = group.limited if group is not None and "cgroup" in applied and "no-cgroup" not in applied else set()
        words = ["time"]
        if "memory" in counted or {"DATA", "watch"} & applied:
            words.append(f"memory {limits.memory_bytes / 1e9:.1f} GB")
        if "tasks" in counted or "watch" in applied:
            words.append(f"processes {limits.tasks}")
        names = {"FSIZE": f"file size {limits.file_bytes / 1e9:.1f} GB", "NOFILE": f"open files {limits.open_files}"}
        words += [text for name, text in names.items() if name in applied]
        words.append(f"disk {limits.disk_bytes / 1e9:.1f} GB and {limits.files} files")
        walls = [name for name in ("bubblewrap", "namespaces", "landlock", "seccomp") if name in applied]
        if {"bubblewrap", "namespaces", "landlock"} & applied:
            words += ["reads only what it is given", "writes only in the working directory"]
        if os.getuid() != 0 or {"bubblewrap", "namespaces", "nobody"} & applied:
            words.append("no root")
        closed = bool({"bubblewrap", "namespaces", "seccomp"} & applied) and not self.config.allow_network
        return Isolation(sandbox="+".join(walls) or "none", network_blocked=closed, limits=tuple(words))

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


def _exit_code(report: Report, boxed: bool) -> int:
    """Exit codes as `subprocess` gives them: negative for a signal, also when a sandbox passes one on as 128 + n."""
    if report.reason:
        return -SIGKILL  # even if the script itself was gone before its children were killed
    if report.signal is not None:
        return -report.signal
    code = 1 if report.exit_code is None else report.exit_code
    return 128 - code if boxed and code > 128 and code - 128 in set(signal.Signals) else code


def _uses_gpu(env: dict[str, str]) -> bool:
    return env.get("CUDA_VISIBLE_DEVICES") != "" and any(Path("/dev").glob("nvidia[0-9]*"))


def _needed(request: ScriptRequest, means: Means, config: PipelineConfig) -> list[str]:
    """All that a script must be able to read besides the system and its data, wherever it lies."""
    needed = [root for root in means.interpreter.roots if not too_much(root)]
    needed += [*link_chain(means.interpreter.path), request.script_path, str(Path(HERE) / "child")]
    needed += [path for path in request.env.get("LD_LIBRARY_PATH", "").split(os.pathsep) if path and not too_much(path)]
    caches = [*config.model_caches, *(request.env[name] for name in CACHE_VARIABLES if request.env.get(name))]
    needed += [part for cache in caches for part in readable_parts(cache)]
    needed += [request.env[name] for name in CERTIFICATE_VARIABLES if request.env.get(name)]
    needed += request.readable
    shown = Path(request.working_dir) / "input"
    if request.input_dir is None and shown.is_dir():
        needed += linked_places(shown)
    return [path for path in needed if os.path.lexists(path)]


def _secrets(roots: Iterable[str]) -> list[str]:
    """Files of secrets in the folders that modules come from: one of them may be somebody's project."""
    found = []
    for root in roots:
        with contextlib.suppress(OSError), os.scandir(root) as entries:
            found += [entry.path for entry in entries if _SECRET.fullmatch(entry.name)]
    return found


def _sweep(marker: str, group: Cgroup | None) -> None:
    """The last resort when a script has killed its supervisor: find its processes by group and by marker."""
    if group is not None:
        group.kill()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARKER) == marker:
                process.kill()

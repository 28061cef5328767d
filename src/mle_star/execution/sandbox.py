"""The world that a script gets to see: nothing but what is named here, and whether this machine can make it."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

from mle_star.data.place import records_of
from mle_star.execution.probe import find_program, try_program
from mle_star.execution.seccomp import filter_program

Mount = tuple[str, str, str]
"""What (as in `_WORDS`, or `tmpfs`), from where or with which options, to where."""
INSIDE = 1000
"""The user and group that a script believes to be."""
NOBODY = 65534
"""The user and group that root's scripts become where they have no world of their own."""
PROBE_SECONDS = 10
MANY = 500
"""Of so many entries of one folder, each is shown by itself."""
INSTALL_HINT = (
    "install bubblewrap (Debian, Ubuntu: apt install bubblewrap; Fedora: dnf install bubblewrap; "
    "Arch: pacman -S bubblewrap)"
)
HERE = str(Path(__file__).parent)
"""Where `child` lies, which runs between the harness and a script."""

_MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")  # links into /usr on most systems
_LIBRARIES = ("/usr", "/nix/store", "/gnu/store")
_SETTINGS = (
    "alternatives", "ca-certificates", "crypto-policies", "fonts", "gai.conf", "host.conf", "hosts", "ld.so.cache",
    "ld.so.conf", "ld.so.conf.d", "locale.alias", "localtime", "mime.types", "nsswitch.conf", "nvidia", "OpenCL",
    "os-release", "pki/ca-trust", "pki/tls/certs", "pki/tls/openssl.cnf", "protocols", "services", "ssl/certs",
    "ssl/openssl.cnf", "timezone", "vulkan",
)  # fmt: skip
_PROC_SECRETS = ("kcore", "key-users", "keys", "kmsg", "latency_stats", "sched_debug", "sysrq-trigger", "timer_list")
_PROC_SWITCHES = ("sys", "irq", "bus", "fs", "acpi", "asound", "scsi")
_DEVICES = ("null", "zero", "full", "random", "urandom")
_GPU_DEVICES = ("nvidia*", "dri", "kfd")
_LEFT_OPEN = (
    "local services (unix sockets), shared memory, names of programs, files and keys, modes and times of your files, "
    "the priority of your programs"
)
_OPEN_BEFORE = {6: "signals to your programs", 3: "emptying your files"}
"""By the version of Landlock that closes it."""
_OPEN_UNFILTERED = "the kernel's keyring, sockets to the hypervisor, io_uring and other calls deep into the kernel"
_OPEN_TO_ROOT = "and, where nobody cannot reach interpreter and data, being root without its rights"
_USERS = {
    "passwd": f"root:x:0:0:root:/:/bin/sh\nscript:x:{INSIDE}:{INSIDE}:script:/tmp/home:/bin/sh\n",
    "group": f"root:x:0:\nscript:x:{INSIDE}:\n",
}


@dataclass(frozen=True)
class Bubblewrap:
    """A bubblewrap that was seen to work here, or the reason why there is none."""

    path: str = ""
    reason: str = ""
    options: frozenset[str] = frozenset()

    @property
    def works(self) -> bool:
        """Can scripts be put into it?"""
        return bool(self.path)


@dataclass(frozen=True)
class Kernel:
    """What the kernel offers without any program's help, as far as a trial has shown."""

    namespaces: bool = False
    landlock: bool = False
    seccomp: bool = False
    reason: str = ""  # why there are no namespaces
    landlock_version: int = 6
    no_seccomp: str = ""  # why there is no filter of system calls


@dataclass(frozen=True)
class Walls:
    """All that can stand around a script here."""

    bubblewrap: Bubblewrap = Bubblewrap(reason="bubblewrap exists on Linux only")
    kernel: Kernel = Kernel(reason="namespaces exist on Linux only", no_seccomp="seccomp exists on Linux only")

    @property
    def world(self) -> Literal["bubblewrap", "namespaces", ""]:
        """How scripts get a world of their own, if they do."""
        return "bubblewrap" if self.bubblewrap.works else "namespaces" if self.kernel.namespaces else ""

    @property
    def sandbox(self) -> str:
        """All that confines scripts, in the words of the record."""
        filters = [name for name in ("landlock", "seccomp") if getattr(self.kernel, name)]
        return "+".join([*filter(None, [self.world]), *filters]) or "none"

    @property
    def gap(self) -> str:
        """What scripts run without, in one line; nothing when they have a world of their own and a filter of calls."""
        kernel = self.kernel
        unfiltered = "" if kernel.seccomp else f"without a filter of system calls: {kernel.no_seccomp}"
        if self.world:
            return unfiltered and f"{unfiltered}; {self.sandbox} confines them, which leaves open {_OPEN_UNFILTERED}"
        reason = f"without a sandbox: {self.bubblewrap.reason}; namespaces: {kernel.reason}"
        reason += f"; {unfiltered}" if unfiltered else ""
        if not kernel.landlock:
            return f"{reason}; files are open to them{'' if kernel.seccomp else ', and so is the network'}"
        older = [what for version, what in _OPEN_BEFORE.items() if kernel.landlock_version < version]
        older += [] if kernel.seccomp else ["the network", "the limits of your programs", _OPEN_UNFILTERED]
        left = [_LEFT_OPEN, *older, *([_OPEN_TO_ROOT] if os.getuid() == 0 else [])]
        return f"{reason}; {self.sandbox} confines them, which leaves open {', '.join(left)}"


@dataclass(frozen=True)
class World:
    """What a confined script can see and change."""

    working_dir: str
    private_dir: str  # this script's own: `tmp` becomes /tmp, `root` is where the world is put together
    input_dir: str | None
    readable: tuple[str, ...]  # besides the system's libraries
    hidden: tuple[str, ...] = ()  # not to be seen, though something around it is; without links
    allow_network: bool = False
    gpus: bool = True
    shared_memory_bytes: int = 1 << 30

    @property
    def shown_input(self) -> str:
        """Where the data appear."""
        return str(Path(self.working_dir) / "input")

    @property
    def own_records(self) -> str | None:
        """The folder of the run, or of all runs, where it lies within the data: that is not for scripts."""
        if self.input_dir is None:
            return None
        folder, data = Path(os.path.realpath(self.working_dir)), os.path.realpath(self.input_dir)
        run = folder.parents[1] if len(folder.parents) > 1 else folder
        for place in (records_of(run), run, folder):
            if is_below(str(place), data):
                return os.path.relpath(place, data)
        return None


# --- what there is ------------------------------------------------------------------------------------------


def find_walls(wanted: Literal["auto", "namespaces", "none"] = "auto") -> Walls:
    """All that can stand around a script here, or less, where less is wanted."""
    off = "switched off"
    bubblewrap = find_bubblewrap() if wanted == "auto" else Bubblewrap(reason=f"bubblewrap: {off}")
    kernel = find_kernel()
    return Walls(bubblewrap, replace(kernel, namespaces=False, reason=off) if wanted == "none" else kernel)


def find_bubblewrap() -> Bubblewrap:
    """Try bubblewrap once, with the namespaces that scripts will get."""
    path = find_program("bwrap")
    if path is None:
        return Bubblewrap(reason=f"bubblewrap is not installed: {INSTALL_HINT}")
    try:
        text = try_program([path, "--help"], PROBE_SECONDS)
        options = frozenset(word for word in text.stdout.decode("utf-8", "replace").split() if word.startswith("--"))
        command = [path, *_namespaces(False, options), "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
        answer = try_program([*command, path, "--version"], PROBE_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        return Bubblewrap(reason=f"bubblewrap does not work here: {error}")
    if answer.returncode:
        said = answer.stderr.decode("utf-8", "replace").strip() or f"exit code {answer.returncode}"
        return Bubblewrap(
            reason=f"bubblewrap does not work here: {said}; this machine or container forbids user namespaces"
        )
    return Bubblewrap(path=path, options=options)


def find_kernel() -> Kernel:
    """Try in a process of its own what the kernel would do for a script."""
    if sys.platform != "linux":
        return Walls().kernel
    program, missing = b"", "the kernel does not take it"
    try:
        program = filter_program(internet=False)
    except OSError as error:
        missing = str(error)
    with tempfile.TemporaryDirectory(prefix="mle-star-probe-") as folder:
        try:
            answer = subprocess.run(
                [*child_program(sys.executable, "probe"), folder, program.hex()],
                stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_SECONDS, check=True, cwd=folder, env={},
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError) as error:
            return Kernel(reason=(untried := f"the kernel could not be tried: {error}"), no_seccomp=untried)
    first, _, reason = answer.stdout.decode("utf-8", "replace").partition("\n")
    version, *names = first.split()
    return Kernel(
        namespaces="namespaces" in names,
        landlock="landlock" in names,
        seccomp="seccomp" in names,
        reason=reason.strip(),
        landlock_version=int(version),
        no_seccomp="" if "seccomp" in names else missing,
    )


def child_program(python: str, module: str) -> list[str]:
    """The command line that starts a module of `child` quickly, untouched by folders and variables around it."""
    start = f"import sys; sys.path.append(sys.argv.pop(1)); from child.{module} import main; main()"
    return [python, "-I", "-S", "-c", start, HERE]


# --- what a script sees -------------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def mounts_of(world: World) -> tuple[Mount, ...]:
    """The world, piece by piece, in the order in which it is put together; asked for twice for each script."""
    found: list[Mount] = []
    for name in _MERGED:
        path = f"/{name}"
        if Path(path).is_symlink():
            found.append(_linked(path))
        elif Path(path).is_dir():
            found += _in_parts(world, [path])
    found += _in_parts(world, _system())
    found += [("ro", str(Path(world.private_dir) / name), f"/etc/{name}") for name in _USERS]
    found += [*_proc(world.gpus), *_devices(world)]
    found.append(("rw", str(Path(world.private_dir) / "tmp"), "/tmp"))
    if not any(is_within(path, "/var/tmp") for path in (world.working_dir, *_both_forms(world.readable))):
        found.append(("symlink", "/tmp", "/var/tmp"))
    found += _in_parts(world, _shown(world))
    covers = [target for what, _, target in found if what == "tmpfs" and target != "/dev/shm"]
    if world.allow_network:
        found += [("ro", path, path) for path in _name_service()]
    found.append(("rw", world.working_dir, world.working_dir))
    if world.input_dir is not None or Path(world.shown_input).is_dir():
        found.append(("ro", world.input_dir or world.shown_input, world.shown_input))
    if world.own_records is not None:
        place = str(Path(world.shown_input) / world.own_records)
        found += [("tmpfs", "mode=755,size=4096", place), ("read-only", "", place)]
    return (*found, *(("read-only", "", place) for place in covers), ("read-only", "", "/"))


def _shown(world: World) -> list[str]:
    """What is shown besides the system and the data, at its own place."""
    paths = [path for path in _both_forms(world.readable) if not is_within(path, world.working_dir)]
    return outermost(paths, (*_system(), *(f"/{name}" for name in _MERGED)))


def _in_parts(world: World, paths: Iterable[str]) -> list[Mount]:
    """These paths for reading; one that holds something hidden comes in parts, with the links that lie between."""
    parts, links = list[str](), list[str]()
    for path in paths:
        parts += readable_outside(world.hidden, path, links)
    mounts = in_few_mounts(parts)
    whole = {target for _, _, target in mounts}
    return [*mounts, *(_linked(link) for link in links if os.path.dirname(link) not in whole)]  # noqa: PTH120


def _linked(path: str) -> Mount:
    return ("symlink", os.readlink(path), path)  # noqa: PTH115


def in_few_mounts(paths: list[str]) -> list[Mount]:
    """These paths for reading. A folder of which much is shown, and most, comes as a whole, with the rest covered.

    Each mount takes longer than the one before, and bubblewrap gives up at three thousand. A cover is closed at the
    very end: something may have to be shown inside of it.
    """
    beside: dict[str, set[str]] = {}
    for path in paths:
        beside.setdefault(os.path.dirname(path), set()).add(path)  # noqa: PTH120
    found: list[Mount] = []
    whole: set[str] = set()
    for folder, shown in beside.items():
        if len(shown) <= MANY or too_much(folder):
            continue
        with os.scandir(folder) as entries:
            rest = [entry for entry in entries if entry.path not in shown and not entry.is_symlink()]
        if len(rest) < len(shown):
            whole.add(folder)
            found += [("ro", folder, folder), *map(_cover, rest)]
    return [*found, *(("ro", path, path) for path in paths if os.path.dirname(path) not in whole)]  # noqa: PTH120


def _cover(entry: os.DirEntry[str]) -> Mount:
    """Nothing in its place: an empty folder, or a device that nobody can open there."""
    is_folder = entry.is_dir(follow_symlinks=False)
    return ("tmpfs", "mode=755,size=4096", entry.path) if is_folder else ("ro", os.devnull, entry.path)


@lru_cache(maxsize=1)
def _system() -> tuple[str, ...]:
    """The system's libraries, and the settings that they read, as they are when first asked for."""
    places = [*_LIBRARIES, *(f"/etc/{name}" for name in _SETTINGS)]
    for path in sorted(Path("/etc/ld.so.conf.d").glob("*.conf")):
        lines = path.read_text("utf-8", "replace").splitlines()
        places += [
            line.strip() for line in lines if line.startswith("/") and not is_within(line.strip(), "/usr", "/lib")
        ]
    return tuple(place for place in places if Path(place).exists())


def _proc(gpus: bool) -> list[Mount]:
    """Its own processes; nothing to write to, unless CUDA must name its threads."""
    found: list[Mount] = [("proc", "", "/proc")]
    found += [("ro", os.devnull, path) for path in (f"/proc/{name}" for name in _PROC_SECRETS) if Path(path).exists()]
    if not gpus:
        return [*found, ("read-only", "", "/proc")]
    return found + [("ro", path, path) for path in (f"/proc/{name}" for name in _PROC_SWITCHES) if Path(path).exists()]


def _devices(world: World) -> list[Mount]:
    found: list[Mount] = [("devices", "", "/dev")]
    found.append(("tmpfs", f"mode=1777,size={world.shared_memory_bytes}", "/dev/shm"))
    found += [("dev", path, path) for path in (gpu_devices() if world.gpus else [])]
    place = "/sys" if world.gpus else "/sys/devices/system"
    return [*found, ("read-only", "", "/dev"), ("ro", place, place)] if Path(place).is_dir() else found


def gpu_devices() -> list[str]:
    """What programs on GPUs must be able to open."""
    return [str(path) for pattern in _GPU_DEVICES for path in sorted(Path("/dev").glob(pattern))]


def _name_service() -> list[str]:
    """Where names are looked up; some systems keep that below /run."""
    target = os.path.realpath("/etc/resolv.conf")
    return [path for path in dict.fromkeys(("/etc/resolv.conf", target)) if Path(path).exists()]


def write_users(private_dir: Path) -> None:
    """The only users that a script knows of."""
    for name, text in _USERS.items():
        (private_dir / name).write_text(text)


def bubblewrap_command(bubblewrap: Bubblewrap, world: World) -> list[str]:
    """The command line that makes `world`; what to start in it is still to be added."""
    words = [bubblewrap.path, *_namespaces(world.allow_network, bubblewrap.options)]
    for what, source, target in mounts_of(world):
        if what == "tmpfs":
            options = dict(option.split("=") for option in source.split(","))
            words += ["--size", options["size"]] if "--size" in bubblewrap.options else []
            words += ["--perms", options["mode"]] if "--perms" in bubblewrap.options else []  # from 0.5 on
            words += ["--tmpfs", target]
        elif source:
            words += [_WORDS[what], source, target]
        else:
            words += [_WORDS[what], target]
    return [*words, "--chdir", world.working_dir, "--"]


_WORDS = {
    "ro": "--ro-bind", "rw": "--bind", "dev": "--dev-bind", "symlink": "--symlink", "proc": "--proc",
    "devices": "--dev", "read-only": "--remount-ro",
}  # fmt: skip


def _namespaces(allow_network: bool, options: frozenset[str]) -> list[str]:
    words = ["--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try"]
    words += ["--uid", str(INSIDE), "--gid", str(INSIDE)]
    words += [] if allow_network else ["--unshare-net"]
    words += ["--disable-userns"] if "--disable-userns" in options else []
    return [*words, "--cap-drop", "ALL", "--die-with-parent", "--new-session"]


# --- the same as rules --------------------------------------------------------------------------------------


def rules_inside(world: World) -> dict[str, list[str]]:
    """What Landlock is to allow in a world that is already made: the same once more, should a wall have a hole."""
    mounts = mounts_of(world)
    shown = [part for path in _shown(world) for part in readable_outside(world.hidden, path)]
    read = [target for what, _, target in mounts if what in ("ro", "proc", "tmpfs", "devices")]
    parts = {os.path.dirname(path) for path in shown}  # noqa: PTH120 - a cover falls off when its file is replaced
    read = [*(path for path in read if path not in parts), *shown]
    return {
        "read": list(dict.fromkeys(read)),
        "listed": _cut_up(world),
        "write": [world.working_dir, "/tmp", *_writable_devices(world)],
    }


def rules_outside(world: World) -> dict[str, list[str]]:
    """The same world as allow-lists alone, for machines that cannot make one."""
    read = [part for place in _around(world) for part in readable_outside(world.hidden, place)]
    read += ["/etc/passwd", "/etc/group", "/proc", *_name_service()]
    read.append("/sys")  # where libraries count cores, and stumble if they may not
    if world.input_dir is not None:
        data = os.path.realpath(world.input_dir)
        hidden = [] if world.own_records is None else [str(Path(data) / world.own_records)]
        read += readable_outside(hidden, data)
    temporary = str(Path(world.private_dir) / "tmp")
    write = [world.working_dir, temporary, *_writable_devices(world)]
    return {"read": read, "listed": _cut_up(world), "write": write}


def _around(world: World) -> list[str]:
    return [*(f"/{name}" for name in _MERGED), *_system(), *_both_forms(world.readable)]


def _cut_up(world: World) -> list[str]:
    """The folders that are shown in parts: what is in them may be looked up, as an import does."""
    parts = ((place, part) for place in _around(world) for part in readable_outside(world.hidden, place))
    return sorted({os.path.dirname(part) for place, part in parts if part != place})  # noqa: PTH120


def _writable_devices(world: World) -> list[str]:
    found = [*(f"/dev/{name}" for name in _DEVICES), "/dev/shm"]
    if world.gpus:
        found += [*gpu_devices(), "/proc/self/task"]  # CUDA names its threads there, and gives up when it cannot
    return found


def readable_outside(hidden: Iterable[str], folder: str, links: list[str] | None = None) -> list[str]:
    """Every folder and file below `folder` that is not hidden, as few and as high as possible.

    A link is none of them: what it leads to is judged where it lies. Those between the parts are added to `links`.
    """
    places, real = set(hidden), os.path.realpath(folder)
    if real in places:
        return []
    if not any(is_below(place, real) for place in places):
        return [folder]
    found: list[str] = []
    for entry in os.scandir(folder):
        if not entry.is_symlink():
            found += readable_outside(places, entry.path, links)
        elif links is not None:
            links.append(entry.path)
    return found


# --- paths --------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _homes(said: str) -> frozenset[str]:
    """The folders in which people keep what is theirs."""
    found = {"/home", "/root", said}
    with suppress(KeyError):  # in a container, a user may be no more than a number
        found.add(pwd.getpwuid(os.getuid()).pw_dir)  # HOME may say something else
    return frozenset(os.path.realpath(place) for place in found)


def too_much(path: str) -> bool:
    """Would showing this folder show a whole home, or the whole machine?"""
    place, homes = os.path.realpath(path), _homes(os.path.expanduser("~"))  # noqa: PTH111
    return place == "/" or any(place == home or is_below(home, place) for home in homes if home != "/")


def link_chain(path: str) -> list[str]:
    """A path and all that it leads to, link by link."""
    found = [path]
    while Path(found[-1]).is_symlink() and len(found) < 40:
        found.append(os.path.normpath(Path(found[-1]).parent / Path(found[-1]).readlink()))
    return found


def _both_forms(paths: Iterable[str]) -> list[str]:
    """Each path as it is written and as it is without links, if it is there."""
    forms = [form for path in paths for form in (os.path.abspath(path), os.path.realpath(path))]  # noqa: PTH100
    return [form for form in dict.fromkeys(forms) if os.path.lexists(form)]


def outermost(paths: Iterable[str], shown: Iterable[str] = ()) -> list[str]:
    """Those paths that are not within another one, or within what is shown already."""
    kept: list[str] = []
    taken = set(shown)
    for path in sorted(set(paths), key=len):
        if taken.isdisjoint((path, *map(str, Path(path).parents))):
            kept.append(path)
            taken.add(path)
    return kept


def is_below(path: str, place: str) -> bool:
    """Does `path` lie truly inside `place`?"""
    return path.startswith(place.rstrip("/") + "/")


def is_within(path: str, *places: str) -> bool:
    """Is `path` one of these places, or inside one of them?"""
    return any(path == place or is_below(path, place) for place in places)

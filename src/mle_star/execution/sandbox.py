"""The namespaces that a script runs in: what it sees there, and whether this machine can make them."""

import os
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

from mle_star.data.place import holds_homes
from mle_star.execution.environment import find_program, try_program
from mle_star.run.context import ScriptRequest
from mle_star.seccomp import filter_program

Mount = tuple[str, str, str]
"""What, in the words of bubblewrap's options, from where or with which options, to where."""
INSIDE = 1000
"""The user and group that a script believes to be."""
PROBE_SECONDS = 10
MANY = 500
"""Of so many entries of one folder, each is shown by itself."""
INSTALL_HINT = (
    "install bubblewrap (Debian, Ubuntu: apt install bubblewrap; Fedora: dnf install bubblewrap; "
    "Arch: pacman -S bubblewrap)"
)
HERE = str(Path(__file__).parent)
"""Where `child` lies, which runs between the harness and a script."""

_MERGED = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")  # links into /usr on most systems
_LIBRARIES = ("/usr", "/nix/store", "/gnu/store")
_SETTINGS = (
    *("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "os-release"),  # where libraries are
    *("gai.conf", "host.conf", "hosts", "nsswitch.conf", "protocols", "services"),  # names of the network
    *("fonts", "locale.alias", "localtime", "mime.types", "timezone"),
    *("ca-certificates", "crypto-policies", "pki/ca-trust", "pki/tls/certs", "pki/tls/openssl.cnf"),
    *("ssl/certs", "ssl/openssl.cnf", "nvidia", "OpenCL", "vulkan"),
)
"""Of /etc, what libraries read."""
_PROC_SECRETS = ("kcore", "key-users", "keys", "kmsg", "latency_stats", "sched_debug", "sysrq-trigger", "timer_list")
_PROC_SWITCHES = ("sys", "irq", "bus", "fs", "acpi", "asound", "scsi")
_GPU_DEVICES = ("nvidia*", "dri", "kfd")
_OPEN_UNFILTERED = "the kernel's keyring, sockets to the hypervisor, io_uring and other calls deep into the kernel"
_USERS = {
    "passwd": f"root:x:0:0:root:/:/bin/sh\nscript:x:{INSIDE}:{INSIDE}:script:/tmp/home:/bin/sh\n",
    "group": f"root:x:0:\nscript:x:{INSIDE}:\n",
}


@dataclass(frozen=True)
class Sandbox:
    """What can confine scripts here: namespaces, made by bubblewrap or by us, and a filter of system calls."""

    kind: Literal["bubblewrap", "namespaces", ""] = ""
    seccomp: bool = False
    bubblewrap: str = ""  # its path
    options: frozenset[str] = frozenset()  # those that this bubblewrap knows
    no_namespaces: str = "they exist on Linux only"  # why
    no_seccomp: str = "seccomp exists on Linux only"

    @property
    def name(self) -> str:
        """In the words of the record."""
        return "+".join(filter(None, [self.kind, "seccomp" if self.seccomp else ""])) or "none"

    @property
    def missing(self) -> str:
        """What scripts run without, in one line; nothing when they have namespaces and a filter of system calls."""
        unfiltered = "" if self.seccomp else f"without a filter of system calls: {self.no_seccomp}"
        if self.kind:
            return unfiltered and f"{unfiltered}; {self.kind} confines them, which leaves open {_OPEN_UNFILTERED}"
        open_to_them = f"your files, your programs{'' if self.seccomp else ' and the network'} are open to them"
        text = f"unconfined, without namespaces: {self.no_namespaces}; {open_to_them}"
        return f"{text}; {unfiltered}" if unfiltered else text


# --- what there is ------------------------------------------------------------------------------------------


def find_sandbox(wanted: Literal["auto", "namespaces", "none"] = "auto") -> Sandbox:
    """The best that this machine has, as far as a trial shows; or less, where less is wanted."""
    if sys.platform != "linux":
        return Sandbox()
    try:
        no_seccomp = _trial("trial_filter", filter_program(internet=False).hex())
    except OSError as error:
        no_seccomp = str(error)
    found = Sandbox(seccomp=not no_seccomp, no_seccomp=no_seccomp)
    if wanted == "none":
        return replace(found, no_namespaces="switched off")
    off = "", frozenset[str](), "bubblewrap: switched off"
    path, options, reason = find_bubblewrap() if wanted == "auto" else off
    if path:
        return replace(found, kind="bubblewrap", bubblewrap=path, options=options)
    forbidden = _trial("trial_namespaces")
    return replace(found, no_namespaces=f"{reason}; {forbidden}") if forbidden else replace(found, kind="namespaces")


def find_bubblewrap() -> tuple[str, frozenset[str], str]:
    """Path and options of a bubblewrap that was seen to work here, or the reason why there is none."""
    path, options = find_program("bwrap"), frozenset[str]()
    if path is None:
        return "", options, f"bubblewrap is not installed: {INSTALL_HINT}"
    text, why = try_program([path, "--help"], PROBE_SECONDS)
    options = frozenset(word for word in text.decode("utf-8", "replace").split() if word.startswith("--"))
    command = [path, *_namespaces(False, options), "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    if why := why or try_program([*command, path, "--version"], PROBE_SECONDS)[1]:
        return "", options, f"bubblewrap does not work here: {why}; user namespaces may be forbidden here"
    return path, options, ""


def _trial(name: str, *words: str) -> str:
    """Why the kernel does not do what a function of `child.confine` asks of it; nothing when it does."""
    with tempfile.TemporaryDirectory(prefix="mle-star-probe-") as folder:
        return try_program([*child_program(sys.executable, "confine", name), folder, *words], PROBE_SECONDS)[1]


def child_program(python: str, module: str, function: str = "main") -> list[str]:
    """The command line that starts a module of `child` quickly, untouched by folders and variables around it."""
    start = f"import sys; sys.path.append(sys.argv.pop(1)); from child.{module} import {function}; {function}()"
    return [python, "-I", "-S", "-c", start, HERE]


# --- what a script sees -------------------------------------------------------------------------------------


def mounts_of(
    request: ScriptRequest, private: Path, *, network: bool = False, gpus: bool = True, shared_bytes: int = 1 << 30
) -> tuple[Mount, ...]:
    """The file system of a script, piece by piece, in the order in which it is put together.

    Below `private` is what is this script's own: `tmp` becomes /tmp, `root` is where the file system is put together.
    Of the request, `readable` is what is shown besides the system's libraries, `hidden` what is not, without links.
    """
    found: list[Mount] = []
    work, readable = request.working_dir, _both_forms(request.readable)
    for path in _MERGED:
        if Path(path).is_symlink():
            found.append(_linked(path))
        elif Path(path).is_dir():
            found += _in_parts(request.hidden, [path])
    found += _in_parts(request.hidden, _system())
    found += [("ro-bind", str(private / name), f"/etc/{name}") for name in _USERS]
    found += [*_proc(gpus), *_devices(gpus, shared_bytes), ("bind", str(private / "tmp"), "/tmp")]
    if not any(is_within(path, "/var/tmp") for path in (work, *readable)):
        found.append(("symlink", "/tmp", "/var/tmp"))
    shown = [path for path in readable if not is_within(path, work)]
    found += _in_parts(request.hidden, outermost(shown, (*_system(), *_MERGED)))
    covers = [target for what, _, target in found if what == "tmpfs" and target != "/dev/shm"]
    if network:  # where names are looked up; some systems keep that below /run
        places = dict.fromkeys(("/etc/resolv.conf", os.path.realpath("/etc/resolv.conf")))
        found += [("ro-bind", path, path) for path in places if Path(path).exists()]
    found.append(("bind", work, work))
    data = str(Path(work) / "input")
    if request.input_dir is not None or Path(data).is_dir():
        found.append(("ro-bind", request.input_dir or data, data))
    return (*found, *(("remount-ro", "", place) for place in covers), ("remount-ro", "", "/"))


def _in_parts(hidden: Iterable[str], paths: Iterable[str]) -> list[Mount]:
    """These paths for reading; one that holds something hidden comes in parts, with the links that lie between."""
    parts, links = list[str](), list[str]()
    for path in paths:
        parts += readable_outside(hidden, path, links)
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
        if len(shown) <= MANY or holds_homes(Path(folder).resolve()):
            continue
        with os.scandir(folder) as entries:
            rest = [entry for entry in entries if entry.path not in shown and not entry.is_symlink()]
        if len(rest) < len(shown):
            whole.add(folder)
            found += [("ro-bind", folder, folder), *map(_cover, rest)]
    return [*found, *(("ro-bind", path, path) for path in paths if os.path.dirname(path) not in whole)]  # noqa: PTH120


def _cover(entry: os.DirEntry[str]) -> Mount:
    """Nothing in its place: an empty folder, or a device that nobody can open there."""
    is_folder = entry.is_dir(follow_symlinks=False)
    return ("tmpfs", "mode=755,size=4096", entry.path) if is_folder else ("ro-bind", os.devnull, entry.path)


@lru_cache(maxsize=1)
def _system() -> tuple[str, ...]:
    """The system's libraries, and the settings that they read, as they are when first asked for."""
    places = [*_LIBRARIES, *(f"/etc/{name}" for name in _SETTINGS)]
    for path in sorted(Path("/etc/ld.so.conf.d").glob("*.conf")):
        lines = [line.strip() for line in path.read_text("utf-8", "replace").splitlines()]
        places += [line for line in lines if line.startswith("/") and not is_within(line, "/usr", "/lib")]
    return tuple(place for place in places if Path(place).exists())


def _proc(gpus: bool) -> list[Mount]:
    """Its own processes; nothing to write to, unless CUDA must name its threads."""
    secrets, switches = ([f"/proc/{name}" for name in names] for names in (_PROC_SECRETS, _PROC_SWITCHES))
    found: list[Mount] = [("proc", "", "/proc")]
    found += [("ro-bind", os.devnull, path) for path in secrets if Path(path).exists()]
    closed: list[Mount] = [("ro-bind", path, path) for path in switches if Path(path).exists()]
    return [*found, *closed] if gpus else [*found, ("remount-ro", "", "/proc")]


def _devices(gpus: bool, shared_bytes: int) -> list[Mount]:
    found: list[Mount] = [("dev", "", "/dev"), ("tmpfs", f"mode=1777,size={shared_bytes}", "/dev/shm")]
    for pattern in _GPU_DEVICES if gpus else ():
        found += [("dev-bind", str(path), str(path)) for path in sorted(Path("/dev").glob(pattern))]
    place = "/sys" if gpus else "/sys/devices/system"
    return [*found, ("remount-ro", "", "/dev"), ("ro-bind", place, place)] if Path(place).is_dir() else found


def write_users(private_dir: Path) -> None:
    """The only users that a script knows of."""
    for name, text in _USERS.items():
        (private_dir / name).write_text(text)


def bubblewrap_command(sandbox: Sandbox, mounts: Iterable[Mount], working_dir: str, *, network: bool) -> list[str]:
    """The command line that makes the namespaces; what to start in them is still to be added."""
    words = [sandbox.bubblewrap, *_namespaces(network, sandbox.options)]
    for what, source, target in mounts:
        if what == "tmpfs":
            options = dict(option.split("=") for option in source.split(","))
            for word, name in (("--size", "size"), ("--perms", "mode")):  # the second from 0.5 on
                words += [word, options[name]] if word in sandbox.options else []
            words += ["--tmpfs", target]
        else:
            words += [f"--{what}", *filter(None, [source]), target]
    return [*words, "--chdir", working_dir, "--"]


def _namespaces(allow_network: bool, options: frozenset[str]) -> list[str]:
    words = ["--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try"]
    words += ["--uid", str(INSIDE), "--gid", str(INSIDE)]
    words += [] if allow_network else ["--unshare-net"]
    words += ["--disable-userns"] if "--disable-userns" in options else []
    return [*words, "--cap-drop", "ALL", "--die-with-parent", "--new-session", "--as-pid-1"]


def readable_outside(hidden: Iterable[str], folder: str, links: list[str]) -> list[str]:
    """Every folder and file below `folder` that is not hidden, as few and as high as possible.

    A link is none of them: what it leads to counts where it lies. Those between the parts are added to `links`.
    """
    places, real = set(hidden), os.path.realpath(folder)
    if real in places:
        return []
    if not any(is_within(place, real) for place in places):
        return [folder]
    found: list[str] = []
    for entry in os.scandir(folder):
        if not entry.is_symlink():
            found += readable_outside(places, entry.path, links)
        else:
            links.append(entry.path)
    return found


# --- paths --------------------------------------------------------------------------------------------------


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


def is_within(path: str, *places: str) -> bool:
    """Is `path` one of these places, or inside one of them?"""
    return any(f"{path}/".startswith(f"{place.rstrip('/')}/") for place in places)

"""Bubblewrap: what it takes to run a script in a world of its own, and whether this machine can do it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mle_star.execution.probe import find_program

PROBE_SECONDS = 10
INSTALL_HINT = (
    "install bubblewrap (Debian, Ubuntu: apt install bubblewrap; Fedora: dnf install bubblewrap; "
    "Arch: pacman -S bubblewrap)"
)
_SECRETS = ("/etc/shadow", "/etc/gshadow")  # root could read them
_GPU_DEVICES = ("nvidia*", "dri", "kfd")


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
class World:
    """What a confined script can see and change."""

    working_dir: str
    temporary_dir: str  # becomes /tmp
    input_dir: str | None
    readable: tuple[str, ...]  # shown although they lie in a hidden place
    allow_network: bool = False
    gpus: bool = True
    shared_memory_bytes: int = 1 << 30


def find_bubblewrap() -> Bubblewrap:
    """Try bubblewrap once, with the namespaces that scripts will get."""
    path = find_program("bwrap")
    if path is None:
        return Bubblewrap(reason=f"bubblewrap is not installed: {INSTALL_HINT}")
    try:
        text = subprocess.run([path, "--help"], capture_output=True, timeout=PROBE_SECONDS, check=False)
        options = frozenset(word for word in text.stdout.decode("utf-8", "replace").split() if word.startswith("--"))
        command = [path, *_namespaces(False, options), "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
        answer = subprocess.run([*command, path, "--version"], capture_output=True, timeout=PROBE_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return Bubblewrap(reason=f"bubblewrap does not work here: {error}")
    if answer.returncode:
        said = answer.stderr.decode("utf-8", "replace").strip() or f"exit code {answer.returncode}"
        return Bubblewrap(
            reason=f"bubblewrap does not work here: {said}; this machine or container forbids user namespaces"
        )
    return Bubblewrap(path=path, options=options)


def _namespaces(allow_network: bool, options: frozenset[str]) -> list[str]:
    words = ["--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try"]
    words += [] if allow_network else ["--unshare-net"]
    words += ["--disable-userns"] if "--disable-userns" in options else []
    return [*words, "--cap-drop", "ALL", "--die-with-parent", "--new-session"]


def bubblewrap_command(bubblewrap: Bubblewrap, world: World, command: list[str]) -> list[str]:
    """The command line that runs `command` in `world`. `{status}` becomes a descriptor when it is started."""
    hidden = hidden_places()
    words = [bubblewrap.path, *_namespaces(world.allow_network, bubblewrap.options)]
    words += ["--json-status-fd", "{status}"] if "--json-status-fd" in bubblewrap.options else []
    words += ["--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev"]
    words += ["--size", str(world.shared_memory_bytes)] if "--size" in bubblewrap.options else []
    words += ["--perms", "1777", "--tmpfs", "/dev/shm"]
    if world.gpus:
        for device in (path for pattern in _GPU_DEVICES for path in sorted(Path("/dev").glob(pattern))):
            words += ["--dev-bind-try", str(device), str(device)]
    for place in hidden:
        words += ["--tmpfs", place]
    for secret in _SECRETS:
        if os.access(secret, os.R_OK):
            words += ["--ro-bind", os.devnull, secret]
    words += ["--bind", world.temporary_dir, "/tmp"]
    for path in shown_again(world.readable, (*hidden, "/tmp")):
        words += ["--ro-bind", path, path]
    if world.allow_network:
        words += [word for path in _name_service() for word in ("--ro-bind-try", path, path)]
    words += ["--bind", world.working_dir, world.working_dir]
    inside = str(Path(world.working_dir) / "input")
    if world.input_dir is not None or Path(inside).is_dir():
        words += ["--ro-bind", world.input_dir or inside, inside]
    words += [word for place in hidden for word in ("--remount-ro", place)]
    return [*words, "--chdir", world.working_dir, "--", *command]


def hidden_places() -> tuple[str, ...]:
    """The folders that scripts have no business in: homes, and the sockets of services."""
    homes = {"/home", "/root", os.path.expanduser("~")}  # noqa: PTH111
    if sys.platform != "win32":
        import pwd

        homes.add(pwd.getpwuid(os.getuid()).pw_dir)  # HOME may say something else
    places = {os.path.realpath(place) for place in homes} | {"/run"}
    outermost = [place for place in places if not any(is_below(place, other) for other in (*places, "/tmp"))]
    return tuple(sorted(place for place in outermost if place not in ("/", "/tmp") and Path(place).is_dir()))


def _name_service() -> list[str]:
    """Where /etc/resolv.conf may lead on systems that keep it below /run."""
    target = os.path.realpath("/etc/resolv.conf")
    return [str(Path(target).parent)] if target.startswith("/run/") else []


def shown_again(needed: Iterable[str], hidden: Iterable[str]) -> list[str]:
    """Those needed paths that hiding would take away, outermost only, never a hidden place itself."""
    places = list(hidden)
    wanted = set()
    for path in needed:
        for form in (os.path.abspath(path), os.path.realpath(path)):  # noqa: PTH100
            if any(is_below(form, place) for place in places) and os.path.lexists(form):
                wanted.add(form)
    kept: list[str] = []
    for path in sorted(wanted, key=len):
        if not any(is_below(path, other) for other in kept):
            kept.append(path)
    return kept


def is_below(path: str, place: str) -> bool:
    """Does `path` lie truly inside `place`?"""
    return path.startswith(place.rstrip("/") + "/")


def readable_outside(hidden: Iterable[str], folder: str = "/") -> list[str]:
    """Every folder and file that is not hidden, as few and as high as possible (for allow-lists without exceptions)."""
    places = {*hidden, *(secret for secret in _SECRETS if os.access(secret, os.R_OK))}
    if not any(place == folder or is_below(place, folder) for place in places):
        return [folder]
    found: list[str] = []
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return found
    for entry in entries:
        if entry.path in places or entry.is_symlink():
            continue  # what a link leads to is judged where it lies
        found += readable_outside(places, entry.path) if entry.is_dir() else [entry.path]
    return found

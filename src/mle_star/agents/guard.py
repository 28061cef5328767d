"""What agents with tools may not do: the listed commands in their usual disguises, and writing outside their folder.

A best effort on text, for an agent that errs. An agent that wants to get past it will: see docs/security.md.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from mle_star.agents.shell import Command, parse_commands

_SHELLS = {"sh", "bash", "dash", "zsh", "ksh", "ash"}
# Commands that run another one, with the options that take a value.
_WRAPPERS: dict[str, str] = {
    "sudo": "ugpCDhRrT", "doas": "uC", "env": "uCS", "nohup": "", "setsid": "", "command": "", "builtin": "",
    "exec": "a", "time": "fo", "nice": "n", "ionice": "cnp", "stdbuf": "ioe", "timeout": "ks", "xargs": "IiLnPsdaE",
    "busybox": "", "toybox": "", "unshare": "", "chroot": "", "watch": "n", "caffeinate": "tw", "coproc": "",
}  # fmt: skip
_TAKES_FIRST_OPERAND = {"timeout", "chroot"}
_REMOVERS = {"rm", "rmdir", "unlink", "shred"}
_CHANGERS = {"chmod", "chown", "chgrp", "touch", "mkdir", "truncate", "tee", "mkfifo", "mknod", "setfacl", "chattr"}
_COPIERS = {"cp", "mv", "install", "ln", "rsync", "scp"}
_HARMLESS_TARGETS = re.compile(r"/dev/(null|zero|stdout|stderr|tty|fd/\d+)|&?\d+|-")
_FORK_BOMB = re.compile(r"(?:function)?([\w:.\-]+)(?:\(\))?\{(.*?)\|\1&(?:.*?)\}[;&\n]*\1")
_UNRESOLVED = re.compile(r"[$`*?\[]")

Rule = Callable[[str, list[str], Command], str | None]


class Guard:
    """Judges tool calls of an agent that works in `work_dir` and may read `readable` folders, too."""

    def __init__(self, work_dir: Path, *, readable: Iterable[Path] = (), blocked: Iterable[str] = ()) -> None:
        self.work_dir = Path(os.path.realpath(work_dir))
        self._readable = [self.work_dir, *(Path(os.path.realpath(path)) for path in readable)]
        self._blocked = [(pattern, _compiled(pattern)) for pattern in blocked]

    def check_tool(self, tool: str, arguments: dict[str, object]) -> str | None:
        """Why this tool call is refused, or None."""
        if tool == "Bash":
            return self.check_command(str(arguments.get("command", "")))
        if tool in ("Write", "Edit", "MultiEdit", "NotebookEdit"):
            path = str(arguments.get("file_path") or arguments.get("notebook_path") or "")
            return None if self.is_inside(path) else f"{tool} to {path!r}: outside the working directory"
        if tool in ("Read", "Grep", "Glob"):
            path = str(arguments.get("file_path") or arguments.get("path") or ".")
            return (
                None if self._may_read(path) else f"{tool} of {path!r}: only the working and data folders may be read"
            )
        return None

    def check_command(self, text: str) -> str | None:
        """Why this shell command is refused, or None."""
        return self._check(text, self.work_dir, 0)

    def is_inside(self, path: str, base: Path | None = None) -> bool:
        """Does this path, links followed, lie in the working directory?"""
        real = Path(os.path.realpath((base or self.work_dir) / os.path.expanduser(path)))  # noqa: PTH111
        return real == self.work_dir or self.work_dir in real.parents

    def _may_read(self, path: str) -> bool:
        real = Path(os.path.realpath(self.work_dir / os.path.expanduser(path)))  # noqa: PTH111
        return any(real == folder or folder in real.parents for folder in self._readable)

    def _check(self, text: str, base: Path, depth: int) -> str | None:
        if depth > 6:
            return "too many shells inside each other"
        joined = re.sub(r"""[\s"'\\]+""", "", text)
        if _FORK_BOMB.search(joined):
            return "a fork bomb"
        commands = parse_commands(text)
        for name, pattern in self._blocked:
            plain = (" ".join(command.words) for command in commands)
            if pattern.search(text) or any(pattern.search(line) for line in plain):
                return f"the blocked pattern {name!r}"
        for command in commands:
            program, arguments = unwrap(command)
            if program in ("cd", "pushd"):
                base = self._changed(base, arguments)
                continue
            reason = self._judge(program, arguments, command, base) or self._judge_nested(
                program, arguments, command, base, depth
            )
            if reason is not None:
                return reason
        return None

    def _changed(self, base: Path, arguments: list[str]) -> Path:
        """Where `cd` leads; unknown places count as outside."""
        target = next((word for word in arguments if not word.startswith("-")), "~")
        if target.startswith("${PWD}"):
            target = "." + target[len("${PWD}") :]
        return Path("/") if _UNRESOLVED.search(target) else base / os.path.expanduser(target)  # noqa: PTH111

    def _judge(self, program: str, arguments: list[str], command: Command, base: Path) -> str | None:
        outside = [word for word in command.writes if self._is_outside(word, base)]
        if outside:
            return f"a redirection to {outside[0]!r}, outside the working directory"
        if program.startswith("mkfs") or program == "mke2fs":
            return f"{program} makes file systems"
        if program == "dd" and any(word.startswith("if=") for word in arguments):
            return "dd if= copies devices"
        targets = self._targets(program, arguments, command)
        if _UNRESOLVED.search(program) and program not in ("[", "[["):
            targets = arguments  # whatever this is, it gets no path of others
        for word in targets:
            if self._is_outside(word, base, careful=program in _REMOVERS):
                return f"{program} on {word!r}, outside the working directory"
        return None

    def _targets(self, program: str, arguments: list[str], command: Command) -> list[str]:
        """The operands that a command would change."""
        operands = [word for word in arguments if not word.startswith("-") or word == "-"]
        if program in _REMOVERS | _CHANGERS:
            piped = command.piped_from
            fed = piped.words[1:] if "xargs" in map(_base, command.words) and piped is not None else []
            mode = 1 if program in ("chmod", "chown", "chgrp", "setfacl", "chattr") else 0
            return [*operands[mode:], *fed]
        if program in _COPIERS:
            named = [word.split("=", 1)[1] for word in arguments if word.startswith("--target-directory=")]
            moved = operands[:-1] if program == "mv" else []
            return [*moved, *operands[-1:], *named, *_values(arguments, "-t")]
        if program == "dd":
            return [word[3:] for word in arguments if word.startswith("of=")]
        if program in ("sed", "perl") and any(re.match(r"-[a-zA-Z]*i|--in-place", word) for word in arguments):
            return operands[1:] if program == "sed" else operands
        if program == "find" and {"-delete", "-exec", "-execdir", "-ok"} & set(arguments):
            return [word for word in arguments[: _first_option(arguments)] if word]
        if program in ("tar", "unzip", "git"):
            return [*_values(arguments, "-C"), *_values(arguments, "-d"), *_values(arguments, "--directory")]
        if program in ("wget", "curl"):
            return [*_values(arguments, "-o"), *_values(arguments, "-O"), *_values(arguments, "-P")]
        return []

    def _judge_nested(self, program: str, arguments: list[str], command: Command, base: Path, depth: int) -> str | None:
        """Look into scripts that a command would run."""
        scripts: list[str] = []
        if program in _SHELLS:
            flag = next((i for i, word in enumerate(arguments) if re.fullmatch(r"-[a-z]*c[a-z]*", word)), None)
            if flag is not None:
                scripts.append(" ".join(arguments[flag + 1 : flag + 2]))
            scripts.append(command.fed)
            if command.piped_from is not None:
                scripts.append(" ".join(command.piped_from.words[1:]) + "\n" + command.piped_from.fed)
        elif program in ("eval", "source", ".") or (program == "su" and "-c" in arguments):
            scripts.append(" ".join(word for word in arguments if word != "-c"))
        elif program == "find":
            starts = [i for i, word in enumerate(arguments) if word in ("-exec", "-execdir", "-ok")]
            scripts += [" ".join(_quoted(word) for word in arguments[i + 1 :]) for i in starts]
        elif program == "env" and "-S" in arguments:
            scripts.append(" ".join(arguments))
        for script in filter(str.strip, scripts):
            reason = self._check(script, base, depth + 1)
            if reason is not None:
                return reason
        return None

    def _is_outside(self, word: str, base: Path, *, careful: bool = False) -> bool:
        if not word or _HARMLESS_TARGETS.fullmatch(word):
            return False
        word = re.sub(r"^\$\{PWD\}", str(base), word)
        if re.match(r"\$\{(HOME|OLDPWD|TMPDIR)\}|~", word):
            return True
        if word.startswith("$"):
            return careful  # it may be empty, and what follows then begins at the root
        return not self.is_inside(word, base)


def unwrap(command: Command) -> tuple[str, list[str]]:
    """The program that a command really runs, without its path, and its arguments."""
    words = list(command.words)
    while words:
        program = _base(words[0])
        if program not in _WRAPPERS:
            return program, words[1:]
        if program == "env" and "-S" in words:
            return "env", words[1:]
        rest = _skip_options(words[1:], _WRAPPERS[program])
        if program == "env":
            while rest and re.match(r"\w+=", rest[0]):
                rest = rest[1:]
        words = rest[1:] if program in _TAKES_FIRST_OPERAND else rest
    return "", []


def _skip_options(words: list[str], with_value: str) -> list[str]:
    while words and words[0].startswith("-"):
        word, words = words[0], words[1:]
        if word == "--":
            break
        if len(word) == 2 and word[1] in with_value:
            words = words[1:]
    return words


def _base(word: str) -> str:
    return word.rstrip("/").rsplit("/", 1)[-1]


def _values(arguments: list[str], option: str) -> list[str]:
    """The values of an option, written apart or attached."""
    apart = [value for name, value in itertools.pairwise(arguments) if name == option]
    attached = [word[len(option) :].lstrip("=") for word in arguments if word.startswith(option) and word != option]
    return apart + attached


def _first_option(arguments: list[str]) -> int:
    return next((i for i, word in enumerate(arguments) if word.startswith(("-", "(", "!"))), len(arguments))


def _quoted(word: str) -> str:
    return ";" if word in (";", "+") else "'" + word.replace("'", "'\\''") + "'"


def _compiled(pattern: str) -> re.Pattern[str]:
    """A configured pattern: a regular expression, or, when it is none, the text itself."""
    try:
        return re.compile(pattern)
    except re.error:
        return re.compile(re.escape(pattern))

"""What agents with tools may not do: the listed commands in their usual disguises, and writing outside their folder.

A best effort on text, for an agent that errs. An agent that wants to get past it will: see docs/security.md.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path

from mle_star.agents.shell import Command, parse_commands
from mle_star.agents.words import printed, read_options

_SHELLS = {"sh", "bash", "dash", "zsh", "ksh", "ash", "mksh", "rbash", "fish", "csh", "tcsh"}
# Commands that run another one, with the options that take a value.
_WRAPPERS = {
    "sudo": "u user g group p prompt C close-from D chdir h host R chroot r role t type T command-timeout U other-user",
    "doas": "u C", "env": "u unset C chdir S split-string", "nohup": "", "setsid": "", "command": "", "builtin": "",
    "exec": "a", "time": "f format o output", "nice": "n adjustment", "stdbuf": "i input o output e error",
    "ionice": "c class n classdata p pid P pgid u uid", "timeout": "k kill-after s signal", "caffeinate": "t w",
    "xargs": "I L n P s d a E max-args max-procs max-chars delimiter arg-file process-slot-var", "coproc": "",
    "flock": "w timeout E conflict-exit-code", "strace": "e o p s u", "taskset": "", "fakeroot": "",
    "busybox": "", "toybox": "", "unshare": "S setuid G setgid R root w wd", "chroot": "userspec groups",
}  # fmt: skip
_TAKES_FIRST_OPERAND = {"timeout", "chroot", "flock", "taskset"}
_FOLDER_OPTIONS = {"env": "C chdir", "sudo": "D chdir", "unshare": "w wd"}
# Of commands that write: the options that take a value, and those of them that say where to.
_SHELL_VALUES = "o O rcfile init-file"
_SU_VALUES = "c command session-command s shell g group G supp-group u user w whitelist-environment"
_COPY_VALUES = "t target-directory S suffix m mode o owner g group"
_VALUED = {
    "tar": "C directory f file T X b g H I K L N V", "unzip": "d P", "git": "C c work-tree git-dir",
    "curl": "A b c C d D e E F H K m o P Q r t T u U w x X y Y z output output-dir cookie-jar dump-header trace "
            "trace-ascii stderr",
    "wget": "a A B D e i I l o O P Q R t T U w X output-document output-file append-output directory-prefix",
}  # fmt: skip
_TARGET_OPTIONS = {
    "tar": "C directory", "unzip": "d", "git": "C work-tree",
    "curl": "o c D output output-dir cookie-jar dump-header trace trace-ascii stderr",
    "wget": "O o a P output-document output-file append-output directory-prefix",
}  # fmt: skip
_REMOVERS = {"rm", "rmdir", "unlink", "shred"}
_CHANGERS = {"chmod", "chown", "chgrp", "touch", "mkdir", "truncate", "tee", "mkfifo", "mknod", "setfacl", "chattr"}
_COPIERS = {"cp", "mv", "install", "ln", "rsync", "scp"}
_FIND_RUNS = ("-exec", "-execdir", "-ok", "-okdir")
_HARMLESS_TARGETS = re.compile(r"/dev/(null|zero|stdout|stderr|tty|fd/\d+)|&?\d+|-")
# Short names and bodies only, so that the search takes time in proportion to the text.
_FORK_BOMB = re.compile(r"(?:function)?([\w:.\-]{1,60})(?:\(\))?\{(.{0,200}?)\|\1&(?:.{0,200}?)\}[;&\n]*\1")
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
            program, arguments, folders = unwrap(command)
            if program in ("cd", "pushd"):
                base = self._changed(base, arguments)
                continue
            place = functools.reduce(lambda at, folder: self._changed(at, [folder]), folders, base)
            reason = self._judge(program, arguments, command, place, base) or self._judge_nested(
                program, arguments, command, place, depth
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

    def _judge(self, program: str, arguments: list[str], command: Command, base: Path, shell_base: Path) -> str | None:
        outside = [word for word in command.writes if self._is_outside(word, shell_base)]
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
            return [*operands, *(_sent(command).split() if "xargs" in map(_base, command.words) else [])]
        if program in ("rsync", "scp"):
            return operands[-1:]
        if program in _COPIERS:
            options, operands = read_options(arguments, _COPY_VALUES)
            named = _named(options, "t target-directory")
            return [*named, *(operands if program == "mv" else [] if named else operands[-1:])]
        if program == "dd":
            return [word[3:] for word in arguments if word.startswith("of=")]
        if program in ("sed", "perl"):
            return _edited(program, arguments)
        if program == "find":
            return _searched(arguments)
        if program in _TARGET_OPTIONS:
            return _named(read_options(arguments, _VALUED[program])[0], _TARGET_OPTIONS[program])
        return []

    def _judge_nested(self, program: str, arguments: list[str], command: Command, base: Path, depth: int) -> str | None:
        """Look into scripts that a command would run."""
        scripts: list[str] = []
        if program in _SHELLS:
            options, operands = read_options(arguments, _SHELL_VALUES, permute=False)
            operands = list(itertools.dropwhile(lambda word: word.startswith("+"), operands))
            scripts = [*(operands[:1] if ("c", None) in options else []), command.fed, _sent(command)]
        elif program in ("eval", "source", "."):
            scripts = [" ".join(arguments), command.fed, _sent(command)]
        elif program == "trap":
            scripts = read_options(arguments, "", permute=False)[1][:1]
        elif program == "watch":
            scripts = [" ".join(read_options(arguments, "n interval", permute=False)[1])]
        elif program in ("su", "runuser"):
            options, operands = read_options(arguments, _SU_VALUES)
            scripts = [*_named(options, "c command session-command"), " ".join(map(_quoted, operands))]
        elif program == "find":
            starts = [i for i, word in enumerate(arguments) if word in _FIND_RUNS]
            scripts = [" ".join(_quoted(word) for word in arguments[i + 1 :]) for i in starts]
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


def unwrap(command: Command) -> tuple[str, list[str], list[str]]:
    """The program that a command really runs, without its path, its arguments, and the folders it changes to first."""
    words, folders = list(command.words), list[str]()
    while words:
        program = _base(words[0])
        if program not in _WRAPPERS:
            return program, words[1:], folders
        options, words = read_options(words[1:], _WRAPPERS[program], permute=False)
        folders += _named(options, _FOLDER_OPTIONS.get(program, ""))
        while words and re.match(r"\w+=|-$", words[0]):  # `env -` is `env -i`
            more, words = read_options(words[1:], _WRAPPERS[program], permute=False)
            folders += _named(more, _FOLDER_OPTIONS.get(program, ""))
        if program in _TAKES_FIRST_OPERAND:
            folders += words[:1] if program == "chroot" else []
            words = words[1:]
        if program == "env" and (texts := _named(options, "S split-string")):
            words = ["env", *_split(" ".join(texts)), *words]
    return "", [], folders


def _base(word: str) -> str:
    return word.rstrip("/").rsplit("/", 1)[-1]


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _named(options: list[tuple[str, str | None]], names: str) -> list[str]:
    """The values of some options."""
    return [value for name, value in options if name in names.split() and value is not None]


def _sent(command: Command) -> str:
    """What comes out of the pipe before a command, as far as it stands in the text; filters let it pass."""
    texts, before = list[str](), command.piped_from
    while before is not None:
        program, arguments, _ = unwrap(before)
        text = printed(program, arguments)
        texts.append(before.fed + (" ".join(arguments) if text is None else text))
        before = before.piped_from if text is None else None
    return "\n".join(texts)


def _edited(program: str, arguments: list[str]) -> list[str]:
    """The files that `sed -i` or `perl -i` would change."""
    if not any(re.match(r"-[a-zA-Z]*i|--in-place", word) for word in arguments):
        return []
    scripts = "e expression f file" if program == "sed" else "e E I"
    options, operands = read_options(arguments, scripts)
    return operands if program == "perl" or _named(options, scripts) else operands[1:]


def _searched(arguments: list[str]) -> list[str]:
    """The folders in which `find` would change something, and the files that it would write."""
    written = [value for name, value in itertools.pairwise(arguments) if re.fullmatch("-(fprint[0f]?|fls)", name)]
    if not {"-delete", *_FIND_RUNS} & set(arguments):
        return written
    start = 0
    while start < len(arguments) and re.fullmatch("-([HLP]|O.*|D)", arguments[start]):
        start += 2 if arguments[start] == "-D" else 1
    folders = itertools.takewhile(lambda word: not word.startswith(("-", "(", "!")), arguments[start:])
    return [*filter(None, folders), *written]


def _quoted(word: str) -> str:
    return ";" if word in (";", "+") else "'" + word.replace("'", "'\\''") + "'"


def _compiled(pattern: str) -> re.Pattern[str]:
    """A configured pattern: a regular expression, or, when it is none, the text itself."""
    try:
        return re.compile(pattern)
    except re.error:
        return re.compile(re.escape(pattern))

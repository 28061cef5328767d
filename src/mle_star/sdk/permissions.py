"""A first look at what agents with tools do: the few commands of the specification, and files outside their folder.

It reads text, for an agent that errs. What a command really does, the sandbox decides: see docs/security.md.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

from mle_star.data.place import DataFolder

_BEFORE_A_COMMAND = {"sudo", "env", "nohup", "time", "command", "exec", "then", "do", "else", "!", "{"}
_SHELLS = {"sh", "bash", "dash", "zsh", "ksh", "eval"}
_CHANGES_ALL = re.compile("rm|rmdir|unlink|shred|mv|touch|mkdir|tee|truncate|chmod|chown|chgrp|mkfifo")
_CHANGES_LAST = {"cp", "ln", "install", "rsync"}
_HARMLESS_TARGETS = re.compile(r"/dev/(null|zero|stdout|stderr|tty|fd/\d+)|\d+|-")
_FORK_BOMB = re.compile(r"(?:function)?([\w:.\-]{1,60})(?:\(\))?\{(.{0,200}?)\|\1&(?:.{0,200}?)\}[;&]*\1")
_HERE_DOCUMENT = re.compile(r"<<-?[ \t]*(['\"]?)(?P<word>\w+)\1")
_SEPARATORS = re.compile(r"[;|&()\n]+")


class Guard:
    """Checks the tool calls of an agent that works in `work_dir` and may read the data in `readable` folders, too.

    What is none of the data there, such as hidden files and other runs, is no more for agents than for scripts.
    """

    def __init__(self, work_dir: Path, *, readable: Iterable[Path] = (), blocked: Iterable[str] = ()) -> None:
        self.work_dir = Path(os.path.realpath(work_dir))
        self._data = [DataFolder(path) for path in readable]
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
            return None if self._may_read(path) else f"{tool} of {path!r}: only the working folder and data may be read"
        return None

    def check_command(self, text: str) -> str | None:
        """Why this shell command is refused, or None."""
        if _FORK_BOMB.search(re.sub(r"\s+", "", text)):
            return "a fork bomb"
        for name, pattern in self._blocked:
            if pattern.search(text):
                return f"the blocked pattern {name!r}"
        reasons = (self._refusal(words) for words in _commands(_without_here_documents(text)))
        return next(filter(None, reasons), None)

    def is_inside(self, path: str) -> bool:
        """Does this path, links followed, lie in the working directory?"""
        real = self._real(path)
        return real == self.work_dir or self.work_dir in real.parents

    def _may_read(self, path: str) -> bool:
        return self.is_inside(path) or any(data.holds(self._real(path)) for data in self._data)

    def _real(self, path: str) -> Path:
        return Path(os.path.realpath(self.work_dir / os.path.expanduser(path)))  # noqa: PTH111

    def _refusal(self, words: list[str]) -> str | None:
        """Why a command, given as its words, is refused."""
        arrows = [at for at, word in enumerate(words) if re.fullmatch(r"[<>&|]*>[<>&|]*", word)]
        for target in (words[at + 1] for at in arrows if at + 1 < len(words)):
            if self._is_outside(target):
                return f"a redirection to {target!r}, outside the working directory"
        start = next((at for at, word in enumerate(words) if not _is_prefix(word)), len(words))
        program, rest = words[start].rsplit("/", 1)[-1] if start < len(words) else "", words[start + 1 :]
        if program.startswith("mkfs"):
            return f"{program} makes file systems"
        if program == "dd" and any(word.startswith("if=") for word in rest):
            return "dd if= copies devices"
        operands = [word for word in rest if not word.startswith("-")]
        targets = operands if _CHANGES_ALL.fullmatch(program) else operands[-1:] if program in _CHANGES_LAST else []
        if program == "dd":
            targets = [word[3:] for word in rest if word.startswith("of=")]
        for target in filter(self._is_outside, targets):
            return f"{program} on {target!r}, outside the working directory"
        inner = [word for word in rest if " " in word] if program in _SHELLS else []
        return next(filter(None, map(self.check_command, inner)), None)

    def _is_outside(self, word: str) -> bool:
        if not word or _HARMLESS_TARGETS.fullmatch(word):
            return False
        if re.match(r"~|\$HOME|\$\{HOME\}", word):
            return True
        return not word.startswith("$") and not self.is_inside(word)


def _without_here_documents(text: str) -> str:
    """A text without the lines that it only feeds to its commands, from `<<WORD` to the line that says WORD."""
    lines = text.split("\n")
    ends, waited, kept = {line.strip() for line in lines}, list[str](), list[str]()
    for line in lines:
        if not waited:
            kept.append(line)
            waited = [found["word"] for found in _HERE_DOCUMENT.finditer(line) if found["word"] in ends]
        elif line.strip() == waited[0]:
            waited.pop(0)
    return "\n".join(kept)


def _commands(text: str) -> Iterator[list[str]]:
    """The words of each command of a text, quotes resolved; an arrow is a word of its own."""
    lexer = shlex.shlex(text.replace("\\\n", " "), posix=True, punctuation_chars="();<>|&\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    words: list[str] = []
    try:
        for word in lexer:
            if _SEPARATORS.fullmatch(word):
                yield words
                words = []
            else:
                words.append(word)
    except ValueError:  # a quote that is never closed: the shell will refuse it, too
        words += text.split()
    yield words


def _is_prefix(word: str) -> bool:
    """Does this word only stand before a command?"""
    return word.rsplit("/", 1)[-1] in _BEFORE_A_COMMAND or re.match(r"\w+=|-", word) is not None


def _compiled(pattern: str) -> re.Pattern[str]:
    """A configured pattern: a regular expression, or, when it is none, the text itself."""
    try:
        return re.compile(pattern)
    except re.error:
        return re.compile(re.escape(pattern))

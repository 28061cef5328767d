"""Shell text as a list of simple commands, far enough to see what they would do. No shell is run, nothing expanded.

It knows quotes, escapes, comments, separators, sub-shells, substitutions, redirections, here-documents, assignments of
literals and brace lists. It does not know functions, arrays or arithmetic: what it cannot resolve keeps its `$`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from mle_star.agents.words import printed, unescaped

_KEYWORDS = {"{", "}", "!", "if", "then", "elif", "else", "while", "until", "do"}
_ENDS = {"done", "fi", "esac"}
_SEPARATORS = set(";&|\n()")
_REDIRECTION = re.compile(r"(\d*|&)(>>|>\||>&|<>|>|<<<|<<-?|<)(&?)")
_NAME = r"[A-Za-z_]\w*"
_ASSIGNMENT = re.compile(rf"({_NAME})\+?=(.*)", re.DOTALL)
_VARIABLE = re.compile(rf"\$(?:\{{({_NAME})(?:[^}}]*)\}}|({_NAME}))")
_DEFAULT = re.compile(rf"\$\{{({_NAME}):?([-=+])")
_ALWAYS_SET = {"HOME", "PWD", "OLDPWD", "TMPDIR"}


@dataclass
class Command:
    """One simple command: its words without quotes, where it redirects to, what is fed to it."""

    words: list[str] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)
    fed: str = ""
    piped_from: Command | None = None


def parse_commands(text: str) -> list[Command]:
    """The simple commands of a script, in order; those inside substitutions come after the one they are part of."""
    return _Reader(text).read()


class _Reader:
    def __init__(self, text: str, variables: dict[str, str] | None = None, depth: int = 0) -> None:
        self.text = text.replace("\\\r\n", "").replace("\\\n", "")
        self.at = 0
        self.variables = {} if variables is None else variables
        self.depth = depth
        self.commands: list[Command] = []
        self.inner: list[str] = []
        self.waiting: list[tuple[Command, str]] = []
        self.command = Command()
        self.expanded = False
        self.said: list[str] = []
        self.heard = 0

    def read(self) -> list[Command]:
        while self.at < len(self.text):
            self._step()
        self._finish()
        if self.depth < 8:
            for script in self.inner:
                self.commands += _Reader(script, self.variables, self.depth + 1).read()
        return self.commands

    def _step(self) -> None:
        char = self.text[self.at]
        if char in " \t\r":
            self.at += 1
        elif char == "#" and (self.at == 0 or self.text[self.at - 1] in " \t\r\n;&|()"):
            end = self.text.find("\n", self.at)
            self.at = len(self.text) if end < 0 else end
        elif (match := _REDIRECTION.match(self.text, self.at)) and (match[1] != "&" or match[2] in (">", ">>")):
            self._redirect(match)
        elif char in _SEPARATORS:
            self._separate(char)
        else:
            self._word()

    def _separate(self, char: str) -> None:
        self.at += 1
        done = self.command
        self._finish()
        piped = char == "|" and self.text[self.at : self.at + 1] != "|"
        if char in "&|" and self.text[self.at : self.at + 1] in ("&", "|"):
            self.at += 1
        if piped:
            self.command.piped_from = self._whole(done)
        if char == "\n" and self.waiting:
            self._here_documents()

    def _whole(self, last: Command) -> Command:
        """What a pipe comes from: a command, or behind the end of a group all that was printed so far."""
        if last.words and last.words[0] not in _ENDS:
            return last
        new = (one for one in self.commands[self.heard :] if one.words)
        self.said += [printed(one.words[0], one.words[1:]) or one.fed for one in new]
        self.heard = len(self.commands)
        return Command(words=["cat"], fed="\n".join(self.said))

    def _finish(self) -> None:
        command, self.command = self.command, Command()
        while command.words:
            if command.words[0] == "function":
                del command.words[:2]
                continue
            match = _ASSIGNMENT.fullmatch(command.words[0])
            if match is not None:
                self.variables[match[1]] = match[2]
            elif command.words[0] not in _KEYWORDS:
                break
            command.words.pop(0)
        if command.words or command.writes:
            self.commands.append(command)

    def _redirect(self, match: re.Match[str]) -> None:
        self.at = match.end()
        operator = match[2]
        while self.at < len(self.text) and self.text[self.at] in " \t":
            self.at += 1
        if operator.startswith("<<") and operator != "<<<":
            self.waiting.append((self.command, self._take_word()))
            return
        target = self._take_word()
        if operator == "<<<":
            self.command.fed += target + "\n"
        elif operator != "<" and target and not ((match[3] or operator == ">&") and re.fullmatch(r"\d+|-", target)):
            self.command.writes.append(target)

    def _here_documents(self) -> None:
        for command, end in self.waiting:
            lines = []
            while self.at < len(self.text):
                stop = self.text.find("\n", self.at)
                stop = len(self.text) if stop < 0 else stop
                line, self.at = self.text[self.at : stop], stop + 1
                if line.strip("\t") == end:
                    break
                lines.append(line)
            command.fed += "\n".join(lines) + "\n"
        self.waiting = []

    def _word(self) -> None:
        start, self.expanded = self.at, False
        word = self._take_word()
        if self.at == start:
            self.at += 1  # a lone character that begins nothing
            return
        braces = re.fullmatch(r"\{([^{}]*,[^{}]*)\}", word)
        if braces and word == self.text[start : self.at]:
            self.command.words += braces[1].split(",")
        elif self.expanded:
            self.command.words += word.split() or [word]  # what stood for it may be several words
        else:
            self.command.words.append(word)

    def _take_word(self) -> str:
        """The next word, quotes and escapes resolved, known variables filled in."""
        out: list[str] = []
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in " \t\r" or char in _SEPARATORS or char in "<>":
                break
            if char == "\\":
                out.append(self.text[self.at + 1 : self.at + 2])
                self.at += 2
            elif char == "'":
                out.append(self._until("'"))
            elif char == '"':
                out.append(self._double())
            elif char == "$":
                bare = self.text[self.at + 1 : self.at + 2] not in ("'", '"')
                out.append(self._dollar())
                self.expanded = self.expanded or bare
            elif char == "`":
                out.append(self._replaced(self._until("`")))
                self.expanded = True
            else:
                out.append(char)
                self.at += 1
        return "".join(out)

    def _replaced(self, script: str) -> str:
        """What stands for a substitution: its text where that is plain to see, else `$()`."""
        self.inner.append(script)
        if self.depth < 8:
            commands = _Reader(script, dict(self.variables), self.depth + 1).read()
            words = commands[0].words if len(commands) == 1 else []
            text = printed(words[0], words[1:]) if words else None
            return "$()" if text is None else text
        return "$()"

    def _until(self, end: str) -> str:
        stop = self.text.find(end, self.at + 1)
        stop = len(self.text) if stop < 0 else stop
        part, self.at = self.text[self.at + 1 : stop], stop + 1
        return part

    def _double(self) -> str:
        out: list[str] = []
        self.at += 1
        while self.at < len(self.text) and self.text[self.at] != '"':
            char = self.text[self.at]
            if char == "\\" and self.text[self.at + 1 : self.at + 2] in ("$", "`", '"', "\\"):
                out.append(self.text[self.at + 1])
                self.at += 2
            elif char == "$":
                out.append(self._dollar())
            elif char == "`":
                out.append(self._replaced(self._until("`")))
            else:
                out.append(char)
                self.at += 1
        self.at += 1
        return "".join(out)

    def _dollar(self) -> str:
        following = self.text[self.at + 1 : self.at + 2]
        if following == "'":
            self.at += 1
            return unescaped(self._until("'"))
        if following == '"':
            self.at += 1
            return self._double()
        if following == "(":
            return self._replaced(self._substitution())
        if match := _DEFAULT.match(self.text, self.at):
            return self._with_default(match)
        match = _VARIABLE.match(self.text, self.at)
        if match is None:
            self.at += 1
            return "$"
        self.at = match.end()
        return self.variables.get(match[1] or match[2], f"${{{match[1] or match[2]}}}")

    def _with_default(self, match: re.Match[str]) -> str:
        """`${X:-text}`: the value where one was set here, else the text that would stand for it."""
        depth, start = 1, match.end()
        self.at = start
        while self.at < len(self.text) and depth:
            depth += {"{": 1, "}": -1}.get(self.text[self.at], 0)
            self.at += 1
        name, way = match[1], match[2]
        known = self.variables.get(name) or ("${" + name + "}" if name in _ALWAYS_SET else "")
        if known and way != "+":
            return known
        text = self._expanded(self.text[start : self.at - 1])
        if way == "=":
            self.variables[name] = text
        return text

    def _expanded(self, text: str) -> str:
        """A part of a word, quotes and variables in it resolved, blanks kept."""
        if self.depth >= 8:
            return "$()"
        reader, out = _Reader(text, self.variables, self.depth + 1), list[str]()
        while reader.at < len(reader.text):
            start = reader.at
            out.append(reader._take_word())
            if reader.at == start:
                out.append(reader.text[start])
                reader.at += 1
        self.inner += reader.inner
        return "".join(out)

    def _substitution(self) -> str:
        """The script inside `$( )`."""
        depth, start = 0, self.at + 2
        while self.at < len(self.text):
            char = self.text[self.at]
            depth += {"(": 1, ")": -1}.get(char, 0)
            self.at += 1
            if char == ")" and depth == 0:
                return self.text[start : self.at - 1]
        return self.text[start:]

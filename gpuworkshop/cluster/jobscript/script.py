"""A job script read as sbatch and the shell read it: directives first, commands after, nothing of either guessed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from gpuworkshop.cluster.jobscript import options, shell
from gpuworkshop.cluster.jobscript import text as texts
from gpuworkshop.cluster.jobscript.options import Given, Refused

Kind = Literal["interpreter", "directive", "look-alike", "foreign", "comment", "command"]

MAGIC = "#SBATCH"
_LOOK_ALIKE = re.compile(r"\s*#[#\s]*SBATCH[\s:]*(?=[-\u2013\u2014])", re.IGNORECASE)
_FOREIGN = ("#PBS", "#BSUB")
_SHELLS = ("sh", "bash", "dash", "zsh", "ksh")


class Line(msgspec.Struct, frozen=True):
    """One line of the header, as sbatch takes it. Blank lines are comments too."""

    number: int
    kind: Kind
    text: str


class Script(msgspec.Struct, frozen=True):
    """What a job script says, in order of its lines."""

    text: texts.Text
    header: tuple[Line, ...]
    """The lines that sbatch looks at: all before the first command."""
    first_command: int
    """The line that ends the directives; 0 where there is no command."""
    given: tuple[Given, ...]
    """The options that sbatch reads, in their order."""
    refused: tuple[Refused, ...]
    """What sbatch refuses of them. It stops at the first; the others would be next."""
    shell: shell.Shell
    interpreter: str
    """The name of the program that runs it, such as bash; "" for none."""
    interpreter_words: tuple[str, ...] = ()
    heterogeneous: int = 0
    """The line with which a second component of a heterogeneous job begins; 0 for none."""

    @property
    def lines(self) -> tuple[str, ...]:
        """All lines; line n is lines[n - 1]."""
        return self.text.lines

    def of(self, kind: Kind) -> tuple[Line, ...]:
        """The lines of the header of this kind."""
        return tuple(line for line in self.header if line.kind == kind)

    def last(self, *names: str) -> Given | None:
        """The last setting of any of these options, which is the one that counts; None where there is none."""
        return next((one for one in reversed(self.given) if one.name in names), None)

    def meant(self, name: str) -> bool:
        """Whether a line that sbatch does not read, late or a comment, would set this option."""
        late = (one for one in self.shell.comments if one.at_start and one.text.startswith(MAGIC))
        texts = [(one.line, one.text) for one in late] + [(one.number, one.text) for one in self.of("look-alike")]
        words = [
            options.cut(line, re.sub(r"^[\s#]*SBATCH", "", text, flags=re.IGNORECASE)).words for line, text in texts
        ]
        return any(isinstance(one, Given) and one.name == name for cut in words for one in options.parse(cut))

    @property
    def is_shell(self) -> bool:
        """Whether its commands are those of a shell that is understood here."""
        return self.interpreter in _SHELLS


def read(data: bytes) -> Script:
    """Read a job script, whatever its bytes are."""
    text = texts.read(data)
    lines = text.lines
    header = tuple(_header(lines))
    body = header[-1].number if header and header[-1].kind == "command" else 0
    path, *more = _interpreter(lines)
    name = path.rpartition("/")[2]
    understood = name in _SHELLS or not name
    heterogeneous = next((line.number for line in header if _is_separator(line)), 0)
    given, refused = _options(header, heterogeneous)
    commands = shell.read(lines[body - 1 :], body) if body and understood else shell.Shell()
    return Script(text, header, body, given, refused, commands, name, (path, *more), heterogeneous)


def _header(lines: Sequence[str]) -> Iterator[Line]:
    for number, line in enumerate(lines, 1):
        if number == 1 and line.startswith("#!"):
            kind: Kind = "interpreter"
        elif line.startswith(MAGIC):
            kind = "directive"
        elif line.startswith(_FOREIGN):
            kind = "foreign"
        elif _LOOK_ALIKE.match(line):
            kind = "look-alike"
        elif not line.strip() or line.lstrip().startswith("#"):
            kind = "comment"
        else:
            kind = "command"
        yield Line(number, kind, line)
        if kind == "command":
            return


def _interpreter(lines: Sequence[str]) -> tuple[str, ...]:
    """The interpreter's path and its words; /usr/bin/env is looked through. A first line that is none gives nothing."""
    first = next((line.strip().lstrip("\ufeff") for line in lines if line.strip()), "")
    words = first[2:].split() if first.startswith("#!") else []
    if words and words[0].endswith("/env"):
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    return tuple(words) or ("",)


def _is_separator(line: Line) -> bool:
    return line.kind == "directive" and line.text[len(MAGIC) :].split("#")[0].strip() in ("hetjob", "packjob")


def _options(header: tuple[Line, ...], heterogeneous: int) -> tuple[tuple[Given, ...], tuple[Refused, ...]]:
    """What sbatch reads of the directives; of a heterogeneous job only its first component."""
    words: list[options.Word] = []
    refused: list[Refused] = []
    for line in header:
        if heterogeneous and line.number >= heterogeneous:
            break
        if line.kind == "directive":
            found = options.cut(line.number, line.text[len(MAGIC) :])
            words += found.words
            if found.open_quote:
                refused.append(Refused("open-quote", line.number, {"quote": found.open_quote}))
    read = list(options.parse(words))
    refused += [one for one in read if isinstance(one, Refused)]
    return tuple(one for one in read if isinstance(one, Given)), tuple(refused)

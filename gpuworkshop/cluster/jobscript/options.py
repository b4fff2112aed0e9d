"""The options of sbatch: how it cuts a directive into words, and what it makes of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path

import msgspec

from gpuworkshop.cluster import slurm_time

_BLANKS = " \t\n\v\f\r"
_PIECES = re.compile(r"""[\\'"# \t\n\v\f\r]|[^\\'"# \t\n\v\f\r]+""")


class Word(msgspec.Struct, frozen=True):
    """One word of a directive as sbatch sees it, and the line it stands in."""

    line: int
    text: str


class Given(msgspec.Struct, frozen=True):
    """One option that is set: its long name, its value ("" where there is none), its line."""

    name: str
    value: str
    line: int
    written: str = ""
    """As the directive has it."""


class Refused(msgspec.Struct, frozen=True):
    """What sbatch refuses in a directive: a rule's id, the line, and what the rule's words need."""

    rule: str
    line: int
    fields: Mapping[str, str]


class Form(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The form of a value that sbatch checks by itself."""

    options: tuple[str, ...]
    says: str
    example: str
    pattern: str = ""
    kind: str = ""

    def fits(self, value: str) -> bool:
        """Whether sbatch takes this value."""
        if self.kind == "time":
            return is_time(value)
        return re.fullmatch(self.pattern, value, re.IGNORECASE | re.ASCII) is not None


class _Known(msgspec.Struct, frozen=True):
    """The options of one command: what each takes ("value", "flag", "maybe"), and the long name of each letter."""

    takes: dict[str, str]
    letters: dict[str, str]
    same: dict[str, str]


def is_time(value: str) -> bool:
    """Whether Slurm reads this as a time limit."""
    try:
        slurm_time.seconds(value)
    except ValueError:
        return False
    return bool(value) and value == value.strip()


class Cut(msgspec.Struct, frozen=True):
    """A directive cut into words; with it a quote that is never closed, and a word that a # cut off, "" for none."""

    words: tuple[Word, ...]
    open_quote: str = ""
    cut_word: str = ""


def cut(line: int, text: str) -> Cut:
    """Cut a directive as sbatch does: blanks part words, quotes keep them, a \\ keeps one letter, and # ends all."""
    found: list[Word] = []
    pieces: list[str] = []
    quote = cut_word = ""
    escaped = False
    for piece in _PIECES.findall(text):
        if escaped or (quote and piece != quote and (piece != "\\" or quote == "'")):
            pieces.append(piece)
            escaped = False
        elif piece == "\\":
            escaped = True
        elif piece in ("'", '"'):
            quote = "" if quote else piece
        elif piece == "#":
            cut_word = "".join(pieces)
            break
        elif piece in _BLANKS:
            found += [Word(line, "".join(pieces))] if pieces else []
            pieces = []
        else:
            pieces.append(piece)
    found += [Word(line, "".join(pieces))] if pieces else []
    return Cut(tuple(found), quote, cut_word)


def parse(given: Sequence[Word], which: str = "sbatch") -> Iterator[Given | Refused]:
    """What sbatch makes of all words of its directives, one after another, as getopt does it.

    A word that belongs to no option is refused; so is an option that sbatch does not know, or one without its value.
    There sbatch stops; here the rest of that line is left out, and the next line read.
    """
    known = _known(which)
    place = 0
    while place < len(given):
        word = given[place]
        place += 1
        if word.text.startswith("--") and len(word.text) > 2:
            taken = yield from _long(word, given[place : place + 1], known)
        elif word.text.startswith("-") and len(word.text) > 1:
            taken = yield from _short(word, given[place : place + 1], known)
        else:
            taken = yield Refused("no-option", word.line, {"word": word.text})
        place += taken or 0
        while taken is None and place < len(given) and given[place].line == word.line:
            place += 1


def srun(argv: Sequence[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The options of an srun by long name, and the command that it starts. `argv` is without the word srun."""
    known = _known("srun")
    options: dict[str, str] = {}
    rest = list(argv)
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
        word, given = Word(0, rest.pop(0)), [Word(0, text) for text in rest[:1]]
        steps = _long(word, given, known) if word.text.startswith("--") else _short(word, given, known)
        taken = None
        while True:
            try:
                step = next(steps)
            except StopIteration as end:
                taken = end.value
                break
            if isinstance(step, Given):
                options[step.name] = step.value
        rest = rest[taken or 0 :]
    return options, tuple(rest[1:] if rest[:1] == ["--"] else rest)


def forms() -> Mapping[str, Form]:
    """The forms that sbatch checks, by option."""
    return _forms()


def nearest(name: str, which: str = "sbatch") -> str:
    """The option that was probably meant; "" if none is near."""
    known = list(_known(which).takes)
    close = get_close_matches(name.replace("_", "-").lower(), known, 1, 0.85)
    return close[0] if close else ""


def _long(word: Word, after: Sequence[Word], known: _Known) -> Iterator[Given | Refused]:
    """Read one long option; returns how many of the words after it were its value, None where sbatch stops."""
    name, equals, value = word.text[2:].partition("=")
    full = [name] if name in known.takes else [one for one in known.takes if one.startswith(name)]
    if len({known.same.get(one, one) for one in full}) != 1:
        rule = "ambiguous-option" if full else "unknown-option"
        yield Refused(rule, word.line, {"word": word.text, "name": name, "value": value, "all": ", ".join(full)})
        return None
    name = known.same.get(full[0], full[0])
    takes = known.takes[full[0]]
    if equals and takes == "flag":
        yield Refused("takes-no-value", word.line, {"word": word.text, "name": name})
        return None
    if equals or takes != "value":
        yield Given(name, value, word.line, word.text)
        return 0
    return (yield from _next_word(name, word, after))


def _short(word: Word, after: Sequence[Word], known: _Known) -> Iterator[Given | Refused]:
    """Read a word of short options, such as -N1 or -Hv."""
    rest = word.text[1:]
    while rest:
        letter, rest = rest[0], rest[1:]
        name = known.letters.get(letter)
        if name is None:
            yield Refused("unknown-option", word.line, {"word": word.text, "name": letter, "value": "", "all": ""})
            return None
        takes = known.takes[name]
        if takes == "value" and not rest:
            return (yield from _next_word(name, word, after))
        yield Given(name, rest if takes != "flag" else "", word.line, word.text)
        if takes != "flag":
            return 0
    return 0


def _next_word(name: str, word: Word, after: Sequence[Word]) -> Iterator[Given | Refused]:
    if not after:
        yield Refused("no-value", word.line, {"word": word.text, "name": name})
        return None
    yield Given(name, after[0].text, word.line, f"{word.text} {after[0].text}")
    return 1


@cache
def _data() -> dict:
    return msgspec.toml.decode(Path(__file__).with_name("options.toml").read_bytes())


@cache
def _known(which: str) -> _Known:
    """The options of sbatch; srun takes those and some of its own."""
    data = _data()
    takes: dict[str, str] = {}
    letters: dict[str, str] = {}
    tables = [("value", data["sbatch"]["value"] + data["sbatch"]["newer_value"]), ("flag", data["sbatch"]["flag"])]
    tables.append(("maybe", data["sbatch"]["maybe"] + data["sbatch"]["newer_maybe"]))
    if which == "srun":
        tables += [(kind, data["srun"][kind]) for kind in ("value", "flag", "maybe")]
    for kind, entries in tables:
        for letter, name in _split(entries):
            takes[name] = kind
            if letter:
                letters[letter] = name
    return _Known(takes, letters, data["sbatch"]["same"])


def _split(entries: Iterable[str]) -> Iterator[tuple[str, str]]:
    for entry in entries:
        letter, blank, name = entry.partition(" ")
        yield (letter, name) if blank else ("", entry)


@cache
def _forms() -> dict[str, Form]:
    forms = msgspec.convert(_data()["form"], tuple[Form, ...])
    return {option: form for form in forms for option in form.options}

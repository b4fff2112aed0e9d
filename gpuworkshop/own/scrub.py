"""Takes out of a text what it says of its owner, before somebody else reads it: paths, users, hosts, secrets.

The same thing gets the same stand-in everywhere, so that a text stays readable and a script stays a script.
"""

from __future__ import annotations

import getpass
import io
import os
import re
import socket
import tokenize
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Literal

import msgspec

from gpuworkshop.numbers import counted
from gpuworkshop.own import scrub_signs as signs

Kind = Literal["path", "user name", "host", "address", "mail", "name", "secret"]
FORMS: dict[Kind, str] = {
    "path": "/path{}",
    "user name": "user{}",
    "host": "host{}",
    "address": "https://host{}.example/",
    "mail": "name{}@host.example",
    "name": "NAME{}",
}
"""The stand-in of each kind, with its number."""

WORDS = {"address": "web link", "mail": "mail name", "name": "request name"}
"""Kinds in other words."""

SECRET = "SECRET"
SECRET_LINE = "# (a line that looks like a secret was taken out)"
SHORTEST_SECRET = 6


class Known(msgspec.Struct, frozen=True):
    """Names of the person who asks and of the machine, beside what looks like one."""

    users: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()


def here(env: Mapping[str, str] = os.environ) -> Known:
    """The names of this user and of this machine; what identifies nobody is left out."""
    users = {env.get(name, "") for name in ("USER", "LOGNAME", "SLURM_JOB_USER", "SUDO_USER")}
    with suppress(Exception):  # a number without an entry has no name
        import pwd

        entry = pwd.getpwuid(os.getuid())
        users |= {getpass.getuser(), entry.pw_name, os.path.basename(entry.pw_dir), entry.pw_gecos.partition(",")[0]}
    hosts = {env.get(name, "") for name in ("HOSTNAME", "SLURMD_NODENAME", "SLURM_SUBMIT_HOST", "SLURM_CLUSTER_NAME")}
    with suppress(OSError):
        hosts.add(socket.gethostname())
    return Known(_telling(users), _telling(hosts | {name.partition(".")[0] for name in hosts}))


def _telling(names: set[str]) -> tuple[str, ...]:
    """The names that could tell who or where it is, the longest first."""
    return tuple(sorted((one for one in names if len(one) > 2 and one.lower() not in signs.ORDINARY), key=len)[::-1])


class Scrubber:
    """Replaces, and counts what it replaced: one stand-in for one thing, in all texts that go together."""

    def __init__(self, known: Known):
        self.known = known
        self.replaced: Counter[Kind] = Counter()
        self._names: dict[tuple[Kind, str], str] = {}

    def shell(self, text: str) -> str:
        """A job script, or any text that is no Python: a line with a secret goes as a whole."""
        return "".join(self._line(line) for line in self._without_keys(text).splitlines(keepends=True))

    def python(self, text: str) -> str:
        """A Python file: its strings, comments and names; one that cannot be read as Python is taken for any text."""
        try:
            tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
        except (tokenize.TokenError, SyntaxError, ValueError):
            return self.shell(text)
        return _rewritten(text, tokens, self._token)

    def words(self, text: str) -> str:
        """A sentence, or the words of a command."""
        return self._plain(signs.SECRET_VALUE.sub(self._secret, signs.ASSIGNED.sub(self._value, text)))

    def summary(self) -> str:
        """What was replaced, in words."""
        parts = [
            counted(self.replaced[kind], WORDS.get(kind, kind)) for kind in (*FORMS, "secret") if self.replaced[kind]
        ]
        return ", ".join(parts) or "nothing"

    def _token(self, one: tokenize.TokenInfo, text: str) -> str:
        if one.type == tokenize.NAME:
            return self._owner(text)
        if one.type == tokenize.COMMENT:
            return self._line(text)
        found = signs.STRING.match(text)
        start, quote, inside = found.groups() if found else ("", "", text)
        if found and _is_secret(one.line.partition(text)[0], inside):
            self.replaced["secret"] += 1
            return f"{start}{quote}{SECRET}{quote}"
        return start + quote + self._plain(signs.SECRET_VALUE.sub(self._secret, self._without_keys(inside))) + quote

    def _line(self, line: str) -> str:
        value = signs.ASSIGNED.search(line)
        if (value and _tells(value["value"])) or signs.SECRET_VALUE.search(line):
            self.replaced["secret"] += 1
            return SECRET_LINE + line[len(line.rstrip("\r\n")) :]
        return self._plain(signs.REQUEST.sub(self._request, line))

    def _without_keys(self, text: str) -> str:
        return signs.PRIVATE_KEY.sub(self._secret, text)

    def _plain(self, text: str) -> str:
        """Addresses, paths, hosts and names, in this order: what comes first may hold what comes later."""
        text = signs.URL.sub(lambda found: self._stand_in("address", found[0]), text)
        text = signs.MAIL.sub(lambda found: self._stand_in("mail", found[0]), text)
        text = signs.PATH.sub(self._path, text)
        for pattern in (signs.NUMBERS, signs.HOST):
            text = pattern.sub(lambda found: self._host(found[0]), text)
        return self._owner(text)

    def _owner(self, text: str) -> str:
        """The names of the user and of the machine, as words of their own or between underscores."""
        for kind, names in (("host", self.known.hosts), ("user name", self.known.users)):
            for name in names:
                if name.lower() in text.lower():
                    whole = rf"(?<![^\W_]){re.escape(name)}(?![^\W_])"
                    text = re.sub(whole, lambda found, k=kind: self._stand_in(k, found[0].lower()), text, flags=re.I)
        return text

    def _path(self, found: re.Match) -> str:
        path = found["path"].rstrip("/")
        if signs.HARMLESS.match(path) or not path:
            return found[0]
        ending = re.search(r"\.[A-Za-z0-9]{1,5}\Z", path)
        return (found["kept"] or "") + self._stand_in("path", path) + (ending[0] if ending else "")

    def _host(self, name: str) -> str:
        return name if name.endswith(".example") else self._stand_in("host", name.lower())

    def _request(self, found: re.Match) -> str:
        kept = found["value"].startswith("$")
        return found[0] if kept else found["name"] + self._stand_in("name", found["value"])

    def _value(self, found: re.Match) -> str:
        if not _tells(found["value"]):
            return found[0]
        return found[0][: found.start("value") - found.start()] + self._secret(found)

    def _secret(self, found: re.Match) -> str:
        self.replaced["secret"] += 1
        return SECRET

    def _stand_in(self, kind: Kind, name: str) -> str:
        """Numbered within its kind; each thing counts once."""
        key = (kind, name)
        if key not in self._names:
            self.replaced[kind] += 1
            self._names[key] = FORMS[kind].format(self.replaced[kind])
        return self._names[key]


def _tells(value: str) -> bool:
    """Whether the value of a secret's name is the secret itself, and no variable and no number."""
    plain = value.strip("\"'")
    return len(plain) >= SHORTEST_SECRET and plain[0] not in "$<`" and not re.fullmatch(r"[\d_,.*]+", plain)


def _is_secret(before: str, inside: str) -> bool:
    """Whether a string of a Python line is a secret, by the name that it is given to."""
    if not _tells(inside) or len(inside.split()) > 2:
        return False
    name = signs.NAMED.search(before)
    told = before if name and name[1] == "default" else name[1] if name else ""
    return bool(
        (signs.SECRET_NAME.search(told) and not signs.NO_SECRET.search(told)) or signs.LOGIN.search(before[-60:])
    )


def _rewritten(text: str, tokens: list[tokenize.TokenInfo], change: Callable[[tokenize.TokenInfo, str], str]) -> str:
    """A Python text with its strings, comments and names changed, and all else as it stands."""
    kinds = {tokenize.STRING, tokenize.COMMENT, tokenize.NAME, getattr(tokenize, "FSTRING_MIDDLE", -1)}
    starts = [0]
    for line in io.StringIO(text):
        starts.append(starts[-1] + len(line))
    made, done = [], 0
    for one in tokens:
        if one.type in kinds:
            begin, end = (starts[row - 1] + column for row, column in (one.start, one.end))
            made += [text[done:begin], change(one, text[begin:end])]
            done = end
    return "".join([*made, text[done:]])

"""What a path, an address, a host or a secret looks like in a text; patterns only."""

from __future__ import annotations

import re

ORDINARY = frozenset("root user users ubuntu debian jovyan admin nobody guest login localhost local default".split())
"""Names of users and hosts that say nothing of anyone."""

HARMLESS = re.compile(r"/(?:(?:bin|dev|etc|proc|sys|usr/bin|usr/local/bin)(?:/[\w.+-]*)*|tmp(?:/\w*)?|[\w%]{1,3})\Z")
"""Paths that every machine has, and what is no path: "images /s"."""

PATH = re.compile(
    r"(?:(?P<kept>\$\{?\w+\}?|~(?=/))|(?<=\\[nrt])|(?<=\s-[A-Za-z])|(?<![\w.}/<*)\]~-]))"
    r"(?P<path>(?:~[\w.-]+|\.\.(?:/\.\.)*)?/[\w+@%{}$~,-][\w.+@%{}$~,=*?-]*(?:/[\w.+@%{}$~,=*?-]+)*/?)"
)
"""An absolute path, or one that begins above this folder; ``kept`` is the variable in front of it."""

URL = re.compile(r"\b(?:https?|ssh|git|s3|gs|ftp|wss?)://[^\s\"'<>)\]]+")
MAIL = re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)*\b")
NUMBERS = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])")
"""An IP address."""

_TOP = "edu|gov|org|com|net|local|lan|internal|cluster"
HOST = re.compile(rf"(?<![\w./-])[A-Za-z0-9][\w-]*(?:\.[A-Za-z0-9-]+)*\.(?:{_TOP})(?![\w.])")

REQUEST = re.compile(
    r"(?P<name>--(?:account|mail-user|reservation|qos|nodelist|exclude|comment|job-name|wckey|uid|gid)[= ]\s*"
    r"|(?<=#SBATCH )\s*-[AwxJ]\s*)(?P<value>[^\s#]+)"
)
"""What a request to Slurm says of who asks."""

_KEY = (
    r"(?:token|secrets?|passw(?:or)?d|passphrase|credentials?|authorization"
    r"|(?:api|access|secret|private|auth|ssh|wandb)_?key)"
)
SECRET_NAME = re.compile(rf"(?:^|[_\W]|(?<=[a-z])(?=[A-Z])){_KEY}(?:$|[_\W])", re.IGNORECASE)
NO_SECRET = re.compile(r"(?:eos|bos|pad|unk|sep|cls|mask|stop|end|start|image|special)_?token", re.IGNORECASE)
"""Tokens of a text."""

ASSIGNED = re.compile(
    rf"(?:(?P<name>[\w-]*{_KEY})\b[\"']?\s*[=:]|(?P<option>--[\w-]*{_KEY})\s)\s*(?P<value>[^\s;&|]+)", re.IGNORECASE
)
"""A name of a secret with its value, in a shell."""

SECRET_VALUE = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|sk-[\w-]{16,}"
    r"|AKIA[0-9A-Z]{12,}|AIza[\w-]{20,}|xox[abprs]-[\w-]{10,}|eyJ[\w-]{10,}\.[\w.-]{10,}|[0-9a-fA-F]{32,}"
    r"|Bearer\s+[\w.+/-]{8,})\b"
    r"|(?<![\w+])(?=[\w+]*\d)(?=[\w+]*[a-z])(?=[\w+]*[A-Z])[\w+]{40,}={0,2}(?![\w+=])"
)
"""A secret by its own form: keys of well-known services, long numbers in hex, and long letters and digits mixed."""

PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
LOGIN = re.compile(r"\blog_?in\s*\(|\bset_(?:access_)?token\s*\(", re.IGNORECASE)
STRING = re.compile(r"([a-z]*)('''|\"\"\"|'|\")(.*)\2\Z", re.IGNORECASE | re.DOTALL)
NAMED = re.compile(r"([\w.\"'\[\]-]+)\s*[=:,]=?\s*\Z")
"""What a string is given to, in the text before it."""

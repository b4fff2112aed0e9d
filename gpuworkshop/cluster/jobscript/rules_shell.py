"""Rules about the shell part: what goes on after a failure, modules, environments, continued lines."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpuworkshop.cluster.jobscript.rule import Job, Seen
from gpuworkshop.cluster.jobscript.shell import Command
from gpuworkshop.numbers import shortened

_CONDA = ("conda", "mamba", "micromamba")
_HOOKS = re.compile(r"conda\.sh|mamba\.sh|profile\.d|bashrc|bash_profile|/activate\b|shell\.bash|shell hook|hook")
_MODULES = re.compile(r"modul|lmod|profile|bashrc|init/(ba)?sh")
_PYTHONS = re.compile(r"python|conda|forge|mamba|pytorch|tensorflow", re.IGNORECASE)
_QUICK = ("echo", "printf", "date", "hostname", "disown", "jobs", "exit", "true", ":")
"""Commands that keep no script from ending."""
_MATTERS = ("module", "ml", "source", ".", "cd", "conda", "mamba", "micromamba", "cp", "rsync", "tar", "unzip")


def failure(job: Job) -> Iterator[Seen]:
    """What happens when a command fails."""
    commands = job.script.shell.commands
    if not job.script.is_shell:
        return
    if not _stops(job):
        yield from _goes_on(job)
    piped = [one for one in job.starts if one.command.then in ("|", "|&")]
    if piped and not any(_sets(one, "pipefail") or "PIPESTATUS" in " ".join(one.words) for one in commands):
        name = piped[0].script or piped[0].starter or piped[0].words[0]
        name = "srun" if name.startswith("$") else name
        yield Seen("no-pipefail", piped[0].line, {"program": name, "set": _set_line(job, True)})


def _stops(job: Job) -> bool:
    """Whether the shell stops at the first failure."""
    words = job.script.interpreter_words[1:]
    if any(re.match(r"-[a-z]*e", word) for word in words):
        return True
    return any(_sets(one, "errexit") or (one.name == "trap" and "ERR" in one.argv) for one in job.script.shell.commands)


def _sets(command: Command, what: str) -> bool:
    if command.name == "setopt":  # zsh's own way
        return what in [word.replace("_", "").lower() for word in command.argv[1:]]
    letter = {"errexit": "e"}.get(what)
    if command.name != "set":
        return False
    short = letter and any(re.match(rf"-[a-zA-Z]*{letter}", word) for word in command.argv[1:])
    return bool(short) or what in command.argv


def _set_line(job: Job, pipe: bool = False) -> str:
    """-u stays away from conda, whose hooks use variables that are not set; sh may refuse pipefail, and end."""
    conda = (
        one.name in _CONDA or (one.name in ("source", ".") and one.argv[1:2] == ("activate",))
        for one in job.script.shell.commands
    )
    letters = "e" if any(conda) else "eu"
    plain = job.script.interpreter in ("sh", "dash")
    if plain and pipe:
        return f"#!/bin/bash   # line 1: sh may know no pipefail\nset -{letters}o pipefail"
    return f"set -{letters}" if plain else f"set -{letters}o pipefail"


def _goes_on(job: Job) -> Iterator[Seen]:
    commands, starts = job.script.shell.commands, job.starts
    if not starts or starts[-1].command.inside or starts[-1].command.then in ("&&", "||", "&"):
        return
    last = starts[-1].command
    place = next(n for n, command in enumerate(commands) if command is last)
    rest = [one for one in commands[place + 1 :] if one.before not in ("|", "|&")]
    fields = {"set": _set_line(job)}
    if rest and not any("$?" in word or "PIPESTATUS" in word for word in rest[0].words) and rest[0].name != "exit":
        what = f"when line {last.line} fails, line {rest[0].line} still runs"
        fields |= {"what": what, "why": "the last command decides: the job is COMPLETED"}
        yield Seen("no-errexit", last.line, fields)
        return
    alone = (one for one in commands[:place] if not one.inside and one.then not in ("||", "&&"))
    before = [one for one in alone if one.name in _MATTERS]
    if before:
        words = shortened(" ".join(before[0].words), 60)
        fields |= {"what": f"when line {before[0].line} fails, line {last.line} still runs", "why": words}
        yield Seen("no-errexit", before[0].line, fields)


def background(job: Job) -> Iterator[Seen]:
    """A training behind `&` in a script that does not wait for it."""
    commands = job.script.shell.commands
    starts = [one for one in job.starts if one.script or one.starter or one.srun is not None]
    if not job.script.is_shell or not starts or starts[-1].command.then != "&":
        return
    last = starts[-1]
    place = next(n for n, command in enumerate(commands) if command is last.command)
    if all(one.name in _QUICK and one.inside not in ("while", "until") for one in commands[place + 1 :]):
        yield Seen("left-behind", last.line, {"program": last.script or last.starter or last.words[0]})


def modules(job: Job) -> Iterator[Seen]:
    """`module load` needs the function that a login shell brings."""
    words = job.script.interpreter_words[1:]
    if any(word == "--login" or re.match(r"-[a-z]*[li]", word) for word in words) or not job.script.is_shell:
        return
    for command in job.script.shell.commands:
        if command.name in ("source", ".") and any(_MODULES.search(word) for word in command.argv[1:]):
            return
        if command.name == "eval" and "module" in " ".join(command.argv):
            return
        if command.name in ("module", "ml"):
            shown = shortened(" ".join(command.argv), 60)
            yield Seen("login-shell", command.line, {"command": shown})
            return


def environment(job: Job) -> Iterator[Seen]:
    """Activating an environment: its hook, and what comes after it."""
    hooked, activated, brought = False, 0, False
    for command in job.script.shell.commands:
        words = " ".join(command.argv)
        if command.name in ("source", ".", "eval"):
            hooked = hooked or bool(_HOOKS.search(words))
            activated = activated or (command.line if re.search(r"/?\bactivate\b", words) else 0)
        elif command.name in _CONDA and command.argv[1:2] == ("activate",):
            activated = activated or command.line
            if not hooked:
                hooked = True
                fields = {"tool": command.name, "fix": _hook(command)}
                yield Seen("conda-hook", command.line, fields, "notice" if brought else None)
        elif command.name in ("module", "ml") and _PYTHONS.search(words):
            brought = True  # it may bring the hook
            if activated:
                yield Seen("module-after-environment", command.line, {"first": activated})


def _hook(command: Command) -> str:
    hook = 'source "$(conda info --base)/etc/profile.d/conda.sh"'
    if command.name == "micromamba":
        hook = 'eval "$(micromamba shell hook --shell bash)"'
    return f"{hook}\n{' '.join(command.argv)}\npython -m gpuworkshop verify   # before the training"


def continuation(job: Job) -> Iterator[Seen]:
    """Lines that should go on and do not."""
    for broken in job.script.shell.broken:
        text = job.line(broken.line + 1)
        if text and not text.startswith("#"):
            line = job.script.lines[broken.line - 1]
            fix = re.sub(r"\\[ \t]+(#.*)?$", r"\\", line).strip()
            fields = {"after": broken.after, "next": broken.line + 1, "text": text, "fix": fix}
            yield Seen("broken-continuation", broken.line, fields)
    for comment in job.script.shell.comments:
        lines = job.script.lines
        following = lines[comment.line] if comment.line < len(lines) else ""
        if comment.continued and re.match(r"\s+[^\s#]|-", following):
            fields = {"next": comment.line + 1, "text": job.line(comment.line + 1)}
            yield Seen("comment-in-command", comment.line, fields)


LOOKS = (failure, background, modules, environment, continuation)

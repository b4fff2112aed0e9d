"""Rules about the file and its directives: what sbatch refuses, and what it leaves out in silence."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from gpuworkshop.cluster import slurm_time
from gpuworkshop.cluster.jobscript import options
from gpuworkshop.cluster.jobscript.options import Given
from gpuworkshop.cluster.jobscript.rule import Job, Seen, directive, replaced
from gpuworkshop.cluster.jobscript.script import MAGIC
from gpuworkshop.numbers import several

_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)\}?|\$\([^)]*\)?|`[^`]*`?|^~(?=/|\Z)")
_SYMBOLS = {
    "USER": "%u",
    "SLURM_JOB_ID": "%j",
    "SLURM_JOBID": "%j",
    "SLURM_JOB_NAME": "%x",
    "SLURM_ARRAY_JOB_ID": "%A",
    "SLURM_ARRAY_TASK_ID": "%a",
    "SLURMD_NODENAME": "%N",
}
_ADDS_UP = ("mail-type",)
_FREE_TEXT = ("comment", "wrap", "job-name", "mail-user", "export")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def file(job: Job) -> Iterator[Seen]:
    """The bytes of the file."""
    text, name = job.script.text, shlex.quote(job.file)
    if not text.text.strip():
        yield Seen("empty", 0)
        return
    if text.ends:
        why = "sbatch refuses it: Batch script contains DOS line breaks"
        fix = f"dos2unix {name}   # or: sed -i 's/\\r$//' {name}"
        if text.ends == "CR":
            why = "the whole file is one line to sbatch, and none of its directives is read"
            fix = f"tr '\\r' '\\n' < {name} > {name}.new && mv {name}.new {name}"
        yield Seen("line-ends", text.first_end, {"ends": text.ends, "why": why, "fix": fix})
    if text.mark or text.encoding.startswith("utf-16"):
        fix = f"sed -i '1s/^\\xEF\\xBB\\xBF//' {name}"
        if text.encoding != "utf-8":
            fix = f"iconv -f UTF-16 -t UTF-8 {name} > {name}.new && mv {name}.new {name}"
        mark = " with a byte order mark" if text.mark else ""
        yield Seen("encoding", 1, {"encoding": text.encoding.upper(), "mark": mark, "fix": fix})
    if text.null:
        yield Seen("null", text.null, {"file": name})
    yield from _interpreter(job)


def _interpreter(job: Job) -> Iterator[Seen]:
    first = job.script.lines[0]
    if first.startswith("#!"):
        return
    place = next((n for n, line in enumerate(job.script.lines, 1) if line.lstrip().startswith("#!")), 0)
    fix = job.line(place) if place else "#!/bin/bash -l"
    found = "blank" if not first.strip() else f"{first.strip()[:40]!r}"
    if first.lstrip().startswith("#!"):
        found = "indented"
    yield Seen("interpreter", 1, {"found": found, "fix": f"{fix}   # the first characters of the file"})


def refused(job: Job) -> Iterator[Seen]:
    """What sbatch refuses of the options themselves."""
    for one in job.script.refused:
        text = job.script.lines[one.line - 1].strip()
        fields = {"fix": "# remove it", "why": "", **one.fields}
        if one.rule == "open-quote":
            fields["fix"] = f"{text}{one.fields['quote']}"
        elif one.rule == "no-option":
            fields["fix"], fields["why"] = _option_meant(text, one.fields["word"])
        elif one.rule in ("unknown-option", "ambiguous-option"):
            fields["fix"] = _name_meant(text, one.fields)
            if fields["fix"].startswith("# remove") and one.fields["word"].startswith("--"):
                yield Seen("foreign-option", one.line, fields)
                continue
        elif one.rule == "no-value":
            form = options.forms().get(one.fields["name"])
            fields["fix"] = directive(one.fields["name"], form.example if form else "VALUE")
        elif one.rule == "takes-no-value":
            fields["fix"] = replaced(text, one.fields["word"], f"--{one.fields['name']}")
        yield Seen(one.rule, one.line, fields)


def _option_meant(text: str, word: str) -> tuple[str, str]:
    """The line with what is usually wrong put right, and what that was."""
    if re.search(r"\s=|=\s", text):
        return re.sub(r"\s*=\s*", "=", text), ": no blanks around ="
    plain = text.replace("\u00a0", " ")
    if plain != text:
        return plain, ": the blank is one that no keyboard makes (U+00A0)"
    if re.match("[\u2010-\u2015\u2212]", word):
        name = re.sub("^[\u2010-\u2015\u2212-]+", "", word)
        dashes = "--" if len(re.split(r"[=\s]", name)[0]) > 1 else "-"
        return replaced(text, word, dashes + name), ": the dash is one that an editor made"
    name = word.partition("=")[0]
    if options.nearest(name) == name:
        return replaced(text, word, f"--{word}"), ": -- is missing"
    return "# remove " + shlex.quote(word), ""


def _name_meant(text: str, fields) -> str:
    """The line with the option that was probably meant."""
    choice = fields.get("all", "")
    if choice:
        names = choice.split(", ")
        near = "gpus" if "gpus" in names else "cpus-per-task" if "cpus-per-task" in names else names[0]
    else:
        near = options.nearest(fields["name"]) if len(fields["name"]) > 1 else ""
    if not near:
        return "# remove " + fields["word"]
    return replaced(text, fields["word"], f"--{near}" + (f"={fields['value']}" if fields["value"] else ""))


def values(job: Job) -> Iterator[Seen]:
    """Values of a form that sbatch does not take."""
    for one in job.script.given:
        if _VARIABLE.search(one.value):
            continue  # said by `variables`
        if fix := _with_dashes(one):
            fields = {"word": one.written, "letter": one.written[1], "rest": one.value, "name": one.name, "fix": fix}
            yield Seen("one-dash", one.line, fields)
            continue
        form = options.forms().get(one.name)
        if one.name in ("gres", "gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket") and _gres(one, job):
            yield from _gres(one, job)
        elif form and not form.fits(one.value):
            meant = _value_meant(one, form)
            shown = one.value or "empty"
            yield Seen("value", one.line, {"name": one.name, "value": shown, "says": form.says, "fix": meant})
        elif one.name in ("nodes", "array") and (ends := re.fullmatch(r"(\d{1,9})-(\d{1,9})(%\d+)?", one.value)):
            if int(ends[1]) > int(ends[2]):
                fix = directive(one.name, f"{ends[2]}-{ends[1]}{ends[3] or ''}")
                says = "the smaller number first"
                yield Seen("value", one.line, {"name": one.name, "value": one.value, "says": says, "fix": fix})


def _with_dashes(one: Given) -> str:
    """The directive for `-partition=x`, which is -p with the value artition=x, and for `-p=x`; "" for others."""
    name, equals, value = one.written.removeprefix("-").partition("=")
    if one.written.startswith("--") or not equals:
        return ""
    if len(name) > 2 and options.nearest(name) == name:
        return directive(name, value)
    return directive(one.name, value) if len(name) == 1 else ""


def _gres(one: Given, job: Job) -> list[Seen]:
    """A request for cards that sbatch takes for something else."""
    if one.name != "gres":
        bare = re.fullmatch(r"(?:gres[:/])?gpu[:=](.*)", one.value)
        if not bare:
            return []
        why = ": --gres takes gpu:N, this option the number alone"
        return [Seen("gres", one.line, _gres_fields(one, bare[1], why))]
    families = "|".join(re.escape(family.name) for family in job.site.families) or "(?!)"
    for part in one.value.split(","):
        part = re.sub(r"^gres:", "", part)
        count = (re.search(r"\d+\Z", part) or ["1"])[0]
        if re.fullmatch(r"(gres/)?gpus?\d*([:=/ ]*\d*)?", part, re.IGNORECASE):
            if part == "gpu" or re.fullmatch(r"gpu:\d+", part):
                continue
            return [Seen("gres", one.line, _gres_fields(one, f"gpu:{count}"))]
        if turned := re.fullmatch(r"gpu:(\d+):([A-Za-z]\w*)", part):
            return [Seen("gres", one.line, _gres_fields(one, f"gpu:{turned[2]}:{turned[1]}", ": the type comes first"))]
        if re.fullmatch(rf"({families})(:\d+)?", part):
            return [Seen("gres", one.line, _gres_fields(one, f"gpu:{part}"))]
        if part.startswith("gpu:") and not re.fullmatch(r"gpu:([A-Za-z_][\w.+-]*(:\d+)?|\d+)", part):
            return [Seen("gres", one.line, _gres_fields(one, "gpu:1", ": it takes gpu:N or gpu:TYPE:N"))]
    return []


def _gres_fields(one: Given, meant: str, why: str = "") -> dict[str, str]:
    return {"name": one.name, "value": one.value, "why": why, "fix": directive(one.name, meant)}


def _value_meant(one: Given, form: options.Form) -> str:
    """The directive with a value that sbatch takes."""
    value = one.value.strip(" \u00a0;,'\"")
    candidates = [value, value.rstrip("iIbB"), value.replace(" ", "")]
    if form.kind == "time" and (found := re.fullmatch(r"(\d{1,6})\s*([smhd])\w*", value, re.IGNORECASE)):
        candidates.insert(0, slurm_time.text(int(found[1]) * _UNITS[found[2].lower()]))
    if found := re.fullmatch(r"(\d{1,6})\.(\d{1,3})([GT])[iI]?[bB]?", value):
        small = {"G": "M", "T": "G"}[found[3]]
        candidates.insert(0, f"{round(float(f'{found[1]}.{found[2]}') * 1024)}{small}")
    return directive(one.name, next((text for text in candidates if text and form.fits(text)), form.example))


def variables(job: Job) -> Iterator[Seen]:
    """Variables in directives."""
    for one in job.script.given:
        found = _VARIABLE.search(one.value)
        if not found or one.name in ("wrap", "comment"):
            continue
        level = "warning" if one.name in _FREE_TEXT else None
        fields = {"variable": found[0], "line_text": job.line(one.line), "fix": _expanded(one)}
        yield Seen("variable", one.line, fields, level)


def _expanded(one: Given) -> str:
    """The directive with Slurm's own symbols where it has any, else the option on sbatch's command line."""
    value = _VARIABLE.sub(lambda found: _SYMBOLS.get(found[1] or "", found[0]), one.value)
    if one.name in ("output", "error", "input") and not _VARIABLE.search(value):
        return directive(one.name, value)
    if one.name in ("output", "error", "chdir", "input") and re.match(r"(~|\$\{?HOME\}?)/", value):
        return directive(one.name, re.sub(r"^(~|\$\{?HOME\}?)/", "/home/YOU/", value)) + "   # written out"
    return f'sbatch --{one.name}="{one.value}" SCRIPT   # there the shell expands it; remove the directive'


def directives(job: Job) -> Iterator[Seen]:
    """Directives that sbatch cuts off or that go on in the next line."""
    for line in job.script.of("directive"):
        cut = options.cut(line.number, line.text[len(MAGIC) :])
        if cut.cut_word:
            fix = line.text.split("#", 2)
            whole = "#" + fix[1] + fix[2].split()[0] if fix[2].split() else "#" + fix[1]
            shown = {"word": cut.cut_word, "text": job.line(line.number), "fix": f"{whole}   # without the #"}
            yield Seen("cut-off", line.number, shown)
        following = job.script.lines[line.number : line.number + 1]
        if line.text.rstrip().endswith("\\") and following and following[0].lstrip()[:1] not in ("", "#"):
            fields = {"next": line.number + 1, "text": job.line(line.number + 1)}
            fields["fix"] = (
                f"{line.text.rstrip()[:-1].rstrip()}\n{MAGIC} {following[0].strip().rstrip(chr(92)).strip()}"
            )
            yield Seen("directive-continued", line.number, fields)


def look_alikes(job: Job) -> Iterator[Seen]:
    """Comments that look like directives, above the first command."""
    names = {one.name for one in job.script.given}
    for line in job.script.of("look-alike"):
        rest = re.sub(r"^\s*#[#\s]*SBATCH[\s:]*", "", line.text, flags=re.IGNORECASE)
        fields = {"text": job.line(line.number), "fix": f"{MAGIC} {rest.rstrip()}"}
        given = options.parse(options.cut(line.number, rest).words)
        off = [one.name for one in given if isinstance(one, Given)]
        if line.text.startswith("#") and names.intersection(off):
            continue  # another line sets it: this one is switched off on purpose
        if not re.match(r"##+\s*SBATCH", line.text):
            yield Seen("look-alike", line.number, fields)
        elif off:
            yield Seen("switched-off", line.number, {**fields, "name": off[0]})


def late(job: Job) -> Iterator[Seen]:
    """Directives below the first command."""
    lines = [one for one in job.script.shell.comments if one.at_start and one.text.startswith(MAGIC)]
    if not lines:
        return
    numbers = [str(one.line) for one in lines]
    words = f"the directive{'s' if len(lines) > 1 else ''} in line{'s' if len(lines) > 1 else ''} {several(numbers)}"
    fields = {
        "lines": words,
        "command": job.script.first_command,
        "text": job.line(job.script.first_command),
        "fix": "\n".join(one.text.rstrip() for one in lines),
    }
    yield Seen("late", lines[0].line, fields)


def others(job: Job) -> Iterator[Seen]:
    """Another scheduler's directives, and parts of a heterogeneous job."""
    lines = job.script.of("foreign")
    if lines and not job.script.last("ignore-pbs"):
        more = f" (also line {several([str(one.number) for one in lines[1:]])})" if len(lines) > 1 else ""
        yield Seen("foreign", lines[0].number, {"lines": more})
    if job.script.heterogeneous:
        yield Seen("heterogeneous", job.script.heterogeneous)


def repeated(job: Job) -> Iterator[Seen]:
    """Options that are set twice, to different values."""
    first: dict[str, Given] = {}
    for one in job.script.given:
        before = first.get(one.name)
        if before and before.value != one.value and one.name not in _ADDS_UP:
            fields = {"name": one.name, "value": one.value, "before": before.value, "first": before.line}
            yield Seen("repeated", one.line, fields)
        first[one.name] = one


LOOKS = (file, refused, values, variables, directives, look_alikes, late, others, repeated)

"""The lines of a job script from its chosen numbers, each with its reason."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from gpuworkshop.cluster import scripts
from gpuworkshop.loop.rightsize_choices import Chosen
from gpuworkshop.loop.rightsize_result import Line, comment
from gpuworkshop.numbers import counted
from gpuworkshop.workloads.config import PRESETS, changed

_SEVERAL = 'srun torchrun --standalone --nnodes=1 --nproc-per-node="$SLURM_GPUS_ON_NODE"'
"""One task, in which torchrun makes a rank for each card."""


def lines(chosen: Chosen) -> Iterator[Line]:
    site, asked, partition = chosen.site, chosen.asked, chosen.partition
    yield Line("#!/bin/bash -l", "-l starts a login shell, so that the command module is there.")
    yield Line(f"#SBATCH --job-name={asked.name}", "its name, which the logs carry too")
    if chosen.where.value:
        yield Line(f"#SBATCH --partition={chosen.where.value}", chosen.where.reason)
    for option in partition.options if partition else ():
        yield Line(f"#SBATCH {option}", f"each job in {partition.name} must say that ({site.name})")
    yield Line("#SBATCH --nodes=1", "one node: between nodes everything is slower")
    yield Line("#SBATCH --ntasks-per-node=1", "one task: torchrun makes the ranks" if chosen.count > 1 else "one task")
    yield Line(f"#SBATCH --cpus-per-task={chosen.cpus.value}", chosen.cpus.reason)
    gres = chosen.family.gres if chosen.family else "gpu"
    yield Line(f"#SBATCH --gres={gres}:{chosen.count}", chosen.cards.reason)
    yield Line(f"#SBATCH --mem={chosen.memory.value}", chosen.memory.reason)
    yield Line(f"#SBATCH --time={chosen.time.value}", chosen.time.reason)
    yield Line(f"#SBATCH --output={site.conventions.output}", "what it prints; %x is the job's name, %j its number")
    yield Line(f"#SBATCH --error={site.conventions.error}", "its errors")
    yield Line("")
    words = f"modules and environment by the site file of {site.name}; the first failure ends the job"
    words += ". Your training's own environment goes here" if asked.own else ""
    yield Line("\n".join(scripts.environment(site)), words)
    yield Line("")
    yield from _stage(chosen)
    expect = f" --expect {chosen.family.name}" if chosen.family else ""
    yield Line(f"gpuworkshop verify{expect}", "the wrong card, or a broken one, ends the job here")
    if chosen.count > 1:
        yield Line("\n".join(scripts.threads()), "CPUs of the task")
    yield Line(_training(chosen), _training_reason(chosen))


def _stage(chosen: Chosen) -> Iterator[Line]:
    if chosen.staging.value == "no":
        yield Line(comment(f"No staging: {chosen.staging.reason}"))
        if chosen.asked.data:
            yield Line(f"DATA=${{DATA:-{_word(chosen.asked.data)}}}", "the folder from --data")
        yield Line("")
        return
    first, *rest = (line for line in scripts.staging() if not line.startswith("#"))
    if chosen.asked.data:
        first = f"DATA=${{DATA:-{_word(chosen.asked.data)}}}"
    words = f"Staging: {chosen.staging.reason}"
    if chosen.asked.own and not chosen.asked.data:
        words += '. Used with DATA=FOLDER sbatch ..., by a training that reads "$DATA"'
    yield Line("\n".join([first, *rest]), words)
    yield Line("")


def _training(chosen: Chosen) -> str:
    """The line that trains: the learner's own command, or the kit's training with the measured settings."""
    words = list(chosen.asked.script)
    if not words:
        rest = [*scripts.TRAIN.split(), *_settings(chosen)]
        data = ' ${DATA:+--data "$DATA"}' if chosen.asked.data else ""
        return f"{_SEVERAL if chosen.count > 1 else 'python'} {shlex.join(rest)}{data}"
    if words[0] in ("python", "python3") and len(words) > 1:
        words = words[1:]
    elif not (words[0].endswith(".py") or words[0] == "-m"):
        return " ".join(map(_word, words))
    return f"{_SEVERAL if chosen.count > 1 else 'python'} {' '.join(map(_word, words))}"


def _settings(chosen: Chosen) -> Iterator[str]:
    """The flags of the kit's training for the measured run."""
    run, asked = chosen.run, chosen.asked
    preset = next((one for one in PRESETS.values() if run and run.workload.startswith(one.title)), None)
    config = run.config if run and preset else None
    if config:
        yield from ("--preset", preset.name)
    differs = [name for name in changed(preset.start, config) if name != "workers"] if config else []
    for name in differs:
        value, flag = getattr(config, name), "--" + name.replace("_", "-")
        if value is True:
            yield flag
        elif value not in (None, False):
            yield from (flag, str(value))
    if chosen.workers is not None:
        yield from ("--workers", str(chosen.workers))
    if asked.steps:
        yield from ("--steps", str(asked.steps))


def _training_reason(chosen: Chosen) -> str:
    run = chosen.run
    if run is None:
        return "the training; its settings were not measured"
    if not chosen.asked.script:
        return f"the kit's training with the settings of {run.source}"
    if run.config is None:
        return (
            f"your training; measured with a batch of {run.batch} and {counted(run.workers, 'worker')} ({run.source})"
        )
    config = run.config
    pinned = ", pin_memory" if config.pin_memory else ""
    words = f"batch {config.batch_size}, {config.precision}, {counted(run.workers, 'worker')}{pinned}"
    return f"your training; set what was measured: {words} ({run.source})"


def _word(word: str) -> str:
    """A word for the script; variables in it stay variables."""
    plain = "$" in word and not set(word) & set('"`\\!') and "$(" not in word
    return f'"{word}"' if plain else shlex.quote(word)

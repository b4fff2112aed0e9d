"""Job scripts from the facts of a site: what slurm/ holds, and the parts of which any other is made.

Every fact comes from the site file. A script asks for one task a node; with several cards torchrun makes the ranks. It
starts a login shell, so that `module` is there, and stops at the first command that fails.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gpuworkshop.cluster import slurm_time
from gpuworkshop.cluster.facts import Family, Purpose
from gpuworkshop.cluster.site import Site

LONGEST = "04:00:00"
"""The time that is asked for where the site's own convention is no limit."""
SHORT = "00:30:00"
"""Of jobs that only look: verify, profile, one part of the claims."""
DDP_CARDS, DDP_NODES = 4, 2
ACTIVATE = "~/gpuworkshop/bin/activate"
"""The course's environment where the site brings no conda."""
TRAIN = "-m gpuworkshop.workloads.train"
PORTS = "20000 + SLURM_JOB_ID % 10000"


class Ask(msgspec.Struct, frozen=True):
    """What a job asks for. ``cards`` is for each node; CPUs and host memory follow from it by the site's convention."""

    name: str
    family: Family | None = None
    purpose: Purpose = "devel"
    cards: int = 1
    nodes: int = 1
    time: str = ""


def header(site: Site, ask: Ask) -> Iterator[str]:
    """The shebang and the directives of a job."""
    partition = site.partition_for(ask.family.name, ask.purpose) if ask.family else None
    cpus, memory = site.conventions.share(ask.cards)
    yield "#!/bin/bash -l"
    yield f"#SBATCH --job-name={ask.name}"
    if partition:
        yield f"#SBATCH --partition={partition.name}"
        yield from (f"#SBATCH {option}" for option in partition.options)
    yield f"#SBATCH --nodes={ask.nodes}"
    yield "#SBATCH --ntasks-per-node=1"
    yield f"#SBATCH --cpus-per-task={cpus}"
    yield f"#SBATCH --gres={ask.family.gres if ask.family else 'gpu'}:{ask.cards}"
    yield f"#SBATCH --mem={memory}"
    yield f"#SBATCH --time={ask.time or usual_time(site)}"
    yield f"#SBATCH --output={site.conventions.output}"
    yield f"#SBATCH --error={site.conventions.error}"


def usual_time(site: Site) -> str:
    """The time of a job when nothing was measured yet."""
    return LONGEST if site.conventions.time == slurm_time.UNLIMITED else site.conventions.time


def logs_folder(site: Site) -> str:
    """The folder of the site's log files; it must be there before sbatch."""
    return site.conventions.output.rpartition("/")[0] or "."


def environment(site: Site) -> Iterator[str]:
    """The lines that load the site's modules and the course's environment. The first failure ends the job."""
    yield "set -eo pipefail   # stop at the first command that fails"
    yield from site.module_lines()
    yield from activation(site)
    yield "set -u   # and at a variable that nobody set; conda's own lines do not stand that"


def activation(site: Site) -> Iterator[str]:
    """The lines that make the course's environment the active one, by conda where the site brings it."""
    if any("conda" in module.brings for module in site.modules):
        yield 'source "$(conda info --base)/etc/profile.d/conda.sh"'
        yield "conda activate gpuworkshop"
    else:
        yield f"source {ACTIVATE}"


def _about(site: Site, *lines: str) -> Iterator[str]:
    """What a script is for, as comments under its directives."""
    yield ""
    yield from (f"# {line}" for line in lines)
    folder = logs_folder(site)
    if folder != ".":
        yield f"# Once, before the first sbatch, because Slurm does not make it: mkdir -p {folder}"
    yield ""


def _expect(ask: Ask) -> str:
    return f" --expect {ask.family.name}" if ask.family else ""


def verify(site: Site, family: Family | None) -> Iterator[str]:
    """Is the card here that was asked for, and does it work?"""
    ask = Ask("verify", family, time=SHORT)
    yield from header(site, ask)
    yield from _about(site, "Is the card here that was asked for, and does it work?")
    yield from environment(site)
    yield ""
    yield f"gpuworkshop verify{_expect(ask)}"


def profile(site: Site, family: Family | None) -> Iterator[str]:
    """Where does the time of 20 steps go?"""
    ask = Ask("profile", family, time=SHORT)
    yield from header(site, ask)
    yield from _about(
        site,
        "Where does the time of 20 steps go? The report stands in the log; the trace opens in any trace viewer.",
    )
    yield from environment(site)
    yield ""
    yield f"gpuworkshop verify{_expect(ask)}"
    yield 'gpuworkshop profile --workers $((SLURM_CPUS_PER_TASK - 1)) --keep "trace_$SLURM_JOB_ID.json.gz"'


def train(site: Site, family: Family | None) -> Iterator[str]:
    """Training on one card."""
    ask = Ask(f"train-{family.name}" if family else "train", family, "batch")
    yield from header(site, ask)
    yield from _about(
        site,
        "Training on one card. Put your own script in the last line, and ask for the time of a test run + 20%.",
        "DATA=folder sbatch ... : the folder is copied to the node's own disk first, where there is one.",
    )
    yield from environment(site)
    yield ""
    yield from staging()
    yield ""
    yield f"gpuworkshop verify{_expect(ask)}"
    yield f'python {TRAIN} --workers $((SLURM_CPUS_PER_TASK - 1)) --persistent-workers ${{DATA:+--data "$DATA"}}'


def staging() -> Iterator[str]:
    """The lines that copy the data to the node's own disk, where there is one with room."""
    yield "# Files on the node's own disk are read faster than over the network. Where it is missing or too small, they"
    yield "# are read from where they are."
    yield "DATA=${DATA:-}"
    yield 'if [ -n "$DATA" ] && [ -n "${TMPDIR:-}" ] && [ -w "$TMPDIR" ]; then'
    yield '  needed=$(du -sk "$DATA" | cut -f1)'
    yield "  free=$(df -Pk \"$TMPDIR\" | awk 'NR == 2 {print $4}')"
    yield "  if ((needed < free)); then"
    yield '    cp -r "$DATA" "$TMPDIR/data"'
    yield "    DATA=$TMPDIR/data"
    yield "  fi"
    yield "fi"


def ddp(site: Site, family: Family | None) -> Iterator[str]:
    """Training on several cards of one node."""
    ask = Ask("ddp", family, cards=_cards(family), time=SHORT)
    yield from header(site, ask)
    yield from _about(
        site,
        f"Training on {ask.cards} cards of one node: one task, and torchrun makes one rank for each card.",
        "CPUs = (workers + 1) x ranks. Measure first whether several cards pay: gpuworkshop scale",
    )
    yield from environment(site)
    yield ""
    yield from threads()
    yield 'srun torchrun --standalone --nnodes=1 --nproc-per-node="$SLURM_GPUS_ON_NODE" \\'
    yield f"  {TRAIN} --workers $((SLURM_CPUS_PER_TASK / SLURM_GPUS_ON_NODE - 1)) --persistent-workers"


def ddp_nodes(site: Site, family: Family | None) -> Iterator[str]:
    """Training on several cards of several nodes."""
    ask = Ask("ddp-nodes", family, cards=min(2, _cards(family)), nodes=DDP_NODES, time=SHORT)
    yield from header(site, ask)
    yield from _about(
        site,
        f"Training on {ask.cards} cards of each of {ask.nodes} nodes: one task a node, and torchrun makes the ranks.",
        "Between nodes everything is slower: fill one node first.",
    )
    yield from environment(site)
    yield ""
    yield from threads()
    yield 'HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
    yield f"PORT=$(({PORTS}))   # another one for each job, so that two on one node do not meet"
    yield 'srun torchrun --nnodes="$SLURM_NNODES" --nproc-per-node="$SLURM_GPUS_ON_NODE" \\'
    yield '  --rdzv-id="$SLURM_JOB_ID" --rdzv-backend=c10d --rdzv-endpoint="$HEAD:$PORT" \\'
    yield f"  {TRAIN} --workers $((SLURM_CPUS_PER_TASK / SLURM_GPUS_ON_NODE - 1)) --persistent-workers"


def threads() -> Iterator[str]:
    """The variables without which srun and torchrun share the CPUs otherwise than meant."""
    yield "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK   # srun does not take it over by itself"
    yield "export OMP_NUM_THREADS=1   # the CPUs are for the loader's workers"


def _cards(family: Family | None) -> int:
    return min(DDP_CARDS, family.cards_per_node or DDP_CARDS) if family else DDP_CARDS


def interactive(site: Site, family: Family | None) -> Iterator[str]:
    """The line that asks for a session with one card."""
    partition = site.partition_for(family.name, "devel") if family else None
    yield "#!/bin/bash"
    yield "# A session with one card, to verify, profile and try out. Leave it (exit) when you stop: an idle card is"
    yield "# somebody else's queue time."
    yield "exec " + site.interactive(partition.name if partition else "")


def claims(site: Site, family: Family) -> Iterator[str]:
    """What is claimed, measured on one kind of card, as a recording that can be sent back."""
    ask, file = Ask(f"claims-{family.name}", family, time=SHORT), f"claims-{family.name}.json"
    yield from header(site, ask)
    yield from _about(
        site,
        "What the workshop states, measured on this card, part by part. Submitted again it goes on where it stopped.",
        'PARTS="verify calls" sbatch ... : only these parts.',
    )
    yield from environment(site)
    yield ""
    yield f"gpuworkshop verify{_expect(ask)}"
    yield 'read -ra PARTS <<< "${PARTS:-all}"'
    yield "STATUS=0   # a part that fails keeps no other from being measured"
    yield f'gpuworkshop claims --record "${{PARTS[@]}}" --into {file} || STATUS=$?'
    yield ""
    yield f'echo "Please send $PWD/{file} back: attach it to an issue of this project."'
    yield 'echo "It names the card and the versions of driver, Python and PyTorch; no user, no host, no path."'
    yield 'exit "$STATUS"'


def scripts(site: Site) -> dict[str, str]:
    """Every script of slurm/ with its name: what looks, for the site's first family; training and claims, for each."""
    first = site.families[0] if site.families else None
    looks = {
        "verify.sbatch": verify,
        "profile.sbatch": profile,
        "ddp.sbatch": ddp,
        "ddp-nodes.sbatch": ddp_nodes,
        "interactive.sh": interactive,
    }
    made = {name: make(site, first) for name, make in looks.items()}
    made |= {f"train-{family.name}.sbatch": train(site, family) for family in site.families}
    made |= {f"claims-{family.name}.sbatch": claims(site, family) for family in site.families}
    return {name: "\n".join(lines) + "\n" for name, lines in sorted(made.items(), key=lambda item: item[0])}

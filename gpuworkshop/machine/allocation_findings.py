"""What the allocation means: whether this task may use the CPUs that its job asked for."""

from __future__ import annotations

from collections.abc import Iterator

from gpuworkshop.report import Finding


def fewer_cpus(count: int, said_by: str, asked: int | None) -> Iterator[Finding]:
    """That a task may use ``count`` CPUs, said by ``said_by``, of the ``asked`` that its job has for each task."""
    if not asked or count >= asked:
        return
    yield Finding(
        "warning",
        f"This task may use {count} of the {asked} CPUs that its job asked for",
        f"said by {said_by}; from Slurm 22.05 on, srun may not take --cpus-per-task over from sbatch",
        f"srun --cpus-per-task={asked} ...   # or before it: export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK",
    )

"""Does a run still learn in a lower format? Every arm against two seeds of FP32, at equal samples seen."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gpuworkshop.child import Tell
from gpuworkshop.instruments.learning import Judgement, Learned, judge, learn
from gpuworkshop.instruments.precision_arms import of_training
from gpuworkshop.instruments.precision_result import Arm, arm
from gpuworkshop.workloads import tf32
from gpuworkshop.workloads.config import Job, TrainConfig

SEEDS = (0, 1)


def judged(arms: Sequence[Arm], config: TrainConfig, job: Job, device: str, tell: Tell) -> dict[str, Judgement]:
    """The verdict on each arm but FP32, which is the measure, by id. None is judged where nothing can be learned."""
    first = of_training(arm("fp32"), config, job, device)
    others = [one for one in arms if one.id != "fp32"]
    if not first.training.can_learn:
        return {one.id: Judgement(None, "learning not judged: the pictures have no classes") for one in others}
    held_out = first.training.task.held_out()
    runs = len(others) + len(SEEDS)

    def learned(one: Arm, seed: int, done: int) -> Learned:
        tell.progress(done / runs, f"{one.title}: does it learn?")
        running = of_training(one, config, msgspec.structs.replace(job, seed=seed), device)
        return learn(running.training, job.sizes.learning_samples, held_out)

    with tf32.kept():
        usual = [learned(first.arm, seed, done) for done, seed in enumerate(SEEDS)]
        ends = {one.id: learned(one, SEEDS[0], len(SEEDS) + done) for done, one in enumerate(others)}
    return {id: judge(usual, [end], "close") for id, end in ends.items()}

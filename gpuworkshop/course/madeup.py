"""A machine made up for an exercise: cards on paper, which answer as NVML would. Nothing of it was measured.

The kit reads CUDA_VISIBLE_DEVICES there with the same code as on a real machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuworkshop.machine import gpus
from gpuworkshop.machine.nvml import Nvml

NAME = "a machine made up for this exercise"
CARDS = "ABCD"
"""Its cards, by letter: number 0 is A. All of one kind, so that CUDA numbers them as NVML does."""


class MadeUp(Nvml):
    """Answers what must be known to tell cards apart, and refuses everything else."""

    def __init__(self, cards: str = CARDS):
        self.refused = {}
        self.problem = None
        self._library = None
        self._answers = {
            "nvmlDeviceGetCount": lambda: len(cards),
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetName": lambda index: "made-up card",
            "nvmlDeviceGetUUID": lambda index: f"GPU-{cards[index]}",
        }

    def ask(self, function: str, *arguments: Any) -> Any:
        """What the made-up driver answers; None for what it does not know."""
        return self._answers[function](*arguments) if function in self._answers else None


def letters(env: Mapping[str, str], cards: str = CARDS) -> str:
    """The cards that CUDA gives in this environment, by letter, in its order: cuda:0 comes first."""
    return "".join(card.uuid[-1] for card in gpus.cards(env, nvml=MadeUp(cards)).mine)

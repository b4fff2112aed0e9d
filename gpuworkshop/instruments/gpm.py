"""GPM, the driver's counters of what the SMs do: read where the driver lets us, and said where it does not.

Every reading is the difference of two samples at least :data:`GAP` seconds apart: closer ones give zeros or NaN.
"""

from __future__ import annotations

import math
from typing import Any

from gpuworkshop.machine.nvml import Nvml

GAP = 0.1
"""Seconds; the counters are refreshed no faster."""

TRIES = 3
"""Refusals in a row after which nothing more is asked."""

METRICS = {
    "sm": "NVML_GPM_METRIC_SM_UTIL",
    "occupancy": "NVML_GPM_METRIC_SM_OCCUPANCY",
    "tensor": "NVML_GPM_METRIC_ANY_TENSOR_UTIL",
    "dram": "NVML_GPM_METRIC_DRAM_BW_UTIL",
}
"""What is read, each in percent, and its name in the bindings."""


class Gpm:
    """The counters of one card or MIG slice. ``why`` is "" while they can be read, else what the driver said."""

    def __init__(self, nvml: Nvml, handle: Any, parent: Any = None):
        """``parent`` is the handle of the card that a slice belongs to; None for a whole card."""
        self._nvml, self._handle, self._parent = nvml, handle, parent
        self._instance: int | None = None
        self._older: Any = None
        self._newer: Any = None
        self._taken: float | None = None
        """When ``_older`` was filled."""
        self._refusals = 0
        self.answered = False
        """Whether a reading was ever made."""
        self.why = self._probe()

    def _probe(self) -> str:
        """Why this card has no counters for us; "" when it says that it has."""
        support = self._ask("nvmlGpmQueryDeviceSupport", self._handle if self._parent is None else self._parent)
        if support is None:
            return self._words("nvmlGpmQueryDeviceSupport")
        if not support.isSupportedDevice:
            return "this card has no GPM counters"
        if self._parent is not None:
            self._instance = self._ask("nvmlDeviceGetGpuInstanceId", self._handle)
            if self._instance is None:
                return self._words("nvmlDeviceGetGpuInstanceId")
        self._older, self._newer = self._ask("nvmlGpmSampleAlloc"), self._ask("nvmlGpmSampleAlloc")
        return "" if self._older is not None and self._newer is not None else self._words("nvmlGpmSampleAlloc")

    def read(self, now: float) -> dict[str, float]:
        """Shares from 0 to 1 since the reading before, by the names of :data:`METRICS`; what is not known is left out.

        ``now`` is a clock in seconds. Closer than :data:`GAP` to the reading before, nothing is read.
        """
        if self.why or self._newer is None or (self._taken is not None and now - self._taken < GAP):
            return {}
        into = self._older if self._taken is None else self._newer
        if not self._sample(into):
            self._count_refusal(self._sampling)
            return {}
        if self._taken is None:
            self._taken = now
            return {}
        values = self._difference()
        self._older, self._newer, self._taken = self._newer, self._older, now
        return values

    @property
    def _sampling(self) -> str:
        return "nvmlGpmSampleGet" if self._parent is None else "nvmlGpmMigSampleGet"

    def _sample(self, into: Any) -> bool:
        """Fill one sample; whether the driver did."""
        where = (self._handle,) if self._parent is None else (self._parent, self._instance)
        self._ask(self._sampling, *where, into)
        return self._sampling not in self._nvml.refused and self._nvml.problem is None

    def _difference(self) -> dict[str, float]:
        """The metrics between the two samples, each with its own error left out."""
        question = self._nvml.constant("c_nvmlGpmMetricsGet_t")()
        question.version = self._nvml.constant("NVML_GPM_METRICS_GET_VERSION")
        question.numMetrics = len(METRICS)
        question.sample1, question.sample2 = self._older, self._newer
        for place, name in enumerate(METRICS.values()):
            question.metrics[place].metricId = self._nvml.constant(name)
        if self._ask("nvmlGpmMetricsGet", question) is None and "nvmlGpmMetricsGet" in self._nvml.refused:
            self._count_refusal("nvmlGpmMetricsGet")
            return {}
        self._refusals = 0
        answers = zip(METRICS, question.metrics, strict=False)
        read = {name: share(answer.value) for name, answer in answers if answer.nvmlReturn == 0}
        read = {name: value for name, value in read.items() if value is not None}
        self.answered = self.answered or bool(read)
        return read

    def _count_refusal(self, function: str) -> None:
        refused = self._nvml.refused.get(function)
        self._refusals += 1
        if self._refusals >= TRIES or (refused and refused.cause in ("no permission", "lost")):
            self.why = self._words(function)

    def _ask(self, function: str, *arguments: Any) -> Any:
        self._nvml.refused.pop(function, None)
        return self._nvml.ask(function, *arguments)

    def _words(self, function: str) -> str:
        refused = self._nvml.refused.get(function) or self._nvml.problem
        return refused.words if refused else "the driver gave no answer"

    def close(self) -> None:
        """Give the two samples back to the driver."""
        for sample in (self._older, self._newer):
            self._nvml.ask("nvmlGpmSampleFree", sample)
        self._older = self._newer = None


def share(percent: float | None) -> float | None:
    """A percentage as a share; None for one that cannot be: NaN, below 0, above 100."""
    if percent is None or not math.isfinite(percent) or not 0 <= percent <= 100.5:
        return None
    return min(1.0, percent / 100)

"""Utilization as the driver counts it, over the plain steps of a script and nothing else."""

from __future__ import annotations

from collections.abc import Mapping

from gpuworkshop.instruments.watch import Watch
from gpuworkshop.instruments.watch_findings import LEAST_WINDOWS
from gpuworkshop.loop.look_result import Watched
from gpuworkshop.machine.visible import VARIABLE
from gpuworkshop.own import flops_read
from gpuworkshop.own.records import Records


class Driver:
    """Watches the card that a script trains on, from the beginning of its baseline to its end."""

    def __init__(self, env: Mapping[str, str]):
        self._env, self._watch, self._uuid = env, None, ""

    def follow(self, records: Records) -> None:
        """Begin or end the watch, by what the script does now."""
        main = records.main
        said = main.one("settings") if main else {}
        if not str(said.get("device", "")).startswith("cuda"):
            return
        plain = main.one("phase").get("name") == "baseline"
        if plain and self._watch is None:
            self._uuid = flops_read.cards(said)[0].uuid
            env = {**self._env, VARIABLE: self._uuid} if self._uuid else self._env
            self._watch = Watch(what="the script's plain steps", env=env)
            self._watch.__enter__()
        elif self._watch is not None and not plain:
            self._watch.stop()

    def end(self) -> None:
        """End the watch, if it still runs."""
        if self._watch is not None:
            self._watch.stop()

    @property
    def watched(self) -> Watched | None:
        """What the driver said; None where no card was trained on."""
        if self._watch is None:
            return None
        seen = self._watch.result
        cards = [card for card in seen.cards if card.card.uuid == self._uuid or len(seen.cards) == 1]
        if not cards:
            return Watched(None, why=seen.problem or "the card that trains cannot be seen from here")
        if cards[0].busy is None or cards[0].windows < LEAST_WINDOWS:
            few = f"{cards[0].windows} windows of the driver are too few"
            return Watched(None, cards[0].windows, cards[0].busy_why or few)
        return Watched(cards[0].busy, cards[0].windows)

"""Questions that check a learner's picture: data in questions/, answers judged by plain functions.

`ask` gives a question that shows itself as a widget, or as static HTML or text where a front end
has no widgets. Answers are kept with the learner's progress. It is a self-check: the key is in the
course's files, but it is not on the page before an answer is given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from gpuworkshop.course import controls, faces, material, progress
from gpuworkshop.course.controls import Status
from gpuworkshop.course.faces import Fold, Note
from gpuworkshop.course.material import QuestionData
from gpuworkshop.instruments.scaling_result import efficiency_by_hand
from gpuworkshop.numbers import in_unit


class Feedback(msgspec.Struct, frozen=True):
    """What an answer gets back. `counts` is False for what is no answer at all."""

    right: bool
    says: str
    counts: bool = True

    def __str__(self) -> str:
        return f"{'✓ Right.' if self.right else '✗ Not yet.'} {self.says}" if self.counts else self.says

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        title, tone = ("Right.", "right") if self.right else ("Not yet.", "wrong")
        if not self.counts:
            title, tone = "No answer yet.", "plain"
        return Note(title, tone, text=(self.says,))._repr_mimebundle_()


def wasted_share(loader_ms: float, compute_ms: float) -> float:
    """Percent of a step that the card waits when the loader works ahead and is the slower side."""
    return 100 * (loader_ms - compute_ms) / loader_ms


def wasted_card_minutes(cards: float, minutes: float, utilization: float) -> float:
    """Card-minutes without a kernel, for cards that are held for `minutes` at `utilization` percent."""
    return cards * minutes * (100 - utilization) / 100


def with_reserve(minutes: float) -> float:
    """Minutes to ask for when a run is expected to take ``minutes``: 20% more."""
    return 1.2 * minutes


def busy_when_late(launch_us: float, kernel_us: float) -> float:
    """Percent of the time in which a card is busy when each kernel ends before the next one is launched."""
    return 100 * kernel_us / launch_us


def largest_batch(card_gib: float, share: float, beside_gib: float, sample_gib: float) -> float:
    """Samples that fit when memory is a straight line over the batch, up to `share` percent of the card."""
    return (share / 100 * card_gib - beside_gib) / sample_gib


def scaling_efficiency(ranks: float, batch: float, steps: float, alone_batch: float, alone_steps: float) -> float:
    """Percent of ``ranks`` times one alone that ranks reach; a batch is of one rank, steps are those of a second."""
    worlds = [int(ranks)] * int(ranks)
    return 100 * efficiency_by_hand(worlds, int(batch), steps, int(alone_batch), alone_steps).efficiency


def weights_gb(billions: float, bits: float) -> float:
    """GB (10^9 bytes) of so many billion parameters of ``bits`` each."""
    return billions * bits / 8


COMPUTED: dict[str, Callable[..., float]] = {
    "wasted_share": wasted_share,
    "wasted_card_minutes": wasted_card_minutes,
    "with_reserve": with_reserve,
    "busy_when_late": busy_when_late,
    "scaling_efficiency": scaling_efficiency,
    "largest_batch": largest_batch,
    "weights_gb": weights_gb,
}
"""Numeric answers that are calculated from the numbers in the question."""


def ask(chapter: str, id: str) -> Question:
    """The question `id` of a chapter such as "04_starve". KeyError names the ones there are."""
    known = material.questions(chapter)
    if id not in known:
        raise KeyError(f"chapter {chapter} has no question {id!r}, but: {', '.join(known)}")
    return Question(chapter, known[id])


class Question:
    """One question: shows itself, judges answers, keeps the tries."""

    def __init__(self, chapter: str, data: QuestionData):
        self.chapter = chapter
        self.data = data
        self._box: Any = None

    @property
    def prompt(self) -> str:
        """The question's text with its given numbers."""
        return self.data.prompt.strip().format(**{name: f"{v:g}" for name, v in self.data.given.items()})

    @property
    def answer(self) -> str | float:
        """The right answer: its letters, or its number."""
        if self.data.kind == "number":
            return COMPUTED[self.data.computed](**self.data.given)
        return "".join(letter for letter, option in faces.letters(self.data.options).items() if option.right)

    def check(self, answer: str | float | Iterable[str]) -> Feedback:
        """Judge an answer: a letter, several letters, or a number in the question's unit. Keeps nothing."""
        if self.data.kind == "number":
            return _check_number(self.data, float(self.answer), answer)
        options = faces.letters(self.data.options)
        letters = _letters(answer)
        if not letters or not options.keys() >= set(letters):
            what = "a letter" if self.data.kind == "choice" else "one letter or several"
            return Feedback(False, f"Answer with {what}: {', '.join(options)}.", counts=False)
        chosen = [options[letter] for letter in letters]
        return _check_choice(chosen) if self.data.kind == "choice" else self._check_many(chosen)

    def submit(self, answer: str | float | Iterable[str]) -> Feedback:
        """Judge an answer and keep the try."""
        feedback = self.check(answer)
        if feedback.counts:
            progress.record(self.chapter, "question", self.data.id, feedback.right)
        return feedback

    def _check_many(self, chosen: Sequence[material.Option]) -> Feedback:
        for option in chosen:
            if not option.right:
                return Feedback(False, option.says)
        missing = sum(option.right for option in self.data.options) - len(chosen)
        if missing:
            more = "1 more belongs" if missing == 1 else f"{missing} more belong"
            return Feedback(False, f"What you chose is right, and {more} to it.")
        return Feedback(True, self.data.right)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        if self._box is None and faces.widgets():
            self._box = _widget(self)
        return faces.bundle(self._box, self._note())

    def _note(self) -> Note:
        seen = progress.tally(self.chapter, "question", self.data.id)
        before = (f"✓ Answered right before, {tries_in_words(seen)}.",) if seen.right else ()
        unit = (f"Answer in {self.data.unit}.",) if self.data.kind == "number" else ()
        what = {"choice": '"letter"', "many": '"letters"', "number": "number"}[self.data.kind]
        how = f'`quiz.ask("{self.chapter}", "{self.data.id}").submit({what})`'
        return Note(
            f"Question: {self.data.title}",
            text=(*before, self.prompt, *unit),
            items=tuple(option.text for option in self.data.options),
            fold=Fold(
                "Show the answer",
                (*self._answer_text(), f"To keep your answer with your progress: {how}"),
                plain=f"Answer with {how}",
            ),
        )

    def _answer_text(self) -> tuple[str, ...]:
        if self.data.kind == "number":
            return (f"{in_unit(f'{self.answer:g}', self.data.unit)}. {self.data.right}",)
        options = faces.letters(self.data.options).items()
        return tuple(f"{letter}. {'✓' if one.right else '✗'} {one.says}" for letter, one in options)


def _widget(question: Question) -> Any:
    data, texts = question.data, tuple(option.text for option in question.data.options)
    if data.kind == "number":
        control = controls.number("Your answer", data.unit)
    else:
        control = (controls.choice if data.kind == "choice" else controls.many)(texts)
    seen = progress.tally(question.chapter, "question", data.id)
    before = Status(f"✓ Answered right before, {tries_in_words(seen)}." if seen.right else "")

    def act(answer: Any) -> Status:
        feedback = question.submit(answer)
        if not feedback.counts:
            return Status(feedback.says)
        return Status(str(feedback), feedback.right, "right" if feedback.right else "wrong")

    head = Note(f"Question: {data.title}", text=(question.prompt,))
    return controls.panel(f"gw-quiz-{data.id}", head, control, "Check", act, before)


def tries_in_words(seen: progress.Tally) -> str:
    """For example "1 try" or "3 tries"."""
    return "1 try" if seen.tries == 1 else f"{seen.tries} tries"


def _letters(answer: Any) -> list[str]:
    """The letters of an answer, in order: "AC", "a, c" and ["a", "c"] are the same. Empty for what has none."""
    given = "".join(map(str, answer)).lower() if isinstance(answer, Iterable) else ""
    return sorted({char for char in given if char not in " ,.;:)"})


def _check_choice(chosen: Sequence[material.Option]) -> Feedback:
    if len(chosen) > 1:
        return Feedback(False, "Only one of them: choose the one that fits best.")
    return Feedback(chosen[0].right, chosen[0].says)


def _check_number(data: QuestionData, right: float, answer: Any) -> Feedback:
    try:
        number = answer.strip().removesuffix(data.unit) if isinstance(answer, str) else answer
        value = math.nan if isinstance(answer, bool) else float(number)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not math.isfinite(value):
        return Feedback(False, f"Answer with a number in {data.unit}.", counts=False)
    if abs(value - right) <= data.tolerance:
        return Feedback(True, data.right)
    for slip in data.slips:
        if abs(value - slip.value) <= data.tolerance:
            return Feedback(False, slip.says)
    return Feedback(False, data.wrong)

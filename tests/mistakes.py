"""What the tests of every chapter hold a typical wrong answer to."""

from __future__ import annotations

from typing import Any

from gpuworkshop.course import exercise


def assert_mistake(chapter: str, id: str, mistake: str, wrong: Any) -> None:
    """The answer fails with exactly this mistake, in the words of the exercise's file."""
    result = exercise.open(chapter, id).check(wrong)
    assert (result.done, result.attempted, result.mistake) == (False, True, mistake)
    assert len(result.hint) > 20 and "{" not in result.says.replace(str(wrong), "")
    assert "✗ Not done yet" in str(result)

"""Whatever the bytes of a job script: an answer, no crash, no number that the script does not have.

Scripts are drawn from pieces that
meet in real ones, from those with letters changed, and from bytes of any kind.
"""

from __future__ import annotations

import re

import msgspec
from fuzzing import fuzz
from hypothesis import given
from hypothesis import strategies as st
from test_jobscript import SHOWN

from gpuworkshop.cluster import site
from gpuworkshop.cluster.jobscript import check, options, script, shell, training

AICR = site.load("aicr")

LINES = sorted({line for lines, _ in SHOWN.values() for line in lines})
NUMBERS = re.compile(r"\d+")
PIECES = """
--gres= gpu: b200 = : - -- -N -t # \\ ' " $( ) ${ } ` << EOF #SBATCH srun torchrun --nproc_per_node= & | ; for do done
if fi case esac { export MASTER_PORT= 999999999999999999999999999999 0 -1 \u0661 %j python x.py module conda activate
"""
WORDS = st.sampled_from([*PIECES.split(), " ", " ", "\n", "\n", "\t"])
lines = st.lists(st.one_of(st.sampled_from(LINES), st.lists(WORDS, max_size=8).map("".join)), max_size=25)
texts = st.one_of(lines.map("\n".join), st.lists(WORDS, max_size=60).map("".join))
bodies = st.one_of(
    st.binary(max_size=300),
    texts.map(lambda text: text.encode()),
    texts.map(lambda text: text.encode("utf-16")),
    texts.map(lambda text: text.replace("\n", "\r\n").encode()),
    st.tuples(texts, st.integers(0, 400), st.characters()).map(
        lambda drawn: (drawn[0][: drawn[1]] + drawn[2] + drawn[0][drawn[1] :]).encode(errors="replace")
    ),
)


@fuzz()
@given(bodies)
def test_any_script_is_answered_with_lines_that_are_there(data) -> None:
    checked = check.check(data, AICR)
    many = len(script.read(data).lines)
    for one in checked.faults:
        assert 0 <= one.line <= many and one.title and "\n" not in one.title + one.cause
    report = check.report(checked)
    assert str(report) and report._repr_mimebundle_()["text/html"] and msgspec.json.encode(checked)


@fuzz()
@given(bodies)
def test_no_number_of_the_request_is_invented(data) -> None:
    """Each number stands in a directive; what is not said is None."""
    read = script.read(data)
    asked = check.check(data, AICR).request
    said = {int(word) for line in read.of("directive") for word in NUMBERS.findall(line.text) if word.isascii()}
    for value in (asked.nodes, asked.tasks, asked.tasks_per_node, asked.cpus_per_task, asked.cpus_per_card):
        assert value is None or value in said
    for cards in asked.cards:
        assert cards.count in said | {1}
    for one in read.given:
        assert 1 <= one.line <= len(read.lines) and one.line in {line.number for line in read.of("directive")}


@fuzz()
@given(texts)
def test_every_command_has_a_line_and_its_words_come_from_the_text(text) -> None:
    read = shell.read(text.split("\n"))
    letters = set(text)
    for command in read.commands:
        assert 1 <= command.line <= text.count("\n") + 1 and command.words
        assert set("".join(command.words)) <= letters
    assert [one.line for one in read.commands] == sorted(one.line for one in read.commands)


@fuzz()
@given(st.lists(st.text(st.characters(blacklist_characters="\n"), max_size=30), max_size=8))
def test_words_that_are_quoted_come_back_as_they_were(words) -> None:
    """A round trip: what sbatch's quotes protect, no # and no blank breaks."""
    kept = [word for word in words if word and "'" not in word]
    line = " ".join(f"'{word}'" for word in kept)
    assert [one.text for one in options.cut(1, line).words] == kept


@fuzz()
@given(st.lists(st.sampled_from(LINES), max_size=12), st.integers(0, 12))
def test_blank_lines_and_comments_change_nothing_but_line_numbers(given_lines, place) -> None:
    whole = ["#!/bin/bash", *(line for line in given_lines if not set("\\\r\0") & set(line))]
    place = min(1 + place, len(whole))
    more = [*whole[:place], "# a comment", "", *whole[place:]]

    def rules(of: list[str]) -> list[str]:
        data = "".join(f"{line}\n" for line in of).encode()
        return sorted(one.rule for one in check.check(data, AICR).faults)

    assert rules(more) == rules(whole)


CODE = """
import~torch import~x.y~as~z from~.~import~a DDP= torch.nn.parallel. DataParallel(x) partial(DDP)
DistributedSampler(a,shuffle= False) lambda: ( ) [[[[[[[[[[[[ f'{
"""
PARTS = [*(part.replace("~", " ") for part in CODE.split()), "\n", "\n", " ", "\0"]


@fuzz()
@given(st.one_of(st.lists(st.sampled_from(PARTS), max_size=30).map("".join), st.text(max_size=60)))
def test_any_code_is_read_or_is_no_python(code) -> None:
    found = training.read(code)
    if found:
        assert 0 <= max(found.line, found.same_order) <= code.count("\n") + code.count("\r") + code.count("\f") + 1
        assert (found.line > 0) == (found.use not in ("no", "unknown"))

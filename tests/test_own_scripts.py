"""The scripts of the regret bench: each table fits its script, every change parses, and there are enough of them."""

import ast
from pathlib import Path

import bench_own as bench
import pytest

from gpuworkshop.own.pick import Verdict
from gpuworkshop.own.remedies import remedies

ALL = [file.stem for file in sorted(bench.SCRIPTS.glob("*.toml"))]
NOTHING = Verdict("nothing", "", None)


@pytest.mark.parametrize("name", ALL)
def test_every_change_of_a_table_can_be_made(name, tmp_path) -> None:
    script = bench.load(name)
    made = 0
    for kind in script.shows_on:
        folders, stands = bench.arms(script, kind, NOTHING, tmp_path / kind, tmp_path)
        made += len(folders)
        assert stands == bench.AS_IS and len(folders) >= 3
        assert len({tuple(bench.texts(script, folder)) for folder in folders.values()}) == len(folders)
    assert made
    known = {one for row in script.change for one in row.remedies}
    assert known <= remedies().keys()


def test_a_change_that_does_not_fit_is_refused(tmp_path) -> None:
    script = bench.load("clean")
    folder = bench.lay_out(script, tmp_path)
    with pytest.raises(ValueError, match="must be there once"):
        bench.change(script, folder, bench.Row(["batch"], [["loss", "gain"]]))


def test_there_are_twelve_planted_scripts_in_eight_styles_and_clean_ones() -> None:
    for kind in ("cpu", "card"):
        some = [bench.load(name) for name in bench.names(kind)]
        assert sum(bool(one.planted) for one in some) >= 12 and sum(not one.planted for one in some) >= 2
        assert len({one.style for one in some}) >= 8


def test_no_script_names_what_it_plants() -> None:
    """A verdict must not read it in a comment."""
    for file in bench.SCRIPTS.rglob("*.py"):
        names = {node.id for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Name)}
        assert not {"planted", "slow", "bottleneck"} & names, Path(file).name


def test_regret_is_the_best_over_our_pick_by_the_upper_quartile() -> None:
    turns = [{"as it is": [100.0, 100.0], "0: batch": [150.0, 20.0]}, {"as it is": [90.0], "0: batch": [150.0]}]
    assert bench.gains(turns, "as it is")["0: batch"] == pytest.approx(1.5)
    assert bench.gains([{"as it is": []}], "as it is") == {}


def test_a_script_is_listened_to_until_there_is_enough(tmp_path, monkeypatch) -> None:
    (tmp_path / "s.py").write_text("for n in range(99): print(f'epoch {n}: {100.0 + n} samples/s', flush=True)\n")
    monkeypatch.setattr(bench, "afresh", lambda: None)
    assert bench.one_turn(str(tmp_path), ["s.py"], 0.0) == [101.0]
    (tmp_path / "s.py").write_text("raise ValueError('no')\n")
    assert bench.one_turn(str(tmp_path), ["s.py"], 0.0) == []

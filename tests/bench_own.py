"""Is our first pick for a script the change that brings most? Each script of standins/own, with all its single changes.

    python tests/bench_own.py [--only NAME ...] [--budget SECONDS] [--seconds SECONDS] [--json FILE]

A script is run once under the hooks, as `gpuworkshop loop -- python NAME.py` does, and the verdict picks a change. Then
all changes of its table (NAME.toml) and the picked one are measured in turn in one process, in several rounds, against
the script as it is. A pick with a diff is measured as the diff makes it, any other as the table writes it. Regret = the
best of them / our pick; the goal is 1.10. A script in which nothing is planted must get no pick. A larger batch is only
among the best where our pick or the planted one's cure alters the training too: samples/s do not say what a sample
teaches. With it, the regret is shown beside.
"""

import argparse
import ast
import contextlib
import gc
import io
import json
import os
import re
import runpy
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from gpuworkshop.machine.gpus import default_device
from gpuworkshop.own import launch
from gpuworkshop.own.remedies import remedies
from gpuworkshop.own.result import OwnResult
from gpuworkshop.own.verdict import Verdict, verdict
from gpuworkshop.report import envelope

SCRIPTS = Path(__file__).parent / "standins" / "own"
GOAL = 1.10
AS_IS, PICK = "as it is", "our pick"
HOPELESS = 0.7
"""An arm this far below the best of the first round is not measured again."""


class Row(msgspec.Struct, forbid_unknown_fields=True):
    """One single change: the picks that mean it, and the text to replace in the script's files."""

    remedies: list[str]
    replace: list[list[str]]
    on: tuple[str, ...] = ("cpu", "card")


class Script(msgspec.Struct, forbid_unknown_fields=True):
    """A script with what is planted in it and all its single changes; the first undoes what is planted."""

    style: str
    planted: str
    run: list[str]
    change: list[Row]
    files: tuple[str, ...] = ()
    shows_on: tuple[str, ...] = ("cpu", "card")


def load(name: str) -> Script:
    """The table beside a script."""
    return msgspec.toml.decode((SCRIPTS / f"{name}.toml").read_bytes(), type=Script)


def names(kind: str) -> list[str]:
    """All scripts that show something on a "cpu" or a "card"."""
    return [file.stem for file in sorted(SCRIPTS.glob("*.toml")) if kind in load(file.stem).shows_on]


# The arms of a script, each a folder


def lay_out(script: Script, into: Path) -> Path:
    """A copy of the script's files."""
    for file in script.files or script.run[-1:]:
        (into / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(SCRIPTS / file, into / file)
    return into


def change(script: Script, folder: Path, row: Row) -> None:
    """Make a change of the table; each text must be there once, in one of the files."""
    for old, new in row.replace:
        holding = [f for f in (folder / one for one in script.files or script.run[-1:]) if old in f.read_text()]
        if len(holding) != 1 or holding[0].read_text().count(old) != 1:
            raise ValueError(f"{script.run}: {old!r} must be there once")
        holding[0].write_text(holding[0].read_text().replace(old, new))


def arms(script: Script, kind: str, made: Verdict, place: Path, origin: Path) -> tuple[dict[str, Path], str]:
    """The folder of each arm by its name, and the arm that stands for our pick."""
    found = {AS_IS: lay_out(script, place / "as-is")}
    stands = AS_IS
    for number, row in enumerate(row for row in script.change if kind in row.on):
        name = f"{number}: {'/'.join(row.remedies)}"
        found[name] = lay_out(script, place / f"change-{number}")
        change(script, found[name], row)
        if made.pick and made.pick.remedy in row.remedies and stands == AS_IS:
            stands = name
    if made.pick and made.pick.certain:
        folder = lay_out(script, place / "pick")
        at = folder / Path(made.pick.change.file).relative_to(origin)
        text = made.pick.change.text.encode(made.pick.change.encoding)
        subprocess.run(["patch", "-p1", "--binary", "-s"], cwd=at.parent, input=text, check=True)
        same = [arm for arm, one in found.items() if texts(script, one) == texts(script, folder)]
        if same:
            stands = same[0]
        else:
            found[PICK], stands = folder, PICK
    return found, stands


def texts(script: Script, folder: Path) -> list[str]:
    """What is in a script's files, as Python reads it."""
    return [ast.dump(ast.parse((folder / one).read_bytes())) for one in script.files or script.run[-1:]]


def alters(arm: str) -> bool:
    """Whether every remedy that an arm stands for alters the training: samples/s do not say what a sample teaches."""
    return all(remedies()[one].numerics == "training" for one in arm.rpartition(": ")[2].split("/"))


# Measuring, in a child


class Enough(BaseException):
    """A script was watched for long enough."""


class Listening(io.TextIOBase):
    """Takes what a script prints; the rates of its epochs but the first, until there are enough."""

    def __init__(self, seconds: float):
        self.seconds, self.rates, self.began, self.text = seconds, [], None, ""

    def write(self, text: str) -> int:
        self.text += text
        for rate in re.findall(r"([\d.]+) samples/s", text):
            if self.began is None:
                self.began = time.monotonic()
            else:
                self.rates.append(float(rate))
                if time.monotonic() - self.began >= self.seconds:
                    raise Enough
        return len(text)

    def flush(self) -> None:
        """Nothing is kept back."""


def one_turn(folder: str, run: list[str], seconds: float) -> list[float]:
    """Samples/s of a script as its epochs say, without the first; nothing where it failed."""
    heard, before = Listening(seconds), (os.getcwd(), sys.path[:], sys.argv[:], set(sys.modules))
    os.chdir(folder)
    sys.path.insert(0, folder)
    sys.argv = [run[-1]]
    try:
        with contextlib.redirect_stdout(heard):
            if run[0] == "-m":
                runpy.run_module(run[1], run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(run[0], run_name="__main__")
    except Enough:
        pass
    except Exception as fault:
        print(f"{folder}: {fault!r}", file=sys.stderr)
        return []
    finally:
        os.chdir(before[0])
        sys.path[:], sys.argv[:] = before[1], before[2]
        for name in set(sys.modules) - before[3]:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(folder):
                del sys.modules[name]
        afresh()
    return heard.rates


def afresh() -> None:
    """PyTorch as it begins."""
    import torch

    torch.set_float32_matmul_precision("highest")
    torch.set_grad_enabled(True)
    gc.enable()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def speed(rates: list[float]) -> float:
    """The upper quartile of the epochs: what else runs on the machine only ever slows one."""
    return statistics.quantiles([*rates, *rates], n=4, method="inclusive")[2] if rates else 0.0


def in_child() -> None:
    """Measure the arms in turn; one line of JSON for each round: rates by arm."""
    asked = json.loads(sys.stdin.readline())
    left, out = list(asked["arms"]), os.fdopen(os.dup(1), "w")
    for turn in range(asked["rounds"]):
        rates = {}
        for name in left if turn % 2 == 0 else left[::-1]:
            rates[name] = one_turn(asked["arms"][name], asked["run"], asked["seconds"])
        print(json.dumps(rates), file=out, flush=True)
        best = max(map(speed, rates.values()))
        keep = {AS_IS, asked["stands"]} | {name for name in left if speed(rates[name]) > HOPELESS * best}
        left = [name for name in left if name in keep]


def measured(folders: dict[str, Path], stands: str, run: list[str], seconds: float, rounds: int) -> list[dict]:
    """The rates of each round."""
    asked = dict(arms={n: str(f) for n, f in folders.items()}, stands=stands, run=run, seconds=seconds, rounds=rounds)
    done = subprocess.run(
        [sys.executable, __file__, "--child"],
        input=json.dumps(asked) + "\n",
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def gains(turns: list[dict], against: str) -> dict[str, float]:
    """Each arm's speed over all rounds, over that of ``against``."""
    found: dict[str, list[float]] = {}
    for rates in turns:
        for name, some in rates.items():
            found.setdefault(name, []).extend(some)
    base = speed(found.get(against, []))
    return {name: speed(some) / base for name, some in found.items() if some} if base else {}


# One script


def without_threads(result: OwnResult) -> OwnResult:
    """A run whose threads are not seen to be few: we set them, so that the bench holds on a busy machine too."""
    here = result.conditions
    return msgspec.structs.replace(result, conditions=here and msgspec.structs.replace(here, threads=here.cpus))


def judge(name: str, kind: str, asked: argparse.Namespace) -> dict:
    """Run, verdict, all changes, regret."""
    script, began = load(name), time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        origin = lay_out(script, Path(place) / "theirs")
        result = launch.run([sys.executable, *script.run], budget_seconds=asked.budget, cwd=origin)
        if asked.keep:
            (asked.keep / f"own-{name}.json").write_bytes(envelope(result, result.origin, ()))
        made = verdict(without_threads(result))
        took = time.monotonic() - began
        _say(name, script, made, result, took)
        folders, stands = arms(script, kind, made, Path(place), origin)
        turns = measured(folders, stands, script.run, asked.seconds, asked.rounds)
    over = gains(turns, AS_IS)
    against = gains(turns, stands)
    cure = next((row.remedies for row in script.change), [])
    named = bool(made.pick and made.pick.remedy in cure)
    meant = alters("/".join(cure)) or (made.pick is not None and alters(made.pick.remedy))
    altering = {arm for arm in against if arm[0].isdigit() and alters(arm)}
    fair = {arm: gain for arm, gain in against.items() if meant or arm not in altering}
    best = max(fair, key=fair.__getitem__, default=stands)
    regret, of_all = (max([1.0, *some.values()]) if some else float("nan") for some in (fair, against))
    good = regret <= GOAL and made.pick is not None if script.planted else made.pick is None
    for arm, gain in sorted(over.items(), key=lambda item: -item[1]):
        print(f"    {gain:6.2f}x  {arm}{'   <- ' + PICK if arm == stands else ''}")
    more = f" ({of_all:.2f} with changes to the training)" if of_all > regret else ""
    took = time.monotonic() - began
    more += "" if named or not script.planted else f", not the planted one ({'/'.join(cure)})"
    print(f"{name}: regret {regret:.2f}{more} {'ok' if good else 'ABOVE THE GOAL'}, {took:.0f} s", flush=True)
    return {
        "name": name, "style": script.style, "planted": script.planted, "limit": made.limit,
        "pick": made.pick.remedy if made.pick else None, "certain": bool(made.pick and made.pick.certain),
        "expected": made.pick.expected if made.pick else None, "at_most": made.pick.at_most if made.pick else None,
        "measured": over.get(stands), "best": best, "regret": regret, "regret_of_all": of_all, "good": good,
        "gains": over, "named": named,
    }  # fmt: skip


def _say(name: str, script: Script, made: Verdict, result, took: float) -> None:
    print(f"{name} ({script.style}): {script.planted or 'nothing planted'}; {result.ended}, {took:.0f} s")
    print(f"    {made.limit}: {made.reason}")
    if made.pick:
        where = f"{Path(made.pick.place.file).name}:{made.pick.place.line}" if made.pick.place else "no place"
        words = "diff" if made.pick.certain else "words"
        bound = f"expected {made.pick.expected:.2f}x <= {made.pick.at_most:.2f}x"
        print(f"    pick {made.pick.remedy} ({words}, {where}), {bound}: {made.pick.reason}")
    for one in result.hot[:6]:
        at = " < ".join(f"{Path(p.file).name}:{p.line}" for p in one.places[:3])
        print(f"        {one.share:.0%} {'loader ' if one.in_loader else ''}{at}  {one.places[0].code[:60]}")
    print(f"    others: {', '.join(made.others)}; {' '.join(result.not_seen)}", flush=True)


def main() -> int:
    """Judge each script that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--part", default="1/1", help="2/3: the second third of the scripts")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of the run under the hooks")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each arm in each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", type=Path, help="folder for the runs' results")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        in_child()
        return 0
    kind = "cpu" if default_device() == "cpu" else "card"
    if kind == "cpu":
        os.environ["OMP_NUM_THREADS"] = "1"  # one thread in every arm
    part, parts = map(int, asked.part.split("/"))
    chosen = asked.only or names(kind)[part - 1 :: parts]
    found = []
    for name in chosen:
        found.append(judge(name, kind, asked))
        if asked.json:
            asked.json.write_text(json.dumps(found, indent=1))
    planted = [one for one in found if one["planted"]]
    good, clean = sum(one["good"] for one in planted), [one for one in found if not one["planted"]]
    alone = sum(one["good"] for one in clean)
    print(f"{good} of {len(planted)} planted within {GOAL}; {alone} of {len(clean)} clean left alone")
    return int(good < len(planted) or not all(one["good"] for one in clean))


if __name__ == "__main__":
    sys.exit(main())

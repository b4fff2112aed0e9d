"""The house has floors: an import never runs upward, rooms form no circle, and every room has its floor."""

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = "gpuworkshop"
SOURCE = Path(__file__).parents[1] / PACKAGE

FLOORS = (  # from the ground
    {"__init__"},
    {"report", "timing", "child", "guard", "state", "numbers", "figures"},
    {"machine", "cluster"},
    {"workloads"},
    {"instruments"},
    {"loop"},
    {"own"},
    {"course"},
    {"cli", "__main__"},
)
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}


def imports(source: str, module: str) -> set[str]:
    """Full names of all that `module` imports, lazily too, or names as a module in a string of its own.

    Such a string is how one module starts another in a child process. Of `from a import b`, both a and a.b
    count. The module of a package is called `package.__init__`.
    """
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*module.split(".")[: -node.level], base]).rstrip(".")
            found.update({base, *(f"{base}.{alias.name}" for alias in node.names)})
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if re.fullmatch(rf"{PACKAGE}(\.\w+)+(:\w+)?", node.value):
                found.add(node.value.partition(":")[0])
    return found


def rooms_used(folder: Path) -> dict[str, set[str]]:
    """Each room (top-level module or folder) of the package in `folder`, and the other rooms it imports."""
    rooms = {path.stem for path in folder.iterdir() if path.suffix == ".py" or path.is_dir()}
    rooms.discard("__pycache__")
    used: dict[str, set[str]] = {room: set() for room in rooms}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        names = imports(path.read_text(encoding="utf-8"), ".".join([PACKAGE, *parts]))
        used[parts[0]] |= {name.split(".")[1] for name in names if name.startswith(f"{PACKAGE}.")} & rooms
    return {room: targets - {room} for room, targets in used.items()}


def problems(used: dict[str, set[str]]) -> list[str]:
    """Every broken rule, one line each; empty when the house stands."""
    lines = [f"{room}: no floor is known for it" for room in sorted(used.keys() - FLOOR.keys())]
    for room, targets in sorted(used.items()):
        floor = FLOOR.get(room, len(FLOORS))
        upward = sorted(other for other in targets if FLOOR.get(other, floor) > floor)
        lines += [f"{room} imports {other}, upward" for other in upward]
    try:
        TopologicalSorter(used).prepare()
    except CycleError as error:
        lines.append("circle: " + " -> ".join(error.args[1]))
    return lines


def test_the_house_stands() -> None:
    used = rooms_used(SOURCE)
    assert used["cli"], "no import was found: the parser sees nothing"
    assert problems(used) == []


def house(folder: Path, **files: str) -> Path:
    """Write a small package; `loop__climb="..."` is loop/climb.py."""
    for name, text in {"__init__": "", **files}.items():
        path = folder / f"{name if name.startswith('__') else name.replace('__', '/', 1)}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


UPWARD = {
    "absolute": "import gpuworkshop.loop.climb",
    "from the package": "from gpuworkshop import loop",
    "from the module": "from gpuworkshop.loop.climb import run",
    "relative": "from .loop import climb",
    "lazy": "def f():\n    from gpuworkshop.loop import climb",
    "for types only": "import typing\nif typing.TYPE_CHECKING:\n    from gpuworkshop.loop import climb",
    "as a child process": 'COMMAND = ["python", "-m", "gpuworkshop.loop.climb"]',
}


@pytest.mark.parametrize("text", UPWARD.values(), ids=UPWARD.keys())
def test_an_import_upward_is_found(tmp_path: Path, text: str) -> None:
    tree = house(tmp_path, loop__climb="", timing=text)
    assert problems(rooms_used(tree)) == ["timing imports loop, upward"]


def test_a_relative_import_in_a_package_is_resolved(tmp_path: Path) -> None:
    tree = house(tmp_path, loop__climb="", figures____init__="from ..loop import climb\nfrom . import strip")
    assert problems(rooms_used(tree)) == ["figures imports loop, upward"]


def test_a_circle_on_one_floor_is_found(tmp_path: Path) -> None:
    tree = house(tmp_path, report="import gpuworkshop.timing", timing="from gpuworkshop.report import Report")
    (line,) = problems(rooms_used(tree))
    assert line.startswith("circle: ")


def test_an_unknown_room_is_found(tmp_path: Path) -> None:
    tree = house(tmp_path, report="", attic__box="from gpuworkshop import report", shed="")
    assert problems(rooms_used(tree)) == ["attic: no floor is known for it", "shed: no floor is known for it"]


def test_the_package_itself_imports_no_room(tmp_path: Path) -> None:
    tree = house(tmp_path, __init__="from gpuworkshop.report import Report", report="")
    assert problems(rooms_used(tree)) == ["__init__ imports report, upward"]


def test_downward_and_sideways_is_allowed(tmp_path: Path) -> None:
    tree = house(
        tmp_path,
        cli="def f():\n    from gpuworkshop.loop import climb",
        loop__climb="from gpuworkshop.report import Report\nfrom . import ledger",
        loop__ledger='"""Text that names gpuworkshop.cli is no import."""\nimport json',
        report="from gpuworkshop import timing",
        timing="from gpuworkshop import __version__",
    )
    used = rooms_used(tree)
    assert problems(used) == []
    assert used["cli"] == {"loop"} and used["loop"] == {"report"}

"""The shape of the package: rooms, layers, sizes, and a light import."""

from __future__ import annotations

import ast
import importlib.util
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src" / "shardwright"
MODULES = sorted(SRC.rglob("*.py"))
ROOMS = sorted({path.parent for path in MODULES})
MIDDLE = ("spec", "ir", "rules", "propagation", "cost", "optimize", "plans", "solve", "lower", "report")
"""Rooms that know no framework."""
HEAVY = ("torch", "jax", "highspy", "rich")


def name(path: Path) -> str:
    return str(path.relative_to(SRC))


def dotted(path: Path) -> str:
    parts = path.relative_to(SRC.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def code_of(path: Path) -> str:
    """The source without comments and strings."""
    kept = (tokenize.NAME, tokenize.OP, tokenize.NUMBER)
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)
    return " ".join(token.string for token in tokens if token.type in kept)


def test_there_is_something_to_check() -> None:
    assert len(MODULES) > 20
    assert {"spec", "ir", "rules", "propagation"} <= {room.name for room in ROOMS}


# -- sizes and docstrings -------------------------------------------------------------------------------


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_no_module_over_500_lines(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 500


@pytest.mark.parametrize("path", [path for path in MODULES if path.name != "__init__.py"], ids=name)
def test_every_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_every_room_explains_itself(room: Path) -> None:
    """Idea, component map, how to extend: that takes more than a line.  The house and rooms in rooms may be brief."""
    text = ast.get_docstring(ast.parse((room / "__init__.py").read_text(encoding="utf-8"))) or ""
    assert len(text.split()) >= (40 if room.parent == SRC else 20)


@pytest.mark.parametrize("room", [room for room in ROOMS if room != SRC], ids=lambda room: room.name)
def test_the_map_of_a_room_is_complete(room: Path) -> None:
    """Every module of a room is named in its docstring."""
    text = ast.get_docstring(ast.parse((room / "__init__.py").read_text(encoding="utf-8"))) or ""
    modules = {path.stem for path in room.glob("*.py")} - {"__init__"}
    assert {module for module in modules if module not in text} == set()


# -- layers ---------------------------------------------------------------------------------------------


def contracts() -> list[dict[str, object]]:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found: list[dict[str, object]] = config["tool"]["importlinter"]["contracts"]
    return found


def test_the_layers_are_under_contract() -> None:
    layers = next(contract for contract in contracts() if contract["type"] == "layers")
    assert layers["containers"] == ["shardwright"]
    assert layers["exhaustive"] is True


def test_the_middle_is_under_contract() -> None:
    forbidden = next(contract for contract in contracts() if contract["type"] == "forbidden")
    present = {f"shardwright.{room}" for room in MIDDLE if (SRC / room).exists() or (SRC / f"{room}.py").exists()}
    assert present <= set(forbidden["source_modules"])  # type: ignore[call-overload]
    assert set(HEAVY) <= set(forbidden["forbidden_modules"])  # type: ignore[call-overload]


def test_the_contracts_are_kept() -> None:
    pytest.importorskip("importlinter")
    code = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


# -- the import graph -----------------------------------------------------------------------------------

TOP = sorted(room for room in ROOMS if room.parent == SRC)


def imports_in(text: str, package: str, modules: Collection[str]) -> set[str]:
    """The modules of ours that a file of this package imports: at the top, in functions, or for their types only."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                found.add(f"{base}.{alias.name}" if f"{base}.{alias.name}" in modules else base)
    return found & set(modules)


def circles(edges: Mapping[str, set[str]]) -> list[set[str]]:
    """Files that reach each other: of each such set, all of them."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        todo = [start]
        while todo:
            new = edges.get(todo.pop(), set()) - seen
            seen |= new
            todo += new
        return seen

    reach = {file: reached(file) for file in edges}
    found: list[set[str]] = []
    for file in sorted(edges):
        if file in reach[file] and not any(file in circle for circle in found):
            found.append({other for other in reach[file] if file in reach.get(other, ())})
    return found


@pytest.mark.parametrize("room", TOP, ids=lambda room: room.name)
def test_no_file_of_a_room_imports_in_a_circle(room: Path) -> None:
    files = {dotted(path): path for path in room.rglob("*.py")}
    edges = {}
    for file, path in files.items():
        package = file if path.name == "__init__.py" else file.rpartition(".")[0]
        edges[file] = imports_in(path.read_text(encoding="utf-8"), package, files) - {file}
    assert circles(edges) == []


def test_a_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": set()}) == [{"a", "b", "c"}]
    assert circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_every_kind_of_import_counts() -> None:
    modules = {"p.q.a", "p.q.b", "p.q.c", "p.d", "p.q"}
    text = """
        from . import a
        from ..d import name
        if TYPE_CHECKING:
            from .b import Type
        def function():
            from p.q.c import other
            import numpy
    """
    assert imports_in("if True:" + text, "p.q", modules) == {"p.q.a", "p.d", "p.q.b", "p.q.c"}
    assert imports_in("from . import name_of_the_package", "p.q", modules) == {"p.q"}


def shadows_in(init: str, modules: Collection[str]) -> set[str]:
    """The modules of a package whose names its ``__init__`` binds to something else."""
    found: set[str] = set()
    for node in ast.parse(init).body:
        if isinstance(node, ast.ImportFrom):
            beside = node.level == 1 and node.module is None
            names = [(alias.asname or alias.name, alias.name) for alias in node.names]
            found |= {bound for bound, name in names if not (beside and bound == name)}
        elif isinstance(node, ast.Import):
            found |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found & set(modules)


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_no_module_is_shadowed(room: Path) -> None:
    """``package.module`` is the module, whatever was imported before."""
    modules = {path.stem for path in room.glob("*.py")} | {path.parent.name for path in room.glob("*/__init__.py")}
    found = shadows_in((room / "__init__.py").read_text(encoding="utf-8"), modules)
    assert {f"{name(room)}/{module}" for module in found} == set()


def test_a_shadow_is_found() -> None:
    init = "from . import whole, part as other\nfrom .run import run, part\ndef walk(): ...\nlog = 1"
    assert shadows_in(init, {"whole", "other", "run", "walk", "log", "untouched"}) == {"other", "run", "walk", "log"}


def turns_collector_off(code: str) -> bool:
    return any(f"{word} (" in code for word in ("gc . disable", "gc . freeze")) or "from gc import" in code


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_nobody_turns_the_garbage_collector_off(path: Path) -> None:
    """It is the whole process's: a library that turns it off does so to the user's other threads, too."""
    assert not turns_collector_off(code_of(path))


def test_turning_the_collector_off_is_found(tmp_path: Path) -> None:
    for text in ("import gc\ngc.disable()\n", "from gc import disable\ndisable()\n"):
        (tmp_path / "a.py").write_text(text, encoding="utf-8")
        assert turns_collector_off(code_of(tmp_path / "a.py"))
    (tmp_path / "a.py").write_text("import gc\ngc.collect()  # not gc.disable()\n", encoding="utf-8")
    assert not turns_collector_off(code_of(tmp_path / "a.py"))


def taken_from_torch(text: str) -> Iterator[str]:
    """Whatever a file takes from PyTorch, but for operators: ``torch.ops.aten._to_copy`` is public."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if f"{alias.name}.".startswith("torch."))
        elif isinstance(node, ast.ImportFrom) and not node.level and f"{node.module}.".startswith("torch."):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute):
            chain = ast.unparse(node)
            if re.fullmatch(r"torch(\.\w+)+", chain) and not chain.startswith("torch.ops."):
                yield chain


def private_torch(text: str) -> set[str]:
    return {taken for taken in taken_from_torch(text) if re.search(r"\._(?!_)", taken)}


TAKES_PRIVATE = ("private.py", "dtensor_rules.py", "dtensor_checks.py")
"""A package's own; and two that are copied beside emitted code, where nothing of ours can be imported."""


@pytest.mark.parametrize("path", [path for path in MODULES if path.name not in TAKES_PRIVATE], ids=name)
def test_private_parts_of_torch_are_taken_in_one_file_a_package(path: Path) -> None:
    assert private_torch(path.read_text(encoding="utf-8")) == set()


def test_private_parts_of_torch_are_found() -> None:
    text = """
        import torch.distributed._functional_collectives
        from torch.utils import _pytree
        from torch._C import Graph
        torch._C.fork()
        torch.ops.aten._to_copy(torch.nn.Linear.__init__, self._C, torch.float32)
    """
    assert private_torch("if True:" + text) == {
        "torch.distributed._functional_collectives",
        "torch.utils._pytree",
        "torch._C.Graph",
        "torch._C.fork",
        "torch._C",
    }


# -- imports --------------------------------------------------------------------------------------------


def imported_by(*modules: str) -> set[str]:
    code = f"import sys, {', '.join(modules)}; print(*sorted({{m.split('.')[0] for m in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("module", ["shardwright", "shardwright.spec", "shardwright.ir", "shardwright.propagation"])
def test_importing_is_light(module: str) -> None:
    assert imported_by(module).isdisjoint(HEAVY)


def test_importing_all_of_the_middle_is_light() -> None:
    rooms = [path for path in MODULES if path.relative_to(SRC).parts[0].removesuffix(".py") in MIDDLE]
    assert imported_by(*map(dotted, rooms)).isdisjoint(HEAVY)


def test_the_light_import_test_bites() -> None:
    pytest.importorskip("rich")
    assert not imported_by("shardwright", "rich").isdisjoint(HEAVY)


# -- one page -------------------------------------------------------------------------------------------


def test_the_page_of_the_house_has_the_rooms_in_order() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = text[text.index("## The rooms") : text.index("## Adding a thing")]
    rows = [
        set(re.findall(r"`([a-z]+)`", line.split("|")[1])) for line in section.splitlines() if line.startswith("| `")
    ]
    layers = next(contract for contract in contracts() if contract["type"] == "layers")["layers"]
    assert rows == [set(layer.split(" | ")) for layer in reversed(layers)]  # type: ignore[call-overload]


def test_questions_are_answered_by_opening_three_files_at_most() -> None:
    """Those files are there, and the names that follow one are in it."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = text[text.index("## Where to look") : text.index("## An engine")]
    rows = [line.split("|")[2] for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == 5
    for row in rows:
        files = re.findall(r"`([a-z0-9_/]+\.(?:py|toml))`", row)
        assert 1 <= len(files) <= 3
        for file, word in re.findall(r"`([a-z0-9_/]+\.py)`, `(\w+)`", row):
            assert word in (SRC / file).read_text(encoding="utf-8"), f"{word} is not in {file}"
        assert [file for file in files if not (SRC / file).exists()] == []


@pytest.mark.parametrize("room", ROOMS, ids=name)
def test_a_floor_has_few_files(room: Path) -> None:
    assert len([path for path in room.glob("*.py") if path.name != "__init__.py"]) <= 16


@pytest.mark.parametrize("program", ["numpy_program", "torch_program"])
def test_a_weight_meets_few_files_and_one_form_of_each(program: str) -> None:
    """From `sw.plan` to its collective; see the script for what counts as meeting."""
    pytest.importorskip("torch")
    spec = importlib.util.spec_from_file_location("walk", ROOT / "tools" / "walk.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = module.walk(getattr(module, program))
    assert 15 < len(found.met) <= 50
    assert found.forms == {"api.artefact.Plan", "plans.plan.Plan", "plans.asked.Asked"}


# -- what does not belong -------------------------------------------------------------------------------


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_no_eval_exec_or_pickle(path: Path) -> None:
    code = f" {code_of(path)} "
    assert " eval (" not in code.replace(". eval (", "")
    assert " exec (" not in code.replace(". exec (", "")
    # One file reads what PyTorch wrote so, through a list of what may stand in it.
    assert "pickle" not in code or name(path) == "run/torch/checkpoints/allowed.py"


def test_no_utils() -> None:
    assert [name(path) for path in MODULES if path.stem in ("utils", "util", "helpers", "misc")] == []


@pytest.mark.parametrize("room", ["cost", "lower"])
def test_the_middle_names_no_op(room: str) -> None:
    """Costing and lowering read records; a comparison with an op's name would be a special case."""
    for path in (SRC / room).rglob("*.py"):
        found = re.findall(r"\.op\s*(?:==|!=|in|not in)\s*[\"({\[].*", path.read_text())
        assert not found, f"{path.name}: {found[0]}"

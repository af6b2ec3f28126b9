"""Emitted strategies register and pass their emitted tests; false ones do not."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import discover_statements as made
from shardwright.discover.emit.files import shared_texts
from shardwright.discover.emit.public import emit_public
from shardwright.discover.emit.source import code_of, emitted_rules, literal, local_name, normal_dims
from shardwright.discover.emit.strategy import Origin, emit_strategy
from shardwright.discover.emit.tests import emit_tests
from shardwright.discover.emit.upstream import emit_upstream
from shardwright.discover.operator import Operator, Sample, Slot
from shardwright.discover.placement import R
from shardwright.discover.statement import Rule, Statement
from shardwright.errors import DiscoverError


def cross() -> Statement:
    return made.cross(made.overload("aten.linalg_cross.default"))


TRUE = {
    "cross": (cross, 3),
    "searchsorted": (made.searchsorted, 6),
    "in_place": (made.in_place, 3),
    "topk": (made.topk, 1),
    "summed": (made.summed, 3),
    "concatenated": (made.concatenated, 3),
    "custom": (made.custom, 4),
    "compared": (made.compared, 1),
    "averaged": (made.averaged, 1),
    "multiplied": (made.multiplied, 2),
    "matrices": (made.matrices, 4),
}

CLEAN_EXIT = """\
def pytest_sessionfinish(session):
    import sys

    import torch.distributed as dist

    assert not dist.is_initialized(), "a process group is left"
    assert "expecttest" not in sys.modules, "the tests need expecttest"
"""

OVERRIDES = """\
from summed_strategy import OP, sum_dim_IntList_strategy
from torch.distributed.tensor import DTensor


def test_the_emitted_strategy_is_the_only_one():
    propagator = DTensor._op_dispatcher.sharding_propagator
    assert OP not in propagator.op_strategy_funcs
    assert OP not in propagator.op_to_schema_info
    assert propagator.op_single_dim_strategy_funcs[OP].func is sum_dim_IntList_strategy
    assert propagator.op_to_schema_info_for_single_dim_strategy[OP].static_argnum == 1
"""


def write(folder: Path, name: str, statement: Statement, registered: Statement | None = None) -> None:
    origin = Origin(("custom_ops",), (".",)) if name == "custom" else Origin()
    (folder / f"{name}_strategy.py").write_text(emit_strategy(registered or statement, origin))
    for shared, text in shared_texts().items():
        (folder / shared).write_text(text)
    (folder / f"test_{name}.py").write_text(emit_tests(statement, f"{name}_strategy"))


def run(folder: Path, *files: str) -> dict[str, str]:
    """Each test of a folder, ``file::test``, with how it failed; empty if it passed."""
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "--junitxml=out.xml"]
    env = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # other plugins' warnings are none of ours
    done = subprocess.run([*command, *files], cwd=folder, capture_output=True, text=True, timeout=300, env=env)
    found = {}
    assert (folder / "out.xml").exists(), done.stdout + done.stderr
    for case in ElementTree.parse(folder / "out.xml").iter("testcase"):
        failures = [bad.get("message") or "failed" for bad in case if bad.tag in ("failure", "error")]
        found[f"{(case.get('classname') or '').split('.')[0]}::{case.get('name')}"] = " ".join(failures)
    assert done.returncode == int(any(found.values())), done.stdout + done.stderr
    return found


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """All emitted files in one process: they must not disturb each other."""
    folder = tmp_path_factory.mktemp("emitted")
    (folder / "conftest.py").write_text(CLEAN_EXIT)
    (folder / "custom_ops.py").write_text(made.CUSTOM)
    (folder / "test_overrides.py").write_text(OVERRIDES)
    for name, (make, _) in TRUE.items():
        write(folder, name, make())
    for make in (made.false_shard, made.false_partial):
        write(folder, make.__name__, make())
    sort = made.not_registered()
    write(folder, "not_registered", sort, replace(sort, rules=sort.rules[:1]))
    return run(folder)


@pytest.mark.parametrize("name", TRUE)
def test_emitted_tests_pass(name: str, outcomes: dict[str, str]) -> None:
    mine = {test: failure for test, failure in outcomes.items() if test.startswith(f"test_{name}::")}
    assert len(mine) == TRUE[name][1]
    assert not any(mine.values()), mine


def test_emitted_strategy_replaces_what_torch_has(outcomes: dict[str, str]) -> None:
    assert outcomes["test_overrides::test_the_emitted_strategy_is_the_only_one"] == ""


def test_false_rules_fail(outcomes: dict[str, str]) -> None:
    for test in (
        "test_false_shard::test_s_d_to_s_d",
        "test_false_partial::test_p_sum_p_sum_to_p_sum",
        "test_false_partial::test_p_max_r_to_p_max",
    ):
        assert "not close" in outcomes[test], test


def test_communication_fails(outcomes: dict[str, str]) -> None:
    assert "1 != 0" in outcomes["test_not_registered::test_s_d_to_s_d_s_d"]


HOSTILE = '"""' + "\\" + 'x\nimport os\n"'


def test_hostile_names_stay_text() -> None:
    """What a user called things ends no docstring, and hides no variable of the emitted function."""
    statement = made.cross(made.overload("aten.linalg_cross.default"))
    named = replace(statement.operator, name=f"own{HOSTILE}")
    samples = tuple(replace(sample, label=HOSTILE) for sample in statement.samples)
    nasty = replace(statement, operator=named, samples=samples)
    origin = Origin((f"my-op{HOSTILE}",), (f"a folder{HOSTILE}",))
    for text in (emit_strategy(nasty, origin), emit_public(nasty, origin), emit_tests(nasty, "linalg_cross_strategy")):
        tree = ast.parse(text)
        assert not any(isinstance(node, ast.Import) and node.names[0].name == "os" for node in ast.walk(tree))
    assert f"importlib.import_module({f'my-op{HOSTILE}'!r})" in emit_strategy(nasty, origin)
    assert [local_name(name) for name in ("rows", "tensors", "max", "from", "dim")] == [
        "rows_", "tensors_", "max_", "from_", "dim",
    ]  # fmt: skip


@pytest.mark.long
def test_own_operators_are_imported_from_anywhere(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "my-ops.py").write_text(made.CUSTOM.replace("shardwright_tests", "shardwright_anywhere"))
    call = "scaled_sum(f32[8, 6], f32[8, 6], 2.0)"
    asked = ["discover", "--quick", "--emit", "rules", "--call", call, "mine/my-ops.py:scaled_sum"]
    command = [sys.executable, "-c", "from shardwright.cli import main; main()", *asked]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    (module,) = (path for path in (tmp_path / "rules").glob("*_strategy.py") if not path.name.startswith("test_"))
    loaded = f"""
import importlib.util
spec = importlib.util.spec_from_file_location("anything", {str(module)!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(module.OP)
"""
    done = subprocess.run([sys.executable, "-c", loaded], cwd="/", capture_output=True, text=True)
    assert done.stdout == "shardwright_anywhere.scaled_sum.default\n", done.stderr


@pytest.mark.long
def test_a_contribution_passes_its_test(tmp_path: Path) -> None:
    texts = emit_upstream([cross()])
    assert set(texts) == {"linalg_cross_upstream.py", "test_linalg_cross_upstream.py", "linalg_cross_pull_request.md"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    assert "- `aten.linalg_cross.out` (out)" in texts["linalg_cross_pull_request.md"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_linalg_cross_upstream.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_spawned_tests_pass(tmp_path: Path) -> None:
    write(tmp_path, "topk", made.topk())
    source = emit_tests(made.topk(), "topk_strategy", style="spawned")
    (tmp_path / "test_topk.py").write_text(source)
    assert "@with_comms" in source
    # The base class is PyTorch's own, warnings and all.
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_topk.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_sources_are_tidy(tmp_path: Path) -> None:
    for name, text in {**shared_texts(), **emit_upstream([cross(), made.in_place()])}.items():
        (tmp_path / name).write_text(text)
    for name, (make, _) in TRUE.items():
        statement = make()
        (tmp_path / f"{name}_strategy.py").write_text(emit_strategy(statement))
        (tmp_path / f"test_{name}.py").write_text(emit_tests(statement, f"{name}_strategy"))
        public = emit_public(statement) if name != "custom" else ""
        (tmp_path / f"{name}_public.py").write_text(public)
        (tmp_path / f"test_{name}_spawned.py").write_text(emit_tests(statement, f"{name}_strategy", style="spawned"))
    for file in tmp_path.glob("*.py"):
        ast.parse(file.read_text())
        for line in file.read_text().splitlines():
            assert len(line) <= 120
            assert line == line.rstrip()
    ruff = Path(sys.executable).with_name("ruff")
    if ruff.exists():
        for command in (["check", "--select=E,F,W,I,B"], ["format", "--check"]):
            command = [str(ruff), *command, "--isolated", "--no-cache", "--line-length=120"]
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout


# ---- what is written -----------------------------------------------------------------------------------------------


def test_schema_info_covers_arguments() -> None:
    """What rules read, and what the result's shape depends on: a cached entry holds that, too."""
    assert 'RuntimeSchemaInfo(static_kwargkey=["dim"])' in emit_strategy(cross())
    assert "RuntimeSchemaInfo(static_argnum=1, needs_pytree=True)" in emit_strategy(made.concatenated())
    assert 'RuntimeSchemaInfo(static_argnum=1, static_kwargkey=["dtype"])' in emit_strategy(made.summed())
    assert "RuntimeSchemaInfo(static_argnum=1)" in emit_strategy(made.topk())


def test_rows_are_guarded_by_the_tensors_that_a_call_has() -> None:
    source = emit_strategy(made.searchsorted())
    assert 'if tensor_names(op, args_schema, kwargs_schema) == ["sorted_sequence", "self"]:' in source
    assert 'if tensor_names(op, args_schema, kwargs_schema) == ["sorted_sequence", "self", "sorter"]:' in source
    assert "if len(tensors) == 3:" in emit_strategy(made.concatenated())
    assert "tensor_names" not in emit_strategy(cross())


def test_dims_that_do_not_exist_are_no_rows() -> None:
    """`S(d), S(d-1)` says nothing of d = 0."""
    assert "return fitting(rows, tensors)" in emit_strategy(made.matrices())
    assert "fitting" not in emit_strategy(cross())


def test_empty_shards_only_where_every_rule_holds_on_them() -> None:
    assert "allow_uneven_sharding=True" in emit_strategy(cross())
    assert "allow_uneven_sharding=False" in emit_strategy(made.multiplied())


def test_reasons_for_leaving_out() -> None:
    def left_out(statement: Statement) -> list[tuple[str, str]]:
        return [(str(out.rule), out.reason) for out in emitted_rules(statement)[1]]

    assert left_out(made.in_place()) == [
        ("R, P(max) -> P(max) WHEN alpha > 0", "it would change how self, which is written to, lies")
    ]
    assert left_out(made.compared()) == [
        ("P(max) -> P(max)", "a truth value cannot be pending"),
        ("R -> P(max)", "with all inputs replicated DTensor replicates the outputs"),
        ("S(d) -> S(d)", "the inputs of an earlier rule: DTensor takes the first"),
    ]
    [(rule, reason)] = left_out(made.averaged())
    assert rule == "S(d) -> P(avg) WHEN d in dim"
    assert reason.startswith("it holds on even shards only")
    source = emit_strategy(made.averaged())
    assert "Left out:" in source
    assert 'Partial("avg"), _ShardingPlaceholder(d)' not in source
    assert 'Partial("avg"), _ShardingPlaceholder(d)' in emit_strategy(made.averaged(), even_only=True)
    assert "Shard(0)" in emit_tests(made.averaged(), "strategy", even_only=True)


def test_nothing_found_is_still_a_file() -> None:
    statement = replace(cross(), rules=(Rule((R, R), (R,)),))
    source, tests = emit_strategy(statement), emit_tests(statement, "strategy")
    assert "return []" in source
    assert "test_registered" in tests
    compile(source, "strategy.py", "exec")
    compile(tests, "test_strategy.py", "exec")


def test_rules_without_a_sample_are_named() -> None:
    tests = emit_tests(replace(cross(), samples=()), "strategy")
    assert "# Not tested, no sample fits: S(d), S(d) -> S(d) WHEN d != dim" in tests


def test_what_cannot_be_emitted_says_so() -> None:
    statement = cross()
    plain = Operator("numpy.cross", np.cross, statement.operator.library)
    with pytest.raises(DiscoverError, match="no operator overload"):
        emit_strategy(replace(statement, operator=plain))
    split = made.operator("torch.split", "aten.split.Tensor")
    pieces = Statement(split, (Rule((R,), (R, R)),), samples=(Sample((Slot(0), 2), {}, (np.zeros(4),), ("data",)),))
    with pytest.raises(DiscoverError, match="returns a list of tensors"):
        emit_strategy(pieces)
    with pytest.raises(ValueError, match="'local' or 'spawned'"):
        emit_tests(statement, "strategy", style="threads")  # type: ignore[arg-type]


def test_text_of_a_statement_cannot_break_the_file() -> None:
    statement = cross()
    nasty = replace(statement.rules[1], justification='ends """ here \\ and\ngoes on ' + "very " * 60)
    source = emit_strategy(replace(statement, rules=(nasty,)))
    compile(source, "strategy.py", "exec")
    assert max(map(len, source.splitlines())) <= 120


def test_tensors_out_of_order_are_put_right() -> None:
    """Rules count tensors as samples do; rows stand in the order of the schema."""
    statement = cross()
    sample = replace(statement.samples[0], args=(Slot(1), Slot(0)))
    first, second = made.normal(8, 3), made.normal(8, 3)
    source = emit_strategy(replace(statement, samples=(sample.with_tensors((first, second)),)))
    assert "ordered = [tensors[i] for i in (1, 0)] if len(tensors) == 2 else tensors" in source
    # P(sum), R: the pending tensor is the first of the sample, which is the second argument.
    assert 'rows.append([Partial("sum"), Replicate(), Partial("sum")])' in source.split("# P(sum), R -> P(sum)")[1][:80]


def test_values_are_written_as_python() -> None:
    torch = pytest.importorskip("torch")
    assert literal([1, (2,), None, "a", True, float("-inf"), np.float64(0.5)]) == (
        '[1, (2,), None, "a", True, float("-inf"), 0.5]'
    )
    assert literal((torch.float32, torch.device("cpu"), torch.contiguous_format)) == (
        '(torch.float32, torch.device("cpu"), torch.contiguous_format)'
    )
    with pytest.raises(ValueError, match="cannot be written"):
        literal(object())


def test_dims_are_counted_from_the_left() -> None:
    assert [normal_dims(v, 3, False) for v in (-1, 0, [0, -1], (), None)] == [2, 0, (0, 2), (0, 1, 2), None]
    assert [normal_dims(v, 3, True) for v in (-1, 0, None)] == [(2,), (0,), (0, 1, 2)]
    assert normal_dims(-1, 0, False) == 0


def test_arguments_named_like_builtins() -> None:
    """`clamp` has arguments `min` and `max`; expressions call `max`, too."""
    uses = made.when("max is given", "max is not None and d < max(rank)", "max")
    assert code_of(uses) == "max_ is not None and d < max(rank)"
    clamp = made.operator("torch.clamp", "aten.clamp.default")
    sample = Sample((Slot(0), None, 0.5), {}, (made.normal(4, 6),), ("data",))
    rule = Rule((made.D,), (made.D,), (uses,), 0)
    statement = Statement(clamp, (rule,), samples=(sample,))
    source = emit_strategy(statement)
    assert "max_ = args_schema[2] if len(args_schema) > 2 else None" in source
    assert "if max_ is not None and d < max(rank):" in source
    assert "self.check(sample_0, [Shard(1)], [Shard(1)])" in emit_tests(statement, "strategy")

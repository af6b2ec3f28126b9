"""Emitted files run through DTensor on fresh calls: no wrong number, and no communication where a rule says none."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from brute_force import Call, Subject  # noqa: E402
from emitted_through_dtensor import bases_of, through_dtensor  # noqa: E402
from shardwright.discover import QUICK, discover  # noqa: E402
from shardwright.discover.emit.dtensor_rules import clear_cache, forget, known_options  # noqa: E402
from shardwright.discover.emit.files import Form, module_name, write_files  # noqa: E402

OWN = """
import torch


@torch.library.custom_op("shardwright_own::scaled_sum", mutates_args=())
def scaled_sum(x: torch.Tensor, y: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
    return x + factor * y


@scaled_sum.register_fake
def _(x, y, factor=2.0):
    return torch.empty_like(torch.broadcast_tensors(x, y)[0])


@torch.library.custom_op("shardwright_own::rowwise", mutates_args=())
def rowwise(x: torch.Tensor, mode: str = "max") -> torch.Tensor:
    if mode == "max":
        return x.amax(-1)
    if mode == "sum":
        return x.sum(-1)
    raise ValueError("mode is 'max' or 'sum'")


@rowwise.register_fake
def _(x, mode="max"):
    return x.new_empty(x.shape[:-1])
"""

SAMPLE = ["own.py:rowwise"]
"""In each run; the others take minutes."""

POINTWISE = "add sub mul div exp where clamp lerp maximum gt masked_fill bucketize"
REDUCTIONS = "sum mean amax prod logsumexp var argmax all linalg.vector_norm cumsum trace"
VIEWS = (
    "transpose permute reshape squeeze unsqueeze Tensor.expand Tensor.unfold select flip roll diagonal cat stack tril"
)
INDEXING = """gather index_select topk sort searchsorted scatter scatter_add scatter_reduce index_add index_copy
    index_fill nn.functional.embedding"""
LINALG = "baddbmm addmm dot linalg.solve_triangular linalg.cross"
NN = """softmax mse_loss huber_loss max_pool2d_with_indices avg_pool2d
    adaptive_avg_pool2d pixel_shuffle interpolate"""
ALL = [
    *(f"torch.{name}" for names in (POINTWISE, REDUCTIONS, VIEWS, INDEXING, LINALG) for name in names.split()),
    *(f"torch.nn.functional.{name}" for name in NN.split()),
    "own.py:scaled_sum",
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where files are emitted to; what they register in this process is taken back."""
    propagator = torch.distributed.tensor.DTensor._op_dispatcher.sharding_propagator
    for table in ("op_to_rules", "op_strategy_funcs", "op_single_dim_strategy_funcs", "op_to_schema_info",
                  "op_to_schema_info_for_single_dim_strategy"):  # fmt: skip
        monkeypatch.setattr(propagator, table, dict(getattr(propagator, table)))
    monkeypatch.setattr(sys, "path", [*sys.path])
    known = set(sys.modules)
    yield tmp_path
    for name in {*sys.modules} - known:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]
    clear_cache()


def check(operator: str, folder: Path, calls: int, form: Form = "file") -> None:
    if operator.startswith("own.py:"):
        own = folder / f"own_{operator.partition(':')[2]}_{form}"
        name = operator.partition(":")[2]
        own.mkdir()
        text = OWN.replace("shardwright_own", own.name)
        (own / f"{own.name}.py").write_text(text)
        operator = f"{own / own.name}.py:{name}"
    statements = [s for s in discover(operator, QUICK) if s.operator.overload and not s.refused]
    assert statements
    modules = [own.name] if ".py:" in operator else []
    write_files(statements, folder / "emitted", modules=modules, form=form)
    sys.path.append(str(folder / "emitted"))
    rows = 0
    for statement in statements:
        emitted = importlib.import_module(module_name(statement))
        subject, bases = bases_of(statement)
        tried = through_dtensor(emitted.OP, subject, bases, "emitted", calls=calls)
        assert not tried.wrong, str(tried)
        assert not tried.talked, str(tried)
        assert not tried.raised, str(tried)
        assert tried.calls == calls
        rows += tried.rows
    assert rows


@pytest.mark.parametrize("operator", SAMPLE)
def test_emitted_rules_give_the_right_numbers_in_dtensor(operator: str, folder: Path) -> None:
    check(operator, folder, calls=4)


@pytest.mark.long
@pytest.mark.parametrize("operator", ALL)
def test_all_emitted_rules_give_the_right_numbers_in_dtensor(operator: str, folder: Path) -> None:
    check(operator, folder, calls=40)


@pytest.mark.long
@pytest.mark.parametrize("operator", ["torch.linalg.cross", "torch.sum", "torch.lerp", "torch.cat", "own.py:rowwise"])
def test_files_of_the_public_style_give_the_right_numbers(operator: str, folder: Path) -> None:
    check(operator, folder, calls=20, form="public")


@pytest.mark.parametrize("name", ["cumsum", "mm"])
def test_the_check_finds_a_false_row(name: str, folder: Path) -> None:
    """A scan cut along its dim; a product that is linear in each factor, but not in both at once."""
    from torch.distributed.tensor import Partial
    from torch.distributed.tensor._ops.single_dim_strategy import _ShardingPlaceholder, register_single_dim_strategy

    x = torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    op = getattr(torch.ops.aten, name).default
    arguments = {"self": x, "dim": 0} if name == "cumsum" else {"self": x, "mat2": x}
    row = [_ShardingPlaceholder(0)] * 2 if name == "cumsum" else [Partial("sum")] * 3
    forget(op)
    register_single_dim_strategy(op, **known_options(allow_uneven_sharding=True))(lambda op, args, kwargs: [row])
    tried = through_dtensor(op, Subject(op, list(arguments), []), [Call(arguments)], "planted", calls=6)
    assert tried.wrong, str(tried)

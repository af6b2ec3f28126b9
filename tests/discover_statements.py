"""Statements written by hand, as discovery would find them, for the tests of reports and emitted code."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from shardwright.discover.operator import REQUIRED, Argument, NumpyLibrary, Operator, Sample, Slot
from shardwright.discover.placement import P, R
from shardwright.discover.statement import Expr, Rule, ShardedOn, Statement

RANDOM = np.random.default_rng(7)


def normal(*shape: int) -> np.ndarray[Any, Any]:
    return RANDOM.standard_normal(shape)


def on(text: str, code: str = "", *uses: str) -> ShardedOn:
    return ShardedOn(Expr(text, code or text, frozenset(uses)))


def when(text: str, code: str = "", *uses: str) -> Expr:
    return Expr(text, code or text, frozenset(uses))


D = on("d")
SUM, MAX, MIN = P("sum"), P("max"), P("min")


class TorchLibrary:
    """Enough of torch for the emitters: they only look at results."""

    name = "torch"

    def tensor(self, array: Any) -> Any:
        import torch

        return torch.from_numpy(np.array(array))

    def array(self, tensor: Any) -> Any:
        return tensor.numpy()

    def is_tensor(self, value: object) -> bool:
        import torch

        return isinstance(value, torch.Tensor)

    def copy(self, tensor: Any) -> Any:
        return tensor.clone()


def overload(text: str) -> Any:
    import torch

    namespace, name, which = text.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), which)


def operator(name: str, text: str, mutates: tuple[str, ...] = ()) -> Operator:
    """An overload with the arguments of its schema."""
    call = overload(text)
    arguments = []
    for a in call._schema.arguments:
        kind = str(a.type)
        default = a.default_value if a.has_default_value() else REQUIRED
        # As schemas are printed: Optional[int] is int?, List[int] is int[].
        short = kind.replace("Optional[", "").replace("List[", "")
        short = short.rstrip("]") + ("[]" if "List" in kind else "") + ("?" if "Optional" in kind else "")
        arguments.append(Argument(a.name, "Tensor" in kind, default, a.kwarg_only, short))
    return Operator(name, call, TorchLibrary(), tuple(arguments), mutates, overload=text)


def cross(call: Any = None) -> Statement:
    """With `call` None the operator is a stand-in, so that reports need no torch."""
    arguments = (
        Argument("input", True, type="Tensor"),
        Argument("other", True, type="Tensor"),
        Argument("dim", False, -1, True, "int"),
    )
    op = Operator(
        "torch.cross",
        call or SimpleNamespace(_schema=None),  # type: ignore[arg-type]
        TorchLibrary() if call else NumpyLibrary(),
        arguments,
        overload="aten.linalg_cross.default",
    )
    samples = tuple(
        Sample((Slot(0), Slot(1)), {"dim": dim}, (normal(*shape), normal(*shape)), ("data", "data"), f"schema {i}")
        for i, (shape, dim) in enumerate([((8, 3), 1), ((3, 4, 3), 0), ((3, 4, 3), -1)])
    )
    return Statement(
        op,
        rules=(
            Rule((R, R), (R,)),
            Rule((SUM, R), (SUM,), justification="linear in input"),
            Rule((R, SUM), (SUM,), justification="linear in other"),
            Rule(
                (D, D),
                (D,),
                (when("d != dim", "d != dim", "dim"),),
                0,
                justification="dim is computed along; slices along other dims are independent",
                counterexamples=("S(1), S(1) -> S(1) with dim=1, shapes [8, 3], [8, 3]: rank 0 fails",),
            ),
        ),
        category="computed along dim",
        dim_parameters=("dim",),
        properties=("bilinear in input, other",),
        factor_lines=(("a k, a k -> a k ; k: whole", "dim=1"),),
        samples=samples,
        swept={"dim": (1, 0, -1)},
        generators=(("make_arange", "Ordered values"), ("make_ones", "All ones")),
        adversarial=(("gen_orthogonal", "Orthogonal vectors: the largest results"),),
        worlds=(2, 3, 4),
        dropped=(("R, P(max) -> P(max)", "only with a constant output"),),
        held_out=(12, 12),
        combinations=720,
    )


def searchsorted() -> Statement:
    op = operator("torch.searchsorted", "aten.searchsorted.Tensor")
    one = np.sort(normal(6))
    many = np.sort(normal(4, 5))
    order = np.argsort(unsorted := normal(6))
    return Statement(
        op,
        rules=(
            Rule((R, R), (R,)),
            Rule((on("last", "rank[0] - 1"), R), (SUM,), justification="positions are counts of smaller elements"),
            Rule((R, MAX), (MAX,), justification="monotone in self"),
            Rule((R, MIN), (MIN,), justification="monotone in self"),
            Rule((R, D), (D,), (when("ndim of input 0 == 1 or d is last", "rank[0] == 1 or d == rank[1] - 1"),), 1),
            Rule((D, D), (D,), (when("ndim > 1", "rank[0] > 1"), when("d != last", "d < rank[0] - 1")), 0),
            Rule((R, D, R), (D,), (when("ndim of input 0 == 1", "rank[0] == 1"),), 1),
        ),
        samples=(
            Sample((Slot(0), Slot(1)), {"right": True}, (one, normal(4, 3)), ("data", "data"), "one row"),
            Sample((Slot(0), Slot(1)), {}, (many, normal(4, 3)), ("data", "data"), "many rows"),
            Sample(
                (Slot(0), Slot(1)),
                {"sorter": Slot(2)},
                (unsorted, normal(5, 2), order),
                ("data", "data", "index"),
                "with a sorter",
            ),
        ),
    )


def in_place() -> Statement:
    """`add_` adds alpha times other; a rule that changes how self lies must not be told to DTensor."""
    op = operator("torch.Tensor.add_", "aten.add_.Tensor", ("self",))
    return Statement(
        op,
        rules=(
            Rule((R, R), (R,)),
            Rule((D, D), (D,), reference=0),
            Rule((SUM, SUM), (SUM,)),
            Rule((R, MAX), (MAX,), (when("alpha > 0", "alpha > 0", "alpha"),)),
            Rule((MAX, R), (MAX,)),
        ),
        samples=tuple(
            Sample((Slot(0), Slot(1)), {"alpha": alpha}, (normal(4, 6), normal(4, 6)), ("data", "data"))
            for alpha in (2, -1)
        ),
    )


def topk() -> Statement:
    op = operator("torch.topk", "aten.topk.default")
    return Statement(
        op,
        rules=(Rule((R,), (R, R)), Rule((D,), (D, D), (when("d != dim", "d != dim", "dim"),), 0)),
        dim_parameters=("dim",),
        samples=(
            Sample((Slot(0), 2), {}, (normal(4, 6),), ("data",)),
            Sample((Slot(0), 1, 0), {}, (normal(4, 6),), ("data",)),
        ),
    )


def summed() -> Statement:
    op = operator("torch.sum", "aten.sum.dim_IntList")
    uses = ("dim", "keepdim")
    passes = on("d after keepdim", "d if keepdim else d - sum(gone < d for gone in dim)", *uses)
    return Statement(
        op,
        rules=(
            Rule((R,), (R,)),
            Rule((SUM,), (SUM,)),
            Rule((D,), (SUM,), (when("d in dim", "d in dim", "dim"),), 0),
            Rule((D,), (passes,), (when("d not in dim", "d not in dim", "dim"),), 0),
        ),
        dim_parameters=("dim",),
        samples=(
            Sample((Slot(0), [1]), {}, (normal(4, 6, 2),), ("data",)),
            Sample((Slot(0), [-1, 0], True), {}, (normal(4, 6, 2),), ("data",)),
            Sample((Slot(0), None), {}, (normal(4, 6),), ("data",)),
        ),
    )


def concatenated() -> Statement:
    """A list of tensors."""
    op = operator("torch.cat", "aten.cat.default")
    rule = Rule((D, D), (D,), (when("d != dim", "d != dim", "dim"),), 0)
    return Statement(
        op,
        rules=(Rule((R, R), (R,)), rule, Rule((SUM, SUM), (SUM,)), replace(rule, inputs=(D, D, D))),
        dim_parameters=("dim",),
        samples=(
            Sample(([Slot(0), Slot(1)], 1), {}, (normal(4, 3), normal(4, 2)), ("data", "data")),
            Sample(([Slot(0), Slot(1), Slot(2)],), {}, (normal(3, 4), normal(2, 4), normal(1, 4)), ("data",) * 3),
        ),
    )


CUSTOM = """\
import torch


@torch.library.custom_op("shardwright_tests::scaled_sum", mutates_args=())
def scaled_sum(x: torch.Tensor, y: torch.Tensor, factor: float) -> torch.Tensor:
    return x + factor * y


@scaled_sum.register_fake
def _(x, y, factor):
    return torch.empty_like(x)
"""


def custom() -> Statement:
    import torch

    if not hasattr(torch.ops.shardwright_tests, "scaled_sum"):
        exec(compile(CUSTOM, "custom_ops.py", "exec"), {"__name__": "custom_ops"})
    op = operator("scaled_sum", "shardwright_tests.scaled_sum.default")
    return Statement(
        op,
        rules=(
            Rule((R, R), (R,)),
            Rule((D, D), (D,), reference=0),
            Rule((SUM, SUM), (SUM,)),
            Rule((R, MAX), (MAX,), (when("factor >= 0", "factor >= 0", "factor"),)),
            Rule((R, MAX), (MIN,), (when("factor < 0", "factor < 0", "factor"),)),
        ),
        samples=tuple(
            Sample((Slot(0), Slot(1), factor), {}, (normal(4, 6), normal(4, 6)), ("data", "data"))
            for factor in (2.0, -1.0)
        ),
    )


def compared() -> Statement:
    """Truth values cannot be pending, and all inputs replicated is DTensor's own rule."""
    op = operator("torch.gt", "aten.gt.Scalar")
    rules = (
        Rule((R,), (R,)),
        Rule((MAX,), (MAX,)),
        Rule((R,), (MAX,)),
        Rule((D,), (D,), reference=0),
        Rule((D,), (D,), reference=0, justification="said twice"),
    )
    return Statement(op, rules=rules, samples=(Sample((Slot(0), 0.5), {}, (normal(4, 6),), ("data",)),))


def matrices() -> Statement:
    """`mm`: a rule whose dims are shifted, so that one of them does not exist."""
    op = operator("torch.mm", "aten.mm.default")
    return Statement(
        op,
        rules=(
            Rule((R, R), (R,)),
            Rule((D, on("d-1", "d - 1")), (SUM,), reference=0),
            Rule((D, R), (D,), (when("d != last", "d < rank[0] - 1"),), 0),
            Rule((R, D), (D,), (when("d is last", "d == rank[1] - 1"),), 1),
            Rule((SUM, R), (SUM,)),
        ),
        samples=(Sample((Slot(0), Slot(1)), {}, (normal(4, 6), normal(6, 5)), ("data", "data")),),
    )


def averaged() -> Statement:
    """On uneven shards the average of averages is wrong."""
    op = operator("torch.mean", "aten.mean.dim")
    return Statement(
        op,
        rules=(
            Rule((R,), (R,)),
            Rule((P("avg"),), (P("avg"),)),
            Rule((D,), (P("avg"),), (when("d in dim", "d in dim", "dim"),), 0, grade="even"),
        ),
        dim_parameters=("dim",),
        samples=(Sample((Slot(0), [0]), {}, (normal(4, 6),), ("data",)),),
    )


def multiplied() -> Statement:
    """`prod`: pending products are called so by DTensor."""
    op = operator("torch.prod", "aten.prod.dim_int")
    return Statement(
        op,
        rules=(
            Rule((R,), (R,)),
            Rule((P("prod"),), (P("prod"),)),
            Rule((D,), (P("prod"),), (when("d == dim", "d == dim", "dim"),), 0, grade="uneven"),
        ),
        dim_parameters=("dim",),
        samples=(Sample((Slot(0), 1), {}, (normal(4, 6),), ("data",)),),
    )


def false_shard() -> Statement:
    """False: a cumulative sum is not local along its dim."""
    op = operator("torch.cumsum", "aten.cumsum.default")
    return Statement(
        op,
        rules=(Rule((R,), (R,)), Rule((D,), (D,), reference=0)),
        samples=(Sample((Slot(0), 0), {}, (normal(4, 6),), ("data",)),),
    )


def false_partial() -> Statement:
    """False: a product is linear in each factor, not in both at once."""
    op = operator("torch.mul", "aten.mul.Tensor")
    return Statement(
        op,
        rules=(Rule((R, R), (R,)), Rule((SUM, SUM), (SUM,)), Rule((MAX, R), (MAX,))),
        samples=(Sample((Slot(0), Slot(1)), {}, (normal(4, 6), normal(4, 6)), ("data", "data")),),
    )


def not_registered() -> Statement:
    """True, but the strategy beside the tests does not have it."""
    op = operator("torch.sort", "aten.sort.stable")
    return Statement(
        op,
        rules=(Rule((R,), (R, R)), Rule((D,), (D, D), (when("d != dim", "d != dim", "dim"),), 0)),
        dim_parameters=("dim",),
        samples=(Sample((Slot(0),), {"stable": True, "dim": 1}, (normal(4, 6),), ("data",)),),
    )

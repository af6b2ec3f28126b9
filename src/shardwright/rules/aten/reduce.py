"""Reductions, places of extremes, norms."""

from __future__ import annotations

from ...errors import RuleError
from ...spec.op_record import Call
from ...spec.rule import factor_name
from ..dims import write
from ..registry import rule
from .same import Attributes, dim, dims, same


def _reduced(attrs: Attributes, rank: int) -> Attributes:
    return {"axis": dims(attrs, rank), "keepdims": attrs.get("keepdim", False)}


for _names, _base in (
    (("sum", "sum.dim_IntList"), "reduce_sum"),
    (("amax", "max"), "reduce_max"),
    (("amin", "min"), "reduce_min"),
    (("prod", "prod.dim_int"), "reduce_prod"),
    (("any", "any.dim", "any.dims"), "reduce_any"),
    (("all", "all.dim", "all.dims"), "reduce_all"),
):
    same(*(f"aten.{name}" for name in _names), base=_base, to=_reduced)


def _place(attrs: Attributes, rank: int) -> Attributes:
    return {"axis": None if attrs.get("dim") is None else dim(attrs, rank), "keepdims": attrs.get("keepdim", False)}


for _name in ("argmax", "argmin"):
    same(f"aten.{_name}", base=_name, to=_place)


def _by_parts(call: Call, linear: bool = False) -> str:
    """Attributes ``dim`` and ``keepdim``: reduced dims may be split, with communication inside the op."""
    rank = len(call.operands[0])
    away = dims(call.attrs, rank)
    gone = range(rank) if away is None else away
    names = [factor_name(d) for d in range(rank)]
    kept = ["1" if d in gone else name for d, name in enumerate(names) if d not in gone or call.attr("keepdim", False)]
    notes = {names[d]: "sum form(parts)" if linear else "form(parts)" for d in gone}
    rows = ["P(sum) -> P(sum)", "P(avg) -> P(avg)"] if linear else []
    return write([names], [kept] * len(call.results), notes, rows)


for _name in ("mean", "mean.dim"):
    rule(f"aten.{_name}", lambda call: _by_parts(call, linear=True), cost="reduce", meaning="parts", beyond=(
        "the mean of means, for equal shards only: the book has the sum of sums, for all"
    ))  # fmt: skip
for _name in ("logsumexp", "var.correction", "std.correction", "var_mean.correction", "std_mean.correction",
              "linalg_vector_norm", "norm.ScalarOpt_dim", "norm.Scalar"):  # fmt: skip
    rule(f"aten.{_name}", _by_parts, cost="reduce", meaning="parts", beyond=(
        "an extreme or a mean of parts, where the samples let it: the book computes it in parts"
    ))  # fmt: skip


@rule("aten.max.dim", cost="reduce", meaning="by rule")
def extreme(call: Call) -> str:
    """Values and their places: a place in a shard is not a place in the whole."""
    rank = len(call.operands[0])
    names = [factor_name(d) for d in range(rank)]
    gone = dim(call.attrs, rank)
    kept = ["1" if d == gone else name for d, name in enumerate(names) if d != gone or call.attr("keepdim", False)]
    return write([names], [kept, kept], {names[gone]: "whole"} if names else {})


for _name in ("min.dim", "median.dim", "nanmedian.dim", "mode", "kthvalue"):
    rule(f"aten.{_name}", extreme, cost="reduce", meaning="by rule")


def _away(call: Call) -> tuple[list[str], list[str], list[str]]:
    """Names of the operand's dims, of the reduced ones among them, and of the result's."""
    rank = len(call.operands[0])
    gone = dims(call.attrs, rank)
    names = [factor_name(d) for d in range(rank)]
    away = names if gone is None else [names[d] for d in gone if d < rank]
    keep = call.attr("keepdim", False)
    return names, away, ["1" if name in away else name for name in names if keep or name not in away]


def _summed(call: Call) -> str:
    names, _, kept = _away(call)
    return write([names], [kept])


for _name in ("count_nonzero", "count_nonzero.dim_IntList", "nansum", "linalg__powsum"):
    rule(f"aten.{_name}", _summed, cost="reduce", meaning="by rule", beyond="an average of counts, on equal shards")


@rule("aten.aminmax", cost="reduce", meaning="by rule")
def aminmax(call: Call) -> str:
    """The least and the greatest."""
    names, away, kept = _away(call)
    notes = {f"{name}@{r}": kind for name in away for r, kind in enumerate(("min", "max"))}
    return write([names], [kept, kept], notes)


def _middle(call: Call) -> str:
    """Of all elements, which are needed together."""
    names = [factor_name(d) for d in range(len(call.operands[0]))]
    return write([names], [[]] * len(call.results), dict.fromkeys(names, "whole"))


for _name in ("median", "nanmedian"):
    rule(f"aten.{_name}", _middle, cost="reduce", meaning="by rule")


@rule("aten.histc", cost="reduce", meaning="by rule", beyond="the greatest of counts, on the samples alone")
def histc(call: Call) -> str:
    """Counts of all elements, between given bounds; without those, they are looked for in all elements."""
    names = [factor_name(d) for d in range(len(call.operands[0]))]
    bounded = call.attr("min", 0) != call.attr("max", 0)
    return write([names], [["bins"]], {"bins": "new whole"} | ({} if bounded else dict.fromkeys(names, "whole")))


@rule("aten.dist", cost="reduce", meaning="parts")
def dist(call: Call) -> str:
    """The norm of a difference."""
    left, right = call.operands
    if left != right:
        raise RuleError("a distance of tensors that are stretched to each other")
    names = [factor_name(d) for d in range(len(left))]
    return write([names, names], [[]], dict.fromkeys(names, "form(parts)"))

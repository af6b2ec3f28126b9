"""Normalisations forward and backward, softmax family, losses.

Rows pass; the normalised dims may be split with communication inside the op (``form(parts)``), as may the samples of a
batch norm and the classes and samples of a loss.
"""

from __future__ import annotations

from ...spec.op_record import Call
from ...spec.rule import factor_name
from ..dims import broadcast, write
from ..registry import rule
from .same import dim

_BEYOND = (
    "pending weights and biases, which no program has; operands of which only the shape is read; order, "
    "as far as the samples' signs keep it"
)
"""What the oracle finds beyond these rules."""

_PARTS = "form(parts)"


def _names(rank: int) -> list[str]:
    return [factor_name(d) for d in range(rank)]


def _along(call: Call, rows: tuple[str, ...] = ()) -> str:
    """Dims as they are, but for one that needs all its elements."""
    names = _names(len(call.operands[0]))
    at = dim(call.attrs, len(names))
    notes = {names[at]: _PARTS if call.operands[0][at] else "whole"} if names else {}
    return write([names] * len(call.operands), [names], notes, rows)


for _name in ("_softmax", "_log_softmax", "_safe_softmax"):
    rule(f"aten.{_name}", _along, cost="reduce", meaning="parts", beyond=_BEYOND)
for _name in ("_softmax_backward_data", "_log_softmax_backward_data"):
    rule(f"aten.{_name}", lambda call: _along(call, ("P(sum), R -> P(sum)", "P(avg), R -> P(avg)")),
         cost="reduce", meaning="parts", beyond=_BEYOND)  # fmt: skip


# -- layer norm -----------------------------------------------------------------------------------------


@rule("aten.native_layer_norm", cost="reduce", meaning="parts", beyond=_BEYOND)
def layer_norm(call: Call) -> str:
    """Input, perhaps weight and bias; result, mean, reciprocal deviation."""
    names = _names(len(call.operands[0]))
    rows, inner = _rows(call, names)
    kept = [*rows, *["1"] * len(inner)]
    operands = [names, *[inner] * (len(call.operands) - 1)]
    return write(operands, [names, kept, kept][: len(call.results)], dict.fromkeys(inner, _PARTS))


def _rows(call: Call, names: list[str]) -> tuple[list[str], list[str]]:
    cut = len(names) - len(call.attr("normalized_shape"))
    return names[:cut], names[cut:]


@rule("aten.native_layer_norm_backward", cost="reduce", meaning="parts", beyond=_BEYOND)
def layer_norm_backward(call: Call) -> str:
    """Gradient, input, mean, deviation, perhaps weight and bias; rows are summed in the gradients of those two."""
    names = _names(len(call.operands[0]))
    rows, inner = _rows(call, names)
    kept = [*rows, *["1"] * len(inner)]
    operands = [names, names, kept, kept, *[inner] * (len(call.operands) - 4)]
    results = [target for target, wanted in zip((names, inner, inner), call.attr("output_mask")) if wanted]
    pending = f"P(sum){', R' * (len(operands) - 1)} -> {', '.join(['P(sum)'] * len(results))}"
    return write(operands, results, dict.fromkeys(inner, _PARTS), [pending])


# -- batch and group norm -------------------------------------------------------------------------------


def _samples(rank: int) -> tuple[list[str], list[str]]:
    """Names of an input with channels in dim 1, and of all dims but the channels."""
    names = ["n", "c", *(f"s{d}" for d in range(rank - 2))]
    return names, [name for name in names if name != "c"]


@rule("aten._native_batch_norm_legit_functional", cost="reduce", meaning="parts", beyond=_BEYOND)
def batch_norm(call: Call) -> str:
    """Channels pass; the samples are normalised together, in training."""
    names, others = _samples(len(call.operands[0]))
    operands = [names, *[["c"]] * (len(call.operands) - 1)]
    results = [names]
    # Not in training nothing is reduced, but the statistics lack these dims and are no sums over them either.
    notes = dict.fromkeys(others, _PARTS)
    for r, shape in enumerate(call.results[1:], 1):
        if shape == (0,):
            results.append([f"e{r}"])
            notes[f"e{r}"] = "new whole"
        else:
            results.append(["c"])
    return write(operands, results, notes)


def _batch_norm_alone(call: Call) -> str:
    """Without statistics to keep: result, mean, reciprocal deviation."""
    names, others = _samples(len(call.operands[0]))
    results, notes = [names], dict.fromkeys(others, "whole")
    for r, shape in enumerate(call.results[1:], 1):
        results.append([f"e{r}"] if shape == (0,) else ["c"])
        notes |= {f"e{r}": "new whole"} if shape == (0,) else {}
    return write([names, *[["c"]] * (len(call.operands) - 1)], results, notes)


for _name in ("_native_batch_norm_legit.no_stats", "native_batch_norm"):
    rule(f"aten.{_name}", _batch_norm_alone, cost="reduce", meaning="by rule", beyond=_BEYOND)


@rule("aten._native_batch_norm_legit_no_training", cost="pointwise", meaning="by rule", beyond=_BEYOND)
def batch_norm_applied(call: Call) -> str:
    """By given statistics: elementwise; the other two results are empty."""
    names, _ = _samples(len(call.operands[0]))
    return write(
        [names, *[["c"]] * (len(call.operands) - 1)], [names, ["e1"], ["e2"]], {"e1": "new whole", "e2": "new whole"}
    )


@rule("aten.native_batch_norm_backward", cost="reduce", meaning="parts", beyond=_BEYOND)
def batch_norm_backward(call: Call) -> str:
    names, others = _samples(len(call.operands[0]))
    operands = [names, names, *[["c"]] * (len(call.operands) - 2)]
    notes = dict.fromkeys(others, _PARTS)
    for i, shape in enumerate(call.operands[2:], 2):
        if shape == (0,):
            operands[i] = [f"e{i}"]
            notes[f"e{i}"] = "whole"
    results = [target for target, wanted in zip((names, ["c"], ["c"]), call.attr("output_mask")) if wanted]
    pending = f"P(sum){', R' * (len(operands) - 1)} -> {', '.join(['P(sum)'] * len(results))}"
    return write(operands, results, notes, [pending])


def _groups(call: Call, rank: int) -> tuple[list[str], dict[str, str]]:
    """Samples and groups pass; what is inside a group is normalised together."""
    names = ["n", "(g c)", *(f"s{d}" for d in range(rank - 2))]
    return names, {"c": "whole", **{f"s{d}": "whole" for d in range(rank - 2)}}


@rule("aten.native_group_norm", cost="reduce", meaning="by rule", beyond=_BEYOND)
def group_norm(call: Call) -> tuple[str, dict[str, int]]:
    names, notes = _groups(call, len(call.operands[0]))
    operands = [names, *[["(g c)"]] * (len(call.operands) - 1)]
    text = write(operands, [names, ["n", "g"], ["n", "g"]], notes)
    return text, {"g": call.results[1][1]}


@rule("aten.native_group_norm_backward", cost="reduce", meaning="by rule", beyond=_BEYOND)
def group_norm_backward(call: Call) -> tuple[str, dict[str, int]]:
    """Gradient, input, mean, deviation, perhaps weight; samples are summed in the gradients of weight and bias."""
    names, notes = _groups(call, len(call.operands[0]))
    operands = [names, names, ["n", "g"], ["n", "g"], *[["(g c)"]] * (len(call.operands) - 4)]
    results = [t for t, wanted in zip((names, ["(g c)"], ["(g c)"]), call.attr("output_mask")) if wanted]
    pending = f"P(sum){', R' * (len(operands) - 1)} -> {', '.join(['P(sum)'] * len(results))}"
    return write(operands, results, notes, [pending]), {"g": call.operands[2][1]}


# -- losses ---------------------------------------------------------------------------------------------


def _classes(call: Call, slot: int) -> tuple[list[str], list[str], list[str]]:
    """Names of the scores (classes ``v`` in dim 1), of the targets, and of the samples."""
    rank = len(call.at(slot))
    samples = [] if rank == 1 else ["n", *(f"s{d}" for d in range(rank - 2))]
    return (["v"] if rank == 1 else ["n", "v", *samples[1:]]), samples, samples


def _nll(call: Call) -> str:
    """Scores, targets, perhaps weights of classes; loss and total weight."""
    scores, target, samples = _classes(call, 0)
    operands = [scores, target, *([["v"]] if call.has(2) else [])]
    kept = call.attr("reduction") == 0
    notes = {"v": _PARTS} | ({} if kept else dict.fromkeys(samples, _PARTS))
    return write(operands, [samples if kept else [], []], notes)


def _nll_backward(call: Call) -> str:
    """Gradient, scores, targets, perhaps weights, total weight."""
    scores, target, samples = _classes(call, 1)
    grad = samples if call.attr("reduction") == 0 else []
    operands = [grad, scores, target, *([["v"]] if call.has(3) else []), []]
    pending = f"P(sum){', R' * (len(operands) - 1)} -> P(sum)"
    return write(operands, [scores], {"v": _PARTS}, [pending])


for _name in ("nll_loss", "nll_loss2d"):
    rule(f"aten.{_name}_forward", _nll, cost="reduce", meaning="parts", beyond=(
        "a sum of samples that is pending, without the total: the book computes the loss in parts"
    ))  # fmt: skip
    rule(f"aten.{_name}_backward", _nll_backward, cost="memory", meaning="parts", beyond=_BEYOND)


def _pairwise_loss(call: Call) -> str:
    """Elements of two tensors, compared, then summed or averaged (attribute ``reduction``: 0 keeps, 1 mean, 2 sum)."""
    sizes = call.operands[0]
    names = _names(len(sizes))
    operands = [broadcast(names, sizes, shape) for shape in call.operands]
    kept = call.attr("reduction") == 0
    return write(operands, [names if kept else []], {} if kept else dict.fromkeys(names, "sum form(parts)"))


for _name in ("mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy_with_logits", "binary_cross_entropy"):
    rule(f"aten.{_name}", _pairwise_loss, cost="reduce", meaning="parts", beyond=(
        "a mean of equal shards, where the book has a sum in parts"
    ))  # fmt: skip


def _pairwise_loss_backward(call: Call) -> str:
    """The gradient of one of these: elementwise, but a mean divides by the number of all elements."""
    shape = call.operands[1]
    names = _names(len(shape))
    operands = [broadcast(names, shape, given) for given in call.operands]
    notes = dict.fromkeys(names, _PARTS) if call.attr("reduction") == 1 else {}
    pending = f"P(sum){', R' * (len(operands) - 1)} -> P(sum)"
    return write(operands, [names], notes, [pending])


for _name in ("mse_loss_backward", "smooth_l1_loss_backward", "huber_loss_backward", "binary_cross_entropy_backward"):
    rule(f"aten.{_name}", _pairwise_loss_backward, cost="pointwise", meaning="parts", beyond=_BEYOND)

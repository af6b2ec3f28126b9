"""Windows over space: convolution, pooling, upsampling, forward and backward.

Samples and channels pass (input channels of a convolution are summed); dims in space are whole: a shard would need its
neighbours' edges.
"""

from __future__ import annotations

from functools import partial

from ...spec.op_record import Call
from ..dims import write
from ..registry import rule

_BEYOND = (
    "what holds of the samples' windows alone (of one place); extremes and products, where elements only "
    "move; and operands of which only the shape is read may lie anyhow"
)
"""What the oracle finds beyond these rules."""

Rule = tuple[str, dict[str, int]]


def _space(rank: int, letter: str) -> list[str]:
    return [f"{letter}{d}" for d in range(rank)]


def _convolved(call: Call, input: tuple[int, ...], weight: tuple[int, ...]) -> tuple[list[str], ...]:
    """Names of input, weight, result and bias; grouped channels are (group, channel in it)."""
    rank = len(weight) - 2
    lead = ["n"] if len(input) == rank + 2 else []
    a, b = ("(g a)", "(g b)") if call.attr("groups") > 1 else ("a", "b")
    first = a if call.attr("transposed") else b
    second = "b" if call.attr("transposed") else "a"
    return (
        [*lead, a, *_space(rank, "i")],
        [first, second, *_space(rank, "k")],
        [*lead, b, *_space(rank, "o")],
        [b],
    )


def _sizes(call: Call, input: tuple[int, ...], weight: tuple[int, ...], result: tuple[int, ...]) -> dict[str, int]:
    """How many groups there are, from the shapes: on a shard there are fewer."""
    if call.attr("groups") == 1:
        return {}
    channels = (result if call.attr("transposed") else input)[1 - len(weight)]
    return {"g": channels // max(weight[1], 1)}


@rule("aten.convolution", cost="conv", meaning="by rule", beyond=_BEYOND)
def convolution(call: Call) -> Rule:
    """Input, weight, perhaps a bias, which counts once where input channels are split."""
    x, w = call.operands[:2]
    of_x, of_w, out, bias = _convolved(call, x, w)
    rank = len(w) - 2
    notes = dict.fromkeys([*_space(rank, "i"), *_space(rank, "k")], "whole") | dict.fromkeys(
        _space(rank, "o"), "new whole"
    )
    if len(call.operands) == 3:
        notes["a"] = "whole" if call.attr("groups") > 1 else "sum form(once)"
        rows = ["P(sum), R, P(sum) -> P(sum)", "R, P(sum), P(sum) -> P(sum)"]
        return write([of_x, of_w, bias], [out], notes, rows), _sizes(call, x, w, call.results[0])
    if call.attr("groups") > 1:
        notes["a"] = "whole"
    rows = ["P(sum), R -> P(sum)", "R, P(sum) -> P(sum)"]
    return write([of_x, of_w], [out], notes, rows), _sizes(call, x, w, call.results[0])


@rule("aten.convolution_backward", cost="conv", meaning="by rule", beyond=_BEYOND)
def convolution_backward(call: Call) -> Rule:
    """Gradient, input, weight; gradients of input, weight and bias, as far as they are wanted."""
    grad, x, w = call.operands
    of_x, of_w, out, bias = _convolved(call, x, w)
    rank = len(w) - 2
    notes = dict.fromkeys([*_space(rank, "i"), *_space(rank, "k"), *_space(rank, "o")], "whole")
    grouped = call.attr("groups") > 1
    wanted = call.attr("output_mask")
    results = [target for target, asked in zip((of_x, of_w, bias), wanted) if asked]
    if grouped:
        notes |= {"a": "whole", "b": "whole"}
    elif wanted[2]:
        notes[f"a@{len(results) - 1}"] = "same"  # the gradient of the bias does not look at the input
    rows = [f"P(sum), R, R -> {', '.join(['P(sum)'] * len(results))}"]
    return write([out, of_x, of_w], results, notes, rows), _sizes(call, x, w, grad)


# -- pooling and upsampling: the last dims are space, all before them pass ----------------------------------

_POOLS = {
    "max_pool2d_with_indices": (2, False), "max_pool3d_with_indices": (3, False), "avg_pool1d": (1, True),
    "avg_pool2d": (2, True), "avg_pool3d": (3, True), "_adaptive_avg_pool2d": (2, True),
    "_adaptive_avg_pool3d": (3, True), "adaptive_max_pool2d": (2, False), "adaptive_max_pool3d": (3, False),
    "upsample_nearest1d": (1, True), "upsample_nearest2d": (2, True), "upsample_nearest3d": (3, True),
    "_upsample_nearest_exact1d": (1, True), "_upsample_nearest_exact2d": (2, True), "_upsample_bicubic2d_aa": (2, True),
    "_upsample_nearest_exact3d": (3, True), "upsample_linear1d": (1, True),
    "upsample_bilinear2d": (2, True), "_upsample_bilinear2d_aa": (2, True), "upsample_bicubic2d": (2, True),
    "upsample_trilinear3d": (3, True), "max_pool2d": (2, False), "pixel_shuffle": (3, True),
    "pixel_unshuffle": (3, True),
}  # fmt: skip
"""Op -> how many dims are space, and whether it is linear."""


def _pooled(call: Call, space: int, linear: bool) -> str:
    rank = len(call.operands[0])
    lead = [f"n{d}" for d in range(rank - space)]
    notes = dict.fromkeys(_space(space, "i"), "whole") | dict.fromkeys(_space(space, "o"), "new whole")
    rows = ["P(sum) -> P(sum)", "P(avg) -> P(avg)"] if linear else []
    results = [[*lead, *_space(space, "o")]] * len(call.results)
    return write([[*lead, *_space(space, "i")]], results, notes, rows)


def _pooled_backward(call: Call, space: int) -> str:
    """The gradient, then what it needs of the forward pass: operands of the input's or of the result's dims."""
    grad, result = call.operands[0], call.results[0]
    lead = [f"n{d}" for d in range(len(grad) - space)]
    out, into = [*lead, *_space(space, "o")], [*lead, *_space(space, "i")]
    operands = [out if shape == grad and (i == 0 or shape != result) else into
                for i, shape in enumerate(call.operands)]  # fmt: skip
    if len(call.operands) == 3:  # max pooling: gradient, input, places
        operands = [out, into, out]
    spelled = {name for operand in operands for name in operand}
    notes = {name: "whole" if name in spelled else "new whole" for name in (*_space(space, "i"), *_space(space, "o"))}
    notes = {name: words for name, words in notes.items() if name in spelled or name in into}
    rows = [f"P({kind}){', R' * (len(operands) - 1)} -> P({kind})" for kind in ("sum", "avg")]
    return write(operands, [into], notes, rows)


for _name, (_rank, _linear) in _POOLS.items():
    rule(
        f"aten.{_name}", partial(_pooled, space=_rank, linear=_linear), cost="memory", meaning="by rule", beyond=_BEYOND
    )
    if not _name.startswith("pixel") and _name not in ("avg_pool1d", "max_pool2d"):
        rule(
            f"aten.{_name}_backward",
            partial(_pooled_backward, space=_rank),
            cost="memory",
            meaning="by rule",
            beyond=_BEYOND,
        )

"""Ops on matrices, transforms and the like: what they work along is whole, all dims beside it pass.

Three tables make most of them: of ops that take the last dims of each operand (linear algebra), of those that work
along named dims (Fourier transforms, gated units), and of those that keep samples and channels (sampling of images).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ...errors import RuleError
from ...spec.op_record import Call
from ...spec.rule import factor_name
from ..dims import LINEAR, broadcast, write
from ..registry import rule
from .same import Attributes, dim, dims

_BEYOND = "extremes, where elements only move; what holds of the samples' grids and sizes alone"
"""What the oracle finds beyond these rules."""

# -- the last dims of each operand -----------------------------------------------------------------------

_MATRICES: dict[str, tuple[int, ...]] = {
    "cholesky": (2,), "linalg_cholesky_ex": (2,), "cholesky_inverse": (2,), "cholesky_solve": (2, 2),
    "linalg_solve_triangular": (2, 2), "triangular_solve": (2, 2), "linalg_lu_factor_ex": (2,), "lu_unpack": (2, 1),
    "linalg_lu_solve": (2, 1, 2), "linalg_lu": (2,), "linalg_ldl_factor_ex": (2,), "linalg_ldl_solve": (2, 1, 2),
    "linalg_matrix_exp": (2,), "_linalg_det": (2,), "_linalg_slogdet": (2,), "linalg_eig": (2,), "_linalg_eigh": (2,),
    "_linalg_eigvals": (2,), "linalg_inv_ex": (2,), "linalg_qr": (2,), "geqrf": (2,), "_linalg_svd": (2,),
    "linalg_householder_product": (2, 1), "ormqr": (2, 1, 2), "linalg_pinv.atol_rtol_tensor": (2, 0, 0),
}  # fmt: skip
"""Op -> how many dims of each operand it works on; those before them are a batch."""


def _batched(call: Call, core: Sequence[int]) -> str:
    """Batch dims pass, stretched to each other; the others are whole, and those of results new."""
    ranks = [len(shape) - inner for shape, inner in zip(call.operands, core)]
    rank = max(ranks)
    if min(ranks) < 0:
        raise RuleError(f"operands of ranks {[len(shape) for shape in call.operands]} are no batch of matrices")
    names = [f"b{d}" for d in range(rank)]
    leads = [shape[:lead] for shape, lead in zip(call.operands, ranks)]
    sizes = [max((lead[len(lead) - rank + d] for lead in leads if len(lead) - rank + d >= 0), default=1)
             for d in range(rank)]  # fmt: skip
    notes: dict[str, str] = {}

    def spelled(shape: tuple[int, ...], lead: int, letter: str, words: str) -> list[str]:
        inner = [f"{letter}x{d}" for d in range(len(shape) - lead)]
        notes.update(dict.fromkeys(inner, words))
        return [*broadcast(names, sizes, shape[:lead]), *inner]

    operands = [spelled(shape, lead, f"m{i}", "whole") for i, (shape, lead) in enumerate(zip(call.operands, ranks))]
    results: list[list[str]] = []
    for r, shape in enumerate(call.results):
        if shape[:rank] != tuple(sizes):  # not asked for, and so without elements
            results.append([f"e{r}x{d}" for d in range(len(shape))])
            notes |= dict.fromkeys(results[-1], "new whole")
        else:
            results.append(spelled(shape, rank, f"r{r}", "new whole"))
    return write(operands, results, notes)


for _name, _core in _MATRICES.items():
    rule(f"aten.{_name}", partial(_batched, core=_core), cost="matmul", meaning="by rule",
         beyond="sums pass solvers on one side, which the book does not spell out")  # fmt: skip


@rule("aten._linalg_solve_ex", cost="matmul", meaning="by rule", beyond="a pending sum of right sides")
def solve(call: Call) -> str:
    """Right sides are matrices, or vectors if they have the batch's dims and one more."""
    left, right = call.operands
    vectors = len(right) == 1 or (len(right) == len(left) - 1 and right == left[:-1])
    return _batched(call, (2, 1 if vectors else 2))


# -- along named dims ------------------------------------------------------------------------------------


def _along(call: Call, whole: Sequence[int], rows: Sequence[str] = ()) -> str:
    """Dims as they are, but for those that are whole; these may have another size in the result."""
    names = [factor_name(d) for d in range(len(call.operands[0]))]
    result = [f"r{d}" if d in whole else name for d, name in enumerate(names)]
    notes = {names[d]: "whole" for d in whole} | {f"r{d}": "new whole" for d in whole}
    return write([names] * len(call.operands), [result] * len(call.results), notes, rows)


def _named(attrs: Attributes, rank: int) -> tuple[int, ...]:
    return tuple(range(rank)) if (said := dims(attrs, rank)) is None else said


def _all_but_named(attrs: Attributes, rank: int) -> tuple[int, ...]:
    return tuple(d for d in range(rank) if d != dim(attrs, rank))


for _name in ("_fft_r2c", "_fft_c2c", "_fft_c2r"):
    rule(f"aten.{_name}", lambda call: _along(call, _named(call.attrs, len(call.operands[0])), LINEAR), cost="matmul",
         meaning="by rule", beyond=_BEYOND)  # fmt: skip
rule("aten.glu", lambda call: _along(call, _named(call.attrs, len(call.operands[0]))), cost="pointwise",
     meaning="by rule", beyond=_BEYOND)  # fmt: skip
rule("aten.renorm", lambda call: _along(call, _all_but_named(call.attrs, len(call.operands[0]))), cost="reduce",
     meaning="by rule", beyond=_BEYOND)  # fmt: skip


@rule("aten.glu_backward", cost="pointwise", meaning="by rule", beyond=_BEYOND)
def glu_backward(call: Call) -> str:
    """The gradient has half of what the input has along the dim."""
    rank = len(call.operands[1])
    at = dim(call.attrs, rank)
    names = [factor_name(d) for d in range(rank)]
    half = [*names[:at], "half", *names[at + 1 :]]
    rows = ["P(sum), R -> P(sum)", "P(avg), R -> P(avg)"]
    return write([half, names], [names], {"half": "whole", names[at]: "whole"}, rows)


@rule("aten.linalg_cross", cost="pointwise", meaning="by rule", beyond=_BEYOND)
def cross(call: Call) -> str:
    """Vectors of three along a dim; the others are stretched."""
    result = call.results[0]
    names = [factor_name(d) for d in range(len(result))]
    operands = [broadcast(names, result, shape) for shape in call.operands]
    rows = ["P(sum), R -> P(sum)", "R, P(sum) -> P(sum)"]
    return write(operands, [names], {names[dim(call.attrs, len(result))]: "whole"}, rows)


@rule("aten.trace", cost="reduce", meaning="by rule", beyond=_BEYOND)
def trace(call: Call) -> str:
    return write([["i", "j"]], [[]], {"i": "whole", "j": "whole"}, LINEAR)


# -- distances -------------------------------------------------------------------------------------------


def _distances(call: Call) -> tuple[list[str], list[list[str]], list[str]]:
    """Batch names, names of the two sets of points, names of the distances; the batch is stretched beforehand."""
    batch = [f"b{d}" for d in range(len(call.results[0]) - 2)]
    return batch, [[*batch, "p", "m"], [*batch, "r", "m"]], [*batch, "p", "r"]


@rule("aten._cdist_forward", cost="matmul", meaning="by rule", beyond=_BEYOND)
def cdist(call: Call) -> str:
    """Of every point to every other."""
    _, points, between = _distances(call)
    operands = []
    for shape, names in zip(call.operands, points):
        sizes = [*call.results[0][:-2], *shape[-2:]]
        operands.append(broadcast(names, sizes, shape))
    return write(operands, [between], {"m": "whole"})


rule("aten._euclidean_dist", cdist, cost="matmul", meaning="by rule", beyond=_BEYOND)


@rule("aten._cdist_backward", cost="matmul", meaning="by rule", beyond=_BEYOND)
def cdist_backward(call: Call) -> str:
    """Towards the first points: over the others they are summed."""
    _, points, between = _distances(call)
    if any(len(shape) != len(call.results[0]) for shape in call.operands):
        raise RuleError("distances of points in batches that are stretched to each other")
    rows = ["P(sum), R, R, R -> P(sum)"]
    return write([between, *points, between], [points[0]], {"m": "whole"}, rows)


# -- samples and channels pass, places in space do not -----------------------------------------------------


def _image(rank: int, letter: str) -> list[str]:
    return ["n", "c", *(f"{letter}{d}" for d in range(rank - 2))]


def _grid(rank: int) -> list[str]:
    return ["n", *(f"o{d}" for d in range(rank - 2)), "xy"]


def _sampled(call: Call) -> str:
    """An image read at the places of a grid, which pass."""
    rank = len(call.operands[0])
    image, out = _image(rank, "i"), _image(rank, "o")
    rows = ["P(sum), R -> P(sum)", "P(avg), R -> P(avg)"]
    return write([image, _grid(rank)], [out], dict.fromkeys([*image[2:], "xy"], "whole"), rows)


def _sampled_backward(call: Call) -> str:
    """Gradient, image, grid; places are summed in the image's gradient, channels in the grid's."""
    rank = len(call.operands[1])
    image, out, grid = _image(rank, "i"), _image(rank, "o"), _grid(rank)
    results = [target for target, wanted in zip((image, grid), call.attr("output_mask")) if wanted]
    if len(results) < len(call.results):  # the grid's is made all the same
        results = [image, grid]
    rows = [f"P(sum), R, R -> {', '.join(['P(sum)'] * len(results))}"]
    return write([out, image, grid], results, dict.fromkeys([*image[2:], "xy"], "whole"), rows)


for _space in ("2d", "3d"):
    rule(f"aten.grid_sampler_{_space}", _sampled, cost="gather", meaning="by rule", beyond=_BEYOND)
    rule(f"aten.grid_sampler_{_space}_backward", _sampled_backward, cost="gather", meaning="by rule", beyond=_BEYOND)


def _patch(call: Call) -> dict[str, int]:
    """How many places a patch has."""
    height, width = call.attr("kernel_size")
    return {"k": height * width}


@rule("aten.im2col", cost="memory", meaning="by rule", beyond=_BEYOND)
def im2col(call: Call) -> tuple[str, dict[str, int]]:
    image = ["n", "c", "h", "w"][4 - len(call.operands[0]) :]
    columns = [*image[:-3], "(c k)", "l"]
    return write([image], [columns], {"h": "whole", "w": "whole", "k": "new whole", "l": "new whole"}, LINEAR), _patch(
        call
    )


@rule("aten.col2im", cost="memory", meaning="by rule", beyond=_BEYOND)
def col2im(call: Call) -> tuple[str, dict[str, int]]:
    image = ["n", "c", "h", "w"][4 - len(call.results[0]) :]
    columns = [*image[:-3], "(c k)", "l"]
    return write([columns], [image], {"k": "whole", "l": "whole", "h": "new whole", "w": "new whole"}, LINEAR), _patch(
        call
    )


def _planes(call: Call, space: int) -> str:
    """Operands and results with the same leading dims; the last ones, places in space or random numbers, are whole."""
    rank = len(call.results[0])
    lead = [f"n{d}" for d in range(rank - space)]
    if any(shape[: len(lead)] != call.results[0][: len(lead)] for shape in call.operands):
        raise RuleError("operands with other leading dims than the result")
    notes: dict[str, str] = {}
    sides: list[list[list[str]]] = [[], []]
    for side, (shapes, words) in enumerate(((call.operands, "whole"), (call.results, "new whole"))):
        for i, shape in enumerate(shapes):
            inner = [f"{'io'[side]}{i}x{d}" for d in range(len(shape) - len(lead))]
            notes |= dict.fromkeys(inner, words)
            sides[side].append([*lead, *inner])
    return write(sides[0], sides[1], notes)


for _name, _rank in {"max_unpool2d": 2, "max_unpool3d": 3}.items():
    rule(f"aten.{_name}", partial(_planes, space=_rank), cost="memory", meaning="by rule",
         beyond="a pending sum of values, where every place is told once")  # fmt: skip
for _name, _rank in {"fractional_max_pool2d": 2, "fractional_max_pool3d": 3}.items():
    rule(f"aten.{_name}", partial(_planes, space=_rank), cost="memory", meaning="by rule", beyond=_BEYOND)
    rule(f"aten.{_name}_backward", partial(_planes, space=_rank), cost="memory", meaning="by rule",
         beyond="a pending sum of gradients")  # fmt: skip


@rule("aten.isin.Tensor_Tensor", cost="gather", meaning="by rule", beyond=_BEYOND)
def isin(call: Call) -> str:
    """Each element among all others."""
    elements = [factor_name(d) for d in range(len(call.operands[0]))]
    tests = [f"t{d}" for d in range(len(call.operands[1]))]
    return write([elements, tests], [elements], dict.fromkeys(tests, "whole"))


@rule("aten.take", cost="gather", meaning="by rule", beyond=_BEYOND)
def take(call: Call) -> str:
    """Places in the flattened tensor."""
    table = [f"t{d}" for d in range(len(call.operands[0]))]
    index = [factor_name(d) for d in range(len(call.operands[1]))]
    return write([table, index], [index], dict.fromkeys(table, "whole"), ["P(any), R -> P(any)"])

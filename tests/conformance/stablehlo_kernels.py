"""What ops in StableHLO's form compute, in plain NumPy: the unsharded meaning that their rules are run against.

No frontend writes these ops down yet, so their kernels stand here.  As everywhere, sizes come from the operands and
the result's type, never from attributes: on a device both are shards.  What a call reads is named as in the rules
(`shardwright.rules.structured`) and, where those do not care, as in StableHLO.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from shardwright.api.arrays.random import global_indices, philox
from shardwright.frontends.numpy import numpy_dtype
from shardwright.frontends.numpy.kernels import Attributes, Kernel, Maker, Types

Array = np.ndarray[Any, Any]
FORMS: dict[str, Maker] = {}
COMBINE = {"add": np.add, "max": np.maximum, "min": np.minimum, "mul": np.multiply}


def kernel(*ops: str) -> Callable[[Maker], Maker]:
    def register(make: Maker) -> Maker:
        FORMS.update(dict.fromkeys(ops, make))
        return make

    return register


# -- decompositions: one matrix after the other, in double precision; NaN where LAPACK gives up -----------


def each_matrix(results: Types, solve: Callable[..., Any], *stacks: Array) -> tuple[Array, ...]:
    """``solve`` for every matrix (or vector) of the stacks, which agree in their leading dims."""
    batch = stacks[0].shape[:-2]
    made = tuple(np.full(result.shape, np.nan, numpy_dtype(result.dtype)) for result in results)
    for at in np.ndindex(batch):
        try:
            found = solve(*(stack[at].astype(np.float64) for stack in stacks))
        except np.linalg.LinAlgError:
            continue
        for whole, part in zip(made, found):
            whole[at] = part
    return made


@kernel("cholesky")
def _cholesky(attrs: Attributes, results: Types) -> Kernel:
    """Attribute ``lower``; the other triangle is not read."""

    def solve(a: Array) -> tuple[Array, ...]:
        if attrs.get("lower", True):
            return (np.linalg.cholesky(np.tril(a) + np.tril(a, -1).T),)
        return (np.linalg.cholesky(np.triu(a).T + np.triu(a, 1)).T,)

    return lambda a: each_matrix(results, solve, a)[0]


@kernel("eigh")
def _eigh(attrs: Attributes, results: Types) -> Kernel:
    return lambda a: each_matrix(results, lambda x: tuple(np.linalg.eigh(x))[::-1], a)


@kernel("qr")
def _qr(attrs: Attributes, results: Types) -> Kernel:
    """LAPACK's packed form: R above, reflectors below the diagonal, and their factors."""

    def solve(a: Array) -> tuple[Array, ...]:
        packed, factors = np.linalg.qr(a, mode="raw")
        return packed.T, factors

    return lambda a: each_matrix(results, solve, a)


@kernel("householder_product")
def _householder_product(attrs: Attributes, results: Types) -> Kernel:
    """The first columns of the product of reflectors that `qr` leaves."""

    def solve(packed: Array, factors: Array) -> tuple[Array, ...]:
        rows, columns = packed.shape
        product = np.eye(rows)
        for i, factor in enumerate(factors):
            v = np.concatenate([np.zeros(i), np.ones(1), packed[i + 1 :, i]])
            product = product - factor * np.outer(product @ v, v)
        return (product[:, :columns],)

    return lambda packed, factors: each_matrix(results, solve, packed, factors)[0]


@kernel("triangular_solve")
def _triangular_solve(attrs: Attributes, results: Types) -> Kernel:
    lower, left = attrs.get("lower", True), attrs.get("left_side", True)

    def solve(a: Array, b: Array) -> tuple[Array, ...]:
        a = np.tril(a) if lower else np.triu(a)
        if attrs.get("unit_diagonal", False):
            a = a - np.diag(np.diag(a)) + np.eye(len(a))
        a = a.T if attrs.get("transpose_a", False) else a
        return (np.linalg.solve(a, b) if left else np.linalg.solve(a.T, b.T).T,)

    return lambda a, b: each_matrix(results, solve, a, b)[0]


@kernel("fft")
def _fft(attrs: Attributes, results: Types) -> Kernel:
    """Attribute ``fft_type``; a half spectrum turns back into as many numbers as the result has."""
    dims = len(attrs["fft_length"])
    axes = range(-dims, 0)
    function = {"FFT": np.fft.fftn, "IFFT": np.fft.ifftn, "RFFT": np.fft.rfftn, "IRFFT": np.fft.irfftn}
    run = function[attrs.get("fft_type", "FFT")]

    def transformed(x: Array) -> Array:
        sizes = results[0].shape[-dims:] if run is np.fft.irfftn else x.shape[-dims:]
        return run(x, sizes, axes) if x.size else np.zeros(results[0].shape, numpy_dtype(results[0].dtype))

    return transformed


# -- order ----------------------------------------------------------------------------------------------


def largest(x: Array, count: int, axis: int) -> Array:
    """Where the largest stand, in falling order, equal ones as they come; NaN counts as small."""
    return (-x.astype(np.float64)).argsort(axis, kind="stable").take(range(count), axis)


@kernel("top_k")
def _top_k(attrs: Attributes, results: Types) -> Kernel:
    def run(x: Array) -> tuple[Array, Array]:
        found = largest(x, results[0].shape[-1], -1)
        return np.take_along_axis(x, found, -1), found

    return run


@kernel("approx_top_k")
def _approx_top_k(attrs: Attributes, results: Types) -> Kernel:
    """Exact here; the initial values pad what is too short, which StableHLO's callers do not ask for."""
    axis = attrs["axis"]

    def run(x: Array, where: Array, least: Array, nowhere: Array) -> tuple[Array, Array]:
        found = largest(x, results[0].shape[axis], axis)
        return np.take_along_axis(x, found, axis), np.take_along_axis(where, found, axis)

    return run


# -- windows --------------------------------------------------------------------------------------------


def spread(x: Array, padding: Sequence[Sequence[int]], dilations: Sequence[int], value: Any) -> Array:
    """Holes between elements and padding at the ends, filled with ``value``; negative padding cuts."""
    shape = [max(size * by - by + 1, 0) if size else 0 for size, by in zip(x.shape, dilations)]
    made = np.full([low + size + high for size, (low, high) in zip(shape, padding)], value, x.dtype)
    source, target = [], []
    for size, by, (low, _), whole in zip(x.shape, dilations, padding, made.shape):
        first = -(-max(-low, 0) // by)
        last = min(size, max(-(-(whole - low) // by), first))
        source.append(slice(first, last))
        target.append(slice(low + first * by, low + last * by, by) if last > first else slice(0, 0))
    made[tuple(target)] = x[tuple(source)]
    return made


def windows_of(x: Array, attrs: Attributes) -> Array:
    """A view with the dims of windows first, then those inside a window."""
    rank = x.ndim
    size, strides, dilations = (
        attrs.get(name) or (1,) * rank for name in ("window_dimensions", "window_strides", "window_dilations")
    )
    reach = [(length - 1) * by + 1 for length, by in zip(size, dilations)]
    views = np.lib.stride_tricks.sliding_window_view(x, reach)
    inside = tuple(slice(None, None, by) for by in dilations)
    return views[(*(slice(None, None, by) for by in strides), *inside)]


@kernel("reduce_window")
def _reduce_window(attrs: Attributes, results: Types) -> Kernel:
    """Attribute ``combine``: how, for each operand."""
    how = [COMBINE[name] for name in attrs["combine"]]

    def run(*operands: Array) -> Any:
        made = []
        for x, start, ufunc, result in zip(operands, operands[len(how) :], how, results):
            padding = attrs.get("padding") or ((0, 0),) * x.ndim
            padded = spread(x, padding, attrs.get("base_dilations") or (1,) * x.ndim, start)
            if not prod(result.shape):
                made.append(np.zeros(result.shape, x.dtype))
                continue
            windows = windows_of(padded, attrs)
            made.append(ufunc.reduce(windows, tuple(range(x.ndim, 2 * x.ndim)), x.dtype, initial=start))
        return tuple(made) if len(made) > 1 else made[0]

    return run


@kernel("select_and_scatter")
def _select_and_scatter(attrs: Attributes, results: Types) -> Kernel:
    """The largest of each window (the first, if several) is given what the source has for it, added up."""

    def run(x: Array, source: Array, start: Array) -> Array:
        padding = attrs.get("padding") or ((0, 0),) * x.ndim
        ones = (1,) * x.ndim
        made = np.full(x.shape, start, x.dtype)
        if not source.size:
            return made
        least = np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -np.inf
        values = windows_of(spread(x, padding, ones, least), attrs)
        places = windows_of(spread(np.arange(x.size).reshape(x.shape), padding, ones, -1), attrs)
        flat = (*source.shape, -1)
        values, places = values.reshape(flat), places.reshape(flat)
        # What is padding cannot be chosen.
        order = np.where(places < 0, -np.inf, np.where(np.isnan(values), np.inf, values)).argmax(-1)
        chosen = np.take_along_axis(places, order[..., None], -1)[..., 0]
        np.add.at(made.reshape(-1), chosen, source)
        return made

    return run


@kernel("convolution")
def _convolution(attrs: Attributes, results: Types) -> Kernel:
    """Attributes ``dims``, ``window_strides``, ``padding``, ``lhs_dilation``, ``rhs_dilation``, ``window_reversal``.

    How many groups there are here follows from the shapes: a device may have some of them.
    """
    labels = attrs["dims"].replace("->", ",").split(",")
    spatial = sorted(filter(str.isdigit, labels[0]))

    def order(label: str, ends: str) -> list[int]:
        return [label.index(letter) for letter in (*ends, *spatial)]

    def run(image: Array, filters: Array) -> Array:
        x, w = image.transpose(order(labels[0], "bf")), filters.transpose(order(labels[1], "oi"))
        back = np.argsort(order(labels[2], "bf"))
        shape = tuple(results[0].shape[d] for d in order(labels[2], "bf"))
        made = np.zeros(shape, numpy_dtype(results[0].dtype))
        if not (x.size and w.size and made.size):
            return made.transpose(back)
        rank, batch = len(spatial), shape[0]
        ones = (1,) * rank
        groups, batches = x.shape[1] // w.shape[1], x.shape[0] // batch
        ends = ((0, 0), (0, 0))
        padding = attrs.get("padding") or ((0, 0),) * rank
        x = spread(x, (*ends, *padding), (1, 1, *(attrs.get("lhs_dilation") or ones)), 0)
        reversal = attrs.get("window_reversal") or (False,) * rank
        w = np.flip(w, [2 + d for d in range(rank) if reversal[d]])
        strides, dilations = attrs.get("window_strides") or ones, attrs.get("rhs_dilation") or ones
        # Either features or the batch come in groups; both are one dim of pairs here.
        x = x.reshape(batches, batch, groups, w.shape[1], *x.shape[2:])
        w = w.reshape(batches, groups, -1, *w.shape[1:])
        total = np.zeros((batches, groups, batch, w.shape[2], *shape[2:]), made.dtype)
        for at in np.ndindex(w.shape[4:]):
            starts = [i * by for i, by in zip(at, dilations)]
            cut = tuple(slice(i, i + (n - 1) * by + 1, by) for i, n, by in zip(starts, shape[2:], strides))
            here = x[(slice(None),) * 4 + cut]
            total += np.einsum("hbgi...,hgoi->hgbo...", here, w[(slice(None),) * 4 + at])
        return np.moveaxis(total, 2, 0).reshape(shape).transpose(back)

    return run


# -- dimension numbers ----------------------------------------------------------------------------------


def rows_of(index: Array, dim: int) -> Array:
    """Index vectors last."""
    return index[..., None] if dim == index.ndim else np.moveaxis(index, dim, -1)


@kernel("stablehlo.gather")
def _gather(attrs: Attributes, results: Types) -> Kernel:
    """A slice that would stick out is moved inside."""
    offset_dims, batching = attrs["offset_dims"], attrs.get("operand_batching_dims", ())
    gone = (*attrs.get("collapsed_slice_dims", ()), *batching)

    def run(operand: Array, index: Array) -> Array:
        shape = results[0].shape
        grid = np.indices(shape)
        points = [grid[r] for r in range(len(shape)) if r not in offset_dims]
        kept = [d for d in range(operand.ndim) if d not in gone]
        sizes = dict(zip(kept, (shape[r] for r in offset_dims)))
        starts = rows_of(index, attrs["index_vector_dim"])[tuple(points)]
        places: list[Any] = [np.zeros(shape, int)] * operand.ndim
        for k, d in enumerate(attrs["start_index_map"]):
            places[d] = np.clip(starts[..., k], 0, operand.shape[d] - sizes.get(d, 1))
        for d, at in zip(batching, attrs.get("start_indices_batching_dims", ())):
            places[d] = points[at - (at > attrs["index_vector_dim"])]
        for d, r in zip(kept, offset_dims):
            places[d] = places[d] + grid[r]
        return operand[tuple(places)]

    return run


@kernel("stablehlo.scatter")
def _scatter(attrs: Attributes, results: Types) -> Kernel:
    """Attribute ``combine`` (or None: replace).  Each element that would fall outside is left out, for itself."""
    window_dims, batching = attrs["update_window_dims"], attrs.get("input_batching_dims", ())
    gone = (*attrs.get("inserted_window_dims", ()), *batching)
    combine = attrs.get("combine")

    def run(*given: Array) -> Any:
        count = len(results)
        index, updates = given[count], given[count + 1 :]
        shape, rank = updates[0].shape, given[0].ndim
        grid = np.indices(shape)
        points = [grid[u] for u in range(len(shape)) if u not in window_dims]
        starts = rows_of(index, attrs["index_vector_dim"])[tuple(points)]
        places: list[Any] = [np.zeros(shape, int)] * rank
        for k, d in enumerate(attrs["scatter_dims_to_operand_dims"]):
            places[d] = starts[..., k]
        for d, at in zip(batching, attrs.get("scatter_indices_batching_dims", ())):
            places[d] = points[at - (at > attrs["index_vector_dim"])]
        for d, u in zip((d for d in range(rank) if d not in gone), window_dims):
            places[d] = places[d] + grid[u]
        inside = np.ones(shape, bool)
        for place, size in zip(places, given[0].shape):
            inside &= (place >= 0) & (place < size)
        at = tuple(place[inside] for place in places)
        made = tuple(np.array(x) for x in given[:count])
        for x, update in zip(made, updates):
            if combine is None:
                x[at] = update[inside]
            else:
                COMBINE[combine].at(x, at, update[inside])
        return made if count > 1 else made[0]

    return run


def window_at(starts: Sequence[Array], sizes: Sequence[int], shape: Sequence[int]) -> tuple[slice, ...]:
    """A window that would stick out is moved inside."""
    first = [min(max(int(start), 0), whole - size) for start, size, whole in zip(starts, sizes, shape)]
    return tuple(slice(at, at + size) for at, size in zip(first, sizes))


@kernel("dynamic_slice")
def _dynamic_slice(attrs: Attributes, results: Types) -> Kernel:
    return lambda x, *starts: x[window_at(starts, results[0].shape, x.shape)]


@kernel("dynamic_update_slice")
def _dynamic_update_slice(attrs: Attributes, results: Types) -> Kernel:
    def run(x: Array, update: Array, *starts: Array) -> Array:
        made = np.array(x)
        made[window_at(starts, update.shape, x.shape)] = update
        return made

    return run


# -- the rest -------------------------------------------------------------------------------------------


@kernel("core.constant")
def _constant(attrs: Attributes, results: Types) -> Kernel:
    """Attribute ``value``: all its elements in order."""
    return lambda: np.array(attrs["value"], numpy_dtype(results[0].dtype)).reshape(results[0].shape)


@kernel("bitcast_convert")
def _bitcast_convert(attrs: Attributes, results: Types) -> Kernel:
    dtype = numpy_dtype(results[0].dtype)
    return lambda x: np.frombuffer(np.ascontiguousarray(x).tobytes(), dtype).reshape(results[0].shape)


@kernel("reverse")
def _reverse(attrs: Attributes, results: Types) -> Kernel:
    return lambda x: np.flip(x, attrs["dimensions"])


@kernel("batch_norm_inference")
def _batch_norm_inference(attrs: Attributes, results: Types) -> Kernel:
    def run(x: Array, *features: Array) -> Array:
        shape = [size if d == attrs["feature_index"] else 1 for d, size in enumerate(x.shape)]
        scale, offset, mean, variance = (feature.reshape(shape) for feature in features)
        return (x - mean) / np.sqrt(variance + attrs["epsilon"]).astype(x.dtype) * scale + offset

    return run


# -- random numbers: a number follows from the seed and from where it stands in what this call makes -------


@kernel("rng_bit_generator")
def _rng_bit_generator(attrs: Attributes, results: Types) -> Kernel:
    def run(state: Array) -> tuple[Array, Array]:
        shape = results[1].shape
        words = philox(global_indices(shape, tuple(slice(0, size) for size in shape)), int(state[0]))
        after = state.copy()
        after[1:] += np.array(prod(shape), state.dtype)
        return after, words[0] ^ words[1] << np.uint64(32)

    return run


@kernel("rng")
def _rng(attrs: Attributes, results: Types) -> Kernel:
    """Attribute ``seed`` stands for the hidden state of StableHLO's op."""

    def run(low: Array, high: Array, shape: Array) -> Array:
        here = results[0].shape
        words = philox(global_indices(here, tuple(slice(0, size) for size in here)), attrs.get("seed", 0))
        return (low + (high - low) * (words[0].astype(np.float64) / 2**32)).astype(low.dtype)

    return run

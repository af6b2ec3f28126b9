"""Calls of ops in StableHLO's form, to run their rules by execution; `samples` says what a sample is."""

from __future__ import annotations

from typing import Any

import numpy as np
from calls import Made, call, op

from shardwright.frontends.numpy.samples import ALL, FLOATS, NUMBERS, Sample

WIDE = {2: "u2", 4: "u4", 8: "u8"}
NARROW = {2: "u1", 4: "u2", 8: "u4"}


def shaped(*sizes: Any) -> Any:
    """Results with the first operand's dtype; None keeps a dim of the operand."""

    def results(x: Any, *_: Any) -> list[Made]:
        shape = [have if size is None else size for have, size in zip(x.shape, sizes)]
        return [(tuple(shape), x.dtype)]

    return results


# -- decompositions and transforms ----------------------------------------------------------------------


def _packed(a: Any) -> list[Made]:
    return [(a.shape, a.dtype), ((*a.shape[:-2], min(a.shape[-2:])), a.dtype)]


def _eigen(a: Any) -> list[Made]:
    return [(a.shape, a.dtype), (a.shape[:-1], a.dtype)]


def _solved(**attrs: Any) -> Any:
    return op("triangular_solve", lambda a, b: [(b.shape, b.dtype)], **attrs)


def _transform(kind: str, dims: int = 1) -> Any:
    def run(x: Any) -> Any:
        complex_type = {"f": "F", "d": "D", "F": "F", "D": "D"}[np.dtype(x.dtype).char]
        last = x.shape[-1]
        size = {"RFFT": last // 2 + 1, "IRFFT": 2 * last - 1}.get(kind, last)
        dtype = np.empty(0, complex_type).real.dtype if kind == "IRFFT" else complex_type
        lengths = (*x.shape[-dims:-1], max(last, size) if kind == "IRFFT" else last)
        return call("fft", [x], [((*x.shape[:-1], size), dtype)], fft_type=kind, fft_length=lengths)

    return run


def _top(x: Any) -> list[Made]:
    best = (*x.shape[:-1], min(3, x.shape[-1]))
    return [(best, x.dtype), (best, "i4")]


def _approx_top(axis: int) -> Any:
    def run(x: Any, where: Any) -> Any:
        shape = tuple(min(2, size) if d == axis else size for d, size in enumerate(x.shape))
        least, nowhere = np.array(0, x.dtype), np.array(-1, "i8")
        return call("approx_top_k", [x, where, least, nowhere], [(shape, x.dtype), (shape, "i8")], axis=axis)

    return run


# -- windows --------------------------------------------------------------------------------------------


def _windows(size: int, length: int, stride: int = 1, low: int = 0, high: int = 0, base: int = 1, by: int = 1) -> int:
    """How many windows there are along a dim."""
    whole = (size - 1) * base + 1 + low + high if size else low + high
    reach = (length - 1) * by + 1
    return (whole - reach) // stride + 1 if whole >= reach else 0


def _pooled(combine: tuple[str, ...], dim: int, length: int, **how: int) -> Any:
    """Windows along one dim; the others pass."""

    def run(*operands: Any) -> Any:
        rank = operands[0].ndim
        attrs = {
            name: tuple(how.get(key, 1) if d == dim else 1 for d in range(rank))
            for name, key in (("window_strides", "stride"), ("base_dilations", "base"), ("window_dilations", "by"))
        }
        attrs["window_dimensions"] = tuple(length if d == dim else 1 for d in range(rank))
        ends = how.get("low", 0), how.get("high", 0)
        padding = tuple(ends if d == dim else (0, 0) for d in range(rank))
        starts = [np.array({"mul": 1}.get(name, 0), x.dtype) for name, x in zip(combine, operands)]
        shape = [size if d != dim else _windows(size, length, **how) for d, size in enumerate(operands[0].shape)]
        results = [(tuple(shape), x.dtype) for x in operands]
        return call("reduce_window", [*operands, *starts], results, combine=combine, padding=padding, **attrs)

    return run


def _unpooled(x: Any, source: Any) -> Any:
    """Windows of 2 along dim 1; half of what the source has goes to one place each."""
    attrs = {"window_dimensions": (1, 2, 1), "window_strides": (1, 2, 1)}
    return call("select_and_scatter", [x, source, np.array(1, x.dtype)], [(x.shape, x.dtype)], **attrs)


def _unpooled_beyond(x: Any, source: Any) -> Any:
    """Windows of 3 with padding: they overlap."""
    attrs = {"window_dimensions": (1, 3, 1), "padding": ((0, 0), (1, 1), (0, 0))}
    return call("select_and_scatter", [x, source, np.array(0, x.dtype)], [(x.shape, x.dtype)], **attrs)


def _convolved(dims: str, **attrs: Any) -> Any:
    """``window`` attributes go by spatial dim, in order of their numbers."""
    image, kernel, out = dims.replace("->", ",").split(",")

    def run(x: Any, w: Any) -> Any:
        shape = []
        for letter in out:
            if letter == "b":
                shape.append(x.shape[image.index("b")] // attrs.get("batch_group_count", 1))
            elif letter == "f":
                shape.append(w.shape[kernel.index("o")])
            else:
                d = int(letter)
                low, high = attrs.get("padding", ((0, 0),) * 4)[d]
                entries = [attrs.get(k, (1,) * 4)[d] for k in ("window_strides", "lhs_dilation", "rhs_dilation")]
                size, length = x.shape[image.index(letter)], w.shape[kernel.index(letter)]
                shape.append(_windows(size, length, entries[0], low, high, entries[1], entries[2]))
        return call("convolution", [x, w], [(tuple(shape), x.dtype)], dims=dims, **attrs)

    return run


# -- dimension numbers ----------------------------------------------------------------------------------


def _gathered(shape: Any, **numbers: Any) -> Any:
    """``shape(x, index)`` is the result's."""

    def run(x: Any, index: Any) -> Any:
        return call("stablehlo.gather", [x, index], [(shape(x, index), x.dtype)], **numbers)

    return run


def _rows(x: Any, index: Any) -> Any:
    """Rows of a table: each device needs the whole table, or a part of every row."""
    numbers = {"offset_dims": (2,), "collapsed_slice_dims": (0,), "start_index_map": (0,), "index_vector_dim": 2}
    return _gathered(lambda x, i: (*i.shape, x.shape[1]), slice_sizes=(1, x.shape[1]), **numbers)(x, index)


def _blocks(x: Any, index: Any) -> Any:
    """Blocks of 2 along dim 0 and of all of dim 1, which is indexed too and so always taken from 0."""
    numbers = {"offset_dims": (1, 2), "collapsed_slice_dims": (), "start_index_map": (0, 1), "index_vector_dim": 1}
    return _gathered(lambda x, i: (i.shape[0], 2, x.shape[1]), slice_sizes=(2, x.shape[1]), **numbers)(x, index)


def _points(x: Any, index: Any) -> Any:
    """For each batch single elements of dim 1, kept as a dim of 1, and all of dim 2."""
    numbers = {
        "offset_dims": (2, 3), "collapsed_slice_dims": (), "operand_batching_dims": (0,),
        "start_indices_batching_dims": (1,), "start_index_map": (1,), "index_vector_dim": 2,
    }  # fmt: skip
    shape = (*index.shape[:2], 1, x.shape[2])
    return _gathered(lambda x, i: shape, slice_sizes=(1, 1, x.shape[2]), **numbers)(x, index)


def _points_first(x: Any, index: Any) -> Any:
    """As before, the index vectors standing first."""
    numbers = {
        "offset_dims": (0,), "collapsed_slice_dims": (1,), "operand_batching_dims": (0,),
        "start_indices_batching_dims": (1,), "start_index_map": (1,), "index_vector_dim": 0,
    }  # fmt: skip
    shape = (x.shape[2], *index.shape[1:])
    return _gathered(lambda x, i: shape, slice_sizes=(1, 1, x.shape[2]), **numbers)(x, index)


def _scattered(combine: str | None = "add", **numbers: Any) -> Any:
    def run(*given: Any) -> Any:
        count = len(given) // 2
        results = [(x.shape, x.dtype) for x in given[:count]]
        return call("stablehlo.scatter", given, results, combine=combine, **numbers)

    return run


ROWS = {
    "update_window_dims": (1,), "inserted_window_dims": (0,), "scatter_dims_to_operand_dims": (0,),
    "index_vector_dim": 1,
}  # fmt: skip
# Dim 1 is written in full and indexed all the same: a start other than 0 shifts what is written.
SHIFTED = {
    "update_window_dims": (1,), "inserted_window_dims": (0,), "scatter_dims_to_operand_dims": (0, 1),
    "index_vector_dim": 1,
}  # fmt: skip
# Two of the elements of dim 1, wherever they begin.
PARTS = {**SHIFTED, "update_window_dims": (1, 2)}
BATCHES = {
    "update_window_dims": (2,), "inserted_window_dims": (1,), "input_batching_dims": (0,),
    "scatter_indices_batching_dims": (0,), "scatter_dims_to_operand_dims": (1,), "index_vector_dim": 2,
}  # fmt: skip


def _sliced(*sizes: int | None) -> Any:
    """A slice at places that are operands; None for all of a dim."""

    def run(x: Any, *starts: Any) -> Any:
        shape = tuple(have if size is None else size for have, size in zip(x.shape, sizes))
        return call("dynamic_slice", [x, *starts], [(shape, x.dtype)])

    return run


# -- the rest -------------------------------------------------------------------------------------------


def _recast(x: Any) -> Any:
    return call("bitcast_convert", [x], [(x.shape, WIDE[np.dtype(x.dtype).itemsize])])


def _recast_narrow(x: Any) -> Any:
    return call("bitcast_convert", [x], [((*x.shape, 2), NARROW[np.dtype(x.dtype).itemsize])])


def _recast_wide(x: Any) -> Any:
    pairs = call("bitcast_convert", [x], [((*x.shape, 2), NARROW[np.dtype(x.dtype).itemsize])])
    return call("bitcast_convert", [pairs], [(x.shape, x.dtype)])


def _constant(x: Any) -> Any:
    values = tuple(float(i % 7) for i in range(x.shape[0] * x.shape[1]))
    return x + call("core.constant", [], [(x.shape, x.dtype)], value=values)


def _numbers(x: Any) -> Any:
    """Numbers like those of ``x`` in shape, made with no regard to it."""
    low, high = np.array(-1, x.dtype), np.array(3, x.dtype)
    shape = np.array(x.shape, "i8")
    return x + call("rng", [low, high, shape], [(x.shape, x.dtype)], seed=5)


def _bits(x: Any, state: Any) -> Any:
    after, bits = call("rng_bit_generator", [state], [(state.shape, state.dtype), (x.shape, "u8")])
    return after, np.where(x > 0, bits, bits + np.array(1, "u8"))


STABLEHLO: dict[str, list[Sample]] = {
    "cholesky": [
        Sample(op("cholesky"), ("n m m:spd",), FLOATS),
        Sample(op("cholesky", lower=False), ("2 n 3 3:spd",), FLOATS),
    ],
    "eigh": [Sample(op("eigh", _eigen), ("n m m:spd",), FLOATS)],
    "qr": [Sample(op("qr", _packed), ("n m 3",), FLOATS), Sample(op("qr", _packed), ("2 n 2 m",), FLOATS)],
    "householder_product": [
        Sample(lambda a: call("householder_product", _reflectors(a), [(a.shape, a.dtype)]), ("n 4 3",), FLOATS)
    ],
    "triangular_solve": [
        Sample(_solved(), ("n m m:spd", "n m 2"), FLOATS),
        Sample(_solved(lower=False, transpose_a=True), ("2 n 3 3:spd", "2 n 3 m"), FLOATS),
        Sample(_solved(left_side=False, unit_diagonal=True), ("n 3 3:spd", "n m 3"), FLOATS),
    ],
    "fft": [
        Sample(_transform("FFT"), ("n m:c16",), ("f8",)),
        Sample(_transform("IFFT", 2), ("n m 3:c16",), ("f8",)),
        Sample(_transform("RFFT"), ("n m",), ("f8", "f4")),
        Sample(_transform("IRFFT"), ("n 2 m:c16",), ("f8",)),
    ],
    "top_k": [Sample(op("top_k", _top), ("n m",), NUMBERS)],
    "approx_top_k": [
        Sample(_approx_top(1), ("n m", "n m:i8"), NUMBERS),
        Sample(_approx_top(0), ("m n", "m n:i8"), NUMBERS),
    ],
    "reduce_window": [
        Sample(_pooled(("add",), 1, 3, low=1, high=1), ("n m 2",), NUMBERS),
        Sample(_pooled(("max", "min"), 0, 2, stride=2), ("m n", "m n"), NUMBERS),
        Sample(_pooled(("mul",), 1, 2, base=2, by=2, low=-1), ("n m",), ("f8", "i8")),
        Sample(_pooled(("add",), 1, 1), ("n m",), NUMBERS),
    ],
    "select_and_scatter": [
        Sample(_unpooled, ("n 6 m", "n 3 m"), NUMBERS),
        Sample(_unpooled_beyond, ("n 4 m", "n 4 m"), NUMBERS),
    ],
    "convolution": [
        Sample(_convolved("b0f,0io->b0f", padding=((1, 0),)), ("n 5 m", "3 m 4"), NUMBERS),
        Sample(_convolved("b0f,0io->b0f"), ("2 4 n", "2 n m"), ("f8", "i8")),
        Sample(
            _convolved("bf01,oi01->bf01", window_strides=(2, 1), rhs_dilation=(1, 2), lhs_dilation=(1, 2),
                       window_reversal=(True, False)),
            ("n 2 5 4", "m 2 2 2"), ("f8",),
        ),
        Sample(lambda x, w: _convolved("b0f,0io->b0f", feature_group_count=x.shape[2] // 2)(x, w),
               ("m 4 2n", "2 2 3n"), ("f8", "i8"), empty=False),
        Sample(lambda x, w: _convolved("b0f,0io->b0f", feature_group_count=x.shape[2])(x, w),
               ("m 4 n", "2 1 n"), ("f8", "i8"), empty=False),
        Sample(lambda x, w: _convolved("b0f,0io->0bf", batch_group_count=3)(x, w),
               ("3n 4 m", "2 m 6"), ("f8", "i8"), empty=False),
    ],
    "stablehlo.gather": [
        Sample(_rows, ("5 m", "n 2:points"), ALL),
        Sample(_blocks, ("7 m", "n 2:points"), NUMBERS),
        Sample(_points, ("n 4 m", "2 n 1:points"), NUMBERS),
        Sample(_points_first, ("n 4 m", "1 n 2:points"), NUMBERS),
    ],
    "stablehlo.scatter": [
        Sample(_scattered(**ROWS), ("5 m", "n 1:points", "n m"), NUMBERS),
        Sample(_scattered("max", **SHIFTED), ("5 m", "n 2:points", "n m"), NUMBERS),
        Sample(_scattered("add", **PARTS), ("5 4 m", "n 2:points", "n 2 m"), NUMBERS),
        Sample(_scattered(None, **BATCHES), ("n 6 m", "n 2 1:apart", "n 2 m"), NUMBERS),
        Sample(_scattered("min", **ROWS), ("5 m", "5 m", "n 1:points", "n m", "n m"), NUMBERS),
    ],
    "dynamic_slice": [
        Sample(_sliced(None, 2), ("n 5", ":start", ":start"), ALL),
        Sample(_sliced(2, None, None), ("4 n m", ":start", ":start", ":start"), NUMBERS),
    ],
    "dynamic_update_slice": [
        Sample(op("dynamic_update_slice"), ("n 5", "n 2", ":start", ":start"), ALL),
        Sample(op("dynamic_update_slice"), ("6 n m", "3 n m", ":start", ":start", ":start"), NUMBERS),
    ],
    "bitcast_convert": [
        Sample(_recast, ("n m",), NUMBERS),
        Sample(_recast_narrow, ("n m",), NUMBERS),
        Sample(_recast_wide, ("n m",), NUMBERS),
    ],
    "reverse": [
        Sample(op("reverse", dimensions=(0,)), ("n m",), ALL),
        Sample(op("reverse", dimensions=(0, 2)), ("n m 3",), NUMBERS),
    ],
    "batch_norm_inference": [
        Sample(op("batch_norm_inference", feature_index=1, epsilon=1e-3), ("n m 2", "m", "m", "m", "m"), FLOATS,
               "positive"),
        Sample(op("batch_norm_inference", feature_index=0, epsilon=1e-3), ("n m", "n", "n", "n", "n"), FLOATS,
               "positive"),
    ],
    "core.constant": [Sample(_constant, ("n m",), FLOATS)],
    "rng": [Sample(_numbers, ("n m",), FLOATS)],
    "rng_bit_generator": [Sample(_bits, ("n m", "2:u8"), NUMBERS)],
}  # fmt: skip


def _reflectors(a: Any) -> list[Any]:
    return list(call("qr", [a], _packed(a)))

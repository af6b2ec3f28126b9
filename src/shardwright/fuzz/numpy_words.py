"""What the fuzzer says in NumPy: every family of rules, with the arguments that users give."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from .drawing import Unfit, Word, Writer, apart, numeric, off
from .programs import Name, Ref

SMOOTH = ("tanh", "negative", "abs", "sin", "cos", "square", "exp", "arctan", "cosh", "expm1", "conjugate", "cbrt",
          "sinh", "arcsinh", "positive", "deg2rad", "real")  # fmt: skip
JUMPING = ("floor", "ceil", "sign", "rint", "trunc", "isnan", "isinf", "isfinite", "logical_not", "signbit")
OF_TWO = ("add", "subtract", "multiply", "maximum", "minimum", "hypot", "arctan2", "logaddexp", "logaddexp2", "fmax",
          "fmin", "copysign")  # fmt: skip
OF_INTEGERS = ("bitwise_and", "bitwise_or", "bitwise_xor", "floor_divide", "remainder", "fmod", "gcd", "left_shift",
               "right_shift", "lcm", "power")  # fmt: skip
OF_TRUTH = ("logical_and", "logical_or", "logical_xor")
COMPARISONS = ("less", "greater_equal", "equal", "not_equal", "less_equal", "greater")
SUMS = ("sum", "mean", "max", "min", "prod", "any", "all", "var", "std", "ptp", "count_nonzero", "nansum", "nanmax",
        "nanmean", "nanmin", "nanprod", "nanvar")  # fmt: skip
DTYPES = ("float64", "float32", "int64", "int32", "bool", "float16", "int8")


def unary(w: Writer) -> None:
    x = w.some()
    w.call(f"np.{w.one(SMOOTH)}", x)


def jump(w: Writer) -> None:
    x = w.some()
    if not off(numeric(w.of(x)) * 2 % 1, 0.0, 1.0):
        raise Unfit
    w.call(f"np.{w.one(JUMPING)}", x)


def root(w: Writer) -> None:
    """Functions of positive numbers."""
    x = w.call("np.abs", w.ranked(0, floating=True))
    y = w.call("np.add", x, w.one((0.5, 1.0)))
    w.call(f"np.{w.one(('sqrt', 'log', 'log1p', 'reciprocal', 'log2', 'log10', 'exp2', 'arccosh'))}", y)


def binary(w: Writer) -> None:
    x = w.some()
    pair = [x, w.like(x) if w.chance(0.85) else w.one((2, -1.5, 0.5, 3))]
    w.random.shuffle(pair)
    function = w.one(OF_TWO)
    if function in ("arctan2", "copysign") and not all(off(w.of(r), 0.0) for r in pair if isinstance(r, Ref)):
        raise Unfit
    w.call(f"np.{function}", *pair)


def quotient(w: Writer) -> None:
    x = w.ranked(0, floating=True)
    below = w.call("np.add", w.call("np.square", w.like(x)), 0.5)
    w.call("np.divide", x, below)


def integers(w: Writer) -> None:
    x = w.input([w.size(), w.size()], w.one(("int64", "int32"))) if w.chance(0.4) else w.some(lambda r: w.is_whole(r))
    w.call(f"np.{w.one(OF_INTEGERS)}", x, w.one((3, 2, 5)))


def logic(w: Writer) -> None:
    x = w.some(lambda r: w.dtype(r) == "bool")
    w.call(f"np.{w.one(OF_TRUTH)}", x, w.like(x))


def compare(w: Writer) -> None:
    x = w.some()
    y = w.like(x)
    if not off(numeric(w.of(x)).astype(float) - numeric(w.of(y)), 0.0):
        raise Unfit
    mask = w.call(f"np.{w.one(COMPARISONS)}", x, y)
    if w.chance(0.7):
        w.call("np.where", mask, x, w.one((w.like(x), 0.0, 1)))


def cast(w: Writer) -> None:
    x = w.some()
    to = w.one(DTYPES)
    if "float" not in to and not off(numeric(w.of(x)) % 1, 0.0, 1.0):
        raise Unfit
    if to == "int8" and np.abs(numeric(w.of(x))).max(initial=0) > 100:
        raise Unfit
    w.call(".astype", x, Name(f"np.{to}"))


def reduce(w: Writer) -> None:
    x = w.ranked(1)
    count = w.random.randint(1, w.rank(x))
    axes = tuple(w.random.sample(range(w.rank(x)), count))
    function = w.one(SUMS)
    if function in ("any", "all", "count_nonzero") and not off(w.of(x), 0.0):
        raise Unfit
    axis: Any = None if w.chance(0.15) else axes[0] if count == 1 else axes
    w.call(f"np.{function}", x, axis=axis, **({"keepdims": True} if w.chance(0.4) else {}))


def norm(w: Writer) -> None:
    x = w.ranked(1, 2, floating=True)
    w.call("np.linalg.norm", x, axis=w.dim(x), **({"keepdims": True} if w.chance(0.4) else {}))


def matmul(w: Writer) -> None:
    x = w.ranked(1)
    *batch, k = w.shape(x)
    shapes = [(k, w.size()), (k, w.size()), (k,), *([(*batch[:-1], k, w.size())] if len(batch) > 1 else [])]
    shape = w.one(shapes)
    known = w.values(lambda r: w.rank(r) >= 1 and w.shape(r)[max(0, w.rank(r) - 2)] == k and w.dtype(r) == w.dtype(x))
    other = w.one(known) if known and w.chance(0.5) else w.input(shape, _plain(w.dtype(x)))
    w.call(f"np.{w.one(('matmul', 'matmul', 'dot'))}", x, other)


def einsum(w: Writer) -> None:
    x = w.ranked(2, 3)
    letters = "abc"[: w.rank(x)]
    sizes = dict(zip(letters, w.shape(x)))
    inner = w.one(letters)
    outer = w.one(("z", "", inner))
    size = {**sizes, "z": w.size()}
    second = "".join(dict.fromkeys(inner + outer + (w.one(letters) if w.chance(0.3) else "")))
    out = [c for c in dict.fromkeys(letters + second) if c != inner or w.chance(0.3)]
    w.random.shuffle(out)
    y = w.input([size[c] for c in second], _plain(w.dtype(x)))
    w.call("np.einsum", f"{letters},{second}->{''.join(out)}", x, y)


def tensordot(w: Writer) -> None:
    x = w.ranked(1, 3)
    d = w.random.randrange(w.rank(x))
    y = w.input((w.size(), w.shape(x)[d]), _plain(w.dtype(x)))
    w.call("np.tensordot", x, y, axes=([d], [1]))


def contracted(w: Writer) -> None:
    """Products by other names, and of more operands."""
    x = w.ranked(2, 2, floating=True)
    m, k = w.shape(x)
    which = w.random.randrange(7)
    if which == 0:
        w.call("np.inner", x, w.input((w.size(), k), w.dtype(x)))
    elif which == 1:
        w.call("np.vdot", x, w.input((m, k), w.dtype(x)))
    elif which == 2:
        n = w.size()
        w.call("np.einsum", "ij,kj,k->ik", x, w.input((n, k), w.dtype(x)), w.input((n,), w.dtype(x)))
    elif which == 3:
        n = w.size()
        w.call("np.linalg.multi_dot", [x, w.input((k, n), w.dtype(x)), w.input((n, w.size()), w.dtype(x))])
    elif which == 4:
        w.call("np.einsum", "...i,...i->...", x, w.like(x))
    else:
        square = w.call("np.matmul", x, w.input((k, m), w.dtype(x)))
        w.call(*w.one((("np.linalg.matrix_power", square, 2), ("np.einsum", "ii->i", square), ("np.trace", square))))


def outer(w: Writer) -> None:
    x, y = w.ranked(1, 1), w.ranked(1, 1)
    w.call(f"np.{w.one(('outer', 'kron', 'outer'))}", x, y)


def transpose(w: Writer) -> None:
    x = w.ranked(1)
    order = list(range(w.rank(x)))
    w.random.shuffle(order)
    which = w.random.randrange(4)
    if which == 0 and w.rank(x) >= 2:
        w.call("np.swapaxes", x, 0, -1)
    elif which == 1:
        w.call("np.moveaxis", x, w.dim(x), w.dim(x))
    else:
        w.call("np.transpose", x, tuple(order))


def reshape(w: Writer) -> None:
    """Dims are merged, split, or both: also where sizes do not fit each other."""
    x = w.some()
    shape: list[Any] = list(w.shape(x))
    for _ in range(w.random.randint(1, 2)):
        if len(shape) > 1 and w.chance(0.5):
            d = w.random.randrange(len(shape) - 1)
            shape[d : d + 2] = [shape[d] * shape[d + 1]]
        elif shape:
            d = w.random.randrange(len(shape))
            parts = [p for p in range(1, shape[d] + 1) if shape[d] % p == 0]
            p = w.one(parts)
            shape[d : d + 1] = [p, shape[d] // p]
    if shape and prod(shape) and w.chance(0.15):
        shape[w.random.randrange(len(shape))] = -1
    w.call("np.reshape", x, tuple(shape), **({"order": "F"} if w.chance(0.1) else {}))


def squeeze(w: Writer) -> None:
    x = w.some()
    if w.chance(0.5):
        w.call("np.expand_dims", x, w.random.randint(-w.rank(x) - 1, w.rank(x)))
    else:
        w.call("np.squeeze", x)


def index(w: Writer) -> None:
    """Steps, negative steps, single entries, new dims."""
    x = w.ranked(1)
    key: list[Any] = [a_slice(w, size) if w.chance(0.6) else slice(None) for size in w.shape(x)]
    if w.chance(0.1):
        key = [..., *key[1:]]
    elif w.chance(0.25):
        key[w.random.randrange(len(key))] = w.one((0, -1))
    if w.chance(0.2):
        key.insert(w.random.randrange(len(key) + 1), None)
    w.call("[]", x, tuple(key))


def write(w: Writer) -> None:
    """A write into a copy, then what is left of it."""
    x = w.ranked(1)
    base = w.call(w.one(("np.copy", "np.negative")), x)
    key = a_place(w, base)
    part = w.shape_at(base, key)
    value: Any = w.one((0, 2))
    if part is not None and w.chance(0.7):
        value = w.input(part, _plain(w.dtype(base)))
    w.call("[]=", base, key, value)
    w.changed.add(base.index)


def a_place(w: Writer, base: Ref) -> Any:
    """What one writes to: slices, an entry, rows that an array names, where a mask holds."""
    shape = w.shape(base)
    if w.chance(0.2):
        return w.input(shape[: w.random.randint(1, len(shape))], "bool")
    if w.chance(0.25) and shape[0]:
        rows = w.input((w.random.randint(1, shape[0]),), "int64", "distinct", shape[0])
        return rows if w.chance(0.5) else (rows, *(a_slice(w, size) for size in shape[1:2]))
    key = [a_slice(w, size) if w.chance(0.6) else slice(None) for size in shape]
    if w.chance(0.2) and shape[0]:
        return (w.one((0, -1)), *key[1:])
    return tuple(key)


def gather(w: Writer) -> None:
    x = w.ranked(1)
    d = w.dim(x)
    size = w.shape(x)[d]
    if not size:
        raise Unfit
    which = w.random.randrange(3)
    if which == 0:
        shape = w.one(((w.size(),), (2, 3), ()))
        w.call("np.take", x, w.input(shape, "int64", "below", size), axis=d)
    elif which == 1:
        shape = tuple(w.size() if e == d % w.rank(x) else n for e, n in enumerate(w.shape(x)))
        w.call("np.take_along_axis", x, w.input(shape, "int64", "below", size), axis=d)
    else:
        w.call("[]", x, w.input((w.size(),), "int64", "below", w.shape(x)[0]))


def concat(w: Writer) -> None:
    x = w.ranked(1)
    d, shape = w.dim(x), w.shape(x)
    at = d % len(shape)
    fits = w.values(lambda r: w.rank(r) == len(shape) and w.dtype(r) == w.dtype(x)
                    and all(a == b or e == at for e, (a, b) in enumerate(zip(w.shape(r), shape))))  # fmt: skip
    others = w.random.sample(fits, min(len(fits), w.random.randint(1, 2)))
    function = w.one(("concatenate", "concatenate", "concatenate", "stack", "stack", "other"))
    if function == "concatenate":
        w.call("np.concatenate", [x, *others], axis=d)
        return
    others = [r for r in others if w.shape(r) == shape]
    if function == "stack":
        w.call("np.stack", [x, *others], axis=d)
    else:
        w.call(f"np.{w.one(('vstack', 'hstack', 'dstack', 'column_stack'))}", [x, *others])


def pad(w: Writer) -> None:
    x = w.ranked(1, 3)
    widths = tuple((w.random.randint(0, 2), w.random.randint(0, 2)) for _ in w.shape(x))
    w.call("np.pad", x, widths, constant_values=w.one((0, 1.5, -2)))


def shift(w: Writer) -> None:
    x = w.ranked(1)
    which = w.random.randrange(10)
    if which < 4:
        w.call("np.roll", x, w.random.randint(-3, 3), axis=w.dim(x))
    elif which < 8:
        w.call("np.flip", x, axis=w.dim(x))
    elif w.rank(x) > 1:
        two = [("np.roll", x, (1, -2), (0, 1)), ("np.flip", x), ("np.rot90", x, w.random.randint(-1, 2))]
        w.call(*w.one(two))
    else:
        w.call("np.roll", x, 2)


def repeat(w: Writer) -> None:
    x = w.ranked(1, 3)
    which = w.random.randrange(4)
    if which == 3:
        w.call("np.repeat", x, [w.random.randint(0, 2) for _ in range(w.shape(x)[0])], axis=0)
    elif which == 0:
        w.call("np.repeat", x, w.random.randint(1, 3), axis=w.dim(x))
    elif which == 1:
        w.call("np.tile", x, tuple(w.random.randint(1, 2) for _ in w.shape(x)))
    else:
        w.call("np.broadcast_to", x, (w.size(), *w.shape(x)))


def scan(w: Writer) -> None:
    x = w.ranked(1)
    function = w.one(("cumsum", "cumsum", "cumprod", "diff", "nancumsum"))
    axis = None if function != "diff" and w.chance(0.1) else w.dim(x)
    w.call(f"np.{function}", x, axis=axis, **({"n": 2} if function == "diff" and w.chance(0.3) else {}))


def order(w: Writer) -> None:
    x = w.ranked(1)
    d = w.dim(x)
    function = w.one(("sort", "argsort", "argmax", "argmin"))
    axis = None if w.chance(0.15) else d
    if function != "sort" and not apart(w.of(x), axis):
        raise Unfit
    more = {"kind": "stable"} if function == "argsort" else {}
    w.call(f"np.{function}", x, axis=axis, **more)


def deep(w: Writer) -> None:
    """Functions of deep learning, which come apart into smaller ones."""
    x = w.ranked(1, floating=True)
    which = w.random.randrange(3)
    if which == 0:
        w.call(f"swn.{w.one(('softmax', 'log_softmax', 'logsumexp'))}", x, axis=w.dim(x))
    elif which == 1:
        size = w.shape(x)[-1]
        w.call("swn.layer_norm", x, w.input((size,)), w.input((size,)))
    else:
        w.call(f"swn.{w.one(('gelu', 'silu', 'relu'))}", x)


def attention(w: Writer) -> None:
    b, h, s, d = w.one((1, 2, 3)), w.one((1, 2, 4)), w.one((2, 4, 6)), w.one((2, 4))
    shared = 1 if w.chance(0.2) else h  # heads of keys and values: one for all, or each its own
    q, k, v = (w.input((b, heads, s, d)) for heads in (h, shared, shared))
    more: dict[str, Any] = {"causal": True} if w.chance(0.4) else {}
    if not more and w.chance(0.3):
        more = {"mask": w.input((s, s), "bool")}
    w.call("swn.attention", q, k, v, **more)


def loss(w: Writer) -> None:
    x = w.ranked(1, 3, floating=True)
    *rows, classes = w.shape(x)
    w.call("swn.cross_entropy", x, w.input(rows, "int64", "below", classes))


def triangle(w: Writer) -> None:
    if w.chance(0.2):
        w.call("np.diag", w.ranked(1, 1), w.random.randint(-1, 1))
        return
    x = w.ranked(2)
    which = w.random.randrange(3)
    if which == 0:
        w.call(f"np.{w.one(('diagonal', 'trace'))}", x, w.random.randint(-1, 1))
    else:
        w.call(f"np.{w.one(('tril', 'triu'))}", x, k=w.random.randint(-1, 1))


def clip(w: Writer) -> None:
    x = w.ranked(0, floating=True)
    w.call("np.clip", x, -0.5, 0.75)


def created(w: Writer) -> None:
    x, size = w.some(), w.size()
    made = w.call("np.arange", size, like=x)
    if w.chance(0.5):
        w.call("np.multiply", w.call("np.ones", (w.size(), size), like=x), made)


def chosen(w: Writer) -> None:
    """Among several by a mask; with weights; products across."""
    x = w.ranked(1, 3, floating=True)
    which = w.random.randrange(4)
    if which == 0:
        mask = w.input(w.shape(x), "bool")
        w.call("np.select", [mask, w.input(w.shape(x), "bool")], [x, w.like(x)], 0.5)
    elif which == 1:
        weights = w.call("np.add", w.call("np.square", w.input((w.shape(x)[0],))), 0.5)
        w.call("np.average", x, axis=0, weights=weights)
    elif which == 2:
        w.call("np.nan_to_num", x)
    else:
        y = w.input((*w.shape(x)[:-1], 3), w.dtype(x))
        w.call("np.cross", y, w.input(w.shape(y), w.dtype(x)))


def several(w: Writer) -> None:
    x = w.ranked(1)
    which = w.random.randrange(3)
    if which == 0:
        pair = w.call("np.array_split", x, w.random.randint(2, 3), axis=w.dim(x))
    elif which == 1:
        if not off(numeric(w.of(x)).astype(float) % 1.5 / 1.5, 0.0, 1.0):
            raise Unfit
        pair = w.call("np.divmod", x, 1.5)
    else:
        if not off(numeric(w.of(x)) % 1, 0.0, 1.0):
            raise Unfit
        pair = w.call("np.modf", x)
    w.part(pair)
    w.part(pair)


def fresh(w: Writer) -> None:
    """An input of another kind, read at once."""
    shape = [w.size() for _ in range(w.one((1, 2, 2, 3)))]
    dtype, kind = w.one((("int64", "normal"), ("bool", "normal"), ("int32", "normal"), ("float32", "normal"),
                         ("float16", "normal"), ("float64", "nan"), ("int8", "normal")))  # fmt: skip
    x = w.input(shape, dtype, kind)
    w.call("np.logical_not" if dtype == "bool" else "np.negative", x)


def a_slice(w: Writer, size: int) -> slice:
    if w.chance(0.25):
        return slice(None, None, w.one((-1, -1, -2)))
    start = w.random.randrange(max(1, size))
    stop = w.random.randint(start + 1, max(start + 1, size))
    step = w.one((None, None, 1, 2, 3))
    return slice(start or None, w.one((stop, stop - size if stop < size else None)), step)


def _plain(dtype: str) -> str:
    return "float64" if dtype.startswith("complex") else dtype


WORDS: tuple[tuple[int, Word], ...] = (
    (3, unary), (1, jump), (1, root), (4, binary), (1, quotient), (2, integers), (1, logic), (2, compare), (2, cast),
    (4, reduce), (1, norm), (4, matmul), (2, einsum), (1, tensordot), (1, outer), (3, transpose), (5, reshape),
    (1, squeeze), (3, index), (2, write), (2, gather), (3, concat), (2, pad), (2, shift), (2, repeat), (2, scan),
    (2, order), (2, deep), (2, attention), (1, loss), (1, triangle), (1, clip), (1, created), (1, several), (1, fresh),
    (1, contracted), (1, chosen),
)  # fmt: skip

"""What the fuzzer says in PyTorch of indices: lookups, and writes in place and into copies."""

from __future__ import annotations

from .drawing import Unfit, Writer
from .numpy_words import a_place


def write(w: Writer) -> None:
    """In-place writes: into a part of a copy, or over the whole of it."""
    x = w.ranked(1, floating=True)
    base = w.call(".clone", x)
    which = w.random.randrange(4)
    if which in (0, 3):
        key = a_place(w, base)
        if any(isinstance(k, slice) and (k.step or 1) < 0 for k in (key if isinstance(key, tuple) else ())):
            raise Unfit
        part = w.shape_at(base, key)
        w.call("[]=", base, key,
               w.input(part, w.dtype(x)) if part is not None and w.chance(0.7) else w.one((0.0, 2.0)))  # fmt: skip
    elif which == 1:
        w.call(f".{w.one(('add_', 'mul_', 'sub_'))}", base, w.like(x) if w.chance(0.7) else 1.5)
    else:
        view = w.call("torch.select", base, w.dim(x), 0)
        w.call(f".{w.one(('zero_', 'neg_'))}", view)
        w.changed.add(view.index)
        w.call("torch.mul", base, 1.0)
        return
    w.changed.add(base.index)


def gather(w: Writer) -> None:
    x = w.ranked(1)
    d = w.dim(x)
    size = w.shape(x)[d]
    if not size:
        raise Unfit
    which = w.random.randrange(5)
    if which == 4:
        shape = tuple(w.size() if e == d % w.rank(x) else n for e, n in enumerate(w.shape(x)))
        w.call("torch.take_along_dim", x, w.input(shape, "int64", "below", size), dim=d)
    elif which == 0:
        w.call("torch.index_select", x, d, w.input((w.size(),), "int64", "below", size))
    elif which == 1:
        shape = tuple(w.random.randint(1, max(1, n)) for n in w.shape(x))
        w.call("torch.gather", x, d, w.input(shape, "int64", "below", size))
    elif which == 2 and w.rank(x) == 2 and w.is_float(x):
        w.call("F.embedding", w.input(w.one(((w.size(),), (2, 3))), "int64", "below", w.shape(x)[0]), x)
    else:
        w.call("[]", x, w.input((w.size(),), "int64", "below", w.shape(x)[0]))


def scatter(w: Writer) -> None:
    x = w.ranked(1, 3, floating=True)
    shape, d = w.shape(x), w.dim(x)
    at = d % len(shape)
    which = w.random.randrange(6)
    part = tuple(w.random.randint(1, max(1, n)) for n in shape)
    if which == 3:  # several rows may say the same, so all of them say one number
        w.call("torch.scatter", x, d, w.input(part, "int64", "below", shape[at]), 0.5)
    elif which == 4:
        kind = w.one(("sum", "amax", "mean"))
        source = w.input(part, w.dtype(x))
        w.call("torch.scatter_reduce", x, d, w.input(part, "int64", "below", shape[at]), source, kind)
    elif which == 5:
        w.call("torch.index_fill", x, d, w.input((w.size(),), "int64", "below", shape[at]), 0.25)
    elif which == 0:
        count = w.size()
        rows = tuple(count if e == at else n for e, n in enumerate(shape))
        w.call("torch.index_add", x, d, w.input((count,), "int64", "below", shape[at]), w.input(rows, w.dtype(x)))
    elif which == 1:
        w.call("torch.scatter_add", x, d, w.input(part, "int64", "below", shape[at]), w.input(part, w.dtype(x)))
    elif w.chance(0.5) or not shape[0]:
        count = w.size()
        base, name = (w.call(".clone", x), ".index_put_") if w.chance(0.4) else (x, "torch.index_put")
        w.call(name, base, [w.input((count,), "int64", "below", shape[0])], w.input((count, *shape[1:]), w.dtype(x)),
               accumulate=True)  # fmt: skip
        if base is not x:
            w.changed.add(base.index)
    else:
        count = w.random.randint(1, shape[0])
        named, values = w.input((count,), "int64", "distinct", shape[0]), w.input((count, *shape[1:]), w.dtype(x))
        w.call(*w.one((("torch.index_put", x, [named], values), ("torch.index_copy", x, 0, named, values))))


def put_back(w: Writer) -> None:
    """What a write through a view comes to, called by its name."""
    x = w.ranked(1, 3, floating=True)
    shape, d = w.shape(x), w.dim(x)
    which = w.random.randrange(4)
    if which == 0:
        row = tuple(n for e, n in enumerate(shape) if e != d % len(shape))
        w.call("torch.select_scatter", x, w.input(row, w.dtype(x)), d, w.one((0, -1)))
    elif which == 1:
        part = tuple((n + 1) // 2 if e == d % len(shape) else n for e, n in enumerate(shape))
        w.call("torch.slice_scatter", x, w.input(part, w.dtype(x)), d, 0, shape[d], 2)
    elif which == 2 and len(shape) == 2:
        w.call("torch.diagonal_scatter", x, w.input((min(shape),), w.dtype(x)))
    else:
        w.call("torch.masked_scatter", x, w.input(shape, "bool"), w.input(shape, w.dtype(x)))

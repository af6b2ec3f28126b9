"""What the fuzzer says in PyTorch: every family of rules, with the arguments that users give."""

from __future__ import annotations

from typing import Any

from .drawing import Unfit, Word, Writer, apart, numeric, off
from .numpy_words import a_slice
from .programs import Name, Ref
from .torch_indexing import gather, put_back, scatter, write
from .torch_layers import attention, convolution, loss, norm, pool, softmax

SMOOTH = ("tanh", "neg", "abs", "sin", "square", "sigmoid", "erf", "exp", "cos", "atan", "expm1")
ACTIVATIONS = ("gelu", "silu", "relu", "softplus", "elu", "leaky_relu", "mish", "hardtanh", "logsigmoid", "relu6")
OF_TWO = ("add", "sub", "mul", "maximum", "minimum", "logaddexp", "hypot")
COMPARISONS = ("lt", "ge", "eq", "ne", "le", "gt")
SUMS = ("sum", "mean", "amax", "amin", "var", "std", "logsumexp", "any", "all", "prod", "count_nonzero",
        "nansum")  # fmt: skip
OF_TRUTH = ("logical_and", "logical_or", "logical_xor")
OF_INTEGERS = ("bitwise_and", "bitwise_or", "bitwise_xor", "remainder", "fmod", "floor_divide")
DTYPES = ("float64", "float32", "int64", "int32", "int8", "bool", "bfloat16")


def unary(w: Writer) -> None:
    w.call(f"torch.{w.one(SMOOTH)}", w.ranked(0, 5, floating=True))


def activation(w: Writer) -> None:
    x = w.ranked(0, 5, floating=True)
    if not off(w.of(x), 0.0, 1.0, -1.0):
        raise Unfit
    w.call(f"F.{w.one(ACTIVATIONS)}", x)


def jump(w: Writer) -> None:
    x = w.ranked(0, 5, floating=True)
    if not off(numeric(w.of(x)) * 2 % 1, 0.0, 1.0):
        raise Unfit
    w.call(f"torch.{w.one(('floor', 'ceil', 'sign', 'round', 'trunc', 'isnan', 'signbit'))}", x)


def root(w: Writer) -> None:
    x = w.call("torch.abs", w.ranked(0, floating=True))
    y = w.call("torch.add", x, w.one((0.5, 1.0)))
    w.call(f"torch.{w.one(('sqrt', 'log', 'log1p', 'reciprocal', 'rsqrt', 'log2'))}", y)


def binary(w: Writer) -> None:
    x = w.some()
    y = w.like(x) if w.chance(0.85) else w.one((2, -1.5, 0.5))
    w.call(f"torch.{w.one(OF_TWO)}" if isinstance(y, Ref) else f"torch.{w.one(OF_TWO[:3])}", x, y)


def quotient(w: Writer) -> None:
    x = w.ranked(0, floating=True)
    w.call("torch.div", x, w.call("torch.add", w.call("torch.square", w.like(x)), 0.5))


def three(w: Writer) -> None:
    x = w.ranked(1, floating=True)
    function = w.one(("addcmul", "lerp", "clamp", "pow", "addcdiv", "xlogy", "nan_to_num"))
    if function == "nan_to_num":
        w.call("torch.nan_to_num", x)
        return
    if function == "xlogy":
        w.call("torch.xlogy", x, w.call("torch.add", w.call("torch.square", w.like(x)), 0.5))
        return
    if function == "clamp":
        w.call("torch.clamp", x, -0.5, 0.75)
    elif function == "pow":
        w.call("torch.pow", x, w.one((2, 3)))
    elif function == "lerp":
        w.call("torch.lerp", x, w.like(x), 0.25)
    elif function == "addcdiv":
        below = w.call("torch.add", w.call("torch.square", w.like(x)), 0.5)
        w.call("torch.addcdiv", x, w.like(x), below, value=0.5)
    else:
        w.call("torch.addcmul", x, w.like(x), w.like(x), value=w.one((1, 0.5)))


def compare(w: Writer) -> None:
    x = w.some(lambda r: w.dtype(r) != "bool")
    y = w.like(x)
    if not off(numeric(w.of(x)).astype(float) - numeric(w.of(y)), 0.0):
        raise Unfit
    mask = w.call(f"torch.{w.one(COMPARISONS)}", x, y)
    which = w.random.randrange(3)
    if which == 0:
        w.call("torch.where", mask, x, w.one((w.like(x), 0.0)))
    elif which == 1:
        w.call("torch.masked_fill", x, mask, w.one((0, -1)))
    else:
        w.call("torch.logical_not", mask)


def logic(w: Writer) -> None:
    x = w.some(lambda r: w.dtype(r) == "bool")
    w.call(f"torch.{w.one(OF_TRUTH)}", x, w.like(x))


def integers(w: Writer) -> None:
    kinds = ("int64", "int32", "int8")
    x = w.input([w.size(), w.size()], w.one(kinds)) if w.chance(0.4) else w.some(lambda r: w.is_whole(r))
    if w.chance(0.2):
        w.call("torch.bitwise_not", x)
    else:
        w.call(f"torch.{w.one(OF_INTEGERS)}", x, w.one((3, 2, 5)))


def contracted(w: Writer) -> None:
    """Products by other names, and of more operands."""
    x = w.ranked(2, 2, floating=True)
    m, k = w.shape(x)
    dtype, n = w.dtype(x), w.size()
    which = w.random.randrange(7)
    if which == 0:
        w.call("torch.mv", x, w.input((k,), dtype))
    elif which == 1:
        w.call("torch.tensordot", x, w.input((n, k), dtype), dims=([1], [1]))
    elif which == 2:
        w.call("torch.einsum", "ij,kj,k->ik", x, w.input((n, k), dtype), w.input((n,), dtype))
    elif which == 3:
        w.call("torch.addr", x, w.input((m,), dtype), w.input((k,), dtype))
    elif which == 4:
        w.call("torch.addmv", w.input((m,), dtype), x, w.input((k,), dtype))
    elif which == 5:
        w.call("torch.kron", x, w.input((2, w.one((1, 2))), dtype))
    else:
        w.call("torch.trace", w.call("torch.matmul", x, w.input((k, m), dtype)))


def cast(w: Writer) -> None:
    x = w.some()
    to = w.one(DTYPES)
    if to == "int8" and abs(numeric(w.of(x))).max(initial=0) > 100:
        raise Unfit
    if "float" not in to and not off(numeric(w.of(x)) % 1, 0.0, 1.0):
        raise Unfit
    w.call(".to", x, Name(f"torch.{to}"))


def reduce(w: Writer) -> None:
    x = w.ranked(1)
    function = w.one(SUMS)
    if function in ("any", "all", "count_nonzero") and not off(w.of(x), 0.0):
        raise Unfit
    one = function in ("any", "all", "prod", "count_nonzero")
    dims = tuple(w.random.sample(range(w.rank(x)), 1 if one else w.random.randint(1, w.rank(x))))
    if function != "sum" and min(w.shape(x)[d] for d in dims) == 0:
        raise Unfit
    if function in ("amax", "amin") and not apart(w.of(x)):
        raise Unfit  # where two are equal but for roundings, the gradient goes to one of them
    keep = {"keepdim": True} if w.chance(0.4) and function != "count_nonzero" else {}
    more = {"correction": 0} if function in ("var", "std") and w.chance(0.7) else {}
    w.call(f"torch.{function}", x, dims[0] if one or len(dims) == 1 else dims, **more, **keep)


def all_reduce(w: Writer) -> None:
    x = w.ranked(1, floating=True)
    w.call(f"torch.{w.one(('sum', 'mean', 'norm'))}", x)


def matmul(w: Writer) -> None:
    x = w.ranked(1, floating=True)
    *batch, k = w.shape(x)
    shapes = [(k, w.size()), (k, w.size()), (k,), *([(*batch[:-1], k, w.size())] if len(batch) > 1 else [])]
    known = w.values(lambda r: w.rank(r) >= 1 and w.shape(r)[max(0, w.rank(r) - 2)] == k and w.dtype(r) == w.dtype(x))
    other = w.one(known) if known and w.chance(0.5) else w.input(w.one(shapes), w.dtype(x))
    w.call("torch.matmul", x, other)


def linear(w: Writer) -> None:
    x = w.ranked(1, floating=True)
    n, dtype = w.size(), w.dtype(x)
    bias = [w.input((n,), dtype)] if w.chance(0.5) else []
    w.call("F.linear", x, w.input((n, w.shape(x)[-1]), dtype), *bias)


def product(w: Writer) -> None:
    """Products of matrices with a third operand, or of batches."""
    x = w.ranked(2, 3, floating=True)
    *batch, m, k = w.shape(x)
    n, dtype = w.size(), w.dtype(x)
    if len(batch) == 1:
        y = w.input((*batch, k, n), dtype)
        if w.chance(0.5):
            w.call("torch.bmm", x, y)
        else:
            w.call("torch.baddbmm", w.input((*batch, m, n), dtype), x, y, alpha=w.one((1, 0.5)))
    else:
        w.call("torch.addmm", w.input(w.one(((n,), (m, n), (1, n))), dtype), x, w.input((k, n), dtype),
               beta=w.one((1, 0.5)))  # fmt: skip


def einsum(w: Writer) -> None:
    x = w.ranked(2, 3, floating=True)
    letters = "abc"[: w.rank(x)]
    sizes = dict(zip(letters, w.shape(x)))
    inner, outer = w.one(letters), w.one(("z", ""))
    size = {**sizes, "z": w.size()}
    second = "".join(dict.fromkeys(inner + outer + (w.one(letters) if w.chance(0.3) else "")))
    out = [c for c in dict.fromkeys(letters + second) if c != inner or w.chance(0.3)]
    w.random.shuffle(out)
    w.call("torch.einsum", f"{letters},{second}->{''.join(out)}", x, w.input([size[c] for c in second], w.dtype(x)))


def transpose(w: Writer) -> None:
    x = w.ranked(1)
    if w.chance(0.4) and w.rank(x) >= 2:
        w.call("torch.transpose", x, w.dim(x), w.dim(x))
    else:
        dims = list(range(w.rank(x)))
        w.random.shuffle(dims)
        w.call(".permute", x, tuple(dims))


def reshape(w: Writer) -> None:
    x = w.some()
    shape = list(w.shape(x))
    for _ in range(w.random.randint(1, 2)):
        if len(shape) > 1 and w.chance(0.5):
            d = w.random.randrange(len(shape) - 1)
            shape[d : d + 2] = [shape[d] * shape[d + 1]]
        elif shape:
            d = w.random.randrange(len(shape))
            p = w.one([p for p in range(1, shape[d] + 1) if shape[d] % p == 0])
            shape[d : d + 1] = [p, shape[d] // p]
    w.call(w.one((".reshape", ".view")), x, tuple(shape))


def squeeze(w: Writer) -> None:
    x = w.some()
    if w.chance(0.5):
        w.call("torch.unsqueeze", x, w.random.randint(-w.rank(x) - 1, w.rank(x)))
    else:
        w.call("torch.squeeze", x)


def index(w: Writer) -> None:
    x = w.ranked(1)
    key: list[Any] = []
    for size in w.shape(x):
        found = a_slice(w, size) if w.chance(0.6) else slice(None)
        key.append(slice(None) if (found.step or 1) < 0 else found)
    if w.chance(0.25):
        key[w.random.randrange(len(key))] = w.one((0, -1))
    if w.chance(0.2):
        key.insert(w.random.randrange(len(key) + 1), None)
    w.call("[]", x, tuple(key))


def rearranged(w: Writer) -> None:
    x = w.ranked(2)
    which = w.random.randrange(5)
    if which == 0:
        w.call("torch.flatten", x, 0, 1)
    elif which == 1:
        w.call("torch.movedim", x, w.dim(x), w.dim(x))
    elif which == 2:
        w.call("torch.rot90", x, w.random.randint(-1, 2), (0, 1))
    elif which == 3:
        w.call("torch.broadcast_to", x, (2, *w.shape(x)))
    else:
        w.call("torch.diff", x, dim=w.dim(x))


def part(w: Writer) -> None:
    x = w.ranked(1)
    d = w.dim(x)
    which = w.random.randrange(5)
    if which == 3:
        w.part(w.call("torch.unbind", x, dim=d))
    elif which == 4:
        w.part(w.call("torch.tensor_split", x, w.random.randint(2, 3), dim=d))
    elif which == 0:
        w.call("torch.narrow", x, d, 0, w.random.randint(1, max(1, w.shape(x)[d])))
    else:
        w.part(w.call(f"torch.{('split', 'chunk')[which - 1]}", x, w.random.randint(2, 3), dim=d))


def concat(w: Writer) -> None:
    x = w.ranked(1)
    d, shape = w.dim(x), w.shape(x)
    at = d % len(shape)
    fits = w.values(lambda r: w.rank(r) == len(shape) and w.dtype(r) == w.dtype(x)
                    and all(a == b or e == at for e, (a, b) in enumerate(zip(w.shape(r), shape))))  # fmt: skip
    others = w.random.sample(fits, min(len(fits), w.random.randint(1, 2)))
    function = w.one(("cat", "cat", "stack"))
    if function == "stack":
        others = [r for r in others if w.shape(r) == shape]
    w.call(f"torch.{function}", [x, *others], dim=d)


def pad(w: Writer) -> None:
    x = w.ranked(1, 4, floating=True)
    widths = tuple(w.random.randint(-1 if w.chance(0.2) else 0, 2) for _ in range(2 * w.random.randint(1, w.rank(x))))
    if w.rank(x) in (2, 3) and w.shape(x)[-1] > 2 and w.chance(0.3):
        w.call("F.pad", x, (1, 2), mode=w.one(("reflect", "replicate")))
    else:
        w.call("F.pad", x, widths, value=w.one((0.0, 1.5)))


def shift(w: Writer) -> None:
    x = w.ranked(1)
    if w.chance(0.5):
        two = w.rank(x) > 1 and w.chance(0.2)
        w.call("torch.roll", x, *(((1, -2), (0, 1)) if two else (w.random.randint(-3, 3), w.dim(x))))
    else:
        w.call("torch.flip", x, (w.dim(x),))


def repeat(w: Writer) -> None:
    x = w.ranked(1, 3)
    which = w.random.randrange(3)
    if which == 0:
        w.call("torch.repeat_interleave", x, w.random.randint(1, 3), dim=w.dim(x))
    elif which == 1:
        w.call(".repeat", x, tuple(w.random.randint(1, 2) for _ in w.shape(x)))
    else:
        w.call(".expand", x, (w.size(), *w.shape(x)))


def scan(w: Writer) -> None:
    x = w.ranked(0, floating=True)
    function = w.one(("cumsum", "cumsum", "logcumsumexp", "cumprod", "cummax"))
    if function == "cummax" and not apart(w.of(x)):
        raise Unfit
    made = w.call(f"torch.{function}", x, w.dim(x, scalars=True))
    if function == "cummax":
        w.call("[]", made, 0)


def order(w: Writer) -> None:
    x = w.ranked(0, floating=True)
    d = w.dim(x, scalars=True)
    if not apart(w.of(x), d):
        raise Unfit
    function = w.one(("sort", "argmax", "topk", "max", "argsort", "median", "kthvalue", "msort", "aminmax"))
    if function == "topk":
        w.part(w.call("torch.topk", x, w.random.randint(1, max(1, (w.shape(x) or (1,))[d])), dim=d))
    elif function == "kthvalue":
        w.part(w.call("torch.kthvalue", x, w.random.randint(1, max(1, (w.shape(x) or (1,))[d])), dim=d))
    elif function == "msort":
        w.call("torch.msort", x)
    elif function == "aminmax":
        w.part(w.call("torch.aminmax", x, dim=d))
    elif function in ("argmax", "argsort"):
        w.call(f"torch.{function}", x, d)
    else:
        w.part(w.call(f"torch.{function}", x, d))


def triangle(w: Writer) -> None:
    x = w.ranked(2)
    if w.chance(0.3):
        w.call("torch.diagonal", x)
    else:
        w.call(f"torch.{w.one(('tril', 'triu'))}", x, w.random.randint(-1, 1))


def unfold(w: Writer) -> None:
    x = w.ranked(1, 3)
    d = w.dim(x)
    w.call(".unfold", x, d, w.random.randint(1, max(1, w.shape(x)[d])), w.random.randint(1, 2))


def created(w: Writer) -> None:
    size = w.size()
    made = w.call("torch.arange", size, dtype=Name("torch.float32"))
    if w.chance(0.5):
        w.call("torch.mul", w.call("torch.ones", (w.size(), size)), made)


def fresh(w: Writer) -> None:
    shape = [w.size() for _ in range(w.one((1, 2, 2, 3)))]
    dtype = w.one(("int64", "bool", "int32", "float32", "bfloat16", "float64"))
    x = w.input(shape, dtype)
    w.call("torch.logical_not" if dtype == "bool" else "torch.neg", x)


WORDS: tuple[tuple[int, Word], ...] = (
    (3, unary), (2, activation), (1, jump), (1, root), (4, binary), (1, quotient), (2, three), (2, compare),
    (1, logic), (2, integers), (2, cast), (1, rearranged), (4, reduce), (1, all_reduce), (3, matmul), (2, linear),
    (1, product), (2, einsum), (3, transpose), (5, reshape), (1, squeeze), (3, index), (2, part), (3, write),
    (2, gather), (3, scatter), (1, put_back), (3, concat), (2, pad), (2, shift), (2, repeat), (2, scan), (2, order),
    (2, softmax), (2, norm), (2, convolution), (1, pool), (2, attention), (2, loss), (1, contracted), (1, triangle),
    (1, unfold), (1, created), (1, fresh),
)  # fmt: skip

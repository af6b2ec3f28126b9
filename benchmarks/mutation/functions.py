"""NumPy functions of many kinds, under random shardings on meshes of 2, 3, 4, 6 and more devices."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import shardwright as sw
from mutation.subjects import Subject, of_plan
from shardwright import P

MESHES = ("x=2", "x=3", "x=4", "a=2, b=2", "a=2, b=3", "a=4, b=2", "a=2, b=2, c=2", "x=6")
Function = Callable[..., Any]
FUNCTIONS: dict[str, tuple[Function, tuple[Any, ...]]] = {}
"""Name -> function and arguments; whole numbers among them are used as indices."""


def f(*shape: int) -> Any:
    return np.zeros(shape)


def i(*shape: int, below: int) -> Any:
    return np.arange(int(np.prod(shape))).reshape(shape) % below


def example(*arguments: Any) -> Callable[[Function], Function]:
    def add(function: Function) -> Function:
        FUNCTIONS[function.__name__] = (function, arguments)
        return function

    return add


@example(f(8, 6), f(6, 12), f(12), f(12, 6), f(6))
def mlp(x: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
    return np.tanh(x @ w1 + b1) @ w2 + b2


@example(f(8, 6), f(8, 4), f(6, 12), f(12, 4))
def descent(x: Any, y: Any, w1: Any, w2: Any) -> Any:
    """Forward, backward and update by hand: the loss is a mean over uneven shards where the mesh is odd."""
    h = np.tanh(x @ w1)
    e = h @ w2 - y
    g2 = h.T @ e / x.shape[0]
    g1 = x.T @ ((e @ w2.T) * (1 - h * h)) / x.shape[0]
    return np.mean(e * e), w1 - 0.1 * g1, w2 - 0.1 * g2


@example(f(10, 7))
def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


@example(f(2, 8, 4), f(2, 8, 4), f(2, 8, 4))
def attention(q: Any, k: Any, v: Any) -> Any:
    s = q @ np.swapaxes(k, 1, 2) * 0.5
    s = np.where(np.tri(8) > 0, s, -np.inf)
    e = np.exp(s - s.max(axis=-1, keepdims=True))
    return (e / e.sum(axis=-1, keepdims=True)) @ v


@example(f(6, 9), f(9), f(9))
def layer_norm(x: Any, w: Any, b: Any) -> Any:
    mean = x.mean(axis=-1, keepdims=True)
    var = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(var + 1e-5) * w + b


@example(f(12, 6), i(8, below=12), f(6, 5))
def lookup(table: Any, index: Any, w: Any) -> Any:
    return np.tanh(np.take(table, index, axis=0) @ w).sum(axis=0)


@example(f(12, 4), i(6, 4, below=12))
def lookup_along(table: Any, index: Any) -> Any:
    return np.take_along_axis(table, index, axis=0) * 2.0


@example(f(10, 8))
def triangles(x: Any) -> Any:
    return np.tril(x, 1) + np.triu(x, -2) * np.arange(8)


@example(f(8, 12))
def shifts(x: Any) -> Any:
    return np.roll(x, 3, axis=1) + x[::-1] * 2.0 + np.roll(x, -1, axis=0)


@example(f(9, 8))
def windows(x: Any) -> Any:
    return np.concatenate([x[1:7], x[:3] * 3.0], axis=0)[:, 2:] - x[:, :-2]


@example(f(8, 8), f(8, 8))
def reductions(x: Any, y: Any) -> Any:
    return x.max(axis=0) - y.min(axis=1), np.prod(x, axis=1), (x * y).sum(), np.exp(x).sum(axis=0)


@example(f(6, 8), f(8, 6))
def counted(x: Any, w: Any) -> Any:
    best = np.argmax(x @ w, axis=1)
    return best, np.sort(x, axis=0), np.cumsum(x, axis=1), (x > 0).sum(axis=0)


@example(f(4, 400), f(4, 400))
def orders(x: Any, y: Any) -> Any:
    """Long rows: in half precision there are ties."""
    return np.argmax(x, axis=1), np.argsort(x * 0.5, axis=1), np.argmin(x + y, axis=1)


@example(i(12, 8, below=96) * 601 % 97 + 2048, i(12, 8, below=96) * 433 % 89 + 2048, i(12, below=12) * 7 % 40 + 2028)
def compared(a: Any, b: Any, n: Any) -> Any:
    """Whole numbers as floats, which half precision does not tell apart, in nothing but comparisons and orders."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    lengths = n.astype(np.float64)
    return (x > y).sum(axis=0), lengths < 2049.0, np.argmax(x, axis=0), np.arange(2040.0, 2060.0) < lengths[:, None]


@example(i(8, 6, below=5), i(6, 8, below=7))
def whole_numbers(a: Any, b: Any) -> Any:
    return a @ b, np.maximum(a, 2) - a // 2, (a * 3).sum(axis=0)


@example(f(4, 12), f(12, 6))
def folded(x: Any, w: Any) -> Any:
    y = (x @ w).reshape(2, 2, 6).transpose(1, 0, 2).reshape(4, 6)
    return x.reshape(4, 3, 4).sum(axis=1), y + y.mean()


@example(f(3, 6, 4), f(4, 5), f(5, 3))
def einsums(x: Any, w: Any, v: Any) -> Any:
    return np.einsum("bsd,dh->bsh", x, w) @ v, np.einsum("bsd,bsd->s", x, x)


@example(f(8, 6), f(6))
def masked(x: Any, b: Any) -> Any:
    y = np.where(x > b, x - b, 0.25)
    return np.clip(y, -1.0, 1.0).mean(axis=0), np.pad(y, ((1, 2), (0, 0)), constant_values=0.5)


@example(f(8, 10), f(8))
def losses(logits: Any, weight: Any) -> Any:
    top = logits.max(axis=1)
    total = np.log(np.exp(logits - top[:, None]).sum(axis=1)) + top
    return (total * weight).sum() / weight.sum(), np.abs(logits).mean()


@example(f(12, 6), f(12, 6), f(12, 6), f(12, 6))
def adam(w: Any, g: Any, m: Any, v: Any) -> Any:
    m, v = 0.9 * m + 0.1 * g, 0.999 * v * v + 0.001 * g * g
    return w - 0.01 * m / (np.sqrt(v) + 1e-3), m, v


@example(f(6, 6), f(6, 6))
def square(x: Any, y: Any) -> Any:
    z = x.T @ y - y.T @ x
    return z.T - z * x, np.stack([z, x]).sum(axis=0)


def random_spec(rng: random.Random, mesh: Any, shape: tuple[int, ...]) -> Any:
    """Some axes on some dims."""
    dims: list[list[str]] = [[] for _ in shape]
    for name in rng.sample(mesh.axis_names, len(mesh.axis_names)):
        if shape and rng.random() < 0.85:
            dims[rng.randrange(len(shape))].append(name)
    return P(*(tuple(dim) if dim else None for dim in dims))


def mapped(name: str, seed: int) -> Subject:
    """A function under random shardings."""
    function, arguments = FUNCTIONS[name]
    rng = random.Random(f"{name} {seed}")
    text = rng.choice(MESHES)
    mesh = sw.DeviceMesh(text)
    specs = tuple(random_spec(rng, mesh, x.shape) for x in arguments)
    plan = sw.shard_map(function, text, in_specs=specs, verify="off").plan(*arguments)
    return of_plan(f"{name} {seed}", plan, arguments)


def subjects(each: int) -> Iterator[Subject]:
    """So many of each function, all of which really split."""
    for name in FUNCTIONS:
        found = 0
        for seed in range(each * 8):
            subject = mapped(name, seed)
            if subject.splits:
                found += 1
                yield subject
            if found == each:
                break

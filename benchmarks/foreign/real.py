"""All ranks on real numbers, in lock-step: whether a parallel program gives what the single one does.

Nothing of the proof's arithmetic is used: ops are PyTorch's own, on random tensors in float64, whatever the program's
element type.  Results are equal where they differ by less than `TOLERANCE` of the largest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from hashlib import blake2b
from math import inf
from typing import Any

import numpy as np
import torch

from shardwright.errors import ShardwrightError
from shardwright.frontends.ranks import COMMUNICATION, CONSTANT, PARAMETER, Given, Placed, Traced
from shardwright.frontends.torch.compute import prepare
from shardwright.frontends.torch.dtypes import torch_dtype
from shardwright.frontends.torch.foreign.attention import BACKWARD, FORWARD
from shardwright.ir.graph import Node
from shardwright.proof.foreign import Case
from shardwright.proof.foreign.judging import ways
from shardwright.proof.foreign.numbers import Number

TOLERANCE = 1e-9
Values = dict[int, Any]


class Waiting(ShardwrightError):
    """Ranks that wait for each other: there is no result."""


def _wide(attr: Any) -> Any:
    """Names of element types as float64."""
    if isinstance(attr, tuple):
        return tuple(_wide(item) for item in attr)
    return {"f32": "f64", "bf16": "f64", "f16": "f64"}.get(attr, attr) if isinstance(attr, str) else attr


class Run:
    """One run of some ranks on the tensors of a seed."""

    def __init__(self, ranks: Sequence[Traced], shapes: Mapping[str, tuple[int, ...]], seed: int) -> None:
        self.ranks, self.shapes, self.seed = ranks, shapes, seed
        self.values: list[Values] = [
            {value: self._given(given, traced, value) for value, given in zip(traced.graph.inputs, traced.given)}
            for traced in ranks
        ]

    def _given(self, given: Given, traced: Traced, value: int) -> Any:
        type = traced.graph.type(value)
        if given.kind == CONSTANT or type.dtype == "bool" or type.dtype[:1] in ("i", "u"):
            made = torch.as_tensor(np.array(given.numbers)).reshape(type.shape)
            return made.double() if made.is_floating_point() else made
        seed = int.from_bytes(blake2b(given.name.encode(), digest_size=4).digest(), "little")
        whole = np.random.default_rng([seed, self.seed]).normal(size=self.shapes[given.name])
        if given.kind == PARAMETER:  # so that nothing grows from layer to layer
            whole = whole / 3
        return torch.from_numpy(np.ascontiguousarray(whole if given.placed is None else given.placed.of(whole)))

    def results(self) -> list[list[Any]]:
        """What every rank leaves behind, as arrays."""
        at = [0] * len(self.ranks)
        meetings: dict[Any, dict[int, int]] = {}
        letters: dict[Any, Any] = {}
        with torch.no_grad():
            while any(at[r] < len(traced.graph.nodes) for r, traced in enumerate(self.ranks)):
                before = list(at)
                for r in range(len(self.ranks)):
                    at[r] = self._advance(r, at[r], meetings, letters)
                if at == before:
                    raise Waiting("the ranks wait for each other")
        return [[values[v].numpy() for v in traced.graph.outputs] for traced, values in zip(self.ranks, self.values)]

    def _advance(self, r: int, at: int, meetings: dict[Any, dict[int, int]], letters: dict[Any, Any]) -> int:
        nodes = self.ranks[r].graph.nodes
        while at < len(nodes):
            node = nodes[at]
            made = self._local(r, node) if not node.op.startswith(COMMUNICATION) else self._met(
                r, at, node, meetings, letters
            )  # fmt: skip
            if made is None:
                return at
            self.values[r].update(zip(node.results, made))
            at += 1
        return at

    def _local(self, r: int, node: Node) -> list[Any]:
        traced, values = self.ranks[r], self.values[r]
        types = [replace(type, dtype=_wide(type.dtype)) for type in traced.graph.types(node.results)]
        if node.op == "foreign.unwritten":
            return [torch.full(type.shape, 0.5 + traced.rank, dtype=torch_dtype(type.dtype)) for type in types]
        operands = [
            [values[v] for v in o] if isinstance(o, tuple) else None if o is None else values[o] for o in node.operands
        ]
        attrs = {key: _wide(attr) for key, attr in node.attrs}
        attention = {FORWARD: _attention, BACKWARD: _attention_backward}.get(node.op)
        made = attention(operands, attrs) if attention is not None else prepare(node.op, attrs, types)(operands)
        return [
            torch.as_tensor(np.array(traced.known[value])) if value in traced.known else x
            for value, x in zip(node.results, made)
        ]

    def _met(self, r: int, n: int, node: Node, meetings: dict[Any, dict[int, int]], letters: dict[Any, Any]) -> Any:
        rank, attrs = self.ranks[r].rank, dict(node.attrs)
        kind = node.op.removeprefix(COMMUNICATION)
        shapes = [type.shape for type in self.ranks[r].graph.types(node.results)]
        if kind == "send":
            letters[rank, attrs["root"], attrs["tag"], attrs["at"]] = self._sent(r, node)
            return []
        if kind == "receive":
            found = letters.get((attrs["root"], rank, attrs["tag"], attrs["at"]))
            return None if found is None else [found[0].reshape(shapes[0])]
        group: Any = attrs["group"]
        meeting = meetings.setdefault((group, attrs["channel"], attrs["at"]), {})
        meeting[rank] = n
        if len(meeting) < len(group):
            return None
        sent = [self._sent(member, self.ranks[member].graph.nodes[meeting[member]]) for member in group]
        made = _received(kind, str(attrs["reduce"]), sent, group.index(rank), _root(group, attrs["root"]))
        return [x.reshape(shape) for x, shape in zip(made, shapes)]

    def _sent(self, r: int, node: Node) -> list[Any]:
        return [self.values[r][v] for v in node.inputs]


def _scores(q: Any, k: Any, mask: Any, attrs: Mapping[str, Any]) -> Any:
    scale = attrs.get("scale")
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if attrs.get("is_causal"):
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -inf)
    return scores if mask is None else scores + mask


def _attention(operands: Sequence[Any], attrs: Mapping[str, Any]) -> list[Any]:
    """PyTorch's kernel wants keys and values of one size."""
    q, k, v, mask = operands
    k, v = (part.repeat_interleave(q.shape[1] // k.shape[1], 1) for part in (k, v))
    scores = _scores(q, k, mask, attrs)
    return [scores.softmax(-1) @ v, scores.logsumexp(-1)]


def _attention_backward(operands: Sequence[Any], attrs: Mapping[str, Any]) -> list[Any]:
    grad, q, k, v, out, log, mask = operands
    groups = q.shape[1] // k.shape[1]
    wide = [part.repeat_interleave(groups, 1) for part in (k, v)]
    weights = (_scores(q, wide[0], mask, attrs) - log[..., None]).exp()
    scale = attrs.get("scale")
    inner = weights * (grad @ wide[1].transpose(-1, -2) - (grad * out).sum(-1, keepdim=True))
    inner = inner * (q.shape[-1] ** -0.5 if scale is None else scale)
    back = inner.transpose(-1, -2) @ q, weights.transpose(-1, -2) @ grad
    return [inner @ wide[0], *(part.unflatten(1, (-1, groups)).sum(2) for part in back)]


def _root(group: Any, root: Any) -> int:
    return int(group.index(root)) if root in group else 0


def _combined(how: str, parts: Sequence[Any]) -> Any:
    ways = {"max": torch.maximum, "min": torch.minimum, "prod": torch.mul}
    total = reduce(ways.get(how, torch.add), parts)
    return total / len(parts) if how == "avg" else total


def _received(kind: str, how: str, sent: Sequence[Sequence[Any]], i: int, root: int) -> list[Any]:
    if kind == "barrier":
        return []
    if kind == "all_reduce" or (kind == "reduce" and i == root):
        return [_combined(how, [given[0] for given in sent])]
    if kind == "all_gather" or (kind == "gather" and i == root):
        return [given[0] for given in sent]
    if kind == "reduce_scatter":
        return [_combined(how, [given[i] for given in sent])]
    if kind == "all_to_all":
        return [given[i] for given in sent]
    if kind == "broadcast":
        return [sent[root][0]]
    if kind == "scatter":
        return [sent[root][i]]
    return []


def different(case: Case, seeds: Sequence[int] = (0, 1, 2)) -> list[str]:
    """What the ranks leave behind and the single program does not, for any of these seeds."""
    shapes = {
        given.name: case.single.graph.type(value).shape
        for given, value in zip(case.single.given, case.single.graph.inputs)
    }
    for seed in seeds:
        single = Run([case.single], shapes, seed).results()[0]
        wrong = list(_wrong(case, single, Run(case.ranks, shapes, seed).results()))
        if wrong:
            return wrong
    return []


def _wrong(case: Case, single: list[Any], ranks: list[list[Any]]) -> Iterator[str]:
    for i, left in enumerate(case.single.left):
        found: list[tuple[Any, Placed | None]] = []
        for traced, made in zip(case.ranks, ranks):
            found += [
                (part, other.placed) for other, part in zip(traced.left, made)
                if (other.kind, other.name) == (left.kind, left.name)
            ]  # fmt: skip
        if len(found) < len(case.ranks):
            yield f"{left.label} is missing"
            continue
        parts = [part for part, _ in found]
        placed = [place for _, place in found if place is not None]
        choices: Any = [placed] if len(placed) == len(parts) else ways(
            single[i].shape, [Number("f64", part) for part in parts], case.mesh
        )  # fmt: skip
        if not any(_same(single[i], parts, choice) for choice in choices):
            yield left.label
    names = {(left.kind, left.name) for left in case.single.left}
    yield from {left.label for traced in case.ranks for left in traced.left if (left.kind, left.name) not in names}


def _same(whole: Any, parts: Sequence[Any], placed: Sequence[Placed]) -> bool:
    held = list(parts)
    for i in range(len(placed[0].partial)):
        held = [
            _combined(how, [torch.as_tensor(held[rank]) for rank in group]).numpy()
            for group, how in (placed[r].partial[i] for r in range(len(held)))
        ]
    size = np.abs(whole).max() if whole.size else 1.0
    seen = np.zeros(whole.shape, np.bool_)
    for part, where in zip(held, placed):
        where.mark(seen)
        should = where.of(whole)
        if part.shape != should.shape or not np.all(np.abs(part - should) <= TOLERANCE * size + 1e-13):
            return False
    return bool(seen.all())

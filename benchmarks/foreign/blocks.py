"""Blocks of models, each of which is a plain module until `split` makes it one rank's part.

Activations are whole on all ranks of the inner axis (layout ``whole``), or parts of the sequence (``seq``).  Written by
hand in Megatron's style; `modules` says how `parallelize_module` splits the same blocks.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel

from foreign import regions
from foreign.regions import Axis

WHOLE, SEQ = "whole", "seq"
ACTIVATIONS = {"relu": torch.relu, "silu": F.silu, "gelu": F.gelu, "tanh": torch.tanh}


class Block(nn.Module):
    """``inner`` splits heads, features, experts or the sequence; ``outer`` has split the sequence before."""

    def __init__(self) -> None:
        super().__init__()
        self.inner: Axis | None = None
        self.outer: Axis | None = None
        self.layout = WHOLE

    def split(self, inner: Axis | None) -> None:
        """Keep this rank's part of the parameters."""
        self.inner = inner

    def modules_plan(self) -> dict[str, Any]:
        """For `parallelize_module`; empty where there is no such form."""
        return {}

    def cut(self, path: str, dim: int, unit: int = 1) -> None:
        """Put this rank's part in the place of a parameter."""
        owner, _, name = path.rpartition(".")
        module = self.get_submodule(owner)
        whole = getattr(module, name)
        assert self.inner is not None
        part = nn.Parameter(self.inner.mine(whole.detach(), dim, unit).clone())
        part.in_parts = True  # type: ignore[attr-defined]
        setattr(module, name, part)

    def shared(self, parameter: Any) -> Any:
        """A parameter that all ranks hold and apply to other tokens."""
        return regions.copy(parameter, self.inner) if self.layout == SEQ else parameter

    def enter(self, x: Any) -> Any:
        """From the layout between blocks to whole sequences, which ranks go on with in different ways."""
        if self.layout == WHOLE or self.inner is None:
            return regions.copy(x, self.inner)
        return regions.gather(x, self.inner, 1, self.length(x), summed=True)

    def leave(self, x: Any) -> Any:
        """From a sum over ranks to the layout between blocks."""
        return regions.reduce(x, self.inner) if self.layout == WHOLE else regions.scatter_sum(x, self.inner, 1)

    def length(self, x: Any) -> int:
        """Of the sequence, of which there is a part."""
        return self.sequence if self.layout == SEQ else x.shape[1]

    sequence = 0


class Norm(Block):
    def __init__(self, dim: int, kind: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(1 + torch.randn(dim) / 4)
        self.bias = nn.Parameter(torch.randn(dim) / 4) if kind == "layer" else None
        self.dim = dim

    def forward(self, x: Any) -> Any:
        weight = self.shared(self.weight)
        if self.bias is not None:
            return F.layer_norm(x, (self.dim,), weight, self.shared(self.bias), 1e-5)
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


class Mlp(Block):
    def __init__(self, dim: int, hidden: int, activation: str, gated: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, hidden)
        self.gate = nn.Linear(dim, hidden, bias=False) if gated else None
        self.down = nn.Linear(hidden, dim)
        self.activation = ACTIVATIONS[activation]

    def split(self, inner: Axis | None) -> None:
        super().split(inner)
        self.cut("up.weight", 0)
        self.cut("up.bias", 0)
        if self.gate is not None:
            self.cut("gate.weight", 0)
        self.cut("down.weight", 1)

    def modules_plan(self) -> dict[str, Any]:
        given, back = _layouts(self.layout)
        norm = {"norm": SequenceParallel()} if self.layout == SEQ else {}
        gate = {"gate": ColwiseParallel(input_layouts=given)} if self.gate is not None else {}
        up, down = ColwiseParallel(input_layouts=given), RowwiseParallel(output_layouts=back)
        return {**norm, **gate, "up": up, "down": down}

    def forward(self, x: Any, ids: Any) -> Any:
        if self.inner is None:
            return x + self.down(self._hidden(self.norm(x)))
        weight, bias = self.shared(self.norm.weight), self.shared(self.norm.bias)
        given = F.layer_norm(x, self.norm.normalized_shape, weight, bias, self.norm.eps)
        made = self.leave(F.linear(self._hidden(self.enter(given)), self.down.weight))
        return x + made + self.shared(self.down.bias)

    def _hidden(self, x: Any) -> Any:
        hidden = self.activation(self.up(x))
        return hidden if self.gate is None else hidden * self.gate(x)


def _layouts(layout: str) -> tuple[Any, Any]:
    placed = Shard(1) if layout == SEQ else Replicate()
    return placed, placed


def attend(q: Any, k: Any, v: Any, mask: Any, formula: str) -> Any:
    """Attention, by one of the formulas that people write."""
    if formula == "fused":
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    if formula == "softmax":
        return scores.softmax(-1) @ v
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    return weights @ v / weights.sum(-1, keepdim=True)


FORMULAS = ("fused", "softmax", "exponentials")


def earlier(rows: int, columns: int, row: int = 0, column: int = 0) -> Any:
    """Which columns a row may look at: those at its place and before."""
    return torch.arange(column, column + columns)[None] <= torch.arange(row, row + rows)[:, None]


class Attention(Block):
    """``shared_key`` dims of a key are the same for all heads, as in DeepSeek-V3; ``outer`` splits the sequence."""

    def __init__(
        self, dim: int, heads: int, groups: int, size: int, *, causal: bool, shared_key: int = 0,
        formulas: tuple[str, str] = ("fused", "fused"), context: str = "gather",
    ) -> None:  # fmt: skip
        super().__init__()
        self.q = nn.Linear(dim, heads * (size + shared_key))
        self.k = nn.Linear(dim, groups * size, bias=False)
        self.v = nn.Linear(dim, groups * size)
        self.o = nn.Linear(heads * size, dim)
        self.key = nn.Linear(dim, shared_key, bias=False) if shared_key else None  # a bias would have no gradient
        self.size, self.shared_key, self.causal = size, shared_key, causal
        self.formulas, self.context = formulas, context
        self.repeat = heads // groups

    def split(self, inner: Axis | None) -> None:
        super().split(inner)
        for name, unit in (("q", (self.size + self.shared_key) * self.repeat), ("k", self.size), ("v", self.size)):
            self.cut(f"{name}.weight", 0, unit)
            if getattr(self, name).bias is not None:
                self.cut(f"{name}.bias", 0, unit)
        self.cut("o.weight", 1, self.size * self.repeat)

    def modules_plan(self) -> dict[str, Any]:
        if self.key is not None:
            return {}
        given, back = _layouts(self.layout)
        plan: dict[str, Any] = {name: ColwiseParallel(input_layouts=given) for name in "qkv"}
        return {**plan, "o": RowwiseParallel(output_layouts=back)}

    def forward(self, x: Any, ids: Any) -> Any:
        whole = self.enter(x)
        heads = self._attend(*(self._heads(whole, name) for name in "qkv"), self._shared_part(x, whole))
        flat = heads.transpose(1, 2).flatten(2)
        if self.inner is None:
            return x + self.o(flat)
        return x + self.leave(F.linear(flat, self.o.weight)) + self.shared(self.o.bias)

    def _heads(self, x: Any, name: str) -> Any:
        size = self.size + (self.shared_key if name == "q" else 0)
        return getattr(self, name)(x).unflatten(-1, (-1, size)).transpose(1, 2)

    def _shared_part(self, x: Any, whole: Any) -> Any:
        if self.key is None:
            return None
        if self.layout == WHOLE:  # all ranks make the same of it, and then each goes its own way
            return regions.copy(self.key(x), self.inner)
        made = F.linear(x, self.shared(self.key.weight))
        return regions.gather(made, self.inner, 1, self.length(x), summed=True)

    def _attend(self, q: Any, k: Any, v: Any, key: Any) -> Any:
        if key is not None:
            k = torch.cat([k, key[:, None].expand(-1, k.shape[1], -1, -1)], -1)
        if self.repeat > 1:
            k, v = (part.repeat_interleave(self.repeat, 1) for part in (k, v))
        parallel = self.inner is not None or self.outer is not None
        length = q.shape[2] * (1 if self.outer is None else self.outer.size)
        return attend_along(q, k, v, self.outer, self.causal, self.formulas[parallel], self.context, length)


def attend_along(
    q: Any, k: Any, v: Any, axis: Axis | None, causal: bool, formula: str, context: str, length: int
) -> Any:
    """Attention where an axis splits a sequence of ``length``; all of it where there is none."""
    rows = q.shape[2]
    if axis is None:
        mask = earlier(rows, rows) if causal else None
        return attend(q, k, v, mask, formula)
    if context == "gather":
        k, v = (regions.gather(part, axis, 2, length, summed=True) for part in (k, v))
        mask = earlier(rows, length, sum(axis.sizes(length)[: axis.rank])) if causal else None
        return attend(q, k, v, mask, formula)
    return ring(q, k, v, axis, causal, context, axis.sizes(length))


def ring(q: Any, k: Any, v: Any, axis: Axis, causal: bool, merge: str, sizes: list[int]) -> Any:
    """Keys and values go round; what each part of them gives is merged with what there is."""
    rows = q.shape[2]
    state: Any = None
    for step in range(axis.size):
        source = (axis.rank - step) % axis.size
        if not causal or source <= axis.rank:
            scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
            if causal and source == axis.rank:
                scores = scores.masked_fill(~earlier(rows, rows), float("-inf"))
            state = MERGES[merge](state, scores, v)
        if step + 1 < axis.size:
            counts = sizes[source], sizes[source - 1]
            k, v = (regions.shift(part, axis, counts) for part in (k, v))
    out = state[0] / state[2] if merge == "running maximum" else state[0]
    return out + 0.0 * (k.sum() + v.sum())  # gradients go round on all ranks, also on those that skip the last part


def _by_logarithms(state: Any, scores: Any, v: Any) -> Any:
    log = scores.logsumexp(-1, keepdim=True)
    out = (scores - log).exp() @ v
    if state is None:
        return out, log
    total = torch.logaddexp(state[1], log)
    return state[0] * (state[1] - total).exp() + out * (log - total).exp(), total


def _by_sigmoid(state: Any, scores: Any, v: Any) -> Any:
    """As ring-flash-attention writes it."""
    log = scores.logsumexp(-1, keepdim=True)
    out = scores.softmax(-1) @ v
    if state is None:
        return out, log
    return state[0] - torch.sigmoid(log - state[1]) * (state[0] - out), state[1] - F.logsigmoid(state[1] - log)


def _by_running_maximum(state: Any, scores: Any, v: Any) -> Any:
    highest = scores.detach().amax(-1, keepdim=True)
    if state is not None:
        highest = torch.maximum(highest, state[1])
    weights = (scores - highest).exp()
    out, total = weights @ v, weights.sum(-1, keepdim=True)
    if state is None:
        return out, highest, total
    factor = (state[1] - highest).exp()
    return out + state[0] * factor, highest, total + state[2] * factor


MERGES = {"logarithms": _by_logarithms, "sigmoid": _by_sigmoid, "running maximum": _by_running_maximum}
CONTEXTS = ("gather", *MERGES)


class ContextAttention(Block):
    """Attention along the sequence that the inner axis splits; all ranks hold all weights."""

    def __init__(self, dim: int, heads: int, *, causal: bool, context: str, formulas: tuple[str, str]) -> None:
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)
        self.o = nn.Linear(dim, dim, bias=False)
        self.heads, self.causal, self.context, self.formulas = heads, causal, context, formulas
        self.layout = SEQ

    def forward(self, x: Any, ids: Any) -> Any:
        made = F.linear(x, self.shared(self.qkv.weight), self.shared(self.qkv.bias))
        q, k, v = made.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        axis = self.inner if self.inner is not None else self.outer
        length = self.sequence if axis is self.inner else self.sequence * self.outer.size
        out = attend_along(q, k, v, axis, self.causal, self.formulas[axis is not None], self.context, length)
        return x + F.linear(out.transpose(1, 2).flatten(2), self.shared(self.o.weight))


class Experts(Block):
    """A mixture of experts; who goes where follows from the tokens' numbers."""

    def __init__(self, dim: int, hidden: int, experts: int, salt: int) -> None:
        super().__init__()
        self.router = nn.Linear(dim, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, dim, hidden) / dim**0.5)
        self.down = nn.Parameter(torch.randn(experts, hidden, dim) / hidden**0.5)
        self.experts, self.salt = experts, salt
        self.layout = SEQ

    def split(self, inner: Axis | None) -> None:
        super().split(inner)
        self.cut("up", 0)
        self.cut("down", 0)

    def forward(self, x: Any, ids: Any) -> Any:
        if self.inner is not None:
            ids = self.inner.mine(ids, 1)
        expert = ((ids * 7 + self.salt) % self.experts).flatten()
        tokens = x.flatten(0, 1)
        chance = F.linear(tokens, self.shared(self.router.weight)).softmax(-1).gather(1, expert[:, None])
        made = self._computed(tokens, expert) if self.inner is None else self._elsewhere(tokens, expert, self.inner)
        return x + (chance * made).view_as(x)

    def _computed(self, tokens: Any, expert: Any) -> Any:
        hidden = torch.relu(torch.bmm(tokens[:, None], self.up[expert]))
        return torch.bmm(hidden, self.down[expert])[:, 0]

    def _elsewhere(self, tokens: Any, expert: Any, axis: Axis) -> Any:
        """To the ranks that hold the experts, and back."""
        order = expert.argsort(stable=True)
        sizes = axis.sizes(self.experts)
        first = torch.tensor([sum(sizes[:i]) for i in range(axis.size + 1)])
        sent_to = torch.bincount(expert, minlength=self.experts).cumsum(0)
        ends = torch.cat([sent_to.new_zeros(1), sent_to])[first]
        sent = ends.diff()
        received = torch.empty_like(sent)
        torch.distributed.all_to_all_single(received, sent, group=axis.group)
        counts = sent.tolist(), received.tolist()
        theirs = regions.exchange(tokens[order], axis, *counts)
        which = regions.exchange(expert[order], axis, *counts) - sum(sizes[: axis.rank])
        back = regions.exchange(self._computed(theirs, which), axis, counts[1], counts[0])
        return torch.zeros_like(back).index_copy(0, order, back)


class Embedding(Block):
    """Tokens to vectors, by a table of which ranks hold rows."""

    def __init__(self, words: int, dim: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, dim)

    def split(self, inner: Axis | None) -> None:
        super().split(inner)
        words = self.table.num_embeddings
        self.cut("table.weight", 0)
        assert inner is not None
        self.first = sum(inner.sizes(words)[: inner.rank])

    def modules_plan(self) -> dict[str, Any]:
        return {"table": RowwiseParallel(input_layouts=Replicate(), output_layouts=_layouts(self.layout)[1])}

    def forward(self, x: Any, ids: Any) -> Any:
        if self.inner is None:
            return x + self.table(ids)
        weight = self.table.weight
        other = (ids < self.first) | (ids >= self.first + weight.shape[0])
        found = F.embedding((ids - self.first).masked_fill(other, 0), weight)
        return x + self.leave(found.masked_fill(other[..., None], 0.0))


class Loss(Block):
    """Cross entropy over words of which ranks hold columns; the mean over tokens."""

    def __init__(self, dim: int, words: int) -> None:
        super().__init__()
        self.head = nn.Linear(dim, words, bias=False)

    def split(self, inner: Axis | None) -> None:
        super().split(inner)
        assert inner is not None
        self.first = sum(inner.sizes(self.head.out_features)[: inner.rank])
        self.cut("head.weight", 0)

    def forward(self, x: Any, ids: Any) -> Any:
        logits = self.head(self.enter(x)).flatten(0, 1)
        words = ids.flatten()
        if self.inner is None:
            return F.cross_entropy(logits, words)
        highest = regions.all_reduce(logits.detach().amax(-1), self.inner, "max")
        logits = logits - highest[:, None]
        total = regions.reduce(logits.exp().sum(-1), self.inner)
        other = (words < self.first) | (words >= self.first + logits.shape[1])
        at = (words - self.first).masked_fill(other, 0)
        mine = logits.gather(1, at[:, None])[:, 0].masked_fill(other, 0.0)
        return (total.log() - regions.reduce(mine, self.inner)).mean()

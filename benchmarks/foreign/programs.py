"""`draw`: a random correct parallel program, by seed, beside the single one that it is to be equal to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.parallel import DistributedDataParallel

from foreign import regions
from foreign.blocks import (
    ACTIVATIONS,
    CONTEXTS,
    FORMULAS,
    SEQ,
    WHOLE,
    Attention,
    Block,
    ContextAttention,
    Embedding,
    Experts,
    Loss,
    Mlp,
    Norm,
)
from foreign.regions import STYLES, Axis

HAND, MODULES = "by hand", "by parallelize_module"


@dataclass
class Subject:
    """A parallel program and the single one, as `prove` takes them."""

    name: str
    parallel: Callable[[Any], Any]
    like: Any
    mesh: dict[str, int]
    inputs: tuple[Any, ...]
    placements: dict[str, Any] = field(default_factory=dict)
    loss: Callable[[Any], Any] | None = None


@dataclass
class Piece:
    """One block: how it is made, who splits it, and how activations lie around it."""

    make: Callable[[], Block]
    kind: str
    form: str = HAND
    layout: str = WHOLE


class Model(nn.Module):
    """Blocks one after the other, with changes of layout between them."""

    def __init__(self, pieces: list[Piece], end: str) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        self.layouts = [piece.layout for piece in pieces]
        for piece in pieces:
            block = piece.make()
            block.layout = piece.layout
            self.layers.append(block)
        self.inner: Axis | None = None
        self.end = end

    def forward(self, x: Any, ids: Any) -> Any:
        layout, length = WHOLE, x.shape[1]
        for block, wanted in zip(self.layers, self.layouts, strict=True):
            x = self._changed(x, layout, wanted, length)
            block.sequence = length
            x = block(x) if isinstance(block, Norm) else block(x, ids)
            layout = wanted
        return self._changed(x, layout, self.end, length) if x.dim() else x

    def _changed(self, x: Any, old: str, new: str, length: int) -> Any:
        if old == new:
            return x
        return regions.split(x, self.inner, 1) if new == SEQ else regions.gather(x, self.inner, 1, length)


def _mean_square(out: Any) -> Any:
    return out.square().mean()


@dataclass
class Plan:
    """All that was drawn of a program."""

    pieces: list[Piece]
    seed: int
    inner: str = ""
    outer: str = ""
    """Of what the mesh's axes are named; none where it is empty."""
    wrapper: str = ""
    styles: tuple[str, str] = ("tensors", "tensors")
    end: str = WHOLE
    optimizer: str = ""
    clip: float = 0.0
    own_loss: bool = False
    late: bool = False
    dtype: Any = torch.float64

    def model(self) -> Model:
        torch.manual_seed(self.seed)
        return Model(self.pieces, self.end).to(self.dtype)

    def split(self, mesh: Any) -> Any:
        model = self.model()
        if self.inner:
            inner = Axis.of(mesh, self.inner, self.styles[0])
            model.inner = inner
            for block, piece in zip(model.layers, self.pieces, strict=True):
                if piece.form == MODULES:
                    parallelize_module(block, mesh[self.inner], block.modules_plan())
                else:
                    block.split(inner)
        if self.outer == "cp":
            for block in model.layers:
                block.outer = Axis.of(mesh, self.outer, self.styles[1])
        return self._wrapped(model, mesh)

    def _wrapped(self, model: Model, mesh: Any) -> Any:
        if self.wrapper == "ddp":
            return DistributedDataParallel(model, process_group=mesh.get_group(self.outer))
        if self.wrapper == "fsdp":
            around = mesh[self.outer] if self.inner else mesh
            for block in model.layers:
                fully_shard(block, mesh=around)
            return fully_shard(model, mesh=around)
        return model

    # -- steps ------------------------------------------------------------------------------------------------

    def step(self, model: Any, mesh: Any = None) -> Callable[[Any, Any], Any]:
        parameters = list(model.parameters())
        optimizer = OPTIMIZERS[self.optimizer](parameters)

        def step(x: Any, ids: Any) -> Any:
            out = model(x, ids)
            loss = out if self.own_loss else _mean_square(out)
            loss.backward()
            if mesh is not None and self.wrapper == "by hand":
                for parameter in parameters:
                    _average(parameter.grad, mesh.get_group(self.outer), mesh[self.outer].size(), self.styles[1])
            if self.clip:
                self._clip(parameters, mesh)
            optimizer.step()
            return loss.detach()

        return step

    def _clip(self, parameters: list[Any], mesh: Any) -> None:
        held = {DTensor if isinstance(p, DTensor) else hasattr(p, "in_parts") for p in parameters}
        if held in ({DTensor}, {False}):
            nn.utils.clip_grad_norm_(parameters, self.clip, foreach=self.styles[0] == "lists")
            return
        parts = [p.grad.square().sum() for p in parameters if hasattr(p, "in_parts")]
        alike = [p.grad.square().sum() for p in parameters if not hasattr(p, "in_parts")]
        total = sum(square.full_tensor() if isinstance(square, DTensor) else square for square in alike)
        if parts:
            total = total + regions.all_reduce(torch.stack(parts).sum(), Axis.of(mesh, self.inner, self.styles[0]))
        factor = (self.clip / (total.sqrt() + 1e-6)).clamp(max=1.0)
        for parameter in parameters:
            grad = parameter.grad
            (grad.to_local() if isinstance(grad, DTensor) else grad).mul_(factor)

    def subject(self, mesh: dict[str, int], sizes: tuple[int, int, int, int], name: str) -> Subject:
        batch, length, dim, words = sizes
        generator = torch.Generator().manual_seed(self.seed)
        x = torch.randn(batch, length, dim, generator=generator, dtype=self.dtype)
        ids = torch.randint(words, (batch, length), generator=generator)
        given: list[Any] = [Replicate()] * len(mesh)
        mean: list[Any] = [Replicate()] * len(mesh)
        for i, axis in enumerate(mesh):
            if axis != self.inner:
                given[i] = Shard(1 if axis == "cp" else 0)
                mean[i] = Partial("avg")
        out = list(given)
        if self.end == SEQ and self.inner:
            out[list(mesh).index(self.inner)] = Shard(1)
        placements: dict[str, Any] = {"x": tuple(given), "ids": tuple(given)}
        if self.optimizer:
            placements["output"] = tuple(mean)
            return Subject(
                name, lambda m: self.step(self.split(m), m), self.step(self.model()), mesh, (x, ids), placements
            )
        if self.own_loss:
            placements["output"] = tuple(mean)
            return Subject(name, self.split, self.model(), mesh, (x, ids), placements)
        if self.wrapper:
            placements |= {"output.0": tuple(out), "output.1": tuple(mean)}
            return Subject(name, self.split, self.model(), mesh, (x, ids), placements, _mean_square)
        placements |= {"output": tuple(out), "cotangent.0": tuple(out)}
        x.requires_grad_()
        return Subject(name, self.split, self.model(), mesh, (x, ids), placements)


def _average(grad: Any, group: Any, size: int, style: str) -> None:
    grad = grad.to_local() if isinstance(grad, DTensor) else grad
    if style == "lists":
        dist.all_reduce(grad, dist.ReduceOp.AVG, group=group)
    elif style == "tensors":
        dist.all_reduce(grad, group=group)
        grad.div_(size)
    else:
        grad.copy_(regions.functional.all_reduce(grad / size, "sum", group))


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.1, foreach=False),
    "momentum": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9, weight_decay=0.01, foreach=False),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 0.01, weight_decay=0.1, foreach=False),
    "adamw, each": lambda parameters: torch.optim.AdamW(parameters, 0.01, foreach=True),
}


# -- drawing ----------------------------------------------------------------------------------------------


MESHES: tuple[dict[str, int], ...] = (
    {"tp": 2}, {"tp": 3}, {"tp": 4}, {"dp": 2}, {"dp": 3}, {"dp": 4}, {"dp": 2, "tp": 2}, {"dp": 2, "tp": 3},
    {"cp": 2, "tp": 2}, {"cp": 2, "tp": 3}, {"cp": 3}, {"cp": 4}, {"replicas": 2, "dp": 2}, {"replicas": 2, "dp": 3},
)  # fmt: skip


class Draw:
    """Random choices, of which later ones are such that the program is correct."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(f"foreign {seed}")
        self.seed = seed
        one = self.rng.choice
        self.mesh = one(MESHES)
        self.inner = "tp" if "tp" in self.mesh else ""
        self.outer = next((axis for axis in ("dp", "cp") if axis in self.mesh), "")
        self.ranks = self.mesh.get("tp", 1)
        outside = [size for axis, size in self.mesh.items() if axis != "tp"]
        across = 1
        for size in outside:
            across *= size
        self.even = self.rng.random() < 0.5
        """Whether the inner axis splits the sequence evenly."""
        length = self.ranks * self.rng.randint(1, 2) if self.even else self.rng.randint(self.ranks, 2 * self.ranks + 1)
        self.even = self.even or length % self.ranks == 0
        self.length = max(length, 3 * self.ranks if self.ranks == 1 else length)
        self.batch = self.rng.randint(1, 2)
        self.sizes = (
            self.batch * (across if self.outer == "dp" else 1), self.length * (across if self.outer == "cp" else 1),
            one((8, 12)), self.rng.randint(max(self.ranks, 7), 17),
        )  # fmt: skip
        self.wrappers = {"": [""], "dp": ["ddp", "fsdp", "by hand"], "cp": ["ddp", "by hand"]}[self.outer]
        if "replicas" in self.mesh:
            self.wrappers = ["fsdp"]
        self.wrapper = one(self.wrappers)
        self.only_modules = self.wrapper == "fsdp" and bool(self.inner)

    def program(self) -> Subject:
        rng, one = self.rng, self.rng.choice
        pieces = [self.piece(kind) for kind in self.kinds()]
        own_loss = pieces[-1].kind == "loss"
        step = self.wrapper == "by hand" or rng.random() < 0.35
        plain = not step and not self.wrapper
        end = SEQ if self.inner and self.even and plain and rng.random() < 0.4 else WHOLE
        clip = one((0.0, 0.05)) if step else 0.0
        optimizer = one(list(OPTIMIZERS)) if step else ""
        if len({piece.form for piece in pieces}) > 1:
            optimizer = optimizer.removesuffix(", each")  # PyTorch takes no lists of DTensors and others
        if self.only_modules and any(piece.kind == "mlp" and piece.layout == WHOLE for piece in pieces):
            clip = 0.0  # its norm has no part in the inner axis, and PyTorch adds no norms of several meshes
        plan = Plan(
            pieces, self.seed, self.inner, self.outer, self.wrapper, (one(STYLES), one(STYLES)), end,
            optimizer, clip, own_loss,
            dtype=one((torch.float64, torch.float32)),
        )  # fmt: skip
        what = ", ".join(f"{piece.kind} {piece.form} {piece.layout}" for piece in pieces)
        about = [text for text in (plan.wrapper, plan.optimizer, f"clip {plan.clip}" if plan.clip else "", end) if text]
        return plan.subject(self.mesh, self.sizes, f"{self.seed}: {self.mesh} [{what}] {'; '.join(about)}")

    def kinds(self) -> list[str]:
        rng = self.rng
        middle = ["mlp", "attention", "norm", "experts"]
        if self.inner and not self.only_modules:
            middle += ["shared key"]
        if bool(self.inner) != (self.outer == "cp"):  # one axis has the sequence, and that alone
            middle += ["context"]
        if self.only_modules:
            middle = ["mlp", "attention"]
        kinds = [rng.choice(middle) for _ in range(rng.randint(1, 3))]
        if rng.random() < 0.3:
            kinds.insert(0, "embedding")
        if rng.random() < 0.3 and not self.only_modules:
            kinds.append("loss")
        return kinds

    def piece(self, kind: str) -> Piece:
        rng, one = self.rng, self.rng.choice
        dim, words = self.sizes[2:]
        n = self.ranks
        modules = kind in ("mlp", "attention", "embedding") and bool(self.inner) and self.wrapper != "ddp"
        form = MODULES if modules and (self.only_modules or rng.random() < 0.4) else HAND
        layout = one((WHOLE, SEQ)) if self.inner and (form == HAND or self.even) else WHOLE
        if kind in ("context", "experts"):
            layout = SEQ
        if kind == "norm":
            style = one(("layer", "rms"))
            return Piece(lambda: Norm(dim, style), kind, HAND, layout)
        if kind == "mlp":
            hidden = n * rng.randint(1, 4) if form == MODULES else rng.randint(n, 18)
            activation, gated = one(list(ACTIVATIONS)), rng.random() < 0.4
            return Piece(lambda: Mlp(dim, hidden, activation, gated), kind, form, layout)
        if kind in ("attention", "shared key"):
            groups = n * rng.randint(1, 2) if form == MODULES else rng.randint(n, n + 2)
            repeat, size, causal = rng.randint(1, 2), one((2, 4)), rng.random() < 0.5
            formulas, context = (one(FORMULAS), one(FORMULAS)), one(CONTEXTS)
            key = rng.randint(1, 3) if kind == "shared key" else 0
            return Piece(
                lambda: Attention(
                    dim, groups * repeat, groups, size, causal=causal, shared_key=key, formulas=formulas,
                    context=context,
                ), kind, form, layout,
            )  # fmt: skip
        if kind == "context":
            heads, causal = one((1, 2, 4)), rng.random() < 0.5
            formulas, context = (one(FORMULAS), one(FORMULAS)), one(CONTEXTS)
            return Piece(
                lambda: ContextAttention(dim, heads, causal=causal, context=context, formulas=formulas),
                kind, form, layout,
            )  # fmt: skip
        if kind == "experts":
            hidden, experts, salt = rng.randint(3, 8), rng.randint(n, 2 * n + 1), rng.randint(0, 6)
            return Piece(lambda: Experts(dim, hidden, max(experts, 2), salt), kind, form, layout)
        if kind == "embedding":
            return Piece(lambda: Embedding(words, dim), kind, form, layout)
        return Piece(lambda: Loss(dim, words), "loss", HAND, layout)


def draw(seed: int) -> Subject:
    """The program of a seed."""
    return Draw(seed).program()

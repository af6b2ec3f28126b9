"""Training steps of PyTorch that really split: forward, backward and the optimizer's update, in float64."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import shardwright as sw
import shardwright.torch as swt
import torch_zoo as zoo
from mutation.subjects import Subject, of_plan

torch.set_num_threads(1)
logging.getLogger("torch._subclasses.fake_tensor").disabled = True  # parts of broken ops cannot be captured
Specs = Mapping[str, str]


class Loss(nn.Module):
    """A model with its loss."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Any, y: Any) -> Any:
        return F.mse_loss(self.inner(x), y)


class Classifier(nn.Module):
    """A lookup, a sum over uneven places, and cross entropy over a vocabulary that is split."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(12, 8), nn.LayerNorm(8), nn.Linear(8, 12)

    def forward(self, ids: Any, labels: Any) -> Any:
        return F.cross_entropy(self.head(self.norm(self.embed(ids).mean(1))), labels)


def _adam(parameters: Any) -> Any:
    return torch.optim.AdamW(parameters, lr=1e-2, eps=1e-3)


def _sgd(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01)


def _pair(*shapes: tuple[int, ...]) -> Callable[[], dict[str, Any]]:
    return lambda: dict(zip("xy", (torch.randn(*shape) for shape in shapes)))


Case = tuple[Callable[[], Any], Callable[[], dict[str, Any]], Any, str, Callable[[Any], Any]]
CASES: dict[str, Case] = {
    "mlp tensor parallel": (
        lambda: Loss(zoo.MLP()), _pair((8, 6), (8, 3)),
        {"x": "[dp, _]", "inner.up.weight": "[tp, _]", "inner.up.bias": "[tp]", "inner.down.weight": "[_, tp]"},
        "dp=2, tp=2", _adam,
    ),
    "mlp data parallel, uneven": (
        lambda: Loss(zoo.MLP()), _pair((8, 6), (8, 3)), {"x": "[dp, _]", "y": "[dp, _]"}, "dp=3", _sgd,
    ),
    "mlp zero3": (lambda: Loss(zoo.MLP()), _pair((8, 6), (8, 3)), "zero3", "dp=2, tp=2", _adam),
    "block": (
        lambda: Loss(zoo.Block()), _pair((4, 6, 8), (4, 6, 8)),
        {"x": "[dp, _, _]", "inner.attn.qkv.weight": "[tp, _]", "inner.mlp.0.weight": "[tp, _]",
         "inner.mlp.2.weight": "[_, tp]", "inner.attn.out.weight": "[_, tp]"},
        "dp=2, tp=2", _adam,
    ),
    "tied": (
        zoo.Tied, lambda: {"ids": torch.randint(0, 11, (4, 6))},
        {"ids": "[dp, _]", "embed.weight": "[tp, _]"}, "dp=2, tp=2", _sgd,
    ),
    "classifier": (
        Classifier, lambda: {"ids": torch.randint(0, 12, (6, 5)), "labels": torch.randint(0, 12, (6,))},
        {"ids": "[dp, _]", "labels": "[dp]", "embed.weight": "[tp, _]", "head.weight": "[tp, _]"},
        "dp=2, tp=3", _adam,
    ),
    "convolutions": (
        lambda: Loss(zoo.CNN()), _pair((4, 3, 6, 6), (4, 2)),
        {"x": "[dp, _, _, _]", "inner.conv2.weight": "[tp, _, _, _]"}, "dp=2, tp=2", _sgd,
    ),
    **{
        name: (zoo.CASES[name][0], zoo.CASES[name][1], zoo.CASES[name][2], "dp=2, tp=2", _adam)
        for name in ("experts", "recommender", "unet", "cell")
    },
}  # fmt: skip
"""Name -> model, batch, shardings, mesh, optimizer."""
LARGE: dict[str, Case] = {
    name: (zoo.CASES[name][0], zoo.CASES[name][1], zoo.CASES[name][2], "dp=2, tp=2", _adam)
    for name in ("gpt2 odd", "resnet")
}


def trained(name: str, dtype: str = "float64") -> Subject:
    make, data, specs, mesh, optimizer = {**CASES, **LARGE}[name]
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, dtype))
    torch.manual_seed(0)
    try:
        model, batch = make(), data()
        if specs == "zero3":
            cut = {**dict(model.named_parameters()), **batch}
            specs = {key: "[dp+tp" + ", _" * (tensor.dim() - 1) + "]" for key, tensor in cut.items()}
        step = swt.shard_step(
            model, mesh=mesh, optimizer=optimizer(model.parameters()), specs=specs, verify="off", **batch
        )
        plan = step.plan
        words = name if dtype == "float64" else f"{name} in {dtype}"
        return of_plan(words, plan, plan.source.bind((), batch), training=True)
    finally:
        torch.set_default_dtype(before)


def planned(name: str, **about: Any) -> Subject:
    """The same model as the planner or a recipe splits it."""
    make, data, _, own, optimizer = {**CASES, **LARGE}[name]
    mesh = about.pop("mesh", own)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    try:
        model, batch = make(), data()
        plan = sw.plan(model, mesh=mesh, optimizer=optimizer(model.parameters()), verify="off", **about, **batch)
        words = " ".join(f"{key}={value}" for key, value in about.items()) + f" on {mesh}"
        return of_plan(f"{name} {words}", plan, plan.source.bind((), batch), training=True)
    finally:
        torch.set_default_dtype(before)


def subjects(quick: bool = False) -> Iterator[Subject]:
    names = ("mlp tensor parallel", "classifier") if quick else (*CASES, *LARGE)
    for name in names:
        subject = trained(name)
        if subject.splits:
            yield subject
    if not quick:
        for name in ("mlp tensor parallel", "block", "classifier"):
            for recipe in ("zero1", "zero3", "megatron"):
                subject = planned(name, recipe=recipe)
                if subject.splits:
                    yield subject

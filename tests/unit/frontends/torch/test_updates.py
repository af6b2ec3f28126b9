"""Optimizer steps as single ops: recognised by what they compute, whoever wrote them, and by nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import shardwright as sw
from shardwright.frontends.torch import capture_step, run_graph, torch_dtype
from shardwright.frontends.torch.steps.recognising import fuse_updates, recognised
from shardwright.frontends.torch.steps.updates import ADAM, SGD, STATE
from shardwright.proof.same import check_same


def step_of(make: Any, **options: Any) -> Any:
    """A captured step, the third one: the first may be special."""
    model, x = torch.nn.Linear(5, 4), torch.randn(3, 5)
    optimizer = make(model.parameters(), **options)
    for _ in range(2):
        model(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return capture_step(model, x, optimizer=optimizer, loss=lambda y: y.square().sum())


class Subclass(torch.optim.AdamW):
    """Its own step is captured."""


class Descent(torch.optim.SGD):
    """Likewise."""


class ByHand(torch.optim.Optimizer):
    """Adam as somebody writes it, from the paper."""

    def __init__(self, params: Any, lr: float = 1e-2, b1: float = 0.8, b2: float = 0.95, eps: float = 1e-3) -> None:
        super().__init__(params, {"lr": lr, "b1": b1, "b2": b2, "eps": eps})

    def below(self, square: Any, lean: Any, eps: float) -> Any:
        return (square / lean).sqrt() + eps

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(t=torch.zeros(()), m=torch.zeros_like(p), v=torch.zeros_like(p))
                state["t"] += 1
                state["m"] = group["b1"] * state["m"] + (1 - group["b1"]) * p.grad
                state["v"] = group["b2"] * state["v"] + (1 - group["b2"]) * p.grad**2
                mean = state["m"] / (1 - group["b1"] ** state["t"])
                p -= group["lr"] * mean / self.below(state["v"], 1 - group["b2"] ** state["t"], group["eps"])


class OtherWords(ByHand):
    """The same in other words."""

    def below(self, square: Any, lean: Any, eps: float) -> Any:
        return (eps * lean**0.5 + square.pow(0.5)) / lean.sqrt()


class Inside(ByHand):
    """Eps under the root: another formula."""

    def below(self, square: Any, lean: Any, eps: float) -> Any:
        return (square / lean + eps).sqrt()


class Uncorrected(ByHand):
    """Without the bias of squares taken out: another formula."""

    def below(self, square: Any, lean: Any, eps: float) -> Any:
        return square.sqrt() + eps


KNOWN: list[tuple[Any, dict[str, Any], str, dict[str, bool]]] = [
    (torch.optim.AdamW, {}, ADAM, {"decoupled": True, "maximize": False}),
    (torch.optim.AdamW, {"weight_decay": 0.0}, ADAM, {"decoupled": False, "maximize": False}),
    (torch.optim.Adam, {"weight_decay": 0.1, "maximize": True}, ADAM, {"decoupled": False, "maximize": True}),
    (torch.optim.Adam, {"amsgrad": True}, ADAM, {"decoupled": False, "maximize": False}),
    (torch.optim.NAdam, {}, "", {}),
    (Subclass, {"foreach": False}, ADAM, {"decoupled": True, "maximize": False}),
    (Subclass, {"foreach": True, "amsgrad": True}, ADAM, {"decoupled": True, "maximize": False}),
    (ByHand, {}, ADAM, {"decoupled": False, "maximize": False}),
    (OtherWords, {}, ADAM, {"decoupled": False, "maximize": False}),
    (Inside, {}, "", {}),
    (Uncorrected, {}, "", {}),
    (torch.optim.RMSprop, {}, "", {}),
    (torch.optim.SGD, {"lr": 0.1}, SGD, {"nesterov": False, "maximize": False}),
    (torch.optim.SGD, {"lr": 0.1, "weight_decay": 0.1, "maximize": True}, SGD, {"nesterov": False, "maximize": True}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}, SGD, {"nesterov": True, "maximize": False}),
    (Descent, {"lr": 0.1, "momentum": 0.9, "dampening": 0.2}, SGD, {"nesterov": False, "maximize": False}),
    (Descent, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1, "nesterov": True, "maximize": True}, SGD,
     {"nesterov": True, "maximize": True}),
]  # fmt: skip


@pytest.mark.parametrize(("make", "options", "op", "attrs"), KNOWN, ids=lambda x: getattr(x, "__name__", str(x)))
def test_steps_are_known_by_what_they_compute(make: Any, options: Any, op: str, attrs: Any) -> None:
    captured = step_of(make, **options)
    graph = captured.graph
    found = recognised(graph)
    assert [update.op for update in found] == ([op] * 2 if op else [])
    assert all(dict(update.attrs) == attrs for update in found)
    if not op:
        assert fuse_updates(graph) is None
        return
    fused = fuse_updates(graph)
    assert fused is not None
    check_same(graph, fused[0])
    assert sum(node.op in STATE for node in fused[0].nodes) == 2
    types = [graph.type(value) for value in graph.inputs]
    inputs = [(torch.rand(type.shape) * 0.8 + 0.1).to(torch_dtype(type.dtype)) for type in types]
    for left, right in zip(run_graph(graph, inputs), run_graph(fused[0], inputs)):
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("make", "options", "op"), [
    (torch.optim.AdamW, {}, ADAM), (torch.optim.AdamW, {"foreach": True, "amsgrad": True}, ADAM),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}, SGD),
], ids=str)  # fmt: skip
def test_steps_of_half_types_are_known_and_round_once(make: Any, options: Any, op: str, dtype: Any) -> None:
    """Captured, they go through float32 here and there; one op is nearer to the exact step than they are."""
    model, x = torch.nn.Linear(5, 4).to(dtype), torch.randn(3, 5, dtype=dtype)
    optimizer = make(model.parameters(), **options)
    for _ in range(2):
        model(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    graph = capture_step(model, x, optimizer=optimizer, loss=lambda y: y.square().sum()).graph
    fused = fuse_updates(graph)
    assert fused is not None
    assert sum(node.op == op for node in fused[0].nodes) == 2
    check_same(graph, fused[0])
    types = [graph.type(value) for value in graph.inputs]
    inputs = [(torch.rand(type.shape) * 0.8 + 0.1).to(torch_dtype(type.dtype)) for type in types]
    many, one = run_graph(graph, inputs), run_graph(fused[0], inputs)
    step = next(node for node in fused[0].nodes if node.op == op)
    at = fused[0].outputs.index(step.results[0])
    torch.testing.assert_close(many[at], one[at], rtol=0.05, atol=0.01)  # 8 bits, rounded up to ten times


def test_a_step_that_rounds_on_purpose_stays() -> None:
    narrow = LATER.replace("READ", "x").replace(
        "%d = aten.mul.Tensor(%g, %lr) : f32[4]",
        '%n = aten._to_copy(%g) {dtype="bf16"} : bf16[4]\n  %m = aten._to_copy(%n) {dtype="f32"} : f32[4]\n'
        "  %d = aten.mul.Tensor(%m, %lr) : f32[4]",
    )
    fused = fuse_updates(sw.Graph.parse(narrow))
    assert fused is not None  # the rounding is part of the gradient
    assert [node.op for node in fused[0].nodes][:3] == ["aten.tanh", "aten._to_copy", "aten._to_copy"]
    rounded = narrow.replace("mul.Tensor(%m, %lr)", "mul.Tensor(%g, %lr)").replace(
        "%v = aten.sub.Tensor(%w, %d)", '%r = aten._to_copy(%d) {dtype="bf16"} : bf16[4]\n'
        '  %s = aten._to_copy(%r) {dtype="f32"} : f32[4]\n  %v = aten.sub.Tensor(%w, %s)',
    )  # fmt: skip
    assert fuse_updates(sw.Graph.parse(rounded)) is None


def test_the_proof_does_not_take_the_word_of_the_pass() -> None:
    """An op with other operands, or other attributes, is found out."""
    captured = step_of(torch.optim.AdamW)
    fused = fuse_updates(captured.graph)
    assert fused is not None
    graph = fused[0]
    text = str(graph)
    check_same(captured.graph, sw.Graph.parse(text))
    changes = {
        "%optimizer.betas.0, %optimizer.betas.1": "%optimizer.betas.1, %optimizer.betas.0",
        "%optimizer.eps, %optimizer.weight_decay)": "%optimizer.lr, %optimizer.weight_decay)",
        "decoupled=true": "decoupled=false", "maximize=false": "maximize=true",
    }  # fmt: skip
    for one, other in changes.items():
        assert one in text
        with pytest.raises(sw.ShardwrightError, match="computes another output"):
            check_same(captured.graph, sw.Graph.parse(text.replace(one, other, 1)))


LATER = """graph f(%x: f32[4], %w: f32[4], %lr: f64[]) {
  %g = aten.tanh(%w) : f32[4]
  %d = aten.mul.Tensor(%g, %lr) : f32[4]
  %v = aten.sub.Tensor(%w, %d) {alpha=1} : f32[4]
  %b = aten.exp(%READ) : f32[4]
  return %b, %v
  update %w := output 1
}"""


@pytest.mark.parametrize(("read", "in_place"), [("x", True), ("g", True), ("v", True), ("w", False)])
def test_state_that_is_read_later_is_not_written_over(read: str, in_place: bool) -> None:
    graph = sw.Graph.parse(LATER.replace("READ", read))
    fused = fuse_updates(graph)
    assert fused is not None
    check_same(graph, fused[0])
    (node,) = (node for node in fused[0].nodes if node.op == SGD)
    assert bool(node.views) == in_place


def test_what_somebody_speaks_of_stays() -> None:
    graph = sw.Graph.parse(LATER.replace("READ", "x"))
    assert fuse_updates(graph, [graph.by_name["d"]]) is None
    assert fuse_updates(graph, [graph.by_name["g"]]) is not None


def test_an_intermediate_result_that_others_read_stays() -> None:
    graph = sw.Graph.parse(LATER.replace("READ", "d"))
    fused = fuse_updates(graph)
    assert fused is not None
    assert [node.op for node in fused[0].nodes] == ["aten.tanh", "aten.mul.Tensor", SGD, "aten.exp"]

"""Answers remembered within a capture: the graph is what it is when PyTorch is asked every time."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import shardwright.torch as swt  # noqa: E402
import torch_zoo as zoo  # noqa: E402
from shardwright.frontends.torch.answers import Answers  # noqa: E402


@pytest.mark.parametrize("name", ["llama zero3", "gpt2 megatron", "resnet", "experts", "cell", "unet", "recommender"])
def test_the_graph_is_the_same_to_the_letter(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, batch, _ = zoo.case(name)

    def text() -> str:
        return str(swt.capture_step(model, optimizer=torch.optim.AdamW(model.parameters()), **batch).graph)

    remembered = text()
    monkeypatch.setattr(Answers, "key", lambda *about: None)
    assert text() == remembered


def test_numbers_of_other_types_are_other_calls() -> None:
    def fn(x: Any) -> Any:
        return x * 2, x * 2.0, x * True, x.to(torch.float64) * 2, x.t().contiguous() * 2

    graph = swt.capture(fn, torch.zeros(3, 4, dtype=torch.int32)).graph
    types = [str(graph.type(value)) for value in graph.outputs]
    assert types == ["i32[3, 4]", "f32[3, 4]", "i32[3, 4]", "f64[3, 4]", "i32[4, 3]"]


def test_numbers_that_are_known_stay_known() -> None:
    """Of ``torch.tensor(3)`` PyTorch keeps the number; a call like an earlier one must not lose it."""

    def fn(x: Any) -> Any:
        first = (x[0, 0] + x[0, 1]).sum()
        count = torch.tensor(3) + torch.tensor(4)
        again = torch.tensor(3) + torch.tensor(4)
        return first + int(count) + int(again)

    graph = swt.capture(fn, torch.zeros(2, 2)).graph
    assert [node.attr("other") for node in graph.nodes if node.op == "aten.add.Tensor"][-2:] == [7, 7]

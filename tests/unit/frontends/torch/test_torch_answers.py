"""Answers remembered within a capture: the graph is what it is when PyTorch is asked every time."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import shardwright.torch as swt  # noqa: E402
import torch_zoo as zoo  # noqa: E402
from shardwright.frontends.torch.private import FakeTensor, FakeTensorMode  # noqa: E402
from shardwright.frontends.torch.recording.answers import Answers  # noqa: E402
from shardwright.frontends.torch.signatures import signature  # noqa: E402


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


def _asked(op: Any, *args: Any, answers: Answers, **kwargs: Any) -> tuple[Any, bool]:
    """What a call returns, and whether PyTorch was asked."""
    form = signature(op)
    calls = []

    def call() -> Any:
        calls.append(1)
        return op(*args, **kwargs)

    return answers.ask(form, *form.split(args, kwargs), kwargs, call), bool(calls)


def _facts(x: Any) -> Any:
    if isinstance(x, list | tuple):
        return [_facts(item) for item in x]
    return x.shape, x.stride(), x.storage_offset(), x.dtype, x.device, type(x)


aten = torch.ops.aten
VIEWS = [
    (aten.view.default, ([12],)), (aten.t.default, ()), (aten.slice.Tensor, (1, 1, 3)), (aten.detach.default, ()),
    (aten.split.Tensor, (2, 1)), (aten.unbind.int, (1,)), (aten.expand.default, ([2, 3, 4],)),
    (aten._unsafe_view.default, ([2, 6],)), (aten.diagonal.default, ()), (aten.unfold.default, (1, 2, 1)),
]  # fmt: skip


@pytest.mark.parametrize(("op", "rest"), VIEWS, ids=lambda x: str(x) if not isinstance(x, tuple) else "")
def test_a_view_lies_in_the_memory_of_its_own_operand(op: Any, rest: tuple[Any, ...]) -> None:
    answers = Answers()
    with FakeTensorMode():
        base = torch.empty(4, 3, 4)
        first, asked = _asked(op, base[1], *rest, answers=answers)
        assert asked
        other = torch.empty(4, 3, 4)[1]
        again, asked = _asked(op, other, *rest, answers=answers)
        assert not asked
        assert _facts(again) == _facts(first)
        for result in again if isinstance(again, list | tuple) else [again]:
            assert result.untyped_storage()._cdata == other.untyped_storage()._cdata
        elsewhere, asked = _asked(op, base[2], *rest, answers=answers)
        assert asked
        assert _facts(elsewhere) == _facts(op(base[2], *rest))


def test_what_is_written_is_what_is_returned_and_other_shapes_are_asked_for() -> None:
    answers = Answers()
    with FakeTensorMode():
        x, y = torch.empty(3), torch.empty(3)
        for _ in range(2):
            made, asked = _asked(aten.add_.Tensor, x, y, answers=answers)
            assert made is x
        assert not asked
        out = torch.empty(0)
        for _ in range(2):  # resized, each time
            out = torch.empty(0)
            made, asked = _asked(aten.add.out, x, y, out=out, answers=answers)
            assert asked
            assert made is out
            assert out.shape == (3,)
        for _ in range(2):
            with pytest.raises(RuntimeError):
                _asked(aten.copy_.default, x, torch.empty(2), answers=answers)


def test_the_device_and_missing_results_are_part_of_it() -> None:
    answers = Answers()
    with FakeTensorMode(allow_non_fake_inputs=True):
        x = torch.empty(3, 4)
        there, _ = _asked(aten._to_copy.default, x, device=torch.device("meta"), answers=answers)
        here, _ = _asked(aten._to_copy.default, x, device=torch.device("cpu"), answers=answers)
        assert (there.device.type, here.device.type) == ("meta", "cpu")
        call = (aten.native_layer_norm_backward.default, x, x, [4], x[:, :1], x[:, :1], None, None)
        for again in (False, True):
            (made, *absent), asked = _asked(*call, [True, False, False], answers=answers)
            assert (made.shape, absent, asked) == (x.shape, [None, None], not again)


def test_without_the_mode_tensors_have_numbers() -> None:
    """What a call without tensors returns depends on where it is made."""
    answers = Answers()
    with FakeTensorMode():
        for again in (False, True):
            made, asked = _asked(aten.ones.default, [2], device=torch.device("cpu"), answers=answers)
            assert isinstance(made, FakeTensor)
            assert asked is not again
    made, asked = _asked(aten.ones.default, [2], device=torch.device("cpu"), answers=answers)
    assert asked
    assert made.tolist() == [1, 1]

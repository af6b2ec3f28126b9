"""The ATen book against execution: calls, splits on a mesh, the oracle, and the page beside DTensor's."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")

from shardwright.discover.book.page import page  # noqa: E402
from shardwright.discover.book.torch import compare_calls, functional_overloads, made_ops, written_ops  # noqa: E402
from shardwright.discover.book.torch_calls import (  # noqa: E402
    AtenCall,
    call_of,
    calls_in,
    written_calls,
)
from shardwright.discover.book.torch_mesh import Split  # noqa: E402
from shardwright.errors import DiscoverError  # noqa: E402
from shardwright.frontends.torch import capture  # noqa: E402
from shardwright.rules.registry import lookup, rule  # noqa: E402


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def test_ops_are_those_with_a_record() -> None:
    written, made = written_ops(), made_ops()
    assert {"aten.mm", "shardwright.attention"} <= set(written)
    assert {"aten.relu", "aten._foreach_add.List"} <= set(made)
    assert not set(written) & set(made)
    assert "aten.add_.Tensor" not in functional_overloads()


def test_a_call_stands_as_in_a_graph() -> None:
    call = call_of("aten.native_layer_norm_backward", _layer_norm(), {})
    assert call.slots == (1, 1, 1, 1, 1, None)
    assert call.attrs["absent"] == (2,)
    assert len(call.results) == 2
    assert str(call.graph().nodes[0].op) == "aten.native_layer_norm_backward"


def _layer_norm() -> list[object]:
    x, weight = numbers(4, 6), numbers(6)
    made, mean, scale = torch.ops.aten.native_layer_norm(x, [6], weight, None, 1e-5)
    return [torch.sin(made), x, [6], mean, scale, weight, None, [True, True, False]]


def test_calls_of_a_program() -> None:
    captured = capture(lambda x, w: torch.relu(x @ w).sum(), numbers(4, 6), numbers(6, 2))
    found = [call.op for call in calls_in(captured.graph, captured.inputs(numbers(4, 6), numbers(6, 2)), "mine")]
    assert found == ["aten.mm", "aten.relu", "aten.sum"]


def test_an_op_without_tensors_is_no_call() -> None:
    with pytest.raises(DiscoverError, match="gives no tensor"):
        call_of("aten.is_same_size", [numbers(2), numbers(2)], {})


def test_what_agrees() -> None:
    found = compare_calls("aten.mm", [call_of("aten.mm", [numbers(4, 6), numbers(6, 4)], {})])
    assert (found.calls, found.wrong, found.beyond, found.uncovered) == (1, (), (), 0)
    assert found.splits == 6  # three factors, two meshes
    assert found.rows == 5  # three factors, two lines


@pytest.mark.usefixtures("kept_book")
def test_what_is_wrong() -> None:
    call = call_of("aten.cumsum", [numbers(4, 6), 0], {})
    rule("aten.cumsum", "i j -> i j ; P(max) -> P(max)", replace=True)
    found = compare_calls("aten.cumsum", [call])
    assert any(line.startswith("split i/x=2") for line in found.wrong)
    assert any(line.startswith("S(0) -> S(0)") for line in found.wrong)
    assert any(line.startswith("P(max) -> P(max)") for line in found.wrong)


def test_what_the_rule_does_not_cover() -> None:
    found = compare_calls("aten.roll", [call_of("aten.roll", [numbers(4, 6), [1]], {})])
    assert found.uncovered == 1
    assert "no call of it is known that the rule covers" in found.wrong


def test_a_shard_that_cannot_be_computed_is_said() -> None:
    x = numbers(4, 6)
    call = AtenCall("aten.linalg_det", {}, (x,), ())
    with pytest.raises(RuntimeError):
        Split(call, lookup("aten.mm").bind([(4, 6), (6, 2)], [(4, 2)]))


def test_written_calls_run() -> None:
    ops = {call.op for call in written_calls(["aten._foreach_lerp.List", "aten._foreach_pow.ScalarAndTensor"])}
    assert {"aten.arange", "aten._fused_adamw.tensor_lr", "aten._foreach_lerp.List"} <= ops


def test_the_page() -> None:
    text = page()
    assert "| registered in DTensor |" in text
    assert "writes to an argument: capture turns it into its functional form" in text
    assert "`mm`" in text
    assert all(len(line) < 130 for line in text.splitlines())

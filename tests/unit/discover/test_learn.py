"""From a name to a statement: the worked examples, and the doors for one call."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402
import yaml  # noqa: E402

from shardwright.discover import QUICK, Effort, analyze_and_synthesize, discover, discover_strategies  # noqa: E402
from shardwright.errors import DiscoverError  # noqa: E402

CROSS = ["R, R -> R", "S(d), S(d) -> S(d) WHEN d != dim", "P(sum), R -> P(sum)", "R, P(sum) -> P(sum)"]


def test_cross_gives_exactly_four_rules() -> None:
    (statement,) = discover("torch.cross", QUICK)
    assert [str(rule) for rule in statement.rules] == CROSS
    assert statement.variants == ()
    assert statement.operator.overload == "aten.linalg_cross.default"
    assert statement.category == "cross-dim operation"
    assert statement.dim_parameters == ("dim",)
    assert statement.properties == ("bilinear in self and other",)
    assert all(rule.grade == "empty" for rule in statement.rules)


def test_one_shape_and_one_dim_are_enough_for_cross() -> None:
    """The call that the worked example makes."""
    found = analyze_and_synthesize(
        op=torch.cross,
        op_name="torch.cross",
        input_ndims=[2, 2],
        output_ndims=[2],
        input_shape=(8, 3),
        device=torch.device("cpu"),
        world_size=2,
        dim_param="dim",
        dim_values=[1],
    )
    assert [str(rule) for rule in found["statement"].rules] == CROSS
    assert "S(d), S(d)  -> S(d)" in found["formatted"]
    assert yaml.safe_load(found["yaml"])["conditional_rules"][0]["condition"] == "d != dim"


def test_dims_are_swept_where_none_are_given() -> None:
    found = analyze_and_synthesize(torch.cumsum, input_ndims=[2], input_shape=(8, 6))
    assert [str(rule) for rule in found["statement"].rules] == [
        "R -> R",
        "S(d) -> S(d) WHEN d != dim",
        # Not for dtype=torch.int64: parts are cut off each for itself.
        "P(sum) -> P(sum) WHEN dtype keeps the numbers of input 0",
    ]


def test_strategies_of_one_call() -> None:
    found = discover_strategies(torch.matmul, input_ndims=[2, 2], input_shape=[(4, 6), (6, 8)])
    assert {"inputs": ["S(1)", "S(0)"], "output": ["P(sum)"]} in found
    assert {"inputs": ["S(0)", "R"], "output": ["S(0)"]} in found
    assert {"inputs": ["S(0)", "S(0)"], "output": ["P(sum)"]} not in found


def test_numpy_functions_too() -> None:
    found = discover_strategies(np.negative, input_shape=(4, 6))
    assert {"inputs": ["P(max)"], "output": ["P(min)"]} in found


def test_searchsorted_with_and_without_its_optional_tensor() -> None:
    effort = Effort(samples=16, more=8, variants=1)
    statement = next(s for s in discover("torch.searchsorted", effort) if "Tensor" in s.operator.overload)
    counts = {len(rule.inputs) for rule in statement.every_rule}
    assert counts == {2, 3}
    for count in counts:
        rules = [str(rule) for rule in statement.every_rule if len(rule.inputs) == count]
        some = ", ".join(["S(d)"] * count)
        assert f"{some} -> S(d) WHEN d != last" in rules
        assert f"{', '.join(['R', 'S(d)', 'R'][:count])} -> S(d) WHEN d == last" in rules


def test_a_reduction_depends_on_its_word() -> None:
    (statement,) = discover("torch.nn.functional.mse_loss", QUICK)
    rules = [str(rule) for rule in statement.rules]
    assert any(rule.startswith("S(d), S(d) -> P(avg) WHEN reduction == ") for rule in rules)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: discover("torch.crosss"), "did you mean"),
        (lambda: discover_strategies(torch.matmul, input_ndims=[2, 2], input_shape=(3, 4)), "does not run on tensors"),
        (lambda: analyze_and_synthesize(torch.cumsum, input_shape=(4,), dim_values=[5]), "runs for none"),
        (lambda: analyze_and_synthesize(torch.exp, input_shape=(4,), output_ndims=[2]), "gives tensors of ranks"),
        (lambda: discover_strategies(torch.exp, input_shape=(4,), device="cuda"), "runs on the CPU"),
    ],
)  # fmt: skip
def test_mistakes_are_told(call: object, message: str) -> None:
    with pytest.raises(DiscoverError, match=message):
        call()  # type: ignore[operator]


def test_more_is_found_than_expected() -> None:
    """Counting how many are smaller adds up over shards of the sorted sequence: a rule that DTensor does not have."""
    found = discover_strategies(torch.searchsorted, input_shape=[(8,), (6,)])
    assert {"inputs": ["S(0)", "R"], "output": ["P(sum)"]} in found

"""Fresh calls reach what rules were once false on, and rows that no call at hand shows get their rules."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from brute_force import cut  # noqa: E402
from shardwright.discover import QUICK, discover  # noqa: E402
from shardwright.discover.calls.fresh import Drawer  # noqa: E402
from shardwright.discover.emit.expression import value_of  # noqa: E402
from shardwright.discover.emit.source import emitted_rules  # noqa: E402
from shardwright.discover.judging.oracle import check  # noqa: E402
from shardwright.discover.learn import SURVEY, study  # noqa: E402
from shardwright.discover.operator import Sample  # noqa: E402
from shardwright.discover.placement import P, R, S  # noqa: E402
from shardwright.discover.synthesis.attack import LIGHT, Pool, Target  # noqa: E402
from shardwright.discover.synthesis.conditions import extent_atoms, value_atoms  # noqa: E402
from shardwright.discover.synthesis.search import Search  # noqa: E402
from shardwright.discover.torch.ops import sample_of, torch_operator  # noqa: E402


def x(*shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def drawn_around(name: str, args: tuple[Any, ...]) -> list[Sample]:
    operator = torch_operator(name)
    sample = sample_of(operator, args, {})
    return list(Drawer(operator, [sample]).around(sample))


def test_shards_of_one_element_are_drawn() -> None:
    calls = drawn_around("torch.nn.functional.group_norm", (x(4, 6, 5), 2))
    assert any(call.shapes == ((2, 1, 1),) and call.args[1] == 1 for call in calls)
    calls = drawn_around("torch.nn.functional.group_norm", (x(4, 6, 3), 3))
    assert any(call.shapes == ((2, 3, 1),) and call.args[1] == 3 for call in calls)
    calls = drawn_around("aten.view.default", (x(4, 6), [8, 3]))
    assert any(call.shapes == ((1, 1),) and call.args[1] == [] for call in calls)


def test_an_argument_says_what_size_a_result_has() -> None:
    """``output_size``, which must be right where it is given: no shard has it."""

    def told(x: Any, times: int, size: int | None = None) -> Any:
        made = x.repeat_interleave(times, 0)
        assert size in (None, made.shape[0])
        return made

    operator = torch_operator(told)
    sample = sample_of(operator, (x(4, 6), 3), {})
    calls = Drawer(operator, [sample]).around(sample)
    assert any(call.values(operator)["size"] == 12 for call in calls)


def test_numbers_between_those_where_arguments_turn_are_drawn() -> None:
    """Above 0.5 the bounds of ``logit`` cross: between there and 1 it falls where it rises."""
    calls = drawn_around("aten.logit.default", (x(4, 6), 0.25))
    assert any(0.5 < call.args[1] < 1 for call in calls if call.args[1] is not None)


def test_one_tensor_alone_has_another_dtype() -> None:
    calls = drawn_around("aten.add.Tensor", (x(4, 6), x(4, 6)))[:24]
    kinds = {tuple(a.dtype.kind for a in call.tensors) for call in calls}
    assert {("b", "f"), ("f", "b"), ("i", "f"), ("f", "i")} <= kinds


def test_what_was_unknown_of_a_known_call_is_read_again() -> None:
    """The search knows all calls, and a row of one of them is tried only later: the rule is narrowed, not dropped."""
    operator = torch_operator("aten.abs.default")
    table = check(operator, sample_of(operator, (x(4, 6),), {}))
    search = Search.over(operator, [table], 0)
    target = target_of(torch.abs, x(8, 6))
    assert target.table.answers is not None
    search.add([target.situation])
    template = next(t for t in search._templates() if t.reference == 0 and t.cost == 0)
    before = len(search._cases(template).failed)
    target.table.answers[(S(0),), (S(0),)] = False
    assert len(search._cases(template).failed) == before
    search.read_again(template)
    assert len(search._cases(template).failed) == before + 1


def test_ranks_differ_behind_the_dim_worked_along() -> None:
    calls = drawn_around("aten._chunk_cat.default", ([x(5, 2, 6), x(5, 2, 3)], -1, 5))
    assert any(len(call.shapes[0]) != len(call.shapes[1]) for call in calls)


def target_of(call: Any, *args: Any) -> Target:
    operator = torch_operator(call)
    sample = sample_of(operator, args, {})
    pool = Pool(operator, Drawer(operator, [sample]), (), 0, check(operator, sample))
    found = pool.target_of(sample)
    assert found is not None
    return found


def test_what_does_not_run_on_shards_is_refuted_whatever_the_numbers() -> None:
    def wary(x: Any) -> Any:
        if x.shape[0] < 3:
            raise ValueError("too short")
        return x * math.nan

    assert target_of(wary, x(4, 6)).try_row((S(0),), (S(0),)) is False
    assert target_of(wary, x(4, 6)).try_row((S(1),), (S(1),)) is None


def test_results_near_overflow_tell_nothing_of_pending_parts() -> None:
    def grown(x: Any, y: Any) -> Any:
        return torch.exp(x) * y

    for top, told in ((7.0, True), (709.0, None)):
        exponents = torch.full((4, 6), top, dtype=torch.float64) - torch.arange(6)
        assert target_of(grown, exponents, x(4, 6)).try_row((R, P("sum")), (P("sum"),)) is told


def test_a_kernels_own_error_refutes_nothing() -> None:
    def series(x: Any, off: float) -> Any:
        return torch.sin(x) * (1 + (off if x.shape[0] > 2 else 0.0))

    assert target_of(series, x(4, 6), 0.0).try_row((S(0),), (S(0),)) is True
    assert target_of(series, x(4, 6), 1e-8).try_row((S(0),), (S(0),)) is None
    assert target_of(series, x(4, 6), 1e-4).try_row((S(0),), (S(0),)) is False


def test_every_way_to_cut_comes_up_where_few_are_tried() -> None:
    target = target_of(torch.add, x(12, 6), x(12, 6))
    target.trials = 2
    tried = {trial for _ in range(12) for trial in list(target._trials((S(0), S(0)), (S(0),)))[1:]}
    assert {world for world, _ in tried} == {3, 4, 5}
    pending = [list(target._trials((P("sum"), P("sum")), (P("sum"),))) for _ in range(12)]
    assert all(len(trials) == 2 for trials in pending)
    assert {encoding for trials in pending for _, encoding in trials} == {"random", "small", "large", "alone"}


def situation(shape: tuple[int, ...], **values: Any) -> Any:
    return SimpleNamespace(shape=(shape,), rank=(len(shape),), values=values, dtype=("float64",), dims={})


def test_a_list_of_sizes_keeps_those_in_front() -> None:
    cases = [situation((4, 6), size=size) for size in ([4, 6, 3], [4, 3, 2], [2, 12], [4], [4, 12], [4, -1], [])]
    for text, told in (
        ("size keeps the sizes before d, and a multiple along d", [True, False, False, False, True, False, False]),
        ("size keeps the sizes up to d", [True, False, False, False, False, False, False]),
    ):
        atom = next(a for a in extent_atoms(cases, (), 0) if a.expr.text == text)
        assert [atom.holds(case, 1) for case in cases] == told
        names = ({"d": 1, "shape": case.shape, "size": case.values["size"]} for case in cases)
        assert [value_of(atom.expr.code, known) for known in names] == told


def test_a_number_may_be_asked_to_be_finite() -> None:
    cases = [situation((4,), weight=weight) for weight in (0.5, 3.0, math.inf)]
    atom = next(a for a in value_atoms(cases, ()) if a.expr.text == "weight < inf")
    assert [atom.holds(case, 0) for case in cases] == [True, True, False]
    assert [value_of(atom.expr.code, {"weight": case.values["weight"]}) for case in cases] == [True, True, False]


def test_being_finite_is_said_before_any_threshold() -> None:
    """Not 'weight <= 2', where an infinite weight alone fails: with 3 it holds as well."""
    cases = [situation((4,), weight=weight) for weight in (0.5, 1.5, math.inf, None)]
    atoms = [a for a in value_atoms(cases, ()) if [a.holds(case, 0) for case in cases] == [True, True, False, False]]
    assert min(atoms, key=lambda atom: atom.cost).expr.text == "weight is finite"
    code = next(atom.expr.code for atom in atoms if atom.expr.text == "weight is finite")
    told = [value_of(code, {"weight": weight}) for weight in (0.5, 1.5, math.inf, -math.inf, None)]
    assert told == [True, True, False, False, False]


def test_rows_that_no_call_at_hand_shows_are_found_among_fresh_ones() -> None:
    def scaled(x: Any, shift: float = 0.0, scale: float = 1.0) -> Any:
        return torch.relu(x) * scale + shift

    operator = torch_operator(scaled)
    samples = [sample_of(operator, (x(*shape), 0.0, 1.5), {}) for shape in ((4, 6), (8,))]
    assert SURVEY.attack is not None
    for more in (0, 500):
        effort = replace(SURVEY, more=0, rich=0, attack=replace(LIGHT, more=more))
        rules = [str(rule) for rule in study(operator, samples, effort).rules]
        assert any(r.startswith("P(max) -> P(max) WHEN scale >") for r in rules), rules
        assert any(r.startswith("P(max) -> P(min) WHEN scale <") for r in rules) == (more > 0), rules


@pytest.mark.long
def test_a_regrouped_dim_is_told_by_the_sizes_in_front() -> None:
    (statement,) = discover("torch.unflatten", QUICK)
    rules = [str(rule) for rule in statement.rules]
    assert any(r.startswith("S(d) -> S(d) WHEN size keeps the sizes") for r in rules), rules


def test_the_check_cuts_copies() -> None:
    parts = cut(x(4, 6), ("S", 0), 2, random.Random(1))
    assert all(part.untyped_storage().nbytes() == 12 * 8 for part in parts)


def test_even_inputs_that_make_uneven_results_are_not_told_to_dtensor() -> None:
    operator = torch_operator("aten.pixel_unshuffle.default")
    samples = [sample_of(operator, (x(*shape), 2), {}) for shape in ((4, 8, 8), (2, 4, 8, 12))]
    statement = study(operator, samples, SURVEY)
    narrow = {str(rule): rule.narrows for rule in statement.rules if rule.grade == "even"}
    assert narrow["S(d) -> S(d) WHEN d < ndim-2"] is False
    assert True in narrow.values()  # of 6 in two, 3 in two
    kept, left_out = emitted_rules(statement, even_only=True)
    assert "S(d) -> S(d) WHEN d < ndim-2" in {str(k.rule) for k in kept}
    assert not any(narrow[str(k.rule)] for k in kept if k.rule.grade == "even")
    assert any("cut evenly" in out.reason for out in left_out)

"""The numeric problem: what is accepted, what a choice costs, and what a contest file may say."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardwright.optimize import FORBIDDEN, NumericError, NumericProblem, parse, read


def contest(**changes: Any) -> dict[str, Any]:
    problem: dict[str, Any] = {
        "name": "tiny",
        "nodes": {"intervals": [[0, 2], [1, 3]], "costs": [[1, 2], [3, 4, 5]], "usages": [[5, 1], [4, 3, 2]]},
        "edges": {"nodes": [[0, 1], [1, 0]], "costs": [[0, 10, 20, 30, 40, FORBIDDEN], [1, 2, 3, 4, 5, 6]]},
        "usage_limit": 8,
    }
    for key, value in changes.items():
        part, _, field = key.partition("_")
        if part in ("nodes", "edges"):
            problem[part][field] = value
        else:
            problem[key] = value
    return {"problem": problem}


def test_a_choice_is_priced_exactly() -> None:
    problem = parse(json.dumps(contest()))
    # Both edges join the same nodes, the second from its other end.
    assert len(problem.edges) == 1
    value = problem.evaluate([0, 1])
    assert value.cost == 1 + 4 + 10 + 3
    assert (value.peak, value.excess, value.step) == (8, 0, 1)
    assert value.feasible
    value = problem.evaluate([0, 0])
    assert (value.peak, value.excess, value.step, value.feasible) == (9, 1, 1, False)
    value = problem.evaluate([1, 2])
    assert value.forbidden == 1
    assert not value.feasible


def test_sums_beyond_64_bits_are_exact() -> None:
    large = FORBIDDEN - 1
    problem = NumericProblem.build([[large]] * 30)
    assert problem.evaluate([0] * 30).cost == 30 * large


def test_allowed_costs_never_add_up_to_forbidden() -> None:
    large = FORBIDDEN - 1
    problem = NumericProblem.build([[0], [0]], [(0, 1, [[large]]), (1, 0, [[large]])])
    assert problem.evaluate([0, 0]).feasible
    assert problem.evaluate([0, 0]).cost == 2 * large


def test_an_edge_from_a_node_to_itself_is_a_cost() -> None:
    problem = NumericProblem.build([[1, 2]], [(0, 0, [[10, 99], [99, 20]])])
    assert problem.edges == ()
    assert [problem.evaluate([pick]).cost for pick in (0, 1)] == [11, 22]


def test_limits_are_per_step_and_usages_may_be_several() -> None:
    problem = NumericProblem.build([[0, 0]], (), [(0, 0, 1, [2, 1]), (0, 2, 3, [1, 5])], [2, 0, 4])
    assert problem.evaluate([0]).feasible
    assert problem.evaluate([1]).step == 2


def test_plain_and_compressed_files_are_read(tmp_path: Path) -> None:
    text = json.dumps(contest())
    (tmp_path / "tiny.json").write_text(text)
    (tmp_path / "tiny.json.gz").write_bytes(gzip.compress(text.encode()))
    costs = {read(tmp_path / name).evaluate([1, 1]).cost for name in ("tiny.json", "tiny.json.gz")}
    assert costs == {2 + 4 + 40 + 4}


def test_no_limit_is_no_limit() -> None:
    data = contest()
    del data["problem"]["usage_limit"]
    assert parse(json.dumps(data)).evaluate([0, 0]).feasible


def test_times_far_apart_need_no_array_of_that_length() -> None:
    problem = parse(json.dumps(contest(nodes_intervals=[[0, 10**15], [10**14, 10**16]])))
    assert problem.limits.size < 10
    assert problem.evaluate([0, 0]).peak == 9


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"nodes_costs": [[1, 2], [3, 4, float("nan")]]}, "NaN is no number"),
        ({"nodes_costs": [[1, 2], [3, 4, 5.5]]}, "whole numbers"),
        ({"nodes_costs": [[1, 2], [3, 4, True]]}, "whole numbers"),
        ({"nodes_costs": [[1, 2], [3, 4, "5"]]}, "whole numbers"),
        ({"nodes_costs": [[1, 2], []], "edges_nodes": [], "edges_costs": []}, "node 1 has no strategy"),
        ({"nodes_costs": [[1, 2]]}, "as many intervals as costs"),
        ({"nodes_usages": [[5, 1], [4, 3]]}, "3 strategies, its usages 2"),
        ({"nodes_usages": [[5, -1], [4, 3, 2]]}, "negative"),
        ({"nodes_intervals": [[0, 2], [-1, 3]]}, "leaves the 3 steps"),
        ({"nodes_intervals": [[0, 2], [1]]}, "two whole numbers"),
        ({"edges_nodes": [[0, 1], [1, 2]]}, "does not fit"),
        ({"edges_costs": [[0, 10, 20, 30, 40], [1, 2, 3, 4, 5, 6]]}, "does not fit"),
        ({"edges_costs": [[0, 10, 20, 30, 40, 50]]}, "as many pairs"),
        ({"usage_limit": -1}, "whole number of bytes"),
        ({"usage_limit": 1.5}, "whole number of bytes"),
        ({"nodes": []}, "'nodes' is no object"),
        ({"name": 3}, "'name' is no text"),
    ],
)
def test_malformed_files_are_refused(changes: dict[str, Any], fact: str) -> None:
    data = contest()
    data["problem"].update(contest(**changes)["problem"]) if "nodes" not in changes else data["problem"].update(changes)
    with pytest.raises(NumericError, match=fact):
        parse(json.dumps(data))


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("", "not JSON"),
        ("[]", "'problem' is missing"),
        ('{"problem": {}, "problem": {}}', "twice"),
        ('{"problem": {"nodes": {}}}', "is missing"),
    ],
)
def test_malformed_text_is_refused(text: str, fact: str) -> None:
    with pytest.raises(NumericError, match=fact):
        parse(text)


def test_a_broken_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cut.json.gz").write_bytes(gzip.compress(b"{}" * 100)[:-12])
    with pytest.raises(NumericError, match="not readable"):
        read(tmp_path / "cut.json.gz")
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(NumericError, match=r"bad\.json"):
        read(tmp_path / "bad.json")


def test_what_a_program_builds_is_checked_too() -> None:
    with pytest.raises(NumericError, match="is not there"):
        NumericProblem.build([[1]], [(0, 1, [[1]])])
    with pytest.raises(NumericError, match="table of 1 x 2"):
        NumericProblem.build([[1], [1, 2]], [(0, 1, [[1]])])
    with pytest.raises(NumericError, match="too low"):
        NumericProblem.build([[-FORBIDDEN]])
    with pytest.raises(NumericError, match="names node 3"):
        NumericProblem.build([[1]], (), [(3, 0, 1, [1])], [1])
    with pytest.raises(NumericError, match="negative"):
        NumericProblem.build([[1]], (), (), [-1])
    with pytest.raises(NumericError, match="whole numbers"):
        NumericProblem.build([np.array([0.5])])
    with pytest.raises(NumericError, match="one existing strategy"):
        NumericProblem.build([[1]]).evaluate([1])

"""What a function hides outside the calls at hand is not claimed: no rule is false in its region."""

from __future__ import annotations

import inspect

import pytest

torch = pytest.importorskip("torch")

from brute_force import Call, Subject, check_statement  # noqa: E402
from deceiving import DECEIVING  # noqa: E402
from shardwright.discover import QUICK  # noqa: E402
from shardwright.discover.learn import SURVEY, study  # noqa: E402
from shardwright.discover.operator import REQUIRED  # noqa: E402
from shardwright.discover.torch.ops import sample_of, torch_operator  # noqa: E402


def false_rules(name: str, effort: object = QUICK, draws: int = 250) -> list[str]:
    """The rules stated of the calls at hand that the check refutes, starting from those that reveal."""
    function, learn, reveal = DECEIVING[name]
    operator = torch_operator(function, name=name)
    statement = study(operator, [sample_of(operator, call, {}) for call in learn], effort)  # type: ignore[arg-type]
    parameters = inspect.signature(function).parameters.values()
    names = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
    defaults = {a.name: a.default for a in operator.arguments if a.default is not REQUIRED}
    bases = [Call({**defaults, **dict(zip(names, call))}) for call in (*reveal, *learn)]
    found = check_statement(
        statement, Subject(function, names, []), bases, defaults, "deceiving", draws=draws, complete=0
    )
    assert statement.rules
    assert found.calls
    return list(found.false)


@pytest.mark.parametrize("name", ["falls_in_a_window", "turns_squares", "adds_the_first", "has_a_word"])
def test_what_some_functions_hide_is_not_claimed(name: str) -> None:
    assert false_rules(name, SURVEY, draws=120) == []


@pytest.mark.long
@pytest.mark.parametrize("name", DECEIVING)
def test_what_a_function_hides_is_not_claimed(name: str) -> None:
    assert false_rules(name) == []


def test_there_are_sixty_of_them() -> None:
    assert len(DECEIVING) >= 60

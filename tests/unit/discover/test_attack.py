"""Rules are attacked before they are stated; and the independent check that says so finds false rules itself."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from brute_force import Call, Subject, check_statement  # noqa: E402
from shardwright.discover import QUICK, discover  # noqa: E402
from shardwright.discover.calls.fresh import Drawer  # noqa: E402
from shardwright.discover.calls.named import dims_by_behaviour, named_by  # noqa: E402
from shardwright.discover.emit.expression import value_of  # noqa: E402
from shardwright.discover.judging.oracle import Oracle, check  # noqa: E402
from shardwright.discover.learn import SURVEY, study  # noqa: E402
from shardwright.discover.operator import REQUIRED, Sample  # noqa: E402
from shardwright.discover.placement import KINDS  # noqa: E402
from shardwright.discover.synthesis.conditions import value_atoms  # noqa: E402
from shardwright.discover.torch.ops import sample_of, torch_operator  # noqa: E402
from shardwright.errors import DiscoverError  # noqa: E402

F = torch.nn.functional


def on(code: str, broadcasts: bool = False) -> SimpleNamespace:
    return SimpleNamespace(dim=SimpleNamespace(code=code), broadcasts=broadcasts)


def pending(kind: str) -> SimpleNamespace:
    return SimpleNamespace(kind="P", reduce=kind, dim=-1)


R = SimpleNamespace(kind="R", reduce="", dim=-1)
D = on("d")


def rule(inputs: list[Any], outputs: list[Any], *when: str, reference: int | None = 0, grade: str = "even") -> Any:
    conditions = [SimpleNamespace(code=code) for code in when]
    return SimpleNamespace(inputs=inputs, outputs=outputs, conditions=conditions, reference=reference, grade=grade)


def x(*shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


PLANTED: dict[str, tuple[Callable[..., Any], dict[str, Any], Any]] = {
    "sharded along a scan": (torch.cumsum, {"input": x(4, 6), "dim": 1}, rule([D], [D])),
    "a mean of unequal shards": (torch.mean, {"input": x(4, 6), "dim": 1}, rule([D], [pending("avg")], "d == dim",
                                                                               grade="uneven")),
    "linear in both at once": (torch.mul, {"input": x(4, 6), "other": x(4, 6)},
                               rule([pending("sum")] * 2, [pending("sum")], reference=None)),
    "increasing where it falls": (torch.neg, {"input": x(4, 6)},
                                  rule([pending("max")], [pending("max")], reference=None)),
    "a threshold of an argument": (torch.lerp, {"input": x(4, 6), "end": x(4, 6), "weight": 0.5},
                                   rule([pending("max"), R], [pending("max")], reference=None)),
    "a broadcast dim that is split": (torch.add, {"input": x(4, 6), "other": x(4, 6)}, rule([D, D], [D])),
    "a word that was never tried": (F.mse_loss, {"input": x(4, 6), "target": x(4, 6), "reduction": "sum"},
                                    rule([D, D], [pending("sum")])),
    "a size that happened to fit": (torch.roll, {"input": x(4, 6), "shifts": [4], "dims": [0]}, rule([D], [D])),
    "empty shards": (torch.amax, {"input": x(4, 6), "dim": [1]},
                     rule([D], [pending("max")], "d in dim", grade="empty")),
    "a dtype": (torch.abs, {"input": x(4, 6)}, rule([pending("prod")], [pending("max")], reference=None)),
}  # fmt: skip


@pytest.mark.parametrize("family", PLANTED)
def test_the_check_finds_a_planted_false_rule(family: str) -> None:
    function, arguments, false = PLANTED[family]
    statement = SimpleNamespace(
        rules=[false], variants=[], dim_parameters=("dim",) if "dim" in arguments else (), inserts=0,
        operator=SimpleNamespace(name=family),
    )  # fmt: skip
    subject = Subject(function, list(arguments), [])
    found = check_statement(statement, subject, [Call(arguments)], {}, "planted", draws=250, complete=0)
    assert found.false, f"{found.rows} rows of {found.calls} calls"


def checked(statement: Any, subject: Subject, bases: list[Call], draws: int = 250) -> Any:
    arguments = statement.operator.arguments
    defaults = {a.name: a.default for a in arguments if a.default is not REQUIRED}
    return check_statement(statement, subject, bases, defaults, "7be7278f", draws=draws, complete=3)


def of_overload(statement: Any, **arguments: Any) -> Any:
    schema = statement.operator.call._schema.arguments
    positional = [a.name for a in schema if not a.kwarg_only]
    subject = Subject(statement.operator.call, positional, [a.name for a in schema if a.kwarg_only])
    return checked(statement, subject, [Call(arguments)])


def test_cross_withstands() -> None:
    (statement,) = discover("torch.cross", SURVEY)
    found = of_overload(statement, self=x(4, 3), other=x(4, 3), dim=-1)
    assert found.false == []
    assert found.covered == found.valid > 0
    assert statement.fresh > 50
    assert statement.held_out[0] == statement.held_out[1] > 0


@pytest.mark.long
def test_a_threshold_is_found_and_words_are_all_tried() -> None:
    statement = next(s for s in discover("torch.lerp", SURVEY) if s.operator.overload == "aten.lerp.Scalar")
    texts = [str(rule) for rule in statement.rules]
    assert "P(max), R -> P(max) WHEN weight <= 1" in texts
    assert not any("ndim" in text for text in texts)
    assert of_overload(statement, self=x(4, 6), end=x(4, 6), weight=0.5).false == []


def test_shards_are_claimed_by_dim_and_only_where_they_were_seen() -> None:
    (statement,) = discover("torch.nn.functional.pixel_shuffle", SURVEY)
    grades = {str(rule): rule.grade for rule in statement.rules}
    assert grades["S(d) -> S(d) WHEN d < ndim-3"] == "empty"
    assert all(grade == "even" for text, grade in grades.items() if "d == last" in text or "d == ndim-2" in text)


EXAMPLES: dict[str, tuple[str, dict[str, Any]]] = {
    "scatter_reduce": ("aten.scatter_reduce.two",
                       {"self": x(4, 6), "dim": 0, "index": torch.arange(24).reshape(4, 6) % 4, "src": x(4, 6),
                        "reduce": "amax"}),
    "bucketize": ("aten.bucketize.Tensor", {"self": x(4, 6), "boundaries": x(8).sort().values}),
    "nn.functional.pixel_shuffle": ("aten.pixel_shuffle.default", {"self": x(2, 8, 4, 6), "upscale_factor": 2}),
    "roll": ("aten.roll.default", {"self": x(8, 3), "shifts": [8], "dims": [0]}),
    "prod": ("aten.prod.dim_int", {"self": x(4, 6), "dim": 1, "keepdim": True, "dtype": torch.int64}),
    "put": ("aten.put.default", {"self": x(4, 6), "index": torch.arange(6).reshape(2, 3), "source": x(1, 2, 3),
                                 "accumulate": True}),
}  # fmt: skip
"""Rules of these were false once, of calls like these."""


@pytest.mark.long
@pytest.mark.parametrize("name", EXAMPLES)
def test_what_was_once_false_is_not_stated(name: str) -> None:
    overload, call = EXAMPLES[name]
    statement = next(s for s in discover(f"torch.{name}", QUICK) if s.operator.overload == overload)
    found = of_overload(statement, **call)
    assert found.rows
    assert found.false == []
    assert all(rule.witnesses >= 3 for rule in statement.every_rule)
    assert not any("reduce !=" in str(rule) for rule in statement.rules)


def test_memory_that_nobody_wrote_judges_nothing() -> None:
    def unwritten(x: Any) -> Any:
        return torch.empty_like(x)

    operator = torch_operator(unwritten)
    oracle = Oracle(operator, sample_of(operator, (x(40, 60),), {}), KINDS)
    assert "different numbers" in oracle.table.refused


def test_what_an_unread_input_is_pending_on_is_no_rule() -> None:
    def left(x: Any, y: Any, times: float = 0.0) -> Any:
        return x + y * times

    operator = torch_operator(left)
    for times, unread in ((0.0, frozenset({1})), (2.0, frozenset())):
        table = check(operator, sample_of(operator, (x(4, 6), x(4, 6), times), {}))
        assert table.unread == unread
        assert any(inputs[1].kind == "P" for inputs in table.valid) == (not unread)


def test_an_argument_may_ask_for_a_dtype() -> None:
    def call(given: str, asked: Any) -> Any:
        return SimpleNamespace(values={"dtype": asked}, dtype=(given,))

    calls = [call("float64", None), call("float64", torch.int64), call("int64", torch.float64)]
    keeps = next(a for a in value_atoms(calls, ()) if a.expr.text == "dtype keeps the numbers of input 0")
    assert [keeps.holds(c, 0) for c in calls] == [True, False, True]
    names = [{"dtype": c.values["dtype"], "dtypes": list(c.dtype)} for c in calls]
    assert [value_of(keeps.expr.code, known) for known in names] == [True, False, True]


def test_conditions_of_three_words_are_found_among_many() -> None:
    """Rows that the widest conditions leave over get a rule of their own."""

    def loss(x: Any, old: bool | None = None, older: bool | None = None, how: str = "mean") -> Any:
        if old or older:
            return x.cumsum(0) if x.ndim else x
        return x.mean() if how == "mean" else x.sum() if how == "sum" else x

    operator = torch_operator(loss)
    samples = [
        sample_of(operator, (x(*shape), None, None, how), {}) for shape in ((4, 6), (8,)) for how in ("mean", "none")
    ]
    rules = [str(rule) for rule in study(operator, samples, SURVEY).rules]
    assert any(r.startswith("S(d) -> S(d) WHEN") and "how" in r for r in rules), rules


def test_constants_are_read_from_code() -> None:
    scale = 17.5

    def own(x: Any, mode: str = "up") -> Any:
        return x * scale if mode == "down" else x.to(torch.int32)

    named = named_by(torch_operator(own))
    assert scale in named.numbers
    assert {"up", "down"} <= set(named.words)
    assert "int32" in named.dtypes


def test_dims_are_known_by_what_they_accept() -> None:
    def own(x: Any, along: int = 0, times: int = 1) -> Any:
        return x.cumsum(along) * times

    operator = torch_operator(own)
    samples: list[Sample] = [sample_of(operator, (x(4, 6), 1), {}), sample_of(operator, (x(2, 4, 6), 2), {})]
    assert dims_by_behaviour(operator, samples) == ("along",)
    statement = study(operator, samples, SURVEY)
    assert "S(d) -> S(d) WHEN d != along" in [str(rule) for rule in statement.rules]


def test_words_come_from_error_messages_and_documents() -> None:
    operator = torch_operator("aten.scatter_reduce.two")
    index = torch.zeros(4, 6, dtype=torch.int64)
    sample = sample_of(operator, (x(4, 6), 0, index, x(4, 6), "sum"), {})
    drawer = Drawer(operator, [sample])
    assert set(drawer.words(sample, "reduce")) == {"sum", "prod", "mean", "amax", "amin"}


def test_a_call_is_read_as_it_is_written() -> None:
    statement = discover("torch.add", SURVEY, calls=["add(f32[8, 6], f32[6], alpha=2)"])[0]
    assert statement.samples[0].shapes == ((8, 6), (6,))
    with pytest.raises(DiscoverError, match="is no call"):
        discover("torch.add", calls=["f32[8, 6]"])
    with pytest.raises(DiscoverError, match="does not run as it is called"):
        discover("torch.add", calls=["add(f32[8, 6], f32[5])"])
    with pytest.raises(DiscoverError, match="neither a tensor nor a plain value"):
        discover("torch.add", calls=["add(f32[8, 6], q)"])


def test_the_rule_of_a_gradient() -> None:
    (statement,) = discover("torch.exp", SURVEY, backward=True)
    rules = [str(rule) for rule in statement.rules]
    assert "S(d), S(d) -> S(d)" in rules
    assert "R, P(sum) -> P(sum)" in rules


def test_a_function_that_only_writes() -> None:
    def bump_(x: Any, by: float = 1.0) -> None:
        x += by

    (statement,) = discover(bump_, SURVEY, calls=["bump_(f32[4, 6])"])
    assert statement.operator.mutates == ("x",)
    assert "S(d) -> S(d)" in [str(rule) for rule in statement.rules]

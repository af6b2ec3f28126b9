"""Rules are attacked before they are stated; and the independent check that says so finds false rules itself."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from brute_force import Call, Subject, check_statement  # noqa: E402
from shardwright.discover import QUICK, discover  # noqa: E402
from shardwright.discover.fresh import Drawer, dims_by_behaviour  # noqa: E402
from shardwright.discover.learn import SURVEY, study  # noqa: E402
from shardwright.discover.named import named_by  # noqa: E402
from shardwright.discover.operator import REQUIRED, Sample  # noqa: E402
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


def window(x: Any) -> Any:
    return torch.where((x > 41.5) & (x < 42.5), -x, x)


def odd_size(x: Any) -> Any:
    return x * 2 if x.shape[0] != 7 else x.cumsum(0)


def local_size(x: Any) -> Any:
    return x.flip(0) if x.shape[0] == 11 else x


def by_dtype(x: Any) -> Any:
    return x.cumsum(0) if x.dtype == torch.int32 else x + 1


def far_out(x: Any) -> Any:
    return torch.clamp(x, max=900.0).exp() if bool((x > 1000).any()) else x


def constant(x: Any) -> Any:
    return torch.full_like(x, 3.0)


DECEIVING = [window, odd_size, local_size, by_dtype, far_out, constant]


@pytest.mark.parametrize("deceiving", DECEIVING, ids=lambda f: f.__name__)
def test_what_a_function_hides_is_not_claimed(deceiving: Callable[..., Any]) -> None:
    """Windows, sizes and dtypes at values that its code names: the calls at hand show none of them."""
    operator = torch_operator(deceiving)
    samples = [sample_of(operator, (x(*shape),), {}) for shape in ((4, 6), (8,), (2, 4, 6))]
    rules = [str(rule) for rule in study(operator, samples, QUICK).rules]
    false = {
        window: ["P(max) -> P(max)", "P(min) -> P(min)", "P(sum) -> P(sum)", "P(prod) -> P(prod)"],
        odd_size: ["S(d) -> S(d)"],
        local_size: ["S(d) -> S(d)"],
        by_dtype: ["S(d) -> S(d)", "P(max) -> P(max)", "P(min) -> P(min)"],
        far_out: ["S(d) -> S(d)", "P(sum) -> P(sum)"],
        constant: ["S(d) -> P(sum)", "P(sum) -> P(sum)", "S(d) -> R"],
    }[deceiving]
    assert not set(false) & set(rules)
    assert "R -> R" in rules


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

"""Rules that did not come with the project are tried on the op before they are used; a false one is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import shardwright as sw
from shardwright.discover.on_demand import learn as learning
from shardwright.discover.on_demand import rule_trial
from shardwright.discover.on_demand.rule_trial import trusted_rules
from shardwright.errors import RuleError
from shardwright.frontends.numpy import kernels, trace
from shardwright.frontends.numpy.define import forget_op, op
from shardwright.frontends.numpy.emit import node
from shardwright.rules import registry
from shardwright.rules.registry import forget, rule

torch = pytest.importorskip("torch")

MATMUL = "m k, k n -> m n"
X, W, B = (8, 12), (12, 6), (6,)


def relu_sum(x: Any) -> Any:
    return np.maximum(x, 0).sum(1)


def affine(x: Any, w: Any, b: Any) -> Any:
    return x @ w + b


TRUE: dict[str, tuple[str, Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "elementwise": ("i j, j -> i j", lambda x, w: np.tanh(x) * w, (X, X[1:])),
    "in order": ("i j -> i j ; i: whole", lambda x: np.cumsum(x, 0), (X,)),
    "sum": ("i j -> i ; j: sum", relu_sum, (X,)),
    "max": ("i j -> i ; j: max", lambda x: x.max(1), (X,)),
    "prod": ("i j -> i ; j: prod", lambda x: x.prod(1), (X,)),
    "contraction": (f"{MATMUL} ; P(sum), R -> P(sum) ; R, P(sum) -> P(sum)", lambda x, w: x @ w, (X, W)),
    "bias kept whole": ("m k, k n, n -> m n ; k: whole", affine, (X, W, B)),
    "turned": ("i j -> j i ; P(any) -> P(any)", lambda x: x.T.copy(), (X,)),
    "turned square": ("i j -> j i", lambda x: x.T.copy(), ((8, 8),)),
    "negated": ("i j -> i j ; P(max) -> P(min) ; P(min) -> P(max)", lambda x: -x, (X,)),
    "two results": ("i j -> i, i j ; j: sum", lambda x: (x.sum(1), x * 2), (X,)),
    "dim in two": ("(h d) b -> h d b ; d: whole", lambda x: x.reshape(-1, 4, x.shape[1]), ((12, 6),)),
}
FALSE: dict[str, tuple[str, Callable[..., Any], tuple[tuple[int, ...], ...], str]] = {
    "a factor that runs in order": ("i j -> i j", lambda x: np.cumsum(x, 0), (X,), "i split over 2 devices"),
    "a factor of another dim": ("i j -> i j", lambda x: x.T.copy(), ((8, 8),), "i split over 2 devices"),
    "a sum that is a max": ("i j -> i ; j: sum", lambda x: x.max(1), (X,), "j split over 2 devices"),
    "a max that is a sum": ("i j -> i ; j: max", relu_sum, (X,), "j split over 2 devices"),
    "a bias added on every device": ("m k, k n, n -> m n", affine, (X, W, B), "k split over 2 devices"),
    "a pending max through a product": (
        f"{MATMUL} ; P(max), R -> P(max)", lambda x, w: x @ w, (X, W), "P(max), R -> P(max) over 2 devices",
    ),
    "a pending sum through a square": (
        "i j -> i j ; P(sum) -> P(sum)", lambda x: x * x, (X,), "P(sum) -> P(sum) over 2 devices",
    ),
    "every kind through a sign": ("i j -> i j ; P(any) -> P(any)", lambda x: -x, (X,), "P(max) -> P(max)"),
    "even shards only": (
        "i j -> i j", lambda x: x - x.mean() * (x.shape[0] % 2), (X,), "i split over",
    ),
    "small calls only": (
        "i j -> i j", lambda x: x * 2 if x.shape[0] <= 40 else x - x.mean(0), ((64, 12),), "f64[64, 12]: i split",
    ),
    "the result of a part": ("i j -> i ; i: whole", lambda x: x[:, 0] * x.shape[1], (X,), "j split over 2 devices"),
    "one of two results": ("i j -> i, i ; j: sum", lambda x: (x.sum(1), x.max(1)), (X,), "of result 1"),
    "the wrong half of a dim": ("(h d) -> d h", lambda x: x.reshape(4, -1), ((16,),), "split over"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    yield
    for name in [record.name for record in registry.records() if record.name.startswith("tried.")]:
        forget_op(name)
    learning.forget()


def numbers(*shapes: tuple[int, ...]) -> list[Any]:
    return [np.random.default_rng(i).standard_normal(shape) for i, shape in enumerate(shapes)]


def made(name: str, text: Any, fn: Callable[..., Any], shapes: tuple[tuple[int, ...], ...]) -> Callable[..., Any]:
    return op(name, rule=text, samples=[shapes if len(shapes) > 1 else shapes[0]])(fn)


@pytest.mark.parametrize("case", TRUE)
def test_true_rules_pass_and_are_named(case: str) -> None:
    text, fn, shapes = TRUE[case]
    call = made("tried.true", text, fn, shapes)
    args = numbers(*shapes)
    plan = sw.plan(lambda *args: call(*args), *args, mesh="d=2", hardware="virtual")
    found, expected = plan(*args), fn(*args)
    for got, want in zip(found, expected, strict=True) if isinstance(expected, tuple) else [(found, expected)]:
        np.testing.assert_allclose(got, want)
    (trusted,) = trusted_rules(plan.source.graph)
    assert (trusted.op, trusted.origin) == ("tried.true", f"given from outside, by {__name__}")
    assert trusted.tries >= 6
    assert str(trusted) == f"rule of tried.true: {trusted.origin}, tried on {trusted.tries} draws"


@pytest.mark.parametrize("case", FALSE)
def test_false_rules_are_refused_with_a_counter_example(case: str) -> None:
    text, fn, shapes, words = FALSE[case]
    call = made("tried.false", text, fn, shapes)
    args = numbers(*shapes)

    def program(*args: Any) -> Any:
        return call(*args)

    sharded = [sw.asarray(x, mesh="d=2", spec="[" + ", ".join("_" * x.ndim) + "]") for x in args]
    for door in (
        lambda: sw.plan(program, *args, mesh="d=2", hardware="virtual"),
        lambda: sw.shard_map(program, "d=2")(*args),
        lambda: sw.shard_map(program, "d=2", auto_sharding=True)(*args),
        lambda: np.add(*[0, sw.api.arrays.sharded.run_eagerly(program, sharded, {})]),
    ):
        with pytest.raises(RuleError, match=r"the rule of tried.false does not hold") as caught:
            door()
        text = str(caught.value)
        assert words in text
        assert "counter-example" in text
        assert f"given from outside, by {__name__}" in text


def test_the_condition_of_a_rule_may_be_stated_too_wide() -> None:
    """A function of the call: right along the last dim, and said of every dim."""

    def along(x: Any, *, axis: int) -> Any:
        return np.cumsum(x, axis)

    call = op("tried.wide", rule=lambda call: "i j -> i j ; j: whole", samples=[((6, 4), {"axis": 1})])(along)
    (x,) = numbers(X)
    right = sw.plan(lambda x: call(x, axis=1), x, mesh="d=2", hardware="virtual")
    np.testing.assert_allclose(right(x), np.cumsum(x, 1))
    with pytest.raises(RuleError, match="i split over 2 devices"):
        sw.plan(lambda x: call(x, axis=0), x, mesh="d=2", hardware="virtual")


def _custom(name: str, fn: Callable[..., Any], schema: str, like: Callable[..., Any]) -> None:
    made = torch.library.custom_op(f"tried::{name}", fn, mutates_args=(), schema=schema)
    made.register_fake(like)


_custom("soft", lambda x: torch.softmax(x, 1), "(Tensor x) -> Tensor", torch.empty_like)
_custom("mix", lambda x, w: x @ w, "(Tensor x, Tensor w) -> Tensor", lambda x, w: x.new_empty(x.shape[0], w.shape[1]))
_custom(
    "largest", lambda x: x.amax(1), "(Tensor x) -> Tensor", lambda x: x.new_empty(x.shape[0])
)  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("name", "false", "true", "words"),
    [
        ("soft", "i j -> i j", "i j -> i j ; j: whole", "j split over 2 devices"),
        ("mix", f"{MATMUL} ; P(min), R -> P(min)", f"{MATMUL} ; P(sum), R -> P(sum)", "P(min), R -> P(min)"),
        ("largest", "i j -> i", "i j -> i ; j: max", "j split over 2 devices"),
    ],
)
def test_ops_of_pytorch(name: str, false: str, true: str, words: str, dtype: Any) -> None:
    args = [torch.randn(shape).to(dtype) for shape in ((X, W) if name == "mix" else (X,))]

    def program(*args: Any) -> Any:
        return getattr(torch.ops.tried, name)(*args)

    rule(f"tried.{name}", false)
    with pytest.raises(RuleError) as caught:
        sw.plan(program, *args, mesh="d=2", hardware="virtual")
    assert words in str(caught.value)
    rule(f"tried.{name}", true, replace=True)
    plan = sw.plan(program, *args, mesh="d=2", hardware="virtual", in_specs=("[_, d]", "[d, _]")[: len(args)])
    close = {torch.float64: 1e-9, torch.float32: 1e-4}.get(dtype, 5e-2)
    torch.testing.assert_close(plan(*args), program(*args), rtol=close, atol=close)
    (trusted,) = trusted_rules(plan.source.graph)
    assert trusted.tries > 0


def test_a_rule_of_the_house_that_was_replaced_from_outside_is_tried() -> None:
    kept = registry.lookup("aten.cumsum")
    x = torch.randn(8, 6)
    assert trusted_rules(sw.plan(lambda x: x.cumsum(0), x, mesh="d=2", hardware="virtual").source.graph) == ()
    rule("aten.cumsum", "i j -> i j", replace=True)
    try:
        with pytest.raises(RuleError, match=r"the rule of aten.cumsum does not hold"):
            sw.plan(lambda x: x.cumsum(0), x, mesh="d=2", hardware="virtual")
    finally:
        registry._records["aten.cumsum"] = kept
        registry._by_signature.clear()


def test_an_edited_rule_book_is_refused(tmp_path: Any) -> None:
    _custom("along", lambda x: torch.cumsum(torch.sigmoid(x), 0), "(Tensor x) -> Tensor", torch.empty_like)
    x, book = torch.randn(64, 32), tmp_path / "book.json"

    def program(x: Any) -> Any:
        return torch.ops.tried.along(x)

    plan = sw.plan(program, x, mesh="d=4", learn=True, rule_book=book, hardware="virtual")
    (trusted,) = trusted_rules(plan.source.graph)
    assert trusted.origin == "learned by execution"
    assert trusted.tries > 0
    record = json.loads(book.read_text())
    assert record["ops"][0]["cases"][0]["rule"] == "a b -> a b ; a: whole"
    learning.forget()
    sw.plan(program, x, mesh="d=4", rule_book=book, hardware="virtual")
    (again,) = trusted_rules(plan.source.graph)
    assert again.origin == f"from the rule book {book}"
    record["ops"][0]["cases"][0]["rule"] = "i j -> i j"
    book.write_text(json.dumps(record))
    for learn in (False, True):
        for door in (
            lambda learn: sw.plan(program, x, mesh="d=4", rule_book=book, learn=learn, hardware="virtual"),
            lambda learn: sw.shard_map(program, "d=4", in_specs=("[d, _]",), rule_book=book, learn=learn)(x),
            lambda learn: sw.load_plan(plan.to_json(), program, x, rule_book=book),
        ):
            learning.forget()
            with pytest.raises(RuleError, match=r"the rule of tried.along does not hold") as caught:
                door(learn)
            assert str(book) in str(caught.value)
            assert "i split over 2 devices" in str(caught.value)


def test_rules_of_entry_points_and_makers_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    registry.find("add")
    point = SimpleNamespace(value="third.party", load=lambda: lambda: rule("tried.soft", "i j -> i j"))
    monkeypatch.setattr(registry, "entry_points", lambda group: [point])
    monkeypatch.setattr(registry, "_loaded", False)
    x = torch.randn(8, 6)
    with pytest.raises(RuleError, match=r"the rule of tried.soft does not hold"):
        sw.plan(lambda x: torch.ops.tried.soft(x), x, mesh="d=2", hardware="virtual")
    forget("tried.soft")

    def make(facts: Any) -> Any:
        is_ours = facts.name == "tried.soft"
        return registry.OpRecord("tried.soft", "i j -> i j") if is_ours else None

    monkeypatch.setattr(registry, "_makers", [make, *registry._makers])
    monkeypatch.setattr(registry, "_made", {})
    with pytest.raises(RuleError, match=r"the rule of tried.soft does not hold"):
        sw.plan(lambda x: torch.ops.tried.soft(x), x, mesh="d=2", hardware="virtual")


def _tagged(name: str, fn: Callable[..., Any], tags: Any) -> Any:
    library = torch.library.Library("tried_tags", "FRAGMENT")
    library.define(f"{name}(Tensor x) -> Tensor", tags=tags)
    library.impl(name, fn, "CompositeExplicitAutograd")
    torch.library.register_fake(f"tried_tags::{name}", torch.empty_like, lib=library)
    return library


def test_what_an_op_says_of_itself_is_tried() -> None:
    """A tag of PyTorch makes a rule; that of somebody else's op may be wrong, and its name says nothing."""
    x = torch.randn(8, 6)
    pointwise = (torch.Tag.pointwise,)
    kept = [
        _tagged("tanh_twice", lambda x: x.tanh().tanh(), pointwise),
        _tagged("along", lambda x: x.cumsum(0), pointwise),
        _tagged("hardswish", lambda x: x.cumsum(0), ()),
    ]
    plan = sw.plan(lambda x: torch.ops.tried_tags.tanh_twice(x), x, mesh="d=2", hardware="virtual")
    (trusted,) = trusted_rules(plan.source.graph)
    assert trusted.origin == "made from the tags and the schema of tried_tags::tanh_twice"
    assert trusted.tries > 0
    with pytest.raises(RuleError, match=r"the rule of tried_tags.along does not hold"):
        sw.plan(lambda x: torch.ops.tried_tags.along(x), x, mesh="d=2", hardware="virtual")
    plan = sw.plan(lambda x: torch.ops.tried_tags.hardswish(x), x, mesh="d=2", hardware="virtual")
    assert "tried_tags.hardswish has no rule" in plan.notes[0]
    torch.testing.assert_close(plan(x), x.cumsum(0))
    del kept


def test_the_house_trusts_itself() -> None:
    strangers = {record.name: record.origin for record in registry.records() if record.origin}
    assert strangers == {}


def test_a_rule_is_tried_once_for_calls_of_one_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[int] = []
    isolated = rule_trial.isolated
    monkeypatch.setattr(rule_trial, "isolated", lambda *args, **more: runs.append(1) or isolated(*args, **more))
    call = made("tried.once", "i j -> i j", lambda x: np.tanh(x), (X,))

    def program(x: Any) -> Any:
        return call(call(x) + 1)

    (x,) = numbers((16, 12))
    for _ in range(3):
        sw.plan(program, x, mesh="d=2", hardware="virtual")
    assert len(runs) == 2  # on small shapes, and on its own
    sw.plan(program, x[:, :9], mesh="d=2", hardware="virtual")
    assert len(runs) == 3  # another size of the same kind
    sw.plan(program, x.astype(np.float32), mesh="d=2", hardware="virtual")
    assert len(runs) == 5
    forget_op("tried.once")
    again = made("tried.once", "i j -> i j", lambda x: np.cumsum(x, 0), (X,))  # as a notebook does
    with pytest.raises(RuleError, match="does not hold"):
        sw.plan(lambda x: again(x), x, mesh="d=2", hardware="virtual")


def test_what_cannot_be_tried_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    rule("tried.unknown", "i j -> i j")
    graph = trace(lambda x: node("tried.unknown", [x], x.shape, x.dtype), *numbers(X)).graph
    (trusted,) = trusted_rules(graph)
    assert str(trusted).endswith("could not be tried: nobody can compute tried.unknown")
    draws = np.random.default_rng()
    monkeypatch.setitem(
        kernels.KERNELS, "tried.random", lambda attrs, results: lambda x: x + draws.standard_normal(x.shape)
    )
    rule("tried.random", "i j -> i j")
    graph = trace(lambda x: node("tried.random", [x], x.shape, x.dtype), *numbers(X)).graph
    (trusted,) = trusted_rules(graph)
    assert trusted.tries == 0
    assert "two runs give different numbers" in trusted.untried

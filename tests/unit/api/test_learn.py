"""Ops without a rule: run whole and said so, or learned by execution, split, proven, and kept in a book."""

from __future__ import annotations

import json
import logging
import os
import signal

import numpy as np
import pytest

import shardwright as sw
from shardwright.discover.on_demand import learn as learning
from shardwright.discover.on_demand import study
from shardwright.errors import GraphError, ShardwrightError
from shardwright.frontends.numpy import kernels
from shardwright.frontends.numpy.emit import node
from shardwright.proof import check_identity, check_structure
from shardwright.rules import registry

torch = pytest.importorskip("torch")

SIZES = ((512, 64), (64,), (64, 32))


@pytest.fixture(autouse=True)
def _unlearned():
    learning.forget()
    yield
    learning.forget()


def custom(name, fake):
    def register(fn):
        made = torch.library.custom_op(f"learned::{name}", fn, mutates_args=())
        made.register_fake(fake)
        return made

    return register


def _like(x, *rest):
    return torch.empty_like(x)


@custom("scaled", _like)
def scaled(x: torch.Tensor, w: torch.Tensor, k: float) -> torch.Tensor:
    return torch.tanh(x * k) * w


@custom("mix", lambda x, w: x.new_empty(x.shape[0], w.shape[1]))
def mix(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x @ w


@custom("along", _like)
def along(x: torch.Tensor) -> torch.Tensor:
    return torch.cumsum(torch.sigmoid(x), 0)


@custom("crashing", _like)
def crashing(x: torch.Tensor) -> torch.Tensor:
    if x.dtype == torch.float64:
        os.kill(os.getpid(), signal.SIGKILL)
    return x * 2


@custom("half_only", _like)
def half_only(x: torch.Tensor) -> torch.Tensor:
    if x.dtype == torch.float64:
        raise RuntimeError("only float32 is supported")
    return x * 2


@custom("odd", _like)
def odd(x: torch.Tensor) -> torch.Tensor:
    """Elementwise, but only where the number of rows is even."""
    return x - x.mean() * (x.shape[0] % 2)


@custom("tall", _like)
def tall(x: torch.Tensor) -> torch.Tensor:
    """Elementwise up to 40 rows; beyond, rows are no longer for themselves."""
    return x * 2 if x.shape[0] <= 40 else x - x.mean(0)


@custom("either", _like)
def either(x: torch.Tensor, plus: torch.Tensor | None, minus: torch.Tensor | None) -> torch.Tensor:
    return x + plus if plus is not None else torch.cumsum(x, 1) - minus


def program(x, w, v):
    return mix(scaled(x, w, 2.0), v) + 1


def arguments():
    torch.manual_seed(0)
    return [torch.randn(size) for size in SIZES]


def ways(made, op):
    """How the results of an op's calls lie."""
    graph = made.complete.graph
    return [str(d.results[0]) for d in made.complete.decisions if graph.nodes[d.node].op == op]


# -- without and with -----------------------------------------------------------------------------------------------


def test_without_learning_it_runs_whole_and_the_plan_says_so():
    args = arguments()
    made = sw.plan(program, *args, mesh="d=4")
    assert ways(made, "learned.mix") == ways(made, "learned.scaled") == ["[_, _]"]
    assert [note.split(" (")[0] for note in made.notes] == [
        "node 0: learned.scaled has no rule and runs replicated",
        "node 1: learned.mix has no rule and runs replicated",
    ]
    torch.testing.assert_close(made(*args), program(*args))


def test_with_learning_it_is_split_and_proven():
    args = arguments()
    made = sw.plan(program, *args, mesh="d=4", learn=True)
    assert ways(made, "learned.mix") == ways(made, "learned.scaled") == ["[d, _]"]
    assert made.notes == (
        "learned.scaled: rule learned by execution: ..., ... -> ... ; R, P(sum) -> P(sum)",
        "learned.mix: rule learned by execution: ... a, a b -> ... b ; P(sum), R -> P(sum) ; R, P(sum) -> P(sum)",
    )
    check_structure(made.program)
    check_identity(made.complete.graph, made.program)
    torch.testing.assert_close(made(*args), program(*args))
    whole = sw.plan(program, *args, mesh="d=4", recipe="replicated")
    assert made.cost.objective <= whole.cost.objective


def test_a_learned_sum_is_used_as_one():
    """With its inner dim pinned, the op leaves a pending sum, which the rule says and the proof holds it to."""
    x, w = torch.randn(16, 64, dtype=torch.float64), torch.randn(64, 16, dtype=torch.float64)
    made = sw.plan(mix, x, w, mesh="d=4", learn=True, in_specs=("[_, d]", "[d, _]"), hardware="virtual")
    assert ways(made, "learned.mix") == ["[_, _] // d"]
    check_identity(made.complete.graph, made.program)
    torch.testing.assert_close(made(x, w), x @ w)


def test_a_dim_that_cannot_be_split_is_not():
    """Along dim 0 the op runs in order; what is learned says so, and a plan that wants it split must move it."""
    x = torch.randn(64, 32, dtype=torch.float64)
    made = sw.plan(along, x, mesh="d=4", learn=True, in_specs=("[d, _]",), out_specs="[d, _]", hardware="virtual")
    assert "a: whole" in made.notes[0]
    assert ways(made, "learned.along") != ["[d, _]"]
    check_identity(made.complete.graph, made.program)
    torch.testing.assert_close(made(x), along(x))


@pytest.mark.parametrize(
    ("op", "words"),
    [
        (crashing, "crashed (SIGKILL)"),
        (half_only, "does not run on small float64 tensors"),
        (odd, "does not split alike on all shapes"),
    ],
)
def test_what_cannot_be_learned_runs_whole(op, words, tmp_path):
    x = torch.randn(32, 16)
    made = sw.plan(lambda x: op(x), x, mesh="d=4", learn=True, rule_book=tmp_path / "book.json")
    assert words in made.notes[0]
    assert any("has no rule and runs replicated" in note for note in made.notes)
    torch.testing.assert_close(made(x), op(x))
    (entry,) = learning.read_book(tmp_path / "book.json").values()
    (case,) = entry.cases.values()
    assert case.rule == ""
    assert words in case.refused


def test_a_rule_must_hold_on_the_size_of_the_call():
    x = torch.randn(64, 16)
    made = sw.plan(lambda x: tall(x), x, mesh="d=2", learn=True, in_specs=("[d, _]",))
    assert "it splits otherwise on the call's own size" in made.notes[0]
    assert "[(64, 16)]" in made.notes[0]
    assert ways(made, "learned.tall") == ["[_, _]"]
    torch.testing.assert_close(made(x), tall(x))
    learning.forget()
    low = sw.plan(lambda x: tall(x), x[:32], mesh="d=2", learn=True, in_specs=("[d, _]",))
    assert "rule learned by execution" in low.notes[0]
    assert ways(low, "learned.tall") == ["[d, _]"]


def test_a_known_rule_is_tried_on_the_size_of_another_call(tmp_path):
    """In one program and in the next; a rule that fails on one size is used on none."""
    x, book = torch.randn(64, 16), tmp_path / "book.json"
    low = sw.plan(lambda x: tall(x), x[:32], mesh="d=2", learn=True, rule_book=book)
    assert "rule learned by execution" in low.notes[0]
    high = sw.plan(lambda x: tall(x), x, mesh="d=2", learn=True, rule_book=book, in_specs=("[d, _]",))
    assert len([note for note in high.notes if "learned.tall: " in note]) == 1
    assert "on the call's own size" in high.notes[0]
    torch.testing.assert_close(high(x), tall(x))
    (case,) = learning.read_book(book)["learned.tall"].cases.values()
    assert case.rule == ""
    assert case.tried[-2:] == (((32, 16),), ((64, 16),))
    learning.forget()
    both = sw.plan(lambda x, y: (tall(x), tall(y)), x[:32], x, mesh="d=2", learn=True)
    assert ways(both, "learned.tall") == ["[_, _]"] * 2
    assert len([note for note in both.notes if "learned.tall: " in note]) == 1


def test_a_call_that_is_too_large_is_not_tried_on_its_own_size(monkeypatch):
    monkeypatch.setattr(study, "OWN_ELEMENTS", 2 * 64 * 16 - 1)
    made = sw.plan(lambda x: tall(x), torch.randn(64, 16), mesh="d=2", learn=True)
    assert "rule learned by execution" in made.notes[0]


def test_what_a_rule_claims_of_one_axis():
    rule = study.RulePattern.parse("m k, k n -> m n ; P(sum), R -> P(sum)").bind([(8, 6), (6, 4)])
    said = [[", ".join(map(str, side)) for side in row] for row in study._claims(rule)]
    assert said == [
        ["S(0), R", "S(0)"], ["S(1), S(0)", "P(sum)"], ["R, S(1)", "S(1)"], ["P(sum), R", "P(sum)"],
    ]  # fmt: skip
    whole = study.RulePattern.parse("a b -> a b ; a: whole").bind([(8, 6)])
    assert [[str(p) for p in row[0]] for row in study._claims(whole)] == [["S(1)"]]


def test_a_function_of_numpy(monkeypatch):
    """Whoever has a kernel can be studied; the tracer's own writer stands for a user's function here."""
    monkeypatch.setitem(kernels.KERNELS, "halved", lambda attrs, results: lambda x: np.sin(x) / attrs["by"])

    def fn(x, w):
        return node("halved", [x], x.shape, x.dtype, by=2) @ w if not isinstance(x, np.ndarray) else np.sin(x) / 2 @ w

    x, w = np.random.default_rng(0).standard_normal((64, 32)), np.ones((32, 8))
    without = sw.plan(fn, x, w, mesh="d=4", hardware="virtual")
    assert "halved has no rule" in without.notes[0]
    assert ways(without, "halved") == ["[_, _]"]
    made = sw.plan(fn, x, w, mesh="d=4", learn=True, hardware="virtual")
    assert made.notes == ("halved: rule learned by execution: ... -> ...",)
    assert ways(made, "halved") == ["[d, _]"]
    check_identity(made.complete.graph, made.program)
    np.testing.assert_allclose(made(x, w), fn(x, w))


def test_shard_map_learns_too():
    args = arguments()
    mapped = sw.shard_map(program, "d=4", in_specs=("[d, _]", None, None), learn=True)
    torch.testing.assert_close(mapped(*args), program(*args))
    assert mapped.program(*args).collectives == []
    learning.forget()
    without = sw.shard_map(program, "d=4", in_specs=("[d, _]", None, None))
    assert [c.kind for c in without.program(*args).collectives] == ["all_gather"]


# -- the book -----------------------------------------------------------------------------------------------------


def never(*args, **kwargs):
    raise AssertionError("studied again")


def test_the_book_is_kept_and_read_instead_of_studying_again(tmp_path, monkeypatch):
    args, book = arguments(), tmp_path / "book.json"
    made = sw.plan(program, *args, mesh="d=4", learn=True, rule_book=book)
    first = book.read_text()
    record = json.loads(first)
    assert [item["op"] for item in record["ops"]] == ["learned.mix", "learned.scaled"]
    assert record["ops"][0]["identity"] == "learned::mix(Tensor x, Tensor w) -> Tensor"
    assert record["ops"][0]["made_with"] == f"torch {torch.__version__}"
    (case,) = record["ops"][0]["cases"]
    assert case["tried"] == [[[4, 6], [6, 8]], [[9, 15], [15, 6]], [[512, 64], [64, 32]]]
    assert "2x2 mesh" in case["confirmed"]
    learning.forget()
    assert registry.find("learned.mix") is None
    monkeypatch.setattr(study, "study_call", never)
    for about in ({"learn": True}, {}):
        again = sw.plan(program, *args, mesh="d=4", rule_book=book, **about)
        assert (again.specs, again.cost, again.notes) == (made.specs, made.cost, made.notes)
        learning.forget()
    loaded = sw.load_plan(made.to_json(), program, *args, rule_book=book)
    check_identity(loaded.complete.graph, loaded.program)
    assert book.read_text() == first
    assert list(tmp_path.iterdir()) == [book]


def test_a_plan_by_learned_rules_needs_them(tmp_path):
    """Without the rule book the op has no rule, and the plan splits it."""
    args, book = arguments(), tmp_path / "book.json"
    made = sw.plan(program, *args, mesh="d=4", learn=True, rule_book=book)
    learning.forget()
    with pytest.raises(GraphError, match="splits an op that has no rule here") as caught:
        sw.load_plan(made.to_json(), program, *args)
    assert "rule_book=" in str(caught.value)
    assert "learned." in str(caught.value)
    assert sw.load_plan(made.to_json(), program, *args, rule_book=book).specs == made.specs


def test_without_a_path_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sw.plan(program, *arguments(), mesh="d=4", learn=True)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(study, "study_call", never)
    sw.plan(program, *arguments(), mesh="d=2", learn=True)  # what this process learned, it knows


def test_another_kind_of_call_is_studied_for_itself(tmp_path):
    book = tmp_path / "book.json"
    x, w = torch.randn(64, 32), torch.randn(32)
    sw.plan(lambda x, w: scaled(x, w, 2.0), x, w, mesh="d=4", learn=True, rule_book=book)
    sw.plan(lambda x, w: scaled(x, w, 0.5), x, w, mesh="d=4", learn=True, rule_book=book)
    row = torch.randn(1)
    made = sw.plan(lambda x, w: scaled(x, w, 0.5), x, row, mesh="d=4", learn=True, rule_book=book)
    assert ways(made, "learned.scaled") == ["[d, _]"]
    assert len(learning.read_book(book)["learned.scaled"].cases) == 3
    learning.forget()
    unseen = sw.plan(lambda x, w: scaled(x, w, 3.0), x, w, mesh="d=4", rule_book=book)
    assert ways(unseen, "learned.scaled") == ["[_, _]"]
    assert any("has no rule" in note for note in unseen.notes)


def test_which_operands_are_absent_makes_another_kind(tmp_path):
    """The same shapes and attributes, but not the same computation."""
    x, y = torch.randn(64, 32, dtype=torch.float64), torch.randn(64, 32, dtype=torch.float64)
    about = {"mesh": "d=4", "learn": True, "rule_book": tmp_path / "book.json", "hardware": "virtual"}
    for fn, rule in ((lambda x, y: either(x, y, None), "..., ... -> ..."), (lambda x, y: either(x, None, y), "whole")):
        made = sw.plan(fn, x, y, **about)
        assert rule in made.notes[0]
        check_identity(made.complete.graph, made.program)
        torch.testing.assert_close(made(x, y), fn(x, y))
    assert len(learning.read_book(tmp_path / "book.json")["learned.either"].cases) == 2


@pytest.mark.parametrize("field", ["identity", "made_with"])
def test_an_entry_about_another_op_or_version_is_passed_over(field, tmp_path, caplog):
    book = tmp_path / "book.json"
    sw.plan(program, *arguments(), mesh="d=4", learn=True, rule_book=book)
    record = json.loads(book.read_text())
    record["ops"][0][field] = "torch 1.0" if field == "made_with" else "learned::mix(Tensor x) -> Tensor"
    book.write_text(json.dumps(record))
    learning.forget()
    with caplog.at_level(logging.WARNING):
        made = sw.plan(program, *arguments(), mesh="d=4", rule_book=book)
    assert "passed over" in caplog.text
    assert ways(made, "learned.mix") == ["[_, _]"]
    assert registry.find("learned.mix") is None
    assert registry.find("learned.scaled") is not None
    again = sw.plan(program, *arguments(), mesh="d=4", rule_book=book, learn=True)
    assert ways(again, "learned.mix") == ["[d, _]"]
    assert json.loads(book.read_text())["ops"][0]["made_with"] == f"torch {torch.__version__}"


def test_the_rule_book_of_the_house_comes_first(tmp_path):
    """An entry about an op that has a record already changes nothing."""
    book = tmp_path / "book.json"
    sw.plan(program, *arguments(), mesh="d=4", learn=True, rule_book=book)
    record = json.loads(book.read_text())
    record["ops"][0]["op"] = "aten.mm"
    book.write_text(json.dumps(record))
    before = registry.lookup("aten.mm")
    sw.plan(lambda x, w: x @ w, torch.randn(8, 4), torch.randn(4, 8), mesh="d=4", rule_book=book)
    assert registry.lookup("aten.mm") is before


def _changed(record, change):
    item = record["ops"][0]
    change(record, item, item["cases"][0])
    return json.dumps(record)


BROKEN = {
    "not JSON": (lambda text: text[:-20], "not JSON"),
    "another format": (lambda text: text.replace('"version": 1', '"version": 7'), "not a rule book of this version"),
    "not an object": (lambda text: "[]", "not an object"),
    "key twice": (lambda text: '{"format": "shardwright.rules", ' + text[1:], "stands twice"),
    "NaN": (lambda text: _changed(json.loads(text), lambda r, i, c: c["attrs"].update(k=float("nan"))), "NaN"),
    "unknown field": (
        lambda text: _changed(json.loads(text), lambda r, i, c: c.update(more=1)),
        "unknown field 'more'",
    ),
    "missing field": (
        lambda text: _changed(json.loads(text), lambda r, i, c: i.pop("identity")),
        "no field 'identity'",
    ),
    "op twice": (lambda text: _changed(json.loads(text), lambda r, i, c: r["ops"].append(i)), "stands twice"),
    "case twice": (lambda text: _changed(json.loads(text), lambda r, i, c: i["cases"].append(c)), "stands twice"),
    "bad rule": (lambda text: _changed(json.loads(text), lambda r, i, c: c.update(rule="a b -> c")), "on no input"),
    "other rule": (lambda text: _changed(json.loads(text), lambda r, i, c: c.update(rule="a -> a")), "another number"),
    "no reason": (lambda text: _changed(json.loads(text), lambda r, i, c: c.update(rule="")), "why there is none"),
    "bad dims": (
        lambda text: _changed(json.loads(text), lambda r, i, c: c.update(results=["m n"])),
        "dims of a tensor",
    ),
    "bad slots": (lambda text: _changed(json.loads(text), lambda r, i, c: c.update(slots=[1])), "how many tensors"),
    "bad shapes": (lambda text: _changed(json.loads(text), lambda r, i, c: c.update(tried=[[4]])), "shapes tried"),
}


@pytest.fixture(scope="module")
def good_book(tmp_path_factory):
    book = tmp_path_factory.mktemp("book") / "book.json"
    learning.forget()
    sw.plan(program, *arguments(), mesh="d=4", learn=True, rule_book=book)
    return book.read_text()


@pytest.mark.parametrize("case", BROKEN)
def test_broken_books_are_refused(case, good_book, tmp_path):
    change, words = BROKEN[case]
    book = tmp_path / "book.json"
    book.write_text(good_book)
    assert learning.read_book(book)
    book.write_text(change(good_book))
    for learn in (False, True):
        with pytest.raises(ShardwrightError, match=words) as caught:
            sw.plan(program, *arguments(), mesh="d=4", rule_book=book, learn=learn)
        assert str(book) in str(caught.value)
        assert "help" in str(caught.value)
    assert registry.find("learned.mix") is None


def test_a_book_that_cannot_be_written(monkeypatch):
    """That is said before anything is studied."""
    monkeypatch.setattr(study, "study_call", never)
    with pytest.raises(ShardwrightError, match="there is no folder 'nowhere'"):
        sw.plan(program, *arguments(), mesh="d=4", learn=True, rule_book="nowhere/book.json")
    with pytest.raises(ShardwrightError, match="takes the path of a file, not 3"):
        sw.plan(program, *arguments(), mesh="d=4", learn=True, rule_book=3)


def test_a_book_that_is_not_there():
    with pytest.raises(ShardwrightError, match="cannot be read"):
        sw.plan(program, *arguments(), mesh="d=4", rule_book="nowhere/book.json")

"""An editor of plan files: single edits of every field, index and string, and what becomes of each.

An edited file has to be refused with an error of ours, or to load as a plan that is right: it is then run on the
virtual mesh and compared with the original.  As a script it tries every edit of four plans, and counts:
``python tests/plan_edits.py [most edits of each plan]``.
"""

from __future__ import annotations

import json
import random
import resource
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from time import process_time
from typing import Any
from unittest import mock

import numpy as np

import shardwright as sw
from shardwright.api import planning
from shardwright.errors import ShardwrightError

MOST_SECONDS, MOST_BYTES = 5.0, 2**30
"""To refuse an edit, or to load it."""
Path = tuple[Any, ...]


# -- edits ----------------------------------------------------------------------------------------------------


class Raw(str):
    """Text that stands in the file as it is, valid JSON or not."""

    __slots__ = ()


@dataclass(frozen=True)
class Edit:
    what: str
    text: str


def edits(text: str, seed: int = 0) -> Iterator[Edit]:
    """All single edits; of what there is too much to try (other texts, places of a character) some."""
    record = json.loads(text)
    draw = random.Random(seed)
    strings = sorted({item for _, item in _walk(record) if isinstance(item, str)})
    for path, item in _walk(record):
        for what, new in _replacements(item, strings, len(record["texts"]), draw):
            yield Edit(f"{_place(path)}: {what}", _written(record, path, new))
    for path, item in _walk(record):
        if isinstance(item, list):
            for what, new in _list_edits(item):
                yield Edit(f"{_place(path)}: {what}", _written(record, path, new))
        if isinstance(item, dict):
            for what, new in _dict_edits(item):
                yield Edit(f"{_place(path)}: {what}", _written(record, path, new))
    yield from _text_edits(text, draw)


def _walk(item: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    yield path, item
    pairs = item.items() if isinstance(item, dict) else enumerate(item) if isinstance(item, list) else ()
    for key, child in pairs:
        yield from _walk(child, (*path, key))


def _place(path: Path) -> str:
    return "/".join(map(str, path)) or "all"


DEEP, LONG = Raw("[" * 100_000 + "]" * 100_000), Raw("7" * 5_000)
OTHER_TYPES: list[tuple[str, Any]] = [
    ("null", None), ("true", True), ("1.5", 1.5), ("a list", []), ("an object", {}), ("a text", "x"),
    ("NaN", Raw("NaN")), ("1e999", Raw("1e999")), ("-0", Raw("-0")), ("5000 digits", LONG),
    ("nested 100,000 deep", DEEP),
]  # fmt: skip
MESHES = ["d=1000000000", "d=131072", ", ".join(f"a{i}=1" for i in range(5000)), "d=" + "9" * 5000, "d=2, d=2", ""]


def _replacements(item: Any, strings: list[str], texts: int, draw: random.Random) -> Iterator[tuple[str, Any]]:
    kinds = {type(None): "null", bool: "true", float: "1.5", list: "a list", dict: "an object", str: "a text"}
    for what, new in OTHER_TYPES:
        if what != kinds.get(type(item)):
            yield what, new
    if isinstance(item, bool):
        yield "the other", not item
    elif isinstance(item, int):
        near = [item + 1, item - 1, 0, 1, -item, 10**9, 10**30, -(2**63), *draw.sample(range(texts), min(texts, 6))]
        for new in dict.fromkeys(near):
            if new != item:
                yield str(new), new
        yield "a float", float(item)
        yield "as a text", str(item)
    elif isinstance(item, str):
        yield "empty", ""
        others = [
            *draw.sample(strings, min(len(strings), 8)),
            "[_]",
            "[?]",
            "_",
            "*",
            "output 9",
            *draw.sample(MESHES, 3),
        ]
        for new in dict.fromkeys(others):
            if new != item:
                yield f"{new[:30]!r}", new
        for _ in range(min(6, 2 * len(item))):
            at = draw.randrange(len(item))
            for new in (
                item[:at] + item[at + 1 :],
                item[:at] + draw.choice("0123456789_,[]+:()/!~? atdp") + item[at + 1 :],
            ):
                if new != item:
                    yield f"{new[:60]!r}", new
        for bad in ("\x1b[2J\x1b]52;c;eA==\x07", "\x00", "\n", "\u202e", "\ud800", "٣"):
            yield f"with {bad!r}", item + bad
        yield "very long", item + "x" * 1_000_000


def _list_edits(items: list[Any]) -> Iterator[tuple[str, Any]]:
    for i in range(len(items)):
        yield f"without {i}", items[:i] + items[i + 1 :]
        yield f"{i} twice", [*items[: i + 1], *items[i:]]
        if i and items[i - 1] != items[i]:
            yield f"{i - 1} and {i} swapped", [*items[: i - 1], items[i], items[i - 1], *items[i + 1 :]]


def _dict_edits(items: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    keys = list(items)
    for i, key in enumerate(keys):
        yield f"without {key!r}", {k: v for k, v in items.items() if k != key}
        for new in dict.fromkeys(
            [key + "x", key[:-1], "0" + key, str(int(key) + 1) if key.isdecimal() else "", "9999"]
        ):
            if new not in items:
                yield f"{key!r} called {new!r}", {new if k == key else k: v for k, v in items.items()}
        body = ", ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in items.items())
        yield f"{key!r} twice", Raw("{" + body + f", {json.dumps(key)}: {json.dumps(items[key])}" + "}")
        if i and items[keys[i - 1]] != items[key]:
            yield f"{keys[i - 1]!r} and {key!r} swapped", {**items, key: items[keys[i - 1]], keys[i - 1]: items[key]}
    yield "one more", {**items, "more": 1}


def _text_edits(text: str, draw: random.Random) -> Iterator[Edit]:
    for _ in range(20):
        at = draw.randrange(1, len(text))
        yield Edit(f"cut at {at}", text[:at])
        yield Edit(f"without the character at {at}", text[:at] + text[at + 1 :])
    yield Edit("nothing after the brace", "{")
    yield Edit("nested 100,000 deep", "[" * 100_000)


_HERE = "put it here"


def _written(record: Any, path: Path, new: Any) -> str:
    """The file with one part replaced."""
    body = new if isinstance(new, Raw) else json.dumps(new)
    if not path:
        return str(body)
    top = copied = json.loads(json.dumps(record))
    for key in path[:-1]:
        copied = copied[key]
    copied[path[-1]] = _HERE
    return json.dumps(top).replace(json.dumps(_HERE), body, 1)


# -- programs -------------------------------------------------------------------------------------------------


@dataclass
class Subject:
    """A plan with its program, and how a loaded plan is run and compared."""

    plan: Any
    source: Any
    run: Callable[[Any], list[np.ndarray]]
    """What a plan computes."""
    expected: list[np.ndarray] = field(default_factory=list)


def _mlp(x: Any, w1: Any, w2: Any, w3: Any) -> Any:
    h = np.maximum(x @ w1, 0.0)
    out = h @ w2 + x
    return (out @ w3).sum(axis=1), out.max(axis=0)


@cache
def numpy_mlp() -> Subject:
    rng = np.random.default_rng(0)
    args = [rng.standard_normal(shape) for shape in ((8, 8), (8, 16), (16, 8), (8, 6))]
    about: dict[str, Any] = {
        "constraints": [{"w1": "[_, tp]", "w*": "[tp, _]"}, sw.forbid("x", "tp")],
        "memory": "1 MiB",
    }
    plan = sw.plan(_mlp, *args, mesh="dp=2, tp=2", hardware="virtual", in_specs=("[dp, _]", None, None, None), **about)
    return Subject(plan, plan.source, lambda loaded: [np.asarray(a) for a in loaded(*args)], [*_mlp(*args)])


def _residual(x: Any, *weights: Any) -> Any:
    for up, down in zip(weights[::2], weights[1::2]):
        x = x + np.maximum(x @ up, 0.0) @ down
    return x


@cache
def numpy_within_memory() -> Subject:
    """A plan that keeps some values in one sharding and makes copies anew."""
    rng = np.random.default_rng(0)
    args = [rng.standard_normal(shape) for shape in ((8, 8), *[(8, 16), (16, 8)] * 3)]
    about: dict[str, Any] = {"mesh": "dp=2, tp=2", "hardware": "virtual"}
    plan = sw.plan(_residual, *args, memory=sw.plan(_residual, *args, **about).memory * 8 // 10, **about)
    assert plan.complete.kept
    return Subject(plan, plan.source, lambda loaded: [np.asarray(loaded(*args))], [_residual(*args)])


@cache
def torch_mlp() -> Subject:
    """A training step; three losses tell whether the state was updated as it should."""
    import torch

    import torch_zoo as zoo

    torch.manual_seed(0)
    model, x = zoo.MLP().double(), torch.randn(8, 6, dtype=torch.float64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-3)

    def loss(out: Any) -> Any:
        return out.square().mean()

    plan = sw.plan(
        model, x, optimizer=optimizer, loss=loss, mesh="dp=2, tp=2", hardware="virtual",
        constraints={"up.weight": "[tp, _]", "down.weight": "[_, tp]", "x": "[dp, _]"},
    )  # fmt: skip

    def run(loaded: Any) -> list[np.ndarray]:
        step = loaded.step()
        return [np.asarray(step(x).detach()) for _ in range(3)]

    return Subject(plan, plan.source, run, _eager(model, x, loss))


def _eager(model: Any, x: Any, loss: Callable[[Any], Any]) -> list[np.ndarray]:
    import copy

    import torch

    model = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-3)
    found = []
    for _ in range(3):
        value = loss(model(x))
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(np.asarray(value.detach()))
    return found


@cache
def transformer_layer() -> Subject:
    import torch

    import torch_zoo as zoo

    torch.manual_seed(0)
    model, x = zoo.Block().double(), torch.randn(4, 6, 8, dtype=torch.float64)
    plan = sw.plan(
        model, x, mesh="dp=2, tp=2", hardware="virtual",
        constraints={
            "mlp.0.weight": "[tp, _]", "mlp.2.weight": "[_, tp]", "x": "[dp, _, _]", "attn.out.weight": "[_, tp]"
        },
    )  # fmt: skip
    return Subject(plan, plan.source, lambda loaded: [np.asarray(loaded(x).detach())], [model(x).detach().numpy()])


SUBJECTS: dict[str, Callable[[], Subject]] = {
    "numpy mlp": numpy_mlp,
    "numpy within memory": numpy_within_memory,
    "torch mlp step": torch_mlp,
    "transformer layer": transformer_layer,
}


# -- what becomes of an edit ----------------------------------------------------------------------------------

REFUSED, SAME, RIGHT = "refused", "loads as the same program", "loads as another program that is right"
GOOD = (REFUSED, SAME, RIGHT)


def captured(subject: Subject) -> Any:
    """Within this, programs that are loaded for are the subject's: capturing it once is enough."""
    return mock.patch.object(planning, "capture_source", return_value=subject.source)


def outcome(subject: Subject, edit: Edit) -> str:
    """One of `GOOD`, or what is wrong."""
    started = process_time()
    try:
        with captured(subject):
            loaded = sw.load_plan(edit.text, print)
    except ShardwrightError as error:
        said = str(error)
        spent = process_time() - started
        if not said.replace("\n", "").isprintable():
            return f"refused with characters that a terminal acts on: {said!r}"
        return REFUSED if spent < MOST_SECONDS else f"refused after {spent:.1f} s"
    except BaseException as error:  # any other error is a fault of ours
        return f"raises {type(error).__name__}: {str(error)[:200]}"
    if process_time() - started > MOST_SECONDS:
        return f"loads after {process_time() - started:.1f} s"
    shown = [str(loaded), *loaded.notes, *subject.plan.diff(loaded)]
    if not "".join(shown).replace("\n", "").isprintable():
        return f"shows characters that a terminal acts on: {shown!r}"
    if str(loaded.program) == str(subject.plan.program):
        return SAME
    try:
        found = subject.run(loaded)
    except ShardwrightError:
        return "loads, and is refused when it runs"
    except BaseException as error:
        return f"loads, and raises {type(error).__name__}: {str(error)[:200]}"
    for one, other in zip(found, subject.expected, strict=True):
        if one.shape != other.shape or not np.allclose(one, other, rtol=1e-9, atol=1e-12):
            return "loads and computes wrong numbers"
    return RIGHT


def tried(name: str, most: int, seed: int = 0) -> tuple[Counter[str], list[tuple[Edit, str]]]:
    """So many edits of a plan, drawn evenly: counts, and those that are not good."""
    subject = SUBJECTS[name]()
    every = list(edits(subject.plan.to_json(), seed))
    chosen = every if most >= len(every) else random.Random(seed).sample(every, most)
    counts: Counter[str] = Counter()
    wrong = []
    for edit in chosen:
        found = outcome(subject, edit)
        counts[found.partition(":")[0]] += 1
        if found not in GOOD:
            wrong.append((edit, found))
    return counts, wrong


if __name__ == "__main__":
    for name in SUBJECTS:
        counts, wrong = tried(name, int(sys.argv[1]) if len(sys.argv) > 1 else 10**9)
        print(name, sum(counts.values()), dict(counts), flush=True)
        for edit, found in wrong[:40]:
            print("   ", edit.what[:150], "->", found)
    print("most memory", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 2**30, "GiB")

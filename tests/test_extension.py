"""Adding a thing is one file: each is written to a temporary folder, found there, planned with, proven and run.

Nothing else is changed for it; and each has a wrong twin that is noticed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import shardwright as sw
from shardwright.errors import VerifyError
from shardwright.frontends.numpy import ops
from shardwright.frontends.numpy.define import forget_op
from shardwright.numpy import check_op
from shardwright.proof import check_identity, check_structure

Write = Callable[[ModuleType | None, str, str], Any]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write a file and import it: by itself, or as one more file of a package that lists its folder."""
    before = set(sys.modules)

    def written(package: ModuleType | None, name: str, text: str) -> Any:
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        if package is None:
            monkeypatch.syspath_prepend(tmp_path)
            return import_module(name)
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
        return import_module(f"{package.__name__}.{name}")

    yield written
    for module in set(sys.modules) - before:
        if getattr(sys.modules[module], "__file__", None) and str(tmp_path) in str(sys.modules[module].__file__):
            del sys.modules[module]


def proven(plan: Any) -> None:
    check_structure(plan.program)
    check_identity(plan.complete.graph, plan.program)


# -- an op ------------------------------------------------------------------------------------------------

OP = '''
"""Rows scaled by what they sum to, plus a bias."""

import numpy as np
from shardwright.numpy import op


def exact(a, x, w, *, power):
    scaled = a.multiply(a.apply("tanh", x), a.sum(x, axis=1, keepdims=True))
    return a.add(scaled, a.multiply(w, power))


@op(
    "mine.scaled",
    rule="i j, j -> i j ; j: {j}",
    meaning=exact,
    samples=[((6, 4), (4,), {{"power": 2}}), ("n m", "m", {{"power": 3}})],
    cost="pointwise",
)
def scaled(x, w, *, power):
    return np.tanh(x) * np.sum(x, axis=1, keepdims=True) + w * {power}
'''


@pytest.fixture(autouse=True)
def _no_ops_left() -> Iterator[None]:
    yield
    forget_op("mine.scaled")


@pytest.mark.parametrize("package", [None, ops], ids=["a user's module", "a file of the folder"])
def test_an_op_is_one_file(write: Write, package: ModuleType | None) -> None:
    scaled = write(package, "mine_op", OP.format(j="whole", power="power")).scaled
    rng = np.random.default_rng(0)
    x, w, v = rng.normal(size=(12, 8)), rng.normal(size=8), rng.normal(size=(8, 6))

    def model(x: Any, w: Any, v: Any) -> Any:
        return np.maximum(scaled(x, w, power=2), 0) @ v

    expected = np.maximum(np.tanh(x) * x.sum(1, keepdims=True) + 2 * w, 0) @ v
    np.testing.assert_allclose(model(x, w, v), expected)
    plan = sw.plan(model, x, w, v, mesh="d=4", in_specs=("[d, _]", None, None))
    assert [node.op for node in plan.complete.graph.nodes].count("mine.scaled") == 1
    assert not plan.collectives
    proven(plan)
    np.testing.assert_allclose(plan(x, w, v), expected)
    checked = check_op("mine.scaled")
    assert (checked.wrong, checked.splits) == ((), 1)


def test_a_rule_that_claims_too_much_is_noticed(write: Write) -> None:
    """Of a part of a row only a part of its sum is known: by execution and by the proof."""
    scaled = write(None, "loose_op", OP.format(j="blocked", power="power")).scaled
    with pytest.raises(VerifyError, match="differs from the unsharded result"):
        check_op("mine.scaled")
    plan = sw.plan(
        lambda x, w: scaled(x, w, power=2), np.ones((12, 8)), np.ones(8), mesh="d=4",
        in_specs=("[_, d]", "[d]"), out_specs="[_, d]",
    )  # fmt: skip
    assert not plan.collectives
    with pytest.raises(VerifyError, match="differs"):
        check_identity(plan.complete.graph, plan.program)


def test_a_meaning_of_another_function_is_noticed(write: Write) -> None:
    write(None, "other_op", OP.format(j="whole", power="3"))
    with pytest.raises(VerifyError, match=r"what mine.scaled is said to mean differs"):
        check_op("mine.scaled")

"""Every rule of the book, run: whatever factor is split, however unevenly, the result equals unsharded NumPy.

For each sample of an op, each factor of its rule is given each mesh; the rest of the program follows.  Even,
uneven, size-1 and empty dims; one and two mesh axes; all dtypes that apply; NaN and Inf.  Rules of collectives that
stand in a program are run in `test_collectives`, tables of pending reductions in `test_transfers`, the ops of PyTorch
programs in `test_aten_rules`.  What rules say with
``partitioner="xla"`` is about XLA's way to split an op, which is not here to be run; tests/oracle has Shardy's word.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from calls import prepare
from named_samples import NAMED
from stablehlo_samples import STABLEHLO
from test_collectives import EXCHANGES

from shardwright.discover.book.names import PREFIXES
from shardwright.discover.book.numpy_mesh import GRID, LINE, SIZES, Case, check_sample
from shardwright.discover.book.own_op import check_op
from shardwright.errors import VerifyError
from shardwright.frontends.numpy.samples import SAMPLES, Sample, arguments
from shardwright.rules import records
from shardwright.spec.axes import Axes
from shardwright.spec.rule import OpShardingRule

EVERY = {
    name: [*SAMPLES.get(name, []), *NAMED.get(name, []), *STABLEHLO.get(name, [])]
    for name in sorted({*SAMPLES, *NAMED, *STABLEHLO})
}
NEVER_SPLIT = {
    "core.constant": "its data is at hand in full; readers cut their part",
    "rng": "a smaller call draws other numbers, see test_random_numbers_split_would_be_others",
    "rng_bit_generator": "a smaller call draws other numbers, see test_random_numbers_split_would_be_others",
}
"""Ops of which no factor may be split; that they run right under every mesh is tested all the same."""


def test_every_op_is_run() -> None:
    """A rule without samples fails; there are no exceptions."""
    names = {record.name for record in records() if not record.name.startswith(PREFIXES)}
    missing = names - {name for name, samples in EVERY.items() if samples} - set(EXCHANGES)
    assert not missing, f"no samples for {', '.join(sorted(missing))}"


@pytest.mark.parametrize("op", EVERY)
def test_rule_by_execution(op: str) -> None:
    split = max(check_sample(op, sample, prepare) for sample in EVERY[op])
    assert (split > 0) == (op not in NEVER_SPLIT), f"{split} factors of {op} were split"


@pytest.mark.parametrize("op", [record.name for record in records() if callable(record.meaning)])
def test_an_op_in_one_file(op: str) -> None:
    """Its rule and its table of pending reductions by execution, its meaning, and programs of it by the proof."""
    checked = check_op(op)
    assert checked.calls
    assert not checked.wrong


@pytest.mark.parametrize("op", NEVER_SPLIT)
def test_readers_cut_what_is_never_split(op: str) -> None:
    """The reader is split, each of its dims over each mesh: the same numbers on all of them."""
    for sample, sizes, mesh, f in itertools.product(EVERY[op], SIZES.values(), [*LINE, *GRID], (0, 1)):
        case = Case.of(op, sample, arguments(sample, sizes, "f8"), prepare)
        assert case is not None
        reader = len(case.graph.nodes) - 1
        assert reader not in case.rules
        case.run(mesh, {reader: (mesh.axes, ())[:: -1 if f else 1]})


def test_a_wrong_rule_is_noticed() -> None:
    """The check itself must bite: a rule that lets the sorted dim be split gives other numbers."""
    assert not holds("sort", Sample(lambda x: np.sort(x, axis=0), ("n m",)), "i j -> i j | i=8 j=4", "i")


@pytest.mark.parametrize(
    ("op", "rule"),
    [
        ("rng", "(), (), shape -> n0 n1 ; shape: whole ; n0: new ; n1: new | shape=2 n0=8 n1=4"),
        ("rng_bit_generator", "i -> i, n0 n1 ; i: whole ; n0: new ; n1: new | i=2 n0=8 n1=4"),
    ],
)
def test_random_numbers_split_would_be_others(op: str, rule: str) -> None:
    """Numbers count from where a call begins: of a part it would draw those of the first part again."""
    (sample,) = EVERY[op]
    assert not holds(op, sample, rule, "n0")
    assert not holds(op, sample, rule, "n1")


def holds(op: str, sample: Sample, text: str, factor: str) -> bool:
    """Whether this rule in place of the op's own would do, with a factor split in two."""
    case = Case.of(op, sample, arguments(sample, (8, 4), "f8"), prepare)
    assert case is not None
    rule = OpShardingRule.parse(text)
    axes: list[Axes] = [()] * len(rule.factors)
    axes[rule.index(factor)] = LINE[0].axes
    try:
        case.run(LINE[0], dict.fromkeys(case.rules, tuple(axes)), rule)
    except VerifyError:
        return False
    return True

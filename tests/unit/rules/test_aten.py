"""ATen rules that depend on attributes and shapes, as text."""

from __future__ import annotations

import pytest

from shardwright.errors import RuleError
from shardwright.rules.registry import lookup, sharding_rule

CASES = {
    "aten.addbmm": (
        [(6, 4), (3, 6, 2), (3, 2, 4)], [(6, 4)], {},
        "m n, b m k, b k n -> m n ; b: sum form(once) ; k: sum form(once)",
    ),
    "aten.glu": ([(4, 6)], [(4, 3)], {"dim": -1}, "i j -> i r1 ; j: whole ; r1: new whole"),
    "aten.cholesky_solve": (
        [(5, 4, 2), (4, 4)], [(5, 4, 2)], {"upper": False},
        "b0 m0x0 m0x1, m1x0 m1x1 -> b0 r0x0 r0x1",
    ),
    "aten._fft_r2c": ([(4, 6)], [(4, 4)], {"dim": (1,)}, "i j -> i r1"),
    "aten.msort": ([(4, 6)], [(4, 6)], {}, "i j -> i j ; i: whole"),
    "aten.topk": ([(5, 9, 7)], [(5, 3, 7), (5, 3, 7)], {"dim": 1, "k": 3}, "i j k -> i top k, i top k"),
    "aten.slice_scatter": ([(4, 6), (4, 2)], [(4, 6)], {"dim": 1}, "i j, i part -> i j ; j: whole ; part: whole"),
    "aten.view_as_real": ([(4, 6)], [(4, 6, 2)], {}, "i j -> i j pair ; pair: new whole"),
    "aten.aminmax": ([(4, 6)], [(4,), (4,)], {"dim": 1}, "i j -> i, i ; j@0: min ; j@1: max"),
    "aten.count_nonzero": ([(4, 6)], [(6,)], {"dim": 0}, "i j -> j"),
}  # fmt: skip


@pytest.mark.parametrize("op", CASES)
def test_text(op: str) -> None:
    operands, results, attrs, text = CASES[op]
    found = str(sharding_rule(op, operands, results, attrs))
    assert found.startswith(text), found


def test_swapaxes_takes_both_words() -> None:
    said = {"aten.swapaxes": {"axis0": 0, "axis1": 1}, "aten.transpose.int": {"dim0": 0, "dim1": 1}}
    found = {str(sharding_rule(op, [(4, 6)], [(6, 4)], attrs)) for op, attrs in said.items()}
    assert len(found) == 1


def test_lists_of_many_tensors() -> None:
    """Each tensor is split by itself; the others do not depend on it."""
    pytest.importorskip("torch")
    shapes = [(4, 6), (5,)]
    found = lookup("aten._foreach_mul.Scalar").bind(shapes, shapes, {"scalar": 2}, (2,))
    assert str(found).startswith("t0x0 t0x1, t1x0 -> t0x0 t0x1, t1x0 ; t0x0@1: same")
    norms = lookup("aten._foreach_norm.Scalar").bind(shapes, [(), ()], {"ord": 2, "dtype": None}, (2,))
    assert {factor.form for factor in norms.factors} == {"parts"}
    with pytest.raises(RuleError, match="different shapes"):
        lookup("aten._foreach_mul.List").bind([*shapes, (4, 6), (2,)], shapes, {}, (2, 2))


@pytest.mark.parametrize("op", ["aten.equal", "aten.rrelu", "aten._foreach_mm"])
def test_not_elementwise(op: str) -> None:
    """Tagged or named so, but a number, random, or of matrices."""
    pytest.importorskip("torch")
    from shardwright.rules.registry import find

    assert find(op) is None


def test_what_is_lowered_in_parts_is_known_by_them() -> None:
    """Else a correct program would be refused: to the proof the op would be some function that its rule allows."""
    pytest.importorskip("torch")
    from shardwright.frontends.torch.parts import PARTS

    otherwise = {op: lookup(op).meaning for op in PARTS if lookup(op).meaning not in ("parts", "attention")}
    assert not otherwise

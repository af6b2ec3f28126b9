"""What fuzzing has found, as it was shrunk: each case was wrong once."""

from __future__ import annotations

import pytest

from shardwright.fuzz import Call, Case, Fill, FuzzProgram, Ref, Request, judge

PLANNED = {"way": "planned", "reload": True}


def program(shapes: list[tuple[int, ...]], *calls: Call, returned: tuple[int, ...] = ()) -> FuzzProgram:
    fills = tuple(Fill(shape, "float64", 0) for shape in shapes)
    return FuzzProgram(fills, calls, returned or (len(fills) + len(calls) - 1,))


def call(name: str, *args: object, **kwargs: object) -> Call:
    return Call(name, args, tuple(kwargs.items()))


A, B, C = Ref(0), Ref(1), Ref(2)
STACKED = program([(4, 8, 6), (4, 8, 6)], call("np.stack", [B, A], axis=-1), call("np.argmax", C, axis=-4),
                  returned=(3, 1))  # fmt: skip
FOUND = {
    # Shardings that differ in axes of one device are of one copy; a permute drops such axes.
    "permute": Case(
        program([(2,)], call("np.flip", A, axis=-1)), Request("x=1, y=6, z=2", in_specs=("[z+y] // min(x)",),
                                                               out_specs=("[z+y]",))),
    "copy of an input that is pending over one device": Case(
        program([(8, 6, 4, 4), (8, 6, 4, 7)], call("np.matmul", A, B)),
        Request("x=2, y=1", in_specs=("[_, _, _, x] // y", None), **PLANNED)),
    "copy of an input that one device splits": Case(
        program([(12, 5, 5)], call("np.concatenate", [A, A], axis=2)),
        Request("x=2, y=1", in_specs=("[y, _, _]",), **PLANNED)),
    "copy for an output that one device splits": Case(
        STACKED, Request("x=2, y=1", out_specs=(None, "[_, x+y, _]"), **PLANNED)),
}  # fmt: skip


@pytest.mark.parametrize("name", FOUND)
def test_found(name: str) -> None:
    verdict = judge(FOUND[name])
    assert verdict.kind == "ok", verdict.told

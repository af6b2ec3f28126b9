"""What fuzzing has found, as it was shrunk: each case was wrong once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwright.fuzz import Call, Case, Fill, FuzzProgram, Ref, Request, judge

PLANNED = {"way": "planned", "reload": True}


def program(shapes: list[tuple[int, ...]], *calls: Call, returned: tuple[int, ...] = ()) -> FuzzProgram:
    return FuzzProgram(fills(*shapes), calls, returned or (len(shapes) + len(calls) - 1,))


def fills(*shapes: tuple[int, ...]) -> tuple[Fill, ...]:
    return tuple(Fill(shape, "float64", 0) for shape in shapes)


def call(name: str, *args: object, **kwargs: object) -> Call:
    return Call(name, args, tuple(kwargs.items()))


A, B, C, D = Ref(0), Ref(1), Ref(2), Ref(3)
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
    "rows of a copy that one device splits": Case(
        FuzzProgram((Fill((1, 7), "float64", 0), Fill((7,), "float64", 0), Fill((), "int64", 0, "below", 7)),
                    (call("np.dot", A, B), call("np.take", B, C, axis=-1)), (3, 4)),
        Request("x=2, y=1", in_specs=("[x, _]", "[y] // x", "[]"))),
    # A bound is of plans with the axes in the order that was asked for, too, and with parts of axes that were.
    "axes in another order": Case(
        program([(12,), (12,)], call("np.minimum", B, A)), Request("x=2, y=2", "simple", in_specs=("[y+x]", None))),
    "a part of an axis": Case(
        program([(2, 1, 6, 2)] * 3, call("swn.attention", A, B, C)),
        Request("x=4, y=1", "simple", in_specs=(None, None, "[_, y, _, x:(1)2]"))),
    # ... and says nothing of those that compute a value otherwise than it is asked for, and reshard it.
    "a constraint on what is computed otherwise": Case(
        FuzzProgram((Fill((2, 3), "int64", 0, "below", 2), Fill((3,), "int64", 0)),
                    (call("np.equal", A, B), call("np.where", C, A, 1)), (3,), constraints=((3, "[_, _]"),)),
        Request("x=3", "simple", in_specs=("[_, x]", None))),
    # Constraints say of the values that they read, also where the graph stays as it is.
    "a plan with a constraint, from its file": Case(
        FuzzProgram((Fill((4,), "float64", 0),), (call("np.negative", A),), (1,), constraints=((1, "[x]"),)),
        Request("x=2", **PLANNED)),
    # What is pending as a minimum is carried through rising functions by recipes, and by none of the strategies.
    "a pending minimum": Case(
        program([()], call("np.cbrt", A), call("np.logaddexp2", 2, B)),
        Request("x=2", "planned", in_specs=("[] // min(x)",), hardware="h100")),
    # A constraint returns its operand: what is written to one of them, the other shows.
    "a write to what a constraint returned": Case(
        replace(program([(4, 6)], call("np.tanh", A), call("[]", B, 1), call("[]=", C, slice(1, 3), 2.0),
                        call("np.sin", B)), constraints=((2, "[x]"),)), Request("x=2")),
    # Within a limit bounds let each reader pay its way from what is kept; the first one may take what lies there.
    "a first reader that pays nothing": Case(
        FuzzProgram((Fill((7,), "float64", 0), Fill((1,), "bool", 0)), (call("np.cumsum", A, axis=0),
                    call("np.nan_to_num", C)), (3, 1, 2)),
        Request("y=2", "planned", out_specs=(None, None, "[y]"), memory=0.95)),
    # A reshard may lead through a sharding that no tensor has, such as a slice before a permute.
    "a plan by a recipe, with a permute": Case(
        program([(12, 7), (6, 7)], call("np.swapaxes", B, 0, -1), call("np.moveaxis", A, 1, 0),
                call("np.reshape", Ref(3), (84,), order="F"), call("np.minimum", B, -1.5),
                call("np.clip", Ref(4), -0.5, 0.75), call("np.cumsum", Ref(5), axis=0), returned=(7, 6, 2)),
        Request("x=2, y=2", "planned", in_specs=("[y, _]", None), memory=0.925)),
    # Axes of one device cut nothing, and a copy may be without them, also where an op is told where its part begins.
    "a lookup in what one device splits": Case(
        FuzzProgram((Fill((1, 7), "float64", 0), Fill((7,), "float64", 0), Fill((), "int64", 0, "below", 7)),
                    (call("np.dot", A, B), call("np.take", B, C, axis=-1)), (3, 4)),
        Request("x=2, y=1", in_specs=("[x, _]", "[y] // x", "[]"))),
    # Strategies let an axis begin in a dim that it fills, not in one that others have begun to fill.
    "an axis that goes on in another dim": Case(
        program([(12, 7), (7, 6)], call("np.abs", A), call("np.dot", C, B),
                call("np.reshape", Ref(3), (2, 6, 6), order="F")),
        Request("x=3, y=4", "simple")),
    # Where the home has axes of one device, a shared copy is made from the sharding that is like it without these.
    "a copy of an input that one device splits, within a limit": Case(
        program([(6, 3), (6, 1), (3, 6), (3, 1), (3,)], call("np.arctan2", B, A), call("np.matmul", Ref(5), C),
                call("np.einsum", "ij,kj,k->ik", B, Ref(3), Ref(4)), returned=(7, 6)),
        Request("x=3, y=1", "planned", in_specs=(None, "[_, y]", None, None, None), memory=0.92)),
    # A copy on the way from a pending minimum is pending over no part that its own cuts exclude.
    "parts of an axis that exclude each other": Case(
        program([(3, 1, 4, 4)] * 3, call("swn.attention", A, B, C)),
        Request("x=6", "automatic", in_specs=(None, "[_, _, _, x:(1)2]", "[_, _, x:(3)2, _]"))),
    # Nothing divides evenly by any number of devices.
    "an empty dim": Case(program([(3, 0)], call("np.add", A, 0.5)), Request("x=2", "simple", in_specs=("[_, x]",))),
    "rows of nothing, repeated": Case(program([(0, 2)], call("np.repeat", A, [], axis=0)), Request("x=2")),
    # The simple solver reads nothing pending, but for what a constraint says.
    "a pending constraint": Case(
        replace(program([(1, 7)], call("np.reshape", A, (7,))), constraints=((1, "[_] // x"),)),
        Request("x=2", "simple")),
    # Recipes split what nobody reads, and bounds are of plans that leave it whole.
    "an input that nobody reads": Case(
        FuzzProgram((*fills((12,), (7,)), Fill((), "int64", 0, "below", 8)),
                    (call("np.ones", (8, 7), like=A), call("np.dot", D, B), call("swn.cross_entropy", Ref(4), C)),
                    (5,)),
        Request("x=2, y=2", "planned", memory=0.925, uneven=True, asked=(("cap_gather", 16, ""),))),
    # Between two parts of an axis that does not divide an axis of one device changes nothing.
    "parts of an axis around one device": Case(
        program([(4, 1)], call("np.tanh", A)), Request("x=6, y=1", out_specs=("[x:(1)2+y+x:(2)3, _]",))),
    # What is pending over axes of one device is finished.
    "a scalar that is pending over one device": Case(
        replace(program([()], call("np.reshape", A, ())), constraints=((1, "[] // min(z)"),)),
        Request("z=1", "planned")),
    # Where nothing holds a byte there is nothing to list.
    "a plan that holds nothing, printed": Case(
        program([(3, 0)], call("np.tanh", A)), Request("x=2", printed=True)),
    # An output may be a value whose sharding was said as that of an input, or by a constraint.
    "a part that does not divide, from the plan's file": Case(
        program([(1, 4)], call("[]", A, (slice(None), slice(None))), call("np.tanh", B), returned=(1, 2)),
        Request("x=6", in_specs=("[x:(2)3, _]",), reload=True)),
    "a part that does not divide, said by a constraint, from the plan's file": Case(
        replace(program([(1, 4)], call("np.tanh", A)), constraints=((1, "[x:(2)3, _]"),)),
        Request("x=6", reload=True)),
}  # fmt: skip


@pytest.mark.parametrize("name", FOUND)
def test_found(name: str) -> None:
    verdict = judge(FOUND[name])
    assert verdict.kind == "ok", verdict.told


# -- PyTorch ----------------------------------------------------------------------------------------------


def floats(*shapes: tuple[int, ...], dtype: str = "float64") -> tuple[Fill, ...]:
    return tuple(Fill(shape, dtype, 0, gradient=True) for shape in shapes)


def below(limit: int, *shape: int) -> Fill:
    return Fill(shape, "int64", 0, "below", limit)


def backward(fills: tuple[Fill, ...], *calls: Call) -> FuzzProgram:
    return FuzzProgram(fills, calls, (len(fills) + len(calls) - 1,), "torch", backward=True)


GROUPED = backward(floats((3, 2, 4, 2), (3, 1, 4, 2), (3, 1, 4, 2)), call(
    "F.scaled_dot_product_attention", A, B, C, is_causal=True, enable_gqa=True))  # fmt: skip
CONVOLVED = backward(floats((1, 2, 5), (1, 2, 3), (1,)), call("F.conv1d", A, B, C, dilation=2))
FOUND_TORCH = {
    # A table may be larger than the index beside the axis that is looked up, also where its rows are split.
    "gather": Case(
        FuzzProgram((*floats((6, 4, 8)), below(6, 2, 4, 3)), (call("torch.gather", A, 0, B),), (2,), "torch"),
        Request("x=2, z=2", in_specs=("[x, z, _]", None))),
    "scatter_add": Case(
        backward((*floats((6, 4, 8)), below(6, 2, 4, 3), *floats((2, 4, 3))), call("torch.scatter_add", A, 0, B, C)),
        Request("x=2, z=2", out_specs=("[x, z, _]", None, None))),
    # Fake tensors make gradients of norms in half types float32.
    "group_norm": Case(
        backward(floats((8, 3, 12, 3), (3,), dtype="float16"), call("F.group_norm", A, 1, B)),
        Request("x=2", in_specs=(None, "[x]"))),
    "layer_norm": Case(
        backward(floats((3, 4, 6, 3), (3,), (3,), dtype="float16"), call("F.layer_norm", A, (3,), B, C)),
        Request("x=2", in_specs=("[_, x, _, _]", None, None))),
    # A device without input channels still has all of the bias's gradient.
    "bias of a convolution": Case(CONVOLVED, Request("x=2, y=3", in_specs=("[x, y, _]", None, None))),
    "bias of a convolution in 2-d": Case(
        backward(floats((2, 2, 4, 4), (3, 2, 2, 3), (3,)), call("F.conv2d", A, B, C, padding=1)),
        Request("x=2, y=3", in_specs=("[x, y, _, _]", "[_, y, _, _]", None))),
    # Rows of booleans do not add up.
    "lookup of booleans": Case(
        FuzzProgram((*floats((7,), (7,)), below(7, 2)), (call("torch.ne", A, B), call("torch.index_select", D, 0, C)),
                    (4,), "torch"), Request("x=2", in_specs=(None, "[x]", None))),
    "gather of booleans": Case(
        FuzzProgram((Fill((7, 3), "bool", 0), below(7, 2, 3)), (call("torch.gather", A, 0, B),), (2,), "torch"),
        Request("x=2", in_specs=("[x, _]", None))),
    # A device without query heads gives keys and values no gradient.
    "grouped attention on more devices than heads": Case(
        GROUPED, Request("x=3, y=2", in_specs=("[y, x, _, _]", None, None))),
    # A dim of a stack is one of the result; of a 0-d tensor dim 0 is taken.
    "unbind, whose gradient stacks scalars": Case(
        backward(floats((5,)), call("torch.unbind", A), call("[]", B, 1)), Request("x=2")),
    **{f"{what} of a scalar": Case(
        FuzzProgram(floats((4,)), (call("torch.sum", A), call(f"torch.{what}", B, 0)), (2,), "torch"), Request("x=2"))
        for what in ("cumsum", "cumprod", "logsumexp", "mean")},
    # A constraint returns its operand: what is written to one of them, the other shows, and its gradient knows.
    "a write to what a constraint returned": Case(
        replace(backward(floats((4, 6)), call("torch.sin", A), call("torch.select", B, 0, 1), call(".mul_", C, 3.0),
                         call("torch.neg", B)), constraints=((2, "[x]"),)), Request("x=2")),
    # A mask is an index of as many dims as it has.
    **{f"a mask of {len(mask)} dims, {what}": Case(
        FuzzProgram((*floats((4, 6, 2)), Fill(mask, "bool", 0)), (call(".clone", A), call("[]=", C, key, value)), (3,),
                    "torch"), Request("x=2, y=3", in_specs=(spec, None)))
        for what, mask, key, value, spec in (
            ("of the first", (4, 6), B, 0.5, "[x, y, _]"), ("of the first", (4,), B, 0.5, "[_, x, y]"),
            ("of the second", (6,), (slice(None), B), 0.5, "[x, y, _]"))},
    "rows where a mask holds": Case(
        FuzzProgram((*floats((4, 6, 2), (2,)), Fill((4, 6), "bool", 0)), (call(".clone", A), call("[]=", D, C, B)),
                    (4,), "torch"), Request("x=2, y=2", in_specs=("[x, _, y]", None, "[x, _]"))),
    # An op that makes a value and has no rule takes time, too.
    "indices that no rule makes": Case(
        FuzzProgram(floats((4,)), (call("torch.tril_indices", 3, 3), call("torch.neg", A)), (1, 2), "torch"),
        Request("x=2", "planned", hardware="h100")),
    # A gather of which a part is kept is made smaller after planning, which no bound knows.
    "less is gathered than was planned": Case(
        FuzzProgram(floats((2, 1, 6, 4), (3, 1, 2, 3)), (call("F.conv2d", A, B, padding=1, dilation=2),), (2,),
                    "torch"), Request("x=4", "planned", in_specs=("[_, _, x:(1)2, _]", None), hardware="h100")),
    # A device without elements knows neither the least nor the greatest.
    **{f"least and greatest, element {result}": Case(
        FuzzProgram((Fill((5,), dtype, 0),), (call("torch.aminmax", A, dim=0), call("[]", B, result)), (2,), "torch"),
        Request("x=2, y=3", in_specs=("[y+x]",))) for result, dtype in ((0, "bfloat16"), (1, "int64"))},
    # A view that stretches what it shows holds no more than that.
    "an expanded view within a limit": Case(
        FuzzProgram(floats((6, 1), (8,), (8, 1), dtype="float32"),
                    (call("F.linear", A, C, B), call(".expand", D, (5, 6, 8)), call("torch.cumsum", Ref(4), 0)), (5, 4),
                    "torch"), Request("x=2", "planned", memory=0.98)),
    # An axis that a copy is given back may take part in what is pending.
    "a minimum over more devices": Case(
        backward((*floats((2, 3), dtype="float32"), Fill((2, 3), "float32", 0, "positive", gradient=True)),
                 call("F.binary_cross_entropy_with_logits", A, B)),
        Request("x=2, y=6", in_specs=("[_, x] // min(y)", None), hardware="h100", **PLANNED)),
    # Strategies let an axis that fills a dim go on in another one; a bound is of no plan that leaves its rest unused.
    "the first part of an axis alone": Case(
        FuzzProgram((below(12, 8), *floats((12,), (2, 12), dtype="float32")),
                    (call("torch.add", C, B), call("torch.index_select", D, -1, A)), (4,), "torch"),
        Request("x=4", "simple", hardware="h100")),
    # Of no elements PyTorch knows no largest, and a softmax all the same.
    **{f"{what} of nothing": Case(
        FuzzProgram(floats((3, 0)), (call(f"torch.{what}", A, 1),), (1,), "torch"),
        Request("x=3", in_specs=("[x, _]",)))
        for what in ("softmax", "log_softmax", "logsumexp")},
    "lookup in a scalar": Case(
        FuzzProgram((*floats((4,)), below(1, 1)), (call("torch.sum", A), call("torch.index_select", C, 0, B)),
                    (3,), "torch"), Request("x=2")),
}  # fmt: skip


@pytest.mark.parametrize("name", FOUND_TORCH)
def test_found_in_torch(name: str) -> None:
    pytest.importorskip("torch")
    verdict = judge(FOUND_TORCH[name])
    assert verdict.kind == "ok", verdict.told


def test_lookups_of_booleans_in_numpy() -> None:
    fills = (Fill((7, 3), "bool", 0), below(7, 4))
    program_ = FuzzProgram(fills, (call("np.take", A, B, axis=0),), (2,))
    verdict = judge(Case(program_, Request("x=3", in_specs=("[x, _]", None))))
    assert verdict.kind == "ok", verdict.told

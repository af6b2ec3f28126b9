"""One reader for every string: what it takes, and where it points when it does not."""

from __future__ import annotations

import pytest

from shardwright.errors import MeshError, NotationError, RuleError, ShardwrightError, SpecError
from shardwright.spec.mesh import DeviceMesh
from shardwright.spec.notation import (
    Reader,
    parse_axis,
    parse_dim,
    parse_mesh,
    parse_partial,
    parse_sharded_rule,
)
from shardwright.spec.rule import FactorNote, Transfer, parse_rule
from shardwright.spec.sharding import CLOSED, DimSpec, ShardingSpec
from shardwright.spec.tensors import parse_tensor

MESH = DeviceMesh("dp=2, tp=4, sum=3")
DP, TP, SUM = MESH.axes


def caret(error: ShardwrightError) -> str:
    """The text from the caret on."""
    assert error.text is not None
    assert error.at is not None
    return error.text[error.at :]


# -- the reader -----------------------------------------------------------------------------------------


def test_tokens_know_where_they_stand() -> None:
    tokens = Reader(" a1->//...(22 ").tokens
    assert [(token.kind, token.text, token.at) for token in tokens] == [
        ("name", "a1", 1),
        ("punct", "->", 3),
        ("punct", "//", 5),
        ("punct", "...", 7),
        ("punct", "(", 10),
        ("int", "22", 11),
        ("end", "", 13),
    ]


def test_end_points_at_what_is_left() -> None:
    reader = Reader("a b")
    reader.name("a word")
    with pytest.raises(NotationError, match="nothing should follow here, found 'b'"):
        reader.end()


def test_the_end_of_the_text_is_no_word() -> None:
    with pytest.raises(NotationError, match="expected a word, the text ends"):
        Reader("").name("a word")
    assert not Reader("").peek("")


# -- meshes and axes ------------------------------------------------------------------------------------


def test_mesh() -> None:
    assert parse_mesh("dp=2, tp=4; devices=[1, 0]") == ((2, 4), ("dp", "tp"), (1, 0))
    assert parse_mesh("") == ((), (), None)


def test_axis() -> None:
    assert parse_axis("tp") == ("tp", 1, None)
    assert parse_axis("tp:(2)4") == ("tp", 2, 4)


@pytest.mark.parametrize("text", ["", "2", "tp:", "tp:(", "tp:(1", "tp:(1)", "tp:(1)x", "tp tp"])
def test_bad_axis(text: str) -> None:
    with pytest.raises(NotationError):
        parse_axis(text)


# -- specs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "dim"),
    [
        ("_", CLOSED),
        ("?", DimSpec((), True)),
        ("dp", DimSpec((DP,))),
        ("dp+tp", DimSpec((DP, TP))),
        ("dp+?", DimSpec((DP,), True)),
        ("?+dp", DimSpec((DP,), True)),
        ("tp:(1)2+tp:(2)2", DimSpec((TP,))),
        ("_!0", DimSpec((), False, 0)),
        ("dp+?!12", DimSpec((DP,), True, 12)),
    ],
)
def test_dim(text: str, dim: DimSpec) -> None:
    assert DimSpec(*parse_dim(text, MESH)) == dim


@pytest.mark.parametrize("text", ["", "dp+", "+dp", "dp tp", "dp!", "dp!x", "_+dp", "!1"])
def test_bad_dim(text: str) -> None:
    with pytest.raises(NotationError):
        parse_dim(text, MESH)


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("[]", "[]"),
        ("[ dp ,_ ]", "[dp, _]"),
        ("[dp,]", "[dp]"),
        ("[_]//tp,max(dp)", "[_] // max(dp), tp"),
        ("[_]~sum,dp", "[_] ~ dp, sum"),
        ("[_] // sum(tp) ~ dp", "[_] // tp ~ dp"),
    ],
)
def test_spec(text: str, printed: str) -> None:
    assert str(ShardingSpec.parse(text, MESH)) == printed


@pytest.mark.parametrize(
    "text", ["", "dp", "[dp", "[dp tp]", "[dp]]", "[,dp]", "[dp] //", "[dp] ~", "[dp] // max(", "[dp] // max()"]
)
def test_bad_spec(text: str) -> None:
    with pytest.raises(NotationError):
        ShardingSpec.parse(text, MESH)


def test_the_caret_stands_under_the_unknown_axis() -> None:
    with pytest.raises(MeshError) as caught:
        ShardingSpec.parse("[dp, pp+tp]", MESH)
    assert caret(caught.value) == "pp+tp]"


def test_the_caret_stands_under_the_unknown_kind() -> None:
    with pytest.raises(SpecError) as caught:
        ShardingSpec.parse("[_] // dp, mean(tp)", MESH)
    assert caret(caught.value) == "mean(tp)"


def test_an_axis_called_like_a_kind() -> None:
    assert parse_partial("sum", MESH) == [(SUM, "sum")]
    assert parse_partial("max(sum)", MESH) == [(SUM, "max")]


# -- tensors --------------------------------------------------------------------------------------------


def test_tensor() -> None:
    dtype, shape, spec = parse_tensor("bf16[16@dp+tp, 3] // max(sum)", MESH)
    assert (dtype, shape, str(spec)) == ("bf16", (16, 3), "[dp+tp, _] // max(sum)")


def test_tensor_without_a_mesh() -> None:
    assert parse_tensor("f32[]") == ("f32", (), None)


def test_axes_on_a_tensor_need_a_mesh() -> None:
    with pytest.raises(NotationError, match="no mesh to read them on"):
        parse_tensor("f32[8@dp]")


@pytest.mark.parametrize("text", ["f32", "[8]", "f32[8", "f32[x]", "f32[8@]", "f32[8] 3", "f32[8@_]"])
def test_bad_tensor(text: str) -> None:
    with pytest.raises((NotationError, MeshError)):
        parse_tensor(text, MESH)


# -- rules ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("m k,k n->m n", "m k, k n -> m n"),
        ("... m k, ... k n -> ... m n", "... m k, ... k n -> ... m n"),
        ("( a b ) -> a b", "(a b) -> a b"),
        ("1 j -> j", "1 j -> j"),
        ("() -> ()", "() -> ()"),
        ("i ->", "i -> ()"),
        ("i, -> i", "i, () -> i"),
        ("-> i; i: new", "-> i ; i: new"),
        ("(a) -> a", "a -> a"),
        ("i k -> i, k", "i k -> i, k"),
        ("i k->i;k:max;P(max)->P(max)", "i k -> i ; k: max ; P(max) -> P(max)"),
        (
            "i -> i ; P(any) -> P(any) ; i: whole form(core.scan)",
            "i -> i ; i: whole form(core.scan) ; P(any) -> P(any)",
        ),
    ],
)
def test_rule(text: str, printed: str) -> None:
    pattern, _ = parse_rule(text)
    assert str(pattern) == printed
    assert parse_rule(printed)[0] == pattern


def test_notes_and_transfers() -> None:
    pattern, sizes = parse_rule("i k -> i, k ; k@0: max ; R -> P(sum), R | i=2 k=3")
    assert pattern.notes == (FactorNote("k", ("max",), 0),)
    assert pattern.transfers == (Transfer(("R",), ("P(sum)", "R")),)
    assert sizes == {"i": 2, "k": 3}


def test_factors_may_be_called_r_and_p() -> None:
    pattern, _ = parse_rule("R P -> R P ; R: whole ; P: blocked ; R -> R ; P(sum) -> P(sum)")
    assert [str(note) for note in pattern.notes] == ["R: whole", "P: blocked"]
    assert [str(line) for line in pattern.transfers] == ["R -> R", "P(sum) -> P(sum)"]


@pytest.mark.parametrize(
    ("text", "fact", "spot"),
    [
        ("m k, k n", "a rule needs an arrow", ""),
        ("m k, k n = m n", "expected a factor, found '='", "= m n"),
        ("m k, k j -> m n", "factor 'n' appears on the right", "n"),
        ("i -> ... i", "'...' stands on the right", "... i"),
        ("m k, k k -> m", "factor 'k' stands twice", "k -> m"),
        ("i -> (i j i)", "factor 'i' stands twice", "i)"),
        ("... ... -> ...", "'...' stands twice", "... -> ..."),
        ("i 3 -> i", "a dim of fixed size 3", "3 -> i"),
        ("(i 1) -> i", "a dim of fixed size 1", "1) -> i"),
        ("(i -> i", "expected a factor, found '->'", "-> i"),
        ("i () -> i", "stands for a tensor without dims", "() -> i"),
        ("() i -> i", "stands for a tensor without dims", "() i -> i"),
        ("i -> i ;", "expected a factor, or a transfer", ""),
        ("i -> i ; j: max", "no factor is called 'j'", "j: max"),
        ("i -> i ; ...: whole", "no factor is called '...'", "...: whole"),
        ("i -> i ; i: wole", "a factor cannot be 'wole'", "wole"),
        ("i -> i ; i:", "expected what the factor is", ""),
        ("i -> i ; i@1: max", "there is no result 1", "1: max"),
        ("i -> i ; i@x: max", "expected the number of a result", "x: max"),
        ("i -> i ; i: form()", "expected the name of a local form", ")"),
        ("i -> i ; R, R -> R ; i: max", "does not have one state for each tensor", "R, R -> R ; i: max"),
        ("i -> i ; R -> S", "expected 'R' or 'P.kind.'", "S"),
        ("i -> i | i=", "expected the size of i", ""),
        ("i -> i | i=2 3", "nothing should follow here, found '3'", "3"),
        ("i/dp -> i", "no mesh to read them on", "dp -> i"),
    ],
)
def test_bad_rule(text: str, fact: str, spot: str) -> None:
    with pytest.raises(RuleError, match=fact) as caught:
        parse_rule(text)
    assert caret(caught.value) == spot


def test_unknown_kind_in_a_transfer() -> None:
    with pytest.raises(SpecError) as caught:
        parse_rule("i -> i ; P(mean) -> R")
    assert caret(caught.value) == "mean) -> R"


@pytest.mark.parametrize(
    ("text", "help"),
    [
        ("m k, k j -> m n", "rename 'j' to 'n', or size"),
        ("k j, k -> n", "rename 'j' to 'n', or size"),
        ("k, k -> n", "size it as a new factor"),
        ("... 1 -> n", "size it as a new factor"),
    ],
)
def test_help_names_the_factor_that_was_meant(text: str, help: str) -> None:
    """Not one that several inputs share: that is contracted on purpose."""
    with pytest.raises(RuleError) as caught:
        parse_rule(text)
    assert caught.value.help is not None
    assert caught.value.help.startswith(help)


# -- rules under a plan ---------------------------------------------------------------------------------


def test_sharded_rule() -> None:
    pattern, axes = parse_sharded_rule("m/dp k/tp, k/tp n -> m/dp n // tp", MESH)
    assert str(pattern) == "m k, k n -> m n"
    assert axes == {"m": (DP,), "k": (TP,)}


def test_pending_axes_end_at_the_next_result() -> None:
    pattern, axes = parse_sharded_rule("i/dp+tp -> () // dp+max(tp), i/dp+tp, ()", MESH)
    assert str(pattern) == "i -> (), i, ()"
    assert axes == {"i": (DP, TP)}


def test_a_factor_with_two_lists_of_axes() -> None:
    with pytest.raises(RuleError, match="factor 'k' carries different axes in two places"):
        parse_sharded_rule("m k/tp, k/dp n -> m n", MESH)

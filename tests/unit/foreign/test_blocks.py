"""Blocks as people write them, each on several meshes: proven, and refused without one of their collectives."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

import foreign.regions as regions
from foreign.blocks import (
    CONTEXTS,
    SEQ,
    WHOLE,
    Attention,
    ContextAttention,
    Embedding,
    Experts,
    Loss,
    Mlp,
    Norm,
)
from foreign.programs import HAND, MODULES, Piece, Plan
from foreign.regions import STYLES

import shardwright.torch as swt

pytestmark = [
    pytest.mark.filterwarnings("ignore:FSDP2-wrapped module"),
    pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning"),  # names that PyTorch 2.11 has, too
]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors are small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


RANKS = (2, 3, 4)
MESHES: tuple[dict[str, int], ...] = ({"tp": 2}, {"tp": 3}, {"tp": 4}, {"dp": 2, "tp": 2}, {"dp": 2, "tp": 3})
DIM, WORDS = 8, 13


def proof_of(pieces: list[Piece], mesh: dict[str, int], **about: Any) -> Any:
    inner, outer = "tp" if "tp" in mesh else "", next((axis for axis in mesh if axis != "tp"), "")
    wrapper = about.pop("wrapper", "ddp" if outer else "")
    length = about.pop("length", 7 if outer != "cp" else 6)
    plan = Plan(pieces, 0, inner, outer, wrapper, own_loss=pieces[-1].kind == "loss", **about)
    across = mesh.get("dp", 1) * mesh.get("replicas", 1)
    one = plan.subject(mesh, (2 * across, length * mesh.get("cp", 1), DIM, WORDS), "")
    return swt.prove(
        one.parallel, like=one.like, mesh=mesh, inputs=one.inputs, placements=one.placements, loss=one.loss
    )


def attention(**about: Any) -> Attention:
    return Attention(DIM, 8, 4, 2, **{"causal": True, **about})


# -- Megatron's style -------------------------------------------------------------------------------------


def megatron(layout: str) -> list[Piece]:
    return [
        Piece(lambda: Embedding(WORDS, DIM), "embedding", HAND, layout),
        Piece(lambda: Norm(DIM, "layer"), "norm", HAND, layout),
        Piece(attention, "attention", HAND, layout),
        Piece(lambda: Mlp(DIM, 11, "gelu", True), "mlp", HAND, layout),
        Piece(lambda: Loss(DIM, WORDS), "loss", HAND, layout),
    ]


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("layout", [WHOLE, SEQ])
def test_a_block_with_hand_written_functions(layout: str, mesh: dict[str, int]) -> None:
    """Sizes that no mesh divides: 7 places, 13 words, 11 features."""
    proof = proof_of(megatron(layout), mesh)
    assert proof, proof
    assert not proof.certificate.trusted


@pytest.mark.parametrize("style", STYLES)
def test_all_styles_of_calls(style: str) -> None:
    proof = proof_of(megatron(SEQ), {"tp": 3}, styles=(style, style), length=6)
    assert proof, proof


def test_without_the_reduction_of_gradients_a_block_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regions._Copy, "backward", staticmethod(lambda ctx, grad: (grad, None)))
    proof = proof_of(megatron(WHOLE)[1:4], {"tp": 2})
    wrong = {difference.name for difference in proof.differences}
    assert {"gradient of x", "gradient of layers.0.weight"} <= wrong
    assert "output" not in wrong


def test_a_scatter_that_takes_the_first_part_everywhere_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = regions.reduce_scatter
    monkeypatch.setattr(
        regions, "reduce_scatter", lambda x, axis, dim, sizes: wrong(x.flip(dim), axis, dim, sizes).flip(dim)
    )
    proof = proof_of(megatron(SEQ)[1:4], {"tp": 2}, length=6)
    assert "output" in {difference.name for difference in proof.differences}


# -- attention --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("layout", [WHOLE, SEQ])
def test_a_shared_part_of_keys(layout: str, mesh: dict[str, int]) -> None:
    piece = Piece(lambda: attention(shared_key=3), "shared key", HAND, layout)
    proof = proof_of([piece], mesh)
    assert proof, proof


def test_a_shared_part_of_keys_needs_its_gradient_reduced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Attention, "_shared_part", lambda self, x, whole: self.key(x))
    proof = proof_of([Piece(lambda: attention(shared_key=3), "shared key", HAND, WHOLE)], {"tp": 2})
    wrong = {difference.name for difference in proof.differences}
    assert wrong == {"gradient of x", "gradient of layers.0.key.weight"}


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("causal", [False, True])
def test_attention_along_a_split_sequence(context: str, causal: bool, ranks: int) -> None:
    formulas = ("softmax", "fused")
    piece = Piece(
        lambda: ContextAttention(DIM, 2, causal=causal, context=context, formulas=formulas), "context", HAND, SEQ
    )
    proof = proof_of([piece], {"tp": ranks})
    assert proof, proof


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("mesh", [{"cp": 2, "tp": 2}, {"cp": 2, "tp": 3}, {"cp": 3, "tp": 2}], ids=str)
def test_heads_and_sequence_are_split(context: str, mesh: dict[str, int]) -> None:
    proof = proof_of([Piece(lambda: attention(context=context), "attention")], mesh)
    assert proof, proof


def test_a_ring_that_merges_by_a_plain_mean_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def mean(state: Any, scores: Any, v: Any) -> Any:
        out = scores.softmax(-1) @ v
        return (out, 0) if state is None else ((state[0] + out) / 2, 0)

    monkeypatch.setitem(sys.modules["foreign.blocks"].MERGES, "logarithms", mean)
    make = lambda: ContextAttention(DIM, 2, causal=False, context="logarithms", formulas=("fused", "fused"))  # noqa: E731
    proof = proof_of([Piece(make, "context", HAND, SEQ)], {"tp": 2})
    assert "output" in {difference.name for difference in proof.differences}


# -- experts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("style", STYLES)
def test_experts_are_reached_by_all_to_all(style: str, ranks: int) -> None:
    piece = Piece(lambda: Experts(DIM, 5, 5, 3), "experts", HAND, SEQ)
    proof = proof_of([piece], {"tp": ranks}, styles=(style, style))
    assert proof, proof


@pytest.mark.parametrize("mesh", MESHES[3:], ids=str)
def test_experts_and_data_are_split(mesh: dict[str, int]) -> None:
    proof = proof_of([Piece(lambda: Experts(DIM, 5, 5, 3), "experts", HAND, SEQ)], mesh)
    assert proof, proof


def test_a_router_whose_gradient_is_not_reduced_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Experts, "shared", lambda self, parameter: parameter)
    proof = proof_of([Piece(lambda: Experts(DIM, 5, 5, 3), "experts", HAND, SEQ)], {"tp": 3})
    assert {difference.name for difference in proof.differences} == {"gradient of layers.0.router.weight"}


# -- steps ------------------------------------------------------------------------------------------------


def both(form: str, layout: str) -> list[Piece]:
    return [
        Piece(attention, "attention", form, layout),
        Piece(lambda: Mlp(DIM, 12, "silu", False), "mlp", form, layout),
    ]


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("optimizer", ["adamw", "adamw, each"])
def test_a_step_with_clipping_on_plain_parts(optimizer: str, mesh: dict[str, int]) -> None:
    proof = proof_of(both(HAND, SEQ), mesh, optimizer=optimizer, clip=0.1)
    assert proof, proof
    assert "layers.0.q.weight.exp_avg_sq" in proof.certificate.shown


@pytest.mark.parametrize("mesh", [{"tp": 2}, {"tp": 4}, {"dp": 2}, {"dp": 3}, {"dp": 2, "tp": 2}], ids=str)
def test_a_step_with_clipping_on_dtensors(mesh: dict[str, int]) -> None:
    wrapper = "fsdp" if "dp" in mesh else ""
    proof = proof_of(both(MODULES, SEQ), mesh, wrapper=wrapper, optimizer="adamw", clip=0.1, length=4)
    assert proof, proof
    assert "parameter of layers.1.norm.weight" in proof.certificate.shown


@pytest.mark.parametrize("hidden", [14, 16, 18, 20])
def test_a_norm_of_the_parts_of_one_rank_is_refused(hidden: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank clips by the norm of what it holds: refused whether or not gradients would be clipped."""

    def clip(self: Plan, parameters: Any, mesh: Any) -> None:
        torch.nn.utils.clip_grad_norm_(parameters, self.clip)

    monkeypatch.setattr(Plan, "_clip", clip)
    piece = Piece(lambda: Mlp(DIM, hidden, "relu", False), "mlp")
    proof = proof_of([piece], {"tp": 2}, optimizer="sgd", clip=1.0)
    assert "gradient of layers.0.up.weight" in {difference.name for difference in proof.differences}

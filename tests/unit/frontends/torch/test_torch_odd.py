"""Calls of PyTorch off the beaten track: each once stopped a capture, or the program made of it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import shardwright as sw  # noqa: E402
from shardwright.errors import TraceError  # noqa: E402

MESHES = ("d=2", "d=3", "d=6")


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def splits(x):
    for d in range(x.dim()):
        yield "[" + ", ".join("d" if e == d else "_" for e in range(x.dim())) + "]"


# -- dropout ------------------------------------------------------------------------------------------------

DROPOUTS = {
    "dropout": (F.dropout, (6, 5, 4, 4)), "dropout1d": (F.dropout1d, (6, 5, 16)),
    "dropout2d": (F.dropout2d, (6, 5, 4, 4)), "dropout3d": (F.dropout3d, (6, 5, 2, 2, 4)),
    "alpha_dropout": (F.alpha_dropout, (6, 5, 4, 4)), "feature_alpha_dropout": (F.feature_alpha_dropout, (6, 5, 4, 4)),
}  # fmt: skip


@pytest.mark.parametrize("p", [0.5, 0.25])  # the first is the default of the op that draws, which PyTorch leaves out
@pytest.mark.parametrize("name", DROPOUTS)
def test_dropouts_drop_alike_on_every_mesh(name, p):
    function, shape = DROPOUTS[name]
    x = torch.rand(shape) + 1
    whole = sw.shard_map(lambda x: function(x, p, True), "d=1")(x)
    for mesh in MESHES:
        for spec in splits(x):
            torch.testing.assert_close(sw.shard_map(lambda x: function(x, p, True), mesh, in_specs=(spec,))(x), whole)
    kept = whole != whole.min() if "alpha" in name else whole != 0
    if name != "dropout" and name != "alpha_dropout":  # all of a channel, or nothing
        flat = kept.flatten(2)
        assert (flat.all(-1) | ~flat.any(-1)).all()
        kept = flat.any(-1)
    assert 0 < kept.float().mean() < 1


@pytest.mark.parametrize("kind", [nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout, nn.FeatureAlphaDropout])
def test_dropout_modules_train(kind):
    """With the probability that they have if none is said."""
    model = nn.Sequential(nn.Linear(8, 8), kind(), nn.Linear(8, 4))
    x = torch.randn(6, 5, 8) if kind is nn.Dropout1d else torch.randn(6, 5, 4, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = sw.plan(model, x, mesh="d=3", optimizer=optimizer, loss=lambda out: out.square().mean())
    assert torch.isfinite(plan.step()(x))


def test_defaults_of_calls_in_place_are_theirs():
    """Where the form that returns its result has other ones, or none."""
    for draw in (lambda x: x.bernoulli_(), lambda x: x.exponential_(), lambda x: x.uniform_(), lambda x: x.normal_()):
        made = sw.plan(lambda x, draw=draw: draw(torch.empty_like(x)), torch.zeros(64), mesh="d=2")(torch.zeros(64))
        assert made.shape == (64,)
        assert made.std() > 0.1


# -- views of attention -------------------------------------------------------------------------------------


def attend(x):
    return F.scaled_dot_product_attention(x, x, x)


VIEWS = {
    "flat": lambda x: attend(x).view(-1),
    "heads merged": lambda x: attend(x).transpose(1, 2).reshape(x.shape[0], x.shape[2], -1),
    "scaled": lambda x: (attend(x) * 2).view(x.shape[0], -1),
    "with a residual": lambda x: (attend(x) + x).view(-1, x.shape[-1]),
    "split": lambda x: attend(x).view(*x.shape[:-1], 2, -1).sum(-1),
}


@pytest.mark.parametrize("shape", [(2, 3, 4, 8), (6, 2, 5, 6)])
@pytest.mark.parametrize("name", VIEWS)
def test_attention_is_viewed_as_on_any_device(name, shape):
    """Where results of attention lie in memory differs between devices: a program takes the views of all."""
    x = torch.randn(shape)
    for mesh in ("d=2", "d=3"):
        for spec in splits(x):
            made = sw.shard_map(VIEWS[name], mesh, in_specs=(spec,))(x)
            torch.testing.assert_close(made, VIEWS[name](x))
        y = x.clone().requires_grad_()
        torch.testing.assert_close(sw.shard_map(VIEWS[name], mesh)(y), VIEWS[name](x))


def test_a_view_that_does_not_fit_is_pytorchs_own_error_with_its_line():
    with pytest.raises(sw.TraceError, match=r"invalid for input of size(.|\n)*test_torch_odd.py") as caught:
        sw.plan(lambda x: attend(x).view(7), torch.randn(2, 3, 4, 8), mesh="d=2")
    assert isinstance(caught.value.__cause__, RuntimeError)


# -- logsumexp ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.int32, torch.uint8, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("dim", [-1, 0, (0, 1)])
def test_logsumexp_of_any_type(dtype, dim):
    x = (torch.rand(5, 7) * 3).to(dtype)
    wanted = torch.logsumexp(x, dim)
    for mesh in MESHES:
        for spec in splits(x):
            made = sw.shard_map(lambda x: torch.logsumexp(x, dim), mesh, in_specs=(spec,))(x)
            assert made.dtype == wanted.dtype
            torch.testing.assert_close(made, wanted)


# -- what cannot be captured --------------------------------------------------------------------------------


def test_control_flow_operators_are_refused_in_our_words():
    x = torch.randn(4, 4)
    with pytest.raises(TraceError, match=r"(?s)cond cannot be captured.*at .*test_torch_odd.*torch\.where"):
        sw.plan(lambda x: torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,)), x, mesh="d=2")


# -- boolean sums -------------------------------------------------------------------------------------------


def test_a_boolean_sum_is_computed_whole():
    x = torch.rand(6, 8) > 0.8
    for mesh in MESHES:
        for spec in splits(x):
            made = sw.shard_map(lambda x: (torch.sum(x, 1, dtype=torch.bool), x.sum(0)), mesh, in_specs=(spec,))(x)
            torch.testing.assert_close(made[0], x.any(1))
            torch.testing.assert_close(made[1], x.sum(0))

"""bf16 and fp16, planned and run on the virtual mesh: as near to the truth as eager PyTorch.

Sums over shards are rounded in another order than sums over the whole, so two right answers in a half type differ by
roundings of that type; how many depends on the depth of the program, which eager PyTorch's own distance from float64
tells.  So nothing may be farther from float64 than `FACTOR` times eager PyTorch is, and `ROUNDINGS` roundings of the
largest number beside.  A wrong collective, scale or mask is off by the size of the numbers themselves.
"""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import shardwright as sw  # noqa: E402
import torch_zoo as zoo  # noqa: E402
from shardwright.frontends.torch import capture  # noqa: E402
from shardwright.proof import check_identity  # noqa: E402

HALF = {"bf16": torch.bfloat16, "f16": torch.float16}
FACTOR, ROUNDINGS = 4, 4


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
    torch.set_num_threads(1)


def cast(tree, dtype):
    if isinstance(tree, dict):
        return {key: cast(value, dtype) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(cast(value, dtype) for value in tree)
    floating = isinstance(tree, torch.Tensor) and tree.is_floating_point()
    return tree.to(dtype) if floating else tree


def flat(tree):
    if isinstance(tree, torch.Tensor):
        return [tree.detach()]
    return [tensor for item in tree if item is not None for tensor in flat(item)]


def assert_as_near(found, eager, truth, where=""):
    """Elementwise types and shapes are eager's; the distance from float64 is, too, but for order of summation."""
    found, eager, truth = flat(found), flat(eager), flat(truth)
    assert len(found) == len(eager) == len(truth)
    for i, (ours, theirs, exact) in enumerate(zip(found, eager, truth)):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), (where, i)
        if not theirs.dtype.is_floating_point:
            torch.testing.assert_close(ours, theirs)
            continue
        unit = torch.finfo(theirs.dtype).eps * float(exact.abs().max() if exact.numel() else 0)
        apart = [float((side.double() - exact).abs().max()) if exact.numel() else 0.0 for side in (ours, theirs)]
        assert apart[0] <= FACTOR * apart[1] + ROUNDINGS * unit, (where, i, apart, unit)


def with_gradients(function):
    """Results of a function of tensors, and the gradients of their sum of squares."""

    def run(*args):
        leaves = [x.detach().requires_grad_() if x.is_floating_point() else x for x in args]
        made = function(*leaves)
        total = sum(out.square().sum() for out in flat_live(made))
        grads = torch.autograd.grad(total, [x for x in leaves if x.is_floating_point()], allow_unused=True)
        return (*flat_live(made), *(grad for grad in grads if grad is not None))

    return run


def flat_live(tree):
    return [tree] if isinstance(tree, torch.Tensor) else list(tree)


def splits(args, axis):
    """Every dim of every operand, split; and all first dims together."""
    for i, x in enumerate(args):
        for d in range(x.dim()):
            specs = ["[" + ", ".join(["_"] * y.dim()) + "]" for y in args]
            specs[i] = "[" + ", ".join(axis if d == e else "_" for e in range(x.dim())) + "]"
            yield tuple(specs)


def check(function, args, dtype, mesh="d=2", proven=True):
    """Split along every dim of every operand, with gradients: near to the truth, and proven."""
    run, given = with_gradients(function), cast(args, dtype)
    eager, truth, graph = run(*given), run(*cast(given, torch.float64)), capture(run, *given).graph
    for specs in splits(args, "d"):
        mapped = sw.shard_map(run, mesh, in_specs=specs)
        assert_as_near(mapped(*given), eager, truth, f"{specs}")
        if proven:
            check_identity(graph, mapped.program(*given))


X, IMAGE, WEIGHT = (6, 5, 8), (6, 4, 3, 3), (8,)


def _norms():
    r = torch.randn
    return {
        "layer_norm": (lambda x, w, b: F.layer_norm(x, (8,), w, b), (r(X), r(8), r(8))),
        "layer_norm of two dims": (lambda x, w: F.layer_norm(x, (5, 8), w), (r(X), r(5, 8))),
        "layer_norm alone": (lambda x: F.layer_norm(x, (8,)), (r(X),)),
        "rms_norm": (lambda x, w: F.rms_norm(x, (8,), w), (r(X), r(8))),
        "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), (r(IMAGE), r(4), r(4))),
        "batch_norm": (lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), (r(IMAGE), r(4), r(4))),
        "batch_norm applied": (
            lambda x, m, v, w: F.batch_norm(x, m.detach(), v.detach().abs(), w), (r(IMAGE), r(4), r(4), r(4))
        ),
        "instance_norm": (lambda x, w, b: F.instance_norm(x, None, None, w, b), (r(IMAGE), r(4), r(4))),
        "softmax": (lambda x: x.softmax(-1), (r(X),)),
        "log_softmax": (lambda x: x.log_softmax(1), (r(X),)),
        "logsumexp": (lambda x: x.logsumexp((0, 2)), (r(X),)),
        "norms of a list": (lambda x, y: torch.stack(torch._foreach_norm([x, y])), (r(X), r(7))),  # as clipping does
        "normalize": (lambda x: F.normalize(x, dim=1), (r(X),)),
        "statistics": (lambda x: (x.mean(1), x.var(0), x.std(-1), x.norm(dim=2), *torch.var_mean(x)), (r(X),)),
    }  # fmt: skip


def _losses():
    r, x, y, ids = torch.randn, torch.randn(6, 7), torch.randn(6, 7), torch.randint(0, 7, (6,))
    return {
        "cross_entropy": (F.cross_entropy, (x, ids)),
        "cross_entropy of images": (F.cross_entropy, (r(4, 7, 3), torch.randint(0, 7, (4, 3)))),
        "cross_entropy smoothed": (lambda x, i: F.cross_entropy(x, i, label_smoothing=0.1, ignore_index=2), (x, ids)),
        "nll_loss": (lambda x, i, w: F.nll_loss(x, i, w.detach()), (x, ids, torch.rand(7))),
        "mse_loss": (F.mse_loss, (x, y)),
        "l1_loss": (F.l1_loss, (x, y)),
        "smooth_l1_loss": (F.smooth_l1_loss, (x, y)),
        "huber_loss": (lambda x, y: F.huber_loss(x, y, delta=0.5), (x, y)),
        "kl_div": (lambda x, y: F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean"), (x, y)),
        "bce": (lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid().detach()), (x, y)),
        "bce_with_logits": (
            lambda x, y, w: F.binary_cross_entropy_with_logits(x, y.detach(), pos_weight=w.detach()),
            (x, torch.rand(6, 7).round(), torch.rand(7)),
        ),
        "embedding": (lambda table, i: F.embedding(i, table), (r(7, 4), ids)),
        "cosine": (F.cosine_similarity, (x, y)),
    }  # fmt: skip


def _attention():
    q, k, v = torch.randn(3, 2, 4, 6), torch.randn(3, 2, 5, 6), torch.randn(3, 2, 5, 6)
    attend = F.scaled_dot_product_attention
    seen = torch.rand(4, 5) > 0.3
    seen[:, 0] = True
    return {
        "attention": (attend, (q, k, v)),
        "causal attention": (lambda q, k, v: attend(q, k, v, is_causal=True), (q, k, v)),
        "attention with a mask": (lambda q, k, v, m: attend(q, k, v, m), (q, k, v, seen)),
        "attention with a bias": (lambda q, k, v, m: attend(q, k, v, m), (q, k, v, torch.randn(3, 1, 4, 5))),
        "grouped attention": (
            lambda q, k, v: attend(q, k, v, enable_gqa=True), (torch.randn(3, 4, 4, 6), k, v)
        ),
    }  # fmt: skip


torch.manual_seed(0)
OPS = {**_norms(), **_losses(), **_attention()}
QUICK = ("layer_norm", "batch_norm", "group_norm", "rms_norm", "cross_entropy", "mse_loss", "causal attention")


@pytest.mark.parametrize("op", QUICK)
def test_ops_split_along_any_dim(op):
    function, args = OPS[op]
    check(function, args, torch.bfloat16)


@pytest.mark.long
@pytest.mark.parametrize("mesh", ["d=2", "d=3", "d=6"])
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("op", OPS)
def test_every_op_split_along_any_dim(op, dtype, mesh):
    function, args = OPS[op]
    check(function, args, HALF[dtype], mesh, proven=op != "embedding")  # whose shards are empty on some meshes


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("op", ["layer_norm", "group_norm", "batch_norm"])
def test_float32_parameters_of_half_activations(op, dtype):
    """As models keep them that are half but for their norms: the statistics are float32 then, on a CPU too."""
    function, (x, *parameters) = OPS[op]
    run, given = with_gradients(function), (x.to(HALF[dtype]), *parameters)
    eager, truth = run(*given), run(*cast(given, torch.float64))
    for specs in splits(given, "d"):
        assert_as_near(sw.shard_map(run, "d=3", in_specs=specs)(*given), eager, truth, f"{specs}")


@pytest.mark.parametrize("op", ["mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"])
def test_losses_of_two_types_give_what_pytorch_gives(op):
    function, (x, y) = OPS[op]
    given = (x.bfloat16(), y)
    eager, truth = function(*given), function(*cast(given, torch.float64))
    for specs in splits(given, "d"):
        assert_as_near(sw.shard_map(function, "d=2", in_specs=specs)(*given), eager, truth, f"{specs}")


# -- whole models ---------------------------------------------------------------------------------------


class _Loss(nn.Module):
    """A model of `transformers` with its own loss: the first argument after the data that it is called with."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, **data):
        made = self.inner(**data)
        return made.loss if made.get("loss") is not None else made[0].square().mean()


def _transformers(kind, config, data):
    def make():
        transformers = pytest.importorskip("transformers")
        return _Loss(getattr(transformers, kind)(config(transformers)).eval())

    return make, data


_WIDTH = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}


def _ids(vocabulary=32):
    return torch.randint(3, vocabulary, (4, 6))


MODELS = {
    **{name: zoo.CASES[name][:2] for name in ("gpt2 megatron", "gpt2 odd", "resnet", "experts", "cell", "unet",
                                              "recommender")},
    "llama": _transformers(  # with its own norms, by float32: in float16 those of `zoo` are NaN in eager PyTorch, too
        "LlamaForCausalLM",
        lambda t: t.LlamaConfig(vocab_size=33, num_key_value_heads=2, **{**_WIDTH, "num_attention_heads": 4}),
        lambda: {"input_ids": _ids(), "labels": _ids(), "use_cache": False},
    ),
    "bert": _transformers(
        "BertForMaskedLM", lambda t: t.BertConfig(vocab_size=32, max_position_embeddings=8, **_WIDTH),
        lambda: {"input_ids": _ids(), "labels": _ids(), "attention_mask": torch.ones(4, 6, dtype=torch.int64)},
    ),
    "vit": _transformers(
        "ViTForImageClassification", lambda t: t.ViTConfig(image_size=8, patch_size=4, num_labels=5, **_WIDTH),
        lambda: {"pixel_values": torch.randn(4, 3, 8, 8), "labels": torch.randint(0, 5, (4,))},
    ),
    "t5": _transformers(
        "T5ForConditionalGeneration",
        lambda t: t.T5Config(vocab_size=32, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2,
                             decoder_start_token_id=0),
        lambda: {"input_ids": _ids(), "labels": _ids(), "use_cache": False},
    ),
    "norms": (lambda: _Norms(), lambda: {"x": torch.randn(6, 8, 4, 4)}),
}  # fmt: skip


class _Norms(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(
            [nn.BatchNorm2d(8), nn.GroupNorm(4, 8), nn.InstanceNorm2d(8, affine=True), nn.LayerNorm([4, 4]),
             nn.RMSNorm(4), nn.BatchNorm2d(8, track_running_stats=False)]
        )  # fmt: skip

    def forward(self, x):
        for norm in self.norms:
            x = x + norm(x).tanh()
        return x.square().mean()


def drawn(name):
    """A model in float64 with numbers that every half type holds, and a batch."""
    torch.manual_seed(0)
    make, data = MODELS[name]
    model, batch = make().double(), data()
    for tensor in (*model.parameters(), *(b for b in model.buffers() if b.is_floating_point())):
        tensor.data.copy_(tensor.data.to(torch.float16).to(torch.bfloat16))
    return model, {key: value.half().bfloat16() if torch.is_tensor(value) and value.is_floating_point() else value
                   for key, value in batch.items()}  # fmt: skip


class default_dtype:
    """Models make tensors of the default type as they run."""

    def __init__(self, dtype):
        self.dtype = dtype

    def __enter__(self):
        self.before = torch.get_default_dtype()
        torch.set_default_dtype(self.dtype)

    def __exit__(self, *_):
        torch.set_default_dtype(self.before)


def state(model):
    return [*model.parameters(), *(buffer for buffer in model.buffers() if buffer.is_floating_point())]


def trained(model, batch, dtype):
    """One step of gradient descent with momentum, eagerly: the loss and the state after it."""
    with default_dtype(dtype):
        model, batch = copy.deepcopy(model).to(dtype), cast(batch, dtype)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        loss = model(**batch)
        loss.backward()
        optimizer.step()
    return [loss, *state(model)]


def check_model(name, dtype, mesh):
    model, batch = drawn(name)
    eager, truth = trained(model, batch, dtype), trained(model, batch, torch.float64)
    with default_dtype(dtype):
        model, batch = model.to(dtype), cast(batch, dtype)
        before = copy.deepcopy(model.state_dict())
        with torch.no_grad():
            expected = model(**batch)
        assert_as_near(sw.plan(model, mesh=mesh, hardware="virtual", kwargs=batch)(**batch), expected, truth[0], name)
        model.load_state_dict(before)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        plan = sw.plan(model, mesh=mesh, hardware="virtual", optimizer=optimizer, kwargs=batch)
        step = plan.step()
        loss = step(**batch)
        step.sync()
    assert_as_near([loss, *state(model)], eager, truth, name)
    return plan


@pytest.mark.parametrize("name", ["gpt2 megatron", "norms"])
def test_models(name):
    plan = check_model(name, torch.bfloat16, "d=2")
    check_identity(plan.graph, plan.program)
    assert plan.collectives or name == "norms"


@pytest.mark.long
@pytest.mark.parametrize("mesh", ["dp=2, tp=2", "d=3"])
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", MODELS)
def test_every_model(name, dtype, mesh):
    check_model(name, HALF[dtype], mesh)


def test_statistics_are_as_exact_as_the_device_keeps_them():
    """A program says float32; a CPU keeps the type of the input, so eager PyTorch's numbers come to the bit."""
    x, w = torch.randn(6, 8, dtype=torch.bfloat16), torch.randn(8, dtype=torch.bfloat16)
    run = with_gradients(lambda x, w: F.layer_norm(x, (8,), w))
    whole = sw.shard_map(run, "d=2", in_specs=("[_, _]", "[_]"))
    for ours, theirs in zip(whole(x, w), run(x, w)):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    norm = next(node for node in whole.program(x, w).instrs if node.op == "aten.native_layer_norm")
    assert [whole.program(x, w).values[v].type.dtype for v in norm.results] == ["bf16", "f32", "f32"]

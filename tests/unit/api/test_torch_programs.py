"""PyTorch programs on the virtual mesh: the numbers of eager PyTorch, proven and counted."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

import shardwright as sw  # noqa: E402
import shardwright.torch as swt  # noqa: E402
import torch_zoo as zoo  # noqa: E402
from shardwright.verify import VerifyError, check_identity, check_structure  # noqa: E402

MESH = "dp=2, tp=4"


@pytest.fixture(autouse=True)
def _double():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    yield
    torch.set_default_dtype(before)


def zero3(model):
    """Every parameter of which a dim divides is cut along it, by all devices; so is the batch."""
    found = {}
    for name, parameter in model.named_parameters():
        at = next((d for d, size in enumerate(parameter.shape) if size % 8 == 0), None)
        if at is not None:
            found[name] = "[" + ", ".join("dp+tp" if d == at else "_" for d in range(parameter.dim())) + "]"
    return found


def batch_of(data, axes):
    return {name: f"[{axes}" + ", _" * (tensor.dim() - 1) + "]" for name, tensor in data.items()}


def _cases():
    llama, gpt2 = zoo.llama, zoo.gpt2
    tokens = zoo.tokens
    return {
        "llama megatron": (llama, lambda: tokens(6, 8, 96), {**zoo.BATCH, **zoo.MEGATRON}),
        "llama zero3": (llama, lambda: tokens(8, 8, 96), "zero3"),
        "llama sequence": (llama, lambda: tokens(2, 8, 96), zoo.SEQUENCE),
        "llama mixed": (
            lambda: llama(vocab_size=97, num_key_value_heads=2),
            lambda: tokens(6, 7, 97),
            {**zoo.BATCH, "*.q_proj.weight": "[tp, dp]", "*.down_proj.weight": "[dp, tp]", "*.norm.weight": "[tp]"},
        ),
        "gpt2 megatron": (gpt2, lambda: tokens(6, 8, 96), {**zoo.BATCH, **zoo.MEGATRON_GPT2}),
        "gpt2 uneven": (
            lambda: gpt2(vocab_size=50257, n_embd=20, n_layer=1),
            lambda: tokens(6, 5, 50257),
            {**zoo.BATCH, **zoo.MEGATRON_GPT2},
        ),
        "gpt2 odd": (
            lambda: gpt2(vocab_size=101, n_embd=20, n_layer=1),
            lambda: tokens(6, 5, 101),
            {**zoo.BATCH, **zoo.MEGATRON_GPT2},
        ),
        "gpt2 zero3": (gpt2, lambda: tokens(8, 8, 96), "zero3"),
        "resnet": (
            zoo.ResNet,
            lambda: {"x": torch.randn(6, 3, 12, 12), "labels": torch.randint(0, 5, (6,))},
            {"x": "[dp, _, _, _]", "labels": "[dp]", "conv2.weight": "[tp, _, _, _]"},
        ),
        "experts": (zoo.Experts, lambda: {"x": torch.randn(6, 3, 8)}, {"x": "[dp, _, _]", "up": "[tp, _, _]",
                                                                       "down": "[tp, _, _]"}),
        "cell": (zoo.Cell, lambda: {"x": torch.randn(6, 4, 6)}, {"x": "[dp, _, _]", "take.weight": "[tp, _]"}),
        "unet": (
            zoo.UNet,
            lambda: {"x": torch.randn(6, 2, 8, 8)},
            {"x": "[dp, _, _, _]", "inner.weight": "[_, tp, _, _]"},
        ),
        "recommender": (
            zoo.Recommender,
            lambda: {"items": torch.randint(0, 13, (6, 3)), "users": torch.randint(0, 7, (6,)),
                     "clicked": torch.rand(6).round()},
            {"users": "[dp]", "clicked": "[dp]", "users.weight": "[tp, _]", "items.weight": "[_, tp]"},
        ),
    }  # fmt: skip


CASES = _cases()


def sharded(case, **about):
    make, data, specs = CASES[case]
    model, batch = make(), data()
    if specs == "zero3":
        specs = {**zero3(model), **batch_of(batch, "dp+tp")}
    known = {name for name, _ in model.named_parameters()} | set(batch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-3)
    step = swt.shard_step(model, mesh=MESH, optimizer=optimizer, specs=specs, **about, **batch)
    assert known <= set(step.captured.names)
    return model, batch, step


@pytest.mark.parametrize("case", CASES)
def test_trains_as_eager_does(case):
    """Three AdamW steps.  Its eps is large: with a tiny one, gradients that are zero but for rounding take a step."""
    torch.manual_seed(1)
    eager = copy.deepcopy(sharded(case)[0])
    torch.manual_seed(1)
    model, batch, step = sharded(case)
    optimizer = torch.optim.AdamW(eager.parameters(), lr=1e-3, eps=1e-3)
    for left, right in zip(model.parameters(), eager.parameters()):
        right.data.copy_(left.data)
    for _ in range(3):
        loss = eager(**batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.testing.assert_close(step(**batch), loss.detach(), rtol=1e-10, atol=1e-10)
        assert step.executed.collectives == step.collectives
    step.sync()
    for left, right in zip((*model.parameters(), *model.buffers()), (*eager.parameters(), *eager.buffers())):
        torch.testing.assert_close(left, right, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("case", [case for case in CASES if case != "gpt2 uneven"])
def test_is_proven(case):
    """Exactly, at these small shapes; and a program without one of its collectives is not."""
    _, _, step = sharded(case)
    program = check_structure(step.program)
    check_identity(step.lowered.graph, program)
    reductions = [n for n, instr in enumerate(program.instrs) if instr.op == "all_reduce"]
    at = max(reductions, key=lambda n: program.instrs[n].bytes)  # a small one may reduce zeros
    instr = program.instrs[at]
    kept = replace(instr, op="core.constraint", axes=(), bytes=0, attrs=())
    broken = replace(program, instrs=(*program.instrs[:at], kept, *program.instrs[at + 1 :]))
    with pytest.raises(VerifyError):
        check_identity(step.lowered.graph, broken, rounds=1)


def test_no_op_of_these_models_lacks_a_rule():
    for case in CASES:
        notes = sharded(case)[2].program.notes
        assert not [note for note in notes if "no rule" in note], (case, notes)


def test_vocabulary_parallel_cross_entropy_takes_two_small_all_reduces():
    logits, labels = torch.randn(6, 40), torch.randint(0, 40, (6,))
    f = sw.shard_map(torch.nn.functional.cross_entropy, MESH, in_specs=("[_, tp]", "[_]"))
    torch.testing.assert_close(f(logits, labels), torch.nn.functional.cross_entropy(logits, labels))
    big = [c for c in f.program(logits, labels).collectives if c.bytes > 16]
    assert [(c.kind, c.axis) for c in big] == [("all_reduce", "tp")] * 2  # a maximum and a sum for each row
    assert all(c.bytes == 72 for c in big)


def test_functions_placements_and_meshes():
    """in_specs as for NumPy, a torch mesh and placements as specs."""
    from torch.distributed.tensor import Replicate, Shard

    x, w = torch.randn(6, 8), torch.randn(8, 4)
    f = sw.shard_map(lambda x, w: {"y": x @ w}, MESH, in_specs=([Shard(0), Shard(1)], [Replicate(), Shard(0)]))
    torch.testing.assert_close(f(x, w)["y"], x @ w)
    assert Counter(c.kind for c in f.program(x, w).collectives) == {"all_reduce": 1}
    g = sw.shard_map(lambda x, w: {"y": x @ w}, MESH, in_specs={"x": "[dp, _]"}, out_specs={"y": "[_, tp]"})
    torch.testing.assert_close(g(x, w)["y"], x @ w)


def test_gradients_and_constraints():
    model, x = zoo.MLP(), torch.randn(6, 6)
    plain = copy.deepcopy(model)
    plain(x).square().sum().backward()

    def loss(x):
        hidden = swt.constrain(model.up(x), "[dp, tp]")
        out = model.down(torch.nn.functional.gelu(hidden)).square().sum()
        out.backward()
        return out

    sw.shard_map(loss, MESH, in_specs=("[dp, _]",))(x)
    for left, right in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(left.grad, right.grad)


def test_errors():
    model, x = zoo.MLP(), torch.randn(6, 6)
    with pytest.raises(sw.SpecError, match=r"(?s)no input is called so.*did you mean 'up\.weight'"):
        swt.shard_step(model, x, mesh=MESH, loss=torch.sum, specs={"up.weigth": "[tp, _]"})
    with pytest.raises(sw.SpecError, match=r"up\.weight"):
        swt.shard_step(model, x, mesh=MESH, loss=torch.sum, specs={"up.weight": "[tp]"})
    with pytest.raises(sw.SpecError, match="no engine is called 'cuda'"):
        sw.shard_map(model, MESH, engine="cuda")(x)
    with pytest.raises(sw.SpecError, match="in_specs names 'z'"):
        sw.shard_map(lambda x: x, MESH, in_specs={"z": "[dp, _]"})(x)

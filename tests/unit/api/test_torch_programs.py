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
from shardwright.proof import VerifyError, check_identity, check_structure  # noqa: E402

MESH = "dp=2, tp=4"


@pytest.fixture(autouse=True)
def _double():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    yield
    torch.set_default_dtype(before)


def sharded(case, **about):
    model, batch, specs = zoo.case(case)
    known = {name for name, _ in model.named_parameters()} | set(batch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-3)
    step = swt.shard_step(model, mesh=MESH, optimizer=optimizer, specs=specs, **about, **batch)
    assert known <= set(step.source.names)
    return model, batch, step


@pytest.mark.parametrize("case", zoo.CASES)
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


SAMPLE = ("llama mixed", "gpt2 zero3", "gpt2 odd", "resnet", "experts", "cell", "unet", "recommender")
"""Of the models whose steps are proven at full size; the others are like them, and take long."""


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=[pytest.mark.long] * (c not in SAMPLE)) for c in zoo.CASES if c != "gpt2 uneven"],
)
def test_is_proven(case):
    """Exactly, at these small shapes; and a program without one of its collectives is not."""
    _, _, step = sharded(case)
    program = check_structure(step.program)
    check_identity(step.plan.graph, program)
    reductions = [n for n, instr in enumerate(program.instrs) if instr.op == "all_reduce"]
    at = max(reductions, key=lambda n: program.instrs[n].bytes)  # a small one may reduce zeros
    instr = program.instrs[at]
    kept = replace(instr, op="core.constraint", axes=(), bytes=0, attrs=())
    broken = replace(program, instrs=(*program.instrs[:at], kept, *program.instrs[at + 1 :]))
    with pytest.raises(VerifyError):
        check_identity(step.plan.graph, broken, rounds=1)


def test_no_op_of_these_models_lacks_a_rule():
    for case in zoo.CASES:
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
    with pytest.raises(sw.SpecError, match=r"(?s)nothing is called so.*did you mean 'up\.weight'"):
        swt.shard_step(model, x, mesh=MESH, loss=torch.sum, specs={"up.weigth": "[tp, _]"})
    with pytest.raises(sw.SpecError, match=r"up\.weight"):
        swt.shard_step(model, x, mesh=MESH, loss=torch.sum, specs={"up.weight": "[tp]"})
    with pytest.raises(sw.SpecError, match="no engine is called 'cuda'"):
        sw.shard_map(model, MESH, engine="cuda")(x)
    with pytest.raises(sw.SpecError, match="in_specs names 'z'"):
        sw.shard_map(lambda x: x, MESH, in_specs={"z": "[dp, _]"})(x)


def test_an_index_out_of_range_is_refused_where_the_table_is_split():
    """Each device lacks the row; without a word the result would be zero."""
    table = torch.randn(8, 4)
    f = sw.shard_map(torch.nn.functional.embedding, MESH, in_specs=("[_]", "[tp, _]"))
    torch.testing.assert_close(f(torch.tensor([0, 7]), table), table[[0, 7]])
    with pytest.raises(RuntimeError, match="out of range: the table has 8 rows"):
        f(torch.tensor([0, 8]), table)


def test_the_gradient_of_a_norm_reads_statistics_that_are_views():
    """PyTorch's kernel takes mean and deviation for contiguous; a slice of them along an inner dim is not."""

    def gradient(grad, x, mean, deviation, w):
        return torch.ops.aten.native_layer_norm_backward(grad, x, [8], mean, deviation, w, w, [True, True, True])

    args = [torch.randn(shape) for shape in ((6, 4, 8), (6, 4, 8), (6, 4, 1), (6, 4, 1), (8,))]
    inner = "[_, dp, _]"
    f = sw.shard_map(gradient, MESH, in_specs=(inner, inner, None, None, None), out_specs=(inner, None, None))
    for got, want in zip(f(*args), gradient(*args)):
        torch.testing.assert_close(got, want)

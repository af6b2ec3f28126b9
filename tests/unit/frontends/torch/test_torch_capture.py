"""A captured program is the eager one: forward, gradients, and training steps, in float64."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from shardwright.errors import TraceError  # noqa: E402
from shardwright.frontends.torch import capture, capture_step, prepare, program_hash, run_graph  # noqa: E402
from shardwright.ir.graph import Graph, TensorType  # noqa: E402
from torch_zoo import CNN, MLP, Attention, Block, Tied  # noqa: E402

TOLERANCE = 1e-10


@pytest.fixture(autouse=True)
def _double():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(before)


def assert_close(left, right):
    torch.testing.assert_close(left, right, rtol=TOLERANCE, atol=TOLERANCE)


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x


def square(out):
    return (out * out).mean() if out.dim() else out


def ops(captured):
    return [node.op for node in captured.graph.nodes]


CASES = {
    "mlp": (MLP, lambda: torch.randn(5, 6)),
    "block": (Block, lambda: torch.randn(2, 5, 8)),
    "tied": (Tied, lambda: torch.randint(0, 11, (2, 5))),
    "cnn": (CNN, lambda: torch.randn(2, 3, 6, 6)),
    "checkpointed": (Checkpointed, lambda: torch.randn(2, 3, 8)),
}
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1, amsgrad=True),
}


@pytest.mark.parametrize("case", CASES)
def test_forward(case):
    make, data = CASES[case]
    model, x = make().eval(), data()
    captured = capture(model, x)
    assert_close(captured(x), model(x).detach())
    assert Graph.parse(str(captured.graph)) == captured.graph


@pytest.mark.parametrize("case", CASES)
def test_gradients(case):
    make, data = CASES[case]
    eager, x = make(), data()
    model = copy.deepcopy(eager)
    captured = capture_step(model, x, loss=square)
    expected = square(eager(x))
    expected.backward()
    assert_close(captured(x), expected.detach())
    assert set(captured.gradients) == {name for name, _ in eager.named_parameters()}
    for left, right in zip(model.parameters(), eager.parameters()):
        assert_close(left.grad, right.grad)
    for left, right in zip(model.buffers(), eager.buffers()):
        assert_close(left, right)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_three_steps(case, optimizer):
    _steps(*CASES[case], OPTIMIZERS[optimizer])


@pytest.mark.parametrize("optimizer", ["nesterov", "amsgrad"])
def test_three_steps_of_other_optimizers(optimizer):
    _steps(*CASES["mlp"], OPTIMIZERS[optimizer])


def _steps(make, data, optimizer):
    eager = make()
    model = copy.deepcopy(eager)
    ours, theirs = optimizer(model.parameters()), optimizer(eager.parameters())
    captured = capture_step(model, data(), loss=square, optimizer=ours)
    for step in range(3):
        for group in (*ours.param_groups, *theirs.param_groups):
            group["lr"] = 0.01 / (step + 1)  # a schedule does not need a new capture
        x = data()
        expected = square(eager(x))
        expected.backward()
        theirs.step()
        theirs.zero_grad()
        assert_close(captured(x), expected.detach())
    for left, right in zip((*model.parameters(), *model.buffers()), (*eager.parameters(), *eager.buffers())):
        assert_close(left, right)
    for left, right in zip(model.parameters(), eager.parameters()):
        for key, value in theirs.state[right].items():
            assert_close(ours.state[left][key], value)


def test_training_step_of_the_user_with_accumulation():
    def train(model, optimizer, batches):
        for x in batches:
            (square(model(x)) / len(batches)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()

    eager = MLP()
    model = copy.deepcopy(eager)
    ours, theirs = (torch.optim.AdamW(m.parameters()) for m in (model, eager))
    batches = [torch.randn(4, 6), torch.randn(4, 6)]
    captured = capture(train, model, ours, batches)
    assert captured.names[:3] == ("batches.0", "batches.1", "up.weight")
    for _ in range(3):
        train(eager, theirs, batches)
        captured(model, ours, batches)
    for left, right in zip(model.parameters(), eager.parameters()):
        assert_close(left, right)


def test_gradients_that_stand_in_the_model_are_state():
    eager, x = MLP(), torch.randn(4, 6)
    square(eager(x)).backward()
    model = copy.deepcopy(eager)
    for left, right in zip(model.parameters(), eager.parameters()):
        left.grad = right.grad.clone()
    captured = capture_step(model, x, loss=square)
    assert "up.weight.grad" in captured.names
    captured(x)
    square(eager(x)).backward()
    for left, right in zip(model.parameters(), eager.parameters()):
        assert_close(left.grad, right.grad)


def test_names_updates_and_tied_weights():
    captured = capture_step(Tied(), torch.zeros(1, 4, dtype=torch.int64))
    assert captured.names.count("embed.weight") == 1
    assert "head.weight" not in captured.names
    assert next(slot for slot in captured.slots if slot.name == "embed.weight").names == ["embed.weight", "head.weight"]
    model = CNN()
    captured = capture_step(model, torch.randn(2, 3, 4, 4), loss=square)
    written = {captured.names[position] for position, _ in captured.graph.updates}
    assert written == {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}


def test_attention_is_one_op_forward_and_backward():
    x = torch.randn(2, 5, 8)
    assert ops(capture(Attention(), x)).count("aten.scaled_dot_product_attention") == 1
    step = ops(capture_step(Attention(), x, loss=square))
    assert step.count("shardwright.attention") == step.count("shardwright.attention_backward") == 1
    assert not any("softmax" in op or "flash" in op for op in step)


@pytest.mark.parametrize("kind", ["bool", "float", "learned", "nothing seen", "grouped"])
def test_attention_with_masks_and_groups(kind):
    q, k, v = (torch.randn(2, 4, 3, 6, requires_grad=True) for _ in range(3))
    if kind == "grouped":
        k, v = (torch.randn(2, 2, 3, 6, requires_grad=True) for _ in range(2))
    mask = {
        "bool": torch.rand(3, 3) > 0.3,
        "float": torch.randn(2, 1, 3, 3),
        "learned": torch.randn(4, 3, 3, requires_grad=True),
        "nothing seen": torch.tensor([[True, False, True], [False] * 3, [True] * 3]),
        "grouped": None,
    }[kind]
    wanted = [tensor for tensor in (q, k, v, mask) if tensor is not None and tensor.requires_grad]

    def loss(q, k, v, mask):
        out = F.scaled_dot_product_attention(q, k, v, mask, scale=0.3, enable_gqa=kind == "grouped")
        grads = torch.autograd.grad(square(out), [t for t in (q, k, v, mask) if t is not None and t.requires_grad])
        return out, grads

    captured = capture(loss, q, k, v, mask)
    out, grads = loss(q, k, v, mask)
    ours, our_grads = captured(q, k, v, mask)
    assert_close(ours, out.detach())
    assert len(our_grads) == len(wanted)
    for left, right in zip(our_grads, grads):
        assert_close(left, right)


def test_recomputation_stays_in_the_graph():
    x = torch.randn(2, 3, 8)
    plain = capture_step(nn.Sequential(Block(), Block()), x, loss=square)
    again = capture_step(Checkpointed(), x, loss=square)
    assert ops(plain).count("aten.gelu") == 2
    assert ops(again).count("aten.gelu") == 4
    recomputed = [node.source for node in again.graph.nodes if node.op == "aten.gelu"]
    assert [source.scope for source in recomputed] == [f"blocks.{i}.mlp.1" for i in (0, 1, 1, 0)]


def test_sources():
    captured = capture_step(Block(), torch.randn(2, 3, 8), loss=square)
    for op in ("aten.native_layer_norm", "aten.native_layer_norm_backward"):
        scopes = [node.source.scope for node in captured.graph.nodes if node.op == op]
        assert sorted(scopes) == ["norm1", "norm2"]
    attention = [node.source for node in captured.graph.nodes if node.op.startswith("shardwright.attention")]
    assert len({(source.file, source.line, source.scope) for source in attention}) == 1
    assert attention[0].file.endswith("torch_zoo.py")
    assert attention[0].scope == "attn"


def in_place(x):
    y = x * 2
    first, rest = y[0], y[1:]
    first.add_(1)
    rest.t()[1] = 5
    y.view(-1)[2:4].mul_(x[1, :2])
    z = y.unsqueeze(0)
    z.squeeze_(0)
    z[:, 0].zero_()
    for i, part in enumerate(y.split(2)):
        part.select(1, 1).fill_(i)
    y.diagonal().copy_(torch.arange(3))
    return y, first, rest.sum(), z


def write_to_argument(x, i):
    x[i] += 1
    x.clamp_(max=1.0)
    return x.sum()


def indexing(x, i):
    x = x.clone()
    x[:, i] = 0.5
    return x[:, i] + x[i].sum(), torch.where(x > 0, x, 0.0), torch.cat([x, x], 1), x.masked_fill(x > 1, -1.0)


@pytest.mark.parametrize("fn", [in_place, indexing])
def test_functionalised(fn):
    args = (torch.randn(3, 4), torch.tensor([2, 0, 1]))[: fn.__code__.co_argcount]
    captured = capture(fn, *args)
    assert not any(op.split(".")[1].endswith("_") for op in ops(captured))
    for left, right in zip(captured(*args), fn(*args)):
        assert_close(left, right)


def test_arguments_written_to_are_updates():
    x, i = torch.randn(4, 3), torch.tensor([0, 2])
    captured = capture(write_to_argument, x.clone(), i)
    assert [captured.names[position] for position, _ in captured.graph.updates] == ["x"]
    mine, theirs = x.clone(), x.clone()
    assert_close(captured(mine, i), write_to_argument(theirs, i))
    assert_close(mine, theirs)


def test_constants_and_numbers():
    table = torch.randn(3)

    def fn(x):
        return x * table + torch.tensor(2.5) + torch.tensor([1.0, 2.0, 3.0]) * table

    x = torch.randn(2, 3)
    captured = capture(fn, x)
    assert captured.names == ("x", "const0", "const1")
    assert_close(captured(x), fn(x))


def test_random_ops_are_numbered():
    def fn(x):
        return F.dropout(x, 0.5) + torch.rand_like(x) + torch.randn(3)

    captured = capture(fn, torch.randn(2, 3))
    drawn = [(node.op, node.attr("draw")) for node in captured.graph.nodes if node.attr("draw") is not None]
    assert drawn == [("random.uniform", 0), ("random.uniform", 1), ("random.normal", 2)]
    assert captured(torch.randn(2, 3)).shape == (2, 3)


def test_random_numbers_depend_on_key_and_step():
    captured = capture(lambda x: (F.dropout(x, 0.25), torch.rand(4000), torch.randn(4000)), torch.ones(4000))
    *_, state = captured.consts
    state.copy_(torch.tensor([7, 0]))
    first, second = captured(torch.ones(4000)), captured(torch.ones(4000))
    assert state.tolist() == [7, 2]
    state.copy_(torch.tensor([7, 1]))
    for again, before, other in zip(captured(torch.ones(4000)), second, first):
        torch.testing.assert_close(again, before, rtol=0, atol=0)
        assert (again != other).any()
    dropped, uniform, normal = first
    assert abs((dropped == 0).double().mean() - 0.25) < 0.03
    assert set(dropped.unique().tolist()) == {0.0, 1 / 0.75}
    assert abs(uniform.mean() - 0.5) < 0.02
    assert abs(uniform.var() - 1 / 12) < 0.01
    assert abs(normal.mean()) < 0.06
    assert abs(normal.std() - 1) < 0.04
    assert (uniform >= 0).all()
    assert (uniform < 1).all()


def draws(x):
    probabilities = torch.full((5, 6), 0.4)
    return (
        torch.empty(5, 6).uniform_(2, 3), torch.empty(5, 6).normal_(1, 2), torch.bernoulli(probabilities),
        torch.empty(5, 6).bernoulli_(0.3), torch.randint(3, 9, (40,)), torch.randperm(9),
        torch.multinomial(probabilities, 4), torch.multinomial(probabilities, 9, replacement=True),
        torch.empty(5, 6).exponential_(2.0), torch.normal(x, 0.1), torch.rand(3, dtype=torch.bfloat16),
    )  # fmt: skip


def test_every_way_to_draw():
    uniform, normal, *masks, whole, order, some, many, waits, around, narrow = capture(draws, torch.ones(2))(
        torch.ones(2)
    )
    assert (uniform >= 2).all()
    assert (uniform < 3).all()
    assert normal.std() > 1
    assert all(set(mask.unique().tolist()) <= {0.0, 1.0} for mask in masks)
    assert set(whole.tolist()) == {3, 4, 5, 6, 7, 8}
    assert sorted(order.tolist()) == list(range(9))
    assert all(len(set(row)) == 4 for row in some.tolist())
    assert many.shape == (5, 9)
    assert (waits > 0).all()
    assert around.shape == (2,)
    assert (narrow < 1).all()


def test_a_draw_that_no_mesh_could_repeat_is_refused():
    with pytest.raises(TraceError, match=r"(?s)aten.poisson draws random numbers.*help"):
        capture(torch.poisson, torch.ones(3))


def test_a_recomputed_dropout_drops_the_same():
    class Dropping(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.Dropout(), nn.Tanh()) for _ in range(2)])

        def forward(self, x):
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=False)
            return F.dropout(x)

    captured = capture_step(Dropping(), torch.randn(2, 8), loss=square)
    drawn = [(n.source.scope, n.attr("draw")) for n in captured.graph.nodes if n.op == "random.uniform"]
    assert [draw for _, draw in drawn] == [0, 1, 2, 1, 0]
    assert drawn[3:] == [("layers.1.1", 1), ("layers.0.1", 0)]


def test_mixed_precision():
    model, x = MLP().float(), torch.randn(4, 6, dtype=torch.float32)

    def step(model, x):
        with torch.autocast("cpu", torch.bfloat16):
            out = model(x)
        out.float().square().mean().backward()

    captured = capture(step, model, x)
    assert {str(captured.graph.type(value).dtype) for value in captured.graph.outputs} == {"f32"}
    assert any(captured.graph.type(node.results[0]).dtype == "bf16" for node in captured.graph.nodes)
    captured(model, x)
    eager = copy.deepcopy(model)
    eager.zero_grad()
    step(eager, x)
    for left, right in zip(model.parameters(), eager.parameters()):
        torch.testing.assert_close(left.grad, right.grad, rtol=0.02, atol=1e-4)


def test_exported_program():
    model, x = Block().eval(), torch.randn(2, 3, 8)
    program = torch.export.export(model, (x,))
    captured = capture(program, x)
    assert_close(captured(x), model(x).detach())
    assert "attn.qkv.weight" in captured.names
    attention = next(node for node in captured.graph.nodes if node.op == "aten.scaled_dot_product_attention")
    assert attention.source.file == "torch_zoo.py"
    assert attention.source.scope == "attn"


def test_meta_models_take_no_memory_and_devices_do_not_matter():
    with torch.device("meta"):
        model = Tied()
        ids = torch.zeros(2, 5, dtype=torch.int64)
    meta = capture_step(model, ids, optimizer=torch.optim.AdamW(model.parameters()))
    real = Tied()
    here = capture_step(real, torch.zeros(2, 5, dtype=torch.int64), optimizer=torch.optim.AdamW(real.parameters()))
    assert meta.hash == here.hash == program_hash(Graph.parse(str(here.graph)))


def test_the_model_is_left_as_it_was():
    model = MLP()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = {name: id(tensor) for name, tensor in model.named_parameters()}
    with pytest.raises(ZeroDivisionError):
        capture_step(model, torch.randn(2, 6), optimizer=optimizer, loss=lambda out: 1 / 0)
    assert before == {name: id(tensor) for name, tensor in model.named_parameters()}
    assert "step" not in optimizer.__dict__
    assert all(parameter.grad is None for parameter in model.parameters())


def test_local_shapes():
    captured = capture(lambda x: x.view(6, 4) + torch.zeros(6, 4), torch.randn(2, 3, 4))
    text = str(captured.graph).replace("f64[2, 3, 4]", "f64[1, 3, 4]").replace("f64[6, 4]", "f64[3, 4]")
    x = torch.randn(1, 3, 4)
    assert_close(run_graph(Graph.parse(text), [x])[0], x.view(3, 4))


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (lambda x: x * x.sum().item(), ["_local_scalar_dense", "torch.where", "test_torch_capture.py"]),
        (lambda x: x if x.sum() > 0 else -x, ["if x:", "torch.where"]),
        (lambda x: x[x > 0], ["aten.index.Tensor", "depends on the numbers"]),
        (lambda x: x.to_sparse(), ["sparse"]),
        (lambda x: object(), ["returns a object"]),
        (lambda x: torch.equal(x, x + 1), ["aten.equal"]),
    ],
)
def test_errors(fn, words):
    with pytest.raises(TraceError) as caught:
        capture(fn, torch.randn(3, 3))
    for word in words:
        assert word in str(caught.value)


def test_an_optimizer_that_runs_the_model_and_no_loss():
    model = MLP()
    with pytest.raises(TraceError, match="step of LBFGS"):
        capture_step(model, torch.randn(2, 6), loss=square, optimizer=torch.optim.LBFGS(model.parameters()))
    with pytest.raises(TraceError, match="there is no loss"):
        capture_step(model, torch.randn(2, 6))


def test_light_import():
    code = "import sys, shardwright, shardwright.frontends; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_switched_off_layer_drop_is_no_question():
    def drops(x, chance):
        return x * 2 if torch.rand([]) < chance else x

    for chance, factor in ((0.0, 1.0), (1.0, 2.0)):
        torch.testing.assert_close(capture(drops, torch.ones(2), chance)(torch.ones(2), chance), factor * torch.ones(2))
    with pytest.raises(TraceError, match="asks for the number"):
        capture(drops, torch.ones(2), 0.5)


def test_groups_of_a_convolution_on_a_part_of_the_channels():
    conv = nn.Conv1d(8, 8, 3, groups=4)
    node = next(n for n in capture(conv, torch.randn(2, 8, 9)).graph.nodes if n.op == "aten.convolution")
    x, weight, bias = torch.randn(2, 4, 9), conv.weight[4:].detach(), conv.bias[4:].detach()
    made = prepare(node.op, dict(node.attrs), [TensorType((2, 4, 7), "f64")])([x, weight, bias])[0]
    torch.testing.assert_close(made, F.conv1d(x, weight, bias, groups=2))

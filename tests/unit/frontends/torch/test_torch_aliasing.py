"""State that programs change in unusual ways, and calls that PyTorch would take apart by device."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

from shardwright.errors import TraceError  # noqa: E402
from shardwright.frontends.torch import capture, capture_step, constrain, prepare  # noqa: E402
from shardwright.ir.graph import TensorType  # noqa: E402


class Remembers(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x):
        self.seen = self.seen * 0.9 + x.mean(0)
        self.cache = x * 2
        return x - self.seen


def through_data(model, x):
    for parameter in model.parameters():
        parameter.data.mul_(0.5)
    return model(x)


def without_grad(model, x):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    return model(x)


def swap(a, b):
    before = a.clone()
    a.copy_(b)
    b.copy_(before)
    return a - b


def through_chunks(x):
    for i, chunk in enumerate(x.chunk(2, 1)):
        chunk.mul_(i + 2)
    return x.sum()


def masked(x):
    x[x > 0] = 0.5
    x[:, 0] = x[:, 1] * 2
    x[1:, None, 2].squeeze(1).neg_()


def twice(x):
    x = x.detach().requires_grad_()
    (slope,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    return torch.autograd.grad((slope**2).sum(), x)[0]


def inference(x):
    with torch.inference_mode():
        return F.linear(x, x).softmax(-1)


def into_out(x):
    return torch.add(x, 1, out=torch.empty(3, 4)), torch.matmul(x, x.t(), out=torch.empty(3, 3))


def lists(x):
    torch._foreach_add_([x, x.clone()], [x * 2, x * 3])
    return torch._foreach_norm([x, x * 2])


MODEL, X = nn.Linear(4, 4), torch.linspace(-1, 1, 12).reshape(3, 4)
CASES = {
    "data": (through_data, MODEL, X),
    "no_grad": (without_grad, MODEL, X),
    "swap": (swap, X, X * 3),
    "buffer assigned": (Remembers(), X),
    "chunks": (through_chunks, X),
    "masked": (masked, X),
    "second derivative": (twice, X),
    "inference mode": (inference, X),
    "out": (into_out, X),
    "foreach": (lists, X),
    "vmap": (lambda x: torch.vmap(lambda row: row.sum() + row.max())(x), X),
    "func.grad": (lambda x: torch.func.grad(lambda y: (y**3).sum())(x), X),
    "lstm": (nn.LSTM(4, 5, batch_first=True), X.reshape(1, 3, 4)),
    "attention module": (nn.MultiheadAttention(4, 2, batch_first=True).eval(), *[X.reshape(1, 3, 4)] * 3),
    "as_strided": (lambda x: x.as_strided((2, 3), (1, 2), 1).mul_(2), X),
    "sort": (lambda x: (torch.sort(x, -1), x.topk(2), x.cumsum(0)), X),
    "fft": (lambda x: torch.fft.rfft(x).abs(), X),
}


@pytest.mark.parametrize("case", CASES)
def test_same_as_eager(case):
    fn, *args = CASES[case]
    fn, args = copy.deepcopy((fn, args))
    eager, eager_args = copy.deepcopy((fn, args))
    captured = capture(fn, *args)
    results = tree_leaves(captured(*args)), tree_leaves(eager(*eager_args))
    state = [
        [leaf for item in items for leaf in (item.state_dict().values() if isinstance(item, nn.Module) else [item])]
        for items in ([*args, fn], [*eager_args, eager])
    ]
    for left, right in (*zip(*results), *zip(*state)):
        if isinstance(left, torch.Tensor):
            torch.testing.assert_close(left, right.detach())


def test_nothing_fake_is_left_in_a_module():
    model = Remembers()
    capture(model, X)
    assert "cache" not in model.__dict__
    assert type(model.seen) is torch.Tensor


def test_another_module_is_refused():
    captured = capture(without_grad, copy.deepcopy(MODEL), X)
    with pytest.raises(TraceError, match="an argument was another Linear when"):
        captured(MODEL, X)


def test_a_closed_over_module_is_state_and_a_lone_parameter_refused():
    model = nn.Linear(4, 2)
    assert capture(lambda x: model(x).relu(), X).names == ("x", "weight", "bias")
    weight = nn.Parameter(torch.randn(4))
    with pytest.raises(TraceError, match="is no argument") as caught:
        capture(lambda x: x * weight, X)
    assert "test_torch_aliasing.py" in str(caught.value)


def test_autocast_of_another_device_counts():
    def step(model, x):
        with torch.autocast("cuda", torch.bfloat16):
            return model(x)

    captured = capture(step, nn.Linear(4, 2), X)
    assert [captured.graph.type(value).dtype for value in captured.graph.outputs] == ["bf16"]


def test_constraints_are_recorded_and_let_gradients_through():
    model = nn.Linear(4, 4)
    step = capture_step(lambda x: constrain(model(x), "[dp, _]").square().sum(), X)
    assert [node.attr("spec") for node in step.graph.nodes if node.op == "core.constraint"] == ["[dp, _]"]
    step(X)
    grads = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    model(X).square().sum().backward()
    for left, right in zip(grads, model.parameters()):
        torch.testing.assert_close(left, right.grad)


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (lambda x: x * 1j, ["aten.mul.Tensor", "complex"]),
        (lambda x: torch.from_numpy(x.numpy()), ["NumPy"]),
        (lambda x: x.expand(2, 3, 4)[0].add_(1), ["writing through aten.expand", ".clone()"]),
        (lambda x: x.t().as_strided((2, 2), (1, 2)), ["as_strided", ".contiguous()"]),
        (lambda x: x + torch.randn(5), []),
    ],
)
def test_refused(fn, words):
    with pytest.raises((TraceError, RuntimeError)) as caught:
        capture(fn, X)
    text = str(caught.value) + "".join(getattr(caught.value, "__notes__", []))
    for word in [*words, "test_torch_aliasing.py"] if "NumPy" not in words else words:
        assert word in text


@pytest.mark.parametrize(
    ("op", "attrs", "operands", "result"),
    [
        ("aten.view", {"size": (8, 3)}, [torch.randn(3, 4).t()], (12,)),
        ("aten.expand", {"size": (8, 3), "implicit": False}, [torch.randn(1, 3)], (2, 3)),
        ("aten.full", {"size": (8,), "fill_value": 2, "dtype": "f32"}, [], (3,)),
        ("aten.arange", {"end": 8, "dtype": "f32"}, [], (3,)),
        ("aten.new_zeros", {"size": (8,), "dtype": None}, [torch.ones(2)], (3,)),
        (
            "aten.slice_backward",
            {"input_sizes": (8, 4), "dim": 1, "start": 1, "end": 3, "step": 1},
            [torch.randn(2, 2)],
            (2, 4),
        ),
    ],
)
def test_sizes_come_from_the_result(op, attrs, operands, result):
    (made,) = prepare(op, attrs, [TensorType(result, "f32")])(operands)
    assert tuple(made.shape) == result


def test_group_norm_on_a_part_of_the_channels():
    x = torch.randn(4, 6, 2, 2)
    attrs = {"N": 4, "C": 6, "HxW": 4, "group": 3, "eps": 1e-5}
    part = x[:2, 2:4]
    types = [TensorType((2, 2, 2, 2)), TensorType((2, 1)), TensorType((2, 1))]
    made = prepare("aten.native_group_norm", attrs, types)([part, None, None])
    torch.testing.assert_close(made[0], F.group_norm(x, 3)[:2, 2:4])


def powers(x):
    return (
        x.clone().pow_(2),
        x.clone().pow_(x),
        x.clone().float_power_(2),
        x.clone().floor_divide_(x),
        x.clone().ldexp_(x),
    )


def transposed(x):
    return x.clone().transpose_(0, 1), x.clone().t_(), torch.nn.functional.normalize(x, p=3.0, dim=1)


@pytest.mark.parametrize("fn", [powers, transposed])
def test_in_place_forms_whose_overloads_are_named_otherwise(fn):
    x = torch.rand(3, 4, dtype=torch.float64) + 0.5
    for made, expected in zip(capture(fn, x)(x), fn(x)):
        torch.testing.assert_close(made, expected)

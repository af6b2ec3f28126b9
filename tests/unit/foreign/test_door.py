"""The doors: the command, the assertion for test suites, and what is said of programs that cannot be followed."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from click.testing import CliRunner
from torch import nn
from torch.distributed.tensor import Shard

import shardwright.torch as swt
from shardwright.cli.group import main
from shardwright.errors import NotationError, SpecError
from shardwright.frontends.torch.foreign.collectives import CALLS
from shardwright.frontends.torch.foreign.private import flags_of_modes

CASES = """
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 12), nn.Linear(12, 8)
    def forward(self, x):
        return self.b(torch.relu(self.a(x)))

def tp(mesh):
    return parallelize_module(Mlp(), mesh, {"a": ColwiseParallel(), "b": RowwiseParallel()})

def right():
    return dict(parallel=tp, like=Mlp(), mesh="tp=2", inputs=(torch.randn(4, 8),))

def wrong():
    torch.manual_seed(0)
    model = Mlp()
    def parallel(mesh):
        torch.manual_seed(0)
        mine = Mlp()
        def step(x):
            loss = mine(x.chunk(2)[dist.get_rank()]).square().mean()
            loss.backward()
            return loss
        return step
    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        return loss
    return dict(parallel=parallel, like=step, mesh="dp=2", inputs=(torch.randn(4, 8),))

def lacking():
    return dict(parallel=tp, like=Mlp(), inputs=(torch.randn(4, 8),))

def broken():
    raise ValueError("no")
"""


@pytest.mark.parametrize(
    ("target", "code", "said"),
    [
        ("right", 0, "proven equal to the single program on tp=2"),
        ("wrong", 1, "not proven: 4 of 5 tensors differ"),
        ("lacking", 2, "lacks 'mesh'"),
        ("broken", 2, "ValueError: no"),
        ("absent", 2, "has no function 'absent'"),
    ],
)
def test_exit_codes(tmp_path: Path, target: str, code: int, said: str) -> None:
    (tmp_path / "cases.py").write_text(CASES)
    made = CliRunner().invoke(main, ["prove", f"{tmp_path / 'cases.py'}:{target}"])
    assert (made.exit_code, said in made.output) == (code, True), made.output


def test_the_answer_as_json(tmp_path: Path) -> None:
    (tmp_path / "cases.py").write_text(CASES)
    out = tmp_path / "answer.json"
    CliRunner().invoke(main, ["prove", f"{tmp_path / 'cases.py'}:wrong", "--json", "-o", str(out)])
    answer = json.loads(out.read_text())
    assert answer["proven"] is False
    assert answer["differences"][0] == {
        "name": "gradient of a.weight",
        "fact": "is not what the single program says",
        "ranks": [0, 1],
        "looks_like": "P(avg) over dp",
    }


def square(x: Any) -> Any:
    return x * x


def test_the_assertion() -> None:
    x = torch.randn(4, 3)
    certificate = swt.testing.assert_parallel_equal(lambda: square, like=square, mesh="d=2", inputs=(x,))
    assert certificate.shown == ("output",)
    with pytest.raises(AssertionError, match="not proven"):
        swt.testing.assert_parallel_equal(lambda: lambda x: x * 2, like=square, mesh="d=2", inputs=(x,))


def refused(parallel: Any, like: Any = square, ranks: int = 2, **more: Any) -> str:
    proof = swt.prove(lambda: parallel, like=like, mesh={"d": ranks}, inputs=(torch.randn(4, 3),), **more)
    assert not proof
    return str(proof)


def test_a_rank_that_makes_no_call_hangs_the_others() -> None:
    def parallel(x: Any) -> Any:
        if dist.get_rank() == 0:
            dist.all_reduce(x)
        return x

    said = refused(parallel)
    assert "this program hangs" in said
    assert "test_door.py" in said


@pytest.mark.parametrize(
    ("first", "second", "what"),
    [
        (lambda x: dist.all_reduce(x), lambda x: dist.broadcast(x, 0), "kind"),
        (lambda x: dist.all_reduce(x), lambda x: dist.all_reduce(x, dist.ReduceOp.MAX), "reduction"),
        (lambda x: dist.all_reduce(x), lambda x: dist.all_reduce(x.double()), "element type"),
        (lambda x: dist.all_reduce(x), lambda x: dist.all_reduce(x[:2].clone()), "size"),
        (lambda x: dist.broadcast(x, 0), lambda x: dist.broadcast(x, 1), "root"),
    ],
)
def test_calls_of_a_group_are_compared(first: Any, second: Any, what: str) -> None:
    def parallel(x: Any) -> Any:
        (first if dist.get_rank() == 0 else second)(x)
        return x

    assert f"differs between ranks in its {what}" in refused(parallel)


def test_a_number_that_depends_on_the_input_is_named_with_its_line() -> None:
    def parallel(x: Any) -> Any:
        return x * 2 if x.sum().item() > 0 else x

    said = refused(parallel)
    assert "asks for the number in a tensor" in said
    assert "test_door.py" in said


def test_random_numbers_are_refused() -> None:
    assert "draws random numbers" in refused(lambda x: x * torch.rand_like(x))


def test_an_error_of_the_program_is_told_with_its_rank() -> None:
    def parallel(x: Any) -> Any:
        if dist.get_rank() == 1:
            raise KeyError("weight")
        return x * x

    assert "the parallel program, on rank 1, fails: KeyError: 'weight'" in refused(parallel)


def test_memory_that_nobody_has_written_is_never_right() -> None:
    def parallel(x: Any) -> Any:
        return x * x + 0 * torch.empty(4, 3).nan_to_num() + torch.empty(4, 3)

    assert "1 of 1 tensors differ" in refused(parallel)


def test_wrong_arguments() -> None:
    x = torch.randn(4, 3)
    with pytest.raises(NotationError):
        swt.prove(lambda: square, like=square, mesh="tp:2", inputs=(x,))
    with pytest.raises(SpecError, match="names 'y'"):
        swt.prove(lambda: square, like=square, mesh="d=2", inputs=(x,), placements={"y": Shard(0)})


def test_plain_parameters_are_found_by_their_numbers() -> None:
    class Linear(nn.Module):
        def __init__(self, weight: Any) -> None:
            super().__init__()
            self.weight = nn.Parameter(weight.clone())

        def forward(self, x: Any) -> Any:
            return x @ self.weight

    whole = torch.randn(3, 4)
    order = [0, 1, 2, 3]

    class Columns(Linear):
        def forward(self, x: Any) -> Any:
            parts = [torch.empty(4, 2) for _ in range(2)]
            dist.all_gather(parts, (x @ self.weight).contiguous())
            return torch.cat(parts, 1)[:, order]

    def parallel() -> Any:
        return Columns(whole[:, dist.get_rank() :: 2]).requires_grad_(False)

    single = Linear(whole).requires_grad_(False)
    for right in (False, True):
        order[:] = [0, 2, 1, 3] if right else [0, 1, 2, 3]
        proof = swt.prove(parallel, like=single, mesh="d=2", inputs=(torch.randn(4, 3),))
        assert bool(proof) is right
        if proof.certificate is not None:
            assert ("weight", "element by element") in proof.certificate.placed


def test_blocks_of_any_size_are_found_by_their_numbers() -> None:
    """Seven rows for three ranks, as `torch.tensor_split` cuts them, with numbers that stand there twice."""

    class Rows(nn.Module):
        def __init__(self, weight: Any) -> None:
            super().__init__()
            self.weight = nn.Parameter(weight.clone())

        def forward(self, x: Any) -> Any:
            return x @ self.weight

    whole = torch.arange(14.0).reshape(7, 2) % 9

    class Part(Rows):
        def forward(self, x: Any) -> Any:
            made = x.tensor_split(3, 1)[dist.get_rank()] @ self.weight
            dist.all_reduce(made)
            return made

    def parallel() -> Any:
        return Part(whole.tensor_split(3)[dist.get_rank()]).requires_grad_(False)

    single = Rows(whole).requires_grad_(False)
    assert swt.prove(parallel, like=single, mesh="d=3", inputs=(torch.randn(4, 7),))


def test_what_cannot_be_followed_is_told_with_its_line_and_what_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    def uneven(x: Any) -> Any:
        group: Any = dist.group.WORLD
        return torch.ops._c10d_functional.reduce_scatter_tensor(x[:3], "sum", 2, group.group_name)

    text = refused(uneven)
    assert "a collective cuts a tensor of 3 rows for 2 ranks, which cannot get equal parts" in text
    assert "pad it to 4 rows, or say how many every rank gets" in text
    assert "test_door.py" in text

    def branching(x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda x: x * x, lambda x: x * x, (x,))

    text = refused(branching)
    assert "cond cannot be followed: it is no plain operator" in text
    assert "an if or a loop of Python instead of torch.cond" in text
    assert "test_door.py" in text

    def reducing(x: Any) -> Any:
        dist.all_reduce(x)
        return x

    monkeypatch.delitem(CALLS, "c10d.allreduce_")
    text = refused(reducing)
    assert "c10d.allreduce_ is a collective that is not known" in text
    assert "call all_reduce, all_gather" in text
    assert "test_door.py" in text


def test_the_single_program_is_left_as_it_was() -> None:
    """So that it can be proven twice: else the second proof begins with the gradients and the step of the first."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.randn(4, 4)).sum().backward()
    optimizer.step()
    numbers = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.param_groups[0]["lr"] *= 0.5
        return loss

    def parallel() -> Any:
        mine = copy.deepcopy(model)
        own = torch.optim.AdamW(mine.parameters(), lr=0.1)
        own.load_state_dict(copy.deepcopy(numbers[1]))

        def step(x: Any) -> Any:
            own.zero_grad()
            loss = mine(x).square().mean()
            loss.backward()
            own.step()
            return loss

        return step

    before = [parameter.grad for parameter in model.parameters()]
    grads = [None if grad is None else grad.clone() for grad in before]
    for _ in range(2):
        assert swt.prove(parallel, like=step, mesh="d=2", inputs=(torch.randn(4, 4),))
        assert all(parameter.grad is grad for parameter, grad in zip(model.parameters(), before, strict=True))
        torch.testing.assert_close([parameter.grad for parameter in model.parameters()], grads, rtol=0, atol=0)
        torch.testing.assert_close(dict(model.state_dict()), dict(numbers[0]), rtol=0, atol=0)
        state = optimizer.state_dict()
        assert state["param_groups"] == numbers[1]["param_groups"]
        torch.testing.assert_close(state["state"], numbers[1]["state"], rtol=0, atol=0)


def test_two_programs_are_proven_like_one_module() -> None:
    module = nn.Linear(4, 2)

    def parallel(scale: float) -> Any:
        return lambda: Scaled(copy.deepcopy(module), scale)

    class Scaled(nn.Module):
        def __init__(self, inner: Any, scale: float) -> None:
            super().__init__()
            self.module, self.scale = inner, scale

        def forward(self, x: Any) -> Any:
            return self.module(x) * self.scale

    inputs = (torch.randn(3, 4),)
    for scale in (2.0, 1.0, 1.0):
        assert bool(swt.prove(parallel(scale), like=module, mesh="d=2", inputs=inputs)) is (scale == 1)
    assert module.weight.grad is None


def test_no_dispatch_mode_is_left_active() -> None:
    """PyTorch keeps that for the process: ranks that end in another order than they began would leave it set."""

    def parallel(x: Any) -> Any:
        dist.all_reduce(x)
        if dist.get_rank() == 1:
            raise KeyError("weight")
        return x

    before = flags_of_modes()
    assert not any(before.values())
    refused(parallel, ranks=3)
    assert flags_of_modes() == before

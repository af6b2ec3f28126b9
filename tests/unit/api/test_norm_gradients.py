"""The small reductions of a deep model share their starts, as the engine counts them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import shardwright as sw  # noqa: E402
from shardwright.ir.order import START  # noqa: E402

LAYERS = 3


@pytest.mark.parametrize(("recipe", "mesh"), [("dp", "dp=3"), ("megatron", "dp=2, tp=2")])
def test_gradients_of_norms_leave_in_three_starts(recipe: str, mesh: str) -> None:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=24, hidden_size=24, intermediate_size=48, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=4, use_cache=False,
    )  # fmt: skip
    model, ids = transformers.LlamaForCausalLM(config), torch.randint(0, 24, (6, 4))
    plan = sw.plan(
        model, mesh=mesh, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3), loss=lambda out: out.loss,
        kwargs={"input_ids": ids, "labels": ids}, recipe=recipe, hardware="h100", verify="off",
    )  # fmt: skip
    program = plan.program
    maker = {value: n for n, instr in enumerate(program.instrs) for value in instr.results}
    place = {n: at for at, event in enumerate(program.order) if event.kind == START for n in event.members}
    reduced, starts = 0, set()
    for instr in program.instrs:
        if instr.op != "shardwright.adam":
            continue
        parameter, gradient, *_ = instr.inputs
        if "norm" in program.values[parameter].name:
            while not program.instrs[maker[gradient]].is_collective:
                (gradient,) = program.instrs[maker[gradient]].inputs
            reduced += 1
            starts.add(place[maker[gradient]])
    assert reduced == 2 * LAYERS + 1
    assert len(starts) <= 3
    step = plan.step()
    step(input_ids=ids, labels=ids)
    assert step.executed.starts == sum(event.kind == START for event in program.order)
    assert step.executed.starts < len(plan.collectives) // 2


def test_the_two_sums_of_a_mean_loss_share_a_start() -> None:
    """One is of an op that is carried out in parts: the number of targets beside the sum of their losses."""

    class Judged(torch.nn.Linear):
        def forward(self, x, targets):
            return torch.nn.functional.cross_entropy(super().forward(x), targets)

    model, x, targets = Judged(4, 5), torch.randn(6, 4), torch.tensor([0, 1, 2, 3, 4, -100])
    expected = model(x, targets)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = sw.plan(model, x, targets, mesh="dp=3", optimizer=optimizer, recipe="dp", hardware="h100")
    program = plan.program
    sums = [
        n for n, i in enumerate(program.instrs) if i.op == "all_reduce" and not program.values[i.results[0]].type.shape
    ]
    assert len(sums) == 2
    assert tuple(sums) in {event.members for event in program.order if event.kind == START}
    assert torch.allclose(torch.as_tensor(plan.step()(x, targets)), expected)

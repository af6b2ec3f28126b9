"""Every rank: plans of the solver train on four processes as eager PyTorch does on one; rank 0 plans for all."""

from __future__ import annotations

import copy
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent.parent))

import shardwright as sw
import torch_zoo as zoo
from shardwright.api import proven
from shardwright.errors import PlanInfeasible, RankError, ShardwrightError, VerifyError
from shardwright.run.torch import emit
from shardwright.run.torch.held import Held
from shardwright.run.torch.ranks.safety import program_digest
from shardwright.solve.planner import Planner

MESH = "dp=2, tp=2"
CASES = (
    ("llama megatron", None), ("llama zero3", None), ("llama sequence", None), ("llama mixed", None),
    ("gpt2 megatron", None), ("gpt2 zero3", None), ("gpt2 odd", None), ("resnet", None), ("experts", None),
    ("unet", 0.6), ("recommender", 0.6), ("gpt2 megatron", 0.6), ("experts", 0.6),
)  # fmt: skip
"""Models, each for links that cost next to nothing, or within a part of the memory of the free plan on an H100."""

planned_here: list[str] = []
_best = Planner.best


def _noted(self: Planner, *args: Any, **kwargs: Any) -> Any:
    planned_here.append(self.source.name)
    return _best(self, *args, **kwargs)


def train(case: str, part: float | None) -> tuple[bool, set[str]]:
    torch.manual_seed(0)
    model, batch, _ = zoo.case(case)
    eager = copy.deepcopy(model)
    ours, theirs = (torch.optim.AdamW(m.parameters(), lr=1e-3, eps=1e-3) for m in (model, eager))
    about: dict[str, Any] = {"mesh": MESH, "optimizer": ours, **batch}
    if part is None:
        plan = sw.plan(model, hardware="virtual", **about)
    else:
        plan = sw.plan(model, memory=int(sw.plan(model, **about).memory * part), **about)
    digests = [""] * 4
    dist.all_gather_object(digests, program_digest(plan.program))
    assert len(set(digests)) == 1
    step = plan.step()
    assert step.engine.name == "torch"
    for _ in range(3):
        loss = eager(**batch)
        loss.backward()
        theirs.step()
        theirs.zero_grad()
        torch.testing.assert_close(step(**batch), loss.detach(), rtol=1e-10, atol=1e-10)
        assert step.executed.collectives == plan.collectives
    step.sync()
    for left, right in zip((*model.parameters(), *model.buffers()), (*eager.parameters(), *eager.buffers())):
        torch.testing.assert_close(left, right, rtol=1e-10, atol=1e-10)
    assert step.engine.counts == {"compile": 1, "load": 1}
    held = torch.tensor([peak(step, batch)])
    dist.all_reduce(held, dist.ReduceOp.MAX)
    assert int(held) <= plan.memory, (case, int(held), plan.memory)
    kinds = {collective.kind for collective in plan.collectives}
    return cut(plan) >= 0.5 or len(plan.collectives) >= 5, kinds


def peak(step: Any, batch: dict[str, Any]) -> int:
    """The bytes that this rank's tensors hold at most in one more step.

    Collectives have local stand-ins: gloo's threads let go of what was sent when they come to it.
    """
    specs = [step.program.values[value].spec for value in step.program.inputs]
    given = [step.engine.scatter(x, spec).clone() for x, spec in zip(step.source.bind((), batch), specs)]
    handed = [*given, *(tensor.clone() for tensor in step.state)]
    del given
    run = emit(step.program, step.engine.position, stand_ins=True, taking=True)
    with Held(handed) as held, torch.no_grad():
        run(handed)
    return held.peak


def cut(plan: Any) -> float:
    roles = {about.name: about.role for about in plan.source.inputs_are}
    parameters = [plan.program.values[v] for v in plan.program.inputs]
    parameters = [local for local in parameters if roles[local.name] == "parameter"]
    return sum(p.type.bytes for p in parameters if p.spec.sharded_axes) / sum(p.type.bytes for p in parameters)


def rank_0_plans() -> None:
    """Others bind what rank 0 decided, also where they would have taken another time; its failure is everybody's."""
    model, x = zoo.MLP(), torch.randn(8, 6)
    planned_here.clear()
    if dist.get_rank() == 2:
        time.sleep(0.5)
    plan = sw.plan(model, x, mesh=MESH, loss=torch.sum, hardware="virtual")
    assert bool(planned_here) == (dist.get_rank() == 0), planned_here
    torch.testing.assert_close(plan(x), model(x).sum().detach())
    expected = PlanInfeasible if dist.get_rank() == 0 else RankError
    try:
        sw.plan(model, x, mesh=MESH, loss=torch.sum, memory=1)
    except ShardwrightError as error:
        assert isinstance(error, expected), error
        assert "memory=1" in str(error)
    else:
        raise AssertionError("planned within one byte")
    asked = {"up.weight": "[dp, _]" if dist.get_rank() == 0 else "[_, dp]"}
    try:
        sw.plan(model, x, mesh=MESH, loss=torch.sum, constraints=asked)
    except RankError as error:
        assert "asks for another plan than rank 0" in str(error)
        assert dist.get_rank() != 0
    else:
        assert dist.get_rank() == 0
    other = zoo.MLP() if dist.get_rank() else zoo.Cell()  # not what rank 0 captured
    inputs = torch.randn(8, 6) if dist.get_rank() else torch.randn(8, 4, 6)
    try:
        sw.plan(other, inputs, mesh=MESH, loss=torch.sum)
    except ShardwrightError as error:
        assert "rank 0 planned for another program" in str(error)
        assert dist.get_rank() != 0
    else:
        assert dist.get_rank() == 0


def rank_0_proves() -> None:
    """Others hear its verdict, good or bad."""
    proven_here: list[str] = []
    prove = proven.prove

    def noted(*args: Any) -> Any:
        proven_here.append(args[1].name)
        return prove(*args)

    proven.prove = noted
    torch.manual_seed(1)
    x, w = torch.randn(8, 6), torch.randn(6, 4)
    split = sw.P("dp", "tp"), sw.P("tp", None)

    def mapped() -> Any:
        return sw.shard_map(lambda x, w: torch.tanh(x @ w), MESH, in_specs=split).plan(x, w)

    plan = mapped()
    torch.testing.assert_close(plan(x, w), torch.tanh(x @ w))
    assert bool(proven_here) == (dist.get_rank() == 0), proven_here
    assert plan.certificate is not None
    assert plan.certificate.program == program_digest(plan.program)
    broken = mapped()
    program = broken.program
    n = next(n for n, instr in enumerate(program.instrs) if instr.op == "all_reduce")
    late = replace(program.instrs[n], attrs=(("reduction", "max"),))
    broken.program = replace(program, instrs=(*program.instrs[:n], late, *program.instrs[n + 1 :]))
    expected = VerifyError if dist.get_rank() == 0 else RankError
    try:
        broken(x, w)
    except ShardwrightError as error:
        assert isinstance(error, expected), error
        assert "combines by max what is pending by sum" in str(error)
    else:
        raise AssertionError("a wrong program ran")
    proven.prove = prove


def main() -> None:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    dist.init_process_group("gloo")
    Planner.best = _noted
    split, kinds = 0, set[str]()
    for case, part in CASES:
        counts, seen = train(case, part)
        split, kinds = split + counts, kinds | (seen if counts else set())
        print(f"passed {case} {part}", flush=True)
    assert split >= 10, split
    assert len(kinds) >= 3, kinds
    rank_0_plans()
    print("passed rank 0 plans", flush=True)
    rank_0_proves()
    print("passed rank 0 proves", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

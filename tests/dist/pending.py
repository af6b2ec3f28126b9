"""Every rank: tensors under pending shardings go onto processes as parts, and come back combined."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

import shardwright as sw
import shardwright.torch as swt
from shardwright import P
from shardwright.errors import SpecError
from shardwright.run.torch import TorchEngine
from shardwright.spec.collective import REDUCTIONS

MESH = "dp=2, tp=2"
SPECS = (
    "[_, _] // {0}(dp)", "[_, _] // {0}(dp), {0}(tp)", "[dp, _] // {0}(tp)", "[_, tp] // {0}(dp)",
    "[_, _] // {0}(dp), max(tp)", "[dp+tp, _]", "[_, _]",
)  # fmt: skip
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int8, torch.bool)


def round_trips() -> None:
    """Uneven and empty shards among them."""
    engine = TorchEngine(MESH, timeout=60)
    for kind in REDUCTIONS:
        for text in SPECS:
            for dtype in DTYPES:
                for shape in ((3, 5), (1, 1), (0, 2)):
                    whole = torch.arange(shape[0] * shape[1]).reshape(shape).to(dtype)
                    try:
                        back = engine.assemble(engine.scatter(whole, text.format(kind)), text.format(kind), shape)
                    except SpecError as error:
                        assert "cannot be pending" in str(error), error
                        assert kind == "avg" or dtype == torch.bool
                        continue
                    assert back.dtype == dtype and torch.equal(back, whole), (kind, text, dtype, back)


def parts_that_differ() -> None:
    engine = TorchEngine(MESH, timeout=60)
    mine = torch.full((3,), float(engine.rank + 1), dtype=torch.float64)
    expected = {"sum": 10.0, "max": 4.0, "min": 1.0, "prod": 24.0, "avg": 2.5}
    for kind in REDUCTIONS:
        found = engine.assemble(mine, f"[_] // {kind}(dp), {kind}(tp)", (3,))
        assert torch.equal(found, torch.full((3,), expected[kind], dtype=torch.float64)), (kind, found)


def doors() -> None:
    x = torch.arange(12, dtype=torch.float64).reshape(3, 4) - 5
    for kind in REDUCTIONS:
        pending = P("dp", None, partial=f"{kind}(tp)")
        doubled = sw.shard_map(lambda x: x * 2.0, MESH, in_specs=(pending,), out_specs=pending, engine="torch")(x)
        torch.testing.assert_close(doubled, x * 2)
        placed = sw.asarray(x, mesh=MESH, spec=pending, engine="torch")
        torch.testing.assert_close(placed.full_tensor(), x)
        torch.testing.assert_close((placed + 1).full_tensor(), x + 1)
        turned = sw.asarray(x, mesh=MESH, spec=P("tp"), engine="torch").redistribute(pending)
        assert str(turned.spec) == str(pending.bind(placed.mesh, 2)), turned.spec
        torch.testing.assert_close(turned.full_tensor(), x)
        made = sw.ones((3, 4), mesh=MESH, spec=pending, engine="torch")
        torch.testing.assert_close(made.full_tensor(), torch.ones_like(x))


def trained(kind: str) -> Any:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.arange(12, dtype=torch.float64).reshape(3, 4) / 7
    spec = P(None, None, partial=f"{kind}(dp)") if kind else P("dp")
    step = swt.shard_step(
        model, x, mesh=MESH, optimizer=optimizer, loss=lambda out: out.square().mean(), specs={"weight": spec}
    )
    losses = [float(step(x)) for _ in range(2)]
    step.sync()
    return losses, model.weight.detach().clone()


def steps() -> None:
    expected = trained("")
    for kind in REDUCTIONS:
        torch.testing.assert_close(trained(kind), expected)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for name, work in {"trips": round_trips, "parts": parts_that_differ, "doors": doors, "steps": steps}.items():
        work()
        print(f"passed {name}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

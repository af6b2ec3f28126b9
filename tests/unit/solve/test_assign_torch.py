"""The planner's core on training steps of small models: exact prices, honest bounds, programs that are equal."""

from __future__ import annotations

import random
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import shardwright.torch as swt  # noqa: E402
import torch_zoo as zoo  # noqa: E402
from shardwright import DeviceMesh, Graph  # noqa: E402
from shardwright.cost import hardware_of, program_cost  # noqa: E402
from shardwright.lower import lower  # noqa: E402
from shardwright.plans import Asked, Request  # noqa: E402
from shardwright.proof import check_structure  # noqa: E402
from shardwright.solve.model import Assigner  # noqa: E402
from shardwright.solve.price import price  # noqa: E402

H100 = hardware_of("h100")


class Loss(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Some number to go down."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Any) -> Any:
        made = self.model(*inputs)
        return made.square().mean() if made.dim() else made


def graph_of(name: str) -> Graph:
    torch.manual_seed(0)
    inputs: tuple[Any, ...] = ()
    batch: dict[str, Any] = {}
    if name in ("llama", "gpt2"):
        model = zoo.llama(num_hidden_layers=1) if name == "llama" else zoo.gpt2(n_layer=1)
        batch = zoo.tokens(4, 8, 96)
    else:
        kind, inputs = {
            "mlp": (zoo.MLP, (torch.randn(8, 6),)),
            "block": (zoo.Block, (torch.randn(4, 6, 8),)),
            "tied": (zoo.Tied, (torch.randint(0, 11, (4, 6)),)),
            "cnn": (zoo.CNN, (torch.randn(4, 3, 8, 8),)),
            "experts": (zoo.Experts, (torch.randn(4, 6, 8),)),
            "cell": (zoo.Cell, (torch.randn(4, 3, 6),)),
        }[name]
        model = Loss(kind())
    optimizer = torch.optim.AdamW(model.parameters())
    found: Graph = swt.capture_step(model, *inputs, optimizer=optimizer, **batch).graph
    return found


@pytest.mark.parametrize("name", ["mlp", "block", "tied", "cnn", "experts", "cell", "llama", "gpt2"])
def test_prices_are_exact(name: str) -> None:
    """For the plan found and for any other, uneven shards and exchanges inside of ops included."""
    graph = graph_of(name)
    rng = random.Random(name)
    for mesh in {"llama": ("d=4",), "experts": ("x=3",)}.get(name, ("d=4", "x=2, y=2")):
        assigner = Assigner(graph, DeviceMesh(mesh), H100, Asked(graph, (Request("uneven", "yes"),)))
        sizes = [len(ways) for ways in assigner.ways] + [len(assigner.inputs[value]) for value in graph.inputs]
        completes = [assigner.decode([rng.randrange(size) for size in sizes]) for _ in range(3)]
        if mesh == "d=4":
            found = assigner.solve()
            assert found.lower_bound <= found.cost.objective
            assert found.gap < 0.05
            completes.append(found.complete)
        for complete in completes:
            cost = price(complete, assigner.hardware, assigner.roles)
            program = lower(complete)
            exact = program_cost(program, H100, graph)
            assert (cost.compute, cost.communication, cost.hidden) == (
                exact.compute, exact.communication, exact.hidden
            )  # fmt: skip
            check_structure(program)


@pytest.mark.parametrize("name", ["mlp", "block", "tied", "cnn"])
def test_solvers_agree_on_larger_graphs(name: str) -> None:
    assigner = Assigner(graph_of(name), DeviceMesh("d=4"), H100)
    found = [assigner.solve(solver) for solver in ("elimination", "ilp", "messages")]
    assert len({one.objective for one in found}) == 1
    assert max(one.gap for one in found) < 1e-9

"""What exists today, in one run: NumPy and PyTorch programs split over 8 virtual devices.  ``make demo``."""

from __future__ import annotations

from typing import Any

import numpy as np

import shardwright as sw
from shardwright import DeviceMesh, P, ShardingSpec
from shardwright.propagation import Projection, rule_of

MESH = DeviceMesh("dp=2, tp=4")


def megatron_mlp(x: Any, w1: Any, w2: Any) -> Any:
    return np.tanh(x @ w1) @ w2


def transformer_block(x: Any, w_q: Any, w_k: Any, w_v: Any, w_o: Any, w_ff1: Any, w_ff2: Any) -> Any:
    q = x @ w_q
    k = x @ w_k
    v = x @ w_v
    attn = q @ k.T @ v
    attn_out = attn @ w_o
    h = (x + attn_out) @ w_ff1
    h = h @ w_ff2
    return x + h


def normal(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape) / 16


def show_factors() -> None:
    """Shardings spread over a Megatron MLP; the factor table of its last matmul; one reason."""
    graph = sw.trace(megatron_mlp, normal(16, 512), normal(512, 2048), normal(2048, 512)).graph
    found = sw.propagate(graph, MESH, {"x": P("dp", None), "w1": P(None, "tp"), "w2": P("tp", None)})
    print(f"=== A Megatron MLP on {MESH}: what is given for x, w1 and w2 spreads\n\n{found}\n")
    node = graph.nodes[-1]
    view = rule_of(graph, node)
    assert view is not None
    tensors = (*node.inputs, *node.results)
    names = [graph.values[value].name for value in tensors]
    print(f"factors of the last matmul: {view.rule.pattern}")
    print(Projection.of(view.rule, [found.specs[value] for value in tensors]).table(names))
    name = graph.values[graph.nodes[-2].results[0]].name
    print(f"\nwhy dim 1 of %{name} is cut: {found.why(name, 1)}")


def show_program() -> None:
    """transformer_block on 8 virtual devices, by hand and automatically."""
    shapes = [(64, 256), (256, 256), (256, 256), (256, 256), (256, 256), (256, 1024), (1024, 256)]
    args = [normal(*shape) for shape in shapes]
    specs = (P("dp", None), P(None, "tp"), P(None, "tp"), P(None, "tp"), P("tp", None), P(None, "tp"), P("tp", None))
    manual = sw.shard_map(transformer_block, MESH, in_specs=specs)
    automatic = sw.shard_map(transformer_block, MESH, auto_sharding=True)
    print("\n=== transformer_block, Megatron by hand: one program for all 8 devices\n")
    print(manual.program(*args))
    for name, mapped in (("by hand", manual), ("automatic", automatic)):
        error = np.abs(mapped(*args) - transformer_block(*args)).max()
        plan = mapped.plan(*args)
        made = [f"{c.kind} over {c.axis}, {c.bytes} B" for c in plan.program.collectives]
        print(f"\n{name}: largest difference from NumPy {error:.1e}; {plan.certificate}")
        print(f"  {len(made)} collectives, {plan.program.bytes} B sent per device")
        for line in made:
            print(f"    {line}")


def show_reshard() -> None:
    print("\n=== From one sharding to another: the cheapest steps")
    source, target = ShardingSpec(MESH, ["dp", "tp"]), ShardingSpec(MESH, ["tp", "dp"])
    print(f"f32[1024, 1024] {source} -> {target}")
    for step in sw.reshard(source, target, (1024, 1024)):
        print(f"  {step}")


def show_discovery() -> None:
    """The rule of a PyTorch operator, learned by running it."""
    import torch

    from shardwright.discover import analyze_and_synthesize

    print("\n=== Any operator's rule, learned by running it on shards\n")
    found = analyze_and_synthesize(torch.cross, "torch.cross", input_ndims=[2, 2], input_shape=(8, 3), dim_values=[1])
    print(found["formatted"])


def show_training() -> None:
    """A PyTorch training step, Megatron by hand, against eager PyTorch."""
    import copy

    import torch

    import shardwright.torch as swt

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.qkv = torch.nn.LayerNorm(64), torch.nn.Linear(64, 192)
            self.out = torch.nn.Linear(64, 64)
            self.up, self.down = torch.nn.Linear(64, 256), torch.nn.Linear(256, 64)

        def forward(self, x: Any) -> Any:
            q, k, v = (part.unflatten(-1, (4, 16)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
            made = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(made.transpose(1, 2).flatten(-2))
            return x + self.down(torch.nn.functional.gelu(self.up(x)))

    torch.manual_seed(0)
    model, x = Block().double(), torch.randn(4, 16, 64, dtype=torch.float64)
    eager = copy.deepcopy(model)
    ours, theirs = (torch.optim.AdamW(m.parameters(), eps=1e-3) for m in (model, eager))
    specs = {"x": "[dp, _, _]", "up.weight": "[tp, _]", "up.bias": "[tp]", "down.weight": "[_, tp]"}
    step = swt.shard_step(model, x, mesh=MESH, optimizer=ours, loss=lambda out: out.square().mean(), specs=specs)
    print(f"\n=== A PyTorch training step on {MESH}: forward, backward, AdamW\n")
    print(f"{len(step.source.graph.nodes)} ops, {len(step.collectives)} collectives")
    for number in range(3):
        loss = eager(x).square().mean()
        loss.backward()
        theirs.step()
        theirs.zero_grad()
        print(f"  step {number}: loss {step(x):.12f}, eager {loss:.12f}")
    print(step.plan.certificate)


if __name__ == "__main__":
    show_factors()
    show_program()
    show_reshard()
    show_training()
    show_discovery()

"""What exists today, in one run: shardings the user gives spread over a whole program.  ``make demo``."""

from __future__ import annotations

from shardwright import DeviceMesh, P, ShardingSpec, reshard, run_hierarchical_propagation_pass
from shardwright.ir.graph import Graph
from shardwright.propagate import Projection, rule_of

from .programs import megatron_mlp, transformer_block


def show(graph: Graph, mesh: DeviceMesh, given: dict[str, P], table_of: str, why: tuple[str, int]) -> None:
    """Propagate, then print the factor table of one op, the program with its shardings, and one reason."""
    specs = {
        graph.by_name[name]: spec.bind(mesh, graph.values[graph.by_name[name]].type.rank)
        for name, spec in given.items()
    }
    found = run_hierarchical_propagation_pass(graph, specs, rule_of)
    print(f"\n=== {graph.name} on {mesh}")
    print("given  " + ", ".join(f"{name}: {specs[graph.by_name[name]]}" for name in given))
    maker = graph.node_of(graph.by_name[table_of])
    assert maker is not None
    node = graph.nodes[maker]
    view = rule_of(graph, node)
    assert view is not None
    tensors = (*node.inputs, *node.results)
    print(f"\nfactors of %{table_of} = {node.op}: {view.rule.pattern}")
    projection = Projection.of(view.rule, [found.specs[value] for value in tensors])
    print(projection.table([graph.values[value].name for value in tensors]))
    print(f"\n{found}")
    print(f"\nwhy dim {why[1]} of %{why[0]} is cut: {found.why(*why)}")


def main() -> None:
    mesh = DeviceMesh("dp=2, tp=4")
    show(
        megatron_mlp(),
        mesh,
        {"x": P("dp", None), "w1": P(None, "tp"), "w2": P("tp", None)},
        table_of="y",
        why=("a", 1),
    )
    show(
        transformer_block(),
        mesh,
        {"x": P("dp", None), "w_ff1": P(None, "tp"), "w_ff2": P("tp", None)},
        table_of="h",
        why=("out", 0),
    )
    print("\n=== from one sharding to another")
    source, target = ShardingSpec(mesh, ["dp", "tp"]), ShardingSpec(mesh, ["tp", "dp"])
    print(f"f32[1024, 1024] {source} -> {target}")
    for step in reshard(source, target, (1024, 1024)):
        print(f"  {step}")


if __name__ == "__main__":
    main()

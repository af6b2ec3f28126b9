"""What a recipe costs, worked out on few layers: to the picosecond what its Program costs."""

from __future__ import annotations

from fnmatch import fnmatch
from functools import cache
from typing import Any

import pytest

torch = pytest.importorskip("torch")


import shardwright.torch as swt  # noqa: E402
import torch_zoo as zoo  # noqa: E402
from shardwright import DeviceMesh, Graph, ShardingSpec  # noqa: E402
from shardwright.cost import H100, program_cost  # noqa: E402
from shardwright.errors import ShardwrightError  # noqa: E402
from shardwright.lower import lower  # noqa: E402
from shardwright.propagation import rule_of, run_hierarchical_propagation_pass  # noqa: E402
from shardwright.propagation.complete import complete  # noqa: E402
from shardwright.solve.recipes import DISTINCT, costs, recipe_layout  # noqa: E402
from shardwright.solve.recipes.costs import recipe_complete, recipe_cost  # noqa: E402


def llama() -> Any:
    """With the library's own norms: those of the zoo make the first layer unlike the others."""
    import transformers

    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=96,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=7,
            num_attention_heads=8,
            num_key_value_heads=4,
        )
    )


MODELS: dict[str, Any] = {"llama": llama, "gpt2": lambda: zoo.gpt2(n_layer=6).inner}
CASES = [
    ("d=4", {}),
    ("dp=2, tp=2", {}),
    ("dp=2, tp=4", {}),
    ("dp=2, tp=2", {"*.o_proj.weight": "[dp, tp]", "*.mlp.c_fc.weight": "[_, dp]"}),
    ("dp=2, tp=2", {"*.0.*.weight": "[tp, ...]", "*.3.mlp.*.weight": "[_, tp]"}),  # of single layers
    ("dp=2, tp=2", {"*.up_proj.weight": "[?, tp]", "*.c_proj.weight": "[dp+?, ?]"}),
]


@cache
def graph_of(name: str) -> Graph:
    torch.manual_seed(0)
    model, ids = MODELS[name](), zoo.tokens(8, 8, 96)["ids"]
    step = swt.capture_step(
        lambda **batch: model(**batch, use_cache=False).loss,
        optimizer=torch.optim.AdamW(model.parameters()), input_ids=ids, labels=ids,
    )  # fmt: skip
    found: Graph = step.graph
    return found


def pins_of(graph: Graph, mesh: DeviceMesh, said: dict[str, str]) -> dict[int, ShardingSpec]:
    found = {}
    for value in graph.inputs:
        for pattern, text in said.items():
            rank = graph.type(value).rank
            if rank and fnmatch(graph.values[value].name, pattern):
                words = [word.strip() for word in text.strip("[]").split(",") if word.strip() != "..."]
                found[value] = ShardingSpec.parse(f"[{', '.join([*words, '_', '_'][:rank])}]", mesh)
    return found


def propagated(name: str, graph: Graph, mesh: DeviceMesh, given: Any, outs: Any) -> str:
    """The Program with shardings propagated after the recipe."""
    layout = recipe_layout(name, graph, mesh)
    said = {**layout.values, **given}
    specs = run_hierarchical_propagation_pass(graph, said, rule_of, out_specs=outs).specs
    pinned = {value: spec for value, spec in said.items() if not any(dim.open for dim in spec.dims)}
    made = complete(graph, mesh, specs, rule_of, pinned=pinned, out_specs=outs, forced=layout.forced)
    return str(lower(made))


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("model", MODELS)
def test_costs_on_few_layers_are_those_of_the_program(model: str, case: tuple[str, dict[str, str]]) -> None:
    graph, mesh = graph_of(model), DeviceMesh(case[0])
    given = pins_of(graph, mesh, case[1])
    outs = {0: ShardingSpec.parse("[]", mesh)}
    for name in DISTINCT:
        program = lower(recipe_complete(name, graph, mesh, given, outs))
        cost, exact = recipe_cost(name, graph, mesh, H100, given, outs)[0], program_cost(program, H100, graph)
        assert (cost.compute, cost.communication, cost.hidden) == (exact.compute, exact.communication, exact.hidden)


@pytest.mark.parametrize("case", CASES[3:4] + CASES[5:], ids=str)
@pytest.mark.parametrize("model", MODELS)
def test_a_recipe_leaves_nothing_to_propagate(model: str, case: tuple[str, dict[str, str]]) -> None:
    graph, mesh = graph_of(model), DeviceMesh(case[0])
    given = pins_of(graph, mesh, case[1])
    for name in ("zero3", "sequence", "fsdp+tp"):
        program = lower(recipe_complete(name, graph, mesh, given, {}))
        assert str(program) == propagated(name, graph, mesh, given, {}), name


def test_costs_without_discounts_are_exact_too() -> None:
    graph, mesh, plain = graph_of("llama"), DeviceMesh("dp=2, tp=2"), H100.with_overlap(None)
    for name in ("zero3", "sequence"):
        exact = program_cost(lower(recipe_complete(name, graph, mesh, {}, {})), plain, graph)
        assert recipe_cost(name, graph, mesh, plain, {}, {})[0].objective == exact.objective


@pytest.mark.parametrize("model", MODELS)
def test_only_few_layers_are_gone_through(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, sizes, make = graph_of(model), list[int](), recipe_complete

    def seen(name: str, graph: Graph, *about: Any) -> Any:
        sizes.append(len(graph.nodes))
        return make(name, graph, *about)

    monkeypatch.setattr(costs, "recipe_complete", seen)
    for name in DISTINCT:
        recipe_cost(name, graph, DeviceMesh("dp=2, tp=2"), H100, {}, {})
    assert max(sizes) < len(graph.nodes)


def test_a_recipe_that_does_not_fit_is_refused_as_for_the_whole_graph() -> None:
    graph, mesh = graph_of("llama"), DeviceMesh("tp=5")
    with pytest.raises(ShardwrightError, match="no weight can be split"):
        recipe_complete("megatron", graph, mesh, {}, {})
    with pytest.raises(ShardwrightError, match="no weight can be split"):
        recipe_cost("megatron", graph, mesh, H100, {}, {})

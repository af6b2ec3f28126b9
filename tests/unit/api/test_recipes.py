"""Recipes: the collectives that each is known by, proven equal and run on training steps of small models."""

from __future__ import annotations

import copy
from collections import Counter
from functools import cache
from itertools import pairwise
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import shardwright as sw  # noqa: E402
import shardwright.torch as swt  # noqa: E402
import torch_zoo as zoo  # noqa: E402
from by_hand import Lowered, Said, compile_graph  # noqa: E402
from shardwright import DeviceMesh, Graph, GraphBuilder  # noqa: E402
from shardwright.cost import memory_profile  # noqa: E402
from shardwright.errors import PlanInfeasible, SpecError  # noqa: E402
from shardwright.frontends.torch import TORCH  # noqa: E402
from shardwright.proof import check_identity, check_structure  # noqa: E402
from shardwright.run import VirtualEngine  # noqa: E402
from shardwright.solve.recipes import RECIPES, recipe_layout, recipe_specs  # noqa: E402
from shardwright.solve.recipes.parts import Parts  # noqa: E402

torch.set_num_threads(1)
LAYERS = 2
MODELS = ("mlp", "llama", "gpt2")


class MLP(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Two products that names say nothing about."""

    def __init__(self, out: int = 16) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Linear(16, 32), torch.nn.Linear(32, out)

    def forward(self, x: Any) -> Any:
        return self.b(torch.nn.functional.gelu(self.a(x))).square().mean()


@cache
def step(name: str) -> tuple[Any, Any, dict[str, Any]]:
    """A model, its captured step, and a batch of eight."""
    torch.manual_seed(0)
    make: Any = {"mlp": MLP, "widening": lambda: MLP(64), "llama": zoo.llama, "gpt2": zoo.gpt2}[name]
    model = make().double()
    is_mlp = isinstance(model, MLP)
    batch = {"x": torch.randn(8, 16, dtype=torch.float64)} if is_mlp else zoo.tokens(8, 8, 96)
    optimizer = torch.optim.AdamW(model.parameters(), eps=1e-3)
    return model, swt.capture_step(model, optimizer=optimizer, **batch), batch


def said_by(recipe: str, graph: Graph, mesh: DeviceMesh, given: Any = None) -> Said:
    layout = recipe_layout(recipe, graph, mesh)
    return Said({**layout.values, **(given or {})}, {}, layout.forced)


@cache
def lowered(name: str, mesh: str, recipe: str) -> Lowered:
    graph, on = step(name)[1].graph, DeviceMesh(mesh)
    return compile_graph(graph, on, said_by(recipe, graph, on))


def counts(name: str, mesh: str, recipe: str) -> dict[str, int]:
    """How often each kind of collective runs over which axes."""
    return dict(Counter(f"{c.kind} {c.axis}" for c in lowered(name, mesh, recipe).program.collectives))


def specs(name: str, mesh: str, recipe: str) -> dict[str, str]:
    made = lowered(name, mesh, recipe).complete
    return {made.graph.values[v].name: str(spec) for v, spec in zip(made.graph.inputs, made.inputs)}


# -- equal ----------------------------------------------------------------------------------------------


SAMPLE = (("gpt2", "dp"), ("gpt2", "zero2"), ("gpt2", "sequence"), ("llama", "zero1"), ("llama", "zero3"),
          ("llama", "megatron"), ("llama", "fsdp+tp"))  # fmt: skip
"""Each recipe on one of the models; at full size this takes long."""
WHOLE = [
    pytest.param(name, recipe, marks=[pytest.mark.long] * ((name, recipe) not in SAMPLE))
    for name in MODELS
    for recipe in RECIPES
]


@pytest.mark.parametrize(("name", "recipe"), WHOLE)
def test_programs_are_equal_to_the_step(name: str, recipe: str) -> None:
    made = lowered(name, "dp=2, tp=2", recipe)
    check_structure(made.program)
    check_identity(made.graph, made.program, rounds=1)


@pytest.mark.parametrize("recipe", [name for name in RECIPES if name not in ("zero2", "fsdp")])
@pytest.mark.parametrize("name", MODELS)
def test_numbers_are_those_of_eager_pytorch(name: str, recipe: str) -> None:
    model, captured, batch = step(name)
    made, mesh = lowered(name, "dp=2, tp=2", recipe), DeviceMesh("dp=2, tp=2")
    eager = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(eager.parameters(), eps=1e-3)
    loss = eager(**batch)
    loss.backward()
    optimizer.step()
    engine = VirtualEngine.of(mesh, TORCH)
    given = [engine.scatter(x.detach(), spec) for x, spec in zip(captured.inputs(**batch), made.complete.inputs)]
    outputs, _ = engine.compile(made.program).run(given)
    ends = [made.program.values[value] for value in made.program.outputs]
    results = [engine.assemble(held, local.spec, local.type.shape) for held, local in zip(outputs, ends)]
    renewed = {made.graph.values[made.graph.inputs[i]].name: results[output] for i, output in made.graph.updates}
    torch.testing.assert_close(results[0], loss.detach())
    for key, parameter in eager.named_parameters():
        if key in renewed:  # a tied one has one of its names
            torch.testing.assert_close(renewed[key], parameter.detach())


# -- the collectives that a recipe is known by ----------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_data_parallel_reduces_gradients_and_the_loss(name: str) -> None:
    model, _, _ = step(name)
    parameters = len(list(model.parameters()))
    made = counts(name, "d=4", "dp")
    assert set(made) == {"all_reduce d"}
    extra = {"mlp": 1, "llama": 2, "gpt2": 2}[name]  # the loss; in cross entropy also how many it counts
    assert made["all_reduce d"] == parameters + extra
    assert counts(name, "d=4", "replicated") == {}


@pytest.mark.parametrize("name", MODELS)
def test_zero_reduces_gradients_into_the_shards_of_the_state(name: str) -> None:
    """Each gradient that state is cut for is scattered, none is reduced whole; each new parameter is gathered."""
    model, _, _ = step(name)
    parameters = len(list(model.parameters()))
    few = {"mlp": 1, "llama": 2, "gpt2": 3}[name]  # the loss and its count; positions are summed before their lookup
    for recipe in ("zero1", "zero2"):
        made = counts(name, "d=4", recipe)
        alone = few - 2 if name == "gpt2" else 0
        assert made == {
            "all_reduce d": few, "reduce_scatter d": parameters - alone, "all_gather d": parameters
        }  # fmt: skip
    reduced = [i for i in lowered(name, "d=4", "zero2").program.instrs if i.op == "all_reduce"]
    biggest = max(parameter.numel() for parameter in model.parameters())
    values = lowered(name, "d=4", "zero2").program.values
    assert all(values[i.results[0]].type.elements < biggest for i in reduced)


def test_zero3_gathers_weights_forward_and_again_backward() -> None:
    """Two gathers for a weight of a product, but one for the first, through which nothing is passed back."""
    made = counts("mlp", "d=4", "zero3")
    assert made == {"all_gather d": 5, "reduce_scatter d": 4, "all_reduce d": 1}
    assert counts("mlp", "d=4", "fsdp") == made
    llama = counts("llama", "d=4", "zero3")
    products, norms = 7 * LAYERS + 1, 2 * LAYERS + 1
    assert llama["all_gather d"] == 2 * products + norms + 1
    assert llama["reduce_scatter d"] == products + norms + 1
    held = {r: memory_profile(lowered("llama", "d=4", r).program).peak for r in ("replicated", "dp", "zero2", "zero3")}
    assert held["zero3"] < held["zero2"] < held["dp"] < held["replicated"]


def test_megatron_on_a_perceptron() -> None:
    assert specs("mlp", "tp=4", "megatron")["a.weight"] == "[tp, _]"
    assert specs("mlp", "tp=4", "megatron")["a.bias"] == "[tp]"
    assert specs("mlp", "tp=4", "megatron")["b.weight"] == "[_, tp]"
    assert specs("mlp", "tp=4", "megatron")["b.bias"] == "[_]"
    assert specs("mlp", "tp=4", "megatron")["a.weight.exp_avg"] == "[tp, _]"
    assert counts("mlp", "tp=4", "megatron") == {"all_reduce tp": 1}
    both = specs("mlp", "dp=2, tp=2", "megatron")
    assert (both["x"], both["a.weight"], both["b.weight"]) == ("[dp, _]", "[tp, _]", "[_, tp]")
    assert counts("mlp", "dp=2, tp=2", "megatron") == {"all_reduce tp": 1, "all_reduce dp": 5}


def test_megatron_on_llama_has_two_reductions_a_layer_each_way() -> None:
    """Beside them one for the lookup, one back from the vocabulary, and four small ones in the loss; no gather."""
    found = specs("llama", "tp=4", "megatron")
    layer = "inner.model.layers.1"
    for key in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"):
        assert found[f"{layer}.{key}.weight"] == "[tp, _]"
        assert found[f"{layer}.{key}.weight.exp_avg_sq"] == "[tp, _]"
    for key in ("self_attn.o_proj", "mlp.down_proj"):
        assert found[f"{layer}.{key}.weight"] == "[_, tp]"
    assert found["inner.model.embed_tokens.weight"] == found["inner.lm_head.weight"] == "[tp, _]"
    assert found["inner.model.norm.weight"] == "[_]"
    assert counts("llama", "tp=4", "megatron") == {"all_reduce tp": 4 * LAYERS + 2 + 4}
    program = lowered("llama", "tp=4", "megatron").program
    large = [c for c in program.collectives if c.bytes >= 8 * 8 * 32 * 8]
    assert len(large) == 4 * LAYERS + 2
    two = counts("llama", "dp=2, tp=2", "megatron")
    assert set(two) == {"all_reduce tp", "all_reduce dp", "all_reduce dp+tp"}


def test_megatron_on_gpt2_keeps_fused_queries_whole_and_splits_the_heads() -> None:
    """Thirds of one weight are no shards of it: that product is done everywhere, attention behind it by heads."""
    found = specs("gpt2", "tp=4", "megatron")
    block = "inner.transformer.h.0"
    assert found[f"{block}.attn.c_attn.weight"] == "[_, _]"
    assert (found[f"{block}.attn.c_proj.weight"], found[f"{block}.attn.c_proj.bias"]) == ("[tp, _]", "[_]")
    assert (found[f"{block}.mlp.c_fc.weight"], found[f"{block}.mlp.c_fc.bias"]) == ("[_, tp]", "[tp]")
    assert (found[f"{block}.mlp.c_proj.weight"], found["inner.transformer.wte.weight"]) == ("[tp, _]", "[tp, _]")
    made = counts("gpt2", "tp=4", "megatron")
    # Forward two a layer; backward one, and the gradients of queries, keys and values are gathered instead.
    assert made == {"all_reduce tp": 3 * LAYERS + 2 + 4, "all_gather tp": 3 * LAYERS}
    values = lowered("gpt2", "tp=4", "megatron").program
    heads = [i for i in values.instrs if i.op == "shardwright.attention"]
    assert len(heads) == LAYERS
    assert all(str(values.values[i.results[0]].spec) == "[_, tp, _, _]" for i in heads)


def test_sequence_cuts_activations_between_products() -> None:
    """A reduce_scatter and an all_gather in the place of each all_reduce; and less is held."""
    made = counts("llama", "tp=4", "sequence")
    ends = 2  # the lookup, and back from the vocabulary
    assert made["reduce_scatter tp"] == 4 * LAYERS + ends + 1  # also the gradient of the lookup's table
    assert made["all_gather tp"] == 4 * LAYERS + 1  # before each pair of products; also before the vocabulary
    assert made["all_reduce tp"] == 4 + 2 * LAYERS + 1  # the loss, and gradients of norms
    program = lowered("llama", "tp=4", "sequence").program
    stream = [v for v in program.values if v.type.shape == (8, 8, 32) and str(v.spec) == "[_, tp, _]"]
    assert len(stream) > 20 * LAYERS
    megatron = lowered("llama", "tp=4", "megatron").program
    assert memory_profile(program).peak < memory_profile(megatron).peak
    assert program.bytes < 1.05 * megatron.bytes


def test_without_a_sequence_the_batch_is_cut_between_products() -> None:
    """What the rows leave is scattered; back it is gathered for both products, and no gradient of a weight is moved."""
    for name in ("mlp", "widening"):
        made = counts(name, "tp=4", "sequence")
        assert made == {"reduce_scatter tp": 1, "all_gather tp": 2, "all_reduce tp": 2}  # the loss and the rows' bias


def test_fsdp_with_tensor_parallelism_cuts_parameters_both_ways() -> None:
    found = specs("llama", "dp=2, tp=2", "fsdp+tp")
    assert found["inner.model.layers.0.self_attn.q_proj.weight"] == "[tp, dp]"
    assert found["inner.model.layers.0.self_attn.o_proj.weight"] == "[dp, tp]"
    assert found["inner.model.norm.weight"] == "[dp]"
    assert found["ids"] == "[dp, _]"
    made = counts("llama", "dp=2, tp=2", "fsdp+tp")
    assert made["all_gather dp"] == counts("llama", "d=2", "zero3")["all_gather d"]
    assert made["reduce_scatter dp"] == len(list(step("llama")[0].parameters()))
    assert made["all_reduce tp"] == counts("llama", "dp=2, tp=2", "megatron")["all_reduce tp"]
    held = [memory_profile(lowered("llama", "dp=2, tp=2", r).program).peak for r in ("fsdp+tp", "megatron")]
    assert held[0] < held[1]


# -- how it is found ------------------------------------------------------------------------------------


def test_state_belongs_to_the_parameter_it_updates() -> None:
    graph: Graph = step("llama")[1].graph
    names = [value.name for value in graph.values]
    owners = Parts(graph, DeviceMesh("d=2")).owners
    assert len(owners) == 2 * len(list(step("llama")[0].parameters()))
    assert all(names[state].startswith(names[parameter]) for state, parameter in owners.items())


def test_a_table_beside_the_batch_is_not_cut() -> None:
    """Llama's frequencies are an input that no step updates, and no part of the batch."""
    found = specs("llama", "d=2", "dp")
    assert found["ids"] == found["labels"] == "[d, _]"
    assert found["inner.model.rotary_emb.inv_freq"] == "[_]"


def _chain(*widths: int, batch: int = 64) -> Graph:
    """Products without a training step."""
    b = GraphBuilder("chain")
    x = b.input((batch, widths[0]), name="x")
    for i, (k, n) in enumerate(pairwise(widths)):
        x = b.op("matmul", [x, b.input((k, n), name=f"w{i}")], [(batch, n)], names=[f"y{i}"])
    return b.finish([x])


def test_columns_and_rows_alternate_in_any_program() -> None:
    graph, mesh = _chain(32, 64, 32, 128, 16), DeviceMesh("dp=2, tp=4")
    found = recipe_specs("megatron", graph, mesh)
    assert [str(found[v]) for v in graph.inputs] == ["[dp, _]", "[_, tp]", "[tp, _]", "[_, tp]", "[tp, _]"]
    program = compile_graph(graph, mesh, said_by("megatron", graph, mesh)).program
    assert [c[:2] for c in program.collectives] == [("all_reduce", "tp")] * 2
    check_identity(graph, program)


def test_a_column_that_would_be_gathered_is_taken_back() -> None:
    """The second width does not divide, so nothing can follow the first column; it is the next that is one."""
    graph, mesh = _chain(32, 64, 31, 64, 32), DeviceMesh("tp=4")
    found = recipe_specs("megatron", graph, mesh)
    assert [str(found[v]) for v in graph.inputs] == ["[_, _]", "[_, tp]", "[tp, _]", "[_, tp]", "[tp, _]"]


def test_a_column_that_would_meet_the_residual_stream_is_taken_back() -> None:
    graph, mesh = Graph.parse("""graph f(%x: f32[8, 16], %w: f32[16, 32], %v: f32[32, 16], %u: f32[16, 16]) {
      %a = matmul(%x, %w) : f32[8, 32]
      %b = matmul(%a, %v) : f32[8, 16]
      %c = matmul(%b, %u) : f32[8, 16]
      %d = add(%b, %c) : f32[8, 16]
      return %d
    }"""), DeviceMesh("tp=4")  # fmt: skip
    found = recipe_specs("megatron", graph, mesh)
    assert [str(found[v]) for v in graph.inputs] == ["[_, _]", "[_, tp]", "[tp, _]", "[_, _]"]


def test_what_the_user_gives_goes_before_a_recipe() -> None:
    graph, mesh = _chain(32, 64, 32), DeviceMesh("dp=2, tp=4")
    mine = sw.ShardingSpec.parse("[_, dp]", mesh)
    w0 = graph.by_name["w0"]
    made = compile_graph(graph, mesh, said_by("megatron", graph, mesh, {w0: mine}))
    assert made.complete.inputs[1] == mine
    check_identity(graph, made.program)


# -- what does not fit ----------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", ["megatron", "sequence", "fsdp+tp"])
def test_tensor_parallelism_that_divides_nothing_is_refused(recipe: str) -> None:
    graph = step("mlp")[1].graph
    with pytest.raises(PlanInfeasible, match="no weight can be split over tp") as caught:
        recipe_layout(recipe, graph, DeviceMesh("dp=2, tp=5"))
    assert "5 divides" in str(caught.value)
    model, _, batch = step("mlp")
    with pytest.raises(PlanInfeasible, match="no weight can be split"):
        sw.plan(model, mesh="tp=5", optimizer=torch.optim.AdamW(model.parameters()), recipe=recipe, **batch)


def test_a_name_that_no_recipe_has() -> None:
    with pytest.raises(SpecError, match="no recipe is called 'megatrn'") as caught:
        recipe_specs("megatrn", step("mlp")[1].graph, DeviceMesh("d=2"))
    assert "did you mean 'megatron'" in str(caught.value)

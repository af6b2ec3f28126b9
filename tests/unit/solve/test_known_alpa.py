"""Alpa's answers under its own costs: training steps whose plan, counts of collectives and price are known.

Counts are given before combining, as the Program lists collectives, and after it, as Alpa's tests count them.  Alpa
lets no product run replicated; here an operation has a price, high enough that none does, so that what is left to
choose is communication.  The loss is reported, which Alpa's steps do not do: a scalar to reduce where the batch is
split.

Where the planner does better than Alpa's strategy under the same formulas, the strategy is a recipe here, priced by
hand, and the plan must not cost more.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from functools import cache
from math import ceil
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import shardwright as sw  # noqa: E402
from by_hand import Said, compile_graph  # noqa: E402
from shardwright import DeviceMesh, Graph, Program, ShardingSpec  # noqa: E402
from shardwright.cost import alpha_beta, communication_cost  # noqa: E402
from shardwright.cost.combine import combined, combined_groups  # noqa: E402

torch.set_num_threads(1)
LAYERS = 6
F32 = 4
TIES = {"all_gather": 100_000, "all_reduce": 10_000, "reduce_scatter": 1_000, "all_to_all": 1_000}
ONE = {"alpha": 1.0, "beta": 1.0}
TWO = {"alpha": {"x": 1.0, "y": 1.0}, "beta": {"x": 1.0, "y": 0.1}}


def alpa(kind: str, whole: int, n: int = 4, beta: float = 1.0, alpha: int = 1) -> int:
    """Alpa's price of a collective over n devices, in picoseconds, a unit being a microsecond.

    ``whole`` are the bytes of the buffer that is reduced, or of all shards together.
    """
    slope = {
        "all_reduce": Fraction(2 * (n - 1), n),
        "all_gather": Fraction(n - 1, n),
        "reduce_scatter": Fraction(n - 1, n),
        "all_to_all": Fraction(n - 1, n * n) * Fraction(n, 2),
    }[kind]
    return alpha * 10**6 + TIES[kind] + ceil(slope * round(beta * 10**6) * whole)


class MLP(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Six layers, as in Alpa's tests."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(LAYERS))

    def forward(self, x: Any, y: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return (x - y).square().mean()


class Layer(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Of an encoder like BERT's: norms behind the residual sums."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (torch.nn.Linear(width, width) for _ in range(4))
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)
        self.first, self.second = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)

    def forward(self, x: Any) -> Any:
        q, k, v = (part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        made = torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2)
        x = self.first(x + self.o(made))
        return self.second(x + self.down(torch.nn.functional.gelu(self.up(x))))


class Bert(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Two layers on given states; nothing is passed back to them."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer(width, heads) for _ in range(2))

    def forward(self, x: Any, y: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return (x - y).square().mean()


@cache
def planned(which: str, shape: tuple[int, ...], mesh: str, recipe: str | None = None, pins: str = "") -> Any:
    """A plan under Alpa's costs; ``pins`` cuts the optimizer's state (1), and parameters as well (2)."""
    torch.manual_seed(0)
    model = MLP(shape[-1]) if which == "mlp" else Bert(shape[-1], 4)
    batch = {"x": torch.randn(shape), "y": torch.randn(shape)}
    constraints = {}
    for name, parameter in model.named_parameters() if pins else ():
        spec = "[d, _]" if parameter.dim() == 2 else "[d]"
        constraints |= {f"{name}.exp_avg": spec, f"{name}.exp_avg_sq": spec}
        constraints |= {name: spec} if pins == "parameters" else {}
    adam = bool(pins) or recipe in ("zero2", "zero3")
    optimizer = (torch.optim.AdamW if adam else torch.optim.SGD)(model.parameters(), lr=0.1)
    hardware = alpha_beta(**(ONE if mesh == "d=4" else TWO), flop=1.0)  # type: ignore[arg-type]
    return sw.plan(
        model, mesh=mesh, hardware=hardware, optimizer=optimizer, recipe=recipe, constraints=constraints, **batch
    )


def listed(program: Program) -> dict[str, int]:
    return dict(Counter(collective.kind for collective in program.collectives))


def without_loss(program: Program) -> dict[str, int]:
    """After combining, less groups that only reduce a scalar."""
    elements = [program.values[instr.results[0]].type.elements if instr.results else 0 for instr in program.instrs]
    return dict(Counter(g.kind for g in combined_groups(program) if any(elements[n] > 1 for n in g.members)))


# -- the formulas ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 4, 8])
def test_prices_are_alpas(n: int) -> None:
    """The bytes that one device puts in are a shard where shards are gathered or exchanged."""
    axes = DeviceMesh(f"d={n}").axes
    hardware = alpha_beta(1.0, 0.1)
    for kind in TIES:
        whole = 4096 * n
        put = whole // n if kind in ("all_gather", "all_to_all") else whole
        assert communication_cost(kind, axes, put, hardware) == alpa(kind, whole, n, 0.1)


# -- six layers -----------------------------------------------------------------------------------------


def test_large_batches_are_data_parallel_with_one_reduction() -> None:
    batch, width = 256, 32
    made = planned("mlp", (batch, width), "d=4")
    assert made.gap == 0
    assert {name: spec for name, spec in made.specs.items() if "d" in spec} == {"x": "[d, _]", "y": "[d, _]"}
    assert listed(made.program) == {"all_reduce": 2 * LAYERS + 1}
    assert combined(made.program) == {"all_reduce": 1}
    weights, biases = LAYERS * alpa("all_reduce", width * width * F32), LAYERS * alpa("all_reduce", width * F32)
    assert made.cost.communication == weights + biases + alpa("all_reduce", F32)
    products = 3 * LAYERS - 1  # nothing is passed back through the first
    assert made.cost.compute == products * 2 * batch * width * width // 4 * 10**6
    assert made.cost.objective == made.cost.communication + made.cost.compute


def test_small_batches_are_tensor_parallel_with_a_reduction_less_than_layers() -> None:
    batch, width = 64, 256
    made = planned("mlp", (batch, width), "d=4")
    assert made.gap == 0
    for i in range(LAYERS):
        weight, bias = ("[_, d]", "[_]") if i % 2 else ("[d, _]", "[d]")
        assert made.specs[f"layers.{i}.weight"] == weight
        assert made.specs[f"layers.{i}.bias"] == bias
    assert (made.specs["x"], made.specs["y"]) == ("[_, _]", "[_, _]")
    assert listed(made.program) == combined(made.program) == {"all_reduce": LAYERS - 1}
    assert made.cost.communication == (LAYERS - 1) * alpa("all_reduce", batch * width * F32)
    assert planned("mlp", (batch, width), "d=4", "megatron").cost == made.cost


def test_two_axes_mix_both() -> None:
    """Alpa's: data over x, columns and rows over y; 5 + 1.

    The plan is cheaper: with the batch whole to begin with, the first layer is split by columns over both axes, so that
    its gradient needs no reduction over x; Alpa has no such split.
    """
    batch, width = 256, 128
    theirs = planned("mlp", (batch, width), "x=2, y=2", "megatron")
    assert theirs.specs["x"] == "[x, _]"
    assert {theirs.specs[f"layers.{i}.weight"] for i in (0, 2, 4)} == {"[y, _]"}
    assert {theirs.specs[f"layers.{i}.weight"] for i in (1, 3, 5)} == {"[_, y]"}
    assert listed(theirs.program) == {"all_reduce": (LAYERS - 1) + 2 * LAYERS + 1}
    assert combined(theirs.program) == {"all_reduce": (LAYERS - 1) + 1}
    over_y = (LAYERS - 1) * alpa("all_reduce", batch // 2 * width * F32, 2, 0.1)
    over_x = LAYERS * alpa("all_reduce", width * width // 2 * F32, 2)
    columns, rows = alpa("all_reduce", width // 2 * F32, 2), alpa("all_reduce", width * F32, 2)
    assert theirs.cost.communication == over_y + over_x + 3 * columns + 3 * rows + alpa("all_reduce", F32, 2)
    ours = planned("mlp", (batch, width), "x=2, y=2")
    assert ours.gap == 0
    assert ours.cost.compute == theirs.cost.compute
    assert ours.cost.objective < theirs.cost.objective
    assert {axis for spec in ours.specs.values() for axis in "xy" if axis in spec} == {"x", "y"}


def test_zero2_scatters_once_and_gathers_once() -> None:
    batch, width = 256, 32
    theirs = planned("mlp", (batch, width), "d=4", "zero2")
    each = sum(alpa(kind, size * F32) for kind in ("reduce_scatter", "all_gather") for size in (width * width, width))
    for made in (theirs, planned("mlp", (batch, width), "d=4", None, "state")):
        assert listed(made.program) == {"reduce_scatter": 2 * LAYERS, "all_gather": 2 * LAYERS, "all_reduce": 1}
        assert without_loss(made.program) == {"reduce_scatter": 1, "all_gather": 1}
        # To gather new weights, or to keep them cut and gather them at their first use, costs the same.
        assert made.specs["layers.0.weight"] in ("[_, _]", "[_, _]" if made is theirs else "[d, _]")
        assert made.specs["layers.0.weight.exp_avg"] == "[d, _]"
        assert made.cost.communication == LAYERS * each + alpa("all_reduce", F32)
    assert planned("mlp", (batch, width), "d=4", None, "state").gap == 0


def test_zero3_scatters_once_and_gathers_twice() -> None:
    """The planner gathers once: these prices know no reason to give a weight up before the backward pass."""
    batch, width = 256, 32
    theirs = planned("mlp", (batch, width), "d=4", "zero3")
    assert theirs.specs["layers.0.weight"] == "[d, _]"
    again = LAYERS - 1  # nothing is passed back through the first
    assert listed(theirs.program) == {
        "reduce_scatter": 2 * LAYERS, "all_gather": 2 * LAYERS + again, "all_reduce": 1
    }  # fmt: skip
    assert without_loss(theirs.program) == {"reduce_scatter": 1, "all_gather": 2}
    once = sum(alpa(kind, size * F32) for kind in ("reduce_scatter", "all_gather") for size in (width * width, width))
    twice = again * alpa("all_gather", width * width * F32)
    assert theirs.cost.communication == LAYERS * once + twice + alpa("all_reduce", F32)
    ours = planned("mlp", (batch, width), "d=4", None, "parameters")
    assert ours.gap == 0
    assert ours.specs["layers.0.weight"] == "[d, _]"
    assert without_loss(ours.program) == {"reduce_scatter": 1, "all_gather": 1}
    assert ours.cost.communication == theirs.cost.communication - twice


# -- two layers of an encoder ---------------------------------------------------------------------------


def test_an_encoder_is_tensor_parallel_with_four_reductions_a_layer_less_one() -> None:
    shape = (2, 16, 64)
    made = planned("bert", shape, "d=4")
    assert made.gap == 0
    for i in range(2):
        assert {made.specs[f"layers.{i}.{name}.weight"] for name in ("q", "k", "v", "up")} == {"[d, _]"}
        assert {made.specs[f"layers.{i}.{name}.bias"] for name in ("q", "k", "v", "up")} == {"[d]"}
        assert {made.specs[f"layers.{i}.{name}.weight"] for name in ("o", "down")} == {"[_, d]"}
        assert {made.specs[f"layers.{i}.{name}.bias"] for name in ("o", "down", "first", "second")} == {"[_]"}
    assert listed(made.program) == combined(made.program) == {"all_reduce": 4 * 2 - 1}
    assert made.cost.communication == 7 * alpa("all_reduce", 2 * 16 * 64 * F32)
    recipe = planned("bert", shape, "d=4", "megatron")
    assert combined(recipe.program) == {"all_reduce": 7}
    assert recipe.specs == made.specs


def test_an_encoder_on_two_axes() -> None:
    """Alpa's: 7 over y and one for all gradients over x.

    The plan is cheaper: it cuts activations along the sequence between products, and does without some reductions.
    """
    shape = (4, 128, 64)
    theirs = planned("bert", shape, "x=2, y=2", "megatron")
    groups = Counter((group.kind, group.axis) for group in combined_groups(theirs.program))
    assert groups == {("all_reduce", "y"): 7, ("all_reduce", "x"): 1}
    width = shape[-1]
    split, whole = [], [width] * 4  # scales and shifts of the two norms
    for rows, columns, is_row in ((1, 1, False),) * 3 + ((1, 1, True), (1, 4, False), (4, 1, True)):
        split.append(rows * columns * width * width)
        (whole if is_row else split).append(width if is_row else columns * width)
    over_x = sum(alpa("all_reduce", n // 2 * F32, 2) for n in split) + sum(
        alpa("all_reduce", n * F32, 2) for n in whole
    )
    passed = alpa("all_reduce", shape[0] // 2 * shape[1] * width * F32, 2, 0.1)
    expected = 2 * over_x + 7 * passed + alpa("all_reduce", F32, 2)
    # Queries, keys and values pass back to the residual one by one; the three reductions run as one but count as three.
    assert theirs.cost.communication == expected + 2 * passed
    ours = planned("bert", shape, "x=2, y=2")
    assert ours.cost.compute == theirs.cost.compute
    assert ours.cost.communication < expected
    assert ours.gap < 1e-6


# -- on a real machine ----------------------------------------------------------------------------------


class Wide(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Up and down, twice."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        sizes = ((width, inner), (inner, width)) * 2
        self.layers = torch.nn.ModuleList(torch.nn.Linear(*size, bias=False) for size in sizes)

    def forward(self, x: Any) -> Any:
        for i, layer in enumerate(self.layers):
            x = layer(x) if i % 2 else torch.nn.functional.gelu(layer(x))
        return x.square().mean()


def training(batch: int, width: int, mesh: str, recipe: str | None = None) -> Any:
    with torch.device("meta"):
        model, x = Wide(width, 4 * width).bfloat16(), torch.randn(batch, width, dtype=torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return sw.plan(model, x, mesh=mesh, optimizer=optimizer, hardware="h100", recipe=recipe)


def weights(made: Any) -> list[str]:
    return [spec for name, spec in made.specs.items() if name.endswith("weight")]


def test_training_on_h100_is_split_by_what_is_large() -> None:
    wide = training(128, 8192, "d=8")
    assert wide.specs["x"] == "[_, _]"
    assert weights(wide) == ["[d, _]", "[_, d]"] * 2
    assert listed(wide.program) == {"all_reduce": 3}
    large = training(262144, 1024, "d=8")
    assert large.specs["x"] == "[d, _]"
    assert weights(large) == ["[d, _]"] * 4  # gathered ahead of their use, gradients reduced while others are made
    assert large.cost.hidden > large.cost.communication // 2
    moved = [c.bytes for c in large.collectives]
    assert max(moved) < 2 * 1024 * 4096 * 2  # gradients and weights, no activations


def test_training_on_eight_nodes_of_h100_mixes_both() -> None:
    """Weights are cut over both axes; that beats data over the network and columns and rows inside a node."""
    made, by_hand = training(16384, 8192, "dp=8, tp=8"), training(16384, 8192, "dp=8, tp=8", "megatron")
    assert all(
        {"dp", "tp"} <= set(spec.strip("[]").replace("+", " ").replace(",", " ").split()) for spec in weights(made)
    )
    assert by_hand.specs["x"] == "[dp, _]"
    assert weights(by_hand) == ["[tp, _]", "[_, tp]"] * 2
    assert made.lower_bound <= made.cost.objective < by_hand.cost.objective


def test_a_weight_of_17_gigabytes_is_cut_where_it_does_not_fit() -> None:
    x, w = sw.ShapeDtype((8192, 65536), np.float32), sw.ShapeDtype((65536, 65536), np.float32)

    def layer(x: Any, w: Any) -> Any:
        return np.maximum(x @ w, 0)

    asked: Any = {"mesh": "d=8", "in_specs": ("[d, _]", None), "out_specs": "[d, _]"}
    free = sw.plan(layer, x, w, **asked)
    assert free.specs["w"] == "[_, _]"
    assert free.memory > 17 * 10**9
    assert free.collectives == []
    tight = sw.plan(layer, x, w, memory=16 * 2**30, **asked)
    assert tight.specs["w"] in ("[_, d]", "[d, _]")
    assert tight.memory <= 16 * 2**30
    assert tight.collectives != []


# -- combining ------------------------------------------------------------------------------------------


def check_groups(program: Program) -> None:
    """All collectives, each once; alike; and in an order in which everything that a group reads was made."""
    groups = combined_groups(program)
    found = sorted(n for group in groups for n in group.members)
    assert found == [n for n, instr in enumerate(program.instrs) if instr.is_collective]
    at = {n: g for g, group in enumerate(groups) for n in group.members}
    earliest: dict[int, int] = {}
    for n, instr in enumerate(program.instrs):
        start = max((earliest.get(value, -1) for value in instr.as_node().inputs), default=-1)
        if instr.op.endswith("ones_like"):
            start = -1  # whatever the loss is
        if n in at:
            assert start < at[n]
            start = at[n]
        earliest.update(dict.fromkeys(instr.results, start))
    for group in groups:
        assert len({(program.instrs[n].op, program.instrs[n].axes) for n in group.members}) == 1
        assert group.bytes == sum(program.instrs[n].bytes for n in group.members)


@pytest.mark.parametrize("recipe", ["dp", "zero3", "megatron", "sequence", None])
def test_groups_can_run(recipe: str | None) -> None:
    check_groups(planned("mlp", (256, 128), "x=2, y=2", recipe).program)
    check_groups(planned("bert", (4, 128, 64), "x=2, y=2", recipe).program)


def lowered(text: str, **specs: str) -> Program:
    """A graph with these shardings of its values; products are split along what they contract."""
    graph, mesh = Graph.parse(text), DeviceMesh("d=4")
    values = {graph.by_name[name]: ShardingSpec.parse(spec, mesh) for name, spec in specs.items()}
    forced = {n: ((), mesh.axes, ()) for n, node in enumerate(graph.nodes) if node.op == "matmul"}
    return compile_graph(graph, mesh, Said(values, forced=forced)).program


def test_groups_that_would_wait_for_each_other_stay_apart() -> None:
    """One chain reduces and then gathers, the other gathers and then reduces: two groups would be a circle."""
    program = lowered(
        """graph f(%x: f32[8, 8], %w: f32[8, 8], %z: f32[8, 8], %v: f32[8, 8]) {
          %a = matmul(%x, %w) : f32[8, 8]
          %b = exp(%a) : f32[8, 8]
          %c = exp(%b) : f32[8, 8]
          %d = exp(%z) : f32[8, 8]
          %e = matmul(%d, %v) : f32[8, 8]
          return %c, %e
        }""",
        x="[_, d]", w="[d, _]", a="[_, _]", b="[d, _]", c="[_, _]", z="[d, _]", d="[_, _]", v="[d, _]", e="[_, _]",
    )  # fmt: skip
    assert listed(program) == {"all_reduce": 2, "all_gather": 2}
    check_groups(program)
    assert sum(combined(program).values()) == 3


def test_a_collective_waits_for_others_like_it() -> None:
    """The first reduction could run at once; behind the gather comes another that it can run with."""
    program = lowered(
        """graph f(%x: f32[8, 8], %w: f32[8, 8], %z: f32[8, 8], %v: f32[8, 8]) {
          %a = matmul(%x, %w) : f32[8, 8]
          %d = exp(%z) : f32[8, 8]
          %e = matmul(%d, %v) : f32[8, 8]
          return %a, %e
        }""",
        x="[_, d]", w="[d, _]", a="[_, _]", z="[d, _]", d="[_, _]", v="[d, _]", e="[_, _]",
    )  # fmt: skip
    assert [c.kind for c in program.collectives] == ["all_reduce", "all_gather", "all_reduce"]
    check_groups(program)
    assert combined(program) == {"all_gather": 1, "all_reduce": 1}

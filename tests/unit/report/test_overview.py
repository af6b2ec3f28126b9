"""What is shown of a plan adds up: to the simulated step, to the plan's memory, to its collectives."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

import shardwright as sw
from shardwright.cost import memory_profile, simulate
from shardwright.cost.profile import RESIDENT
from shardwright.ir.order import events_of
from shardwright.report import instructions_csv, listing, plan_text, trace_events
from shardwright.report.lifespans import bytes_by_event

torch = pytest.importorskip("torch")


def mlp(x, w1, w2):
    return np.maximum(x @ w1, 0) @ w2


class Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Model(torch.nn.Module):
    def __init__(self, layers: int, width: int = 64, words: int = 512) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(words, width)
        self.layers = torch.nn.ModuleList(Block(width) for _ in range(layers))
        self.head = torch.nn.Linear(width, words, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def step_plan(mesh="dp=2, tp=2", layers=3, **options):
    with torch.device("meta"):
        model = Model(layers)
    ids = torch.empty(12, 16, dtype=torch.long, device="meta")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return sw.plan(model, ids, mesh=mesh, optimizer=optimizer, loss=lambda out: out.float().square().mean(), **options)


def numpy_plan():
    shapes = [sw.ShapeDtype(size, np.float32) for size in ((96, 48), (48, 96), (96, 48))]
    return sw.plan(mlp, *shapes, mesh="d=6", in_specs=("[_, d]", None, None))


PLANS = {
    "numpy": numpy_plan,
    "free": step_plan,
    "three": lambda: step_plan("a=3, b=2"),
    "zero3": lambda: step_plan("d=4", recipe="zero3"),
    "megatron": lambda: step_plan(recipe="megatron"),
    "forward": lambda: sw.plan(Model(2), torch.zeros(4, 8, dtype=torch.long), mesh="d=2"),
}


@pytest.fixture(scope="module", params=PLANS)
def view(request):
    return PLANS[request.param]().overview


def test_the_step_is_compute_and_what_is_exposed(view):
    timeline = simulate(view.program, view.hardware, view.plan.complete.graph)
    assert view.step == view.compute + view.exposed == timeline.total
    assert sum(view.schedule.exposed.values()) == view.exposed
    assert sum(stall.end - stall.start for stall in view.schedule.stalls) == view.exposed
    assert sum(c + e for c, e in view.phases.values()) == view.step
    ours = view.plan.cost
    assert (ours.compute, ours.exposed) == (view.compute, view.exposed)


def test_modules_add_up(view):
    total = sum(module.total.time for module in view.modules)
    assert total == view.step
    assert sum(module.total.communication for module in view.modules) == view.communication
    assert sum(module.total.memory for module in view.modules) == view.plan.memory
    assert sum(module.total.sent for module in view.modules) == view.program.bytes
    for top in view.modules:
        for module in top.walk():
            parts = [module.own, *(child.total for child in module.children)]
            assert module.total.time == sum(part.time for part in parts)
            assert module.total.memory == sum(part.memory for part in parts)
    shown = sum((module.total.collectives for module in view.modules), Counter())
    assert shown == Counter(c.kind for c in view.program.collectives)


def test_memory_is_the_plans_to_the_byte(view):
    profile = memory_profile(view.program, RESIDENT, view.plan.complete.graph)
    assert view.plan.memory == profile.peak == sum(view.peak_kinds.values()) == sum(item.bytes for item in view.held)
    assert view.peak_kinds == profile.by_kind
    by_event = bytes_by_event(view.memory.spans, len(events_of(view.program)))
    assert max(by_event) == profile.peak
    assert by_event[view.memory.event + 1] == profile.peak


def test_traffic_is_all_that_is_sent(view):
    assert sum(item.bytes for item in view.traffic) == view.program.bytes
    assert sum(item.count for item in view.traffic) == len(view.program.collectives)
    assert sum(item.exposed for item in view.traffic) == view.exposed


def test_other_forms_have_the_same_figures(view):
    record = json.loads(json.dumps(view.to_json()))
    assert record["step_ps"] == record["compute_ps"] + record["exposed_ps"] == view.step
    events = trace_events(view)["traceEvents"]
    lanes = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    spans = [e for e in events if e["ph"] == "X"]
    by_lane = Counter()
    for event in spans:
        by_lane[lanes[event["tid"]]] += round(event["dur"] * 1e6)
    assert by_lane["compute"] == view.compute
    assert by_lane["exposed communication"] == view.exposed
    rows = [line.split(",") for line in instructions_csv(view).splitlines()]
    assert len(rows) == len(view.program.instrs) + 1
    assert sorted(int(row[0]) for row in rows[1:]) == list(range(len(view.program.instrs)))


def test_the_text_is_short_and_the_listing_in_order(view):
    text = plan_text(view)
    assert len(text.splitlines()) <= 60
    assert "exposed communication" in text
    assert "\nall " in text
    lines = listing(view).splitlines()
    heads = [line for line in lines if line.endswith("exposed communication")]
    assert [head.partition(":")[0] for head in heads] == list(view.phases)
    assert len([line for line in lines if "f32[" in line or "i64[" in line]) >= len(view.program.instrs) - 5


def test_equal_layers_stand_once():
    view = step_plan("d=4", layers=5, recipe="zero3").overview
    rows = {module.label: module for top in view.modules for module in top.walk()}
    assert rows["0-4"].count == 5
    assert {child.label for child in rows["0-4"].children} >= {"norm", "up", "down"}
    assert rows["0-4"].paths == tuple(f"layers.{i}" for i in range(5))
    text = plan_text(view)
    assert "layers.0-4" in text
    assert len([line for line in text.splitlines() if " up " in line]) == 1


def test_unequal_layers_do_not():
    view = step_plan("d=4", layers=4, recipe=None, constraints={"layers.2.up.weight": "[d, _]"}).overview
    labels = {module.label for top in view.modules for module in top.walk()}
    assert "2" in labels
    assert not any(label.startswith("0-") and int(label[2:]) >= 2 for label in labels if label[2:].isdigit())


SENTENCES = {
    "dp": "data parallel over d",
    "zero1": "data parallel with optimizer state split (ZeRO-1) over d",
    "zero3": "data parallel with weights and state split (ZeRO-3) over d; "
    "7 of 20 gathered weights are gathered again for the backward pass",
    "replicated": "replicated over d",
}


@pytest.mark.parametrize("recipe", SENTENCES)
def test_recipes_by_their_sentences(recipe):
    assert step_plan("d=4", recipe=recipe).overview.sentence == SENTENCES[recipe]


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ("megatron", ("data parallel over dp", "tensor parallel over tp")),
        ("fsdp+tp", ("data parallel with weights and state split (ZeRO-3) over dp", "tensor parallel over tp")),
    ],
)
def test_recipes_of_two_axes(recipe, words):
    text = step_plan(recipe=recipe).overview.sentence
    assert all(word in text for word in words), text


def test_names_of_the_user_cannot_act():
    def program(x):
        return x + 1

    program.__name__ = program.__qualname__ = "a\x1b[2J<script>"
    plan = sw.plan(program, sw.ShapeDtype((8, 8), np.float32), mesh="d=2")
    assert "\x1b" not in str(plan)
    assert "\x1b" not in repr(plan)
    assert "\x1b" not in plan.trace()


def test_everything_is_there_when_asked_for():
    plan = step_plan("d=4", layers=2)
    assert all(f"  {name}: {spec}" in plan.text(all=True) for name, spec in plan.specs.items())


def test_figures_add_up_where_communication_slows_compute_down():
    from dataclasses import replace

    plan = step_plan("d=4", layers=2, recipe="zero3")
    view = replace(plan.overview, hardware=replace(plan.overview.hardware, contention=40))
    assert view.step == view.compute + view.exposed == sum(module.total.time for module in view.modules)
    assert view.step == simulate(view.program, view.hardware, view.plan.complete.graph).total
    assert view.compute >= plan.overview.compute
    assert sum(view.schedule.exposed.values()) == view.exposed


def test_bytes_are_told_by_axis():
    plan = step_plan(recipe="fsdp+tp")
    (line,) = [line for line in str(plan).splitlines() if line.startswith("communication")]
    axes = {item.axes for item in plan.overview.traffic}
    assert len(axes) > 1
    assert all(f" over {name}" in line for name in axes)


def test_whether_weights_are_gathered_again():
    again = "gathered weights are gathered again for the backward pass"
    assert again in step_plan("d=4", recipe="zero3").overview.sentence
    assert "gathered" not in step_plan("d=4", recipe="zero1").overview.sentence

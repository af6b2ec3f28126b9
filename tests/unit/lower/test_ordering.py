"""Orders of Programs: what `ordered` makes, and any valid one: the same numbers, memory as said, time within bounds."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import shardwright as sw
from shardwright import Graph, Program
from shardwright.cost import H100, RESIDENT, memory_profile, program_cost, simulate
from shardwright.cost.profile import HELD, program_memory
from shardwright.errors import VerifyError
from shardwright.frontends.numpy import prepare
from shardwright.ir.order import BUCKETED, RUN, START, WAIT, bucket_key, check_order, events_of
from shardwright.ir.program import Event
from shardwright.lower import ordered
from shardwright.lower.ordering import _SIZES, _Windows
from shardwright.proof.proving import prove
from shardwright.run import VirtualEngine, scatter

Make = Callable[[int], tuple[Graph, Program]]


def any_order(program: Program, seed: int) -> Program:
    """Local instructions in their order; collectives started and waited for at random, some of them together."""
    draw = random.Random(seed)
    makers = {value: n for n, instr in enumerate(program.instrs) for value in instr.results}
    here, events = set(program.inputs), list[Event]()
    left, started = list(range(len(program.instrs))), list[tuple[int, ...]]()
    while left or started:
        ready = [n for n in left if all(value in here for value in program.instrs[n].inputs)]
        collectives = [n for n in ready if program.instrs[n].is_collective]
        local = [n for n in left if not program.instrs[n].is_collective][:1]
        choices = ([START] * 2 if collectives else []) + [RUN] * (local[:1] == [n for n in ready if n in local])
        choices = [c for c in choices if c != RUN or local] + [WAIT] * bool(started)
        kind = draw.choice(choices)
        if kind == RUN:
            members: tuple[int, ...] = (local[0],)
        elif kind == START:
            first = draw.choice(collectives)
            key = bucket_key(program, program.instrs[first])
            alike = [n for n in collectives if bucket_key(program, program.instrs[n]) == key]
            alike = alike if program.instrs[first].op in BUCKETED else [first]
            members = tuple(sorted({first, *draw.sample(alike, draw.randint(0, len(alike)))}))
            started.append(members)
        else:
            members = started.pop(draw.randrange(len(started)))
        events.append(Event(kind, members))
        if kind != WAIT:
            left = [n for n in left if n not in members]
        if kind != START:
            here |= {value for n in members for value in program.instrs[n].results}
    assert makers.keys() <= here
    return check_order(replace(program, order=tuple(events)))


def ran(program: Program, donate: bool = False) -> tuple[list[Any], Any]:
    generator = np.random.default_rng(0)
    shards = []
    for value in program.inputs:
        local = program.values[value]
        whole = generator.integers(-3, 4, local.type.shape).astype(np.float32)
        shards.append(scatter(whole, local.spec))
    engine = VirtualEngine(program.mesh, prepare)
    outputs, executed = engine.compile(program).run(shards, donate=donate)
    return [part for shards in outputs for part in shards], executed


@pytest.mark.parametrize("seed", range(0, 240, 3))
def test_any_order_gives_the_same_numbers_in_the_memory_it_says(seed: int, random_program: Make) -> None:
    graph, program = random_program(seed)
    expected, before = ran(program)
    cost = program_cost(program, H100, graph)
    for order in (ordered(program, H100, graph), any_order(program, seed), any_order(program, seed + 1)):
        found, executed = ran(order)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)
        assert executed.collectives == before.collectives == program.collectives
        assert executed.starts == sum(event.kind == START for event in events_of(order))
        assert executed.peak_bytes == program_memory(order, HELD)
        assert ran(order, donate=True)[1].peak_bytes == program_memory(order, RESIDENT)
        profile = memory_profile(order, RESIDENT, graph)
        assert sum(item.bytes for item in profile.alive) == profile.peak
        time = simulate(order, H100, graph)
        assert time.compute == cost.compute
        assert max(time.compute, time.total - time.communication) <= time.total <= time.compute + time.communication
        assert time.communication <= cost.communication, "starts that are shared cost no more than their members"
    assert simulate(ordered(program, H100, graph), H100, graph).total <= simulate(program, H100, graph).total


def gathers(count: int = 3, size: int = 8) -> Program:
    """Of all inputs, which are then added up one by one."""

    def add(*xs: Any) -> Any:
        total = np.exp(xs[0])
        for x in xs[1:]:
            total = np.exp(total) + x
        return total

    mapped = sw.shard_map(add, "d=4", in_specs="[d, _]", out_specs="[_, _]")
    return replace(mapped.program(*(np.ones((size, 4)) for _ in range(count))), order=())


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda events: events[1:], "not started|leaves|reads"),
        (lambda events: [*events, events[0]], "second time"),
        (lambda events: [*events[:-1]], "leaves|does not wait"),
        (lambda events: events[::-1], "not started|before it is there"),
        (lambda events: [e._replace(kind=RUN) if e.kind == START else e for e in events], "started, all else is run"),
        (lambda events: [e for e in events if e.kind != WAIT], "before it is there|does not wait"),
        (lambda events: [e for e in events if e.kind != RUN], "leaves|before it is there"),
        (lambda events: [Event(START, tuple(range(4))), *events], "not alike|before it is there|all else"),
        (lambda events: [Event(START, (99,)), *events], "there are not"),
        (lambda events: [Event(RUN, ()), *events], "there are not"),
    ],
)
def test_orders_that_are_not_right_are_refused(change: Any, text: str) -> None:
    program = gathers()
    events = list(program.in_turn)
    check_order(replace(program, order=tuple(events)))
    with pytest.raises(VerifyError, match=text):
        check_order(replace(program, order=tuple(change(events))))


def test_the_proof_covers_the_order() -> None:
    program, graph = step_of(64, 2)
    assert program.order
    prove(graph, program)
    events = [event for event in program.order if event.kind != WAIT]
    with pytest.raises(VerifyError, match=r"before it is there|does not wait"):
        prove(graph, replace(program, order=tuple(events)))


def step_of(width: int, layers: int, recipe: str = "dp") -> tuple[Program, Graph]:
    torch = pytest.importorskip("torch")
    blocks = ([torch.nn.Linear(width, width), torch.nn.Tanh()] for _ in range(layers))
    model = torch.nn.Sequential(*(module for block in blocks for module in block))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = sw.plan(model, torch.zeros(16, width), mesh="dp=4", optimizer=optimizer, recipe=recipe, hardware="h100",
                   loss=lambda out: out.square().mean())  # fmt: skip
    return plan.program, plan.complete.graph


def starts(program: Program) -> list[Event]:
    return [event for event in events_of(program) if event.kind == START]


def most_under_way(program: Program, op: str) -> int:
    """How many of a kind of collective were started and not yet waited for, at most."""
    now, most = 0, 0
    for kind, members in events_of(program):
        if kind != RUN and program.instrs[members[0]].op == op:
            now += 1 if kind == START else -1
            most = max(most, now)
    return most


def test_small_reductions_share_a_start() -> None:
    program, graph = step_of(64, 4)
    assert Counter(c.kind for c in program.collectives)["all_reduce"] >= 8
    assert len(starts(program)) <= 2, "the loss, and all gradients"
    plain = replace(program, order=())
    assert simulate(program, H100, graph).total < simulate(plain, H100, graph).total


def test_a_bucket_is_full_where_the_link_is_at_its_rate() -> None:
    """Weights of 4 MiB: some, not all of them, leave together."""
    program, _ = step_of(1024, 12)
    sizes = [sum(program.instrs[n].bytes for n in event.members) for event in starts(program)]
    assert 3 <= len(sizes) < len(program.collectives) / 2
    assert max(sizes) < sum(sizes) / 2


@pytest.mark.parametrize("recipe", ["dp", "zero3"])
def test_what_does_not_fit_is_not_sent_together(recipe: str) -> None:
    program, graph = step_of(256, 6, recipe)
    plain = replace(program, order=())
    least, most = program_memory(plain, RESIDENT), program_memory(program, RESIDENT)
    assert most > least
    tight = ordered(plain, H100, graph, limit=(least + most) // 2)
    assert least <= program_memory(tight, RESIDENT) <= (least + most) // 2
    assert program_memory(ordered(plain, H100, graph, limit=1), RESIDENT) == least
    times = [simulate(order, H100, graph).total for order in (program, tight, plain)]
    assert times == sorted(times)


def test_weights_are_gathered_ahead_and_gradients_leave_as_they_appear() -> None:
    """No more than a few buckets ahead of the one that is needed."""
    program, graph = step_of(2048, 8, "zero3")
    time = simulate(program, H100, graph)
    plain = simulate(replace(program, order=()), H100, graph)
    assert plain.exposed == plain.communication
    assert time.total < 1.1 * max(time.compute, time.communication)
    assert 2 <= most_under_way(program, "all_gather") <= 4


def test_gradients_do_not_pile_up() -> None:
    """A backend keeps what is sent until it is waited for; so few reductions at a time are not."""
    program, _ = step_of(2048, 8, "zero3")
    plain = replace(program, order=())
    weight = 2048 * 2048 * 4
    assert program_memory(program, RESIDENT) - program_memory(plain, RESIDENT) < 6 * weight
    assert 1 <= most_under_way(program, "reduce_scatter") <= 3


@pytest.mark.parametrize(("way", "step"), [("_further", (1024, 16, "zero3")), ("_grown", (512, 16, "zero1"))])
def test_other_ways_to_order_where_something_shows(
    way: str, step: tuple[int, int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gathers run far ahead where a link falls behind; buckets are small where there is nothing to hide behind."""
    program, graph = step_of(*step)
    monkeypatch.setattr(f"shardwright.lower.ordering.{way}", lambda how: how)
    before = ordered(replace(program, order=()), H100, graph)
    assert simulate(program, H100, graph).total < 0.996 * simulate(before, H100, graph).total


def test_what_is_too_large_at_the_peak_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not all buckets of the step: a limit a little below the peak makes it a little slower."""
    program, graph = step_of(512, 16, "zero3")
    plain = replace(program, order=())
    least, most = program_memory(plain, RESIDENT), program_memory(program, RESIDENT)
    limit = most - (most - least) // 4

    def time() -> int:
        tight = ordered(plain, H100, graph, limit=limit)
        assert program_memory(tight, RESIDENT) <= limit
        return simulate(tight, H100, graph).total

    halved = time()
    monkeypatch.setattr("shardwright.lower.ordering._HALVED", 0)
    assert simulate(program, H100, graph).total <= halved < time()


def test_what_no_order_lets_fit_is_not_ordered_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    program, graph = step_of(512, 16, "zero3")
    plain = replace(program, order=())
    made = []
    order = _Windows.order
    monkeypatch.setattr(_Windows, "order", lambda *about: made.append(about) or order(*about))
    assert ordered(plain, H100, graph, limit=1).order == ()
    assert len(made) <= len(_SIZES) + 3

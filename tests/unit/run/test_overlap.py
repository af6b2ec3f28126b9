"""`benchmarks/overlap.py` by a clock that is told: what a rank issues takes just what the simulator says."""

from __future__ import annotations

import argparse
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

pytest.importorskip("transformers")

from gpu_running import inputs_of
from overlap import HostClock, Rank, linked, plan_of, simulated

from shardwright.ir.order import RUN
from shardwright.lower import ordered

TINY = argparse.Namespace(device="cpu", ranks=4, width=32, tokens=8, batch=4, words=64)
COMPUTE = 1e-6
"""Seconds of every call, about."""


@pytest.fixture(scope="module")
def plan() -> Any:
    return plan_of(TINY)


@pytest.mark.parametrize("rate", [1e18, 1e9, 2e7])
def test_a_rank_takes_as_long_as_simulated(plan: Any, rate: float) -> None:
    hardware = linked(plan.hardware, "dp", rate).on(plan.program.mesh)
    program = ordered(replace(plan.program, order=()), hardware, plan.graph)
    program = program if program.order else plan.program
    now, draw = [0.0], random.Random(0)

    def visit(node: Any, call: Any) -> Any:
        now[0] += COMPUTE * draw.random()
        return call()

    rank = Rank(program, hardware, HostClock(now=lambda: now[0]), visit=visit)
    seconds, did, times = rank.run(inputs_of(plan, 0, TINY.words, "cpu"))
    total, compute, communication = simulated(did, times, hardware)
    assert [e for e in did.order if e.kind != RUN] == [e for e in program.order if e.kind != RUN]
    assert seconds == pytest.approx(total, abs=1e-9)
    assert compute == pytest.approx(now[0], abs=1e-9)
    assert max(compute, communication) <= total * (1 + 1e-9) <= (compute + communication) * (1 + 2e-9)
    in_turn = simulated(replace(did, order=one_after_the_other(did.order)), times, hardware)[0]
    assert in_turn == pytest.approx(compute + communication)
    assert rate > 1e10 or total < in_turn


def one_after_the_other(order: Any) -> Any:
    """Everything that is started is waited for at once."""
    waits = {event.members: event for event in order if event.kind == "wait"}
    return tuple(e for event in order if event.kind != "wait" for e in (event, waits.get(event.members)) if e)

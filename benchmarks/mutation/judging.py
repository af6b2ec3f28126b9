"""Whether a mutant changes a result, and whether it is refused."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mutation.subjects import Subject
from shardwright.errors import ShardwrightError
from shardwright.ir.program import Program
from shardwright.proof import prove
from shardwright.run.virtual import VirtualEngine

TOLERANCE = 1e-9
"""Relative difference of floats from which on a result counts as changed."""
LEAST_DIFFERENCE = 1e-13
"""Results that are smaller than this count as zero."""


@dataclass
class Row:
    """What became of the mutants of one kind."""

    made: int = 0
    changing: int = 0
    killed: int = 0
    """Of those that change a result."""
    refused: int = 0
    """Of all."""
    stopped: int = 0
    """Of all, those that stop with an error when they run: no result, so no wrong one."""


@dataclass
class Tally:
    rows: dict[str, Row] = field(default_factory=dict)
    survivors: list[str] = field(default_factory=list)
    alarms: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, other: Tally) -> None:
        for kind, row in other.rows.items():
            mine = self.rows.setdefault(kind, Row())
            for name in ("made", "changing", "killed", "refused", "stopped"):
                setattr(mine, name, getattr(mine, name) + getattr(row, name))
        self.survivors += other.survivors
        self.alarms += other.alarms
        self.counts += other.counts

    def judge(self, kind: str, subject: Subject, mutant: Program, expected: Expected) -> None:
        row = self.rows.setdefault(kind, Row())
        row.made += 1
        why = refusal(subject, mutant)
        row.refused += bool(why)
        try:
            changed = changes(subject, mutant, expected)
        except Exception:  # whatever a broken program raises
            row.stopped += 1
            return
        if not changed:
            return
        row.changing += 1
        row.killed += bool(why)
        if not why:
            self.survivors.append(f"{kind} in {subject.name}: {changed}\n{difference_of(subject.program, mutant)}")


def refusal(subject: Subject, mutant: Program) -> str:
    """Why the proof refuses a Program; nothing if it holds it for right."""
    try:
        prove(subject.graph, mutant, subject.captured)
    except ShardwrightError as error:
        return error.fact
    return ""


Expected = list[list[Any]]
"""For each set of inputs, every output in one piece."""


def expected_of(subject: Subject) -> Expected:
    return [[whole for whole, _ in outputs_of(subject, subject.program, given)] for given in subject.inputs]


def changes(subject: Subject, mutant: Program, expected: Expected) -> str:
    """How a mutant's results differ on any of the inputs; raises what it raises."""
    for given, wanted in zip(subject.inputs, expected):
        found = list(outputs_of(subject, mutant, given))
        for i, ((_, parts), want) in enumerate(zip(found, wanted)):
            for device, (where, part) in enumerate(parts):
                if (apart := distance(part, want[where])) > TOLERANCE:
                    return f"output {i} differs by {apart:.1e} on device {device}"
    return ""


def distance(found: Any, wanted: Any) -> float:
    """The largest difference, relative to the largest number; infinite where shapes, types or infinities differ."""
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return np.inf
    if found.dtype.kind not in "fc":
        return 0.0 if np.array_equal(found, wanted) else np.inf
    finite = np.isfinite(wanted)
    if not np.array_equal(finite, np.isfinite(found)) or not np.array_equal(
        found[~finite], wanted[~finite], equal_nan=True
    ):
        return np.inf
    if not finite.any():
        return 0.0
    scale = max(float(np.abs(wanted[finite]).max()), LEAST_DIFFERENCE)
    return float(np.abs(found[finite] - wanted[finite]).max()) / scale


def outputs_of(
    subject: Subject, program: Program, given: Sequence[Any]
) -> Iterator[tuple[Any, list[tuple[tuple[slice, ...], Any]]]]:
    """Each output in one piece and in the parts that devices hold, replicas and all; what is pending is combined.

    After the outputs the inputs that are updated, in their order, as they are afterwards.
    """
    engine = VirtualEngine.of(program.mesh, subject.framework)
    held = [engine.scatter(x, program.values[value].spec) for x, value in zip(given, program.inputs)]
    with np.errstate(all="ignore"), warnings.catch_warnings(), _without_gradients(subject):
        warnings.simplefilter("ignore")
        shards_of = engine.compile(program)(held)
        for o in (*range(len(program.outputs)), *(o for _, o in sorted(program.updates))):
            local, shards = program.values[program.outputs[o]], shards_of[o]
            for axis, kind in local.spec.partial:
                made = list(shards)
                for group in program.mesh.groups([axis]):
                    total = engine.arrays.combine(kind, [shards[position] for position in group])
                    for position in group:
                        made[position] = total
                shards = made
            parts = [
                (local.spec.local_slices(local.type.shape, position), on_host(shards[position]))
                for position in program.mesh
            ]
            whole = np.zeros(local.type.shape, parts[0][1].dtype)
            for where, part in parts:
                if whole[where].shape != part.shape:
                    raise ValueError(f"a shard of %{local.name} has shape {part.shape}")
                whole[where] = part
            yield whole, parts


def on_host(array: Any) -> Any:
    """As NumPy has it; NumPy has no bfloat16."""
    return np.asarray(array.float() if str(getattr(array, "dtype", "")) == "torch.bfloat16" else array)


def _without_gradients(subject: Subject) -> Any:
    if not subject.is_torch:
        return warnings.catch_warnings()
    import torch

    return torch.no_grad()


def difference_of(good: Program, mutant: Program) -> str:
    """The lines that a mutant has and its original has not."""
    before = set(str(good).splitlines())
    return "\n".join(f"    {line.strip()}" for line in str(mutant).splitlines() if line not in before) or "    (notes)"

"""Public bugs of parallel programs: what the proof says of each, and what comparing losses would have seen.

    python benchmarks/foreign_bugs.py [name ...]

Every case of `foreign_bugs/` is proven twice, as it was and repaired.  Exit code 1 if any answer is not the expected.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from foreign_bugs import Case, cases

import shardwright.torch as swt
from shardwright.frontends.ranks import OUTPUT, Traced
from shardwright.torch.proving import _Proving

TOLERANCE = 1e-6


@dataclass(frozen=True)
class Row:
    """What became of one case."""

    case: Case
    found: frozenset[str]
    line: str
    repaired: bool
    seconds: float
    losses: str

    @property
    def outputs(self) -> bool:
        return self.found == set(self.case.outputs)

    @property
    def right_line(self) -> bool:
        return self.line in [f"{self.case.file.name}:{line}" for line in self.case.lines]

    def cells(self) -> tuple[str, ...]:
        expected = set(self.case.outputs)
        count = f"{len(self.found & expected)} of {len(expected)}"
        if extra := len(self.found - expected):
            count += f", {extra} more"
        marked = ", ".join(map(str, self.case.lines))
        line = f"{marked}" if self.right_line else f"{marked}, not {self.line or 'named'}"
        answers = ("yes" if self.repaired else "NO", "yes" if self.case.hint else "no")
        return (self.case.name, self.case.source, count, line, *answers, f"{self.seconds:.2f}", self.losses)


HEADERS = ("case", "source", "wrong", "line", "repair proven", "hint", "s", "by losses")


def judged(case: Case) -> Row:
    begin = time.perf_counter()
    refused = swt.prove(case.module.wrong, **case.arguments())
    seconds = time.perf_counter() - begin
    cause = refused.cause
    places = (
        [] if cause is None or cause.source is None else [f"{cause.source.file}:{cause.source.line}", *cause.callers]
    )
    named = [place.rpartition("/")[2] for place in places]
    marked = [f"{case.file.name}:{line}" for line in case.lines]
    line = next((place for place in named if place in marked), named[0] if named else "")
    found = frozenset(difference.name for difference in refused.differences)
    repaired = swt.prove(case.module.right, **case.arguments()).proven
    return Row(case, found, line, repaired, seconds, losses(case))


def losses(case: Case) -> str:
    """Whether the wrong program's loss, as the run had it, is the single program's."""
    given: dict[str, Any] = case.arguments()
    given["placements"] = given["placements"] or {}
    ran = _Proving(case.module.wrong, **given).case()
    single, ranks = _loss(ran.single), [_loss(traced) for traced in ran.ranks]
    if single is None:
        return "no loss"
    held = [float(x) for x in ranks if x is not None]
    # Where every rank has the loss of its part of the batch, people look at the mean.
    apart = min(max(abs(x - single) for x in held), abs(float(np.mean(held)) - single)) / max(abs(single), 1e-30)
    return "nothing" if apart <= TOLERANCE else f"off by {apart:.1g}"


def _loss(traced: Traced) -> float | None:
    found = (left.numbers for left in traced.left if left.kind == OUTPUT and left.numbers is not None)
    return next((float(numbers) for numbers in found if not numbers.ndim), None)


def show(rows: list[Row]) -> None:
    lines = [HEADERS, tuple("-" * len(header) for header in HEADERS), *(row.cells() for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADERS))]
    for line in lines:
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths)) + " |")
    silent = sum(row.losses == "nothing" for row in rows)
    print(
        f"\n{len(rows)} bugs: {sum(row.outputs for row in rows)} refused in just what is wrong, "
        f"{sum(row.right_line for row in rows)} with the line, {sum(row.repaired for row in rows)} proven when "
        f"repaired, {sum(row.case.hint for row in rows)} with a hint; {silent} leave the loss as it is to {TOLERANCE:g}"
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="public bugs of parallel programs")
    parser.add_argument("name", nargs="*", help="only these cases")
    given = parser.parse_args(arguments)
    warnings.filterwarnings("ignore", "FSDP2-wrapped module")
    rows = [judged(case) for case in cases() if not given.name or case.name in given.name]
    show(rows)
    return 0 if all(row.outputs and row.repaired for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())

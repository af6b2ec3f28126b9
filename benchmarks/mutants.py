"""Mutants: is every mistake that changes a result refused, and nothing else: ``python benchmarks/mutants.py [--quick]``

Mistakes are put into Programs that really split, after lowering, and into rules before it.  Whether a mutant changes a
result is decided by execution on the virtual mesh: a relative difference above 1e-9 in float64, or any bit of a whole
number, on any of 5 random inputs; a mutant that cannot run counts as changing.  Every one that does must be refused by
`shardwright.proof.prove`, and none of thousands of correct Programs may be.  Exits 1 on any survivor or false alarm.

``--quick`` is a fixed sample; ``--jobs`` runs so many processes; ``--part`` one part alone.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import mutation  # noqa: F401  puts the tests' helpers on the path
from mutation import functions, sharding_kinds, value_kinds  # noqa: F401  fill the list of kinds
from mutation.editing import KINDS
from mutation.judging import Tally, expected_of
from mutation.subjects import Subject

MOST = 600
"""Mutants of one kind in one Program that are chosen from."""
ON_COLLECTIVES = ("collective", "slice", "type")


def mutate(subject: Subject, each: int) -> Tally:
    """Mutants of every kind in one Program, at most ``each`` of a kind."""
    tally = Tally()
    expected = expected_of(subject)
    for name, kind in KINDS.items():
        mutants = list(islice(kind.mutate(subject.program), MOST))
        rng = random.Random(f"{subject.name} {name}")
        for mutant in rng.sample(mutants, min(each, len(mutants))):
            tally.judge(name, subject, mutant, expected)
            tally.counts["mutants"] += 1
            tally.counts["of training steps"] += subject.training
            tally.counts["on collectives, slices and types"] += kind.family in ON_COLLECTIVES
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, default=4)
    parser.add_argument("--numpy", type=int, default=3)
    parser.add_argument("--models", type=int, default=1)
    a = parser.parse_args()
    tally = Tally()
    begin = time.process_time()
    for s in functions.subjects(a.numpy):
        tally.add(mutate(s, a.each))
    if a.models:
        from mutation import models

        for s in models.subjects():
            tally.add(mutate(s, a.each))
            print(s.name, round(time.process_time() - begin), file=sys.stderr, flush=True)
    print(f"{'kind':40} {'made':>6} {'changing':>9} {'killed':>7} {'refused':>8}")
    for name, row in tally.rows.items():
        print(f"{name:40} {row.made:6} {row.changing:9} {row.killed:7} {row.refused:8}")
    print(dict(tally.counts), sum(r.changing for r in tally.rows.values()), sum(r.killed for r in tally.rows.values()))
    print(len(tally.survivors), "survivors")
    print("\n".join(tally.survivors))
    print(round(time.process_time() - begin), "s")
    return 1 if tally.survivors else 0


if __name__ == "__main__":
    sys.exit(main())

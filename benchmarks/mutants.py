"""Mutants: is every mistake that changes a result refused, and nothing else: ``python benchmarks/mutants.py [--quick]``

Mistakes are put into Programs that really split, after lowering, and into rules before it.  Whether a mutant changes a
result is decided by execution on the virtual mesh: a relative difference above 1e-9 in float64, or any bit of a whole
number, on any of 5 random inputs; a mutant that stops with an error has no result.  Every one that changes a result
must be refused by `shardwright.proof.prove`, and none of thousands of correct Programs may be.  Exits 1 on any survivor
or false alarm.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import chain, islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import mutation  # noqa: F401  puts the tests' helpers on the path
from mutation import correct, far_kinds, functions, rule_kinds, sharding_kinds, value_kinds  # noqa: F401
from mutation.editing import KINDS, with_other_notes, without_notes
from mutation.judging import Tally, expected_of
from mutation.subjects import Subject

MOST = 600
"""Mutants of one kind in one Program that are chosen from."""
ON_COLLECTIVES = ("collective", "slice", "type")
Job = tuple[str, object, int]
"""A part, what of it, and how much."""


def in_turn(program: Any) -> Any:
    """Mistakes are made in what a program computes; its order is checked by itself."""
    return replace(program, order=())


def mutate(subject: Subject, each: int) -> Tally:
    """Mutants of every kind in one Program, at most ``each`` of a kind; of some the notes are gone or exchanged."""
    tally = Tally()
    expected = expected_of(subject)
    for name, kind in KINDS.items():
        mutants = list(islice(kind.mutate(in_turn(subject.program)), MOST))
        rng = random.Random(f"{subject.name} {name}")
        for mutant in rng.sample(mutants, min(each, len(mutants))):
            notes = rng.random()
            if notes < 0.15:
                mutant = without_notes(mutant)
            elif notes < 0.3:
                mutant = with_other_notes(mutant, rng)
            tally.judge(name, subject, mutant, expected)
            tally.counts["mutants"] += 1
            tally.counts["of training steps"] += subject.training
            tally.counts["on collectives, slices and element types"] += kind.family in ON_COLLECTIVES
    return tally


def of_functions(name: object, each: int) -> Tally:
    return mutate(functions.mapped(*name), each)  # type: ignore[misc]


def of_steps(name: object, each: int) -> Tally:
    from mutation import models

    model, about = name  # type: ignore[misc]
    return mutate(models.planned(model, **about) if about else models.trained(model), each)


def of_large(name: object, each: int) -> Tally:
    """Mistakes that show at full size only, with and without notes."""
    tally = Tally()
    noted = far_kinds.large(str(name))
    for subject in (noted, far_kinds.bare(noted)):
        expected = expected_of(subject)
        for kind, make in far_kinds.FAR.items():
            mutants = list(islice(make(in_turn(subject.program)), MOST))
            for mutant in random.Random(f"{subject.name} {kind}").sample(mutants, min(each, len(mutants))):
                tally.judge(f"far: {kind}", subject, mutant, expected)
                tally.counts["mutants"] += 1
                tally.counts["at full size only"] += 1
    return tally


def of_rules(name: object, each: int) -> Tally:
    tally = rule_kinds.mutate(str(name), range(each))
    tally.counts["in rules"] = tally.counts["mutants"]
    return tally


def of_correct(what: object, count: int) -> Tally:
    """Correct Programs; what is refused of them."""
    source, begin = what  # type: ignore[misc]
    tally = Tally()
    subjects: Iterator[Subject]
    if source == "models":
        subjects = correct.models(quick=count == 1)
    else:
        subjects = correct.SOURCES[source](range(begin, begin + count))
    for subject in subjects:
        tally.counts["correct programs"] += 1
        alarm = correct.alarm(subject)
        if alarm:
            tally.alarms.append(alarm)
    return tally


PARTS: dict[str, Callable[[object, int], Tally]] = {
    "functions": of_functions,
    "steps": of_steps,
    "large": of_large,
    "rules": of_rules,
    "correct": of_correct,
}


def jobs_of(quick: bool) -> Iterator[Job]:
    if quick:
        yield from (("functions", (name, 0), 1) for name in islice(functions.FUNCTIONS, 8))
        yield from (("steps", (name, {}), 1) for name in ("mlp tensor parallel", "classifier"))
        yield "large", "summed, 16", 1
        yield "rules", "softmax", 1
        yield from (("correct", (source, 0), 40) for source in correct.SOURCES if source != "every op")
        return
    for name in functions.FUNCTIONS:
        splitting = (seed for seed in range(40) if functions.mapped(name, seed).splits)
        yield from (("functions", (name, seed), 3) for seed in islice(splitting, 3))
        yield "rules", name, 3
    from mutation import models

    yield from (("steps", (name, {}), 2) for name in chain(models.CASES, models.LARGE))
    for name in ("mlp tensor parallel", "block", "classifier"):
        yield from (("steps", (name, {"recipe": recipe}), 2) for recipe in ("zero1", "zero3", "megatron"))
    yield from (("large", name, 4) for name in far_kinds.CASES)
    for source, count in (("random graphs", 3000), ("functions", 600), ("planned functions", 500),
                          ("more functions", 800), ("large functions", 400)):  # fmt: skip
        yield from (("correct", (source, begin), 100) for begin in range(0, count, 100))
    yield from (("correct", ("every op", part), 1) for part in range(correct.OP_PARTS))
    yield "correct", ("models", 0), 0


def run(job: Job) -> Tally:
    part, what, count = job
    return PARTS[part](what, count)


def show(tally: Tally) -> None:
    print(f"{'kind':44} {'made':>6} {'stopped':>8} {'changing':>9} {'killed':>7}")
    for name, row in tally.rows.items():
        print(f"{name:44} {row.made:6} {row.stopped:8} {row.changing:9} {row.killed:7}")
    rows = tally.rows.values()
    totals = [sum(getattr(row, name) for row in rows) for name in ("made", "stopped", "changing", "killed")]
    public = sum(bool(KINDS[name].public) for name in tally.rows if name in KINDS)
    print("{:44} {:6} {:8} {:9} {:7}".format("all", *totals))
    print(f"{len(tally.rows)} kinds, {public} of them bugs that projects had in public")
    for what, count in sorted(tally.counts.items()):
        print(f"{count:6} {what}")
    print(f"{len(tally.survivors):6} survivors")
    print(f"{len(tally.alarms):6} false alarms")
    for text in (*tally.survivors, *tally.alarms):
        print(f"- {text}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a fixed sample, within a minute")
    parser.add_argument("--jobs", type=int, default=1, help="so many processes")
    parser.add_argument("--part", choices=PARTS, action="append", help="only this part (may be given more than once)")
    parser.add_argument("--progress", action="store_true", help="a line on stderr after each job")
    given = parser.parse_args(arguments)
    work = [job for job in jobs_of(given.quick) if given.part is None or job[0] in given.part]
    tally, begin = Tally(), time.perf_counter()
    if given.jobs > 1:
        with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
            results = pool.map(run, work)
            _collect(tally, work, results, given.progress)
    else:
        _collect(tally, work, map(run, work), given.progress)
    show(tally)
    print(f"{time.perf_counter() - begin:.0f} s")
    return 1 if tally.survivors or tally.alarms else 0


def _collect(tally: Tally, work: list[Job], results: Iterator[Tally], progress: bool) -> None:
    for job, found in zip(work, results):
        tally.add(found)
        if progress:
            print(*job, f"{len(found.survivors)} survivors", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

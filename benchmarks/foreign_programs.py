"""Random parallel programs and mistakes in them: ``python benchmarks/foreign_programs.py [--quick]``

Programs of others, as `shardwright.torch.prove` takes them, are drawn by seed: correct compositions of blocks, wrappers
and steps on small meshes.  None of them may be refused.  Mistakes are put into the graphs of their ranks; whether a
mutant changes a result is decided by running all ranks on real numbers in float64 (a difference above 1e-9 of the
largest element, on any of 3 random inputs).  Every one that does must be refused.  Exits 1 otherwise.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
from foreign.tally import Tally, judged


def share(seeds: Sequence[int], mutants: int) -> list[int]:
    """How many mutants of each program."""
    more = mutants % len(seeds)
    return [mutants // len(seeds) + (i < more) for i in range(len(seeds))]


def run(job: tuple[int, int], causes: bool = False) -> Tally:
    torch.set_num_threads(1)  # tensors are small
    return judged(*job, causes)


def show(tally: Tally) -> None:
    print(f"{'kind':36} {'made':>6} {'stopped':>8} {'changing':>9} {'refused':>8}")
    for kind, row in sorted(tally.rows.items()):
        print(f"{kind:36} {row.made:6} {row.stopped:8} {row.changing:9} {row.refused:8}")
    totals = [tally.total(name) for name in ("made", "stopped", "changing", "refused")]
    print("{:36} {:6} {:8} {:9} {:8}".format("all", *totals))
    print(f"{tally.programs:6} programs")
    print(f"{len(tally.alarms):6} false alarms")
    print(f"{totals[2]:6} mutants that change a result")
    print(f"{totals[3]:6} of them refused")
    equal = totals[0] - totals[1] - totals[2]
    print(f"{equal:6} mutants that change nothing, {tally.total('equal_refused')} of them refused")
    for title, texts in (("not correct", tally.broken), ("alarm", tally.alarms), ("survivor", tally.survivors),
                         ("no cause named", tally.crashes)):  # fmt: skip
        for text in texts:
            print(f"- {title}: {text}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--mutants", type=int, default=400, help="of all programs together")
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument("--jobs", type=int, default=1, help="so many processes")
    parser.add_argument("--quick", action="store_true", help="20 programs and 40 mutants, within a minute")
    parser.add_argument("--causes", action="store_true", help="look for the cause of each refusal, too")
    given = parser.parse_args(arguments)
    programs, mutants = (20, 40) if given.quick else (given.programs, given.mutants)
    seeds = range(given.seed, given.seed + programs)
    work = list(zip(seeds, share(seeds, mutants)))
    tally, begin = Tally(), time.perf_counter()
    if given.jobs > 1:
        with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
            collect(tally, pool.map(partial(run, causes=given.causes), work))
    else:
        collect(tally, map(partial(run, causes=given.causes), work))
    show(tally)
    print(f"{time.perf_counter() - begin:.0f} s")
    return 1 if tally.survivors or tally.alarms or tally.broken or tally.crashes else 0


def collect(tally: Tally, found: Iterable[Tally]) -> None:
    for one in found:
        tally.add(one)


if __name__ == "__main__":
    sys.exit(main())

"""Discovery beside PyTorch's own rule validator, in one run: ``python benchmarks/discover.py [--all]``

``add``: the samples, placements and world size that the validator tries, by it and by our oracle; and the whole
discovery of the operator, with the attack on its rules.  ``--all``: every operator of the OpInfo database, in CPU
seconds (the goal is 900).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import time
import warnings


def harness(op: str, world: int) -> tuple[float, int]:
    """CPU seconds and combinations of PyTorch's validator."""
    import torch
    from torch.distributed.tensor._ops import strategy_validation

    logging.disable(logging.WARNING)
    # The validator's own way to have a mesh in one process.
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", rank=0, world_size=world, store=FakeStore())
    begin = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()):
        found = strategy_validation.compare_operator(op, "cpu", torch.float32, world)
    return time.process_time() - begin, found.total_combinations


def oracle(op: str, world: int) -> tuple[float, int, int]:
    """CPU seconds, combinations and valid ones of ours, on the same samples."""
    import torch

    from shardwright.discover.judging.oracle import check
    from shardwright.discover.torch.ops import sample_of, torch_operator
    from shardwright.discover.torch.samples import opinfos_named

    operator = torch_operator(f"torch.{op}")
    samples = [
        sample_of(operator, (s.input, *s.args), s.kwargs)
        for info in opinfos_named(op)
        for s in info.sample_inputs("cpu", torch.float64)
    ]
    samples = [s for s in samples if s.tensors and all(array.size for array in s.tensors)]
    begin = time.process_time()
    tables = [check(operator, sample, worlds=(world,), kinds=("sum", "avg", "min", "max")) for sample in samples]
    spent = time.process_time() - begin
    valid = sum(len(found) for table in tables for outputs in table.valid.values() for found in outputs)
    return spent, sum(table.combinations for table in tables), valid


def discovery(op: str) -> dict[str, float]:
    """CPU seconds of the whole discovery by effort: calls, tables, rules, the attack on them."""
    from shardwright.discover import QUICK, THOROUGH, discover
    from shardwright.discover.learn import SURVEY

    found = {}
    for name, effort in (("survey", SURVEY), ("quick", QUICK), ("thorough", THOROUGH)):
        begin = time.process_time()
        discover(f"torch.{op}", effort)
        found[name] = time.process_time() - begin
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--op", default="add")
    options.add_argument("--world", type=int, default=2)
    options.add_argument("--all", action="store_true")
    options.add_argument("--jobs", type=int, default=2)
    asked = options.parse_args()
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    ours, combinations, valid = oracle(asked.op, asked.world)
    whole = discovery(asked.op)
    theirs, judged = harness(asked.op, asked.world)
    print(f"{asked.op}: ours      {ours:8.3f} CPU s, {combinations} combinations, {valid} valid")
    print(f"{asked.op}: validator {theirs:8.3f} CPU s, {judged} combinations")
    print(f"ratio {100 * ours / theirs:.2f}%   goal: 1% at most")
    for effort, spent in whole.items():
        print(f"{asked.op}: discovery, {effort}: {spent:8.3f} CPU s, {100 * spent / theirs:.2f}%   goal: 2% at most")
    if asked.all:
        from shardwright.discover.everything import discover_all, summary_text
        from shardwright.discover.torch.samples import opinfo_names

        verdicts = discover_all(opinfo_names(), jobs=asked.jobs)
        print(summary_text(verdicts))
        slow = sorted(verdicts, key=lambda verdict: -verdict.seconds)[:10]
        print("slowest:", ", ".join(f"{verdict.name} {verdict.seconds:.1f} s" for verdict in slow))


if __name__ == "__main__":
    main()

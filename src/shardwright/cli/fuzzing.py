"""``shardwright fuzz``: random programs, split at random and held against themselves on one device."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import click

from .output import as_json, for_file, write_file


@click.command()
@click.option("--seconds", type=click.FloatRange(min=0), help="Stop after so long.")
@click.option("--programs", type=click.IntRange(min=1), help="Stop after so many programs; 100 if nothing is said.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="The first program's seed.")
@click.option("--frontend", type=click.Choice(["numpy", "torch"]), default="numpy", show_default=True)
@click.option("--most", type=click.IntRange(min=1), default=20, show_default=True, help="Stop after so many failures.")
@click.option("--json", "form", flag_value="json", help="Print what was found as JSON.")
@click.option("-o", "--out", type=click.Path(path_type=Path), metavar="FILE", callback=for_file,
              help="Write what is printed to FILE.")  # fmt: skip
@click.pass_context
def fuzz(
    ctx: click.Context,
    seconds: float | None,
    programs: int | None,
    seed: int,
    frontend: str,
    most: int,
    form: str | None,
    out: Path | None,
) -> None:
    """Split random programs at random; print a short script of each that goes wrong.

    \b
    Each program is split by hand and by a solver, proven, run on the virtual mesh
    and compared with itself on one device: numbers, collectives, peak memory, limits.
    The same seed gives the same programs.  Exit: 0 nothing is wrong, 1 something is.
    """
    from ..fuzz import Failure, Tally, fuzz_programs

    shown = sys.stderr.isatty()

    def told(tally: Tally, failure: Failure | None) -> None:
        if failure is not None and form is None:
            click.echo(f"{chr(13) * shown}seed {failure.seed}:\n{failure.script}\n")
        elif shown:
            click.echo(f"\r\x1b[K{tally}", err=True, nl=False)

    count = 100 if programs is None and seconds is None else programs
    seeds: Any = itertools.count(seed) if count is None else range(seed, seed + count)
    tally = fuzz_programs(seeds, frontend, seconds, most, told)
    if shown:
        click.echo(err=True)
    last = seed + tally.programs - 1
    text = f"seeds {seed} to {last}: {tally}"
    found = [{"seed": failure.seed, "script": failure.script} for failure in tally.failures]
    if form == "json":
        record = {"frontend": frontend, "first": seed, "last": last, "programs": tally.programs,
                  "backward": tally.backward, "verdicts": dict(tally.verdicts), "failures": found}  # fmt: skip
        text = as_json(record)
    click.echo(text)
    if out is not None:
        scripts = [] if form == "json" else [f"seed {failure['seed']}:\n{failure['script']}\n" for failure in found]
        write_file(out, "\n".join([*scripts, text]) + "\n")
    ctx.exit(1 if tally.failures else 0)

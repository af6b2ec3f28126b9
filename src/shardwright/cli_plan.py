"""Planning on the command line: ``plan``, ``compare``, ``explain``, ``calibrate``.

A program is named ``FILE.py:NAME`` or ``module:NAME``: a function without parameters that returns what
`shardwright.plan` takes, ``(fn, args)`` or ``(fn, args, keywords)``.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from pathlib import Path
from typing import Any

import click

from .errors import SpecError

_UNITS = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40, "kb": 10**3, "mb": 10**6, "gb": 10**9}


def read_bytes(text: str) -> int:
    """
    >>> read_bytes("40GiB"), read_bytes("1.5 mb"), read_bytes("512")
    (42949672960, 1500000, 512)
    """
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*", text)
    if found is None or found[2].lower() not in _UNITS:
        raise SpecError(f"{text!r} is no amount of memory", help="write 40GiB, 80GB or a number of bytes")
    return int(float(found[1]) * _UNITS[found[2].lower()])


def load_program(where: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The function and arguments that ``FILE.py:NAME`` gives."""
    place, colon, name = where.rpartition(":")
    if not colon:
        raise SpecError(f"{where!r} does not say which program", help="write FILE.py:NAME or module:NAME")
    if place.endswith(".py"):
        path = Path(place)
        spec = importlib.util.spec_from_file_location(path.stem, path) if path.is_file() else None
        if spec is None or spec.loader is None:
            raise SpecError(f"there is no file {place!r}")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    else:
        try:
            module = importlib.import_module(place)
        except ModuleNotFoundError as error:
            raise SpecError(f"module {place!r} cannot be imported: {error}") from None
    make = getattr(module, name, None)
    if not callable(make):
        raise SpecError(f"{place} has no function {name!r}")
    made = make()
    if not isinstance(made, tuple) or len(made) not in (2, 3) or not callable(made[0]):
        raise SpecError(f"{name}() must return (fn, args) or (fn, args, keywords)")
    return made[0], tuple(made[1]), dict(made[2]) if len(made) == 3 else {}


_PROGRAM = click.argument("program", metavar="FILE.py:NAME")
_MESH = click.option("--mesh", required=True, help='Devices, such as "dp=2, tp=4".')
_HARDWARE = click.option("--hardware", default="h100", show_default=True, help="A preset or a TOML file.")
_MEMORY = click.option("--memory", help="Limit per device, such as 40GiB.")


@click.command()
@_PROGRAM
@_MESH
@_HARDWARE
@_MEMORY
@click.option("--recipe", help="Force a named baseline instead of planning.")
@click.option("--solver", default="auto", show_default=True)
@click.option("--time-limit", type=float, help="Seconds; the best plan until then is returned with its gap.")
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the plan to this file.")
@click.option("--trace", is_flag=True, help="Print the program's lines with what each costs.")
def plan(
    program: str, mesh: str, hardware: str, memory: str | None, recipe: str | None, solver: str,
    time_limit: float | None, out: Path | None, trace: bool,
) -> None:  # fmt: skip
    """Find the fastest way to split a program over a mesh."""
    from .api import plan as make_plan

    fn, args, keywords = load_program(program)
    limit = read_bytes(memory) if memory else None
    made = make_plan(
        fn, *args, mesh=mesh, hardware=hardware, memory=limit, recipe=recipe, solver=solver, time_limit=time_limit,
        **keywords,
    )  # fmt: skip
    click.echo(str(made))
    for name, spec in made.specs.items():
        click.echo(f"  {name}: {spec}")
    if trace:
        click.echo(made.trace())
    if out is not None:
        out.write_text(made.to_json())
        click.echo(f"written to {out}")


@click.command()
@_PROGRAM
@_MESH
@_HARDWARE
@_MEMORY
def compare(program: str, mesh: str, hardware: str, memory: str | None) -> None:
    """The planner's plan beside named baselines."""
    from .api import compare as make_table

    fn, args, keywords = load_program(program)
    limit = read_bytes(memory) if memory else None
    click.echo(make_table(fn, *args, mesh=mesh, hardware=hardware, memory=limit, **keywords))


@click.command()
@_PROGRAM
@click.argument("name")
@_MESH
@_HARDWARE
def explain(program: str, name: str, mesh: str, hardware: str) -> None:
    """Why an input lies as it does: what every other sharding of it would cost."""
    from .api import plan as make_plan

    fn, args, keywords = load_program(program)
    click.echo(make_plan(fn, *args, mesh=mesh, hardware=hardware, **keywords).explain(name))


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("hardware.toml"), show_default=True)
@click.option("--quick", is_flag=True, help="Fewer sizes.")
def calibrate(out: Path, quick: bool) -> None:
    """Measure this machine; with torchrun, its collectives, too.  The file goes to --hardware."""
    from .run.calibrate import calibrate as measure

    measure(out, quick)
    click.echo(f"written to {out}")


COMMANDS = (plan, compare, explain, calibrate)

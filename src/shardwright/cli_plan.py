"""Planning on the command line: ``plan``, ``compare``, ``explain``, ``calibrate``.

A program is named ``FILE.py:NAME`` or ``module:NAME``: a function without parameters that returns what
`shardwright.plan` takes, ``(fn, args)`` or ``(fn, args, keywords)``.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from .errors import SpecError


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
_PIN = click.option("--pin", multiple=True, metavar="NAME=SPEC", help='A sharding, such as "w*=[_, tp]".')
_FORBID = click.option("--forbid", multiple=True, metavar="NAME=AXIS", help="An axis that is not to split a tensor.")
_CAP = click.option("--cap-gather", metavar="BYTES", help="The most that an all_gather may leave on a device.")


def read_constraints(pins: Sequence[str], forbidden: Sequence[str], cap: str | None) -> list[Any]:
    """What `shardwright.plan` takes as constraints."""
    from .api import cap_gather, forbid, pin

    def halves(text: str, what: str) -> tuple[str, str]:
        name, equals, rest = text.partition("=")
        if not equals or not name or not rest:
            raise SpecError(f"--{what} {text!r} does not say of what", help=f"write --{what} NAME=...")
        return name, rest

    found: list[Any] = [pin(*halves(text, "pin")) for text in pins]
    found += [forbid(*halves(text, "forbid")) for text in forbidden]
    return [*found, *([cap_gather(cap)] if cap is not None else [])]


@click.command()
@_PROGRAM
@_MESH
@_HARDWARE
@_MEMORY
@_PIN
@_FORBID
@_CAP
@click.option("--recipe", help="Force a named baseline instead of planning.")
@click.option("--solver", default="auto", show_default=True)
@click.option("--learn", is_flag=True, help="Study ops without a rule by running them on small shapes.")
@click.option("--rule-book", type=click.Path(path_type=Path), help="Where rules that were learned are kept.")
@click.option("--time-limit", type=float, help="Seconds; the best plan until then is returned with its gap.")
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the plan to this file.")
@click.option("--trace", is_flag=True, help="Print the program's lines with what each costs.")
def plan(
    program: str, mesh: str, hardware: str, memory: str | None, pin: tuple[str, ...], forbid: tuple[str, ...],
    cap_gather: str | None, recipe: str | None, solver: str, learn: bool, rule_book: Path | None,
    time_limit: float | None, out: Path | None, trace: bool,
) -> None:  # fmt: skip
    """Find the fastest way to split a program over a mesh."""
    from .api import plan as make_plan

    fn, args, keywords = load_program(program)
    constraints = read_constraints(pin, forbid, cap_gather)
    made = make_plan(
        fn, *args, mesh=mesh, hardware=hardware, memory=memory, constraints=constraints, recipe=recipe, solver=solver,
        time_limit=time_limit, learn=learn, rule_book=rule_book, **keywords,
    )  # fmt: skip
    click.echo(str(made))
    for note in made.notes:
        click.echo(f"  note: {note}")
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
    click.echo(make_table(fn, *args, mesh=mesh, hardware=hardware, memory=memory, **keywords))


@click.command()
@_PROGRAM
@click.argument("name")
@_MESH
@_HARDWARE
@_MEMORY
@_PIN
@_FORBID
@_CAP
def explain(
    program: str, name: str, mesh: str, hardware: str, memory: str | None, pin: tuple[str, ...],
    forbid: tuple[str, ...], cap_gather: str | None,
) -> None:  # fmt: skip
    """Why a value lies as it does: what other shardings of it would cost, and what makes them dearer."""
    from .api import plan as make_plan

    fn, args, keywords = load_program(program)
    constraints = read_constraints(pin, forbid, cap_gather)
    made = make_plan(fn, *args, mesh=mesh, hardware=hardware, memory=memory, constraints=constraints, **keywords)
    click.echo(made.explain(name))


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("hardware.toml"), show_default=True)
@click.option("--quick", is_flag=True, help="Fewer sizes.")
def calibrate(out: Path, quick: bool) -> None:
    """Measure this machine; with torchrun, its collectives, too.  The file goes to --hardware."""
    from .run.calibrate import calibrate as measure

    measure(out, quick)
    click.echo(f"written to {out}")


COMMANDS = (plan, compare, explain, calibrate)

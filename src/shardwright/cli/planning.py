"""Planning on the command line: ``plan``, ``verify``, ``compare``, ``explain``, ``calibrate``.

A program is named ``FILE.py:NAME`` or ``module:NAME``: a function without parameters that returns what
`shardwright.plan` takes, ``(fn, args)`` or ``(fn, args, keywords)``.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from ..errors import SpecError, near_misses

Command = click.Command
RETURNS = "(fn, args) or (fn, args, keywords)"
NAMED = """
\b
FILE.py:NAME (or module:NAME) names a function without parameters that returns
(fn, args) or (fn, args, keywords), where fn(*args, **keywords) is what is to be
split: a function of NumPy arrays or PyTorch tensors, or a PyTorch module.
Shapes are enough as arguments.  Other keywords of shardwright.plan, such as
optimizer and loss for a training step, may be among the keywords.

\b
    # train.py
    import numpy as np, shardwright as sw
    def mlp(x, w1, w2):
        return np.maximum(x @ w1, 0) @ w2
    def program():
        sizes = (4096, 512), (512, 2048), (2048, 512)
        return mlp, [sw.ShapeDtype(size, np.float32) for size in sizes]

\b
    $ shardwright {command}
"""


def _says(command: str) -> Callable[[Command], Command]:
    """The command's help, with what a program is and an example."""

    def add(command_of: Command) -> Command:
        command_of.help = f"{command_of.help}\n{NAMED.format(command=command)}"
        return command_of

    return add


def for_file(ctx: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    """A path that a file can be written to, looked at before any work is done."""
    if path is None:
        return None
    name = option.opts[-1]
    if path.is_dir():
        raise SpecError(f"{name} {str(path)!r} is a folder", help="name a file in it")
    if not path.parent.is_dir():
        raise SpecError(
            f"{name} {str(path)!r}: there is no folder {str(path.parent)!r}", help="make it, or name another"
        )
    return path


def for_folder(ctx: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    """A path at which a folder is or can be made."""
    for part in () if path is None else (path, *path.parents):
        if part.exists() and not part.is_dir():
            raise SpecError(f"{option.opts[-1]} {str(path)!r}: {str(part)!r} is no folder", help="name another")
    return path


def write_file(path: Path, text: str) -> None:
    """Write, or say why that cannot be."""
    try:
        path.write_text(text)
    except OSError as error:
        raise SpecError(f"{str(path)!r} cannot be written: {error.strerror}", help="name another file") from None


def call_target(where: str, returns: str) -> Any:
    """What the function that ``FILE.py:NAME`` names returns; ``returns`` says what that should be."""
    place, colon, name = where.rpartition(":")
    if not colon:
        raise SpecError(f"{where!r} does not say which program", help="write FILE.py:NAME or module:NAME")
    if place.endswith(".py"):
        path = Path(place)
        spec = importlib.util.spec_from_file_location(path.stem, path) if path.is_file() else None
        if spec is None or spec.loader is None:
            raise SpecError(f"there is no file {place!r}")
        module = importlib.util.module_from_spec(spec)
        sys.path.insert(0, str(path.resolve().parent))  # what stands beside the file is found, as `python FILE` does
        spec.loader.exec_module(module)
    else:
        try:
            module = importlib.import_module(place)
        except ModuleNotFoundError as error:
            raise SpecError(f"module {place!r} cannot be imported: {error}") from None
    make = getattr(module, name, None)
    if not callable(make):
        names = [n for n, item in vars(module).items() if inspect.isfunction(item)]
        raise SpecError(f"{place} has no function {name!r}", help=near_misses(name, names))
    help = f"name a function without parameters that returns {returns}"
    if not _needs_nothing(make):
        raise SpecError(f"{name} takes arguments: it is called without any, to get the program", help=help)
    return make()


def load_program(where: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The function and arguments that ``FILE.py:NAME`` gives."""
    name = where.rpartition(":")[2]
    help = f"name a function without parameters that returns {RETURNS}"
    made = call_target(where, RETURNS)
    if not isinstance(made, tuple) or len(made) not in (2, 3) or not callable(made[0]):
        raise SpecError(f"{name}() must return {RETURNS}, not {_told(made)}", help=help)
    args, keywords = made[1], made[2] if len(made) == 3 else {}
    if not isinstance(args, list | tuple) or not isinstance(keywords, dict):
        raise SpecError(
            f"{name}() must return {RETURNS}, not {_told(made)}",
            help="args is a list or a tuple, also of one argument: (fn, [x])",
        )
    return made[0], tuple(args), keywords


def _with(keywords: dict[str, Any], **options: Any) -> dict[str, Any]:
    """What the program says, and what the command line says."""
    for name in options:
        if name in keywords:
            raise SpecError(
                f"the program's keywords say {name}, which the command line says", help="leave it out of the keywords"
            )
    return {**keywords, **options}


def _needs_nothing(make: Callable[..., Any]) -> bool:
    """Whether something can be called without arguments, as far as it says."""
    try:
        inspect.signature(make).bind()
    except TypeError:
        return False
    except ValueError:  # builtins and the like do not say
        return True
    return True


def _told(made: Any) -> str:
    inner = ", ".join(type(item).__name__ for item in made) if isinstance(made, tuple) else ""
    return f"({inner})" if isinstance(made, tuple) else f"a {type(made).__name__}"


_PROGRAM = click.argument("program", metavar="FILE.py:NAME")
_MESH = click.option("--mesh", required=True, help='Devices, such as "dp=2, tp=4".')
_HARDWARE = click.option("--hardware", default="h100", show_default=True, help="A preset or a TOML file.")
_MEMORY = click.option("--memory", help="Limit per device, such as 40GiB.")
_PIN = click.option("--pin", multiple=True, metavar="NAME=SPEC", help='A sharding, such as "w*=[_, tp]".')
_FORBID = click.option("--forbid", multiple=True, metavar="NAME=AXIS", help="An axis that is not to split a tensor.")
_CAP = click.option("--cap-gather", metavar="BYTES", help="The most that an all_gather may leave on a device.")


def read_constraints(pins: Sequence[str], forbidden: Sequence[str], cap: str | None) -> list[Any]:
    """What `shardwright.plan` takes as constraints."""
    from ..plans.requests import cap_gather, forbid, pin

    def halves(text: str, what: str) -> tuple[str, str]:
        name, equals, rest = text.partition("=")
        if not equals or not name or not rest:
            raise SpecError(f"--{what} {text!r} does not say of what", help=f"write --{what} NAME=...")
        return name, rest

    found: list[Any] = [pin(*halves(text, "pin")) for text in pins]
    found += [forbid(*halves(text, "forbid")) for text in forbidden]
    return [*found, *([cap_gather(cap)] if cap is not None else [])]


@_says('plan train.py:program --mesh "dp=2, tp=4"')
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
@click.option("--uneven", is_flag=True, help="Also split dims that do not divide.")
@click.option("--json", "out", type=click.Path(path_type=Path), callback=for_file, help="Write the plan to this file.")
@click.option("--trace", is_flag=True, help="Print the program's lines with what each costs.")
def plan(
    program: str, mesh: str, hardware: str, memory: str | None, pin: tuple[str, ...], forbid: tuple[str, ...],
    cap_gather: str | None, recipe: str | None, solver: str, learn: bool, rule_book: Path | None,
    time_limit: float | None, uneven: bool, out: Path | None, trace: bool,
) -> None:  # fmt: skip
    """Find the fastest way to split a program over a mesh."""
    from ..api import plan as make_plan

    fn, args, keywords = load_program(program)
    constraints = read_constraints(pin, forbid, cap_gather)
    options = _with(
        keywords, mesh=mesh, hardware=hardware, memory=memory, constraints=constraints, recipe=recipe, solver=solver,
        time_limit=time_limit, learn=learn, rule_book=rule_book, uneven=uneven,
    )  # fmt: skip
    made = make_plan(fn, *args, **options)
    click.echo(str(made))
    for note in made.notes:
        click.echo(f"  note: {note}")
    for name, spec in made.specs.items():
        click.echo(f"  {name}: {spec}")
    if trace:
        click.echo(made.trace())
    if out is not None:
        write_file(out, made.to_json())
        click.echo(f"written to {out}")


@_says('compare train.py:program --mesh "dp=2, tp=4"')
@click.command()
@_PROGRAM
@_MESH
@_HARDWARE
@_MEMORY
def compare(program: str, mesh: str, hardware: str, memory: str | None) -> None:
    """The planner's plan beside named baselines."""
    from ..api import compare as make_table

    fn, args, keywords = load_program(program)
    click.echo(make_table(fn, *args, **_with(keywords, mesh=mesh, hardware=hardware, memory=memory)))


@_says("verify plan.json train.py:program")
@click.command()
@click.argument("plan", type=click.Path(path_type=Path), metavar="PLAN.json")
@_PROGRAM
@click.option("--hardware", help="What the plan was made for, if that is no preset.")
@click.option("--rule-book", type=click.Path(path_type=Path), help="Rules that the plan was made with.")
def verify(plan: Path, program: str, hardware: str | None, rule_book: Path | None) -> None:
    """Prove that a plan's program computes what the function does.  No planner is asked."""
    from ..api import load_plan

    fn, args, keywords = load_program(program)
    found = load_plan(plan, fn, *args, **_with(keywords, hardware=hardware, rule_book=rule_book))
    certificate = found.verify()
    click.echo(f"{found.data.name} on ({found.data.mesh}): {certificate}")
    for item in certificate.trusted:
        click.echo(f"  on trust: {item}")


@_says('explain train.py:program w1 --mesh "dp=2, tp=4"')
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
    from ..api import plan as make_plan

    fn, args, keywords = load_program(program)
    constraints = read_constraints(pin, forbid, cap_gather)
    options = _with(keywords, mesh=mesh, hardware=hardware, memory=memory, constraints=constraints)
    click.echo(make_plan(fn, *args, **options).explain(name))


@click.command()
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("hardware.toml"), show_default=True, callback=for_file
)
@click.option("--quick", is_flag=True, help="Fewer sizes.")
def calibrate(out: Path, quick: bool) -> None:
    """Measure this machine; with torchrun, its collectives, too.  The file goes to --hardware."""
    from ..run.calibrate import calibrate as measure

    measure(out, quick)
    click.echo(f"written to {out}")


COMMANDS = (plan, verify, compare, explain, calibrate)

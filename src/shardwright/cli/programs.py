"""What a command is about: a program by its file, a model by its name, a saved plan, and the options of planning.

A program is named ``FILE.py:NAME`` or ``module:NAME``: a function without parameters that returns what
`shardwright.plan` takes, ``(fn, args)`` or ``(fn, args, keywords)``; or ``hf:NAME``, see `models`.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import ShardwrightError, SpecError, near_misses
from .exits import failing
from .models import PREFIX, model_program
from .output import working

if TYPE_CHECKING:
    from ..api import Plan

Command = click.Command
_WRITE = "write FILE.py:NAME or module:NAME"
RETURNS = "(fn, args) or (fn, args, keywords)"
NAMED = """
\b
PROGRAM is FILE.py:NAME (or module:NAME), which names a function without
parameters that returns (fn, args) or (fn, args, keywords), where
fn(*args, **keywords) is what is to be split: a function of NumPy arrays or
PyTorch tensors, or a PyTorch module.  Shapes are enough as arguments.  Other
keywords of shardwright.plan, such as optimizer and loss for a training step,
may be among the keywords.  Or it is hf:NAME: a model of transformers by name
or config.json (shardwright presets --models lists names).

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


def says(command: str) -> Callable[[Command], Command]:
    """The command's help, with what a program is and an example."""

    def add(command_of: Command) -> Command:
        command_of.help = f"{command_of.help}\n{NAMED.format(command=command)}"
        return command_of

    return add


# -- programs -------------------------------------------------------------------------------------------------


def call_target(where: str, returns: str) -> Any:
    """What the function that ``FILE.py:NAME`` names returns; ``returns`` says what that should be."""
    place, colon, name = where.rpartition(":")
    if not colon or not place or not name:
        raise SpecError(f"{where!r} does not say which program", help=_WRITE)
    module = _module(place)
    make = getattr(module, name, None)
    if not callable(make):
        names = [n for n, item in vars(module).items() if inspect.isfunction(item)]
        raise SpecError(f"{place} has no function {name!r}", help=near_misses(name, names))
    help = f"name a function without parameters that returns {returns}"
    if not _needs_nothing(make):
        raise SpecError(f"{name} takes arguments: it is called without any, to get the program", help=help)
    try:
        return make()
    except (ShardwrightError, ModuleNotFoundError):
        raise
    except Exception as error:
        raise failing(f"{where}", error) from error


def _module(place: str) -> Any:
    if place.endswith(".py"):
        path = Path(place)
        spec = importlib.util.spec_from_file_location(path.stem, path) if path.is_file() else None
        if spec is None or spec.loader is None:
            raise SpecError(f"there is no file {place!r}")
        module = importlib.util.module_from_spec(spec)
        sys.path.insert(0, str(path.resolve().parent))  # what stands beside the file is found, as `python FILE` does
        try:
            spec.loader.exec_module(module)
        except (ShardwrightError, ModuleNotFoundError):
            raise
        except Exception as error:
            raise failing(place, error) from error
        return module
    sys.path.insert(0, "")
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if not f"{place}.".startswith(f"{error.name}."):
            raise
        raise SpecError(f"module {place!r} cannot be imported: {error}", help=_WRITE) from None
    except (ValueError, TypeError):
        raise SpecError(f"{place!r} is no module", help=_WRITE) from None
    except ShardwrightError:
        raise
    except Exception as error:
        raise failing(place, error) from error


def load_program(where: str, batch: int | None = None, sequence: int | None = None, dtype: str | None = None,
                 optimizer: str | None = None) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:  # fmt: skip
    """The function and arguments that ``FILE.py:NAME`` gives, or a model of transformers; sizes are for these."""
    if where.startswith(PREFIX):
        return model_program(where.removeprefix(PREFIX), batch, sequence, dtype, optimizer)
    given = {"--batch": batch, "--seq": sequence, "--dtype": dtype, "--optimizer": optimizer}
    wrong = next((name for name, value in given.items() if value is not None), None)
    if wrong is not None:
        raise SpecError(f"{wrong} is for models by name (hf:NAME)", help="a program of your own says its shapes itself")
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


# -- the options of planning ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Planning:
    """What the command line says of a plan."""

    mesh: str | None
    hardware: str | None
    memory: str | None
    pin: tuple[str, ...]
    forbid: tuple[str, ...]
    cap_gather: str | None
    recipe: str | None
    solver: str | None
    learn: bool
    rule_book: Path | None
    time_limit: float | None
    uneven: bool
    batch: int | None
    seq: int | None
    dtype: str | None
    optimizer: str | None

    def program(self, where: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        return load_program(where, self.batch, self.seq, self.dtype, self.optimizer)

    @property
    def options(self) -> dict[str, Any]:
        """For `shardwright.plan`; what was not said is left to it."""
        said = {
            "mesh": self.mesh, "hardware": self.hardware, "memory": self.memory, "recipe": self.recipe,
            "solver": self.solver, "rule_book": self.rule_book, "time_limit": self.time_limit,
            "learn": self.learn or None, "uneven": self.uneven or None,
            "constraints": read_constraints(self.pin, self.forbid, self.cap_gather) or None,
        }  # fmt: skip
        return {name: value for name, value in said.items() if value is not None}

    def plan(self, where: str) -> Plan:
        """Plan a program."""
        fn, args, keywords = self.program(where)
        from ..api import plan

        if self.mesh is None and "mesh" not in keywords:
            raise SpecError("--mesh is not given", help='write --mesh "dp=2, tp=4", or name a saved plan first')
        with working(f"planning {where} ..."):
            return plan(fn, *args, **_with(keywords, **self.options))

    def load(self, saved: Path, where: str) -> Plan:
        """A saved plan of the program."""
        fn, args, keywords = self.program(where)
        from ..api import load_plan

        unused = sorted(self.options.keys() - {"hardware", "rule_book"})
        if unused:
            name = unused[0].replace("_", "-")
            raise SpecError(f"--{name} says nothing beside a saved plan", help="leave one of the two out")
        said = {key: value for key, value in keywords.items() if key not in ("mesh", "memory", "constraints", "recipe")}
        with working(f"reading {saved} ..."):
            return load_plan(saved, fn, *args, **_with(said, **self.options))

    def plan_or_load(self, words: Sequence[str]) -> tuple[Plan, str]:
        """From ``[PLAN.json] PROGRAM``: the plan, and the program's name."""
        saved, where = saved_and_program(words)
        return (self.plan(where) if saved is None else self.load(saved, where)), where


def saved_and_program(words: Sequence[str]) -> tuple[Path | None, str]:
    """The two arguments of commands that read a saved plan."""
    if len(words) == 2:
        return Path(words[0]), words[1]
    if len(words) == 1 and words[0].endswith(".json") and not words[0].startswith(PREFIX):
        raise SpecError(
            "a saved plan is read for its program, which is not named", help=f"write {words[0]} FILE.py:NAME"
        )
    if len(words) != 1:
        raise SpecError(f"{len(words)} names where there is [PLAN.json] PROGRAM", help="write [PLAN.json] FILE.py:NAME")
    return None, words[0]


def with_planning(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that all commands of planning share; they arrive as one `Planning`."""
    names = list(Planning.__dataclass_fields__)

    def call(**given: Any) -> Any:
        about = Planning(**{name: given.pop(name) for name in names})
        return command(about=about, **given)

    call.__doc__, call.__name__ = command.__doc__, command.__name__
    call.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    for option in reversed(_OPTIONS):
        call = option(call)
    return call


_OPTIONS = [
    click.option("--mesh", help='Devices, such as "dp=2, tp=4".'),
    click.option("--hardware", help="A preset (h100, if nothing is said) or a TOML file."),
    click.option("--memory", help="Limit per device, such as 40GiB."),
    click.option("--pin", multiple=True, metavar="NAME=SPEC", help='A sharding, such as "w*=[_, tp]".'),
    click.option("--forbid", multiple=True, metavar="NAME=AXIS", help="An axis that is not to split a tensor."),
    click.option("--cap-gather", metavar="BYTES", help="The most that an all_gather may leave on a device."),
    click.option("--recipe", help="Force a named baseline instead of planning."),
    click.option("--solver", help="Who decides; auto, if nothing is said."),
    click.option("--learn", is_flag=True, help="Study ops without a rule by running them on small shapes."),
    click.option("--rule-book", type=click.Path(path_type=Path), help="Where rules that were learned are kept."),
    click.option("--time-limit", type=float, help="Seconds; the best plan until then is returned with its gap."),
    click.option("--uneven", is_flag=True, help="Also split dims that do not divide."),
    click.option("--batch", type=click.IntRange(min=1), help="Of a model by name: examples."),
    click.option("--seq", type=click.IntRange(min=1), help="Of a model by name: tokens of an example."),
    click.option("--dtype", help="Of a model by name: element type (bfloat16)."),
    click.option("--optimizer", help="Of a model by name: adamw, sgd, or none for its forward pass."),
]


def read_constraints(pins: Sequence[str], forbidden: Sequence[str], cap: str | None) -> list[Any]:
    """What `shardwright.plan` takes as constraints."""
    if not (pins or forbidden or cap is not None):
        return []
    from ..plans.requests import cap_gather, forbid, pin

    def halves(text: str, what: str) -> tuple[str, str]:
        name, equals, rest = text.partition("=")
        if not equals or not name or not rest:
            raise SpecError(f"--{what} {text!r} does not say of what", help=f"write --{what} NAME=...")
        return name, rest

    found: list[Any] = [pin(*halves(text, "pin")) for text in pins]
    found += [forbid(*halves(text, "forbid")) for text in forbidden]
    return [*found, *([cap_gather(cap)] if cap is not None else [])]


def _with(keywords: dict[str, Any], **options: Any) -> dict[str, Any]:
    """What the program says, and what the command line says."""
    for name in options:
        if name in keywords:
            raise SpecError(
                f"the program's keywords say {name}, which the command line says", help="leave it out of the keywords"
            )
    return {**keywords, **options}

"""All exceptions, and the one way they are written.

A message has up to four parts: the *fact*, the *place* (a line of text with a caret under the spot), the
*bindings* (labelled rows) and the *help*.  Inner code raises the short fact; whoever knows more on the way
up adds rows with :meth:`ShardwrightError.add`.  Control characters are shown escaped.

>>> print(RuleError("factor 'n' appears on the right but on no input", text="m k, k j -> m n", at=14))
factor 'n' appears on the right but on no input
    m k, k j -> m n
                  ^
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from types import FunctionType
from typing import Any, Self, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

PACKAGE = Path(__file__).parent
"""The folder of this package: no frame in it is a line of the user's."""
LONGEST = 4000
"""Characters of a line: what comes from a file may be of any length."""


class ShardwrightError(Exception):
    """Base of every error that Shardwright raises on purpose."""

    def __init__(
        self,
        fact: str,
        *,
        text: str | None = None,
        at: int | None = None,
        rows: Iterable[tuple[str, str]] = (),
        help: str | None = None,
    ) -> None:
        super().__init__(fact)
        self.fact = fact
        self.text = text
        self.at = at
        self.rows = list(rows)
        self.help = help

    def add(self, label: str, value: object) -> Self:
        """Add a labelled row, unless an inner caller already said it."""
        if all(label != known for known, _ in self.rows):
            self.rows.append((label, str(value)))
        return self

    def place(self, text: str, at: int | None = None) -> Self:
        """Say in which text, and where in it, unless an inner caller already did."""
        if self.text is None:
            self.text, self.at = text, at
        return self

    def __str__(self) -> str:
        lines = [self.fact]
        if self.text is not None:
            begin = max(0, (self.at or 0) - LONGEST // 2)
            lines.append("    " + printable(self.text[begin:]))
            if self.at is not None:
                lines.append("    " + " " * len(printable(self.text[begin : self.at])) + "^")
        rows = [*self.rows, *([("help", self.help)] if self.help else [])]
        width = max((len(label) for label, _ in rows), default=0)
        for label, value in rows:
            first, *rest = value.splitlines() or [""]
            lines.append(f"  {label:<{width}}  {first}")
            lines.extend(" " * (width + 4) + line for line in rest)
        shown = [printable(line, "\n") for line in lines]
        return "\n".join(line if len(line) <= LONGEST else line[:LONGEST] + " ..." for line in shown)


def printable(text: str, but: str = "") -> str:
    r"""Text with everything escaped that a terminal would act on or not show, ``but`` for some characters.

    What comes from a file may say anything; it must not move the cursor or write to the clipboard.

    >>> print(printable("dp\x1b[2J \u202e"))
    dp\x1b[2J \u202e
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in but else char.encode("unicode_escape").decode("ascii") for char in text
    )


class MeshError(ShardwrightError, ValueError):
    """A mesh that cannot be, or an axis that a mesh does not have."""


class SpecError(ShardwrightError, ValueError):
    """A sharding that is malformed, or does not fit its tensor or mesh."""


class CheckpointError(ShardwrightError):
    """A checkpoint that is not there, is damaged, is of another model, or names what no checkpoint needs."""


class NotationError(ShardwrightError, ValueError):
    """Text that does not parse; the caret shows where."""


class RuleError(NotationError):
    """A sharding rule that is wrong, or does not fit the shapes it is given."""


class CallError(ShardwrightError, TypeError):
    """A call of ours that does not fit: something is missing, misspelt, or of a kind that is not taken."""


class UnknownOpError(ShardwrightError, LookupError):
    """An op that the rule book does not know."""


class GraphError(ShardwrightError, ValueError):
    """A program that is not well-formed."""


class TraceError(ShardwrightError, TypeError):
    """Something a traced function cannot do, with what to write instead."""


class TraceAttributeError(TraceError, AttributeError):
    """An attribute that arrays have and traced values do not; ``hasattr`` says no."""


class PropagationError(ShardwrightError, ValueError):
    """Shardings that cannot be spread as asked."""


class PlanInfeasible(ShardwrightError, ValueError):
    """No plan was found that keeps everything asked for."""

    timed_out = False
    """Whether time was up before all was looked at."""


class BoundError(ShardwrightError, AssertionError):
    """A plan that takes less than a bound of all plans: a mistake of the planner, and never the user's."""

    @classmethod
    def unless(cls, bound: int, cost: int) -> int:
        """The bound, if no more than what some plan costs: it is never lowered to fit."""
        if bound > cost:
            raise cls(
                f"a plan costs {cost} ps, which is less than the bound of {bound} ps",
                help="this is a mistake in Shardwright; please report it with the program",
            )
        return bound


class HardwareError(ShardwrightError, ValueError):
    """Figures that no machine can have."""


class ReshardError(ShardwrightError, ValueError):
    """No way from one sharding to another."""


class RankError(ShardwrightError, RuntimeError):
    """Another process failed, is missing, or is about to do something else."""


class RunError(ShardwrightError, RuntimeError):
    """An op that fails on the numbers that it is given."""


class VerifyError(ShardwrightError):
    """A Program that is malformed, or does not compute what its Graph does."""


class DiscoverError(ShardwrightError, ValueError):
    """An operator that cannot be found or studied, or an input generator that is wrong."""


def near_misses(word: str, known: Iterable[str]) -> str | None:
    """A help sentence naming what the user may have meant.

    >>> near_misses("matmull", ["matmul", "add"])
    "did you mean 'matmul'?"
    """
    close = difflib.get_close_matches(word, sorted(set(known)), n=3, cutoff=0.6)
    return "did you mean " + " or ".join(repr(name) for name in close) + "?" if close else None


# -- calls that do not fit --------------------------------------------------------------------------------------

_WRITTEN = {
    "axes": 'write DeviceMesh("dp=2, tp=4")',
    "mesh": 'write mesh="dp=2, tp=4": a name and a size for each axis',
    "optimizer": "write optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3)",
    "batch": "write batch=(x,), an example of the arguments that a call of the model gets",
    "like": "write like=Model(), the plain model",
    "inputs": "write inputs=(x,), example arguments of the plain model",
    "spec": 'write a sharding: P("dp", None) or "[dp, _]"',
    "axis": 'write the name of a mesh axis, such as "dp"',
    "fn": "give the function or module, then its arguments",
}
"""How arguments are written that people leave out."""


def front(function: F) -> F:
    """For functions that users call: a call that does not fit the signature is told as other mistakes are, and so is
    what is neither True nor False for a switch, where any word would count as true, and no mapping where one is taken.

    >>> @front
    ... def draw(shape, *, mesh, seed=0): ...
    >>> draw((2, 3), mehs="d=2")
    Traceback (most recent call last):
    ...
    shardwright.errors.CallError: draw has no option 'mehs'
      call  draw(shape, *, mesh, seed=0)
      help  did you mean 'mesh'?
    """
    signature = inspect.signature(function)
    kinds = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    switches = [name for name, kind in kinds.items() if kind == "bool"]
    mappings = [name for name, kind in kinds.items() if _is_mapping(kind)]

    def check(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise _misfit(function, signature, args, kwargs, error) from None
        for name in switches:
            if not isinstance(given.get(name, False), bool):
                raise CallError(f"{name}= takes True or False, not {_brief(given[name])}")
        for name in mappings:
            if not isinstance(given.get(name), Mapping | None):
                raise CallError(f"{name}= takes a dict by name, not {_brief(given[name])}", help=_call_text(function))

    def call(*args: Any, **kwargs: Any) -> Any:
        check(args, kwargs)
        return function(*args, **kwargs)

    # It has the globals of where it is written: doctest looks for that.
    made = FunctionType(call.__code__, function.__globals__, function.__name__, None, call.__closure__)
    return cast(F, wraps(function)(made))


def _is_mapping(kind: Any) -> bool:
    return isinstance(kind, str) and kind.startswith("Mapping[") and kind.endswith("] | None") and kind.count("|") == 1


def _misfit(
    function: Callable[..., Any],
    signature: inspect.Signature,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    error: TypeError,
) -> CallError:
    """What is wrong with a call, in our words."""
    name, call = _name_of(function), _call_text(function)
    theirs = [p for p in signature.parameters.values() if p.name not in ("self", "cls")]
    args = args[len(signature.parameters) - len(theirs) :]
    plain = [p for p in theirs if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    known = [p.name for p in theirs if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    kinds = {p.kind for p in theirs}
    unknown = [key for key in kwargs if key not in known and inspect.Parameter.VAR_KEYWORD not in kinds]
    if unknown:
        help = near_misses(unknown[0], known) or next((_WRITTEN[n] for n in known if n in _WRITTEN), None)
        return CallError(f"{name} has no option {unknown[0]!r}", rows=[("call", call)], help=help)
    if len(args) > len(plain) and inspect.Parameter.VAR_POSITIONAL not in kinds:
        count = f"{len(plain)} argument{'s' if len(plain) != 1 else ''}"
        return CallError(
            f"{name} takes {count} by position, not {len(args)}", rows=[("call", call)], help="name the others"
        )
    given = {p.name for p in plain[: len(args)]} | kwargs.keys()
    needed = [p for p in theirs if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    missing = next((p for p in needed if p.name not in given), None)
    if missing is not None:
        word = f"{missing.name}=" if missing.kind is missing.KEYWORD_ONLY else missing.name
        return CallError(f"{name} is not given {word}", rows=[("call", call)], help=_WRITTEN.get(missing.name))
    return CallError(f"{name} cannot be called so: {error}", rows=[("call", call)])


def _name_of(function: Callable[..., Any]) -> str:
    scope, _, name = function.__qualname__.rpartition("<locals>.")[2].rpartition(".")
    return scope if name in ("__init__", "__new__") else name


def _call_text(function: Callable[..., Any]) -> str:
    """How it is called, without types: of many options the first."""
    plain = [p.replace(annotation=p.empty) for p in inspect.signature(function).parameters.values()]
    shown = [p for p in plain if p.name not in ("self", "cls")]
    text = str(inspect.Signature(shown))
    if len(text) > 100:
        text = text[:100].rpartition(", ")[0] + ", ...)"
    return _name_of(function) + text


def _brief(item: object) -> str:
    text = repr(item)
    return text if len(text) <= 60 and "\n" not in text and " at 0x" not in text else f"a {type(item).__name__}"

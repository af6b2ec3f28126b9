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
from collections.abc import Iterable
from pathlib import Path
from typing import Self

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


class BoundError(ShardwrightError, AssertionError):
    """A plan that takes less than a bound of all plans: a mistake of the planner, and never the user's."""


class HardwareError(ShardwrightError, ValueError):
    """Figures that no machine can have."""


class ReshardError(ShardwrightError, ValueError):
    """No way from one sharding to another."""


class RankError(ShardwrightError, RuntimeError):
    """Another process failed, is missing, or is about to do something else."""


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

"""How commands end: exit codes, and one message for what went wrong.

| code | when |
|---|---|
| 0 | ok |
| 1 | the answer is no: no plan keeps what was asked, a program is not equal, a rule is wrong |
| 2 | wrong use: a file, a target, a mesh, an option, a program of the user that fails |
| 3 | a fault of Shardwright |
| 130 | interrupted |

``--debug``, anywhere among the words, shows where an error came from.
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

import click

from ..errors import PACKAGE, PlanInfeasible, ShardwrightError, SpecError, VerifyError, printable

OK, NO, USAGE, INTERNAL, INTERRUPTED = 0, 1, 2, 3, 130
DEBUG = "--debug"
_INSTALL = {
    "torch": "pip install 'shardwright[torch]'",
    "transformers": "pip install 'shardwright[models]'",
    "expecttest": "pip install 'shardwright[discover]'",
}


class Verbs(click.Group):
    """A group whose commands end as the table says."""

    def main(self, args: Any = None, *rest: Any, **options: Any) -> Any:
        words = list(sys.argv[1:] if args is None else args)
        self.debug = DEBUG in words
        words = [word for word in words if word != DEBUG]
        return super().main(words, *rest, **options)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit):
            raise
        except (KeyboardInterrupt, click.Abort):
            code, text = INTERRUPTED, "interrupted"
        except BrokenPipeError:
            raise  # whoever read has gone: click ends quietly
        except Exception as error:
            if self.debug:
                traceback.print_exc()
            code, text = ending(error)
        click.echo(text, err=True)
        return ctx.exit(code)


def ending(error: Exception) -> tuple[int, str]:
    """The exit code of an error, and what is said of it."""
    if isinstance(error, ShardwrightError):
        no = isinstance(error, PlanInfeasible | VerifyError)
        return (NO if no else USAGE), f"{type(error).__name__}: {error}"
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in _INSTALL:
        name = (error.name or "").partition(".")[0]
        return USAGE, f"this needs {name}, which is not installed: {_INSTALL[name]}"
    fact = printable(f"{type(error).__name__}: {error}"[:2000], "\n")
    place = place_of_user(error.__traceback__)
    if place is not None:
        return USAGE, f"the program fails at {place}\n    {fact}\n  help  {DEBUG} shows all frames"
    if isinstance(error, OSError) and error.filename and not str(error.filename).startswith(str(PACKAGE)):
        return USAGE, f"{str(error.filename)!r}: {error.strerror}"  # a disk that is full, a folder that cannot be made
    if isinstance(error, MemoryError):
        return USAGE, "this machine has too little memory for it"
    return INTERNAL, f"this is a fault of shardwright: {fact}\n  help  {DEBUG} shows where; please report it"


def place_of_user(trace: TracebackType | None) -> str | None:
    """The innermost line of the user's own code, if the error was raised there, or in a library that it called."""
    frames = traceback.extract_tb(trace)
    if not frames or frames[-1].filename.startswith(str(PACKAGE)):
        return None
    theirs = [frame for frame in frames if not _of_a_library(frame.filename)]
    return f"{Path(theirs[-1].filename).name}:{theirs[-1].lineno} in {theirs[-1].name}" if theirs else None


def _of_a_library(file: str) -> bool:
    return (
        file.startswith((str(PACKAGE), "<", sys.base_prefix, sys.prefix))
        or "site-packages" in file
        or "dist-packages" in file
        or Path(file).name == "shardwright"  # the command itself
    )


def failing(what: str, error: BaseException) -> SpecError:
    """What a user's file did when it was run."""
    place = place_of_user(error.__traceback__)
    return SpecError(
        f"{what} fails: {type(error).__name__}: {str(error)[:2000]}",
        rows=[("at", place)] if place is not None else [],
        help=f"{DEBUG} shows all frames",
    )

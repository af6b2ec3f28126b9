"""What a user's function did when it was captured: an error of NumPy, PyTorch or Python, told with its place, the
arguments that it was given, and what to give instead.

Errors of the project's own code pass through as they are: they are nobody's mistake but ours.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from ..errors import ShardwrightError, SpecError, TraceError

KINDS = (TypeError, ValueError, RuntimeError, IndexError, KeyError, AttributeError, ArithmeticError)
"""What functions raise when they are called wrongly."""
_OURS = str(Path(__file__).parents[1])
_SHOWN = 8
"""So many arguments are shown."""


@contextmanager
def telling(fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[None]:
    """While a function is captured: what it raises is told as an error of ours, unless it is our fault."""
    try:
        yield
    except ShardwrightError:
        raise
    except KINDS as error:
        said = told(error, fn, args, kwargs)
        if said is None:
            raise
        raise said from error


def told(error: Exception, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> TraceError | None:
    """The same as an error of ours; None if it is a fault of ours."""
    trace = error.__traceback__
    frames = traceback.extract_tb(trace)
    if not frames or (frames[-1].filename.startswith(_OURS) and not _asking_numpy(frames)):
        return None
    name = getattr(fn, "__name__", None) or getattr(fn, "name", None) or type(fn).__name__
    found = TraceError(f"{name} fails: {type(error).__name__}: {str(error)[:1000]}", help=_help(fn, args, kwargs))
    shown = repr(fn) if hasattr(fn, "named_parameters") else ""
    if shown and "\n" not in shown:
        found.add("module", shown)
    place = _place(trace)
    if place is not None:
        found.add("at", place)
    given = [(str(i), arg) for i, arg in enumerate(args)] + list(kwargs.items())
    for label, item in given[:_SHOWN]:
        found.add(f"argument {label}", _brief(item))
    return found


def _asking_numpy(frames: Sequence[traceback.FrameSummary]) -> bool:
    """Whether NumPy was asked, by the frontend that records its calls, what a call of the user gives: it has no frames
    of its own."""
    return Path(frames[-1].filename).is_relative_to(Path(_OURS) / "frontends" / "numpy") and any(
        not _of_a_library(frame.filename) for frame in frames
    )


def _of_a_library(file: str) -> bool:
    return file.startswith((_OURS, "<")) or "-packages" in file or "/lib/python" in file


def _place(trace: TracebackType | None) -> str | None:
    """The innermost line of the user's own code."""
    found = None
    for frame in traceback.extract_tb(trace):
        if not _of_a_library(frame.filename):
            found = f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}"
    return found


def _help(fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """For the usual slips in arguments."""
    torch_module = hasattr(fn, "named_parameters")
    for item in (*args, *kwargs.values()):
        kind = type(item)
        if isinstance(item, tuple) and item and all(isinstance(size, int) for size in item):
            size = tuple(item)
            instead = f'torch.empty({size}, device="meta")' if torch_module else f'sw.ShapeDtype({size}, "float32")'
            return f"an array is not given by its shape alone: {instead}"
        if torch_module and kind.__module__.partition(".")[0] == "numpy":
            return "a module takes tensors: torch.from_numpy(array)"
        if torch_module and kind.__name__ == "ShapeDtype":
            return 'a module takes tensors: torch.empty(shape, device="meta") has no numbers, either'
    return None


def _brief(item: Any) -> str:
    """A type and a shape, or a short text."""
    shape, dtype = getattr(item, "shape", None), getattr(item, "dtype", None)
    if shape is not None and dtype is not None:
        return f"{str(dtype).removeprefix('torch.')}{list(shape)}"
    text = repr(item)
    return text if len(text) <= 60 else f"a {type(item).__name__}"


# -- numbers in lists -----------------------------------------------------------------------------------------


def check_no_lists_of_numbers(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Refuse lists that look like arrays: their numbers would be constants of the program, without a word."""
    named = [(f"argument {i}", arg) for i, arg in enumerate(args)] + [(repr(k), v) for k, v in kwargs.items()]
    for label, item in named:
        if isinstance(item, list) and item and _numbers(item) and (_has_float(item) or isinstance(item[0], list)):
            raise SpecError(
                f"{label} is a list of numbers, which would be a constant of the program",
                rows=[("given", _brief(item))], help="give an array: np.asarray([...]), or torch.tensor([...])",
            )  # fmt: skip


def _numbers(item: Any) -> bool:
    if isinstance(item, list):
        return bool(item) and all(map(_numbers, item))
    return isinstance(item, int | float | complex) and not isinstance(item, bool)


def _has_float(item: Any) -> bool:
    return any(map(_has_float, item)) if isinstance(item, list) else isinstance(item, float | complex)

"""What a user's function did when it was captured: an error of NumPy, PyTorch or Python, told with its place, the
arguments that it was given, and what to give instead.

Errors of the project's own code pass through as they are: they are nobody's mistake but ours.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from ..errors import PACKAGE, ShardwrightError, SpecError, TraceError

_SHOWN = 8
"""So many arguments are shown."""


@contextmanager
def telling(fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], asked: bool = False) -> Iterator[None]:
    """While a function is captured: what it raises is told as an error of ours, unless it is our fault.

    ``asked`` where the function is NumPy's own: what is raised when NumPy is asked what it gives is the answer.
    """
    try:
        yield
    except (ShardwrightError, ImportError, MemoryError):
        raise
    except Exception as error:
        said = told(error, fn, args, kwargs, asked)
        if said is None:
            raise
        raise said from error


def told(
    error: Exception, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], asked: bool = False
) -> TraceError | None:
    """The same as an error of ours; None if it is a fault of ours."""
    trace = error.__traceback__
    frames = traceback.extract_tb(trace)
    if not frames or (frames[-1].filename.startswith(str(PACKAGE)) and not _asking_numpy(frames, asked)):
        return None
    name = getattr(fn, "__name__", None) or getattr(fn, "name", None) or type(fn).__name__
    found = TraceError(f"{name} fails: {type(error).__name__}: {str(error)[:1000]}", help=_help(fn, args, kwargs))
    module = _module(fn, trace) or _one_line(fn)
    if module is not None:
        found.add("module", module)
    place = _place(trace)
    if place is not None:
        found.add("at", place)
    given = [(str(i), arg) for i, arg in enumerate(args)] + list(kwargs.items())
    for label, item in given[:_SHOWN]:
        found.add(f"argument {label}", _brief(item))
    return found


def _asking_numpy(frames: Sequence[traceback.FrameSummary], asked: bool) -> bool:
    """Whether NumPy was asked, by the frontend that records its calls, what a call of the user gives: it has no frames
    of its own."""
    theirs = asked or any(not _of_a_library(frame.filename) for frame in frames)
    return theirs and Path(frames[-1].filename).is_relative_to(PACKAGE / "frontends")


def _one_line(fn: Any) -> str | None:
    """What a small model is."""
    shown = repr(fn) if hasattr(fn, "named_modules") and hasattr(fn, "_modules") else "\n"
    return None if "\n" in shown else shown


def _module(fn: Any, trace: TracebackType | None) -> str | None:
    """The innermost of a model's modules that was being called, by its path and what it is; modules of PyTorch only."""
    if not hasattr(fn, "named_modules") or not hasattr(fn, "_modules"):
        return None
    paths = {id(module): path for path, module in fn.named_modules()}
    found = None
    while trace is not None:
        module = trace.tb_frame.f_locals.get("self")
        if id(module) in paths:
            shown = repr(module)
            found = f"{paths[id(module)]} {shown if chr(10) not in shown else type(module).__name__}".strip()
        trace = trace.tb_next
    return found


def _of_a_library(file: str) -> bool:
    return file.startswith((str(PACKAGE), "<")) or "-packages" in file or "/lib/python" in file


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
    if torch_module and not hasattr(fn, "_parameters"):
        return "a module's __init__ begins with super().__init__()"
    if torch_module and any(type(p).__name__ == "UninitializedParameter" for p in fn.parameters()):
        return "lazy modules have no weights yet: call the model once on a real batch, then make its optimizer"
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
        if torch_module and kind.__name__ == "DataLoader":
            return "an example of a batch is wanted: next(iter(loader))"
    return None


def _brief(item: Any) -> str:
    """A type and a shape, or a short text."""
    shape, dtype = getattr(item, "shape", None), getattr(item, "dtype", None)
    if shape is not None and dtype is not None:
        return f"{str(dtype).removeprefix('torch.')}{list(shape)}"
    text = repr(item)
    return text if len(text) <= 60 else f"a {type(item).__name__}"


# -- numbers in lists -----------------------------------------------------------------------------------------


def check_call(fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """That a function takes these arguments, as far as it says."""
    name = getattr(fn, "__name__", type(fn).__name__)
    try:
        signature = inspect.signature(fn.forward if hasattr(fn, "forward") else fn)
    except (TypeError, ValueError):
        return  # builtins and the like do not say
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TraceError(
            f"{name} cannot be called so: {error}",
            rows=[("signature", f"{name}{signature}")],
            help="give the function's own arguments right after it",
        ) from None


def check_no_lists_of_numbers(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Refuse lists that look like arrays: their numbers would be constants of the program, without a word."""
    named = [(f"argument {i}", arg) for i, arg in enumerate(args)] + [(repr(k), v) for k, v in kwargs.items()]
    for label, item in named:
        _check_list(label, item)


def constants_told(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str, ...]:
    """Notes on sequences of numbers that are arguments: they may be meant as arrays, or as axes, sizes and the like."""
    named = [(f"argument {i}", arg) for i, arg in enumerate(args)] + [(repr(k), v) for k, v in kwargs.items()]
    return tuple(
        f"{label}, {_brief(item)}, is a constant of the program: another value needs another plan"
        for label, item in named
        if isinstance(item, list | tuple) and item and _numbers(list(item))
    )


def _check_list(label: str, item: Any) -> None:
    """Of a list, or of what a container holds."""
    if isinstance(item, list) and item and _numbers(item) and (_has_float(item) or isinstance(item[0], list)):
        raise SpecError(
            f"{label} is a list of numbers, which would be a constant of the program",
            rows=[("given", _brief(item))], help="give an array: np.asarray([...]), or torch.tensor([...])",
        )  # fmt: skip
    inner = item.items() if isinstance(item, Mapping) else enumerate(item) if isinstance(item, list | tuple) else ()
    for key, part in inner:
        _check_list(f"{label}[{key!r}]", part)


def _numbers(item: Any) -> bool:
    if isinstance(item, list):
        return bool(item) and all(map(_numbers, item))
    return isinstance(item, int | float | complex) and not isinstance(item, bool)


def _has_float(item: Any) -> bool:
    return any(map(_has_float, item)) if isinstance(item, list) else isinstance(item, float | complex)

"""`Recorder`: the program as it is written down while the traced function runs.

Values are numbered as they come.  Arrays that the function closes over turn up in the middle of the run and are
inputs all the same, so the graph is built at the end, its inputs first.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path, PurePath
from types import CodeType, FrameType
from typing import Any

import numpy as np

from ...errors import PACKAGE, TraceError
from ...ir.graph import Graph, GraphBuilder, SourceLine, TensorType
from .dtypes import Array, tensor_type

_OURS = (
    f"{PACKAGE}{os.sep}",
    str(Path(np.__file__).parent) + os.sep,
    "<__array_function__",  # how NumPy before 2 names the frame that dispatches
)


def caller() -> SourceLine | None:
    """The line of the user's program that is being executed: of the innermost frame that is neither NumPy's nor ours.

    Files are named from the root of their package (``model/block.py``), not of the machine, so that a program gives the
    same graph everywhere.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        place = _place(frame.f_code, frame.f_globals.get("__name__", ""))
        if place is not None:
            return SourceLine(place[0], frame.f_lineno, place[1])
        frame = frame.f_back
    return None


@lru_cache(maxsize=4096)
def _place(code: CodeType, module: str) -> tuple[str, str] | None:
    """File and function of a code object; None if it is to be passed over."""
    if code.co_filename.startswith(_OURS):
        return None
    scope = code.co_qualname.rpartition("<locals>.")[2]
    return _short(code.co_filename, module), "" if scope == "<module>" else scope


def _short(file: str, module: str) -> str:
    """
    >>> _short("/home/ada/work/model/block.py", "model.block"), _short("/home/ada/train.py", "__main__")
    ('model/block.py', 'train.py')
    """
    if file.startswith("<"):
        return file
    path = PurePath(file)
    depth = module.count(".") + 1 + (path.stem == "__init__")
    return "/".join(path.parts[-depth:])


Reads = Sequence[int | list[int] | None]


class Recorder:
    """Collects inputs, constants and ops."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.count = 0
        self.inputs: list[tuple[int, TensorType, str]] = []
        self.consts: list[tuple[int, Array]] = []
        self.strided: set[int] = set()
        """Values that show another's bytes in an order or choice of their own."""
        self._ops: list[tuple[str, Reads, Sequence[int], Sequence[TensorType], Mapping[str, Any], bool, Any]] = []
        self._met: dict[int, list[tuple[int, Array, Array]]] = {}

    def input(self, type: TensorType, name: str) -> int:
        self.inputs.append((self._new(), type, name))
        return self.inputs[-1][0]

    def op(
        self, op: str, reads: Reads, types: Sequence[TensorType], attrs: Mapping[str, Any], view: bool
    ) -> Sequence[int]:
        """Write down one op; ``view`` says that the result shows the first operand's bytes."""
        made = [self._new() for _ in types]
        self._ops.append((op, reads, made, types, attrs, view, caller()))
        return made

    def const(self, array: Array) -> int:
        """An array that the function closes over, as it is now; one that was met before is the same input.

        What the function may still write to is copied: later uses must not change earlier ones.
        """
        met = self._met.setdefault(id(array), [])
        for value, known, content in met:
            if known is array and (content is array or same_content(content, array)):
                return value
        content = array.copy("K") if array.flags.writeable else array
        value = self._new()
        met.append((value, array, content))
        self.consts.append((value, content))
        return value

    def finish(self, outputs: Sequence[int]) -> Graph:
        builder = GraphBuilder(self.name)
        place = {value: builder.input(type, name=name) for value, type, name in self.inputs}
        for i, (value, array) in enumerate(self.consts):
            place[value] = builder.input(tensor_type(array.shape, array.dtype), name=f"const{i}")
        for op, reads, made, types, attrs, view, source in self._ops:
            operands = [
                [place[value] for value in read] if isinstance(read, list) else None if read is None else place[read]
                for read in reads
            ]
            views = [(0, 0)] if view else []
            results = builder.op(op, operands, types, attrs=attrs, views=views, source=source)
            place.update(zip(made, results if isinstance(results, tuple) else (results,)))
        return builder.finish([place[value] for value in outputs])

    def _new(self) -> int:
        self.count += 1
        return self.count - 1


def same_content(left: Array, right: Array) -> bool:
    """Equal bit by bit, so that NaNs are alike and zeros of different sign are not."""
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    as_bytes = [np.ascontiguousarray(array).view(np.uint8) for array in (left, right)]
    return bool((as_bytes[0] == as_bytes[1]).all())


class _Active(threading.local):
    def __init__(self) -> None:
        self.stack: list[Recorder] = []


_active = _Active()


@contextmanager
def recording(recorder: Recorder) -> Iterator[Recorder]:
    """While this lasts, ops of this thread go to ``recorder``."""
    _active.stack.append(recorder)
    try:
        yield recorder
    finally:
        _active.stack.pop()


def current() -> Recorder | None:
    return _active.stack[-1] if _active.stack else None


def check_current(recorder: Recorder) -> Recorder:
    """Refuse values of a trace that is over, or that is not the innermost."""
    now = current()
    if recorder is now:
        return recorder
    if now is None:
        raise TraceError(
            f"a traced value of {recorder.name} is used after its trace ended",
            help="return it from the traced function, and use what the function returns",
        )
    raise place(
        TraceError(
            f"a traced value of {recorder.name} is used in the trace of {now.name}",
            help="pass it to the inner function as an argument",
        )
    )


def place(error: TraceError) -> TraceError:
    """Add the line of the user's program to an error."""
    source: SourceLine | None = caller()
    return error if source is None else error.add("at", source)

"""Where in the user's program an op stands: the innermost line that is not PyTorch's, and the module around it.

Files are named from the root of their package, not of the machine, so that a program gives the same graph everywhere.
Backward ops have no line of their own; they get that of their forward op (see `recorder`).
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from types import CodeType, FrameType
from typing import Any

import torch

from ....errors import PACKAGE
from ....ir.graph import SourceLine

_OURS = (f"{PACKAGE}{os.sep}", str(Path(torch.__file__).parent) + os.sep, "<")
SPOKEN_FOR: list[SourceLine | None] = []
"""Where a program is run by somebody who knows better: the sources to use, innermost last."""
_CLICK = f"-packages{os.sep}click{os.sep}"
"""What calls us on the command line."""
_STDLIB = sysconfig.get_path("stdlib") + os.sep


class Scopes:
    """Which module is running, by its path in the user's model."""

    def __init__(self, names: dict[int, str]) -> None:
        self.names = names
        self.stack: list[str] = []

    @contextmanager
    def within(self, scope: str) -> Iterator[None]:
        self.stack.append(scope)
        try:
            yield
        finally:
            self.stack.pop()

    def caller(self) -> SourceLine | None:
        """The line of the user's program that is being executed."""
        if SPOKEN_FOR and SPOKEN_FOR[-1] is not None:
            return SPOKEN_FOR[-1]
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            place = place_of(frame)
            if place is not None:
                scope = self.stack[-1] if self.stack else ""
                return SourceLine(place[0], frame.f_lineno, scope or place[1])
            frame = frame.f_back
        return None


@contextmanager
def following(current: Callable[[], Scopes | None]) -> Iterator[None]:
    """Watch calls of modules, as `torch.fx` does; hooks are skipped where an exception ends a recomputation.

    ``current`` gives the scopes of whoever calls: ranks in threads of their own have each theirs, and others none.
    """
    original = torch.nn.Module.__call__

    def call(module: Any, *args: Any, **kwargs: Any) -> Any:
        scopes = current()
        if scopes is None:
            return original(module, *args, **kwargs)
        stack = scopes.stack
        stack.append(scopes.names.get(id(module)) or (stack[-1] if stack else ""))
        try:
            return original(module, *args, **kwargs)
        finally:
            stack.pop()

    torch.nn.Module.__call__ = call  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.nn.Module.__call__ = original  # type: ignore[method-assign]


_PLACES: dict[int, tuple[CodeType, str, tuple[str, str] | None]] = {}
"""By where the code lies, which is kept: its hash is one of all that it holds, and this is asked for every frame."""


def place_of(frame: FrameType) -> tuple[str, str] | None:
    """File and function, if the frame is the user's."""
    code, module = frame.f_code, frame.f_globals.get("__name__", "")
    known = _PLACES.get(id(code))
    if known is None or known[1] != module:
        known = _PLACES[id(code)] = (code, module, _place(code, module))
    return known[2]


def _place(code: CodeType, module: str) -> tuple[str, str] | None:
    """File and function of a code object; None if it is to be passed over."""
    file = code.co_filename
    if file.startswith(_OURS) or _CLICK in file or (file.startswith(_STDLIB) and "-packages" not in file):
        return None
    scope = code.co_qualname.rpartition("<locals>.")[2]
    return _short(file, module), "" if scope == "<module>" else scope


def _short(file: str, module: str) -> str:
    """
    >>> _short("/home/ada/work/model/block.py", "model.block"), _short("/home/ada/train.py", "__main__")
    ('model/block.py', 'train.py')
    """
    path = PurePath(file)
    depth = module.count(".") + 1 + (path.stem == "__init__")
    return "/".join(path.parts[-depth:])

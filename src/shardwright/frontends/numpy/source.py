"""Where in the user's program an op stands: the innermost frame that is neither NumPy's nor ours.

Files are named from the root of their package (``model/block.py``), not of the machine, so that a program gives the
same graph everywhere.
"""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from pathlib import Path, PurePath
from types import CodeType, FrameType

import numpy as np

from ...errors import PACKAGE
from ...ir.graph import SourceLine

_OURS = (
    f"{PACKAGE}{os.sep}",
    str(Path(np.__file__).parent) + os.sep,
    "<__array_function__",  # how NumPy before 2 names the frame that dispatches
)


def caller() -> SourceLine | None:
    """The line of the user's program that is being executed."""
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

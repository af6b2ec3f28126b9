"""Write a statement's DTensor code and its tests to a folder."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from ..statement import Statement
from .strategy import emit_strategy
from .tests import emit_tests

Style = Literal["local", "spawned"]
"""Tests in one process, or in one process a rank."""


def module_name(statement: Statement) -> str:
    """The module that registers the rules: ``linalg_cross_strategy``, ``add_Tensor_strategy``."""
    parts = (statement.operator.overload or statement.operator.name).split(".")[1:]
    name = "_".join(part for part in parts if part != "default")
    return re.sub(r"\W", "_", name) + "_strategy"


def texts_of(statement: Statement, style: Style = "local", imports: Sequence[str] = ()) -> dict[str, str]:
    """The strategy and its test file, by file name."""
    module = module_name(statement)
    return {
        f"{module}.py": emit_strategy(statement, imports),
        f"test_{module}.py": emit_tests(statement, module, style=style),
    }


def write_files(statement: Statement, folder: Path, style: Style = "local", imports: Sequence[str] = ()) -> list[Path]:
    """Write both to a folder; run the tests with pytest there.  `imports`: modules that define the operator."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in texts_of(statement, style, imports).items():
        (folder / name).write_text(text)
        written.append(folder / name)
    return written

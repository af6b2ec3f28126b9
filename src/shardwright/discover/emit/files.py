"""Write a statement's DTensor code and its tests to a folder, with what they share."""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from ..statement import Statement
from .public import emit_public
from .source import normal_dims, overload_parts
from .strategy import TORCH, Origin, emit_strategy
from .tests import emit_tests
from .upstream import emit_upstream

Style = Literal["local", "spawned"]
"""Tests in one process, or in one process a rank."""

Form = Literal["file", "public", "upstream"]
"""A file that registers single-dim strategies; one that does so by the public `register_sharding`; a contribution."""

SHARED = ("dtensor_rules.py", "dtensor_checks.py")
"""Files that all emitted ones share."""


def module_name(statement: Statement) -> str:
    """The module that registers the rules: ``linalg_cross_strategy``, ``add_Tensor_strategy``."""
    parts = overload_parts(statement.operator)[1:]
    name = "_".join(part for part in parts if part != "default")
    return re.sub(r"\W", "_", name) + "_strategy"


def texts_of(
    statement: Statement, style: Style = "local", origin: Origin = TORCH, form: Form = "file"
) -> dict[str, str]:
    """The strategy and its test file, by file name, and the two files that they share with others."""
    if form == "upstream":
        return emit_upstream([statement])
    module = module_name(statement)
    emit = emit_public if form == "public" else emit_strategy
    return {
        f"{module}.py": emit(statement, origin),
        f"test_{module}.py": emit_tests(statement, module, style=style),
        **shared_texts(),
    }


def shared_texts() -> dict[str, str]:
    """What emitted files share, as it stands here; it reads dims by the very function that discovery does."""
    found = {name: Path(__file__).with_name(name).read_text() for name in SHARED}
    rules = found["dtensor_rules.py"].replace("from .source import normal_dims\n\n", "")
    found["dtensor_rules.py"] = f"{rules}\n\n{inspect.getsource(normal_dims)}"
    return found


def write_files(
    statements: Sequence[Statement],
    folder: Path,
    style: Style = "local",
    modules: Sequence[str] = (),
    form: Form = "file",
) -> list[Path]:
    """Write all of them; run the tests with pytest there.  `modules`: those that define the operators."""
    folder.mkdir(parents=True, exist_ok=True)
    origin = origin_of(modules, folder)
    texts: dict[str, str] = {}
    if form == "upstream":
        texts = emit_upstream(statements)
    for statement in statements if form != "upstream" else ():
        texts.update(texts_of(statement, style, origin, form))
    for name, text in texts.items():
        (folder / name).write_text(text)
    return [folder / name for name in texts]


def origin_of(modules: Sequence[str], folder: Path) -> Origin:
    """Where these modules are, as seen from the folder; what is installed is found without."""
    folders: dict[str, None] = {}
    for name in modules:
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is None or "site-packages" in file or "dist-packages" in file:
            continue
        up = name.count(".") + (Path(file).name == "__init__.py")
        folders[os.path.relpath(Path(file).resolve().parents[up], folder.resolve())] = None
    return Origin(tuple(modules), tuple(folders))

"""Bugs of public code bases, rebuilt in small: each a module with a single program, a wrong and a right parallel one.

A case says where it was reported (`SOURCE`), on which mesh it runs (`MESH`), with what (`inputs`, `PLACEMENTS`, `LOSS`)
and what is wrong (`OUTPUTS`, as a proof names them); its wrong lines bear a comment ``# wrong: ...``.  All are written
for this project, from the descriptions.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

NO_CASES = ("mappings", "models")


@dataclass(frozen=True)
class Case:
    """One bug."""

    name: str
    module: ModuleType

    @property
    def source(self) -> str:
        return str(self.module.SOURCE)

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(self.module.OUTPUTS)

    @property
    def placements(self) -> Mapping[str, Any] | None:
        return getattr(self.module, "PLACEMENTS", None)

    @property
    def hint(self) -> bool:
        """Whether more is said than how the batch is cut."""
        return bool(getattr(self.module, "HINT", False))

    @property
    def file(self) -> Path:
        return Path(str(self.module.__file__))

    @property
    def lines(self) -> list[int]:
        """Those that are marked as wrong."""
        text = self.file.read_text().splitlines()
        return [number for number, line in enumerate(text, 1) if "# wrong:" in line]

    def arguments(self) -> dict[str, Any]:
        """For `prove`, beside the parallel program."""
        return {
            "like": self.module.single(), "mesh": self.module.MESH, "inputs": self.module.inputs(),
            "placements": self.placements, "loss": getattr(self.module, "LOSS", None),
        }  # fmt: skip


def cases() -> list[Case]:
    """All of them, by name."""
    names = sorted(found.name for found in pkgutil.iter_modules(__path__) if found.name not in NO_CASES)
    return [Case(name, importlib.import_module(f"{__name__}.{name}")) for name in names]

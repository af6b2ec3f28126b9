"""`ExportedProgram`: run as the module it came from, each op under the line and module it was exported with."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Any

import torch

from ....ir.graph import SourceLine
from .source import SPOKEN_FOR

_FILE = re.compile(r'File "([^"]+)", line (\d+)')


def as_module(program: Any) -> Any:
    """The program's module; its own code has generated lines, so the nodes are run one by one."""
    module = program.module()
    interpreter = _Located(module)
    generated = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        return generated(*args, **kwargs) if kwargs else interpreter.run(*args)

    module.forward = forward
    return module


class _Located(torch.fx.Interpreter):
    def run_node(self, n: Any) -> Any:
        SPOKEN_FOR.append(_source(n))
        try:
            return super().run_node(n)
        finally:
            SPOKEN_FOR.pop()


def _source(node: Any) -> SourceLine | None:
    lines = _FILE.findall(node.meta.get("stack_trace") or "")
    if not lines:
        return None
    file, line = lines[-1]
    modules = list((node.meta.get("nn_module_stack") or {}).values())
    scope = str(modules[-1][0]) if modules else ""
    return SourceLine(PurePath(file).name, int(line), re.sub(r"^L\['self'\]\.?|^L__self__\.?", "", scope))

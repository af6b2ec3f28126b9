"""The Python that an emitted module runs: FX's own, with operators bound to names.

FX writes ``torch.ops.aten.mm.default(x, w)`` and looks the operator up at every call, which takes half a microsecond
each time.  Here the operators are globals of the code.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from torch import fx

from ...frontends.torch.signatures import find_op

_OPERATOR = re.compile(r"\btorch\.ops\.(\w+)\.(\w+)\.(\w+)\(")
_Generator: Any = fx.graph.CodeGen  # untyped in part


class PlainCalls(_Generator):  # type: ignore[misc]
    """A code generator for graphs of operator calls."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: dict[str, Any] = {}
        self._body_transformer = self.bind

    def bind(self, lines: Sequence[str]) -> list[str]:
        """The lines of the function's body, with names in place of paths."""
        return [_OPERATOR.sub(self._name, line) for line in lines]

    def _name(self, found: re.Match[str]) -> str:
        name = "_op_" + "_".join(found.groups())
        self.operators.setdefault(name, find_op(".".join(found.groups())))
        return f"{name}("

    def _gen_python_code(self, *args: Any, **kwargs: Any) -> Any:
        # `additional_globals` is the documented way, but drops whatever comes from torch.
        code = super()._gen_python_code(*args, **kwargs)
        code.globals.update(self.operators)
        return code

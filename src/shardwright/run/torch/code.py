"""The Python that an emitted module runs: FX's own, with operators bound to names.

FX writes ``torch.ops.aten.mm.default(x, w)`` and looks the operator up at every call, which takes half a microsecond
each time.  Here the operators are globals of the code.

Who calls ``forward(*inputs)`` holds the inputs while it runs.  With ``taking`` it gets one list and empties it, so that
an input is gone after its last use unless somebody else has it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from torch import fx

from ...frontends.torch.signatures import find_op

_OPERATOR = re.compile(r"\btorch\.ops\.(\w+)\.(\w+)\.(\w+)\(")
INPUTS = "_inputs_"
"""What the list is called that a function takes over; no input may be called so."""
_Generator: Any = fx.graph.CodeGen  # untyped in part


class PlainCalls(_Generator):  # type: ignore[misc]
    """A code generator for graphs of operator calls."""

    def __init__(self, taking: bool = False) -> None:
        super().__init__()
        self.taking = taking
        self.operators: dict[str, Any] = {}
        self._body_transformer = self.bind

    def bind(self, lines: Sequence[str]) -> list[str]:
        """The lines of the function's body, with names in place of paths."""
        return [_OPERATOR.sub(self._name, line) for line in lines]

    def gen_fn_def(self, free_vars: list[str], *args: Any, **kwargs: Any) -> str:
        """The function's head."""
        if not self.taking:
            return str(super().gen_fn_def(free_vars, *args, **kwargs))
        names = [name for name in free_vars if name != "self"]
        head = super().gen_fn_def([INPUTS], *args, **kwargs)
        unpack = [f"{', '.join(names)}, = {INPUTS}"] if names else []
        return "\n    ".join([head, *unpack, f"{INPUTS}.clear()"])

    def process_inputs(self, *args: Any) -> Any:
        """For FX's own interpreter, which gives a graph its inputs one by one."""
        return tuple(args[0]) if self.taking else args

    def _name(self, found: re.Match[str]) -> str:
        name = "_op_" + "_".join(found.groups())
        self.operators.setdefault(name, find_op(".".join(found.groups())))
        return f"{name}("

    def _gen_python_code(self, *args: Any, **kwargs: Any) -> Any:
        # `additional_globals` is the documented way, but drops whatever comes from torch.
        code = super()._gen_python_code(*args, **kwargs)
        code.globals.update(self.operators)
        return code

"""The program, before and after sharding.

`Graph` is what a frontend captures: frozen values and nodes, ops by name and attributes.  `Program` is what
lowering makes of it: one SPMD text with explicit collectives.

| file | what it holds |
|---|---|
| `graph` | `Graph`, `Node`, `Value`, `TensorType`, and `GraphBuilder` to make them |
| `text` | the text form, printed and parsed back |
| `json` | the JSON form, read strictly |
| `wiring` | a graph as arrays: what whole graphs are checked and compared by |
| `verify` | what a well-formed graph is |
| `rewrite` | the walk that passes share; splitting constants |
| `core` | ops that belong to no frontend |
| `digest` | `program_hash`: what a program computes, as a digest |
| `program` | `Program`, `Instr`, `Local`: the SPMD form |

To extend: a pass is a function from graph to graph that uses `rewrite.Rewriter` and ends in `verify`.
"""

from .graph import Graph, GraphBuilder, Node, Source, TensorType, Value
from .program import Collective, Instr, Local, Program

__all__ = [
    "Collective",
    "Graph",
    "GraphBuilder",
    "Instr",
    "Local",
    "Node",
    "Program",
    "Source",
    "TensorType",
    "Value",
]

"""The program, before and after sharding.

`Graph` is what a frontend captures: frozen values and nodes, ops by name and attributes.  `Program` is what
lowering makes of it: one SPMD text with explicit collectives.

| file | what it holds |
|---|---|
| `nodes` | `Node`, `Value`, `TensorType`: what graphs are made of |
| `wiring` | a graph as arrays: what whole graphs are checked and compared by |
| `graph_data` | values and nodes as one program, and the questions it answers |
| `text` | the text form, printed and parsed back |
| `json` | the JSON form, read strictly |
| `verify` | what a well-formed graph is |
| `lifetimes` | how long values are needed, views and what they show included |
| `graph` | `Graph`: the program with all its forms, and `GraphBuilder` to make one |
| `rewrite` | the walk that passes share; splitting constants |
| `core` | ops that belong to no frontend |
| `digest` | `program_hash`, `program_digest`: what a Graph, what a Program computes, as digests |
| `program` | `Program`, `Instr`, `Local`: the SPMD form |
| `order` | in which order a Program's instructions are issued, and what memory that takes beside its values |

To extend: a pass is a function from graph to graph that uses `rewrite.Rewriter` and ends in `verify`.
"""

from .graph import Graph, GraphBuilder, Node, SourceLine, TensorType, Value
from .program import Collective, Instr, Local, Program

__all__ = [
    "Collective",
    "Graph",
    "GraphBuilder",
    "Instr",
    "Local",
    "Node",
    "Program",
    "SourceLine",
    "TensorType",
    "Value",
]

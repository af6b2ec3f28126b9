"""Heads that are repeated before attention, and gradients that are summed over the repeats, however it is spelled.

Dims are followed through views, copies and broadcasts as lists of *atoms*: the dims of where the walk began, and one
for the repeats.  ``[b, h, s, d] -> [b, h, 1, s, d] -> [b, h, r, s, d] -> [b, (h r), s, d]`` is a repeat of heads.
"""

from __future__ import annotations

from ...ir.graph import Graph, Node
from .calls import call_name

Atom = tuple[int | str, int]
"""A dim of the tensor that a walk began at, or `REPEAT`, and its size."""
Dims = list[list[Atom]]
REPEAT = "repeat"
HEADS = -3
"""Where heads stand: [..., heads, sequence, width]."""
LONGEST = 12
"""Ops that a walk goes through at most."""


def repeated_from(graph: Graph, value: int) -> tuple[int, int] | None:
    """The tensor of which a value repeats every head, and how often; None if it does not."""
    chain: list[Node] = []
    at = value
    for _ in range(LONGEST):
        node = _movement(graph, at)
        if node is None:
            return None
        chain.insert(0, node)
        at = node.inputs[0]
        shape = graph.type(at).shape
        dims: Dims | None = _atoms(shape)
        for step in chain:
            dims = None if dims is None else _moved(graph, step, dims)
        times = None if dims is None else _times(dims, len(shape))
        if times is not None:
            return at, times
    return None


def summed_to(graph: Graph, value: int, times: int) -> tuple[int, list[int]] | None:
    """Where the gradient of repeated heads is summed to one for each head that there was, and the nodes on the way.

    None if anybody else reads what is on the way.
    """
    shape = graph.type(value).shape
    dims: Dims | None = _atoms(shape)
    assert dims is not None
    if shape[HEADS] % times:
        return None
    dims[HEADS] = [(dims[HEADS][0][0], shape[HEADS] // times), (REPEAT, times)]
    wanted = [[atom for atom in dim if atom[0] != REPEAT] for dim in dims]
    nodes: list[int] = []
    for _ in range(LONGEST):
        if len(graph.uses[value]) != 1 or graph.output_uses[value]:
            return None
        n = graph.uses[value][0]
        node = graph.nodes[n]
        dims = _moved(graph, node, dims) if _movement(graph, node.results[0]) else _summed(graph, node, dims)
        if dims is None:
            return None
        nodes.append(n)
        value = node.results[0]
        if dims == wanted:
            return value, nodes
    return None


def _atoms(shape: tuple[int, ...]) -> Dims:
    return [[(d, size)] if size != 1 else [] for d, size in enumerate(shape)]


def _times(dims: Dims, rank: int) -> int | None:
    """How often heads are repeated, if that is all that was done; of one head all are repeats."""
    if len(dims) != rank or rank < -HEADS:
        return None
    *head, last = dims[HEADS] or [(0, 1)]
    others = all(atoms in ([], [(d, atoms[0][1] if atoms else 1)]) for d, atoms in enumerate(dims) if d != rank + HEADS)
    plain = head in ([], [(rank + HEADS, head[0][1] if head else 1)])
    return last[1] if others and plain and last[0] == REPEAT and last[1] > 1 else None


def _movement(graph: Graph, value: int) -> Node | None:
    """The op that makes a value by moving elements about, or showing them otherwise."""
    n = graph.node_of(value)
    node = None if n is None else graph.nodes[n]
    if node is None or len(node.inputs) != 1 or len(node.results) != 1:
        return None
    same_type = graph.type(node.inputs[0]).dtype == graph.type(value).dtype
    return node if same_type and call_name(node, graph)[0] in ("reshape", "transpose", "broadcast_to", "copy") else None


def _moved(graph: Graph, node: Node, dims: Dims) -> Dims | None:
    name, attrs = call_name(node, graph)
    shape = graph.type(node.results[0]).shape
    if name == "transpose":
        order = attrs.get("permutation") or tuple(reversed(range(len(dims))))
        return [dims[d] for d in order]
    if name == "broadcast_to":
        full: Dims = [[] for _ in range(len(shape) - len(dims))] + dims
        sizes = [_size(dim) for dim in full]
        wider = [d for d, size in enumerate(shape) if size != sizes[d]]
        if len(wider) > 1 or any(atom[0] == REPEAT for dim in dims for atom in dim if wider):
            return None
        return [[(REPEAT, shape[d])] if d in wider else dim for d, dim in enumerate(full)]
    return _regrouped([atom for dim in dims for atom in dim], shape) if name == "reshape" else dims


def _regrouped(atoms: list[Atom], shape: tuple[int, ...]) -> Dims | None:
    """The same atoms in dims of other sizes; None if one would be cut."""
    rest, made = list(atoms), []
    for size in shape:
        dim: list[Atom] = []
        while _size(dim) < size and rest:
            dim.append(rest.pop(0))
        if _size(dim) != size:
            return None
        made.append(dim)
    return None if rest else made


def _summed(graph: Graph, node: Node, dims: Dims) -> Dims | None:
    """A sum over the repeats, and nothing else."""
    name, attrs = call_name(node, graph)
    if name != "reduce_sum" or graph.type(node.inputs[0]).dtype != graph.type(node.results[0]).dtype:
        return None
    axis = attrs.get("axis")
    axes = (axis,) if isinstance(axis, int) else axis or ()
    if [dims[d][0][0] for d in axes if dims[d]] != [REPEAT] or any(len(dims[d]) > 1 for d in axes):
        return None
    kept = [[] if d in axes else dim for d, dim in enumerate(dims)]
    return kept if attrs.get("keepdims") else [dim for d, dim in enumerate(kept) if d not in axes]


def _size(dim: list[Atom]) -> int:
    size = 1
    for _, part in dim:
        size *= part
    return size

"""The numeric problem: one strategy per node, pairwise tables, and bytes that must fit at every step.

    minimise    sum_i cost_i(x_i) + sum_ij table_ij(x_i, x_j)
    subject to  sum_{pieces p alive at t} amount_p(x_node(p)) <= limit_t      for every step t

A node may have several usages (a value kept over two stretches, or nodes folded into one).  Limits are per step, so
a second kind of memory is a second stretch of steps.  A cost of `FORBIDDEN` or more means "not allowed"; it is kept
as `NEVER`, high enough that sums of allowed costs never look forbidden and low enough that two of them fit in int64.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ShardwrightError

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

FORBIDDEN = 10**18
"""What a user writes for "not allowed": this or more."""
NEVER = 4 * 10**18
"""What this room keeps for it."""
_EXACT = 2**62
_LONG = 4_000_000


def share_of(times: Ints, part: int, whole: int) -> Ints:
    """A part of times, rounded down, where their product with it may be too large a number.

    >>> int(share_of(np.array([10**18]), 999, 1000)[0])
    999000000000000000
    """
    found: Ints = times // whole * part + times % whole * part // whole
    return found


class NumericError(ShardwrightError, ValueError):
    """A numeric problem that is malformed, or a choice that does not fit it."""


@dataclass(frozen=True, slots=True, eq=False)
class Edge:
    """What two nodes' strategies cost together; rows are the first node's strategies."""

    first: int
    second: int
    table: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Usage:
    """Bytes that a node holds at the steps ``start <= t < end``, by strategy."""

    node: int
    start: int
    end: int
    amounts: Ints


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a choice costs and needs, exactly."""

    cost: int
    """The sum of all allowed entries chosen; meaningless as a price where some are forbidden."""
    forbidden: int
    """How many forbidden entries were chosen."""
    peak: int
    """The most bytes held at any step."""
    excess: int
    """The most bytes above the limit at any step; zero if all fit."""
    step: int
    """The first step of the largest excess, or of the peak if all fit; -1 without steps."""

    @property
    def feasible(self) -> bool:
        return self.forbidden == 0 and self.excess == 0


@dataclass(frozen=True, eq=False)
class NumericProblem:
    """Costs by node, edges with ``first < second`` and at most one a pair, usages, and a limit per step.

    Made with `NumericProblem.build` or `read`, which check and normalise; the fields are trusted.
    """

    costs: tuple[Ints, ...]
    edges: tuple[Edge, ...] = ()
    usages: tuple[Usage, ...] = ()
    limits: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    name: str = ""

    @classmethod
    def build(
        cls,
        costs: Sequence[Sequence[int] | Ints],
        edges: Iterable[tuple[int, int, Sequence[Sequence[int]] | Ints]] = (),
        usages: Iterable[tuple[int, int, int, Sequence[int] | Ints]] = (),
        limits: Sequence[int] | Ints = (),
        name: str = "",
    ) -> NumericProblem:
        """A checked problem; parallel edges are added up, an edge from a node to itself joins the node's costs."""
        nodes = [_vector(row, f"costs of node {i}") for i, row in enumerate(costs)]
        for i, row in enumerate(nodes):
            if row.size == 0:
                raise NumericError(f"node {i} has no strategy")
        tables: dict[tuple[int, int], Ints] = {}
        for i, j, raw in edges:
            if not (0 <= i < len(nodes) and 0 <= j < len(nodes)):
                raise NumericError(f"edge ({i}, {j}) names a node that is not there", rows=[("nodes", str(len(nodes)))])
            table = _table(raw, (nodes[i].size, nodes[j].size), (i, j))
            if i == j:
                nodes[i] = plus(nodes[i], np.diagonal(table))
                continue
            if i > j:
                i, j, table = j, i, np.ascontiguousarray(table.T)
            known = tables.get((i, j))
            tables[i, j] = table if known is None else plus(known, table)
        bounds = _vector(limits, "limits", forbid=False)
        if bounds.size and bounds.min() < 0:
            raise NumericError(f"the limit at step {int(bounds.argmin())} is negative")
        held = []
        for node, start, end, raw_amounts in usages:
            if not 0 <= node < len(nodes):
                raise NumericError(f"a usage names node {node}, which is not there", rows=[("nodes", str(len(nodes)))])
            amounts = _vector(raw_amounts, f"usages of node {node}", forbid=False)
            if amounts.size != nodes[node].size:
                raise NumericError(f"node {node} has {nodes[node].size} strategies, its usages {amounts.size}")
            if amounts.size and amounts.min() < 0:
                raise NumericError(f"a usage of node {node} is negative")
            if start < 0 or end > bounds.size:
                raise NumericError(f"the usage of node {node} at [{start}, {end}) leaves the {bounds.size} steps")
            if end > start:
                held.append(Usage(node, start, end, amounts))
        found = tuple(Edge(i, j, tables[i, j]) for i, j in sorted(tables))
        return cls(tuple(nodes), found, tuple(held), bounds, name)

    @property
    def nodes(self) -> int:
        return len(self.costs)

    @cached_property
    def sizes(self) -> Ints:
        """How many strategies each node has."""
        return np.array([row.size for row in self.costs], np.int64)

    @cached_property
    def pieces(self) -> Pieces:
        """All usages in flat arrays."""
        return Pieces.of(self.usages, self.sizes, self.limits.size)

    def held(self, choice: Ints) -> Ints:
        """Bytes held at each step."""
        return self.pieces.held(choice)

    def evaluate(self, choice: Sequence[int] | Ints) -> Evaluation:
        """Cost and memory of a choice, exactly."""
        picked = np.asarray(choice, np.int64)
        if picked.shape != (self.nodes,) or (picked < 0).any() or (picked >= self.sizes).any():
            raise NumericError("a choice names one existing strategy per node", rows=[("nodes", str(self.nodes))])
        terms = [int(row[s]) for row, s in zip(self.costs, picked)]
        terms += [int(edge.table[picked[edge.first], picked[edge.second]]) for edge in self.edges]
        held = self.held(picked)
        over = held - self.limits
        step, excess, peak = -1, 0, 0
        if held.size:
            excess, peak = max(0, int(over.max())), int(held.max())
            step = int((over if excess else held).argmax())
        allowed = [term for term in terms if term < NEVER]
        return Evaluation(sum(allowed), len(terms) - len(allowed), peak, excess, step)


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Usages in flat arrays: piece p covers steps ``start[p] <= t < end[p]``, its amounts start at ``at[p]``."""

    node: Ints
    start: Ints
    end: Ints
    at: Ints
    amounts: Ints
    owner: Ints
    """The piece that each amount belongs to."""
    state: Ints
    """The place of each amount's strategy when all nodes' strategies are laid end to end."""
    steps: int

    @classmethod
    def of(cls, usages: Sequence[Usage], sizes: Ints, steps: int) -> Pieces:
        node = np.array([usage.node for usage in usages], np.int64)
        start = np.array([usage.start for usage in usages], np.int64)
        end = np.array([usage.end for usage in usages], np.int64)
        amounts = np.concatenate([usage.amounts for usage in usages]) if usages else np.zeros(0, np.int64)
        lengths = sizes[node]
        at = np.cumsum(lengths) - lengths
        owner = np.repeat(np.arange(len(usages)), lengths)
        first = np.cumsum(sizes) - sizes
        state = np.arange(amounts.size) - at[owner] + first[node[owner]]
        return cls(node, start, end, at, amounts, owner, state, steps)

    def held(self, choice: Ints) -> Ints:
        """Bytes held at each step."""
        return self.spread(self.amounts[self.at + choice[self.node]])

    def spread(self, values: Ints) -> Ints:
        """The sum at each step of one value per piece."""
        change = np.zeros(self.steps + 1, np.int64)
        np.add.at(change, self.start, values)
        np.subtract.at(change, self.end, values)
        return np.cumsum(change)[:-1]

    def extremes(self) -> tuple[Ints, Ints]:
        """Each piece's least and most amount."""
        if not self.node.size:
            return self.node, self.node
        return np.minimum.reduceat(self.amounts, self.at), np.maximum.reduceat(self.amounts, self.at)

    def price(self, prices: Floats, states: int) -> Floats:
        """What each strategy pays, all nodes' strategies end to end, when a byte at step t costs ``prices[t]``."""
        total = np.concatenate([np.zeros(1), np.cumsum(prices)])
        weights = (total[self.end] - total[self.start])[self.owner] * self.amounts
        return np.bincount(self.state, weights, minlength=states).astype(np.float64)


def plus(a: Ints, b: Ints) -> Ints:
    """The sum; forbidden stays forbidden."""
    total: Ints = np.minimum(a + b, NEVER)
    return total


# -- reading --------------------------------------------------------------------------------------------


def read(path: str | Path) -> NumericProblem:
    """The problem in a contest file: JSON, or JSON compressed with gzip."""
    data = Path(path).read_bytes()
    try:
        text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise NumericError(f"{Path(path).name} is not readable: {error}") from error
    try:
        return parse(text)
    except NumericError as error:
        error.add("file", Path(path).name)
        raise


def parse(text: str) -> NumericProblem:
    """The problem in a contest file's text.

    >>> text = '{"problem": {"nodes": {"intervals": [[0, 2]], "costs": [[5, 3]], "usages": [[1, 4]]}, "usage_limit": 3,'
    >>> problem = parse(text + ' "edges": {"nodes": [], "costs": []}}}')
    >>> problem.evaluate([0]).cost, problem.evaluate([1]).feasible
    (5, False)
    """
    try:
        data = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_no_duplicates)
    except (json.JSONDecodeError, RecursionError) as error:
        raise NumericError(f"not JSON: {error}") from error
    problem = _field(data, "problem", dict)
    nodes, edges = _field(problem, "nodes", dict), _field(problem, "edges", dict)
    intervals, costs, usages = (_field(nodes, key, list) for key in ("intervals", "costs", "usages"))
    pairs, tables = _field(edges, "nodes", list), _field(edges, "costs", list)
    name = problem.get("name", "")
    if not isinstance(name, str):
        raise NumericError("'name' is no text")
    if not len(intervals) == len(costs) == len(usages):
        raise NumericError(
            "nodes need as many intervals as costs and usages",
            rows=[("given", f"{len(intervals)}, {len(costs)}, {len(usages)}")],
        )
    if len(pairs) != len(tables):
        raise NumericError(
            "edges need as many pairs of nodes as costs", rows=[("given", f"{len(pairs)}, {len(tables)}")]
        )
    spans = _squeezed([_pair(span, f"interval of node {i}") if span else (0, 0) for i, span in enumerate(intervals)])
    counts = [len(row) if isinstance(row, list) else 0 for row in costs]
    linked = []
    for number, (pair, raw) in enumerate(zip(pairs, tables)):
        i, j = _pair(pair, f"nodes of edge {number}")
        flat = _vector(raw, f"costs of edge {number}")
        if not (0 <= i < len(costs) and 0 <= j < len(costs)) or flat.size != counts[i] * counts[j]:
            raise NumericError(f"edge {number} between nodes {i} and {j} does not fit them")
        linked.append((i, j, flat.reshape(counts[i], counts[j])))
    held: list[tuple[int, int, int, Any]] = [(i, *span, usages[i]) for i, span in enumerate(spans)]
    limit = problem.get("usage_limit")
    steps = max((end for _, end in spans), default=0)
    if limit is None:
        return NumericProblem.build(costs, linked, name=name)
    if not _is_int(limit) or limit < 0:
        raise NumericError("'usage_limit' is no whole number of bytes")
    return NumericProblem.build(costs, linked, held, np.full(steps, min(limit, _EXACT), np.int64), name)


def _squeezed(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Times so far apart that an array over them would not fit become their ranks; nothing happens in between."""
    if max((end for _, end in spans), default=0) <= _LONG or min(start for start, _ in spans) < 0:
        return spans
    rank = {time: place for place, time in enumerate(sorted({time for span in spans for time in span}))}
    return [(rank[start], rank[end]) for start, end in spans]


def _no_constant(word: str) -> Any:
    raise NumericError(f"{word} is no number")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise NumericError("a key stands twice in one object")
    return found


def _field(data: object, key: str, kind: type) -> Any:
    if not isinstance(data, Mapping) or key not in data:
        raise NumericError(f"{key!r} is missing")
    if not isinstance(data[key], kind):
        raise NumericError(f"{key!r} is no {'list' if kind is list else 'object'}")
    return data[key]


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _pair(value: object, what: str) -> tuple[int, int]:
    if not isinstance(value, list) or len(value) != 2 or not all(map(_is_int, value)):
        raise NumericError(f"{what}: two whole numbers are needed", rows=[("given", repr(value)[:60])])
    return value[0], value[1]


def _vector(values: Sequence[int] | Ints, what: str, forbid: bool = True) -> Ints:
    """Whole numbers as int64; with ``forbid``, those of `FORBIDDEN` and more as `NEVER`."""
    if isinstance(values, np.ndarray):
        if values.dtype.kind not in "iu" or values.ndim != 1:
            raise NumericError(f"{what}: whole numbers in a row are needed")
        row = values.astype(np.int64)
    else:
        kinds = set(map(type, values)) if isinstance(values, (list, tuple)) else {str}
        if not all(issubclass(kind, (int, np.integer)) and kind is not bool for kind in kinds):
            raise NumericError(f"{what}: whole numbers in a list are needed", rows=[("given", repr(values)[:60])])
        try:
            row = np.array(values, np.int64)
        except OverflowError:
            row = np.array([max(-_EXACT, min(value, _EXACT)) for value in values], np.int64)
    if forbid and row.size:
        if row.min() <= -FORBIDDEN:
            raise NumericError(f"{what}: {int(row.min())} is too low")
        row = np.where(row >= FORBIDDEN, NEVER, row)
    return row


def _table(values: Sequence[Sequence[int]] | Ints, shape: tuple[int, int], pair: tuple[int, int]) -> Ints:
    what = f"costs of edge {pair}"
    rows = values if isinstance(values, np.ndarray) else [_vector(row, what) for row in values]
    if len(rows) != shape[0] or any(len(row) != shape[1] for row in rows):
        raise NumericError(f"edge {pair} needs a table of {shape[0]} x {shape[1]} costs")
    if isinstance(rows, np.ndarray):
        return _vector(rows.reshape(-1), what).reshape(shape)
    return np.array(rows, np.int64).reshape(shape)

"""`Lockstep`: the programs of all ranks over a field, meeting at collectives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from math import prod
from typing import Any, NamedTuple
from weakref import WeakSet

import numpy as np

from ...errors import VerifyError
from ...frontends.ranks import COMMUNICATION, Given, Traced
from ...ir.graph import Graph, Node, TensorType
from .calls import Calling
from .meanings import Meanings, Operand, flatten
from .numbers import Number, Numbers
from .order import one_of

HELD = 1 << 23
"""So many numbers are held for ranks that have not come to them; the oldest go first."""


class _Held(NamedTuple):
    operands: list[Number]
    """Kept, lest another number comes to lie at the same address."""
    made: list[Number]
    size: int
    fetched: list[None]
    """One for every rank that has come."""


class Shared:
    """What several ranks compute alike, computed once.

    What ranks have gathered, or hold as copies, is one `Number` for all of them.  The same op on the same numbers gives
    the same result, on whichever rank, so only the first rank to come to it computes; the others get its result.
    """

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._common: WeakSet[Number] = WeakSet()
        """Numbers that are on several ranks."""
        self._held: dict[Hashable, _Held] = {}
        self._size = 0

    def add(self, numbers: Iterable[Number]) -> None:
        """These are on several ranks."""
        self._common.update(numbers)

    def key(self, node: Node, types: Sequence[TensorType], operands: Sequence[Operand]) -> Hashable:
        """What the results of an op depend on; None if it is of one rank alone."""
        if self._ranks == 1 or node.op.startswith("foreign."):
            return None
        flat = flatten(operands)
        if not all(x in self._common for x in flat):
            return None
        places = tuple(None if o is None else len(o) if isinstance(o, list) else -1 for o in operands)
        return node.op, node.attrs, tuple(types), places, tuple(map(id, flat))

    def find(self, key: Hashable) -> list[Number] | None:
        """What another rank has computed."""
        held = self._held.get(key) if key is not None else None
        if held is None:
            return None
        held.fetched.append(None)
        if len(held.fetched) == self._ranks - 1:
            self._drop(key)
        return held.made

    def hold(self, key: Hashable, operands: Sequence[Operand], made: list[Number]) -> None:
        if key is None:
            return
        self.add(made)
        size = sum(prod(x.shape) for x in made)
        self._held[key] = _Held(flatten(operands), made, size, [])
        self._size += size
        while self._size > HELD:
            self._drop(next(iter(self._held)))

    def _drop(self, key: Hashable) -> None:
        self._size -= self._held.pop(key).size


Values = dict[int, Number]


@dataclass
class _Meeting:
    """Ranks of a group at the same collective."""

    nodes: dict[int, int] = field(default_factory=dict)
    made: list[list[Number]] = field(default_factory=list)


class Lockstep:
    """One run of all ranks; ``values[rank]`` holds what every value of the rank's graph is.

    Without ``keep`` only outputs are left in the end.
    """

    def __init__(
        self, ranks: Sequence[Traced], meanings: Meanings, given: Callable[[Given, int], Number], keep: bool = True
    ) -> None:
        self.ranks, self.meanings, self.keep = ranks, meanings, keep
        self.values: list[Values] = []
        self._last: list[dict[int, list[int]]] = []
        """For every rank and node: the values that nobody reads later."""
        self._meetings: dict[Any, _Meeting] = {}
        self._letters: dict[Any, list[Number]] = {}
        self._shared = Shared(len(ranks))
        for traced in ranks:
            graph = traced.graph
            values: Values = {}
            for value, given_as in zip(graph.inputs, traced.given, strict=True):
                made = given(given_as, traced.rank)
                if made.shape != graph.type(value).shape:
                    raise VerifyError(
                        f"{given_as.name} has {list(graph.type(value).shape)} on rank {traced.rank}, not "
                        f"{list(made.shape)}"
                    )
                values[value] = made
            self.values.append(values)
            self._last.append({} if keep else _last_uses(graph))
        self._shared.add(_several(values.values() for values in self.values))

    def run(self) -> list[Values]:
        at = [0] * len(self.ranks)
        while True:
            moved = False
            for r, traced in enumerate(self.ranks):
                nodes = traced.graph.nodes
                while at[r] < len(nodes):
                    node = nodes[at[r]]
                    if not node.op.startswith(COMMUNICATION):
                        self._put(r, at[r], self._local(r, node))
                    elif not self._communicate(r, at[r]):
                        break
                    at[r] += 1
                    moved = True
            if all(at[r] == len(traced.graph.nodes) for r, traced in enumerate(self.ranks)):
                return self.values
            if not moved:
                raise VerifyError("the ranks wait for each other")

    def _put(self, rank: int, n: int, made: list[Number]) -> None:
        values = self.values[rank]
        values.update(zip(self.ranks[rank].graph.nodes[n].results, made))
        for value in self._last[rank].get(n, ()):
            values.pop(value, None)

    def _local(self, r: int, node: Node) -> list[Number]:
        traced, values = self.ranks[r], self.values[r]
        operands = [
            [values[v] for v in o] if isinstance(o, tuple) else None if o is None else values[o] for o in node.operands
        ]
        types = tuple(traced.graph.types(node.results))
        was_known = any(value in traced.known for value in node.results)
        key = None if was_known else self._shared.key(node, types, operands)
        found = self._shared.find(key)
        if found is not None:
            return found
        attrs = dict(node.attrs)
        if node.op == "foreign.unwritten":
            attrs["rank"] = traced.rank
        call = Calling(node.op, attrs, types)
        try:
            made = self.meanings.evaluate(call, operands)
        except VerifyError:
            raise
        except Exception as error:
            rows = [("op", node.op), ("rank", str(traced.rank))]
            rows += [("at", str(node.source))] if node.source else []
            raise VerifyError(f"{node.op} cannot be computed over a field: {error}", rows=rows) from error
        self._shared.hold(key, operands, made)
        return _as_it_was(self.meanings.numbers, traced.known, node, operands, made) if was_known else made

    # -- collectives ------------------------------------------------------------------------------------------

    def _communicate(self, r: int, n: int) -> bool:
        """Whether the rank can go on."""
        traced = self.ranks[r]
        node = traced.graph.nodes[n]
        attrs: dict[str, Any] = dict(node.attrs)
        kind = node.op.removeprefix(COMMUNICATION)
        if kind == "send":
            self._letters[traced.rank, attrs["root"], attrs["tag"], attrs["at"]] = self._sent(r, node)
            self._put(r, n, [])
            return True
        if kind == "receive":
            found = self._letters.get((attrs["root"], traced.rank, attrs["tag"], attrs["at"]))
            if found is None:
                return False
            mine = found
        else:
            members = list(attrs["group"])
            meeting = self._meetings.setdefault((attrs["group"], attrs["channel"], attrs["at"]), _Meeting())
            meeting.nodes[traced.rank] = n
            if len(meeting.nodes) < len(members):
                return False
            if not meeting.made:
                meeting.made = self._met(node, kind, meeting)
            place = members.index(traced.rank)
            mine, meeting.made[place] = meeting.made[place], []
        shapes = [type.shape for type in traced.graph.types(node.results)]
        try:
            back = [
                x if x.shape == shape else x.map(lambda part, shape=shape: part.reshape(shape))  # type: ignore[misc]
                for x, shape in zip(mine, shapes, strict=True)
            ]
        except ValueError as error:
            raise _cannot(kind, node, mine) from error
        self._put(r, n, back)
        return True

    def _met(self, node: Node, kind: str, meeting: _Meeting) -> list[list[Number]]:
        """What comes back, for every member of the group."""
        attrs: dict[str, Any] = dict(node.attrs)
        members = list(attrs["group"])
        sent = [self._sent(member, self.ranks[member].graph.nodes[meeting.nodes[member]]) for member in members]
        try:
            made = received(self.meanings.numbers, kind, attrs["reduce"], members, attrs["root"], sent)
        except (ValueError, IndexError, KeyError) as error:
            raise _cannot(kind, node, [x for given in sent for x in given]) from error
        self._shared.add(_several(made))
        return made

    def _sent(self, r: int, node: Node) -> list[Number]:
        return flatten(
            [
                [self.values[r][v] for v in o] if isinstance(o, tuple) else self.values[r][o]
                for o in node.operands
                if o is not None
            ]
        )


def _several(held: Iterable[Iterable[Number]]) -> list[Number]:
    """Numbers that more than one of these have."""
    counts: Counter[Number] = Counter()
    for numbers in held:
        counts.update(set(numbers))
    return [number for number, count in counts.items() if count > 1]


def _cannot(kind: str, node: Node, given: Sequence[Number]) -> VerifyError:
    rows = [("given", ", ".join(str(list(x.shape)) for x in given))]
    rows += [("at", str(node.source))] if node.source else []
    return VerifyError(f"{kind} of what the ranks give cannot be computed", rows=rows)


def _last_uses(graph: Graph) -> dict[int, list[int]]:
    """For every node the values that it is the last to make or read, but for outputs."""
    last: dict[int, int] = {}
    for n, node in enumerate(graph.nodes):
        for value in (*node.inputs, *node.results):
            last[value] = n
    found: dict[int, list[int]] = {}
    outputs = set(graph.outputs)
    for value, n in last.items():
        if value not in outputs:
            found.setdefault(n, []).append(value)
    return found


def _as_it_was(
    numbers: Numbers, known: Mapping[int, Any], node: Node, operands: Sequence[Any], made: list[Number]
) -> list[Number]:
    """Places that followed from floats are those of the run, and what stands there is what stood there."""
    made = [
        Number(x.dtype, np.asarray(known[value]).astype(np.int64)) if value in known else x
        for value, x in zip(node.results, made)
    ]
    if len(made) == 2 and made[1].whole is not None and node.results[1] in known and isinstance(operands[0], Number):
        dim: Any = dict(node.attrs).get("dim", -1)
        x, at = operands[0], made[1].whole
        keep = len(at.shape) == len(x.shape)
        index = at if keep else np.expand_dims(at, dim)
        found = x.map(lambda part: np.take_along_axis(part, index, dim) if part.ndim else part)
        found = found if keep else found.map(lambda part: part.squeeze(dim))
        made[0] = found if made[0].shift is None else numbers.remembered(found)  # a maximum is still one
    return made


def combined(numbers: Numbers, kind: str, parts: Sequence[Number]) -> Number:
    """Parts put together by a reduction."""
    if any(part.shape != parts[0].shape for part in parts):
        raise VerifyError(f"parts of {', '.join(str(list(part.shape)) for part in parts)} are reduced to one")
    if all(part.whole is not None for part in parts):
        held = [np.asarray(part.whole) for part in parts]
        ways: dict[str, Any] = {
            "sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum, "band": np.bitwise_and,
            "bor": np.bitwise_or, "bxor": np.bitwise_xor, "avg": np.add,
        }  # fmt: skip
        whole = reduce(ways[kind], held)
        if kind == "avg":  # of whole numbers it is one, towards 0
            whole = np.trunc(whole / len(held)).astype(whole.dtype)
        return replace(parts[0], whole=whole)
    if kind in ("max", "min"):
        return reduce(lambda x, y: one_of(numbers, 1 if kind == "max" else -1, x, y), parts)
    if kind == "prod":
        return reduce(numbers.multiply, parts)
    total = reduce(numbers.add, parts)
    return numbers.divide(total, numbers.number(len(parts))) if kind == "avg" else total


def received(
    numbers: Numbers, kind: str, how: str, members: Sequence[int], root: int, sent: Sequence[Sequence[Number]]
) -> list[list[Number]]:
    """What every member of a group gets, from what every one of them gives."""
    size = len(members)
    if kind == "barrier":
        return [[] for _ in members]
    if kind == "all_reduce":
        total = combined(numbers, how, [given[0] for given in sent])
        return [[total]] * size
    if kind == "reduce":
        total = combined(numbers, how, [given[0] for given in sent])
        return [[total] if member == root else [] for member in members]
    if kind == "all_gather":
        return [[given[0] for given in sent]] * size
    if kind == "gather":
        return [[given[0] for given in sent] if member == root else [] for member in members]
    if kind == "reduce_scatter":
        return [[combined(numbers, how, [given[i] for given in sent])] for i in range(size)]
    if kind == "all_to_all":
        return [[given[i] for given in sent] for i in range(size)]
    if kind == "broadcast":
        return [[sent[list(members).index(root)][0]]] * size
    if kind == "scatter":
        return [[x] for x in sent[list(members).index(root)]]
    raise VerifyError(f"a collective {kind!r} is not known")

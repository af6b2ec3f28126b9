"""What a record of Shardy's leaves to its neighbours: callees, and the bodies of `case` and `while`.

`joined` makes one program of a function and all that it calls, each call with a copy of its callee.  Where control
flow hands a value on (a call's operand to the callee, what a callee, a branch or a round of a loop returns to the
result) it stands as a *data-flow edge*: an op that reads all sources, whose result is what is read from then on.  An
edge ties its sources and its result: propagation treats it as an identity op.

Bodies of `case` and `while` are not in the records.  A `while` is judged by its operands and results.  A branch of a
`case` returns values of the function that nothing else reads, the first branch's first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any

EDGE, CALLEE_EDGE = "sdy.data_flow_edge", "sdy.func_data_flow_edge"
CALL, CASE, WHILE = "func.call", "stablehlo.case", "stablehlo.while"
COPY = "of a copy"
"""Attribute of ops in a function that is called more than once: the record shows one of its copies."""
TAGS = {"call", "multi_func", EDGE, CALLEE_EDGE, f"region:{CASE}", f"region:{WHILE}"}
"""Of records that can be joined."""
Record = dict[str, Any]


class Unknown(Exception):
    """What decides is not in the file; the message says what."""


def needs_joining(record: Record) -> bool:
    return bool(TAGS & set(record.get("tags", ())))


def joined(record: Record, file: Sequence[Record]) -> Record:
    """The record with its callees in it and with an edge wherever control flow hands a value on."""
    whole = any("pipeline" in name or "reshards" in name for name, _ in record["passes"])
    sides = {side: _Joined(side, file, whole).of(record) for side in ("input", "expected")}
    return {**record, **sides, "tags": [tag for tag in record["tags"] if tag not in TAGS]}


class _Joined:
    """One side of a record while callees are put into it."""

    def __init__(self, side: str, file: Sequence[Record], whole: bool) -> None:
        self.side, self.file, self.whole = side, file, whole
        self.count = 0
        self.types: dict[int, Any] = {}
        self.later: list[Any] = []
        """The ops of callees: Shardy visits functions one after the other."""
        self.copies: Counter[str] = Counter()
        self.bodies: dict[str, list[Any]] = {}

    def of(self, record: Record) -> Record:
        side = record[self.side]
        args = [{**arg, "id": self.new(arg)} for arg in side["args"]]
        names = {old["id"]: new["id"] for old, new in zip(side["args"], args)}
        ops = [*self.ops(record, names, ()), *self.later]
        for name, copies in self.copies.items():
            for op in self.bodies[name] if copies > 1 else ():
                op["attrs"] = {**op["attrs"], COPY: name}
        returns = [names[id] for id in side["returns"]]
        return {**side, "args": args, "ops": ops, "returns": returns}

    def new(self, type: Any) -> int:
        self.count += 1
        self.types[self.count] = {"shape": type.get("shape"), "dtype": type.get("dtype")}
        return self.count

    def ops(self, record: Record, names: dict[int, int], inside: tuple[str, ...]) -> Iterator[Any]:
        """The ops of a function; ``names`` are its values in the joined program."""
        side = record[self.side]
        edges = {op["operands"][0]: op for op in side["ops"] if op["op"] in (EDGE, CALLEE_EDGE)}
        read = {id for op in side["ops"] for id in op["operands"]} | set(side["returns"])
        unread = [id for id in (*(a["id"] for a in side["args"]), *_results(side)) if id not in read]
        calls = iter([op["attrs"]["callee"] for op in record["input"]["ops"] if op["op"] == CALL])
        for op in side["ops"]:
            operands = [names[id] for id in op["operands"]]
            if op["op"] in (EDGE, CALLEE_EDGE):
                if op["operands"][0] in {arg["id"] for arg in side["args"]} and not inside:
                    raise Unknown("callee")  # its callers decide
                if op["operands"][0] in {arg["id"] for arg in side["args"]}:
                    yield self.edge(op, operands, names)
                continue  # others stand where their sources are known
            handed = any(result in edges for result in op["results"])  # as a barrier does
            if op["op"] not in (CALL, CASE, WHILE) and not handed:
                yield self.copied(op, operands, names)
                continue
            sources: list[list[int]]
            if op["op"] == CALL:
                callee = self.callee(record, next(calls), operands, inside)
                if callee is None:
                    yield self.copied(op, operands, names)
                    continue
                body = list(self.body(callee, operands, inside, returned := []))
                self.copies[callee["func"]] += 1
                self.bodies.setdefault(callee["func"], []).extend(body)
                if self.whole:  # passes that rewrite need what is read to stand before who reads it
                    yield from body
                else:
                    self.later += body
                sources = [[value] for value in returned]
            elif op["op"] == CASE:
                sources = self.branches(op, names, [names[id] for id in unread if id in names])
            else:
                sources = [[operand] for operand in operands]
            made = self.copied(op, [], names)
            said, made["shardings"] = made["shardings"], [None] * len(made["results"])
            yield made
            for i, (result, type) in enumerate(zip(op["results"], op["types"])):
                explicit = edges.get(result)
                if explicit is not None:
                    yield self.edge(explicit, sources[i], names)
                elif self.whole and type.get("shape") is not None:
                    sharding = said[i] if i < len(said) else None
                    inner = {"op": EDGE, "results": [result], "types": [type], "shardings": [sharding], "attrs": {}}
                    yield self.edge(inner, sources[i], names)

    def copied(self, op: Any, operands: list[int], names: dict[int, int]) -> Any:
        op = deepcopy(op)
        results = [self.new(type) for type in op["types"]]
        names.update(zip(op["results"], results))
        return {**op, "operands": operands, "results": results}

    def edge(self, op: Any, sources: list[int], names: dict[int, int]) -> Any:
        shape = op["types"][0]["shape"]
        dims = [[d] for d in range(len(shape))]
        rule = {"sizes": shape, "operands": [dims] * len(sources), "results": [dims], "reduction": [],
                "need_replication": [], "permutation": [], "blocked": [], "custom": False}  # fmt: skip
        return {**self.copied(op, sources, names), "op": EDGE, "rule": rule}

    def branches(self, op: Any, names: dict[int, int], unread: list[int]) -> list[list[int]]:
        """What the branches of a case return for each result: as recorded, or values that nothing else reads."""
        if "branches" in op:
            return [[names[branch[i]] for branch in op["branches"]] for i in range(len(op["results"]))]
        sources = []
        for i, type in enumerate(op["types"]):
            alike = [j for j, other in enumerate(op["types"]) if other == type]
            captured = [value for value in unread if self.types[value] == type]
            if not captured or len(captured) % len(alike):
                raise Unknown("branches whose values are not in the record")
            sources.append(captured[alike.index(i) :: len(alike)])
        return sources

    # -- calls ------------------------------------------------------------------------------------------

    def callee(self, record: Record, name: str, operands: list[int], inside: tuple[str, ...]) -> Record | None:
        """The function that is called; None where nothing is handed on to it."""
        explicit = any(op["op"] == CALLEE_EDGE for op in record[self.side]["ops"])
        if not self.whole and not explicit:
            return None
        name = name.removeprefix("@")
        if name in inside:
            raise Unknown("a function that calls itself")
        callee = _nearest(record, name, [self.types[operand]["shape"] for operand in operands], self.file)
        if callee is None:
            raise Unknown("a callee that is not in the file")
        return callee

    def body(self, callee: Record, operands: list[int], inside: tuple[str, ...], returned: list[int]) -> Iterator[Any]:
        side = callee[self.side]
        names: dict[int, int] = dict(zip((arg["id"] for arg in side["args"]), operands))
        if self.whole:
            for arg in side["args"]:
                given = {
                    "op": EDGE,
                    "results": [arg["id"]],
                    "types": [arg],
                    "shardings": [arg["sharding"]],
                    "attrs": {},
                }
                yield self.edge(given, [names[arg["id"]]], names)
        yield from self.ops(callee, names, (*inside, callee["func"]))
        returned += [names[id] for id in side["returns"]]


def _results(side: Any) -> list[int]:
    return [id for op in side["ops"] for id in op["results"]]


def _nearest(record: Record, name: str, shapes: list[Any], file: Sequence[Record]) -> Record | None:
    """The function of that name and operands in the same module: the nearest in the file, with no `main` between."""
    here = next(i for i, other in enumerate(file) if other is record)
    found = []
    for step in (1, -1):
        i = here + step
        while 0 <= i < len(file) and file[i].get("file") == record["file"] and file[i].get("func") != "main":
            other = file[i]
            if other.get("func") == name and "input" in other and _shapes(other) == shapes:
                found.append((abs(i - here), other))
            i += step
    return min(found, key=lambda pair: pair[0], default=(0, None))[1]


def _shapes(callee: Record) -> list[Any]:
    return [arg["shape"] for arg in callee["input"]["args"]]

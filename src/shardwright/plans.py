"""`Plan`: what a planner decided, as data: how every tensor lies, which copies are kept, what it costs, how good it is.

A plan belongs to one program (by its hash) and one mesh.  It travels as JSON, with a schema version, and needs no
solver to be run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from .errors import GraphError, SpecError
from .ir.json import strict_loads, take
from .spec.mesh import DeviceMesh
from .spec.sharding import ShardingSpec

FORMAT = "shardwright.plans"
VERSION = 3


@dataclass(frozen=True, slots=True)
class NodePlan:
    """One node: the axes of its factors, and the shardings it needs, leaves, and keeps its results in."""

    axes: tuple[str, ...]
    operands: tuple[str, ...]
    results: tuple[str, ...]
    homes: tuple[str, ...]


PAIRS, PAIR, AMOUNT, WORD, YES = "pairs", "pair", "amount", "word", "yes"
WISHES = {
    "in_specs": PAIRS, "out_specs": PAIRS, "mapping": PAIRS, "pin": PAIR, "forbid": PAIR, "cap_gather": AMOUNT,
    "memory": AMOUNT, "recipe": WORD, "uneven": YES,
}  # fmt: skip
"""What a user may ask for, and what is said with it: names with shardings, a name with one or with an axis, bytes."""


@dataclass(frozen=True, slots=True)
class Wish:
    """One thing that the user asked for, as it was written.

    >>> print(Wish("pin", ("w*", "[_, tp]")), Wish("memory", "40 GiB"), Wish("cap_gather", 1024))
    pin("w*", "[_, tp]") memory="40 GiB" cap_gather(1024)
    """

    kind: str
    says: Any
    """Text, a number of bytes, a pair of texts or a tuple of such pairs, as `WISHES` has it."""

    def __post_init__(self) -> None:
        form, says = WISHES.get(self.kind), self.says
        good: dict[str, Callable[[], bool]] = {
            PAIRS: lambda: isinstance(says, tuple) and all(map(_is_pair, says)),
            PAIR: lambda: _is_pair(says),
            AMOUNT: lambda: read_bytes(says) >= 0 if isinstance(says, str) else type(says) is int and says >= 0,
            WORD: lambda: isinstance(says, str),
            YES: lambda: bool(says == YES),
        }
        if form is None:
            raise GraphError(f"a plan cannot be asked for {self.kind!r}", rows=[("known", ", ".join(WISHES))])
        if not good[form]():
            raise GraphError(f"{self.kind} of a plan says {says!r}", help=_FORMS[form])

    def __str__(self) -> str:
        texts: dict[str, Callable[[], str]] = {
            PAIRS: lambda: ", ".join(f"{_quoted(name)}: {_quoted(spec)}" for name, spec in self.says).join("{}"),
            PAIR: lambda: ", ".join(map(_quoted, self.says)),
            AMOUNT: lambda: _quoted(self.says),
            WORD: lambda: _quoted(self.says),
            YES: lambda: "True",
        }
        text = texts[WISHES[self.kind]]()
        if self.kind == "mapping":
            return text
        return f"{self.kind}({text})" if self.kind in ("pin", "forbid", "cap_gather") else f"{self.kind}={text}"

    def to_json(self) -> dict[str, Any]:
        says = [list(pair) for pair in self.says] if WISHES[self.kind] == PAIRS else self.says
        return {"kind": self.kind, "says": says}

    @classmethod
    def from_json(cls, entry: Any) -> Wish:
        take(entry, "what was asked for", {"kind": str, "says": (str, int, list)})
        says = entry["says"]
        if isinstance(says, list):
            says = tuple(tuple(part) if isinstance(part, list) else part for part in says)
        return cls(entry["kind"], says)


_FORMS = {
    PAIRS: "it says pairs of a name and a sharding, both as text",
    PAIR: "it says a name or pattern, and a sharding or an axis, both as text",
    AMOUNT: 'it says a number of bytes, or text such as "40 GiB"',
    WORD: "it says a name",
    YES: 'it says "yes", or is left out',
}


def _is_pair(says: Any) -> bool:
    return isinstance(says, tuple) and len(says) == 2 and all(isinstance(text, str) for text in says)


def _quoted(says: object) -> str:
    return f'"{says}"' if isinstance(says, str) else str(says)


@dataclass(frozen=True, slots=True)
class PlanCost:
    """Picoseconds of a step on one device."""

    compute: int
    communication: int
    hidden: int = 0
    """Communication that is taken to hide behind compute."""
    exposed: int = 0
    """Communication that shows when the plan's schedule is simulated."""

    @property
    def objective(self) -> int:
        """What plans are chosen by."""
        return self.compute + self.communication - self.hidden

    @property
    def total(self) -> int:
        return self.compute + self.communication


@dataclass(frozen=True)
class Plan:
    """A plan.  Shardings are in their text form, which needs no mesh to read."""

    program: str
    """Hash of the program that it is for."""
    name: str
    mesh: str
    hardware: str
    inputs: Mapping[str, str]
    """Every input of the program by name: parameters, arguments, state."""
    nodes: tuple[NodePlan, ...]
    outputs: tuple[str, ...]
    copies: Mapping[int, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    """Of values the copies that are made, each with the one that it is made from."""
    kept: Mapping[int, str] = field(default_factory=dict)
    """Of values that are kept in one sharding which that is."""
    cost: PlanCost = field(default_factory=lambda: PlanCost(0, 0))
    memory: int = 0
    """Peak bytes of a device."""
    lower_bound: int = 0
    """No plan within the planner's ways has a lower objective."""
    solver: str = ""
    timed_out: bool = False
    notes: tuple[str, ...] = ()
    asked: tuple[Wish, ...] = ()
    """What it had to keep to: constraints, memory, a recipe; what stands in the program itself is not among them."""

    @property
    def gap(self) -> float:
        """How far above the best plan this one may be, as a part of its objective."""
        return max(0.0, (self.cost.objective - self.lower_bound) / max(self.cost.objective, 1))

    # -- JSON -------------------------------------------------------------------------------------------

    def to_json(self) -> str:
        """The same text on every run: keys in order, each sharding written once."""
        texts: dict[str, int] = {}

        def number(text: str) -> int:
            return texts.setdefault(text, len(texts))

        nodes = [[[number(t) for t in part] for part in (n.axes, n.operands, n.results, n.homes)] for n in self.nodes]
        record = {
            "format": FORMAT, "version": VERSION, "program": self.program, "name": self.name, "mesh": self.mesh,
            "hardware": self.hardware, "inputs": {name: number(text) for name, text in self.inputs.items()},
            "nodes": nodes, "outputs": [number(text) for text in self.outputs],
            "copies": {
                str(value): [[number(text) for text in pair] for pair in pairs]
                for value, pairs in sorted(self.copies.items())
            },
            "kept": {str(value): number(text) for value, text in sorted(self.kept.items())},
            "cost": {f.name: getattr(self.cost, f.name) for f in fields(PlanCost)},
            "memory": self.memory, "lower_bound": self.lower_bound, "solver": self.solver,
            "timed_out": self.timed_out, "notes": list(self.notes), "asked": [wish.to_json() for wish in self.asked],
            "texts": [],
        }  # fmt: skip
        record["texts"] = list(texts)
        return json.dumps(record, allow_nan=False, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read strictly: another version, unknown fields, NaN or duplicate keys are refused."""
        needed: dict[str, Any] = {
            "format": str, "version": int, "program": str, "name": str, "mesh": str, "hardware": str, "inputs": dict,
            "nodes": list, "outputs": list, "copies": dict, "kept": dict, "cost": dict, "memory": int,
            "lower_bound": int, "solver": str, "timed_out": bool, "notes": list, "asked": list, "texts": list,
        }  # fmt: skip
        record = strict_loads(text)
        if isinstance(record, dict) and (record.get("format"), record.get("version")) != (FORMAT, VERSION):
            raise GraphError(
                f"not a plan of this version: {record.get('format')!r} {record.get('version')!r}",
                help=f"{FORMAT} {VERSION} is what this version reads; plan again",
            )
        record = take(record, "plan", needed)
        cost = take(record["cost"], "cost", {f.name: int for f in fields(PlanCost)})
        texts = record["texts"]
        if not all(isinstance(item, str) for item in (*texts, *record["notes"])):
            raise GraphError("texts and notes of a plan are strings")

        def said(number: Any) -> str:
            if type(number) is not int or not 0 <= number < len(texts):
                raise GraphError(f"the plan refers to text {number!r}, but has {len(texts)}")
            return str(texts[number])

        def pair(entry: Any) -> tuple[str, str]:
            if not isinstance(entry, list) or len(entry) != 2:
                raise GraphError("a copy of the plan is not a pair")
            return said(entry[0]), said(entry[1])

        nodes = []
        for entry in record["nodes"]:
            if not isinstance(entry, list) or len(entry) != 4 or not all(isinstance(part, list) for part in entry):
                raise GraphError("a node of the plan is not four lists")
            nodes.append(NodePlan(*(tuple(map(said, part)) for part in entry)))
        plan = cls(
            record["program"], record["name"], record["mesh"], record["hardware"],
            {name: said(number) for name, number in record["inputs"].items()}, tuple(nodes),
            tuple(map(said, record["outputs"])),
            {_whole(value): tuple(map(pair, pairs)) for value, pairs in record["copies"].items()},
            {_whole(value): said(number) for value, number in record["kept"].items()}, PlanCost(**cost),
            record["memory"], record["lower_bound"], record["solver"], record["timed_out"], tuple(record["notes"]),
            tuple(map(Wish.from_json, record["asked"])),
        )  # fmt: skip
        mesh = DeviceMesh(plan.mesh)
        for spec in (*plan.inputs.values(), *plan.outputs):
            ShardingSpec.parse(spec, mesh)
        return plan

    # -- comparing --------------------------------------------------------------------------------------

    def diff(self, other: Plan) -> list[str]:
        """What differs: inputs that lie otherwise, and costs; a line each."""
        lines = []
        if self.program != other.program:
            lines.append("they are for different programs")
        lines += [f"asked for only here: {wish}" for wish in self.asked if wish not in other.asked]
        lines += [f"asked for only there: {wish}" for wish in other.asked if wish not in self.asked]
        for name in dict.fromkeys([*self.inputs, *other.inputs]):
            here, there = self.inputs.get(name, "absent"), other.inputs.get(name, "absent")
            if here != there:
                lines.append(f"{name}: {here} -> {there}")
        moved = sum(a != b for a, b in zip(self.nodes, other.nodes)) + abs(len(self.nodes) - len(other.nodes))
        if moved:
            lines.append(f"{moved} of {len(self.nodes)} ops are split otherwise")
        if self.cost.objective != other.cost.objective:
            lines.append(f"objective: {duration(self.cost.objective)} -> {duration(other.cost.objective)}")
        if self.memory != other.memory:
            lines.append(f"memory: {gibibytes(self.memory)} -> {gibibytes(other.memory)}")
        return lines


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise GraphError(f"{text!r} is no value")
    return int(text)


_TIMES = ((10**12, 10**12, "s"), (10**8, 10**9, "ms"), (10**5, 10**6, "us"), (0, 10**3, "ns"))
"""From so many picoseconds on, the unit, and its name."""


def duration(picoseconds: int, sign: str = "", beside: int | None = None) -> str:
    """In the unit that suits it, or what it stands ``beside`` unless it would look like nothing there.

    >>> duration(2_157_000_000), duration(-1_500_000, "+"), duration(-1_500_000, "+", beside=2_157_000_000)
    ('2.157 ms', '-1.500 us', '-0.002 ms')
    >>> duration(7, beside=2_157_000_000), duration(0, beside=2_157_000_000), duration(3 * 10**12)
    ('0.007 ns', '0.000 ms', '3.000 s')
    """

    def text(like: int) -> str:
        size, unit = next((size, unit) for least, size, unit in _TIMES if abs(like) >= least)
        return f"{picoseconds / size:{sign}.3f} {unit}"

    found = text(picoseconds if beside is None else beside)
    return text(picoseconds) if picoseconds and not any(map(found.__contains__, "123456789")) else found


def gibibytes(count: int) -> str:
    """
    >>> gibibytes(3 * 2**28), gibibytes(2**20), gibibytes(0)
    ('0.75 GiB', '1.00 MiB', '0.00 GiB')
    """
    return f"{count / 2**30:.2f} GiB" if not 0 < count < 0.01 * 2**30 else amount_text(count)


def amount_text(count: int) -> str:
    """
    >>> amount_text(3 * 2**29), amount_text(2**20), amount_text(1000)
    ('1.50 GiB', '1.00 MiB', '1000 bytes')
    """
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count} bytes"


_UNITS = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40, "kb": 10**3, "mb": 10**6, "gb": 10**9}


def read_bytes(text: str) -> int:
    """
    >>> read_bytes("40GiB"), read_bytes("1.5 mb"), read_bytes("512")
    (42949672960, 1500000, 512)
    """
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*", text)
    if found is None or found[2].lower() not in _UNITS:
        raise SpecError(f"{text!r} is no amount of memory", help="write 40GiB, 80GB or a number of bytes")
    return int(float(found[1]) * _UNITS[found[2].lower()])


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns side by side; the first is a name, the others are figures.

    >>> print(table([["plan", "ms"], ["dp", "1.5"]]))
    plan   ms
    dp    1.5
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)

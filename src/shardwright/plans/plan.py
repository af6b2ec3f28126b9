"""`Plan`: what was decided, as data: the graph that it is for, what was asked, every sharding, cost, memory, bound.

A plan belongs to one program (by the hash of its graph *as captured*) and one mesh.  It travels as JSON with a schema
version, and needs no solver to be run.  The JSON has room for several meshes and pieces; there is one of each so far.
Where a file is read, cost and memory are computed anew from its decisions; its bound, its solver and its notes are
claims, and said to be.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from ..errors import GraphError, ShardwrightError
from ..ir.core import CONSTRAINT
from ..ir.graph import Graph, Node
from ..ir.json import strict_loads, take
from ..ir.program import Program
from ..spec.axes import Axes, axes_text
from ..spec.mesh import DeviceMesh
from ..spec.rule import OpShardingRule
from ..spec.sharding import ShardingSpec
from .amounts import duration, gibibytes
from .asked import Asked
from .complete import Complete, Decision

FORMAT = "shardwright.plan"
VERSION = 4
T = TypeVar("T")
RuleOf = Callable[[Graph, Node], OpShardingRule | None]


@dataclass(frozen=True, slots=True)
class PlanCost:
    """Picoseconds of a step on one device, by its schedule."""

    compute: int
    communication: int
    """Of all starts of collectives."""
    hidden: int = 0
    """Communication beside which the device computes, or sends over another link."""
    exposed: int = 0
    """Communication that it waits for: what the step takes beyond its compute."""

    @property
    def objective(self) -> int:
        """What plans are chosen by: the step's time."""
        return self.compute + self.exposed

    @property
    def total(self) -> int:
        return self.compute + self.communication


@dataclass(frozen=True)
class Rewrite:
    """A pass over the graph that came before the decisions: its name and arguments, replayed where a plan is loaded."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """A plan: everything that was decided for one program on one mesh."""

    source: str
    """Hash of the graph as captured."""
    hardware: str
    asked: Asked
    """Bound to the graph that the decisions speak of."""
    complete: Complete
    cost: PlanCost
    memory: int
    """Peak bytes of a device."""
    lower_bound: int
    """No plan within the planner's strategies takes less, however it is scheduled; 0 where nothing is known."""
    solver: str
    """Who decided: a solver, a recipe, or ``specs`` where the user's shardings were spread."""
    timed_out: bool = False
    rewrites: tuple[Rewrite, ...] = ()
    certificate: Mapping[str, Any] | None = None
    """What was shown of the Program, as the JSON has it; never believed from a file."""
    program: Program | None = field(default=None, compare=False, repr=False)
    """The Program, where whoever decided has lowered it."""
    claimed: bool = field(default=False, compare=False)
    """Whether bound, solver and notes are what a file says."""

    @property
    def name(self) -> str:
        return self.complete.graph.name

    @property
    def mesh(self) -> DeviceMesh:
        return self.complete.mesh

    @property
    def notes(self) -> tuple[str, ...]:
        return self.complete.notes

    @property
    def inputs(self) -> dict[str, str]:
        """Every input of the program by name (parameters, arguments, state), with its sharding."""
        graph = self.complete.graph
        return {graph.values[v].name: str(spec) for v, spec in zip(graph.inputs, self.complete.inputs)}

    @property
    def gap(self) -> float:
        """How far above the best plan this one may be, as a part of its objective; a file's bound does not count."""
        return self.gap_to(0 if self.claimed else self.lower_bound)

    def gap_to(self, bound: int) -> float:
        """How far above the best plan this one may be, if no plan is below this bound."""
        return max(0.0, (self.cost.objective - bound) / max(self.cost.objective, 1))

    # -- JSON -------------------------------------------------------------------------------------------

    def to_json(self) -> str:
        """The same text on every run: keys in order, each sharding written once."""
        texts: dict[str, int] = {}

        def number(item: object) -> int:
            return texts.setdefault(str(item), len(texts))

        complete, graph = self.complete, self.complete.graph
        nodes = [
            [
                [number(axes_text(axes) if axes else "_") for axes in decision.axes],
                *([number(spec) for spec in specs] for specs in (decision.operands, decision.results, decision.homes)),
            ]
            for decision in complete.decisions
        ]
        piece = {
            "mesh": 0,
            "inputs": {graph.values[v].name: number(spec) for v, spec in zip(graph.inputs, complete.inputs)},
            "nodes": nodes,
            "outputs": [number(spec) for spec in complete.outputs],
            "copies": {
                str(value): [[number(made), number(source)] for made, source in pairs.items()]
                for value, pairs in sorted(complete.sources.items())
            },
            "kept": {str(value): number(spec) for value, spec in sorted(complete.kept.items())},
        }
        record = {
            "format": FORMAT, "version": VERSION, "source": self.source, "name": self.name,
            "hardware": self.hardware, "meshes": [str(self.mesh)], "pieces": [piece],
            "rewrites": [{"name": r.name, "arguments": dict(r.arguments)} for r in self.rewrites],
            "asked": self.asked.to_json(), "cost": {f.name: getattr(self.cost, f.name) for f in fields(PlanCost)},
            "memory": self.memory, "lower_bound": self.lower_bound, "solver": self.solver,
            "timed_out": self.timed_out, "notes": list(self.notes), "certificate": self.certificate, "texts": [],
        }  # fmt: skip
        record["texts"] = list(texts)
        return json.dumps(record, allow_nan=False, sort_keys=True)

    # -- comparing --------------------------------------------------------------------------------------

    def diff(self, other: Plan) -> list[str]:
        """What differs: inputs that are sharded otherwise, and costs; a line each."""
        lines = []
        if self.source != other.source:
            lines.append("they are for different programs")
        mine, theirs = self.asked.written, other.asked.written
        lines += [f"asked for only here: {request}" for request in mine if request not in theirs]
        lines += [f"asked for only there: {request}" for request in theirs if request not in mine]
        left, right = self.inputs, other.inputs
        for name in dict.fromkeys([*left, *right]):
            here, there = left.get(name, "absent"), right.get(name, "absent")
            if here != there:
                lines.append(f"{name}: {here} -> {there}")
        decisions = self.complete.decisions, other.complete.decisions
        moved = sum(a[2:] != b[2:] for a, b in zip(*decisions)) + abs(len(decisions[0]) - len(decisions[1]))
        if moved:
            lines.append(f"{moved} of {len(decisions[0])} ops are split otherwise")
        if self.cost.objective != other.cost.objective:
            lines.append(f"objective: {duration(self.cost.objective)} -> {duration(other.cost.objective)}")
        if self.memory != other.memory:
            lines.append(f"memory: {gibibytes(self.memory)} -> {gibibytes(other.memory)}")
        return lines


# -- reading ------------------------------------------------------------------------------------------------


def read_plan(text: str) -> dict[str, Any]:
    """A plan's JSON, read strictly: another version, unknown fields, NaN or duplicate keys are refused.

    Texts stand in the place of their numbers; shardings are read where the record is bound to a graph.
    """
    record = strict_loads(text)
    if isinstance(record, dict) and (record.get("format"), record.get("version")) != (FORMAT, VERSION):
        if record.get("format") != FORMAT:
            raise GraphError("this JSON is no plan", rows=[("format", repr(record.get("format")))])
        raise GraphError(
            f"not a plan of this version: {record.get('format')!r} {record.get('version')!r}",
            help=f"{FORMAT} {VERSION} is what this version reads; plan again",
        )
    needed: dict[str, Any] = {
        "format": str, "version": int, "source": str, "name": str, "hardware": str, "meshes": list, "pieces": list,
        "rewrites": list, "asked": list, "cost": dict, "memory": int, "lower_bound": int, "solver": str,
        "timed_out": bool, "notes": list, "certificate": (dict, type(None)), "texts": list,
    }  # fmt: skip
    record = dict(take(record, "plan", needed))
    take(record["cost"], "cost", {f.name: int for f in fields(PlanCost)})
    for what, amount in {**record["cost"], "memory": record["memory"], "lower_bound": record["lower_bound"]}.items():
        if amount < 0:
            raise GraphError(f"{what} of the plan is {amount}", help="no plan takes less than nothing")
    texts = record["texts"]
    if not all(isinstance(item, str) for item in (*texts, *record["notes"], *record["meshes"])):
        raise GraphError("texts, notes and meshes of a plan are strings")
    if len(record["meshes"]) != 1 or len(record["pieces"]) != 1:
        raise GraphError("a plan of several meshes or pieces", help="this version runs plans of one mesh and one piece")

    def said(number: Any) -> str:
        if type(number) is not int or not 0 <= number < len(texts):
            raise GraphError(f"the plan refers to text {number!r}, but has {len(texts)}")
        return str(texts[number])

    def all_said(numbers: Any) -> tuple[str, ...]:
        if not isinstance(numbers, list):
            raise GraphError(f"the plan has a {type(numbers).__name__} where texts are listed by number")
        return tuple(map(said, numbers))

    def pairs_said(pairs: Any) -> tuple[tuple[str, ...], ...]:
        if not isinstance(pairs, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
            raise GraphError("the copies of a value are no pairs of what is made and from what")
        return tuple(map(all_said, pairs))

    def node_said(entry: Any) -> list[tuple[str, ...]]:
        if not isinstance(entry, list) or len(entry) != 4:
            raise GraphError("a node of the plan is not four lists: axes of factors, operands, results, homes")
        return list(map(all_said, entry))

    kinds = {"mesh": int, "inputs": dict, "nodes": list, "outputs": list, "copies": dict, "kept": dict}
    piece = dict(take(record["pieces"][0], "a piece of the plan", kinds))
    if piece["mesh"] != 0:
        raise GraphError(f"a piece of the plan is on mesh {piece['mesh']}, but there is one mesh")
    record["pieces"] = [
        {
            "inputs": {name: _at(("input", name), said, number) for name, number in piece["inputs"].items()},
            "nodes": [_at(("node", str(n)), node_said, entry) for n, entry in enumerate(piece["nodes"])],
            "outputs": _at(("of", "outputs"), all_said, piece["outputs"]),
            "copies": {_value(v): _at(("copies of", f"value {v}"), pairs_said, p) for v, p in piece["copies"].items()},
            "kept": {_value(v): _at(("kept", f"value {v}"), said, number) for v, number in piece["kept"].items()},
        }
    ]
    for entry in record["rewrites"]:
        take(entry, "a rewrite of the plan", {"name": str, "arguments": dict})
    mesh = DeviceMesh(record["meshes"][0])
    for name, spec in record["pieces"][0]["inputs"].items():
        _at(("input", name), ShardingSpec.parse, spec, mesh)
    for i, spec in enumerate(record["pieces"][0]["outputs"]):
        _at(("output", str(i)), ShardingSpec.parse, spec, mesh)
    return record


def complete_of(record: Mapping[str, Any], graph: Graph, mesh: DeviceMesh, rule_of: RuleOf) -> Complete:
    """The decisions of a record that `read_plan` gave, for the graph after its rewrites; nothing is held against rules
    here."""
    piece = record["pieces"][0]
    names = [graph.values[value].name for value in graph.inputs]
    if len(piece["nodes"]) != len(graph.nodes) or set(piece["inputs"]) != set(names):
        raise GraphError("the plan has other ops or inputs than the program", help="plan this program anew")

    def spec(text: str, value: int) -> ShardingSpec:
        return ShardingSpec.of(text, mesh, graph.type(value).rank).closed()

    def axes(text: str) -> Axes:
        return () if text == "_" else tuple(mesh.axis(word) for word in text.split("+"))

    def specs(texts: tuple[str, ...], values: tuple[int, ...]) -> tuple[ShardingSpec, ...]:
        if len(texts) != len(values):
            raise GraphError(f"the plan has {len(texts)} shardings for {len(values)} tensors")
        return tuple(map(spec, texts, values))

    def decision(n: int, node: Node, factors: tuple[str, ...], said: Sequence[tuple[str, ...]]) -> Decision:
        parts = [specs(t, v) for t, v in zip(said, (node.inputs, node.results, node.results))]
        rule = _rule_for(node, graph, rule_of, len(factors))
        return Decision(n, rule, tuple(map(axes, factors)), *parts)

    def copied(value: int, pairs: tuple[tuple[str, ...], ...]) -> dict[ShardingSpec, ShardingSpec]:
        made = {spec(text, value): spec(source, value) for text, source in pairs}
        if len(made) != len(pairs):
            raise GraphError("the plan makes one copy of a value twice")
        return made

    decisions = tuple(
        _at(("node", f"{n} {node.op}"), decision, n, node, factors, said)
        for n, (node, (factors, *said)) in enumerate(zip(graph.nodes, piece["nodes"]))
    )
    inputs = tuple(_at(("input", name), spec, piece["inputs"][name], v) for name, v in zip(names, graph.inputs))
    outputs = _at(("of", "outputs"), specs, piece["outputs"], graph.outputs)
    for value in (*piece["copies"], *piece["kept"]):
        if value >= len(graph.values):
            raise GraphError(f"the plan speaks of value {value}, but the program has {len(graph.values)}")
    sources = {v: _at(("copies of", f"value {v}"), copied, v, pairs) for v, pairs in piece["copies"].items()}
    kept = {v: _at(("kept", f"value {v}"), spec, text, v) for v, text in piece["kept"].items()}
    return Complete(graph, mesh, inputs, decisions, outputs, tuple(record["notes"]), 0, sources, kept)


def _rule_for(node: Node, graph: Graph, rule_of: RuleOf, count: int) -> OpShardingRule | None:
    """The rule by which a plan gives axes to so many factors of a node; None where the op runs replicated."""
    rule = rule_of(graph, node)
    if rule is not None and len(rule.factors) == count:
        return rule
    if node.op == CONSTRAINT and count == graph.type(node.results[0]).rank:
        return OpShardingRule.identity(graph.type(node.results[0]).shape)
    if count == 0:
        return None  # it ran replicated, for lack of a rule at that time
    if rule is None:
        raise GraphError(
            "the plan splits an op that has no rule here",
            help="if the rule was learned or given from outside, load its rule_book= or give it again; or plan anew",
        )
    raise GraphError(
        f"the plan gives axes to {count} factors, but the op's rule has {len(rule.factors)}", rows=[("rule", str(rule))]
    )


def _at(where: tuple[str, str], read: Callable[..., T], *about: Any) -> T:
    """Say in which part of the plan something could not be read."""
    try:
        return read(*about)
    except ShardwrightError as error:
        raise error.add(*where) from None


def _value(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 18 or str(int(text)) != text:
        raise GraphError(f"{text[:40]!r} is no number of a value")
    return int(text)

"""``learn=True``: ops without a rule are studied by execution, on small shapes, and then split like others.

What is found holds for calls of the same kind: as many dims, dims of size 1 at the same places, the same attributes.
Calls that are not too large are also made on their own sizes; where the rule does not hold on one, it is not used.
It is registered in the rule book of this process.  A user's own book is a JSON file, named by ``rule_book``: what is in
it is not studied again, as long as the op's signature and its library are the same.

An op is run in a process of its own, so that one that crashes or hangs is a finding and not the end of the run.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...errors import GraphError, RuleError, ShardwrightError, SpecError, UnknownOpError
from ...ir.graph import Attr, Graph, Node
from ...ir.json import attr_from_json, attr_to_json, strict_loads, take
from ...rules import registry
from ...spec.op_record import Call, Flow, slots_of
from ...spec.rule import RulePattern

FORMAT = "shardwright.rules"
VERSION = 1
SECONDS = 120.0
"""CPU time for the study of one call."""
COSTS = {"pointwise": "pointwise", "contraction": "matmul", "reduction": "reduce"}
"""Cost classes by what discovery finds an op to be; all others move memory."""
_log = logging.getLogger(__name__)

Slots = tuple[int | None, ...] | None
Kind = tuple[tuple[str, ...], tuple[str, ...], str, Slots]
"""Operands and results by their dims (``n 1 n``), attributes as JSON, and which operands are absent or lists."""


@dataclass(frozen=True)
class Case:
    """What was found for one kind of call."""

    kind: Kind
    rule: str
    """Empty where nothing could be found."""
    category: str
    tried: tuple[tuple[tuple[int, ...], ...], ...]
    """The shapes of the operands in each call that was studied."""
    confirmed: str
    refused: str
    """Why nothing was found."""

    def to_json(self) -> dict[str, Any]:
        operands, results, attrs, slots = self.kind
        return {
            "operands": list(operands), "results": list(results), "attrs": json.loads(attrs),
            "slots": None if slots is None else list(slots), "rule": self.rule, "category": self.category,
            "tried": [[list(shape) for shape in call] for call in self.tried],
            "confirmed": self.confirmed, "refused": self.refused,
        }  # fmt: skip


@dataclass
class Learned:
    """An op that was studied."""

    op: str
    identity: str
    """Its signature, as its library writes it."""
    made_with: str
    """The library and its version."""
    origin: str = "learned by execution"
    """This process has seen it, or a file says so."""
    cases: dict[Kind, Case] = field(default_factory=dict)

    def rule(self, call: Call) -> str:
        """For the rule book of the process."""
        kind = kind_of(call.operands, call.results, call.attrs, call.slots)
        found = self.cases.get(kind) or next((self.cases[k] for k in self.cases if _is_shard(kind, k)), None)
        if found is None or not found.rule:
            raise RuleError(f"{self.op} was not studied for such calls" if found is None else found.refused)
        return found.rule

    def register(self) -> None:
        category = next((case.category for case in self.cases.values() if case.rule), "")
        if not any(case.rule for case in self.cases.values()):
            return
        flow = Flow.POINTWISE if category == "pointwise" else Flow.OTHER
        registry.rule(
            self.op, self.rule, flow=flow, cost=COSTS.get(category, "memory"), meaning="by rule",
            doc="learned by execution", replace=True,
        )  # fmt: skip
        registry.set_origin(self.op, self.origin)

    def to_json(self) -> dict[str, Any]:
        cases = [self.cases[kind].to_json() for kind in sorted(self.cases, key=str)]
        return {"op": self.op, "identity": self.identity, "made_with": self.made_with, "cases": cases}


_learned: dict[str, Learned] = {}
"""By op: what this process knows beyond the rule book."""


def forget(op: str | None = None) -> None:
    """Take an op that was learned, or all of them, out of the rule book again."""
    for name in [op] if op is not None else list(_learned):
        if _learned.pop(name, None) is not None:
            registry.forget(name)


def learn_ops(graph: Graph, rule_book: str | Path | None = None, learn: bool = True) -> tuple[str, ...]:
    """See that the rule book knows a program's ops, as far as can be; notes for the plan about what was found."""
    path = None if rule_book is None else Path(rule_book)
    if path is not None and learn and not path.parent.is_dir():
        raise SpecError(
            f"the rule book cannot be written: there is no folder {str(path.parent)!r}",
            rows=[("rule book", str(path))], help="make the folder, or name another file",
        )  # fmt: skip
    book: dict[str, Learned] = {}
    if path is not None and (path.exists() or not learn):
        book = read_book(path)
        for op, entry in book.items():
            _adopt(op, entry, f"from the rule book {path}")
    met: dict[tuple[str, Kind], None] = {}
    changed = False
    for node in graph.nodes:
        known = registry.find(node.op)
        if not node.results or (known is not None and node.op not in _learned):
            continue
        kind = _kind_of_node(graph, node)
        about = _learned.get(node.op)
        if about is None or kind not in about.cases:
            if not learn:
                continue
            about = about or Learned(node.op, *_identity(node.op))
            about.cases[kind] = _studied(graph, node, kind)
            _learned[node.op] = about
            about.register()
            changed = True
        elif learn and (again := _on_own_size(graph, node, about.cases[kind])) is not None:
            about.cases[kind] = again
            registry.forget(node.op)
            about.register()
            changed = True
        met[node.op, kind] = None
    if path is not None and changed:
        _write(path, {**book, **{op: _learned[op] for op in _learned if op in {n.op for n in graph.nodes}}})
    return tuple(dict.fromkeys(_note(op, _learned[op].cases[kind]) for op, kind in met))


def _adopt(op: str, entry: Learned, origin: str) -> None:
    """Take up an entry of a user's book, if it is about the op at hand."""
    if registry.find(op) is not None and op not in _learned:
        return
    here = _identity(op)
    if here != (entry.identity, entry.made_with):
        if here[1] != "nobody":  # a book may well speak of ops that this program does not have
            _log.warning(
                "the rule book's %s is %s of %s, not %s of %s: passed over", op, entry.identity, entry.made_with, *here
            )
        return
    known = _learned.setdefault(op, Learned(op, *here))
    known.origin = origin
    known.cases.update(entry.cases)
    known.register()


def _note(op: str, case: Case) -> str:
    if case.rule:
        return f"{op}: rule learned by execution: {case.rule}"
    return f"{op}: was studied, but no rule was found: {case.refused}"


def kind_of(
    operands: Sequence[Sequence[int]],
    results: Sequence[Sequence[int]],
    attrs: Mapping[str, Attr],
    slots: Slots = None,
) -> Kind:
    """
    >>> kind_of([(8, 1), (4,)], [(8, 4)], {"k": 2})
    (('n 1', 'n'), ('n n',), '{"k": 2}', None)
    """

    def dims(shape: Sequence[int]) -> str:
        return " ".join("1" if size == 1 else "n" for size in shape)

    said = {key: attr_to_json(value) for key, value in attrs.items()}
    text = json.dumps(said, sort_keys=True, allow_nan=False)
    return tuple(map(dims, operands)), tuple(map(dims, results)), text, slots


def _is_shard(kind: Kind, whole: Kind) -> bool:
    """Whether shards of calls of a kind may be of another: what is left of a dim may have size 1."""
    if kind[2:] != whole[2:] or any(len(a) != len(b) for a, b in zip(kind[:2], whole[:2])):
        return False
    pairs = [(a.split(), b.split()) for one, other in zip(kind[:2], whole[:2]) for a, b in zip(one, other)]
    return all(len(a) == len(b) and all(x in ("1", y) for x, y in zip(a, b)) for a, b in pairs)


def _kind_of_node(graph: Graph, node: Node) -> Kind:
    shapes = [[graph.type(value).shape for value in values] for values in (node.inputs, node.results)]
    return kind_of(shapes[0], shapes[1], dict(node.attrs), slots_of(node.operands))


# -- the book ---------------------------------------------------------------------------------------------------


def read_book(path: str | Path) -> dict[str, Learned]:
    """A user's rule book from its file, read strictly."""
    where = Path(path)
    try:
        text = where.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(
            f"the rule book cannot be read: {error}", help="name a file that is there, or pass learn=True to make one"
        ) from None
    try:
        return _parse(text)
    except ShardwrightError as error:
        error.add("rule book", where)
        error.help = error.help or "mend the file, or delete it and learn again with learn=True"
        raise


def _parse(text: str) -> dict[str, Learned]:
    record = strict_loads(text)
    if isinstance(record, dict) and (record.get("format"), record.get("version")) != (FORMAT, VERSION):
        raise GraphError(
            f"not a rule book of this version: {record.get('format')!r} {record.get('version')!r}",
            help=f"{FORMAT} {VERSION} is what this version reads; learn again",
        )
    take(record, "the rule book", {"format": str, "version": int, "ops": list})
    found: dict[str, Learned] = {}
    for item in record["ops"]:
        take(item, "an op", {"op": str, "identity": str, "made_with": str, "cases": list})
        if item["op"] in found:
            raise GraphError(f"op {item['op']!r} stands twice in the rule book")
        entry = found[item["op"]] = Learned(item["op"], item["identity"], item["made_with"])
        for said in item["cases"]:
            case = _case(said)
            if case.kind in entry.cases:
                raise GraphError(f"one kind of call of {item['op']!r} stands twice in the rule book")
            entry.cases[case.kind] = case
    return found


def _case(said: Any) -> Case:
    fields: dict[str, Any] = {
        "operands": list, "results": list, "attrs": dict, "slots": (list, type(None)), "rule": str, "category": str,
        "tried": list, "confirmed": str, "refused": str,
    }  # fmt: skip
    take(said, "a case", fields)
    for word in (*said["operands"], *said["results"]):
        if not isinstance(word, str) or not set(word.split()) <= {"n", "1"}:
            raise GraphError(
                f"{word!r} does not say the dims of a tensor", help='write "n" or "1" for each, as in "n 1"'
            )
    tried = said["tried"]
    shapes = [shape for call in tried if isinstance(call, list) for shape in call]
    if not all(isinstance(call, list) for call in tried) or not all(
        isinstance(shape, list) and all(type(size) is int and size >= 0 for size in shape) for shape in shapes
    ):
        raise GraphError("the shapes tried are lists of lists of sizes")
    if bool(said["rule"]) == bool(said["refused"]):
        raise GraphError("a case has a rule, or says why there is none")
    if said["rule"]:
        pattern = RulePattern.parse(said["rule"])
        if (len(pattern.operands), len(pattern.results)) != (len(said["operands"]), len(said["results"])):
            raise GraphError(f"the rule {said['rule']!r} is for another number of tensors")
    attrs = json.dumps(
        {key: attr_to_json(attr_from_json(value)) for key, value in said["attrs"].items()}, sort_keys=True
    )
    slots = None if said["slots"] is None else tuple(said["slots"])
    counts = [1] * len(said["operands"]) if slots is None else [0 if count is None else count for count in slots]
    if not all(type(count) is int and count >= 0 for count in counts) or sum(counts) != len(said["operands"]):
        raise GraphError("slots say for each parameter how many tensors it has, or null")
    kind = (tuple(said["operands"]), tuple(said["results"]), attrs, slots)
    calls = tuple(tuple(map(tuple, call)) for call in tried)
    return Case(kind, said["rule"], said["category"], calls, said["confirmed"], said["refused"])


def _write(path: Path, book: Mapping[str, Learned]) -> None:
    """All at once, so that nobody ever reads half a book."""
    record = {"format": FORMAT, "version": VERSION, "ops": [book[op].to_json() for op in sorted(book)]}
    text = json.dumps(record, indent=1, sort_keys=True, allow_nan=False) + "\n"
    draft = path.with_name(f"{path.name}.{os.getpid()}.new")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


# -- the study ----------------------------------------------------------------------------------------------------


def _identity(op: str) -> tuple[str, str]:
    """The signature of an op, and the library that has it, if there is one in this process."""
    from .study import library_of

    try:
        return library_of(op).identity
    except UnknownOpError:
        return op, "nobody"


def _on_own_size(graph: Graph, node: Node, case: Case) -> Case | None:
    """A rule that is known from other sizes, tried on this call's; None if there is nothing to try."""
    from ..isolate import isolated
    from .study import library_of, own_size_failure, runs_as_it_is

    operands, results = graph.types(node.inputs), graph.types(node.results)
    own = tuple(type.shape for type in operands)
    if not case.rule or own in case.tried or not runs_as_it_is(operands, results):
        return None
    library = library_of(node.op)
    done = isolated(lambda: own_size_failure(library, node, operands, results, case.rule), seconds=SECONDS)
    tried = (*case.tried, own)
    failure = f"its study {done.failure}" if done.failure else str(done.value)
    if failure:
        return Case(case.kind, "", "", tried, "", failure)
    return replace(case, tried=tried)


def _studied(graph: Graph, node: Node, kind: Kind) -> Case:
    """What execution tells of one call."""
    from ..isolate import isolated
    from .study import library_of, study_call

    try:
        library = library_of(node.op)
    except UnknownOpError as error:
        return Case(kind, "", "", (), "", error.fact)

    def work() -> dict[str, Any]:
        return study_call(library, node, graph.types(node.inputs), graph.types(node.results))

    done = isolated(work, seconds=SECONDS)
    if done.failure:
        return Case(kind, "", "", (), "", f"its study {done.failure}")
    said = done.value
    tried = tuple(tuple(map(tuple, call)) for call in said["tried"])
    return Case(kind, said["rule"], said["category"], tried, said["confirmed"], said["refused"])

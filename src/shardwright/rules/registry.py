"""The rule book: op name -> `OpRecord`.

Families are the modules of this package; they are found by listing it and register their ops when first
needed.  Other packages add theirs by an entry point in the group ``shardwright.rules`` that names a module or
a function.

Ops that nobody wrote down are asked for where they come from: entry points in the group ``shardwright.operators``
name modules that turn an op's name into `OpFacts` (tags, schema), and *makers* turn those into records.  So one line
serves a whole family of operators of a framework, those of later versions included.

A record that does not come with the project says who gave it (`OpRecord.origin`).  With ``SHARDWRIGHT_PLUGINS=0`` in
the environment no entry point is loaded.
"""

from __future__ import annotations

import importlib
import logging
import os
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace as changed
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, TypeVar, overload

from ..errors import RuleError, ShardwrightError, UnknownOpError, near_misses
from ..ir.graph import Attrs, Graph, Node, TensorType
from ..spec.op_record import Call, Flow, Meaning, OpFacts, OpRecord, RuleText, Translation, slots_of
from ..spec.rule import OpShardingRule, RulePattern, Transfer

ENTRY_POINTS = "shardwright.rules"
OPERATORS = "shardwright.operators"
_NOT_FAMILIES = {"dims", "extract", "reading", "registry"}
_log = logging.getLogger(__name__)
_ARGUMENTS = (
    "flow", "cost", "meaning", "forms", "view", "alias", "random", "in_place", "doc", "beyond", "same_as", "replace",
)  # fmt: skip
Maker = Callable[[OpFacts], OpRecord | None]
_records: dict[str, OpRecord] = {}
_by_signature: dict[tuple[object, ...], OpShardingRule] = {}
_makers: list[Maker] = []
_made: dict[str, OpRecord | None] = {}
_waiting: list[Callable[[], None]] = []
_editions = 0
_have_families = False
_loaded = False
_complete = False


RuleFn = Callable[[Call], RuleText | OpShardingRule]
F = TypeVar("F", bound=RuleFn)


@overload
def rule(name: str, source: str | RuleFn, **about: Any) -> None: ...
@overload
def rule(name: str, **about: Any) -> Callable[[F], F]: ...
def rule(
    name: str,
    source: str | RuleFn | None = None,
    *,
    flow: Flow = Flow.OTHER,
    cost: str = "memory",
    meaning: str | Meaning | None = None,
    forms: Mapping[str, str] | None = None,
    view: bool = False,
    alias: bool = False,
    random: bool = False,
    in_place: bool = False,
    doc: str = "",
    beyond: str = "",
    same_as: Translation | None = None,
    replace: bool = False,
    **sizes: int,
) -> Any:
    """Write an op into the book: ``rule("matmul", "... m k, ... k n -> ... m n")``.

    A rule that depends on attributes is a function of the call, and this its decorator::

        @rule("transpose", flow=Flow.VIEW)
        def transpose(call): ...

    Keyword sizes give factors that the shapes do not: ``rule("one_hot", "i -> i n", n=10)``.
    """

    for key, size in sizes.items():
        if not isinstance(size, int):
            raise RuleError(f"rule() has no argument {key!r}", rows=[("op", name)], help=near_misses(key, _ARGUMENTS))

    if not isinstance(name, str):
        raise RuleError(f"the name of an op is text, not {name!r}", help='write rule("matmul", "m k, k n -> m n")')

    def register(source: Any) -> Any:
        if not isinstance(source, str) and not callable(source):
            raise RuleError(
                f"a rule is text, or a function of the call, not {source!r}", rows=[("op", str(name))],
                help='write rule("matmul", "m k, k n -> m n")',
            )  # fmt: skip
        origin = _caller()
        _load_families()
        transfers: tuple[Transfer, ...] = ()
        if isinstance(source, str):
            try:
                text = _declare(source, sizes)
                transfers = RulePattern.parse(text).transfers
            except ShardwrightError as error:
                raise error.add("op", name) from None
        if name in _records and not replace:
            raise RuleError(f"op {name!r} stands in the rule book already", help="pass replace=True to change it")
        _records[name] = OpRecord(
            name=name,
            rule=text if isinstance(source, str) else source,
            transfers=transfers,
            flow=flow,
            cost=cost,
            meaning=meaning,
            forms=forms or {},
            view=view,
            alias=alias,
            random=random,
            in_place=in_place,
            sizes=sizes,
            doc=doc,
            beyond=beyond,
            same_as=same_as,
            origin=origin,
        )
        _changed()
        return source

    return register if source is None else register(source)


def _caller() -> str:
    """Who writes into the book; empty for modules of the project."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back
    return _outside(str(frame.f_globals.get("__name__", "")))


def _outside(module: str) -> str:
    return "" if module.partition(".")[0] == __name__.partition(".")[0] else f"given from outside, by {module}"


def given_by(op: str, module: str) -> None:
    """Say that a record, written by the project for somebody else, is of this module."""
    set_origin(op, _outside(module))


def set_origin(op: str, origin: str) -> None:
    _records[op] = changed(_records[op], origin=origin)


def _declare(text: str, sizes: Mapping[str, int]) -> str:
    """A sized factor that stands only on the right is new; say so in the rule."""
    left = text.split("->", 1)[0].replace("(", " ").replace(")", " ").replace(",", " ").split()
    fresh = [name for name in sizes if name not in left and f"{name}: new" not in text]
    return " ; ".join([text, *(f"{name}: new" for name in fresh)])


def _load_families() -> None:
    """Before anybody else writes, so that nobody takes the name of an op unawares."""
    global _have_families
    if _have_families:
        return
    _have_families = True  # before the imports: families call back into this module
    package = importlib.import_module(__package__ or "shardwright.rules")
    for module in pkgutil.iter_modules(package.__path__):
        if module.name not in _NOT_FAMILIES:
            importlib.import_module(f"{package.__name__}.{module.name}")


def when_complete(register: Callable[[], None]) -> None:
    """Write what leans on other families, once those are there."""
    if _complete:
        register()
    else:
        _waiting.append(register)


def _load() -> None:
    global _loaded, _complete
    if _loaded:
        return
    _loaded = True
    _load_families()
    _complete = True
    while _waiting:
        _waiting.pop(0)()
    for name in _of_frontends("ops"):  # ops that a frontend writes down in one place
        importlib.import_module(name)
    for point in _plugins(ENTRY_POINTS):
        try:
            found = point.load()
            if callable(found):
                found()
        except Exception as error:
            # A broken plug-in must not take the book down; its ops then count as unknown.
            _log.warning("rules of %s could not be loaded: %s", point.value, error)


def _plugins(group: str) -> Iterable[EntryPoint]:
    """What other packages offer, unless the environment says ``SHARDWRIGHT_PLUGINS=0``."""
    return () if os.environ.get("SHARDWRIGHT_PLUGINS") == "0" else entry_points(group=group)


def lookup(op: str) -> OpRecord:
    """The record of an op; an unknown one is an error that names near misses."""
    _load()
    found = find(op)
    if found is None:
        raise UnknownOpError(
            f"the rule book has no op {op!r}",
            help=near_misses(op, [name for name in _records if ("." in name) == ("." in op)])
            or 'add it: rule("name", "m k, k n -> m n"), or a NumPy function of your own with @shardwright.numpy.op',
        )
    return found


def find(op: str) -> OpRecord | None:
    _load()
    found = _records.get(op)
    if found is None and "." in op and not op.startswith("core."):
        if op not in _made:
            _made[op] = _make(op)
        found = _made[op]
    return found


def maker(make: Maker) -> Maker:
    """Add a way to make the record of an op from what its framework says of it."""
    _makers.append(make)
    _made.clear()
    return make


def _make(op: str) -> OpRecord | None:
    for framework in _frameworks():
        facts: OpFacts | None = framework.describe(op)
        if facts is not None:
            for make in _makers:
                record = make(facts)
                if record is not None:
                    who = facts.origin or _outside(framework.__name__) or _outside(getattr(make, "__module__", ""))
                    return changed(record, origin=record.origin or who)
    return None


OperandTypes = tuple[TensorType | tuple[TensorType, ...] | None, ...]


def parts(op: str, attrs: Attrs, operands: OperandTypes, results: tuple[TensorType, ...] | None = None) -> Graph | None:
    """What an op is made of, as its framework says; None if it does not.  See ``form(parts)`` in `lower.forms`.

    With ``results`` it gives these types, as the op does; else what its parts happen to compute in.
    """
    for framework in _frameworks():
        found: Graph | None = framework.parts(op, attrs, operands, results)
        if found is not None:
            return found
    return None


def fuse_updates(graph: Graph, kept: Iterable[int] = ()) -> tuple[Graph, dict[int, int]] | None:
    """The graph with optimizer steps as single ops, as its framework recognises them, and what became of each value.

    None where there are none; values that are ``kept`` are not taken into an op.
    """
    for framework in _frameworks():
        fuse = getattr(framework, "fuse_updates", None)
        found: tuple[Graph, dict[int, int]] | None = None if fuse is None else fuse(graph, kept)
        if found is not None:
            return found
    return None


def _of_frontends(module: str) -> list[str]:
    """The modules of this name in the packages of `frontends`, by listing: this room knows no framework."""
    folder = Path(__file__).parent.parent / "frontends"
    packages = sorted(path.name for path in folder.iterdir() if path.is_dir())
    there = [name for name in packages if any((folder / name / f).exists() for f in (f"{module}.py", module))]
    return [f"{__name__.split('.')[0]}.frontends.{name}.{module}" for name in there]


@cache
def _frameworks() -> tuple[Any, ...]:
    """Modules with ``describe(op) -> OpFacts | None`` and ``parts(op, attrs, operands, results) -> Graph | None``; some
    with ``fuse_updates``."""
    found = []
    for name in dict.fromkeys((*_of_frontends("describe"), *(point.value for point in _plugins(OPERATORS)))):
        try:
            found.append(importlib.import_module(name))
        except ImportError as error:  # the framework is not installed: nobody describes its ops
            _log.info("operators are not described by %s: %s", name, error)
    return tuple(found)


def records() -> Iterator[OpRecord]:
    """Every op of the book, in order of names."""
    _load()
    return iter([_records[name] for name in sorted(_records)])


def edition() -> int:
    """A number that grows whenever the book changes, for those who keep what follows from it."""
    return _editions


def _changed() -> None:
    global _editions
    _editions += 1
    _by_signature.clear()


def forget(op: str) -> None:
    """Take an op out of the book (for tests and notebooks)."""
    _records.pop(op, None)
    _made.clear()
    _changed()


def sharding_rule(
    op: str,
    operands: Sequence[Sequence[int]],
    results: Sequence[Sequence[int]],
    attrs: Mapping[str, Any] | None = None,
    slots: tuple[int | None, ...] | None = None,
) -> OpShardingRule:
    """The rule of one call of an op.

    >>> print(sharding_rule("matmul", [(8, 16), (16, 4)], [(8, 4)]))
    m k, k n -> m n ; P(sum), R -> P(sum) ; R, P(sum) -> P(sum) | m=8 k=16 n=4
    """
    record = lookup(op)
    try:
        return record.bind(operands, results, attrs, slots)
    except ShardwrightError as error:
        raise error.add("op", op) from None


def node_rule(graph: Graph, node: Node) -> OpShardingRule:
    """The rule of a node; equal calls share one rule object."""
    operands = tuple(graph.values[value].type.shape for value in node.inputs)
    results = tuple(graph.values[value].type.shape for value in node.results)
    record = lookup(node.op)
    slots = slots_of(node.operands)
    booleans = tuple(graph.type(value).dtype == "bool" for value in node.results)
    key = (node.op, operands, results, node.attrs, slots, booleans)
    found = _by_signature.get(key)
    if found is None:
        try:
            found = record.bind(operands, results, dict(node.attrs), slots)
        except ShardwrightError as error:
            where = f"{node.op}   at {node.source}" if node.source else node.op
            raise error.add("op", where) from None
        if any(booleans):
            found = _without_sums(found, booleans)
        _by_signature[key] = found
    return found


_SUMMING_FORMS = ("take", "take_along")


def _without_sums(rule: OpShardingRule, booleans: Sequence[bool]) -> OpShardingRule:
    """The rule of a call with boolean results: a sum of booleans is an "or", and parts of one do not add up.

    A lookup of which each device has a part of the rows is such a sum, too.
    """
    sums = {f for result, is_bool in zip(rule.reductions, booleans) if is_bool for f, kind in result if kind == "sum"}
    sums |= {f for f, factor in enumerate(rule.factors) if factor.form in _SUMMING_FORMS}
    if not sums:
        return rule
    factors = tuple(
        changed(factor, whole=True, form=None) if f in sums else factor for f, factor in enumerate(rule.factors)
    )
    reductions = tuple(tuple(pair for pair in result if pair[0] not in sums) for result in rule.reductions)
    return changed(rule, factors=factors, reductions=reductions)

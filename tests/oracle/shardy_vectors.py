"""Run files of Shardy's test vectors: ``python tests/oracle/shardy_vectors.py FILE...``

Prints for each file how many cases passed and failed, and how many were skipped, by tag.  A case is skipped if
it needs a manual computation, a pass or an op family that is not built yet, or if its record lacks what decides it: a
callee, the body of a loop, or callers (a function that others call is judged with them, see `flows`).  Programs that
Shardy leaves unfinished are compared by what it leaves to later passes as well (`unsaid`); how many passed so is
printed, by what that is.  ``-v`` also prints why cases failed.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from collectives import is_exact, shardy_bytes
from explicit import our_bytes_at, over_one_axis, shardy_total
from expressions import program
from flows import COPY, TAGS, Unknown, joined, needs_joining
from shardy_ops import book_call, canonical, conservative, looks_around, mend, view_of, without_xla
from unsaid import EXCHANGE, compare_exchanging, unsaid, with_rules
from vectors import Function, Meshes, load, odd_tags, read_function, read_rule

from shardwright.api import shard_map
from shardwright.errors import ShardwrightError
from shardwright.ir.core import CONSTANT, CONSTRAINT
from shardwright.ir.graph import Graph, Node
from shardwright.ir.rewrite import split_constants
from shardwright.propagation.constraints import apply_constraints, join_groups
from shardwright.propagation.engine import OpView, Propagated, run_hierarchical_propagation_pass
from shardwright.propagation.factors import aggressive, basic
from shardwright.rules.registry import sharding_rule
from shardwright.spec.mesh import DeviceMesh
from shardwright.spec.resharding.cheapest import reshard
from shardwright.spec.sharding import P, ShardingSpec

Spec = ShardingSpec | None


@dataclass
class Outcome:
    """Verdicts of one file."""

    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    counting: Counter[str] = field(default_factory=Counter)
    """Of the passed ones those that count what Shardy leaves to later passes, by what that is."""

    def __str__(self) -> str:
        text = f"{self.passed} passed, {len(self.failed)} failed, {sum(self.skipped.values())} skipped"
        if self.skipped:
            text += f" ({_counts(self.skipped)})"
        if self.counting:
            text += f"; {sum(self.counting.values())} passed with what Shardy leaves unsaid ({_counts(self.counting)})"
        return text


def _counts(tags: Counter[str]) -> str:
    return ", ".join(f"{tag} {count}" for tag, count in sorted(tags.items()))


class Skip(Exception):
    """The case cannot be judged; the message is the tag."""


class Counting(Exception):
    """Ours is no worse, counting what Shardy leaves to later passes (see `unsaid`); the message says what."""


def run_file(path: Path) -> Outcome:
    outcome = Outcome()
    file = load(path)
    for record in file:
        if "error" in record:
            continue
        name = f"{record.get('file', path.name)} {record.get('func', record.get('case', record.get('name')))}"
        try:
            wrong = judge(record, file)
        except Skip as skip:
            outcome.skipped[str(skip)] += 1
            continue
        except Counting as counting:
            outcome.counting[str(counting)] += 1
            wrong = ""
        except ShardwrightError as error:
            wrong = f"{type(error).__name__}: {error}"
        if wrong:
            outcome.failed.append(f"{name}: {wrong}")
        else:
            outcome.passed += 1
    return outcome


def judge(record: dict[str, Any], file: Sequence[dict[str, Any]] = ()) -> str:
    """What is wrong, or nothing; the ``file`` holds what the record calls."""
    if "input" not in record:
        return judge_rule(record) if "rule" in record else judge_program(record)
    if needs_joining(record) and not set(odd_tags(record)) - TAGS:
        return judge_joined(record, file)
    odd = odd_tags(record)
    if odd:
        raise Skip(odd[0])
    passes = [name for name, _ in record["passes"]]
    if "sdy-reshard-to-collectives" in passes:
        return judge_collectives(record)
    if "sdy-apply-sharding-constraints" in passes:
        return judge_constraints(record)
    if "sdy-populate-op-sharding-rules" in passes:
        return judge_rules_of(record)
    if any(name.endswith(("propagate", "propagation-pipeline")) for name in passes):
        return judge_propagation(record)
    if "sdy-insert-explicit-reshards" in passes:
        return judge_explicit(record)
    raise Skip(f"pass {passes[0]}")


# -- rules ----------------------------------------------------------------------------------------------


def compare_rule(
    op: str, attrs: dict[str, Any], operands: list[Any], results: list[Any], said: Any, careful: bool = False
) -> str:
    shapes = [tuple(shape or ()) for shape in operands]
    known = book_call(op, mend(attrs, shapes))
    if known is None:
        raise Skip(f"op {op.removeprefix('stablehlo.')}")
    expected = read_rule(said)
    if expected is not None and looks_around(op, attrs, expected):
        raise Skip("rule that looks at other ops")
    name, ours = known
    made = [tuple(shape) for shape in results]
    rule = without_xla(sharding_rule(name, shapes, made, ours))
    if careful and expected is not None:
        rule, expected = (conservative(given, shapes + made) for given in (rule, expected))
    if expected is None or canonical(rule) != canonical(expected):
        return f"{name}: {rule} where Shardy has {(said or {}).get('text')}"
    return ""


def judge_rule(record: dict[str, Any]) -> str:
    if record["rule"].get("custom"):
        raise Skip("rule written in the program")
    return compare_rule(
        record["op"], record["attrs"], record["operand_shapes"], record["result_shapes"], record["rule"]
    )


def judge_rules_of(record: dict[str, Any]) -> str:
    """A program that only states its rules; ops of families that are not built yet are passed over."""
    side = record["input"]
    shapes = {arg["id"]: arg["shape"] for arg in side["args"]}
    careful = "conservative-propagation=true" in record["passes"][0][1]
    judged = 0
    for op in side["ops"]:
        shapes.update({id: type["shape"] for id, type in zip(op["results"], op["types"])})
        if op.get("rule") is None or op["rule"].get("custom") or op["op"].startswith("sdy."):
            judged += op.get("rule") is None or op["op"].startswith("sdy.") or op["rule"].get("custom", False)
            continue
        operands = [shapes[operand] for operand in op["operands"]]
        results = [type["shape"] for type in op["types"]]
        try:
            wrong = compare_rule(op["op"], op["attrs"], operands, results, op["rule"], careful)
        except Skip as skip:
            last = skip
            continue
        judged += 1
        if wrong:
            return wrong
    if not judged and side["ops"]:
        raise last
    return ""


# -- resharding -----------------------------------------------------------------------------------------


def judge_collectives(record: dict[str, Any]) -> str:
    meshes = Meshes(record["meshes"])
    given, expected = (read_function(record[side], meshes) for side in ("input", "expected"))
    value = given.graph.values[given.graph.inputs[0]]
    target = given.specs[given.graph.nodes[-1].results[0]]
    source = given.specs.get(value.id) or ShardingSpec.replicate(target.mesh, value.type.rank)
    ours = sum(step.bytes for step in reshard(source, target, value.shape, value.type.item_bytes))
    theirs = shardy_bytes(expected, source, value.shape, value.type.item_bytes)
    if ours <= theirs:
        return ""
    if not is_exact(expected, source, value.shape):
        raise Skip("not exact for uneven shards")
    return f"{ours} bytes where Shardy needs {theirs} for {source} -> {target}"


def judge_explicit(record: dict[str, Any]) -> str:
    """Every sharding is given; ours may move no more bytes than Shardy's reshards and reductions."""
    meshes = Meshes(record["meshes"])
    given, expected = (read_function(record[side], meshes) for side in ("input", "expected"))
    specs = [*given.specs.values(), *given.out_specs.values()]
    used = list(dict.fromkeys(spec.mesh for spec in specs if spec.mesh.shape))
    if not used:
        raise Skip("no mesh")
    if len({(mesh.shape, mesh.axis_names) for mesh in used}) > 1:
        if len({mesh.size for mesh in used}) > 1 or not all(mesh.is_device_order_default for mesh in used):
            raise Skip("meshes of different devices")
        given, expected = over_one_axis(given), over_one_axis(expected)
        used = [DeviceMesh({"d": used[0].size})]
    mesh = used[0]
    ours = min(our_bytes_at(given, home) for home in used)
    theirs = shardy_total(expected, mesh)
    if ours <= theirs:
        return ""
    expected = with_rules(expected, given)
    left = list(unsaid(expected, mesh))
    if any(part.reason == EXCHANGE for part in left):
        reason, wrong = compare_exchanging(given, expected, mesh)
    else:
        reason = left[0].reason if left else ""
        theirs += sum(part.bytes for part in left)
        wrong = f"{ours} bytes where Shardy needs {theirs}" if ours > theirs else ""
    if not wrong:
        raise Counting(reason)
    return wrong


def judge_program(record: dict[str, Any]) -> str:
    """A NumPy function that JAX has sharded: the same output sharding, and its collectives or fewer bytes."""
    mesh = DeviceMesh(record["mesh"])
    names = list(record["shapes"])
    rng = np.random.default_rng(0)
    args = [_array(name, record["shapes"], rng) for name in names]
    fn = program(record["name"], record["source"], names)
    asked = record["out_spec_asked"]
    mapped = shard_map(
        fn,
        mesh,
        in_specs=tuple(P(*record["in_specs"][name]) for name in names),
        out_specs=None if asked is None else P(*asked),
    )
    if not np.allclose(mapped(*args), fn(*args)):
        return "other numbers"
    made = mapped.program(*args)
    spec = made.values[made.outputs[0]].spec
    if spec != P(*record["out_spec"]).bind(mesh):
        return f"output {spec} where JAX has {record['out_spec']}"
    ours = Counter(collective.kind for collective in made.collectives)
    theirs = Counter(record["collectives"])
    # Fewer collectives of the same kinds move fewer bytes; anything else is not known to.
    return "" if ours <= theirs else f"{dict(ours)} where JAX has {dict(theirs)}"


def _array(name: str, shapes: dict[str, Any], rng: np.random.Generator) -> Any:
    return rng.integers(0, 8, shapes[name]) if name == "i" else rng.standard_normal(shapes[name])


# -- propagation ----------------------------------------------------------------------------------------


def judge_constraints(record: dict[str, Any]) -> str:
    meshes = Meshes(record["meshes"])
    given, expected = (read_function(record[side], meshes) for side in ("input", "expected"))
    graph, specs = apply_constraints(given.graph, given.specs)
    if [node.inputs for node in graph.nodes] != [node.inputs for node in expected.graph.nodes]:
        return "other readers"
    if graph.outputs != expected.graph.outputs:
        return "other outputs"
    return _differences(dict(enumerate(map(specs.get, range(len(graph.values))))), expected.specs, graph)


def judge_propagation(record: dict[str, Any]) -> str:
    if is_called(record):
        raise Skip("callee")
    names = [name for name, _ in record["passes"]]
    main = next(name for name in names if name.endswith(("propagate", "propagation-pipeline")))
    options = dict(record["passes"])[main]
    meshes = Meshes(record["meshes"])
    given, expected = (read_function(record[side], meshes) for side in ("input", "expected"))
    whole = main == "sdy-propagation-pipeline"
    graph, specs, groups = prepare(given, whole)

    def rule_of(graph: Graph, node: Node) -> OpView | None:
        n = node.attr("n")
        shapes = [graph.values[value].shape for value in node.inputs]
        return view_of(node.op, given.rules.get(n), shapes, given.attrs.get(n, {}))

    found = run_hierarchical_propagation_pass(
        graph,
        specs,
        rule_of,
        out_specs=given.out_specs,
        groups=groups,
        strategy=basic if main == "sdy-basic-propagate" else aggressive,
        user_priorities=main in ("sdy-user-priority-propagate", "sdy-propagation-pipeline"),
        op_priorities=main not in ("sdy-basic-propagate", "sdy-aggressive-propagate"),
        conservative="conservative-propagation=true" in options,
    )
    return compare(found, expected, whole)


def judge_joined(record: dict[str, Any], file: Sequence[dict[str, Any]]) -> str:
    """A program of several functions, or with control flow."""
    try:
        whole = joined(record, file)
    except Unknown as unknown:
        raise Skip(str(unknown)) from None
    names = " ".join(name for name, _ in record["passes"])
    if "sdy-insert-explicit-reshards" in names and "call" in record["tags"]:
        return judge_explicit(whole)
    if "propaga" not in names:
        raise Skip(odd_tags(record)[0])
    if _axes_in(whole["expected"]) - _axes_in(whole["input"]):
        raise Skip("a body that is not in the record")
    return judge_propagation(whole)


def is_called(record: dict[str, Any]) -> bool:
    """Whether the record is one function of several: its callers decide, and they are not in it.

    Seen by an axis that no input sharding has, or by a result left unsaid though its value is sharded.
    """
    before, after = record["input"], record["expected"]
    if _axes_in(after) - _axes_in(before):
        return True
    specs = {arg["id"]: arg["sharding"] for arg in after["args"]}
    for op in after["ops"]:
        specs.update(zip(op["results"], op["shardings"]))
    unsaid = [specs.get(id) for id, said in zip(after["returns"], after["results"]) if said is None]
    return any(s is not None and s["dims"] and any(dim["axes"] for dim in s["dims"]) for s in unsaid)


def _axes_in(side: dict[str, Any]) -> set[str]:
    shardings = [arg["sharding"] for arg in side["args"]] + list(side["results"])
    shardings += [sharding for op in side["ops"] for sharding in op["shardings"]]
    return {
        axis.split(":")[0]
        for sharding in shardings
        if sharding is not None
        for axis in [*(a for dim in sharding["dims"] for a in dim["axes"]), *(sharding.get("unreduced") or ())]
    }


def prepare(given: Function, whole: bool) -> tuple[Graph, dict[int, ShardingSpec], list[list[int]]]:
    """What is done to a program before propagation; the whole pipeline does more."""
    graph, specs, groups = given.graph, given.specs, given.groups
    if whole:
        graph, moved = split_constants(graph, CONSTANT)
        specs = {moved[value]: spec for value, spec in specs.items()}
        groups = [[moved[value] for value in group] for group in groups]
        before = graph
        graph, specs = apply_constraints(graph, specs)
        assert len(graph.values) == len(before.values), "values keep their numbers"
    return join_groups(graph, specs, groups)


def compare(found: Propagated, expected: Function, whole: bool) -> str:
    """Align the two programs; collectives that Shardy puts in are passed over."""
    theirs = [node for node in expected.graph.nodes if node.op != CONSTANT]
    ours = [node for node in found.graph.nodes if node.op != CONSTANT]
    if _constraints(ours) > _constraints(theirs):  # Shardy takes away those that nobody reads
        ours = [node for node in ours if node.op != CONSTRAINT or _is_read(found.graph, node)]
    pairs = list(zip(found.graph.inputs, expected.graph.inputs))
    j = 0
    for node in ours:
        while j < len(theirs) and not _same_op(node, theirs[j]):
            if not theirs[j].op.startswith("sdy."):
                return f"{node.op} where Shardy has {theirs[j].op}"
            j += 1
        if j == len(theirs):
            return f"Shardy has no {node.op}"
        if COPY not in expected.attrs[theirs[j].attr("n")]:
            pairs += list(zip(node.results, theirs[j].results))
        j += 1
    for a, b in pairs:
        mine, other = _said(found.specs[a], whole), _said(expected.specs.get(b), whole)
        if mine != other:
            return f"%{found.graph.values[a].name}: {mine} where Shardy has {other}"
    constants = [
        sorted(str(_said(specs.get(node.results[0]), whole)) for node in graph.nodes if node.op == CONSTANT)
        for graph, specs in ((found.graph, dict(enumerate(found.specs))), (expected.graph, expected.specs))
    ]
    if constants[0] != constants[1]:
        return f"constants {constants[0]} where Shardy has {constants[1]}"
    for i in range(len(found.graph.outputs)):
        mine, other = _said(found.out_specs[i], whole), _said(expected.out_specs.get(i), whole)
        if mine != other:
            return f"output {i}: {mine} where Shardy has {other}"
    return ""


def _constraints(nodes: Sequence[Node]) -> int:
    return sum(node.op in (CONSTRAINT, "sdy.reshard") for node in nodes)


def _is_read(graph: Graph, node: Node) -> bool:
    return any(graph.uses[value] or graph.output_uses[value] for value in node.results)


def _same_op(ours: Node, theirs: Node) -> bool:
    return ours.op == theirs.op or (ours.op == CONSTRAINT and theirs.op == "sdy.reshard")


def _said(spec: Spec, whole: bool) -> Spec:
    """After the whole pipeline shardings are closed, and one that cuts nothing says nothing."""
    if not whole or spec is None:
        return spec
    closed = spec.closed()
    return closed if closed.used_axes else None


def _differences(found: dict[int, Spec], expected: dict[int, ShardingSpec], graph: Graph) -> str:
    for value in graph.values:
        if found.get(value.id) != expected.get(value.id):
            return f"%{value.name}: {found.get(value.id)} where Shardy has {expected.get(value.id)}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("-v", "--verbose", action="store_true")
    options = parser.parse_args()
    failures = 0
    for path in options.files:
        outcome = run_file(path)
        print(f"{path.name}: {outcome}")
        failures += len(outcome.failed)
        for line in outcome.failed if options.verbose else ():
            print(f"  {line}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

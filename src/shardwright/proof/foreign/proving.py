"""`judge`: a single program and the ranks of a parallel one, run over fields and compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import VerifyError
from ...frontends.ranks import COMMUNICATION, Traced
from ..certificate import Trusted
from .cause import find_cause
from .result import ParallelCertificate, ParallelProof
from .rounds import Case, Round
from .smaller import reduced

ROUNDS = 2
MOST_VOIDS = 3
"""Rounds that are not counted: something was divided by 0.  A program that always does so is judged all the same."""
MANY = 16
"""So many comparisons do not all come out right by chance."""
_COMPARISONS = frozenset(f"aten.{name}.{kind}" for name in ("gt", "lt", "ge", "le") for kind in ("Tensor", "Scalar"))
AFFORDABLE = 1 << 30
"""So many numbers are computed."""
KEPT = 1 << 27
"""And so many kept, to look for a cause."""


def judge(case: Case, rounds: int = ROUNDS) -> ParallelProof:
    """The answer."""
    smaller: tuple[tuple[int, int], ...] = ()
    if elements(case) > KEPT:
        case, smaller = reduced(case)
    if elements(case) > AFFORDABLE:
        return ParallelProof(
            fact=f"the program has {elements(case):,} numbers, too many to be computed over a field",
            help="give a model of the same form with smaller sizes",
        )
    primes: list[int] = []
    trusted: set[str] = set()
    right: list[tuple[str, str]] = []
    wanted, turn, voids = max(rounds, _choices(case)), -1, 0
    while wanted:
        turn += 1
        try:
            one = Round(case, turn, keep=False)
        except VerifyError as error:
            return ParallelProof(fact=error.fact, rows=tuple(error.rows), help=error.help or "")
        wrong, right = one.differences()
        if wrong and one.numbers.zeros and voids < MOST_VOIDS:
            voids += 1  # by chance something was 0 that is none; other numbers tell
            continue
        wanted -= 1
        primes.append(one.numbers.prime)
        trusted |= one.meanings.trusted
        if wrong:
            total = len(wrong) + len(right)
            fact = f"{len(wrong)} of {total} tensors differ from the single program"
            cause = find_cause(Round(case, turn), wrong) if elements(case) <= KEPT else None
            return ParallelProof(differences=tuple(wrong), cause=cause, fact=fact, equal=len(right))
    counts = [_count(traced) for traced in case.ranks]
    certificate = ParallelCertificate(
        " x ".join(f"{name}={size}" for name, size in zip(case.mesh.names, case.mesh.shape)),
        max(ops for ops, _ in counts), max(collectives for _, collectives in counts),
        tuple(name for name, _ in right),
        (*case.placed, *((name, placed) for name, placed in right if _was_found(case, name))),
        tuple(dict.fromkeys(primes)),
        tuple(Trusted(op, "nothing is known of it: it runs on whole tensors") for op in sorted(trusted)),
        smaller=smaller,
        as_run=tuple(sorted(_as_run(case.ranks))),
    )  # fmt: skip
    return ParallelProof(certificate, equal=len(right))


def _choices(case: Case) -> int:
    """Rounds that it takes to see a choice go both ways: one that hangs on a few comparisons is right by chance."""
    fewest = MANY
    for traced in (case.single, *case.ranks):
        graph = traced.graph
        for node in graph.nodes:
            reads = [graph.type(value).dtype for value in node.inputs]
            if node.op in _COMPARISONS and any(dtype[:1] in ("f", "b") and dtype != "bool" for dtype in reads):
                fewest = min(fewest, max(graph.type(node.results[0]).elements, 1))
    return -(-MANY // fewest)


def elements(case: Case) -> int:
    return sum(value.type.elements for traced in (case.single, *case.ranks) for value in traced.graph.values)


def _was_found(case: Case, label: str) -> bool:
    left = next(left for left in case.ranks[0].left if left.label == label)
    return left.placed is None


def _count(traced: Traced) -> tuple[int, int]:
    collectives = sum(node.op.startswith(COMMUNICATION) for node in traced.graph.nodes)
    return len(traced.graph.nodes) - collectives, collectives


def _as_run(ranks: Sequence[Traced]) -> set[str]:
    found = set()
    for traced in ranks:
        makers: Mapping[int, Any] = {value: node for node in traced.graph.nodes for value in node.results}
        found |= {makers[value].op for value in traced.known if value in makers}
    return found

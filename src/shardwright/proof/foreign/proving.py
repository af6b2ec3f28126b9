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
AFFORDABLE = 1 << 27
"""So many numbers are computed."""


def judge(case: Case, rounds: int = ROUNDS) -> ParallelProof:
    """The answer."""
    smaller: tuple[tuple[int, int], ...] = ()
    if elements(case) > AFFORDABLE:
        case, smaller = reduced(case)
    if elements(case) > AFFORDABLE:
        return ParallelProof(
            fact=f"the program has {elements(case):,} numbers, too many to be computed over a field",
            help="give a model of the same form with smaller sizes",
        )
    primes: list[int] = []
    trusted: set[str] = set()
    right: list[tuple[str, str]] = []
    for turn in range(rounds):
        try:
            one = Round(case, turn)
        except VerifyError as error:
            return ParallelProof(fact=error.fact, rows=tuple(error.rows), help=error.help or "")
        wrong, right = one.differences()
        primes.append(one.numbers.prime)
        trusted |= one.meanings.trusted
        if wrong:
            total = len(wrong) + len(right)
            fact = f"{len(wrong)} of {total} tensors differ from the single program"
            cause = find_cause(one, wrong)
            return ParallelProof(differences=tuple(wrong), cause=cause, fact=fact, equal=len(right))
    counts = [_count(traced) for traced in case.ranks]
    certificate = ParallelCertificate(
        " x ".join(f"{name}={size}" for name, size in zip(case.mesh.names, case.mesh.shape)),
        max(ops for ops, _ in counts), max(collectives for _, collectives in counts),
        tuple(name for name, _ in right),
        (*case.placed, *((name, placed) for name, placed in right if _was_found(case, name))),
        tuple(primes),
        tuple(Trusted(op, "nothing is known of it: it runs on whole tensors") for op in sorted(trusted)),
        smaller=smaller,
        as_run=tuple(sorted(_as_run(case.ranks))),
    )  # fmt: skip
    return ParallelProof(certificate, equal=len(right))


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

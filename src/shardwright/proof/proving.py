"""`prove`: that a Program computes what its Graph does, lemma by lemma, each at small sizes.

A lemma that fails at small sizes is tried at its own, and then with more of the Graph; and where one fails in the end,
the Program is tried in one piece, as far as that can be afforded: lemmas ask more of a Program than that its outputs
are right.  What was shown is kept, so that no lemma is shown twice in a process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..errors import VerifyError
from ..ir.digest import program_digest, program_hash
from ..ir.graph import Graph
from ..ir.program import Program
from ..rules.registry import edition
from .certificate import Certificate, trusted_ops
from .fields.modular import PRIMES
from .identity import check_identity, check_lemma
from .lemmas import REACH, Lemma, check_ends, lemma_at, lemmas, whole_lemma
from .same import check_same
from .shrink import differs, elements, shrunk
from .structure import add_instruction, check_structure

HELP = 'the program is wrong and was not run: plan anew, and report the lines above; verify="off" runs it all the same'
AFFORDABLE = 1 << 23
"""So many numbers may be computed to try at its own size what failed at a small one."""
PIECE = 1 << 22
"""And so many to try a Program in one piece."""
_shown: dict[tuple[object, ...], bool] = {}
"""Lemmas that hold, with whether they were shown at smaller sizes."""
_proven: dict[tuple[str, str], Certificate] = {}
"""By the hashes of graph and Program."""
_edition = -1
"""Of the rule book: where that changes, what was shown has to be shown again."""


def prove(
    graph: Graph, program: Program, captured: Graph | None = None, outside: Mapping[str, str] | None = None
) -> Certificate:
    """The certificate of a Program, or the error that says where it is wrong.

    ``graph`` is the one that was lowered, ``captured`` the user's, if that is another; ``outside`` says of ops whose
    rule did not come with the project where it is from, and what was done about it.
    """
    _forget_old()
    source = graph if captured is None else captured
    key = program_hash(source), program_digest(program)
    found = _proven.get(key)
    if found is None:
        if captured is not None:
            check_same(captured, graph)
        try:
            check_structure(program)
            check_ends(graph, program)
            found = _proven[key] = _Proof(graph, program, key[1]).certificate(*key, outside or {})
        except VerifyError as error:
            error.help = error.help or HELP
            raise
    return found


def _forget_old() -> None:
    global _edition
    if _edition != edition():
        _edition = edition()
        _shown.clear()
        _proven.clear()


class _Proof:
    def __init__(self, graph: Graph, program: Program, digest: str) -> None:
        self.graph, self.program = graph, program
        self.count = self.smaller = 0
        number = int(digest[:12], 16)
        first, apart = number % len(PRIMES), 1 + number // len(PRIMES) % (len(PRIMES) - 1)
        self.primes = PRIMES[first], PRIMES[(first + apart) % len(PRIMES)]
        self.seen: set[tuple[object, ...]] = set()

    def certificate(self, source: str, digest: str, outside: Mapping[str, str]) -> Certificate:
        whole = False
        try:
            for lemma in lemmas(self.graph, self.program):
                self.add(lemma)
        except VerifyError as error:
            self.in_one_piece(error)
            whole = True
        return Certificate(
            source, digest, len(self.program.instrs), self.count, len(self.seen), self.smaller, whole, self.primes,
            tuple(trusted_ops(self.program, outside)),
        )  # fmt: skip

    def add(self, lemma: Lemma) -> None:
        self.count += 1
        key = lemma.key
        if key in self.seen:
            return
        if key not in _shown:
            _shown[key] = self.show(lemma)
        self.seen.add(key)
        self.smaller += _shown[key]

    def show(self, lemma: Lemma) -> bool:
        """Whether smaller sizes were enough."""
        try:
            return _show(lemma, self.primes)
        except VerifyError as error:
            try:
                return _show(lemma_at(self.graph, self.program, lemma, REACH), self.primes)
            except VerifyError:
                raise self.told(lemma, error) from error

    def told(self, lemma: Lemma, error: VerifyError) -> VerifyError:
        """What is wrong, in the words of the Program."""
        if lemma.place < 0:
            return VerifyError("an output is not what the graph returns", rows=error.rows)
        made = self.program.instrs[lemma.place].results
        names = ", ".join(f"%{self.program.values[value].name}" for value in made)
        fact = f"{names} is not what the graph says" if error.fact.startswith("output") else error.fact
        rows = [row for row in error.rows if row[0] == "element"]
        found = VerifyError(fact, rows=rows, help=error.help)
        add_instruction(found, self.program, lemma.place)
        return found

    def in_one_piece(self, error: VerifyError) -> None:
        """The Program as it is; what was found first, if that cannot be afforded."""
        if elements(whole_lemma(self.graph, self.program)) > PIECE:
            raise error
        try:
            check_lemma(whole_lemma(self.graph, self.program), primes=self.primes)
        except VerifyError:
            check_identity(self.graph, self.program)  # says who is to blame, if that one finds it
            raise error from None


def _show(lemma: Lemma, primes: Sequence[int]) -> bool:
    """Whether smaller sizes were enough.  Where both sides are not the same text, two of them are tried."""
    sizes = [shrunk(lemma, turn) for turn in range(2 if differs(lemma) else 1)]
    keys = [small.key for small in sizes]
    if all(key in _shown for key in keys):
        return True
    try:
        for small in sizes:
            check_lemma(small, primes=primes)
    except VerifyError:
        if keys[0] == lemma.key or elements(lemma) > AFFORDABLE:
            raise
        check_lemma(lemma, primes=primes)
        return False
    _shown.update(dict.fromkeys(keys, True))
    return keys[0] != lemma.key

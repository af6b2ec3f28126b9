"""`Case`, what is to be judged, and `Round`: single program and ranks, run once over a field."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from ...errors import VerifyError
from ...frontends.ranks import BUFFER, CONSTANT, OUTPUT, Given, Left, Traced
from .calls import Kernels
from .judging import Difference, Mesh, compare
from .lockstep import Lockstep, Values
from .meanings import Meanings
from .numbers import PRIMES, Number, Numbers


@dataclass
class Case:
    """What is to be judged."""

    single: Traced
    ranks: Sequence[Traced]
    mesh: Mesh
    kernels: Kernels
    placed: tuple[tuple[str, str], ...] = ()

    def key(self) -> int:
        """Chooses primes and functions: the same for the same program."""
        text = repr([(node.op, node.attrs) for node in self.single.graph.nodes])
        return int.from_bytes(blake2b(text.encode(), digest_size=6).digest(), "little")


class Round:
    """One prime, one set of functions, one set of random tensors."""

    def __init__(self, case: Case, turn: int, keep: bool = True) -> None:
        key = case.key() + turn
        self.case = case
        self.numbers = Numbers(PRIMES[(key * 7 + turn) % len(PRIMES)], key)
        self.meanings = Meanings(self.numbers, case.kernels)
        self._whole: dict[str, Number] = {}
        self._parts: dict[Hashable, Number] = {}
        """Parts and constants that ranks hold alike are one `Number`."""
        self._types = {
            id(given): traced.graph.type(value)
            for traced in (case.single, *case.ranks)
            for given, value in zip(traced.given, traced.graph.inputs, strict=True)
        }
        self._places = {given.name: i for i, given in reversed(list(enumerate(case.single.given)))}
        self.turn = turn
        single = Lockstep([case.single], self.meanings, self.given_whole, keep)
        self.meanings.inside = [] if keep else None
        self.single: Values = single.run()[0]
        self.inside, self.meanings.inside = self.meanings.inside or [], None
        """What ops of the single program compute on the way."""
        self.ranks = Lockstep(case.ranks, self.meanings, self.given_part, keep).run()

    def given_whole(self, given: Given, rank: int) -> Number:
        return self._constant(given) or self.whole(given.name)

    def given_part(self, given: Given, rank: int) -> Number:
        found = self._constant(given)
        if found is not None:
            return found
        whole, placed = self.whole(given.name), given.placed
        if placed is None:
            return whole
        rows = [*placed.places, *([] if placed.flat is None else [placed.flat])]
        key = (given.name, placed.flat is None, *((part.shape, part.tobytes()) for part in map(np.asarray, rows)))
        if key not in self._parts:
            self._parts[key] = whole.map(placed.of)
        return self._parts[key]

    def _constant(self, given: Given) -> Number | None:
        """Numbers that are known: constants, and whole numbers that are given."""
        type = self._types[id(given)]
        if given.kind != CONSTANT and type.dtype != "bool" and type.dtype[:1] not in ("i", "u"):
            return None
        if given.numbers is None:
            raise VerifyError(f"{given.name} has no numbers", help="give inputs with numbers, on the CPU")
        numbers = np.asarray(given.numbers)
        key = (type, str(numbers.dtype), numbers.tobytes())
        if key not in self._parts:
            self._parts[key] = self.meanings.constant(numbers.reshape(type.shape), type.dtype)
        return self._parts[key]

    def whole(self, name: str) -> Number:
        """A random tensor for every name."""
        if name not in self._whole:
            single = self.case.single
            at = self._places.get(name)
            if at is None:
                raise VerifyError(f"the parallel program reads {name}, which the single program does not read")
            type = single.graph.type(single.graph.inputs[at])
            seed = int.from_bytes(blake2b(name.encode(), digest_size=6).digest(), "little")
            generator = np.random.default_rng([seed, self.turn, self.numbers.prime])
            self._whole[name] = self.numbers.random(generator, type.shape, type.dtype)
        return self._whole[name]

    def left(self) -> list[tuple[tuple[Left, Number], list[tuple[Left, Number]]]]:
        """What is left behind, with what the ranks leave of the same name."""
        single = self.case.single
        places = [_places(traced) for traced in self.case.ranks]
        found = []
        for left, value in zip(single.left, single.graph.outputs):
            ranks = []
            for traced, values, here in zip(self.case.ranks, self.ranks, places):
                place = here.get((left.kind, left.name))
                if place is not None:
                    ranks.append((traced.left[place], values[traced.graph.outputs[place]]))
            found.append(((left, self.single[value]), ranks))
        return found

    def differences(self) -> tuple[list[Difference], list[tuple[str, str]]]:
        """What is wrong, and how the rest is placed."""
        case = self.case
        wrong: list[Difference] = []
        right: list[tuple[str, str]] = []
        for (left, whole), ranks in self.left():
            if left.kind == BUFFER and not any(one.changed for one in (left, *(other for other, _ in ranks))):
                continue
            if len(ranks) < len(case.ranks):
                missing = [t.rank for t in case.ranks if (left.kind, left.name) not in _places(t)]
                fact = "is not there" if left.kind == OUTPUT else "is missing"
                wrong.append(Difference(left.label, left.kind, fact, tuple(missing)))
                continue
            found, placed = compare(self.numbers, case.mesh, (left, whole), ranks)
            if found is not None:
                wrong.append(found)
            else:
                right.append((left.label, placed))
        for extra in _extra(case.single, case.ranks):
            wrong.append(Difference(extra.label, extra.kind, "is not left by the single program"))
        return wrong, right


def _places(traced: Traced) -> dict[tuple[str, str], int]:
    """Where among the outputs of a program something is left, by kind and name; the first of a name."""
    return {(left.kind, left.name): i for i, left in reversed(list(enumerate(traced.left)))}


def _extra(single: Traced, ranks: Sequence[Traced]) -> list[Left]:
    known = {(left.kind, left.name) for left in single.left}
    found: dict[tuple[str, str], Left] = {}
    for traced in ranks:
        for left in traced.left:
            if (left.kind, left.name) not in known and left.kind != BUFFER:
                found.setdefault((left.kind, left.name), left)
    return list(found.values())

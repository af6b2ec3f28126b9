"""From a rule as written and the shapes of a call to a bound rule.

``...`` matches any batch dims, aligned at the right as NumPy broadcasts; a batch dim of size 1 that others
have larger becomes ``1``.  A compound dim ``(a b)`` may leave one factor unsized: it is solved by division.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

from ..errors import RuleError
from .rule_parts import ELLIPSIS, ONE, SAME, Dim, Factor, FactorNote, Mapped, Pattern, Tensor, Transfer
from .sharding import Shape


class Bound(NamedTuple):
    """A bound rule: what an `OpShardingRule` is made from."""

    factors: tuple[Factor, ...]
    operands: tuple[Mapped, ...]
    results: tuple[Mapped, ...]
    reductions: tuple[tuple[tuple[int, str], ...], ...]
    transfers: tuple[Transfer, ...]


def bind(
    pattern: Pattern,
    operand_shapes: Sequence[Sequence[int]],
    result_shapes: Sequence[Sequence[int]] | None,
    sizes: Mapping[str, int],
) -> Bound:
    try:
        return _Binding(pattern, operand_shapes, result_shapes, sizes).rule()
    except RuleError as error:
        shapes = ", ".join(str(list(shape)) for shape in operand_shapes) or "no operands"
        raise error.place(str(pattern)).add("given", shapes) from None


def bind_sized(pattern: Pattern, sizes: Mapping[str, int]) -> Bound:
    """A bound rule from a text that carries all its sizes."""
    try:
        return _Finished(pattern, dict(sizes)).rule()
    except RuleError as error:
        raise error.place(str(pattern)) from None


class _Finished:
    """A pattern whose factors all have sizes and whose ``...`` are gone."""

    def __init__(self, pattern: Pattern, sizes: dict[str, int]) -> None:
        self.pattern = pattern
        self.sizes = sizes
        self.factors: list[Factor] = []
        self.index: dict[str, int] = {}

    def rule(self) -> Bound:
        operands = tuple(self.map(tensor) for tensor in self.pattern.operands)
        results = tuple(self.map(tensor) for tensor in self.pattern.results)
        kinds: dict[tuple[int, int | None], str] = {}
        for note in self.pattern.notes:
            self.apply(note, kinds)
        left = {factor for tensor in operands for dim in tensor for factor in dim}
        reductions = []
        for r, result in enumerate(results):
            here = {factor for dim in result for factor in dim}
            reduced = [
                (f, kinds.get((f, r)) or kinds.get((f, None)) or "sum")
                for f in sorted(left - here)
                if self.is_reducible(f, (f, r) in kinds or (f, None) in kinds) and kinds.get((f, r)) != SAME
            ]
            reductions.append(tuple(reduced))
        return Bound(tuple(self.factors), operands, results, tuple(reductions), self.pattern.transfers)

    def is_reducible(self, f: int, said: bool) -> bool:
        """A form leaves its factor pending only if the rule says how: ``k: sum form(once)``."""
        factor = self.factors[f]
        return not (factor.whole or factor.broadcast or factor.permuted or (factor.form and not said))

    def map(self, tensor: Tensor) -> Mapped:
        return tuple(tuple(self.factor(name) for name in dim) for dim in tensor)

    def factor(self, name: str) -> int:
        if name == "1":
            unused = f"one{len(self.factors)}"
            while unused in self.sizes:
                unused = "o" + unused
            self.factors.append(Factor(unused, 1, broadcast=True))
            return len(self.factors) - 1
        if name not in self.index:
            if name not in self.sizes:
                raise RuleError(f"factor {name!r} has no size")
            self.index[name] = len(self.factors)
            self.factors.append(Factor(name, self.sizes[name]))
        return self.index[name]

    def apply(self, note: FactorNote, kinds: dict[tuple[int, int | None], str]) -> None:
        names = self.batch_names() if note.factor == "..." else [note.factor]
        for name in names:
            f = self.index[name]
            for word in note.words:
                if word in ("whole", "permuted", "blocked"):
                    self.factors[f] = replace(self.factors[f], **{word: True})  # type: ignore[arg-type]
                elif word.startswith("form("):
                    self.factors[f] = replace(self.factors[f], form=word[5:-1])
                elif word != "new":
                    kinds[f, note.result] = word

    def batch_names(self) -> list[str]:
        return []


class _Binding(_Finished):
    """A pattern being sized by shapes."""

    def __init__(
        self,
        pattern: Pattern,
        operand_shapes: Sequence[Sequence[int]],
        result_shapes: Sequence[Sequence[int]] | None,
        sizes: Mapping[str, int],
    ) -> None:
        super().__init__(pattern, dict(sizes))
        self.told = frozenset(sizes)
        self.seen: dict[str, str] = dict.fromkeys(sizes, "as told")
        self.flexible = {
            note.factor for note in pattern.notes if not {"whole", "permuted", "blocked"}.isdisjoint(note.words)
        }
        self.operand_shapes = [tuple(shape) for shape in operand_shapes]
        self.result_shapes = None if result_shapes is None else [tuple(shape) for shape in result_shapes]
        if len(self.operand_shapes) != len(pattern.operands):
            raise RuleError(f"the rule has {len(pattern.operands)} operands, the call {len(operand_shapes)}")
        if self.result_shapes is not None and len(self.result_shapes) != len(pattern.results):
            got = len(self.result_shapes)
            raise RuleError(f"the rule has {len(pattern.results)} results, the call {got}")
        self.batch = self.batch_shape()
        self.batch_factors = self.name_batch()

    def rule(self) -> Bound:
        try:
            operands = [
                self.spell(tensor, shape, f"operand {i}")
                for i, (tensor, shape) in enumerate(zip(self.pattern.operands, self.operand_shapes))
            ]
            results = []
            for r, tensor in enumerate(self.pattern.results):
                shape = None if self.result_shapes is None else self.result_shapes[r]
                results.append(self.spell(tensor, shape, f"result {r}"))
            self.measure_compounds()
            self.check_results(results)
            self.pattern = Pattern(tuple(operands), tuple(results), self.pattern.notes, self.pattern.transfers)
            return super().rule()
        except RuleError as error:
            known = " ".join(f"{name}={size}" for name, size in self.sizes.items())
            raise (error.add("so far", known) if known else error) from None

    # -- batch dims -------------------------------------------------------------------------------------

    def batch_shape(self) -> Shape:
        widest: list[int] = []
        found: list[str] = []  # where each of these sizes was seen
        for i, (tensor, shape) in enumerate(zip(self.pattern.operands, self.operand_shapes)):
            fixed = sum(dim != ELLIPSIS for dim in tensor)
            if ELLIPSIS not in tensor:
                continue
            if len(shape) < fixed:
                raise RuleError(f"operand {i} has {len(shape)} dims, the rule names {fixed}")
            start = tensor.index(ELLIPSIS)
            batch = shape[start : start + len(shape) - fixed]
            widest = [1] * (len(batch) - len(widest)) + widest
            found = [""] * (len(batch) - len(found)) + found
            for d, size in enumerate(reversed(batch), 1):
                where = f"operand {i} dim {start + len(batch) - d}"
                if widest[-d] == 1:
                    widest[-d], found[-d] = size, where
                elif size not in (1, widest[-d]):
                    sizes = f"{widest[-d]} ({found[-d]}) and {size} ({where})"
                    raise RuleError(f"batch dims do not broadcast: {sizes}")
        self.batch_seen = found
        return tuple(widest)

    def name_batch(self) -> list[str]:
        tensors = self.pattern.operands + self.pattern.results
        taken = {name for tensor in tensors for dim in tensor for name in dim}
        names = []
        for i, size in enumerate(self.batch):
            name = f"b{i}"
            while name in taken:
                name = "b" + name
            names.append(name)
            self.sizes[name], self.seen[name] = size, self.batch_seen[i]
        return names

    def batch_names(self) -> list[str]:
        return [name for name in self.batch_factors if name in self.index]

    def spell_batch(self, shape: Shape | None) -> list[Dim]:
        """The dims that ``...`` stands for in one tensor."""
        count = len(self.batch) if shape is None else len(shape)
        dims: list[Dim] = []
        for d in range(count):
            name = self.batch_factors[len(self.batch) - count + d]
            broadcast = shape is not None and shape[d] == 1 and self.sizes[name] != 1
            dims.append(ONE if broadcast else (name,))
        return dims

    # -- sizes ------------------------------------------------------------------------------------------

    def spell(self, tensor: Tensor, shape: Shape | None, where: str) -> Tensor:
        """Write out ``...`` and learn sizes from a shape."""
        if ELLIPSIS in tensor:
            start = tensor.index(ELLIPSIS)
            batch = None
            if shape is not None:
                extra = len(shape) - (len(tensor) - 1)
                if extra < 0 or (where.startswith("result") and extra != len(self.batch)):
                    raise RuleError(f"{where} has {len(shape)} dims, the rule gives another number")
                batch = shape[start : start + extra]
            tensor = (*tensor[:start], *self.spell_batch(batch), *tensor[start + 1 :])
        if shape is None:
            return tensor
        if len(tensor) != len(shape):
            raise RuleError(f"{where} has {len(shape)} dims, the rule names {len(tensor)}")
        for d, (dim, size) in enumerate(zip(tensor, shape)):
            self.learn(dim, size, f"{where} dim {d}")
        return tensor

    def learn(self, dim: Dim, size: int, where: str) -> None:
        if dim == ONE:
            if size != 1:
                raise RuleError(f"the rule says 1 where {where} has {size}")
        elif len(dim) == 1:
            self.say(dim[0], size, where)
        elif len(dim) > 1:
            unknown = [name for name in dim if name not in self.sizes]
            known = prod(self.sizes[name] for name in dim if name in self.sizes)
            if len(unknown) == 1 and known and size % known == 0:
                self.say(unknown[0], size // known, where)
            elif len(unknown) == 1 and known:
                raise RuleError(f"({' '.join(dim)}) = {size} at {where} cannot be divided by the {known} already known")
            elif unknown:
                self.compounds.append((dim, size, where))
            elif known != size:
                raise RuleError(
                    f"the factors of ({' '.join(dim)}) make {known}, {where} has {size}",
                )

    def say(self, name: str, size: int, where: str) -> None:
        known = self.sizes.get(name)
        if known is None:
            self.sizes[name], self.seen[name] = size, where
        elif known != size and (name if name not in self.batch_factors else "...") not in self.flexible:
            sizes = f"{known} ({self.seen[name]}) and {size} ({where})"
            raise RuleError(f"factor {name!r} has two sizes: {sizes}")

    @property
    def compounds(self) -> list[tuple[Dim, int, str]]:
        if not hasattr(self, "_compounds"):
            self._compounds: list[tuple[Dim, int, str]] = []
        return self._compounds

    def measure_compounds(self) -> None:
        """Compound dims that could not be solved when first seen."""
        while self.compounds:
            waiting = list(self.compounds)
            self.compounds.clear()
            for dim, size, where in waiting:
                self.learn(dim, size, where)
            if len(self.compounds) == len(waiting):
                dim, size, where = waiting[0]
                unknown = [name for name in dim if name not in self.sizes]
                raise RuleError(
                    f"({' '.join(dim)}) = {size} at {where} leaves {' and '.join(unknown)} unsized",
                    help=f"give a size: rule(..., {unknown[0]}=2)",
                )

    def check_results(self, results: Sequence[Tensor]) -> None:
        for tensor in results:
            for name in (name for dim in tensor for name in dim if name != "1"):
                if name not in self.sizes:
                    raise RuleError(
                        f"factor {name!r} appears on the right but on no input",
                        help=f"size it as a new factor: rule(..., {name}=4)",
                    )

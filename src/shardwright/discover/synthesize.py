"""From tables of valid placements, over many shapes and keyword values, to the smallest statement.

A rule is a *template* (terms whose dims are words, ``S(d), S(d) -> S(d)``) and a *condition* (a conjunction of
atoms, ``d != dim``).  Every valid row of every table suggests the templates that it fits.  For a template, each
(sample, dim) is a case in which it held or did not; the cheapest condition that keeps all the cases where it
failed out, and lets as many of the others in as possible, makes it a rule.  Rules are then taken greedily until
every row is covered.  What none covers is listed, not guessed.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from .cases import (
    Atom,
    DimWord,
    Situation,
    aligned_word,
    dim_arguments,
    dim_atoms,
    dim_words,
    list_arguments,
    rank_atoms,
    size_atoms,
    value_atoms,
)
from .operator import Operator
from .placement import Placement, R, S
from .statement import FRAME, Rule, ShardedOn, Term
from .table import GRADES, Inputs, Table, folded

Outputs = tuple[Placement, ...]
Row = tuple[int, Inputs, Outputs]
"""A valid row: the number of its situation, and what lies how."""

Way = tuple[int, int, tuple[Atom, ...]]
"""A condition that keeps every failing case out: its cost, the cases it lets in (as bits), and its atoms."""

NO_DIM = -1
_MOST_TEMPLATES_PER_ROW = 48
_ATOMS_IN_TRIPLES = 16


@dataclass(frozen=True)
class Template:
    """A rule without its condition: placements, and words for dims."""

    inputs: tuple[Placement | DimWord, ...]
    outputs: tuple[Placement | DimWord, ...]
    reference: int | None

    @property
    def cost(self) -> int:
        return sum(term.cost for term in (*self.inputs, *self.outputs) if isinstance(term, DimWord))

    @property
    def key(self) -> tuple[object, ...]:
        return (self.reference, *(t if isinstance(t, Placement) else t.expr for t in (*self.inputs, *self.outputs)))

    def at(self, situation: Situation, d: int) -> tuple[Inputs, Outputs] | None:
        """The placements it means in a case, or None where it means none.

        An output dim that does not exist is kept: emitted code does not know the ranks of outputs, so the condition
        must rule such cases out.
        """
        inputs = [_placed(term, situation, d, shape) for term, shape in zip(self.inputs, situation.shape)]
        outputs = [_placed(term, situation, d, None) for term in self.outputs]
        if any(p is None for p in (*inputs, *outputs)):
            return None
        if self.reference is not None and not any(p is not None and p.kind == "S" for p in inputs):
            return None
        return tuple(p for p in inputs if p is not None), tuple(p for p in outputs if p is not None)


def _placed(term: Placement | DimWord, situation: Situation, d: int, shape: tuple[int, ...] | None) -> Placement | None:
    if isinstance(term, Placement):
        return term
    dim = term.find(situation, d)
    if dim is None:
        return None
    if term.broadcasts and shape is not None and (dim < 0 or shape[dim] == 1):
        return R
    return S(dim) if dim >= 0 and (shape is None or dim < len(shape)) else None


@dataclass
class Synthesis:
    """The rules found, and what they leave out."""

    rules: tuple[Rule, ...] = ()
    variants: tuple[Rule, ...] = ()
    """Rules of calls with another number of tensors."""
    leftover: tuple[str, ...] = ()
    held_out: tuple[int, int] = (0, 0)
    disagreements: tuple[str, ...] = ()
    situations: list[Situation] = field(default_factory=list)
    inserts: int = 0
    """How many dims the operator adds before its dim arguments count."""


def synthesize(operator: Operator, tables: Sequence[Table]) -> Synthesis:
    """The smallest statement that the tables bear out; one in four of them is kept back to check it first."""
    groups = _comparable(operator, [table for table in tables if table.valid])
    if not groups:
        return Synthesis()
    main, *others = groups
    found = _best(operator, main[1])
    # Calls with other tensors have rules of their own; mostly the same less a term, or with it once more.
    seen = {len(main[0])}
    for names, alike in others:
        if len(names) not in seen:
            seen.add(len(names))
            found.variants += _best(operator, alike).rules
    return found


def _best(operator: Operator, tables: Sequence[Table]) -> Synthesis:
    plain = _stated(operator, tables, 0)
    if not plain.leftover and not plain.disagreements:
        return plain
    # Arguments such as unsqueeze's dim count places of the result, which has one more.
    inserting = _stated(operator, tables, 1)
    return inserting if _price(inserting) < _price(plain) else plain


def _price(found: Synthesis) -> tuple[int, int]:
    return len(found.leftover), len(found.rules)


def _stated(operator: Operator, tables: Sequence[Table], inserts: int) -> Synthesis:
    names = dim_arguments(operator, tables, inserts)
    everything = [Situation.of(operator, table, names, inserts) for table in tables]
    situations = [s for s in everything if not s.degenerate] or everything
    kept = range(3, len(situations), 4) if len(situations) > 3 else range(len(situations) - 1, 0, -2)
    kept_back = [situations[i] for i in kept]
    agreed: tuple[int, int] = (0, 0)
    disagreements: tuple[str, ...] = ()
    if kept_back:
        first = _Search(operator, [s for i, s in enumerate(situations) if i not in kept], names)
        agreed, disagreements = _compare(first.found(), kept_back)
    search = _Search(operator, situations, names)
    found = search.found()
    rules = tuple(search.as_rule(template, atoms) for template, atoms in found)
    return Synthesis(_ordered(rules), (), tuple(search.leftover()), agreed, disagreements, situations, inserts)


def _comparable(operator: Operator, tables: Sequence[Table]) -> list[tuple[tuple[str, ...], list[Table]]]:
    """Tables by the tensors that their calls have.

    First the calls with most tensors, so that rules name optional ones too, unless they are few (lists of tensors).
    """
    counts = Counter(len(table.outputs) for table in tables)
    usual = counts.most_common(1)[0][0] if counts else 0
    groups: dict[tuple[str, ...], list[Table]] = {}
    for table in tables:
        if len(table.outputs) == usual:
            groups.setdefault(table.sample.tensor_names(operator), []).append(table)
    lists = any("[" in name for names in groups for name in names)
    most = max(map(len, groups.values()), default=0)

    def worth(group: tuple[tuple[str, ...], list[Table]]) -> tuple[object, ...]:
        names, found = group
        enough = len(found) * 4 >= most and any(", with a dim" not in t.sample.label for t in found)
        return (enough, 0 if lists else len(names), len(found))

    return sorted(groups.items(), key=worth, reverse=True)


def _ordered(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """All-replicated, then sharded, then pending."""

    def place(rule: Rule) -> tuple[int, str]:
        if rule.all_replicated:
            return (0, "")
        return (1 if any(isinstance(t, ShardedOn) for t in rule.inputs) else 2, str(rule))

    return tuple(sorted(rules, key=place))


def _rows(number: int, situation: Situation) -> Iterator[Row]:
    for inputs, outputs in folded(situation.table).items():
        for combination in itertools.product(*(sorted(found, key=str) for found in outputs)):
            if _label(situation, inputs, combination):
                yield number, inputs, combination


def _compare(
    found: Sequence[tuple[Template, tuple[Atom, ...]]], situations: Sequence[Situation]
) -> tuple[tuple[int, int], tuple[str, ...]]:
    """How often a statement is right about situations that it was not made from."""
    agreed, wrong = 0, []
    for number, situation in enumerate(situations):
        claimed = {case for template, atoms in found for case in _claims(template, atoms, situation)}
        rows = {(inputs, outputs) for _, inputs, outputs in _rows(number, situation)}
        for inputs, outputs in claimed | rows:
            truth = _label(situation, inputs, outputs)
            if truth is None or (truth and (inputs, outputs) in claimed):
                agreed += truth is not None
            elif truth:
                wrong.append(f"missed: {_row_text(situation, inputs, outputs)}")
            else:
                wrong.append(f"wrong: {_row_text(situation, inputs, outputs)}")
    return (agreed, agreed + len(wrong)), tuple(wrong)


def _claims(template: Template, atoms: Sequence[Atom], situation: Situation) -> Iterator[tuple[Inputs, Outputs]]:
    for d in _dims(template, situation):
        placed = template.at(situation, d)
        if placed is not None and all(atom.holds(situation, d) for atom in atoms):
            yield placed


def _dims(template: Template, situation: Situation) -> Iterable[int]:
    return (NO_DIM,) if template.reference is None else range(situation.rank_of(template.reference))


def _label(situation: Situation, inputs: Inputs, outputs: Outputs) -> bool | None:
    """Whether a row is valid; None where this sample cannot tell (dims of size 1, constant results)."""
    table = situation.table
    sharded = [situation.shape[i][p.dim] for i, p in enumerate(inputs) if p.kind == "S"]
    if sharded and max(sharded) <= 1:
        return None
    if any((inputs, index, p) in table.dropped for index, p in enumerate(outputs)):
        return None
    return all(table.holds(inputs, index, p) for index, p in enumerate(outputs))


def _row_text(situation: Situation, inputs: Inputs, outputs: Outputs) -> str:
    values = {name: value for name, value in situation.values.items() if value is not None}
    told = "".join(f", {name}={value!r}" for name, value in list(values.items())[:4])
    shapes = " ".join(str(list(shape)) for shape in situation.shape)
    return f"{', '.join(map(str, inputs))} -> {', '.join(map(str, outputs))} on {shapes}{told}"


class _Search:
    """The search for rules over some situations."""

    def __init__(self, operator: Operator, situations: Sequence[Situation], names: Sequence[str]) -> None:
        self.operator, self.situations, self.names = operator, situations, names
        self.lists = list_arguments(situations, names)
        self.rows = {row for number, s in enumerate(situations) for row in _rows(number, s)}
        self.todo = set(self.rows)
        self._words: dict[tuple[int, bool, int], list[DimWord]] = {}
        self._known: dict[tuple[object, ...], tuple[list[Row], list[Way]]] = {}
        self._aligned = [aligned_word(i) for i in range(len(situations[0].rank))]
        self._value_atoms = [*value_atoms(situations, names), *rank_atoms(situations)]

    # ---- templates -----------------------------------------------------------------------------------------

    def _words_for(self, tensor: int, is_output: bool, reference: int) -> list[DimWord]:
        key = (tensor, is_output, reference)
        if key not in self._words:
            self._words[key] = list(dim_words(tensor, is_output, reference, self.names, self.lists))
        return self._words[key]

    def _templates(self) -> list[Template]:
        found: dict[tuple[object, ...], Template] = {}
        for row in sorted(self.rows, key=str):
            for template in self._fitting(row):
                found.setdefault(template.key, template)
        return sorted(found.values(), key=lambda template: (template.cost, str(template.key)))

    def _fitting(self, row: Row) -> Iterator[Template]:
        number, inputs, outputs = row
        situation = self.situations[number]
        reference = next((i for i, p in enumerate(inputs) if p.kind == "S"), None)
        if reference is None:
            if not any(p.kind == "S" for p in outputs):
                yield Template(inputs, outputs, None)
            return
        d = inputs[reference].dim
        choices: list[list[Placement | DimWord]] = []
        for i, (p, is_output) in enumerate([(p, False) for p in inputs] + [(p, True) for p in outputs]):
            tensor = i - len(inputs) if is_output else i
            if p.kind != "S":
                choices.append([p])
            elif i == reference:
                choices.append([self._words_for(i, False, i)[0]])
            else:
                words = self._words_for(tensor, is_output, reference)
                choices.append([word for word in words if word.find(situation, d) == p.dim])
        for terms in itertools.islice(itertools.product(*choices), _MOST_TEMPLATES_PER_ROW):
            yield Template(tuple(terms[: len(inputs)]), tuple(terms[len(inputs) :]), reference)
        if len(inputs) > 1:
            yield from self._fitting_frame(
                situation, inputs, outputs, d + max(situation.rank) - situation.rank[reference]
            )

    def _fitting_frame(self, situation: Situation, inputs: Inputs, outputs: Outputs, d: int) -> Iterator[Template]:
        """Templates in which every input lies on dim d of the frame, replicated where it is broadcast."""
        terms: list[Placement | DimWord] = []
        for i, p in enumerate(inputs):
            word = self._aligned[i]
            if p.kind == "P":
                terms.append(p)
            elif _placed(word, situation, d, situation.shape[i]) is p:
                terms.append(word)
            elif p is R:
                terms.append(R)
            else:
                return
        choices: list[list[Placement | DimWord]] = [
            [p] if p.kind != "S" else [w for w in self._words_for(i, True, FRAME) if w.find(situation, d) == p.dim]
            for i, p in enumerate(outputs)
        ]
        for found in itertools.islice(itertools.product(*choices), _MOST_TEMPLATES_PER_ROW):
            yield Template(tuple(terms), tuple(found), FRAME)

    # ---- conditions ----------------------------------------------------------------------------------------

    def _cases(self, template: Template) -> tuple[list[tuple[int, int, Row]], list[tuple[int, int, Row]]]:
        """Where the template holds and where it fails: number of the situation, dim, and the row."""
        held: list[tuple[int, int, Row]] = []
        failed: list[tuple[int, int, Row]] = []
        for number, situation in enumerate(self.situations):
            for d in _dims(template, situation):
                placed = template.at(situation, d)
                label = None if placed is None else _label(situation, *placed)
                if placed is not None and label is not None:
                    (held if label else failed).append((number, d, (number, *placed)))
        return held, failed

    def _atoms(self, template: Template) -> list[Atom]:
        if template.reference is None:
            return self._value_atoms
        return [
            *dim_atoms(self.names, template.reference, self.lists),
            *size_atoms(template.reference, len(template.inputs)),
            *self._value_atoms,
        ]

    def _ways(self, template: Template) -> tuple[list[Row], list[Way]]:
        """The rows in which a template holds, and every condition under which it never fails, cheapest first."""
        known = self._known.get(template.key)
        if known is not None:
            return known
        held, failed = self._cases(template)
        rows = [row for _, _, row in held]
        everything = (1 << len(held)) - 1
        ways: list[Way] = []
        if not failed:
            ways.append((0, everything, ()))
        elif held:
            masks = []
            for atom in self._atoms(template):
                lets_in = _mask(atom, [(self.situations[n], d) for n, d, _ in held])
                lets_fail = _mask(atom, [(self.situations[n], d) for n, d, _ in failed])
                if lets_in and lets_fail != (1 << len(failed)) - 1:
                    masks.append((atom, lets_in, lets_fail))
            for size in (1, 2, 3):
                if size == 3:
                    masks = sorted(masks, key=lambda m: (m[2].bit_count(), m[0].cost))[:_ATOMS_IN_TRIPLES]
                ways += _conjunctions(masks, size)
                if any(lets_in == everything for _, lets_in, _ in ways):
                    break
            ways.sort(key=lambda way: way[0])
        self._known[template.key] = rows, ways
        return rows, ways

    def _condition(self, template: Template) -> tuple[tuple[Atom, ...], set[Row]] | None:
        """The cheapest condition under which it never fails, letting in as many rows still to cover as it can."""
        rows, ways = self._ways(template)
        want = sum(1 << i for i, row in enumerate(rows) if row in self.todo)
        if not want or not ways:
            return None
        _, lets_in, atoms = min(ways, key=lambda way: (-(way[1] & want).bit_count(), way[0]))
        if not lets_in & want:
            return None
        return atoms, {row for i, row in enumerate(rows) if lets_in >> i & 1}

    def found(self) -> list[tuple[Template, tuple[Atom, ...]]]:
        """Rules, the one that covers most rows first, until nothing more can be covered."""
        templates = self._templates()
        rules: list[tuple[Template, tuple[Atom, ...], set[Row]]] = []
        while self.todo:
            best: tuple[tuple[int, int], Template, tuple[Atom, ...], set[Row]] | None = None
            still = []
            for template in templates:
                condition = self._condition(template)
                if condition is None:
                    continue
                still.append(template)
                atoms, covers = condition
                score = (-len(covers & self.todo), _cost(template, atoms))
                if best is None or score < best[0]:
                    best = score, template, atoms, covers
            if best is None:
                break
            templates = still
            rules.append((best[1], best[2], best[3]))
            self.todo -= best[3]
        kept = self._simplified(_needed(rules, self.rows))
        return [(template, atoms) for template, atoms, _ in kept]

    def _simplified(
        self, rules: list[tuple[Template, tuple[Atom, ...], set[Row]]]
    ) -> list[tuple[Template, tuple[Atom, ...], set[Row]]]:
        """With cheaper conditions where these let in less, but the other rules cover what is lost."""
        found = list(rules)
        for place, (template, atoms, covers) in enumerate(found):
            others = set().union(*(other for i, (_, _, other) in enumerate(found) if i != place))
            lost = (covers & self.rows) - others
            rows, ways = self._ways(template)
            for cost, lets_in, simpler in ways:
                if cost >= sum(atom.cost for atom in atoms):
                    break
                inside = {row for i, row in enumerate(rows) if lets_in >> i & 1}
                if lost <= inside:
                    found[place] = template, simpler, inside
                    break
        return found

    def leftover(self) -> Iterator[str]:
        for number, inputs, outputs in sorted(self.todo, key=str):
            yield _row_text(self.situations[number], inputs, outputs)

    # ---- rules ---------------------------------------------------------------------------------------------

    def as_rule(self, template: Template, atoms: tuple[Atom, ...]) -> Rule:
        held, failed = self._cases(template)
        kept = [(n, d, row) for n, d, row in held if all(atom.holds(self.situations[n], d) for atom in atoms)]
        grade = min((self._grade(row) for _, _, row in kept), key=GRADES.index, default="even")
        return Rule(
            tuple(_term(term) for term in template.inputs),
            tuple(_term(term) for term in template.outputs),
            tuple(atom.expr for atom in atoms),
            template.reference,
            grade,
            "; ".join(dict.fromkeys(atom.why for atom in atoms)),
            tuple(self._counterexamples(atoms, failed)),
            len(kept),
        )

    def _grade(self, row: Row) -> str:
        number, inputs, outputs = row
        grades: Mapping[tuple[Inputs, int, Placement], str] = self.situations[number].table.grades
        return min((grades.get((inputs, i, p), "empty") for i, p in enumerate(outputs)), key=GRADES.index)

    def _counterexamples(self, atoms: Sequence[Atom], failed: Sequence[tuple[int, int, Row]]) -> Iterator[str]:
        """For each atom a case that only it keeps out."""
        for atom in atoms:
            others = [other for other in atoms if other is not atom]
            for number, d, (_, inputs, outputs) in failed:
                situation = self.situations[number]
                if not atom.holds(situation, d) and all(other.holds(situation, d) for other in others):
                    yield f"without '{atom.expr}': {_row_text(situation, inputs, outputs)} is wrong"
                    break


def _cost(template: Template, atoms: Sequence[Atom]) -> int:
    return template.cost + 2 * sum(atom.cost for atom in atoms)


def _needed(
    rules: list[tuple[Template, tuple[Atom, ...], set[Row]]], rows: set[Row]
) -> list[tuple[Template, tuple[Atom, ...], set[Row]]]:
    """Without rules all of whose rows later ones cover, too: the most far-fetched go first."""
    kept = list(rules)
    for rule in sorted(rules, key=lambda rule: -_cost(rule[0], rule[1])):
        others = [other for other in kept if other is not rule]
        if rule[2] & rows <= set().union(*(covers for _, _, covers in others)):
            kept = others
    return kept


def _conjunctions(masks: Sequence[tuple[Atom, int, int]], size: int) -> Iterator[Way]:
    """Every conjunction of so many atoms that lets no failing case in, but some others."""
    for chosen in itertools.combinations(masks, size):
        lets_in, lets_fail = -1, -1
        for _, good, bad in chosen:
            lets_in, lets_fail = lets_in & good, lets_fail & bad
        if lets_in and not lets_fail:
            yield sum(atom.cost for atom, _, _ in chosen), lets_in, tuple(atom for atom, _, _ in chosen)


def _mask(atom: Atom, cases: Sequence[tuple[Situation, int]]) -> int:
    return sum(1 << i for i, (situation, d) in enumerate(cases) if atom.holds(situation, d))


def _term(term: Placement | DimWord) -> Term:
    return term if isinstance(term, Placement) else ShardedOn(term.expr, term.broadcasts)

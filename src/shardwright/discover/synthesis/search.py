"""The search for rules: templates that some valid row fits, and for each the cheapest conditions that never fail.

A *template* is a rule without its condition: placements, and words for dims (``S(d), S(d) -> S(d)``).  Each (call,
dim) is a case in which it held, failed, or nothing is known.  The cheapest conjunction of atoms that keeps all failing
cases out, and lets as many of the others in as possible, makes it a rule.  Rules are taken greedily until every row is
covered.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter

from ..operator import Operator, Sample
from ..placement import Placement, R
from ..statement import FRAME, Rule, ShardedOn, Term
from ..table import GRADES, Inputs, Table
from .cases import DimWord, Situation, aligned_word, dim_arguments, dim_words, list_arguments, size_arguments
from .conditions import (
    RANK_COST,
    Atom,
    dim_atoms,
    dtype_atoms,
    extent_atoms,
    rank_atoms,
    size_atoms,
    value_atoms,
    word_among,
    words_of,
)
from .conjunctions import Case, Cases, Found, Partial, Seen, Way, cost_of, longer, mask_of, needed
from .templates import Outputs, Row, Template, dims_of, label, placed_at, row_text, rows_of

WITNESSES = 3
"""Calls on which a rule must have held to be stated."""
EVIDENCE = 4
"""Calls on which shards of a kind must have been tried to be claimed; all calls, where there are fewer."""
_MOST_TEMPLATES_PER_ROW = 48
_MOST_TEMPLATES = 500
"""Beyond so many, operators with lists of results, the most far-fetched are not looked at."""
_MOST_ATOMS = 80
_MOST_CONDITIONS = 4
_MOST_OTHERS = 200
_BEAM = 40
"""Conjunctions of two and more that are looked at with one more."""


class Search:
    """The search for rules over some situations; more may be added, which rules then have to be right about."""

    def __init__(
        self,
        operator: Operator,
        situations: Sequence[Situation],
        names: Sequence[str],
        lists: frozenset[str],
    ) -> None:
        """`names`: arguments that name dims; `lists`: those of them that may name several."""
        self.operator, self.names, self.lists = operator, names, lists
        self.situations = list(situations)
        self.numbers: Collection[float] = ()
        self.dtypes: Collection[str] = ()
        self.optional = {a.name for a in operator.arguments if a.default is None or a.type.endswith("?")}
        telling = [number for number, s in enumerate(situations) if not s.tiny] or range(len(situations))
        self.rows = {row for number in telling for row in rows_of(number, situations[number])}
        self.todo = set(self.rows)
        self.inserts = 0
        self.evidence = EVIDENCE
        """Calls on which shards of a kind must have been seen to be claimed."""
        self._all_templates: list[Template] | None = None
        self._words: dict[tuple[int, bool, int], list[DimWord]] = {}
        self._cases_of: dict[str, Cases] = {}
        self._meant_by: dict[str, tuple[int, set[Row]]] = {}
        self._sizes = size_arguments(situations, names)
        self._aligned = [aligned_word(i) for i in range(len(situations[0].rank))]
        self._refresh()

    @staticmethod
    def over(operator: Operator, tables: Sequence[Table], inserts: int, every: Sequence[Table] = ()) -> Search:
        """Over the calls of these tables; `inserts`: how many dims the operator adds before its dim arguments count;
        `every`: all tables of the operator, whose rules speak of an argument in one way: as a dim, or as several."""
        names = dim_arguments(operator, tables, inserts)
        lists = list_arguments(operator, every or tables)
        everything = [Situation.of(operator, table, names, inserts) for table in tables]
        search = Search(operator, [s for s in everything if not s.degenerate] or everything, names, lists)
        search.inserts = inserts
        return search

    def add(self, situations: Sequence[Situation], rows: Iterable[Row] = ()) -> None:
        """Calls on which some rows were tried: no rule may fail there.  `rows` are more to look for rules of."""
        self.situations.extend(situations)
        before = len(self.rows)
        self.rows.update(rows)
        if len(self.rows) > before:
            self._all_templates = None
        self._refresh()

    def _refresh(self) -> None:
        seen = self.situations
        # Where calls differ in which optional tensors they have, ranks would stand for these.
        mixed = len({s.table.sample.tensor_names(self.operator) for s in seen}) > 1
        self._value_atoms = [
            *value_atoms(seen, self.names, self.numbers),
            *dtype_atoms(seen, self.dtypes),
            *(() if mixed else rank_atoms(seen)),
        ]
        self._vocabularies = words_of(seen, self.names)

    # ---- templates -----------------------------------------------------------------------------------------

    def _words_for(self, tensor: int, is_output: bool, reference: int) -> list[DimWord]:
        key = (tensor, is_output, reference)
        if key not in self._words:
            self._words[key] = list(dim_words(tensor, is_output, reference, self.names, self.lists, self._sizes))
        return self._words[key]

    def _templates(self) -> list[Template]:
        if self._all_templates is not None:
            return self._all_templates
        found: dict[str, Template] = {}
        for row in sorted(self.rows, key=str):
            for template in self._fitting(row):
                found.setdefault(template.key, template)
        ordered = sorted(found.values(), key=lambda template: (template.cost, template.key))
        self._all_templates = ordered[:_MOST_TEMPLATES]
        return self._all_templates

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
            elif placed_at(word, situation, d, situation.shape[i]) is p:
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

    def _cases(self, template: Template) -> Cases:
        """Where the template holds and where it fails."""
        known = self._cases_of.setdefault(template.key, Cases())
        for number in range(known.read, len(self.situations)):
            situation = self.situations[number]
            for d in dims_of(template, situation):
                placed = template.at(situation, d)
                holds = None if placed is None else label(situation, *placed)
                if placed is not None and holds is None and self._limit((number, *placed)) != "empty":
                    known.weak.append((number, d, (number, *placed)))
                if placed is not None and holds is not None:
                    (known.held if holds else known.failed).append((number, d, (number, *placed)))
                    known.ways = known.rest = None
        known.read = len(self.situations)
        return known

    def _atoms(self, template: Template) -> list[Atom]:
        if template.reference is None:
            return self._value_atoms
        return [
            *dim_atoms(self.names, template.reference, self.lists, self.optional),
            *size_atoms(template.reference, len(template.inputs)),
            *extent_atoms(self.situations, self.names, template.reference),
            *self._value_atoms,
        ]

    def _ways(self, template: Template) -> tuple[list[Row], list[Way]]:
        """The rows in which a template holds, and every condition under which it never fails, cheapest first."""
        cases = self._cases(template)
        if cases.ways is None:
            # Of calls that no rule must cover some will do to tell wide conditions from narrow ones.
            asked = [case for case in cases.held if case[2] in self.rows]
            others = [case for case in cases.held if case[2] not in self.rows]
            cases.telling = [*asked, *others[:: -(-len(others) // _MOST_OTHERS) or 1]]
            cases.ways = self._separating(template, cases.telling, cases.failed)
        return [row for _, _, row in cases.telling], cases.ways

    def _separating(
        self, template: Template, held: Sequence[Case], failed: Sequence[Case], among: Sequence[Atom] | None = None
    ) -> list[Way]:
        """Conjunctions that let no failing case in."""
        everything = (1 << len(held)) - 1
        if not failed:
            return [(0, everything, ())]
        if not held:
            return []
        cases = [[(self.situations[n], d) for n, d, _ in some] for some in (held, failed)]
        found: dict[tuple[int, int], Atom] = {}
        for atom in self._atoms(template) if among is None else among:
            pair = mask_of(atom, cases[0]), mask_of(atom, cases[1])
            useful = pair[0] and pair[1] != (1 << len(failed)) - 1
            if useful and (pair not in found or atom.cost < found[pair].cost):
                found[pair] = atom
        for atom in self._among(found, cases[0], cases[1]) if among is None else ():
            found.setdefault((mask_of(atom, cases[0]), mask_of(atom, cases[1])), atom)
        masks = [(atom, lets_in, lets_fail) for (lets_in, lets_fail), atom in found.items()]
        share = 1 / len(failed), 1 / len(held)
        if len(masks) > _MOST_ATOMS:  # those that keep out most of what fails, and least of what holds
            masks.sort(key=lambda m: (m[2].bit_count() * share[0] - m[1].bit_count() * share[1], m[0].cost))
            masks = masks[:_MOST_ATOMS]
        ways: list[Way] = []
        partial: list[Partial] = [((), everything, (1 << len(failed)) - 1)]
        for size in range(1, _MOST_CONDITIONS + 1):
            if size == _MOST_CONDITIONS:  # so much pleading needs words that explain something
                masks = [m for m in masks if m[0].cost < RANK_COST]
            partial = list(longer(partial, masks))
            ways += [(sum(a.cost for a in atoms), lets_in, atoms) for atoms, lets_in, bad in partial if not bad]
            if any(lets_in == everything for _, lets_in, _ in ways):
                break
            # Beam search: longer ones only of the best.
            partial = [part for part in partial if part[2]]
            partial.sort(
                key=lambda p: (p[2].bit_count() * share[0] - p[1].bit_count() * share[1], sum(a.cost for a in p[0]))
            )
            partial = partial[: _BEAM if size > 1 else None]
        return sorted(ways, key=lambda way: way[0])

    def _among(
        self, found: Mapping[tuple[int, int], Atom], held: Sequence[Seen], failed: Sequence[Seen]
    ) -> Iterator[Atom]:
        """Of an argument that is a word, the words with which nothing fails (where another atom holds)."""
        for name in self._vocabularies:
            sets: dict[frozenset[str], None] = {}
            for inside in (lambda s, d: True, *(atom.holds for atom in found.values())):
                good = {s.values.get(name) for s, d in held if inside(s, d)}
                bad = {s.values.get(name) for s, d in failed if inside(s, d)}
                sets[frozenset(w for w in good - bad if isinstance(w, str))] = None
            yield from (word_among(name, tuple(words)) for words in sets if len(words) > 1)

    def _condition(self, template: Template) -> tuple[tuple[Atom, ...], set[Row]] | None:
        """The cheapest condition under which it never fails, letting in as many rows still to cover as it can."""
        rows, ways = self._ways(template)
        want = sum(1 << i for i, row in enumerate(rows) if row in self.todo)
        if not want or not ways:
            return None
        _, lets_in, atoms = min(ways, key=lambda w: (-(w[1] & want).bit_count(), w[0], -w[1].bit_count()))
        if not lets_in & want:
            return None
        return atoms, {row for i, row in enumerate(rows) if lets_in >> i & 1}

    def found(self) -> list[tuple[Template, tuple[Atom, ...]]]:
        """Rules, the one that covers most rows first, until nothing more can be covered."""
        self.todo = set(self.rows)
        rules: list[Found] = []
        hopeless: set[str] = set()
        while self.todo:
            best = self._widest(hopeless)
            if best is None:
                hopeless.clear()
                best = self._for_the_rest()
            if best is None:
                break
            rules.append(best)
            self.todo -= best[2]
        kept = self._simplified(needed(rules, self.rows))
        return [(template, atoms) for template, atoms, _ in kept]

    def _widest(self, hopeless: set[str]) -> Found | None:
        """The rule that covers most rows left, the simplest of these.  Templates that make none join `hopeless`."""
        promise = []
        for place, template in enumerate(self._templates()):
            most = len(self._meant(template) & self.todo)
            if most and template.key not in hopeless:
                promise.append(((-most, template.cost, place), template))
        best: tuple[tuple[int, int, int], Found] | None = None
        for bound, template in sorted(promise, key=itemgetter(0)):
            if best is not None and bound > best[0]:
                break
            condition = self._condition(template)
            if condition is None:
                hopeless.add(template.key)
                continue
            atoms, covers = condition
            score = (-len(covers & self.todo), cost_of(template, atoms), bound[2])
            if best is None or score < best[0]:
                best = score, (template, atoms, covers)
        return None if best is None else best[1]

    def _meant(self, template: Template) -> set[Row]:
        """The rows that it covers at best: those that it means, without a condition."""
        known = self._meant_by.get(template.key)
        if known is None or known[0] != len(self.rows):
            meant = set()
            for number in {number for number, _, _ in self.rows}:
                situation = self.situations[number]
                placed = (template.at(situation, d) for d in dims_of(template, situation))
                meant |= {(number, *found) for found in placed if found is not None}
            known = self._meant_by[template.key] = len(self.rows), meant & self.rows
        return known[1]

    def read_again(self, template: Template) -> None:
        """A known call refuted a rule of this template: what was unknown there when it was read is known now."""
        self._cases_of.pop(template.key, None)

    def _for_the_rest(self) -> Found | None:
        """A rule for rows that no other covers: what the search for wide conditions passed over."""
        for template in self._templates():
            cases = self._cases(template)
            rest = [case for case in cases.held if case[2] in self.todo]
            if not rest or len(rest) == len(cases.held):
                continue
            if cases.rest is None or cases.rest[0] != len(rest):
                cases.rest = len(rest), self._separating(template, rest, cases.failed)
            for _, lets_in, atoms in cases.rest[1]:
                if lets_in:
                    covers = {case[2] for case in cases.held if self._admits(atoms, case)}
                    return template, atoms, covers
        return None

    def _simplified(self, rules: list[Found]) -> list[Found]:
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

    def refuting(self, template: Template) -> list[Sample]:
        """Calls on which the template fails without its condition, the latest first."""
        numbers = dict.fromkeys(number for number, _, _ in reversed(self._cases(template).failed))
        return [self.situations[number].table.sample for number in numbers]

    def covered(self, template: Template, atoms: Sequence[Atom]) -> Iterator[Row]:
        """The rows in which a rule holds."""
        return (case[2] for case in self._cases(template).held if self._admits(atoms, case))

    def leftover(self) -> Iterator[str]:
        for number, inputs, outputs in sorted(self.todo, key=str):
            yield row_text(self.situations[number], inputs, outputs)

    # ---- rules ---------------------------------------------------------------------------------------------

    def as_rules(self, template: Template, atoms: tuple[Atom, ...]) -> list[Rule]:
        """The rule; and before it the same where it holds on worse shards, if a condition tells where that is."""
        cases = self._cases(template)
        kept = [case for case in cases.held if self._admits(atoms, case)]
        weak = [case for case in cases.weak if self._admits(atoms, case)]
        grade = self._claimed(kept, weak)
        found = []
        for better in reversed(GRADES[GRADES.index(grade) + 1 :] if template.reference is not None else ()):
            assert template.reference is not None
            enough = GRADES[GRADES.index(better) :]
            good = [case for case in kept if self._limit(case[2]) in enough]
            bad = [case for case in (*kept, *weak) if self._limit(case[2]) not in enough]
            if not good or not bad:
                continue
            ways = self._separating(
                template, good, bad, list(dim_atoms(self.names, template.reference, self.lists, self.optional))
            )
            way = min(ways, key=lambda way: (-way[1].bit_count(), way[0]), default=None)
            if way is None:
                continue
            inside = [case for case in good if self._admits(way[2], case)]
            if self._claimed(inside, ()) == better and len({n for n, _, _ in inside}) >= WITNESSES:
                found.append(self._rule(template, (*atoms, *(a for a in way[2] if a not in atoms)), inside, better))
                break
        found.append(replace(self._rule(template, atoms, kept, grade), narrows=self._narrows((*kept, *weak))))
        return found

    def _narrows(self, cases: Iterable[Case]) -> bool:
        for _, _, (number, inputs, outputs) in cases:
            shape, results = self.situations[number].shape, self.situations[number].table.outputs
            cut = [shape[i][p.dim] for i, p in enumerate(inputs) if p.kind == "S"]
            if any(results[i][p.dim] % size for i, p in enumerate(outputs) if p.kind == "S" for size in cut if size):
                return True
        return False

    def _rule(self, template: Template, atoms: tuple[Atom, ...], kept: Sequence[Case], grade: str) -> Rule:
        return Rule(
            tuple(_term(term) for term in template.inputs),
            tuple(_term(term) for term in template.outputs),
            tuple(atom.expr for atom in atoms),
            template.reference,
            grade,
            "; ".join(dict.fromkeys(atom.why for atom in atoms)),
            tuple(self._counterexamples(atoms, self._cases(template).failed)),
            len({number for number, _, _ in kept}),
            any(self._silent(row) for _, _, row in kept),
        )

    def _silent(self, row: Row) -> bool:
        number, inputs, outputs = row
        return any((inputs, i, p) in self.situations[number].table.silent for i, p in enumerate(outputs))

    def _admits(self, atoms: Iterable[Atom], case: Case) -> bool:
        return all(atom.holds(self.situations[case[0]], case[1]) for atom in atoms)

    def _limit(self, row: Row) -> str:
        """The worst shards on which a row did not fail."""
        number, inputs, outputs = row
        grades = self.situations[number].table.grades
        return min((grades.get((inputs, i, p), "empty") for i, p in enumerate(outputs)), key=GRADES.index)

    def _claimed(self, kept: Sequence[Case], weak: Sequence[Case]) -> str:
        """The worst shards on which none of these cases failed and some were seen to hold."""
        limit = min((self._limit(row) for _, _, row in (*kept, *weak)), key=GRADES.index, default="even")
        if not any(p.kind == "S" for _, _, (_, inputs, outputs) in kept for p in (*inputs, *outputs)):
            return limit
        # Of cuts of equal sizes, and of unequal ones (in 12, out 3), each must have been seen.
        calls: dict[tuple[bool, str], set[int]] = {}
        every: dict[bool, set[int]] = {}
        for _, _, (number, inputs, outputs) in kept:
            situation = self.situations[number]
            cut = [situation.shape[i][p.dim] for i, p in enumerate(inputs) if p.kind == "S"]
            cut += [situation.table.outputs[i][p.dim] for i, p in enumerate(outputs) if p.kind == "S"]
            equal = len(set(cut)) == 1
            every.setdefault(equal, set()).add(number)
            held = [situation.table.seen.get((inputs, i, p), set()) for i, p in enumerate(outputs)]
            for grade in set.intersection(*held) if held else ():
                calls.setdefault((equal, grade), set()).add(number)
        claimed = "even"
        for grade in GRADES[1 : GRADES.index(limit) + 1]:
            if any(len(calls.get((equal, grade), ())) < min(self.evidence, len(all_)) for equal, all_ in every.items()):
                break
            claimed = grade
        return claimed

    def _counterexamples(self, atoms: Sequence[Atom], failed: Sequence[Case]) -> Iterator[str]:
        """For each atom a case that only it keeps out."""
        for atom in atoms:
            others = [other for other in atoms if other is not atom]
            for case in failed:
                number, d, (_, inputs, outputs) = case
                if not atom.holds(self.situations[number], d) and self._admits(others, case):
                    yield f"without '{atom.expr}': {row_text(self.situations[number], inputs, outputs)} is wrong"
                    break


def _term(term: Placement | DimWord) -> Term:
    return term if isinstance(term, Placement) else ShardedOn(term.expr, term.broadcasts)

"""From tables of valid placements, over many shapes and keyword values, to a statement that withstands attack.

`search` finds the smallest rules that the tables bear out; `attack` tries them on fresh calls drawn inside the regions
that they claim.  A call on which a rule fails is added to what the search must be right about, until none is found.
What still fails then is dropped, with its counter-example; what too few calls bear out is not stated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from ..calls.fresh import Drawer
from ..calls.widen import with_value
from ..judging.oracle import check
from ..operator import Operator, Sample
from ..placement import KINDS, R
from ..statement import Rule, ShardedOn
from ..table import Table
from .attack import Claim, Pool, Row, Strength, Struck, Target, attack
from .cases import Situation
from .conditions import Atom
from .search import WITNESSES, Search
from .templates import Template, claims, row_text, rows_of

Ruling = tuple[Template, tuple[Atom, ...]]
"""A template and its condition."""


@dataclass
class Synthesis:
    """The rules found, and what they leave out."""

    rules: tuple[Rule, ...] = ()
    variants: tuple[Rule, ...] = ()
    """Rules of calls with another number of tensors."""
    leftover: tuple[str, ...] = ()
    held_out: tuple[int, int] = (0, 0)
    """Rows of fresh calls that the finished statement was right about, and all."""
    fresh: int = 0
    """Fresh calls that it was attacked with."""
    refuted: tuple[str, ...] = ()
    """Rows of rules that were narrowed or dropped for them."""
    situations: list[Situation] = field(default_factory=list)
    rulings: list[tuple[Ruling, Rule]] = field(default_factory=list)
    """What each rule says, as the search knows it."""
    inserts: int = 0
    """How many dims the operator adds before its dim arguments count."""
    fresh_calls: tuple[Sample, ...] = ()
    """The calls that it was attacked with."""
    tensors: tuple[tuple[str, ...], ...] = ()
    """The tensors that the rules speak of, by argument; then those of each set of variants."""

    def claimed(self, table: Table) -> set[Row]:
        """The rows that its rules claim of one of its tables."""
        situations = [s for s in self.situations if s.table is table]
        return {row for situation in situations for ruling, _ in self.rulings for row in claims(*ruling, situation)}


def synthesize(
    operator: Operator,
    tables: Sequence[Table],
    strength: Strength | None = None,
    drawer: Drawer | None = None,
    others: Sequence[Sample] = (),
) -> Synthesis:
    """The smallest statement that the tables bear out and that the attack does not refute (without one if None).

    `others` are more calls at hand, which the attack uses beside its fresh ones.
    """
    groups = _comparable(operator, [table for table in tables if table.valid])
    if not groups:
        return Synthesis()
    if strength is None:
        drawer = None
    elif drawer is None:
        drawer = Drawer(operator, [table.sample for table in tables])
    if drawer is not None:
        drawer.others = tuple(others)
    main, *rest = groups
    found = _best(operator, main, tables, drawer, strength)
    # Calls with other tensors have rules of their own; mostly the same less a term, or with it once more.
    found.tensors = (_named(operator, main),)
    for alike in rest[:_MOST_VARIANTS]:
        found.tensors += (_named(operator, alike),)
        found.variants += _best(operator, alike, tables, drawer, strength).rules
    return found


def _best(
    operator: Operator,
    tables: Sequence[Table],
    every: Sequence[Table],
    drawer: Drawer | None,
    strength: Strength | None,
) -> Synthesis:
    plain = Search.over(operator, tables, 0, every)
    # Arguments such as unsqueeze's dim count places of the result, which has one more.
    inserting = Search.over(operator, tables, 1, every)
    chosen = inserting if inserting.names and _price(inserting) < _price(plain) else plain
    return _stated(chosen, tables, drawer, strength)


def without(found: Synthesis, table: Table, failed: Collection[Row]) -> Synthesis:
    """Without the rules that claim rows of a table which failed elsewhere: on two axes, in float32."""
    situation = next((s for s in found.situations if s.table is table), None)
    if situation is None or not failed:
        return found
    wrong = [rule for ruling, rule in found.rulings if any(row in failed for row in claims(*ruling, situation))]
    dropped = tuple(f"{rule}: fails on two axes or in float32" for rule in wrong)
    rules = tuple(rule for rule in found.rules if not any(rule is other for other in wrong))
    return replace(found, rules=rules, refuted=(*found.refuted, *dropped))


def _price(search: Search) -> tuple[int, int]:
    rules = search.found()
    return len(search.todo), len(rules)


def _stated(search: Search, tables: Sequence[Table], drawer: Drawer | None, strength: Strength | None) -> Synthesis:
    situations = list(search.situations)
    if drawer is None or strength is None:
        search.evidence = 0
        rules = [rule for template, atoms in search.found() for rule in search.as_rules(template, atoms)]
        return Synthesis(_ordered(rules), (), tuple(search.leftover()), situations=situations, inserts=search.inserts)
    search.numbers, search.dtypes = drawer.named.numbers, drawer.named.dtypes
    pool = Pool(search.operator, drawer, search.names, search.inserts, tables[0], strength.most, strength.trials)
    siege = _Siege(search, pool, strength)
    kept = siege.outcome()
    rulings = [
        ((template, atoms), rule)
        for template, atoms in kept
        for rule in search.as_rules(template, atoms)
        if rule.all_replicated or rule.witnesses >= _needed(template, atoms)
    ]
    rules = [rule for _, rule in rulings]
    covered = {row for template, atoms in kept for row in search.covered(template, atoms)}
    missed = sorted((row for row in search.rows if row not in covered), key=str)
    return Synthesis(
        _ordered(rules),
        (),
        tuple(row_text(search.situations[number], *row) for number, *row in missed),
        siege.held_out,
        len(siege.pool.targets),
        tuple(siege.refuted),
        situations,
        rulings,
        search.inserts,
        tuple(target.situation.table.sample for target in siege.pool.targets),
    )


def _needed(template: Template, atoms: Sequence[Atom]) -> int:
    """Witnesses that a rule needs: the more it has to plead, or if only ranks explain it, the more."""
    pleads = len(atoms) > 2 or any(atom.cost >= 5 for atom in atoms)
    return 4 * WITNESSES if pleads else WITNESSES


_MOST_VARIANTS = 3
"""Other numbers of tensors that rules are looked for of."""

_MOST_TRANSPLANTS = 4
"""Sets of arguments that calls of other ranks and dtypes are given."""

_MOST_LESSONS = 16
"""Calls that refute one rule which the search learns from at once."""


_LAST_ROUNDS = 3
"""Narrowings by a search that knows every call that was tried."""


class _Siege:
    """Rules found, attacked, and found again, until fresh calls refute none of them."""

    def __init__(self, search: Search, pool: Pool, strength: Strength) -> None:
        self.search, self.pool, self.strength = search, pool, strength
        self.base = list(search.situations)
        self.seeds = self.base
        self.refuted: dict[str, None] = {}
        self.held_out = (0, 0)
        self._surrounded_rules: Counter[object] = Counter()

    def outcome(self) -> list[Ruling]:
        self._gather()
        kept = self._besieged()
        return self._besieged() if self._found_more(kept) else kept

    def _gather(self) -> None:
        for sample in self.pool.drawer.others:
            self.pool.add(sample)
        # Calls at hand are as good to start from as those that the tables are of.
        self.seeds = [*self.base, *(target.situation for target in self.pool.targets)]
        self.seeds = [s for s in self.seeds if all(map(all, s.shape))] or self.seeds
        for sample in _spread(self.search.operator, self.base, self.strength.seeds):
            self.pool.surround(sample, self.strength.around)
        for number in range(self.strength.calls):
            self.pool.draw(self.seeds[number % len(self.seeds)].table.sample)

    def _found_more(self, rules: Sequence[Ruling]) -> bool:
        """Whether fresh calls with arguments or dtypes of kinds that no call at hand has hold rows that no rule covers:
        every row of these calls is tried, and the search then looks for rules of such rows, too."""
        operator, search = self.search.operator, self.search
        found = False
        for sample in _unlike_before(
            self.base, [t.situation for t in self.pool.targets if t.finite], self.strength.more
        ):
            again = [moved for _ in range(2) if (moved := self.pool.drawer.moved(sample)) is not None]
            table = check(operator, sample, variants=again)
            if table.refused:
                continue
            situation = Situation.of(operator, table, search.names, search.inserts)
            covered = {row for rule in rules for row in claims(*rule, situation)}
            number = len(search.situations)
            rows = [row for row in rows_of(number, situation) if row[1:] not in covered]
            if rows and not situation.degenerate:
                search.add([situation], rows)
                self.seeds = [*self.seeds, situation]
                found = True
        return found

    def _besieged(self) -> list[Ruling]:
        for number in range(self.strength.rounds + _LAST_ROUNDS):
            if (
                number == self.strength.rounds
            ):  # so far the search learned from what refuted; now from all that was tried
                self._tell_all()
            rules = self.search.found()
            self._surrounded(rules, self.strength.per_rule)
            struck = attack([_claim(rule) for rule in rules], self.pool.targets)
            if not self._learned(rules, struck) and self._held(rules):
                return self._survivors(rules)
        # There is no more time to narrow: what fails is dropped, until what is left withstands new calls.
        kept = self._survivors(self.search.found())
        self._make_room()
        while True:
            self.held_out = (0, 0)
            fresh = self._surrounded(kept, 1 + self.strength.per_rule // 2, held_out=True)
            struck = attack([_claim(rule) for rule in kept], fresh)
            left = [rule for rule, one in zip(kept, struck) if not one.refuted]
            if len(left) == len(kept):
                rows = sum(one.rows for one in struck)
                self.held_out = rows, rows
                return self._survivors(kept)
            kept = left

    def _held(self, rules: Sequence[Ruling]) -> bool:
        """Whether calls drawn only now, which nothing was learned from, refute none of the rules."""
        self.held_out = (0, 0)
        self._make_room()
        while self.held_out[1] < self.strength.rows:
            fresh = self._surrounded(rules, 1 + self.strength.per_rule // 2, held_out=True)
            struck = attack([_claim(rule) for rule in rules], fresh)
            if self._learned(rules, struck):
                return False
            rows = sum(one.rows for one in struck)
            self.held_out = self.held_out[0] + rows, self.held_out[1] + rows
            if not rows:
                break
        return True

    def _make_room(self) -> None:
        """However many calls were drawn so far: there must be new ones to tell what withstands them."""
        self.pool.most = max(self.pool.most, len(self.pool.targets) + self.strength.rows // 2)

    def _surrounded(self, rules: Sequence[Ruling], wanted: int, held_out: bool = False) -> list[Target]:
        """Draw calls until each rule has so many in its region, all of them new (`held_out`) or not."""
        before = len(self.pool.targets)
        for rule in rules:
            claim = _claim(rule)
            inside = sum(bool(claim.rows(target)) for target in self.pool.targets[before if held_out else 0 :])
            seeds = [s.table.sample for s in self.seeds if any(True for _ in claims(*rule, s))]
            times = self._surrounded_rules[claim.key]
            if not times and len(self.pool.targets) < 2 * self.strength.most:  # a late rule is attacked, too
                self.pool.most = max(self.pool.most, len(self.pool.targets) + self.strength.around // 2)
            room = len(self.pool.targets) < self.pool.most
            if seeds and room and not _silent(rule) and times < 2:
                self._surrounded_rules[claim.key] += 1
                # First around calls at hand, then around fresh ones, which differ from those in two things.
                fresh = [t.situation.table.sample for t in self.pool.targets if times and claim.rows(t)]
                fresh = [sample for sample in fresh if all(map(all, sample.shapes))]
                for witness in _unlike(fresh or seeds)[: self.strength.seeds]:
                    self.pool.surround(witness, self.strength.around)
                if not times:
                    self._transplant(rule, seeds)
            for attempt in range((wanted - inside) * self.strength.tries if seeds and not _silent(rule) else 0):
                target = self.pool.draw(seeds[attempt % len(seeds)])
                if target is not None and claim.rows(target):
                    inside += 1
                    # A walk: the next call is drawn near this one.
                    seeds.append(target.situation.table.sample)
                if inside >= wanted:
                    break
        return self.pool.targets[before:]

    def _transplant(self, rule: Ruling, witnesses: Sequence[Sample]) -> None:
        """Calls of other ranks and dtypes moved into a rule's region: given the arguments that its condition reads."""
        operator = self.pool.operator
        uses = {name for atom in rule[1] for name in atom.expr.uses} - set(self.search.names)
        read = ({n: v for n, v in witness.values(operator).items() if n in uses} for witness in witnesses)
        unlike = list({repr(sorted(values.items())): values for values in read}.values())
        seen: set[object] = set()
        for seed in self.seeds:
            features = seed.rank, seed.dtype
            if features in seen and not uses:
                continue
            seen.add(features)
            for values in unlike[:_MOST_TRANSPLANTS]:
                call: Sample | None = seed.table.sample
                for name, value in values.items():
                    call = with_value(operator, call, name, value) if call is not None else None
                if call is not None and (moved := self.pool.drawer.moved(call)) is not None:
                    self.pool.add(moved)
        # What refuted it elsewhere, brought into what is left of its region: does it fail there, too?
        for sample in self.search.refuting(rule[0])[: 2 * _MOST_LESSONS]:
            for values in unlike[:2]:
                for call in self.pool.drawer.folded(sample, values):
                    self.pool.add(call)

    def _learned(self, rules: Sequence[Ruling], struck: Sequence[Struck]) -> bool:
        """Whether a rule was refuted; the search then knows the calls."""
        added: dict[int, Target] = {}
        known = {id(s) for s in self.search.situations}
        for (template, atoms), one in zip(rules, struck):
            if not one.refuted:
                continue
            lessons = one.refuted[:: -(-len(one.refuted) // _MOST_LESSONS)]
            added.update((id(target), target) for target in lessons)
            if any(id(target.situation) in known for target in lessons):
                self.search.read_again(template)
            self._write_down(template, atoms, one.refuted[0])
        self.search.add([t.situation for t in added.values() if id(t.situation) not in known])
        return bool(added)

    def _write_down(self, template: Template, atoms: Sequence[Atom], target: Target) -> None:
        for row in claims(template, atoms, target.situation):
            if target.try_row(*row) is False:
                self.refuted[row_text(target.situation, *row)] = None
                return

    def _survivors(self, rules: Sequence[Ruling]) -> list[Ruling]:
        """The rules that none of the calls refutes; the search then knows all of them, for witnesses and shards."""
        struck = attack([_claim(rule) for rule in rules], self.pool.targets)
        for rule, one in zip(rules, struck):
            if one.refuted:
                self._write_down(*rule, one.refuted[0])
        self._tell_all()
        # What was found when no more calls were to be drawn was not attacked.
        tried = [_silent(rule) or _claim(rule).key in self._surrounded_rules for rule in rules]
        return [rule for rule, one, attacked in zip(rules, struck, tried) if attacked and not one.refuted]

    def _tell_all(self) -> None:
        """Let the search know every call that was tried."""
        known = {id(s) for s in self.search.situations}
        self.search.add([t.situation for t in self.pool.targets if id(t.situation) not in known])


def _unlike_before(known: Sequence[Situation], fresh: Sequence[Situation], most: int) -> list[Sample]:
    """Fresh calls with kinds of arguments and dtypes that those known do not have, telling ones first: as many as have
    so many combinations of placements."""
    seen = {feature for s in known for feature in _kinds(s)}
    chosen: list[Sample] = []
    for s in sorted(fresh, key=lambda s: -sum(size > 1 for shape in s.shape for size in shape)):
        tries = prod(len(KINDS) + 1 + rank for rank in s.rank)
        if tries <= most and not s.tiny and not s.degenerate and _kinds(s) - seen:
            seen |= _kinds(s)
            most -= tries
            chosen.append(s.table.sample)
    return chosen


def _kinds(s: Situation) -> set[object]:
    """What an argument is: which flag or word, of which sign, none; and the kinds of the tensors' numbers."""
    found: set[object] = {tuple(np.dtype(name).kind for name in s.dtype)}
    for name, value in s.values.items():
        if value is None or isinstance(value, (bool, str)):
            found.add((name, value))
        elif isinstance(value, (int, float)) and name not in s.dims:
            found.add((name, (value > 0) - (value < 0), value == 1))
    return found


def _spread(operator: Operator, situations: Sequence[Situation], most: int) -> list[Sample]:
    """Some of their calls, of different tensors, ranks and arguments first."""
    chosen: list[Sample] = []
    seen: set[object] = set()
    for s in sorted(situations, key=lambda s: -sum(s.rank)):
        names = s.table.sample.tensor_names(operator)
        features = {("tensors", names), ("rank", s.rank), *((name, repr(value)) for name, value in s.values.items())}
        if len(chosen) < most and features - seen:
            chosen.append(s.table.sample)
            seen |= features
    return chosen


def _unlike(samples: Sequence[Sample]) -> list[Sample]:
    """One of each combination of ranks: those of most dims first, and of few elements, but not of single ones, or
    without any."""

    def worth(sample: Sample) -> tuple[bool, int, int, int]:
        sizes = [size for shape in sample.shapes for size in shape]
        return 0 in sizes, -len(sizes), sizes.count(1), sum(t.size for t in sample.tensors)

    found: dict[tuple[int, ...], Sample] = {}
    for sample in sorted(samples, key=worth):
        found.setdefault(tuple(map(len, sample.shapes)), sample)
    return list(found.values())


def _claim(rule: Ruling) -> Claim:
    template, atoms = rule
    key = template.key, frozenset(atom.expr.code for atom in atoms)
    return Claim(key, lambda situation: claims(template, atoms, situation))


def _silent(rule: Ruling) -> bool:
    """Whether it is the rule that everything may be replicated: true of every operator."""
    return rule[0].reference is None and all(term is R for term in (*rule[0].inputs, *rule[0].outputs))


def _named(operator: Operator, tables: Sequence[Table]) -> tuple[str, ...]:
    """The tensors of most of these calls, by argument."""
    return Counter(table.sample.tensor_names(operator) for table in tables).most_common(1)[0][0]


def _comparable(operator: Operator, tables: Sequence[Table]) -> list[list[Table]]:
    """Tables by how many tensors their calls have: a rule speaks of that many, whichever optional ones they are.

    First the calls with most tensors, so that rules name optional ones too, unless they are few (lists of tensors).
    """
    counts = Counter(len(table.outputs) for table in tables)
    usual = counts.most_common(1)[0][0] if counts else 0
    groups: dict[int, list[Table]] = {}
    for table in tables:
        if len(table.outputs) == usual:
            groups.setdefault(len(table.sample.tensors), []).append(table)
    lists = any("[" in name for table in tables for name in table.sample.tensor_names(operator))
    most = max(map(len, groups.values()), default=0)

    def worth(found: list[Table]) -> tuple[object, ...]:
        enough = len(found) * 4 >= most and any(", with a dim" not in t.sample.label for t in found)
        return (enough, 0 if lists else len(found[0].sample.tensors), len(found))

    return sorted(groups.values(), key=worth, reverse=True)


def _ordered(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """All-replicated, then sharded, then pending."""

    def place(rule: Rule) -> tuple[int, str]:
        if rule.all_replicated:
            return (0, "")
        return (1 if any(isinstance(t, ShardedOn) for t in rule.inputs) else 2, str(rule))

    return tuple(sorted(rules, key=place))

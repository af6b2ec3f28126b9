"""A plan as text: figures that add up, the plan in a sentence, a row a module, what is exposed, the peak.

Plain text of a fixed width; colour is the command line's affair.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..errors import printable
from ..plans import duration, gibibytes
from .modules import Module, Sums, Weight
from .overview import KIND_NAMES, Overview, Traffic, worth_a_row

MOST_ROWS = 28
"""Rows of modules, so that a plan fits on one screen with all that is said around them."""
_SHOWN = 5
"""Rows of communication, of what the peak holds, and notes."""
_WIDTH = 130
"""Characters of a line of words."""
_WIDEST = 44
"""Characters of a tensor."""


def headline(view: Overview) -> str:
    """The plan in one line."""
    plan = view.plan
    return printable(
        f"{plan.name} on ({plan.mesh}), {plan.hardware}: {duration(view.step)} a step "
        f"({_ms(view.compute, view)} compute + {_ms(view.exposed, view)} exposed communication), "
        f"{gibibytes(plan.memory)} of {gibibytes(view.hardware.memory)}; {view.quality} ({plan.solver}); {view.proven}"
    )


def plan_text(view: Overview, everything: bool = False) -> str:
    """All that is printed; with ``everything`` nothing is folded away but equal layers."""
    folded = any(module.count > 1 for top in view.modules for module in top.walk())
    lines = [*_head(view), "(figures of a row are of all its layers together)" if folded else ""]
    lines += [*_table(view, everything), ""]
    lines += _traffic(view, everything)
    lines += _peak(view, everything)
    lines += _notes(view, everything)
    if everything:
        lines += ["inputs", *(f"  {name}: {spec}" for name, spec in view.plan.inputs.items())]
    return "\n".join(printable(line.rstrip()) for line in lines)


def _ms(time: int, view: Overview) -> str:
    return duration(time, beside=view.step)


def _head(view: Overview) -> Iterator[str]:
    plan, hardware = view.plan, view.hardware
    devices = plan.mesh.size
    yield f"{plan.name} on ({plan.mesh}), {devices} {'device' if devices == 1 else 'devices'} of {plan.hardware}"
    hidden = view.communication - view.exposed
    share = f", {100 * hidden // view.communication}% hidden" if view.communication else ""
    yield (
        f"  step    {duration(view.step)} = {_ms(view.compute, view)} compute + {_ms(view.exposed, view)} exposed"
        f" communication ({_ms(view.communication, view)} in all{share})"
    )
    if len(view.phases) > 1:
        parts = [f"{phase} {_ms(c + e, view)} ({_ms(e, view)} exposed)" for phase, (c, e) in view.phases.items()]
        yield f"          {' + '.join(parts)}"
    kinds = " + ".join(f"{KIND_NAMES[kind]} {gibibytes(count)}" for kind, count in view.peak_kinds.items())
    over = "" if plan.memory <= hardware.memory else ": DOES NOT FIT"
    limit = f", limit asked for {gibibytes(plan.asked.memory)}" if plan.asked.memory is not None else ""
    yield f"  memory  {gibibytes(plan.memory)} a device at the peak, of {gibibytes(hardware.memory)}{over}{limit}"
    yield from _wrapped("          = ", kinds or "nothing")
    yield from _wrapped("  plan    ", view.sentence)
    late = " (stopped by the time limit)" if plan.timed_out else ""
    yield f"  best    {view.quality} ({plan.solver}); objective {duration(plan.cost.objective)}{late}"
    yield f"  proof   {view.proven}"


def _wrapped(head: str, text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=head, subsequent_indent=" " * 10, break_long_words=False)


# -- modules --------------------------------------------------------------------------------------------------


class _Row(NamedTuple):
    label: str
    module: Module
    sums: Sums
    itself: bool = False
    """Of a module what is in none of those in it."""


@dataclass
class _Branch:
    """A row and those in it; it is closed until it is opened."""

    row: _Row
    inner: list[_Branch]
    open: bool = False

    def rows(self, depth: int = 0) -> Iterator[tuple[int, _Row]]:
        yield depth, self.row
        for branch in self.inner if self.open else ():
            yield from branch.rows(depth + 1)

    def closed(self) -> Iterator[_Branch]:
        """What can be opened next."""
        if not self.open and self.inner:
            yield self
        for branch in self.inner if self.open else ():
            yield from branch.closed()


def _table(view: Overview, everything: bool) -> list[str]:
    step, unit = view.step, duration(view.step).rpartition(" ")[2]
    branches = _branches(view, view.modules, everything)
    room = MOST_ROWS - len(branches)
    while True:  # what takes most is opened first
        closed = [branch for top in branches for branch in top.closed()]
        closed = [branch for branch in closed if everything or len(branch.inner) <= room]
        if not closed:
            break
        first = max(closed, key=lambda branch: (branch.row.sums.time, branch.row.sums.memory))
        first.open = True
        room -= len(first.inner)
    rows = [row for branch in branches for row in branch.rows()]
    more = rows[MOST_ROWS:] if not everything else []
    rows = rows[: len(rows) - len(more)]
    state = any(weight.state for _, row in rows for weight in row.module.weights)
    figures = [f"compute {unit}", f"comm {unit}", "exposed", "memory"]
    lines = [["module", "x", "weight", *(["state"] if state else []), "activation", *figures]]
    for depth, (label, module, sums, itself) in rows:
        shown = () if itself else module.weights
        lines.append([
            "  " * depth + label, f"{module.count}" if module.count > 1 else "",
            _short(_joined([weight.text for weight in shown])), *([_state(shown)] if state else []),
            "" if itself else _short(module.activation), _figure(sums.computing, step),
            _figure(sums.communication, step), _figure(sums.exposed, step),
            gibibytes(sums.memory) if sums.memory else "",
        ])  # fmt: skip
    if more:
        rest = Sums()
        for _, row in more:
            rest.add(row.sums)
        lines.append(_sums_line(f"({len(more)} more: --all)", rest, step, state))
    total = Sums()
    for module in view.modules:
        total.add(module.total)
    lines.append(_sums_line("all", total, step, state))
    return _aligned(lines, left=5 if state else 4)


def _sums_line(label: str, sums: Sums, step: int, state: bool) -> list[str]:
    times = (sums.computing, sums.communication, sums.exposed)
    empty = [""] * (4 if state else 3)
    return [label, *empty, *(_figure(time, step) for time in times), gibibytes(sums.memory) if sums.memory else ""]


def _branches(view: Overview, modules: Sequence[Module], everything: bool, prefix: str = "") -> list[_Branch]:
    """A row for each module that takes a hundredth of anything, or holds tensors; one for the others."""
    found: list[_Branch] = []
    rest = Module("", "(small ones)", ("",))
    for module in modules:
        label = f"{prefix}{module.label}"
        if not everything and not any(worth_a_row(m, view.step, view.plan.memory) for m in module.walk()):
            rest.total.add(module.total)
        elif not module.weights and module.children and not (module.own.time or module.own.memory):
            # A list of layers does nothing by itself: its layers stand in its place.
            found += _branches(view, module.children, everything, f"{label}.")
        else:
            inner = _branches(view, module.children, everything)
            own = module.own
            if inner and (own.time * 100 >= view.step or own.memory * 100 >= max(view.plan.memory, 1)):
                inner.append(_Branch(_Row("(itself)", module, own, True), []))
            found.append(_Branch(_Row(label, module, module.total), inner))
    if prefix or rest.total.time or rest.total.memory:
        found += [_Branch(_Row(rest.label, rest, rest.total), [])] if rest.total.time or rest.total.memory else []
    return found


def _joined(texts: Sequence[str]) -> str:
    """``a, b``; what is said twice once."""
    count = Counter(texts)
    return ", ".join(text if n == 1 else f"{n} x {text}" for text, n in count.items())


def _short(text: str) -> str:
    return text if len(text) <= _WIDEST else text[: _WIDEST - 3] + "..."


def _state(weights: Sequence[Weight]) -> str:
    specs = (("as weight" if spec == weight.spec else spec) for weight in weights for spec in weight.state)
    return ", ".join(dict.fromkeys(specs))


def _figure(time: int, step: int) -> str:
    """A time in the unit of the step, without it."""
    if not time:
        return ""
    found = duration(time, beside=step)
    return found if found.rpartition(" ")[2] != duration(step).rpartition(" ")[2] else found.rpartition(" ")[0]


def _aligned(rows: Sequence[Sequence[str]], left: int) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) if rows else 0)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if i < left else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


# -- communication, peak, notes -------------------------------------------------------------------------------


def _traffic(view: Overview, everything: bool) -> Iterator[str]:
    traffic = view.traffic
    if not traffic:
        yield "communication: none"
        return
    total = sum(item.bytes for item in traffic)
    count, starts = sum(item.count for item in traffic), sum(item.starts for item in traffic)
    sent = Counter[str]()
    for item in traffic:
        sent[item.axes] += item.bytes
    over = ", ".join(f"{gibibytes(number)} over {axes}" for axes, number in sent.most_common()) if len(sent) > 1 else ""
    head = f"communication, most exposed first ({count} collectives in {starts} starts, {gibibytes(total)} a device"
    yield f"{head}: {over})" if over else f"{head})"
    shown = traffic if everything else traffic[:_SHOWN]
    rows = [
        [
            f"  {item.phase}", f"{item.count} {item.kind} over {item.axes}", gibibytes(item.bytes),
            _ms(item.time, view), f"{_ms(item.exposed, view)} exposed",
        ]
        for item in shown
    ]  # fmt: skip
    yield from _beside(rows, [_places(item, view) for item in shown])
    rest = traffic[len(shown) :]
    if rest:
        yield (
            f"  {len(rest)} more kinds: {_ms(sum(item.time for item in rest), view)}, "
            f"{_ms(sum(item.exposed for item in rest), view)} exposed"
        )


def _places(item: Traffic, view: Overview) -> str:
    """Where it is exposed, or else spent."""
    named = ", ".join(f"{title} {_ms(time, view)}" for title, time in item.where[:2])
    rest = item.where[2:]
    more = f", {len(rest)} more {_ms(sum(time for _, time in rest), view)}" if rest else ""
    return named + more


def _beside(rows: Sequence[Sequence[str]], texts: Iterable[str]) -> list[str]:
    """Figures in columns, and words after them."""
    lines = _aligned(rows, left=2)
    width = max(map(len, lines), default=0)
    return [f"{line.ljust(width)}  {text}" for line, text in zip(lines, texts)]


def _peak(view: Overview, everything: bool) -> Iterator[str]:
    phase, where, when = view.peak_place
    share = f", {100 * when // view.step}% into the step" if view.step else ""
    yield f"memory at the peak: {where}{f', {phase}' if phase else ''}{share}; largest first"
    held = view.held if everything else view.held[:_SHOWN]
    rows = [
        [
            f"  {item.module}", KIND_NAMES[item.kind], gibibytes(item.bytes),
            f"{100 * item.bytes / max(view.plan.memory, 1):.0f}%",
            f"{item.count} x {item.largest}" if item.count > 1 else item.largest,
        ]
        for item in held
    ]  # fmt: skip
    yield from _beside([row[:4] for row in rows], [row[4] for row in rows])
    rest = view.held[len(held) :]
    if rest:
        yield f"  {len(rest)} more: {gibibytes(sum(item.bytes for item in rest))}"


def _notes(view: Overview, everything: bool) -> Iterator[str]:
    notes = view.plan.notes
    yield from (f"note: {note}" for note in (notes if everything else notes[:_SHOWN]))
    if len(notes) > _SHOWN and not everything:
        yield f"({len(notes) - _SHOWN} more notes: --all)"

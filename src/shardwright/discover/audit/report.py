"""The audit as a document: each cause with its script, and tables of counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from .causes import Cause
from .judge import Entry
from .operators import Audit
from .scripts import script_name

_SHOWS = {
    "rule": "on even shards",
    "cache": "after another call, since an argument is missing from the key of DTensor's cache",
    "dispatch": "on even shards; the rule is right, but the dispatcher does not do what it says",
    "uneven": "on uneven shards only",
    "empty": "on empty shards only",
}


def render_markdown(audit: Audit, scripts: bool = True, folder: str = "") -> str:
    """The findings by cause, the most harmful first, each with one script; and tables of what was judged.

    Each cause ends with its script, or with a link to it if the scripts are in a folder.
    """
    found = audit.causes()
    lines = [
        "# Audit of PyTorch DTensor's sharding rules",
        "",
        f"torch {audit.torch}, commit {audit.commit}. {audit.registered} overloads have a rule;"
        f" {len(audit.overloads())} were judged on calls of PyTorch's own test database and on others made from them."
        f" A rule is called wrong only if DTensor's dispatcher, run on the parts that the script shows, gives wrong"
        f" numbers or fails. Scripts run as they stand, all ranks in one process, and under"
        f" `torchrun --nproc-per-node RANKS`, by gloo. Make this page anew with"
        f" `shardwright audit dtensor --out FILE --scripts DIR`; `--op NAME` checks one operator, and exits with 1 if a"
        f" rule of it is wrong.",
        "",
        *_counts(audit),
    ]
    for title, silent in (("Wrong numbers", True), ("Errors where the rule promises a result", False)):
        some = [cause for cause in found if cause.silent is silent]
        if some:
            lines += [f"## {title}: {len(some)} causes", ""]
            for cause in some:
                lines += _wrong(found.index(cause) + 1, cause, scripts, folder)
    lines += _refusals(audit.of("refuses"))
    lines += _missing(audit.of("missing"))
    lines += _unjudged(audit)
    lines += _correct(audit)
    return "\n".join(lines).rstrip() + "\n"


def _counts(audit: Audit) -> list[str]:
    rows = [("verdict", "rules", "overloads")]
    for verdict in ("correct", "wrong", "refuses", "missing", "cannot judge"):
        told = "right, but the operator refuses empty shards" if verdict == "refuses" else verdict
        rows.append((told, str(len(audit.of(verdict))), str(len(audit.overloads(verdict)))))
    rows.append(("crashed or ran too long", "", str(len(audit.failures))))
    rows.append(("no sample reaches it", "", str(len(audit.without_samples))))
    rows.append(("`out=` variant, not judged by itself", "", str(len(audit.out_variants))))
    return [*_table(rows), ""]


def _wrong(number: int, cause: Cause, scripts: bool, folder: str) -> list[str]:
    entry = cause.shown
    names = ", ".join(f"`{name}`" for name in cause.overloads)
    lines = [f"### {number}. {names}", "", f"`{entry.rule}`: {entry.reason}. Shows {_SHOWS[entry.kind]}.", ""]
    lines += [f"Call of `{entry.overload}`: {entry.sample}.", ""] if entry.sample else []
    alike = [
        f"`{e.overload}` {rule}"
        for e in cause.entries
        for rule in (e.rule, *e.ways)
        if (e, rule) != (entry, entry.rule)
    ]
    if alike:
        more = f"; and {len(alike) - 8} more" if len(alike) > 8 else ""
        lines += [f"Of the same cause: {'; '.join(alike[:8])}{more}.", ""]
    lines += [f"Public: {cause.link}", ""] if cause.link else []
    if folder and entry.script:
        name = script_name(entry.overload, entry.rule)
        return [*lines, f"Script: [{name}]({folder}/{name})", ""]
    return [*lines, "```python", entry.script.rstrip(), "```", ""] if scripts and entry.script else lines


def _refusals(entries: Sequence[Entry]) -> list[str]:
    """Not faults of the rules: no rule could help an operator that does not take what a rank holds."""
    by_overload: dict[str, list[Entry]] = {}
    for entry in entries:
        by_overload.setdefault(entry.overload, []).append(entry)
    if not by_overload:
        return []
    words = "Their rules are right; on a rank that holds nothing the operator itself raises, so the call fails there."
    rows = [("overload", "rules", "such as", "it says")]
    for name, found in sorted(by_overload.items()):
        said = _short(found[0].reason.partition("raises ")[2])
        rows.append((f"`{name}`", str(len(found)), found[0].rule, said))
    return ["## Operators that refuse empty shards", "", words, "", *_table(rows), ""]


def _correct(audit: Audit) -> list[str]:
    names = audit.correct()
    where = f"torch {audit.torch}, commit {audit.commit}"
    words = f"Of these {len(names)} overloads all rules that were met are right, on {where}."
    return ["## Judged correct", "", words, "", ", ".join(f"`{name}`" for name in names), ""] if names else []


def _missing(entries: Sequence[Entry]) -> list[str]:
    """By overload: the rules that would save a move."""
    by_overload: dict[str, list[Entry]] = {}
    for entry in entries:
        by_overload.setdefault(entry.overload, []).append(entry)
    if not by_overload:
        return []
    rows = [("overload", "rules", "such as")]
    for overload, found in sorted(by_overload.items()):
        rows.append((f"`{overload}`", str(len(found)), "; ".join(entry.rule for entry in found[:4])))
    words = "Valid without communication on every sample that could tell, but DTensor moves the inputs, or refuses."
    return ["## Missing rules", "", words, "", *_table(rows), ""]


def _unjudged(audit: Audit) -> list[str]:
    reasons = Counter(_short(entry.reason) for entry in audit.of("cannot judge"))
    reasons.update(_short(failure) for failure in audit.failures.values())
    rows = [("reason", "rules"), *((reason, str(count)) for reason, count in reasons.most_common(30))]
    return ["## Not judged", "", *_table(rows), ""] if reasons else []


def _short(reason: str) -> str:
    return reason if len(reason) <= 110 else reason[:107] + "..."


def _sentence(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return text if text.endswith(".") else f"{text}."


def _table(rows: Iterable[Sequence[str]]) -> list[str]:
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return [lines[0], f"|{'---|' * len(cells[0])}", *lines[1:]]

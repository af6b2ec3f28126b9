"""The audit as a document: each wrong rule with its script, and tables of counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from .judge import Entry
from .operators import Audit
from .scripts import script_name

_CHAPTERS = (
    ("rule", "Wrong rules", "Local computation does not give what the rule says, on evenly cut tensors."),
    (
        "dispatch",
        "Wrong calls",
        "The rule is right, but the dispatcher does not do what it says, so the numbers are wrong.",
    ),
    ("cache", "Wrong answers from the cache", "An argument that decides the rule is missing from the cache's key."),
    ("uneven", "Wrong on uneven shards", "Right where all ranks hold equally much; DTensor also uses it where not."),
    (
        "empty",
        "Wrong on empty shards",
        "Right where every rank holds something; DTensor also uses it where one does not.",
    ),
)


def render_markdown(audit: Audit, scripts: bool = True, folder: str = "") -> str:
    """The findings, one entry per wrong rule, and tables of what was judged.

    Each entry ends with its script, or with a link to it if the scripts are in a folder.
    """
    lines = [
        "# Audit of PyTorch DTensor's sharding rules",
        "",
        f"torch {audit.torch}. {audit.registered} ATen overloads have a rule; {len(audit.overloads())} were judged on"
        f" samples of PyTorch's own test database. A rule is called wrong only if DTensor's dispatcher, run on the"
        f" parts that the script shows, gives wrong numbers or fails. Make this page anew with"
        f" `shardwright audit dtensor --out FILE --scripts DIR`.",
        "",
        *_counts(audit),
    ]
    for kind, title, words in _CHAPTERS:
        found = audit.of("wrong", kind)
        if found:
            lines += [f"## {title}", "", words, ""]
            for entry in found:
                lines += _wrong(entry, scripts, folder)
    lines += _missing(audit.of("missing"))
    lines += _unjudged(audit)
    return "\n".join(lines).rstrip() + "\n"


def _counts(audit: Audit) -> list[str]:
    rows = [("verdict", "rules", "overloads")]
    for verdict in ("correct", "wrong", "missing", "cannot judge"):
        rows.append((verdict, str(len(audit.of(verdict))), str(len(audit.overloads(verdict)))))
    rows.append(("crashed or ran too long", "", str(len(audit.failures))))
    rows.append(("no sample reaches it", "", str(len(audit.without_samples))))
    rows.append(("`out=` variant, not judged by itself", "", str(len(audit.out_variants))))
    return [*_table(rows), ""]


def _wrong(entry: Entry, scripts: bool, folder: str) -> list[str]:
    lines = [f"### `{entry.overload}`: {entry.rule}", "", f"{_sentence(entry.reason)}", ""]
    lines += [f"Inputs: {entry.sample}.", ""] if entry.sample else []
    if entry.ways:
        shown = "; ".join(entry.ways[:12])
        more = f"; and {len(entry.ways) - 12} more" if len(entry.ways) > 12 else ""
        lines += [f"Alike: {shown}{more}.", ""]
    if folder and entry.script:
        name = script_name(entry.overload, entry.rule)
        return [*lines, f"Script: [{name}]({folder}/{name})", ""]
    return [*lines, "```python", entry.script.rstrip(), "```", ""] if scripts and entry.script else lines


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

"""Times and bytes as people read and write them; tables of such figures."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..errors import SpecError

_TIMES = ((10**12, 10**12, "s"), (10**8, 10**9, "ms"), (10**5, 10**6, "us"), (0, 10**3, "ns"))
"""From so many picoseconds on, the unit, and its name."""


def duration(picoseconds: int, sign: str = "", beside: int | None = None) -> str:
    """In the unit that suits it, or what it stands ``beside`` unless it would look like nothing there.

    >>> duration(2_157_000_000), duration(-1_500_000, "+"), duration(-1_500_000, "+", beside=2_157_000_000)
    ('2.157 ms', '-1.500 us', '-0.002 ms')
    >>> duration(7, beside=2_157_000_000), duration(0, beside=2_157_000_000), duration(3 * 10**12)
    ('0.007 ns', '0.000 ms', '3.000 s')
    """

    def text(like: int) -> str:
        size, unit = next((size, unit) for least, size, unit in _TIMES if abs(like) >= least)
        return f"{picoseconds / size:{sign}.3f} {unit}"

    found = text(picoseconds if beside is None else beside)
    return text(picoseconds) if picoseconds and not any(map(found.__contains__, "123456789")) else found


def gibibytes(count: int) -> str:
    """
    >>> gibibytes(3 * 2**28), gibibytes(2**20), gibibytes(0)
    ('0.75 GiB', '1.00 MiB', '0.00 GiB')
    """
    return f"{count / 2**30:.2f} GiB" if not 0 < count < 0.01 * 2**30 else amount_text(count)


def amount_text(count: int) -> str:
    """
    >>> amount_text(3 * 2**29), amount_text(2**20), amount_text(1000)
    ('1.50 GiB', '1.00 MiB', '1000 bytes')
    """
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count} bytes"


_UNITS = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40, "kb": 10**3, "mb": 10**6, "gb": 10**9}


def read_bytes(text: str) -> int:
    """
    >>> read_bytes("40GiB"), read_bytes("1.5 mb"), read_bytes("512")
    (42949672960, 1500000, 512)
    """
    found = re.fullmatch(r"\s*([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*([a-zA-Z]*)\s*", text)
    if found is None or found[2].lower() not in _UNITS:
        raise SpecError(f"{text!r} is no amount of memory", help="write 40GiB, 80GB or a number of bytes")
    return int(float(found[1]) * _UNITS[found[2].lower()])


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns side by side; the first is a name, the others are figures.

    >>> print(table([["plan", "ms"], ["dp", "1.5"]]))
    plan   ms
    dp    1.5
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)

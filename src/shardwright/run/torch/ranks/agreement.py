"""`Agreement`: ranks that train tell each other, 16 bytes a step, what they train with; and notice who differs.

The four numbers of a step are its number, the options (learning rate and so on), the contract (program, plan, how data
is given), and a fingerprint of the inputs, where ranks must have the same.  The step only hands them over.  The watch
writes those of the last steps into the store, twice a second and over its own connection, and compares them with those
of its two neighbours in the ring of ranks: if any two ranks differ, two neighbours do.  Only then all are read, and the
minority is named; of two equal camps, the one without the lowest rank.  Every rank overwrites one key.
"""

from __future__ import annotations

import struct
import time
import zlib
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from .processes import Fault

POSTED = 1024
"""Steps in one note, 16 KiB: two neighbours look twice a second, so that none is missed down to 0.5 ms a step."""
_REMEMBERED = 4 * POSTED
_PATIENCE = 3.0  # how long those that are a step behind are waited for, before the others vote
_HEAD, _ENTRY = struct.Struct("<Q"), struct.Struct("<4I")
_INPUTS = 12  # where the fingerprint of the inputs begins in an entry
_OTHER = ("another step number", "other options (numbers in param_groups)", "another program, plan or data=",
          "other inputs")  # fmt: skip


class Pending(Protocol):
    """A fingerprint that a device still computes."""

    def ready(self) -> bool: ...

    def value(self) -> int: ...


class Facts(NamedTuple):
    """What a rank trains with in one step; numbers of 32 bits."""

    step: int
    options: int = 0
    contract: int = 0
    inputs: int | Pending = 0


class Agreement:
    """Of the ranks of one mesh.  `add` is the main thread's, the rest the watch's."""

    def __init__(self, rank: int, ranks: Sequence[int]) -> None:
        self.rank = rank
        self.ranks = tuple(sorted(ranks))
        self.name = "_".join(map(str, self.ranks))
        self._queue: deque[tuple[Facts, tuple[int, ...]]] = deque()
        self._first = 0
        self._entries = bytearray()
        self._like: deque[tuple[int, ...]] = deque()
        self._compared: dict[int, int] = {}
        self._there: set[int] = set()
        self._suspicion: tuple[int, float] | None = None

    def add(self, facts: Facts, like: Iterable[int] | None = None) -> None:
        """``like``: the ranks, this one among them, whose inputs are the same; all of them if not said."""
        self._queue.append((facts, self.ranks if like is None else tuple(sorted(like))))

    @property
    def count(self) -> int:
        """Of steps whose numbers are known."""
        return self._first + len(self._like)

    @property
    def waits(self) -> bool:
        """Whether there is something that the others have not been told."""
        return bool(self._queue)

    def exchange(self, store: Any) -> Fault | None:
        """Tell the neighbours, listen to them."""
        if self._take():
            store.set(self._key(self.rank), self._note())
        if not self.count:
            return None
        if self._suspicion is None:
            for other in sorted(self._neighbours()):
                at = self._difference(other, self._read(store, other))
                if at is not None:
                    self._suspicion = (at, time.monotonic())
                    break
        return None if self._suspicion is None else self._vote(store, *self._suspicion)

    def leave(self, store: Any) -> Fault | None:
        """The last exchange: whoever leaves has had as many steps as the others.  None also if there is more to wait
        for; then `settled` is false."""
        fault = self.exchange(store)
        store.set(self._key(self.rank) + "/steps", str(self.count))
        for other in sorted(self._neighbours()):
            if fault is None and store.check([self._key(other) + "/steps"]):
                steps = int(store.get(self._key(other) + "/steps"))
                if steps < self.count:
                    return Fault((other,), f"left after {steps} steps, rank {self.rank} after {self.count}")
        return fault

    def settled(self, store: Any) -> bool:
        """Whether all neighbours have said all that there is to compare."""
        return self._suspicion is None and all(
            self._compared.get(other, 0) >= self.count or store.check([self._key(other) + "/steps"])
            for other in self._neighbours()
        )

    # -- notes ------------------------------------------------------------------------------------------

    def _key(self, rank: int) -> str:
        return f"agree/{self.name}/{rank}"

    def _take(self) -> bool:
        """What the main thread handed over, as far as its numbers are known."""
        before = self.count
        while self._queue:
            facts, like = self._queue[0]
            inputs = facts.inputs
            if not isinstance(inputs, int):
                if not inputs.ready():
                    break
                inputs = inputs.value()
            self._queue.popleft()
            self._entries += _ENTRY.pack(*(number & 0xFFFFFFFF for number in (*facts[:3], inputs)))
            self._like.append(like)
        spare = len(self._like) - _REMEMBERED
        if spare > 0:
            del self._entries[: spare * _ENTRY.size]
            for _ in range(spare):
                self._like.popleft()
            self._first += spare
        return self.count > before

    def _note(self) -> bytes:
        posted = min(POSTED, len(self._like))
        return _HEAD.pack(self.count - posted) + self._entries[-posted * _ENTRY.size :]

    def _read(self, store: Any, rank: int) -> bytes:
        key = self._key(rank)
        if rank not in self._there and not store.check([key]):
            return b""
        self._there.add(rank)
        found: bytes = store.get(key)
        return found

    def _neighbours(self) -> set[int]:
        found = _beside(self.rank, self.ranks)
        return found | _beside(self.rank, self._like[-1]) if self._like else found

    def _difference(self, other: int, note: bytes) -> int | None:
        """The first step, counted from 0, in which a neighbour did not do as this rank did."""
        if not note:
            return None
        first, last = _span(note)
        start, stop = max(first, self._first, self._compared.get(other, 0)), min(last, self.count)
        if start >= stop:
            return None
        self._compared[other] = stop
        ours, theirs = self._entries[(start - self._first) * _ENTRY.size :], note[_at(start, first) :]
        length = (stop - start) * _ENTRY.size
        if ours[:length] == theirs[:length]:
            return None
        for n in range(start, stop):
            at = (n - start) * _ENTRY.size
            size = _ENTRY.size if other in self._like[n - self._first] else _INPUTS
            if ours[at : at + size] != theirs[at : at + size]:
                return n
        return None

    def _vote(self, store: Any, at: int, since: float) -> Fault | None:
        """Who differs, once all have come so far."""
        entries: dict[int, tuple[int, ...]] = {}
        for rank in self.ranks:
            note = bytes(self._note()) if rank == self.rank else self._read(store, rank)
            if note:
                first, last = _span(note)
                if first <= at < last:
                    entries[rank] = _ENTRY.unpack_from(note, _at(at, first))
        if len(entries) < len(self.ranks) and time.monotonic() - since < _PATIENCE:
            return None
        self._suspicion = None
        return name_the_odd(entries, self._like[at - self._first])


def _beside(rank: int, ring: tuple[int, ...]) -> set[int]:
    at = ring.index(rank)
    return {ring[at - 1], ring[(at + 1) % len(ring)]} - {rank}


def _span(note: bytes) -> tuple[int, int]:
    first = _HEAD.unpack_from(note)[0]
    return first, first + (len(note) - _HEAD.size) // _ENTRY.size


def _at(n: int, first: int) -> int:
    return _HEAD.size + (n - first) * _ENTRY.size


def name_the_odd(entries: Mapping[int, Sequence[int]], like: Iterable[int]) -> Fault | None:
    """The minority, and in what it differs; the inputs are compared between ``like`` only.

    >>> str(name_the_odd({0: (7, 1, 5, 3), 1: (7, 2, 5, 3)}, [0, 1]))
    'rank 1 has other options (numbers in param_groups) than rank 0 in step 7'
    >>> str(name_the_odd({0: (7, 1, 5, 3), 1: (7, 1, 5, 4), 2: (7, 1, 5, 4), 3: (8, 1, 5, 9)}, [0, 1, 2]))
    'ranks 0, 3 have another step number (8) and other inputs than ranks 1, 2 in step 7'
    """
    odd: set[int] = set()
    fields = []
    usual_step = 0
    for n, text in enumerate(_OTHER):
        voters = [rank for rank in sorted(entries) if n < 3 or rank in like]
        counts = Counter(entries[rank][n] for rank in voters)
        if not counts:
            continue
        usual = max(counts, key=lambda value: counts[value])  # the first, of equals: that of the lowest rank
        different = [rank for rank in voters if entries[rank][n] != usual]
        if n == 0:
            usual_step = usual
            text += f" ({', '.join(str(entries[rank][0]) for rank in different)})"
        if different:
            odd.update(different)
            fields.append(text)
    rest = sorted(set(entries) - odd)
    if not odd:
        return None
    verb, others = ("has" if len(odd) == 1 else "have"), _few(rest) if rest else "each other"
    return Fault(tuple(sorted(odd)), f"{verb} {' and '.join(fields)} than {others} in step {usual_step}")


def _few(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}" if len(ranks) < 5 else "the others"


# -- fingerprints ---------------------------------------------------------------------------------------

_ROW = 1024
_weights: dict[torch.device, Any] = {}


def text_digest(text: str) -> int:
    """A number of 32 bits.

    >>> text_digest("lr=0.1") != text_digest("lr=0.2")
    True
    """
    return zlib.crc32(text.encode())


def inputs_digest(tensors: Iterable[Any]) -> int | Pending:
    """A number of 32 bits for the bytes, shapes and types of tensors; the same on every device.

    What is on the CPU is read now; of tensors on other devices the number comes later, and nothing waits for it.

    >>> inputs_digest([torch.arange(3)]) == inputs_digest([torch.arange(3)])
    True
    >>> inputs_digest([torch.tensor([1, 2])]) == inputs_digest([torch.tensor([2, 1])])
    False
    """
    said, totals = [], []
    for tensor in tensors:
        said.append(f"{tensor.dtype} {tuple(tensor.shape)}")
        whole = tensor.layout is torch.strided and not hasattr(tensor, "placements")  # a DTensor's shards are its own
        if tensor.device.type != "meta" and whole:
            total = _weighed(tensor.detach())
            totals.append(total if tensor.device.type == "cpu" else _Arriving(total))
    found = _Digest(text_digest(", ".join(said)), totals)
    return found if any(isinstance(total, _Arriving) for total in totals) else found.value()


class _Arriving:
    """A number on its way from a device."""

    def __init__(self, total: Any) -> None:
        self.host = torch.empty((), dtype=torch.int64, pin_memory=True)
        with torch.get_device_module(total.device).device(total.device):  # whose stream the event is put into
            self.host.copy_(total, non_blocking=True)
            self.event = torch.Event(total.device)
            self.event.record()

    def __int__(self) -> int:
        return int(self.host)


class _Digest:
    def __init__(self, number: int, totals: Sequence[Any]) -> None:
        self.number, self.totals = number, totals

    def ready(self) -> bool:
        return all(total.event.query() for total in self.totals if isinstance(total, _Arriving))

    def value(self) -> int:
        return zlib.crc32(b"".join(struct.pack("<q", int(total)) for total in self.totals), self.number)


def _weighed(tensor: Any) -> Any:
    """A sum over all bits in which every place counts otherwise: 0-d, 64 bits, wrapping.

    Large tensors are summed along rows and along columns first, so that the bytes are read and nothing is written.
    """
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    flat = tensor.contiguous().reshape(-1)
    if flat.data_ptr() % 8 or flat.storage_offset() * flat.element_size() % 8:
        flat = flat.clone()
    octets = flat.view(torch.uint8)
    rows = len(octets) // (8 * _ROW)
    rest = octets[rows * 8 * _ROW :].to(torch.int64)
    total = (rest * _weight(len(rest), flat.device)).sum()
    if rows:
        grid = octets[: rows * 8 * _ROW].view(torch.int64).view(rows, _ROW)
        along, across = grid.sum(1), grid.sum(0)
        total = total * 31 + (along * _weight(rows, flat.device)).sum()
        total = total * 31 + (across * _weight(_ROW, flat.device)).sum()
    return total


def _weight(count: int, device: torch.device) -> Any:
    """Odd numbers that look random, the same on every device."""
    have = _weights.get(device)
    if have is None or len(have) < count:
        x = torch.arange(1, max(count, 8 * _ROW) + 1, dtype=torch.int64)
        for factor, shift in ((-7046029254386353131, 29), (-4658895280553007687, 32), (-7723592293110705685, 31)):
            x = x * factor
            x = x ^ (x >> shift)
        have = _weights[device] = (x | 1).to(device)
    return have[:count]

"""Sample calls of PyTorch's operators: from its OpInfo database, or made up from the schema.

OpInfo is PyTorch's own test database, in a private module that needs ``expecttest``.  Without it, or for an operator
it does not know, calls are made up: shapes that operators of one, two or three tensors commonly take, every dim, both
values of every flag; those that run are kept.
"""

from __future__ import annotations

import inspect
import random
import re
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
import torch

from ...errors import DiscoverError, near_misses
from ..operator import Array, Operator, Sample, Slot
from .names import packet_of
from .ops import TORCH, aten_calls, call_sample, sample_of, tensors_in, torch_operator
from .private import opinfo_database
from .schema_samples import candidates

LARGE = 4096
"""Elements of one call beyond which it costs more time than it teaches."""

DRAWN = 300
"""Calls looked at per OpInfo entry: enough for all but a handful of entries."""

DTYPES = (torch.float64, torch.complex128, torch.int64, torch.bool, torch.float32, torch.int32, torch.uint8)
"""By preference: exact arithmetic first."""


CALLERS = {
    "convolution": ("nn.functional.conv1d", "nn.functional.conv2d", "nn.functional.conv_transpose1d"),
    "convolution_overrideable": ("nn.functional.conv2d",),
    "dropout": ("nn.functional.dropout",),
    "embedding_dense": ("nn.functional.embedding",),
    "scaled_dot_product_flash_attention_for_cpu": ("nn.functional.scaled_dot_product_attention",),
    "embedding_bag": ("nn.functional.embedding_bag",),
    "adaptive_avg_pool": ("nn.functional.adaptive_avg_pool2d",),
}
"""Entries that lead to an overload of another name."""


@cache
def _keyed() -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for opinfo in _database():
        found.setdefault(opinfo_key(opinfo), []).append(opinfo)
    return found


@cache
def _database() -> tuple[Any, ...]:
    """All OpInfo entries; empty where the database cannot be imported."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what torch's own test modules import is not ours to mend
            return tuple(opinfo_database())
    except ImportError:
        return ()


def opinfo_available() -> bool:
    """Whether the OpInfo database can be imported: it needs ``expecttest``."""
    return bool(_database())


def opinfo_key(opinfo: Any) -> str:
    """The name of an entry with its variant: ``div.floor_rounding``."""
    variant = opinfo.variant_test_name
    return f"{opinfo.name}.{variant}" if variant else str(opinfo.name)


def opinfo_names() -> list[str]:
    """All entries, in the database's order; a name stands once even where two entries share it."""
    return list(_keyed())


def opinfos_named(name: str) -> list[Any]:
    """The entries with this name and variant; else, for a name that has only variants, all of them."""
    found = _keyed().get(name) or [opinfo for opinfo in _database() if opinfo.name == name]
    if not found:
        if not _database():
            raise DiscoverError("PyTorch's OpInfo database cannot be imported", help="pip install expecttest")
        raise DiscoverError(f"OpInfo has no {name!r}", help=near_misses(name, opinfo_names()))
    return found


def opinfo_operator(opinfo: Any) -> Operator:
    """The function that an entry samples, under the name a user gives it."""
    opinfo = opinfos_named(opinfo)[0] if isinstance(opinfo, str) else opinfo
    name = opinfo.name if opinfo.name.startswith("torch.") else f"torch.{opinfo.name}"
    if opinfo.name.startswith("__"):
        name = f"torch.Tensor.{opinfo.name}"
    if opinfo.name.startswith("torch.ops."):
        return torch_operator(opinfo.name)
    operator = torch_operator(opinfo.op, name=name)
    if getattr(opinfo.op, "__name__", "") == "<lambda>" and "kwargs" in inspect.signature(opinfo.op).parameters:
        try:  # a wrapper that sets the seed and passes everything on: the names are the wrapped function's
            public = torch_operator(name)
        except DiscoverError:
            return operator
        if operator.arguments[:1] == () or operator.arguments[0].name == public.arguments[0].name:
            return replace(operator, arguments=public.arguments)
    return operator


@contextmanager
def _seeded() -> Iterator[None]:
    """The same samples every time, and nobody else's random numbers disturbed."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(2013)
        random.seed(2013)
        np.random.seed(2013)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


def samples_from_opinfo(opinfo: Any, dtype: Any = None, limit: int = 24) -> list[Sample]:
    """Up to `limit` calls of an OpInfo entry (or of all entries of a name), as different as they come.

    For the function that `opinfo_operator` gives.  Sparse, nested and other tensors that no array holds are left out.
    """
    if isinstance(opinfo, str):
        entries = opinfos_named(opinfo)
        share = -(-limit // len(entries))
        every = [s for entry in entries for s in samples_from_opinfo(entry, dtype, max(share, 4))]
        return _spread(opinfo_operator(entries[0]), every, limit)
    operator = opinfo_operator(opinfo)
    with _seeded():
        drawn = list(islice(_draw(opinfo, operator, dtype), DRAWN))
    small = [sample for sample in drawn if sum(t.size for t in sample.tensors) <= LARGE]
    return [sample for sample in _spread(operator, small or drawn, limit) if not _raises(operator, sample)]


def _draw(opinfo: Any, operator: Operator, dtype: Any) -> Iterator[Sample]:
    known = set(opinfo.dtypes)
    chosen = dtype if dtype is not None else next((d for d in DTYPES if d in known), None)
    if chosen is None or chosen not in known:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # samples of old operators warn that they are old
        made = _undecorated(opinfo.sample_inputs("cpu", chosen, requires_grad=False))
        for number in range(DRAWN):
            try:
                call = next(made)
            except StopIteration:
                return
            except (RuntimeError, TypeError, ValueError, AssertionError):  # an entry for another build of torch
                return
            args = (call.input, *call.args)
            if not _dense(args) or not _dense(tuple(call.kwargs.values())):
                continue
            try:
                sample = sample_of(operator, args, call.kwargs, label=f"OpInfo {opinfo_key(opinfo)} {number}")
            except DiscoverError:
                continue
            if sample.tensors:
                yield sample


def _undecorated(samples: Any) -> Iterator[Any]:
    """Torch's iterator seeds every device before each sample, which formats three stack traces: most of the time."""
    inner = getattr(samples, "child_iter", None)
    if isinstance(inner, enumerate):
        return (pair[1] for pair in inner)
    return iter(samples)


def _dense(values: object) -> bool:
    return not any(
        t.layout is not torch.strided or t.is_meta or t.is_nested or t.is_quantized for t in tensors_in(values)
    )


def _spread(operator: Operator, samples: Iterable[Sample], limit: int) -> list[Sample]:
    """Different calls first: by ranks, dtypes and the values of other arguments; those with few elements last."""
    unique = list({sample.key(operator): sample for sample in reversed(list(samples))}.values())[::-1]
    unique.sort(key=_dull)
    waiting = [(sample, _features(operator, sample)) for sample in unique]
    seen: set[object] = set()
    chosen: list[Sample] = []
    while waiting and len(chosen) < limit:
        best = max(range(len(waiting)), key=lambda i: (len(waiting[i][1] - seen), -i))
        sample, features = waiting.pop(best)
        seen |= features
        chosen.append(sample)
    return chosen


def _dull(sample: Sample) -> tuple[bool, bool]:
    sizes = [tensor.size for tensor in sample.tensors]
    return 0 in sizes, max(sizes, default=0) <= 1


def _features(operator: Operator, sample: Sample) -> set[object]:
    values = {(name, repr(value)) for name, value in sample.values(operator).items()}
    ranks = tuple(t.ndim for t in sample.tensors)
    # a tensor of one element shards like a constant, so such a call must not stand for its rank
    tiny = all(t.size <= 1 for t in sample.tensors)
    broadcast = len({t.shape for t in sample.tensors}) > 1
    return {("ranks", ranks, tiny, broadcast), ("dtypes", tuple(t.dtype.str for t in sample.tensors)), *values}


def samples_of(operator: Operator, limit: int = 24) -> list[Sample]:
    """Calls of any operator: OpInfo's where it knows the operator, else made up from the schema."""
    found: list[Sample] = []
    for opinfo in _entries_for(operator):
        found.extend(_samples_for(operator, opinfo, limit))
        if len(found) >= 3 * limit:
            break
    if not found and (sibling := functional_of(operator)) is not None:
        found = _with_room(operator, sibling, samples_of(sibling, limit))
    return _spread(operator, found, limit) if found else samples_from_schema(operator, limit)


def _entries_for(operator: Operator) -> list[Any]:
    """Entries of the same function first, then those that may call the overload."""
    plain = _plain(operator.short_name)
    spelled = operator.name.removeprefix("torch.").removeprefix("Tensor.")
    exact = [o for o in _database() if o.op is operator.call or spelled in (o.name, opinfo_key(o))]
    if exact and not operator.overload:
        return exact
    alike = [entry for name in CALLERS.get(plain, ()) for entry in _keyed().get(name, ())]
    alike += [o for o in _database() if plain in (_plain(o.name.rpartition(".")[2]), _plain(o.aten_name or ""))]
    return [*exact, *(o for o in alike if o not in exact)]


def _plain(name: str) -> str:
    """A name without the marks of its family: ``_log_softmax`` and ``special_log_softmax`` are ``log_softmax``."""
    bare = re.sub(r"(_backward|_backward_data|_copy|_)+$", "", name)
    return re.sub(r"^_*((linalg|special|fft|native|cudnn)_)?", "", bare)


def _samples_for(operator: Operator, opinfo: Any, limit: int) -> list[Sample]:
    """The entry's calls if it samples this very function, else the calls of this overload that they lead to."""
    drawn = samples_from_opinfo(opinfo, limit=limit)
    if not operator.overload:
        return [sample for sample in drawn if runs(operator, sample)]
    found: list[Sample] = []
    for function in filter(None, (opinfo.op, opinfo.inplace_variant if operator.mutates else None)):
        caller = torch_operator(function, name=operator.name)
        for sample in drawn:
            try:
                calls = aten_calls(caller, sample, backward="_backward" in operator.overload)
            except Exception:  # whatever the library raises: this call is no sample
                continue
            found.extend(replace(s, label=sample.label) for o, s in calls if o.overload == operator.overload)
        if found:
            break
    return [sample for sample in found if sample.tensors]


def _raises(operator: Operator, sample: Sample) -> bool:
    try:
        call_sample(operator, sample)
    except Exception:  # whatever the library raises: a view with hidden memory, a kernel for another device
        return True
    return False


def runs(operator: Operator, sample: Sample) -> bool:
    """Whether the call gives tensors."""
    try:
        return bool(tensors_in(call_sample(operator, sample)))
    except Exception:  # whatever the library raises: this call is no sample
        return False


def _with_room(operator: Operator, sibling: Operator, samples: list[Sample]) -> list[Sample]:
    """For an overload that writes to its arguments, calls of the one that does not, with room for the result."""
    found = []
    outs = [a for a in operator.arguments if a.name in operator.mutates and a.keyword_only]
    for sample in samples:
        if outs:
            try:
                results = [TORCH.array(t) for t in tensors_in(call_sample(sibling, sample))]
            except Exception:  # whatever the library raises: this call is no sample
                continue
            if len(results) != len(outs):
                continue
            first = len(sample.tensors)
            room = {a.name: Slot(first + i) for i, a in enumerate(outs)}
            tensors: tuple[Array, ...] = (*sample.tensors, *(np.zeros(r.shape, r.dtype) for r in results))
            roles = (*sample.roles, *("data" for _ in outs))
            sample = Sample(sample.args, {**sample.kwargs, **room}, tensors, roles, sample.label)  # type: ignore[arg-type]
        if runs(operator, sample):
            found.append(sample)
    return found


def functional_of(operator: Operator) -> Operator | None:
    """The overload that computes the same and writes to nothing: ``add.Tensor`` of ``add.out`` and ``add_.Tensor``."""
    if not operator.mutates or not operator.overload.startswith("aten."):
        return None
    base = operator.overload.split(".")[1].removesuffix("_")
    packet = packet_of(f"torch.{base}")
    if packet is None:
        return None
    taken = [a.name for a in operator.arguments if not (a.name in operator.mutates and a.keyword_only)]
    for name in packet.overloads():
        sibling = torch_operator(getattr(packet, name))
        if not sibling.mutates and [a.name for a in sibling.arguments] == taken:
            return sibling
    return None


def samples_from_schema(operator: Operator, limit: int = 24, tries: int = 1500) -> list[Sample]:
    """Calls made up from the types of the arguments; only those that run.

    >>> {sample.shapes[0] for sample in samples_from_schema(torch_operator("aten.relu.default"))} >= {(4,), (4, 6)}
    True
    """
    sibling = functional_of(operator)
    if sibling is not None:  # a wrong guess of the result's shape would be resized, with a warning on stderr
        return _spread(operator, _with_room(operator, sibling, samples_from_schema(sibling, 2 * limit, tries)), limit)
    found: list[Sample] = []
    kept: set[object] = set()
    for sample in islice(candidates(operator), tries):
        key = sample.key(operator)
        if key not in kept and runs(operator, sample):
            kept.add(key)
            found.append(sample)
            if len(found) >= 6 * limit:
                break
    return _spread(operator, found, limit)


def calls_by_overload(limit: int = 8, per_entry: int = 12, backward: bool = False) -> dict[str, list[Sample]]:
    """Every ATen overload that some OpInfo call leads to, with up to `limit` of the calls.  Takes half a minute."""
    found: dict[str, list[Sample]] = {}
    operators: dict[str, Operator] = {}
    for opinfo in _database():
        caller = opinfo_operator(opinfo)
        for sample in samples_from_opinfo(opinfo, limit=per_entry):
            try:
                calls = aten_calls(caller, sample, backward=backward)
            except Exception:  # whatever the library raises: this call is no sample
                continue
            for operator, call in calls:
                if call.tensors and sum(t.size for t in call.tensors) <= LARGE:
                    operators[operator.overload] = operator
                    found.setdefault(operator.overload, []).append(replace(call, label=sample.label))
    return {name: _spread(operators[name], samples, limit) for name, samples in found.items()}

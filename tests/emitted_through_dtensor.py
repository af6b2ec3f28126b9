"""Registered sharding rules run *through* DTensor: fresh calls, every rank in this process, every number compared.

It takes an operator overload whose strategy an emitted file has registered, and calls to start from.  Fresh calls, ways
to cut tensors and the comparison are those of `brute_force`, which imports nothing that discovery is made of.  Tensors
lie as the rows of the strategy say, and at random; on one mesh axis of 2 to 4 ranks, and on 2x2.
"""

from __future__ import annotations

import itertools
import logging
import random
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._local_tensor import LocalTensor, LocalTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from brute_force import POSITIONS, Call, Place, Subject, chunk_sizes, close, cut, fresh

RANKS = 4
MESHES = ((2,), (2,), (3,), (4,), (2, 2))
KINDS = ("sum", "avg", "max", "min", "prod")
ROWS, OTHERS = 6, 3
"""Rows of the strategy, and other ways, that are run on one call and mesh."""

Way = tuple[tuple[Place, ...], ...]
"""How each tensor lies, on each mesh axis."""


@dataclass
class Tried:
    """What running an operator through DTensor showed."""

    calls: int = 0
    rows: int = 0
    others: int = 0
    wrong: list[str] = field(default_factory=list)
    talked: list[str] = field(default_factory=list)
    """Rows that communicated, or whose results lay as none of the rows for these inputs says."""
    raised: Counter[str] = field(default_factory=Counter)
    """Errors where tensors lay as a row says and no shard was empty."""
    refused: int = 0
    """Errors elsewhere: the kernel refuses empty shards, or DTensor cannot move tensors so."""

    def __str__(self) -> str:
        bad = [*(f"WRONG {w}" for w in self.wrong), *(f"TALKED {t}" for t in self.talked), *map(str, self.raised)]
        head = f"{self.calls} calls, {self.rows} rows, {self.others} other ways, {self.refused} refused"
        return "\n    ".join([head, *bad[:8]])


def through_dtensor(
    overload: Any, subject: Subject, bases: Sequence[Call], seed: str, calls: int = 30, draws: int = 400
) -> Tried:
    """Run fresh calls of a registered overload through DTensor."""
    rng = random.Random(f"{seed} {overload}")
    tried = Tried()
    with _ranks(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(draws):
            if tried.calls >= calls or not bases:
                break
            try:
                call = fresh(subject, bases[number % len(bases)], rng)
            except RuntimeError:  # numbers that cannot be drawn so: complex ones in order
                continue
            if call is not None and call.tensors() and _in_order(call):
                tried.calls += 1
                _try_call(tried, overload, subject, call, rng)
    return tried


def _try_call(tried: Tried, overload: Any, subject: Subject, call: Call, rng: random.Random) -> None:
    want = subject(call)
    for shape in rng.sample(MESHES, 2):
        rows = _rows(overload, subject, call, want)
        rng.shuffle(rows)
        for _ in range(min(len(rows), ROWS)):
            chosen = rng.sample(rows, len(shape)) if len(rows) >= len(shape) else [rows[0]] * len(shape)
            if len(shape) > 1 and overload in DTensor._op_dispatcher._custom_op_handlers:
                continue
            way = tuple(zip(*(inputs for inputs, _ in chosen)))
            outputs = [tuple(zip(*outs)) for outs in itertools.product(*(outs for _, outs in chosen))]
            outputs = [out for out in outputs if all(len({w for kind, w in p if kind == "P"}) < 2 for p in out)]
            if outputs and _can_lie(call, way, want):
                tried.rows += 1
                _try(tried, overload, subject, call, want, way, shape, rng, outputs)
        # What DTensor gives to a function of its own asks no strategy where a row does not fit.
        for _ in range(0 if overload in DTensor._op_dispatcher._custom_op_handlers else OTHERS):
            way = tuple(tuple(_any_place(t, rng) for _ in shape) for _, t in call.tensors())
            if _can_lie(call, way, want):
                tried.others += 1
                _try(tried, overload, subject, call, want, way, shape, rng)


def _try(
    tried: Tried, overload: Any, subject: Subject, call: Call, want: Sequence[torch.Tensor], way: Way,
    mesh_shape: tuple[int, ...], rng: random.Random, outputs: Sequence[Way] | None = None,
) -> None:  # fmt: skip
    """One way that the tensors lie; `outputs`: how rows say that the results then lie, of which DTensor takes one."""
    told = f"{_text(way)} of {_called(call)} on {mesh_shape}"
    empty, small = _empty(call, way, mesh_shape)
    try:
        found, lies, scale, communication = _run(subject, call, way, mesh_shape, rng)
    except Exception as error:  # whatever torch raises
        text = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:110]}"
        if outputs is None or empty or small:
            tried.refused += 1
        else:
            tried.raised[f"RAISED {text}, {told}"] += 1
        return
    if len(found) != len(want):
        tried.wrong.append(f"{len(found)} results, not {len(want)}: {told}")
        return
    for number, (ranks, true) in enumerate(zip(found, want)):
        if not all(close(seen, true, scale) for seen in ranks):
            tried.wrong.append(f"result {number}, {told} -> {lies}")
            return
    if outputs is not None and not small and (communication or lies not in map(_torch_way, outputs)):
        tried.talked.append(f"{communication} collectives, {told} -> {lies}, not {' or '.join(map(_text, outputs))}")


def _run(
    subject: Subject, call: Call, way: Way, mesh_shape: tuple[int, ...], rng: random.Random
) -> tuple[list[list[torch.Tensor]], list[tuple[Any, ...]], float, int]:
    """What each rank sees of each result, how results lie, the largest number on a rank, and the collectives."""
    torch.distributed.tensor.debug._clear_sharding_prop_cache()
    world = 1
    for size in mesh_shape:
        world *= size
    mesh = DeviceMesh("cpu", torch.arange(world).reshape(mesh_shape))
    split = []  # before the mode begins: it would draw random numbers of its own for each rank
    for (_, whole), places in zip(call.tensors(), way):
        held = [whole]
        for place, size in zip(places, mesh_shape):
            held = [part for outer in held for part in cut(outer, place, size, rng)]
        split.append(held)
    with LocalTensorMode(world):
        tensors = []
        for (_, whole), places, held in zip(call.tensors(), way, split):
            local = LocalTensor({rank: part.clone() for rank, part in enumerate(held)})
            placements = [_placement(place) for place in places]
            tensors.append(
                DTensor.from_local(local, mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride())
            )
        counting = CommDebugMode()
        with counting:
            results = _untouched(subject, call.having(tensors))
        found, lies, local = [], [], []
        for result in results:
            lies.append(tuple(result.placements) if isinstance(result, DTensor) else ())
            if isinstance(result, DTensor) and any(p.is_partial() for p in result.placements):
                local += _seen(result._local_tensor)
            found.append(_seen(result.full_tensor() if isinstance(result, DTensor) else result))
    wide = [part.to(torch.complex128 if part.dtype.is_complex else torch.float64) for part in local]
    sizes = [part.abs() for part in wide if part.numel()]
    scale = max((float(s[torch.isfinite(s)].max()) for s in sizes if torch.isfinite(s).any()), default=0.0)
    return found, lies, scale, counting.get_total_counts()


def _untouched(subject: Subject, call: Call) -> list[torch.Tensor]:
    """The call on these very tensors: `Subject` would copy those that it writes to."""
    if not subject.mutates:
        return subject(call)
    written = [v for n, v in call.arguments.items() if n in subject.mutates and isinstance(v, torch.Tensor)]
    Subject(subject.function, subject.positional, subject.keyword)(call)
    return written


def _seen(tensor: torch.Tensor) -> list[torch.Tensor]:
    return list(tensor._local_tensors.values()) if isinstance(tensor, LocalTensor) else [tensor]


def _rows(
    overload: Any, subject: Subject, call: Call, want: Sequence[torch.Tensor]
) -> list[tuple[tuple[Place, ...], list[tuple[Place, ...]]]]:
    """What the registered strategy answers for this call, as DTensor asks it; all replicated is left out.

    Calls name their tensors in the schema's order, as rows do.
    """
    propagator = DTensor._op_dispatcher.sharding_propagator
    info = propagator.op_single_dim_strategy_funcs[overload]
    strategy, heard = info.func, []

    def listening(*asked: Any) -> Any:
        heard.append(strategy(*asked))
        return [list(row) for row in heard[-1]]

    info.func = listening
    try:
        _run(subject, call, tuple((("R", None),) for _ in call.tensors()), (2,), random.Random(0))
    except Exception:  # a call that DTensor does not run at all, replicated or not
        return []
    finally:
        info.func = strategy
    count = len(call.tensors())
    returned = sum("Tensor" in str(r.type) for r in overload._schema.returns)
    found: dict[tuple[Place, ...], list[tuple[Place, ...]]] = {}
    for row in heard[0] if heard else ():
        places = [_place(item) for item in row]
        inputs, outputs = tuple(places[returned:]), tuple(places[:returned])
        if len(inputs) != count:
            raise AssertionError(f"a row of {len(row)} for {returned} results and {count} tensors of {overload}")
        if subject.mutates:
            names = [name for name, _ in call.tensors()]
            outputs = tuple(inputs[names.index(name)] for name in subject.mutates if name in names)
        if any(kind != "R" for kind, _ in inputs) and len(outputs) == len(want):
            found.setdefault(inputs, []).append(outputs)
    return list(found.items())


def _place(item: Any) -> Place:
    if isinstance(item, Partial):
        return ("P", {"product": "prod"}.get(item.reduce_op, item.reduce_op))
    return ("R", None) if isinstance(item, Replicate) else ("S", item.dim)


def _placement(place: Place) -> Any:
    kind, what = place
    if kind == "P":
        return Partial("product" if what == "prod" else what)
    return Replicate() if kind == "R" else Shard(what)


def _torch_way(way: Way) -> list[tuple[Any, ...]]:
    return [tuple(_placement(place) for place in places) for places in way]


def _in_order(call: Call) -> bool:
    """Whether what must be sorted is: whole numbers are drawn without regard to it."""
    ordered = [t for name, t in call.tensors() if name in ("boundaries", "sorted_sequence") and t.ndim]
    return all(bool((t.diff() >= 0).all()) for t in ordered)


def _any_place(t: torch.Tensor, rng: random.Random) -> Place:
    choices: list[Place] = [("R", None), *(("S", d) for d in range(t.ndim) for _ in range(2))]
    choices += [("P", kind) for kind in KINDS]
    return rng.choice(choices)


def _can_lie(call: Call, way: Way, want: Sequence[torch.Tensor]) -> bool:
    """Whether tensors of these dtypes can be pending so; pending on two axes in two ways has no plain meaning."""
    tensors = call.tensors()
    beside = any(t.dtype.is_floating_point or t.dtype.is_complex for _, t in tensors)
    finite = all(bool(torch.isfinite(w).all()) for w in want)  # a pending sum times infinity is not promised
    for (name, t), places in zip(tensors, way):
        kinds = {what for kind, what in places if kind == "P"}
        if len(kinds) > 1 or (kinds and not finite):
            return False
        for what in kinds:
            whole = not (t.dtype.is_floating_point or t.dtype.is_complex)
            if t.dtype == torch.bool or (whole and (beside or name in POSITIONS or what == "avg")):
                return False
            if t.dtype.is_complex and what in ("max", "min", "prod"):  # no collective multiplies complex numbers
                return False
            if not bool(torch.isfinite(t).all()):
                return False
    return True


def _empty(call: Call, way: Way, mesh_shape: tuple[int, ...]) -> tuple[bool, bool]:
    """Whether some shard has no elements; and whether some dim is smaller than what it is cut into."""
    empty = small = False
    for (_, t), places in zip(call.tensors(), way):
        sizes = {d: [t.shape[d]] for d in range(t.ndim)}
        parts = dict.fromkeys(sizes, 1)
        for (kind, what), world in zip(places, mesh_shape):
            if kind == "S":
                sizes[what] = [part for size in sizes[what] for part in chunk_sizes(size, world)]
                parts[what] *= world
        empty = empty or any(0 in held for held in sizes.values())
        small = small or any(t.shape[d] < count for d, count in parts.items() if count > 1)
    return empty, small


def _text(way: Way) -> str:
    def one(place: Place) -> str:
        return place[0] if place[0] == "R" else f"{place[0]}({place[1]})"

    return ", ".join("".join(map(one, places)) for places in way)


def _called(call: Call) -> str:
    return ", ".join(
        f"{n}={str(v.dtype).removeprefix('torch.')}{list(v.shape)}" if isinstance(v, torch.Tensor) else
        f"{n}={[list(x.shape) if isinstance(x, torch.Tensor) else x for x in v]}" if isinstance(v, (list, tuple)) else
        f"{n}={v!r}"
        for n, v in call.arguments.items()
    )  # fmt: skip


@contextmanager
def _ranks() -> Iterator[None]:
    silenced = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    started = not dist.is_initialized()
    if started:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    try:
        yield
    finally:
        logging.disable(silenced)
        if started:
            dist.destroy_process_group()


def bases_of(statement: Any) -> tuple[Subject, list[Call]]:
    """The operator of a statement, and the calls that it rests on."""
    operator = statement.operator
    schema = operator.call._schema
    subject = Subject(
        operator.call,
        [a.name for a in schema.arguments if not a.kwarg_only],
        [a.name for a in schema.arguments if a.kwarg_only],
        list(operator.mutates),
    )
    names = [a.name for a in schema.arguments]
    found = []
    for sample in statement.samples:
        args, kwargs = sample.fill([torch.from_numpy(array.copy()) for array in sample.tensors])
        given = {**dict(zip(names, args)), **kwargs}
        found.append(Call({name: given[name] for name in names if name in given}))
    return subject, found

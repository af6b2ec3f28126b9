"""`TorchEngine`: this process as one device of a mesh, over torch.distributed (gloo, NCCL).

Launch with ``torchrun``; every process makes the same engine and does the same things in the same order:

    engine = TorchEngine("dp=2, tp=2")
    compiled = engine.compile(program)
    outputs, executed = compiled.run([engine.scatter(x, x_spec), ...])

The collectives take any tensor: 0-d, not contiguous, of any element type, of another size on each rank along dim 0,
or empty.  A group is None (all of the mesh), names of mesh axes, or a process group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist

from ...errors import GraphError, MeshError, SpecError
from ...frontends.torch import dtype_name, tensor_type, torch_dtype
from ...frontends.torch.arrays import TorchArrays
from ...frontends.torch.steps.updates import STATE
from ...ir.graph import TensorType
from ...ir.program import Instr, Local, Program
from ...lower.lowering import LOCAL_STEPS
from ...spec.chunks import nested_chunk
from ...spec.mesh import DeviceMesh
from ...spec.pending import check_pending
from ...spec.resharding.cheapest import reshard
from ...spec.sharding import ShardingSpec
from ..engine import COMPILE, LOAD, EngineBase, Executed
from ..lifetimes import take_over
from ..virtual import held_part
from . import exchange
from .compiling import Forms
from .emission import emit
from .groups import Group, NamedGroups, ProcessGroups, ranks_along
from .held import Held
from .private import below_autograd
from .ranks.agreement import Facts, inputs_digest, text_digest
from .ranks.joining import has_processes, join_others, no_processes, own_device, position_of
from .ranks.loading import check_equal, load_from_rank0
from .ranks.safety import Guard, share_text
from .ranks.waiting import limits_of
from .wire import moved_as, reduced_as

_MOST_DIMS = 16
_WATCHED = 3600.0  # seconds that a collective may wait where the watch decides


def _run_op(op: Any, *args: Any, **kwargs: Any) -> Any:
    return op(*args, **kwargs)


_run_alone = exchange.stand_in(_run_op)


def _now(peers: exchange.Peers) -> Any:
    return _run_op if peers.count > 1 else _run_alone


def _at_once(message: exchange.Message) -> Any:
    return exchange.start(_now(message.peers), [message])[0]()


class TorchEngine(EngineBase):
    """One rank of a mesh of processes.

    ``mesh`` is anything that says a mesh; of a PyTorch `DeviceMesh` the process groups are used too.  Without one it
    is all processes in a row.  ``timeout`` (seconds; also ``SHARDWRIGHT_TIMEOUT``) is how long a step may take, 60
    if not said, and how long others may stay away in user code, 600 if not said.  ``check=False`` leaves out the
    comparison of ranks and the watch over them, and takes PyTorch's fake process group, too: to study one rank.
    """

    name = "torch"

    def __init__(
        self,
        mesh: Any = None,
        *,
        device: Any = None,
        timeout: float | None = None,
        allow_smaller_mesh: bool = False,
        check: bool = True,
    ) -> None:
        self.limits = limits = limits_of(timeout)
        join_others(limits)
        studied = not check and mesh is not None and DeviceMesh.of(mesh).size > 1
        self.has_others = has_processes(fake=studied)
        world = dist.get_world_size() if self.has_others else 1
        self.rank = dist.get_rank() if self.has_others else 0
        self.mesh = DeviceMesh.of({"rank": world} if mesh is None else mesh)
        self.position = position_of(self.mesh, self.rank, world, allow_smaller_mesh)
        self.device = torch.device(device) if device is not None else own_device()
        torch_mesh = mesh if hasattr(mesh, "get_group") else None
        self.groups: Any = NamedGroups()
        self.guard: Guard | None = None
        if world > 1:
            # The watch ends what waits in vain, and knows who is busy; without it the backend has to.
            patience = max(limits.user, _WATCHED) if check else limits.user
            on_host = self.device.type == "cpu"
            self.groups = ProcessGroups(self.rank, timedelta(seconds=max(patience, 1)), torch_mesh, on_host)
            if check:
                self.guard = Guard(self.mesh, self.rank, limits, self.device.type != "cpu")
        self._assembling: dict[Any, CompiledRank] = {}
        self.measuring = False
        """Whether runs count the bytes that they hold, which takes time on a CPU."""
        self.counts: Counter[str] = Counter()

    def supports_distributed(self) -> bool:
        return bool(dist.is_available())

    # -- collectives by name ----------------------------------------------------------------------------

    def all_reduce_sum(self, tensor: Any, group: Any = None) -> Any:
        return self.all_reduce(tensor, "sum", group)

    def all_reduce(self, tensor: Any, reduction: str = "sum", group: Any = None) -> Any:
        """Combined over the group; NaN is kept in max and min."""
        tensor, peers = tensor.detach(), self._peers(group)
        wire = reduced_as(dtype_name(tensor.dtype), reduction, peers.count)
        return _at_once(exchange.all_reduce(_now(peers), tensor, wire, peers))

    def all_gather(self, tensor: Any, group: Any = None) -> Any:
        """Joined along dim 0, where sizes may differ; 0-d tensors become a vector."""
        tensor, peers = tensor.detach(), self._peers(group)
        tensor = tensor.reshape(1) if tensor.dim() == 0 else tensor
        sizes = self._sizes(tensor, peers)
        wire = moved_as(dtype_name(tensor.dtype))
        return _at_once(exchange.all_gather(_now(peers), tensor, tuple(tensor.shape), 0, sizes, wire, peers))

    def reduce_scatter(self, tensor: Any, group: Any = None) -> Any:
        """Summed over the group; every member keeps its chunk of dim 0, the last ones may be smaller or empty."""
        tensor, peers = tensor.detach(), self._peers(group)
        cuts = _chunks(tensor, peers.count, "reduce_scatter")
        wire = reduced_as(dtype_name(tensor.dtype), "sum", peers.count)
        return _at_once(exchange.reduce_scatter(_now(peers), tensor, tuple(tensor.shape), 0, cuts, wire, peers))

    def all_to_all(self, tensor: Any, group: Any = None) -> Any:
        """Chunk i of dim 0 goes to member i; what arrives is joined along dim 0."""
        tensor, peers = tensor.detach(), self._peers(group)
        _chunks(tensor, peers.count, "all_to_all")
        sizes = self._sizes(tensor, peers)
        cuts = [[nested_chunk(size, [peers.count], [i]) for i in range(peers.count)] for size in sizes]
        widths = [[stop - start for start, stop in member] for member in cuts]
        wire = moved_as(dtype_name(tensor.dtype))
        return exchange.regroup(_now(peers), tensor, widths, wire, peers)()

    def permute(self, tensor: Any, pairs: Sequence[tuple[int, int]], group: Any = None) -> Any:
        """For each pair (source, target) of members the source's tensor, of the same shape; zeros for who gets none."""
        tensor, peers = tensor.detach(), self._peers(group)
        _check_pairs(pairs, peers.count)
        sources = {target: source for source, target in pairs}
        spare = [member for member in range(peers.count) if member not in set(sources.values())]
        # Everybody sends to one: who is not in a pair gets what nobody asked for, and drops it.
        full = [sources[member] if member in sources else spare.pop(0) for member in range(peers.count)]
        shape, wire = tuple(tensor.shape), moved_as(dtype_name(tensor.dtype))
        got = exchange.permute(_now(peers), tensor, shape, shape, shape, full, wire, peers)()
        return got if peers.me in sources else torch.zeros_like(tensor)

    def broadcast(self, tensor: Any, source: int = 0, group: Any = None) -> Any:
        """The tensor of one member, everywhere; others give one of the same shape and type."""
        tensor, peers = tensor.detach(), self._peers(group)
        if not 0 <= source < peers.count:
            raise MeshError(f"no member {source} in a group of {peers.count}", help="count members of the group from 0")
        return exchange.broadcast(_now(peers), tensor, source, moved_as(dtype_name(tensor.dtype)), peers)()

    def _peers(self, group: Any) -> exchange.Peers:
        if group is None:
            ranks = self.mesh.device_ids
        elif isinstance(group, str):
            ranks = ranks_along(self.mesh, self.position, [group])
        elif isinstance(group, Sequence):
            ranks = ranks_along(self.mesh, self.position, group)
        else:
            known = Group(group.group_name, tuple(dist.get_process_group_ranks(group)), self.device.type == "cpu")
            return exchange.Peers(known, known.ranks, self.rank)
        if len(ranks) > 1 and not self.has_others:
            raise no_processes(len(ranks))
        return exchange.Peers(self.groups.of(ranks), ranks, self.rank)

    def _sizes(self, tensor: Any, peers: exchange.Peers) -> list[int]:
        """What every member has along dim 0; one small collective, which also tells whether they fit together."""
        if tensor.dim() > _MOST_DIMS:
            raise SpecError(f"a tensor of {tensor.dim()} dims", help=f"{_MOST_DIMS} at most can be gathered")
        facts = [tensor.dim(), _DTYPE_CODES.index(dtype_name(tensor.dtype)), *tensor.shape]
        row = torch.tensor(facts + [0] * (_MOST_DIMS + 2 - len(facts)), dtype=torch.int64, device=tensor.device)
        shape = (len(row),)
        gather = exchange.all_gather(_now(peers), row, shape, 0, [len(row)] * peers.count, moved_as("i64"), peers)
        rows = _at_once(gather).reshape(peers.count, -1).tolist()
        _check_alike(rows, peers)
        return [int(row[2]) for row in rows]

    # -- other ranks ------------------------------------------------------------------------------------

    def agree(self, facts: Facts, like: Iterable[int] | None = None) -> None:
        """Tell the others what this rank trains with in the step it is about to run: `Guard.agree`."""
        if self.guard is not None:
            self.guard.agree(facts, like)

    def agree_on(
        self, step: int, options: str, contract: str, inputs: Iterable[Any], like: Iterable[int] | None = None
    ) -> None:
        """`agree`, of what is said in words, and of tensors that the ranks ``like`` this one have, too."""
        if self.guard is not None:
            digests = text_digest(options), text_digest(contract), inputs_digest(inputs)
            self.guard.agree(Facts(step % 2**32, *digests), like)

    def digest(self, tensors: Iterable[Any]) -> int:
        """A number of 32 bits that tells batches apart."""
        found = inputs_digest(tensors)
        return found if isinstance(found, int) else found.value()

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Work of this rank that may last, such as saving: others wait for it."""
        return nullcontext() if self.guard is None else self.guard.phase(name)

    def compare_launch(self, node: int | None) -> None:
        """Say, once, if machines do not have as many ranks as the planner took them to have."""
        if self.guard is not None:
            self.guard.compare_launch(node)

    def waiting(self, what: str) -> AbstractContextManager[None]:
        """A step that takes all ranks."""
        return nullcontext() if self.guard is None else self.guard.step(what)

    # -- programs ---------------------------------------------------------------------------------------

    def compile(self, program: Program) -> CompiledRank:
        """This rank's part of a Program; ranks compare what they are about to run."""
        self.counts[COMPILE] += 1
        return CompiledRank(program, self)

    def scatter(self, whole: Any, spec: Any) -> Any:
        """This rank's shard of a tensor that every rank has: a view of it, on the engine's device.

        Of a pending sharding: its part, or what changes nothing beside the rank that holds it.
        """
        return self.part(whole, spec, self.position).to(self.device)

    def number(self, whole: Any, spec: Any) -> Any:
        """An option of an optimizer: it stays on the host, where kernels take it from; ops bring it to the device."""
        return whole.detach()

    def part(self, whole: Any, spec: Any, position: int) -> Any:
        """The shard of a position, where the whole tensor is."""
        spec = self._spec(spec, whole.dim())
        part = whole.detach() if spec.is_replicated else whole.detach()[spec.local_slices(whole.shape, position)]
        check_pending(spec, dtype_name(whole.dtype))
        return held_part(part, spec, position, TorchArrays())

    def load(self, wholes: Sequence[Any], specs: Sequence[ShardingSpec]) -> list[Any]:
        """This rank's shards, each in memory of its own: a view would keep the whole."""
        self.counts[LOAD] += 1
        with self.phase("loading"):
            return [self.scatter(whole, spec).clone() for whole, spec in zip(wholes, specs, strict=True)]

    def load_from_rank0(
        self, wholes: Sequence[Any], specs: Sequence[ShardingSpec], names: Sequence[str] | None = None
    ) -> list[Any]:
        """The same of what rank 0 has, sent shard by shard; tensors of other ranks may be on the meta device."""
        self.counts[LOAD] += 1
        return load_from_rank0(self, wholes, specs, names)

    def check_equal(self, wholes: Sequence[Any], names: Sequence[str] | None = None) -> None:
        """Raise, on every rank, if a tensor is not the same, bit by bit, on all ranks: the first one is named."""
        check_equal(self, wholes, names)

    def assemble(self, local: Any, spec: Any, shape: Sequence[int]) -> Any:
        """The whole tensor, on every rank, from what each of them holds."""
        spec = self._spec(spec, len(shape)).closed()
        if spec.is_replicated:
            return local
        type = TensorType(tuple(shape), dtype_name(local.dtype))
        check_pending(spec, type.dtype)
        key = (spec, type)
        if key not in self._assembling:
            self._assembling[key] = CompiledRank(_gathering(spec, type), self, compare=False)
        return self._assembling[key]([local])[0]

    def move(self, local: Any, spec: ShardingSpec, to: ShardingSpec, shape: Sequence[int]) -> Any:
        """This rank's shard in another sharding."""
        local, spec, to = local.detach().to(self.device), spec.closed(), to.closed()
        if spec == to:
            return local
        type = TensorType(tuple(shape), dtype_name(local.dtype))
        key = (spec, type, to)
        if key not in self._assembling:
            self._assembling[key] = CompiledRank(_moving(spec, to, type), self, compare=False)
        return self._assembling[key]([local])[0]

    def exchange(self, numbers: Sequence[int]) -> list[list[int]]:
        """A few whole numbers of every device of the mesh, in its order; on the host, whatever the device."""
        row = torch.tensor(list(numbers), dtype=torch.int64)
        if not has_processes() or self.mesh.size == 1:
            return [row.tolist()]
        group = self.groups.process_group(self.mesh.device_ids)
        found = [torch.empty_like(row) for _ in self.mesh.device_ids]
        dist.all_gather(found, row, group=group)
        order = dist.get_process_group_ranks(group)
        return [found[order.index(rank)].tolist() for rank in self.mesh.device_ids]

    def _spec(self, spec: Any, rank: int) -> ShardingSpec:
        return ShardingSpec.of(spec, self.mesh, rank)


class CompiledRank:
    """One rank's part of a Program, ready to run."""

    def __init__(self, program: Program, engine: TorchEngine, compare: bool = True) -> None:
        if program.mesh != engine.mesh:
            raise MeshError(
                "the program is for another mesh",
                rows=[("program", str(program.mesh)), ("engine", str(engine.mesh))],
            )
        if program.mesh.size > 1 and not engine.has_others:
            raise no_processes(program.mesh.size)
        self.program = program
        self.engine = engine
        if engine.guard is not None and compare:
            engine.guard.compare_programs(program)
        with engine.phase("compiling"):
            taking = self._emitted(True)
        self.executed = Executed(list(taking.meta["collectives"]), starts=taking.meta["starts"])
        values = [program.values[value] for value in program.inputs]
        self.names = [local.name for local in values]
        self.types = [TensorType(local.local_shape(engine.position), local.type.dtype) for local in values]
        self._expected = [(torch.Size(type.shape), torch_dtype(type.dtype)) for type in self.types]
        self.forms = Forms(self, taking.forward)
        self._first = compare

    def _emitted(self, donated: bool) -> Any:
        engine = self.engine
        return emit(self.program, engine.position, engine.groups, engine.device, taking=True, donated=donated)

    @cached_property
    def _keeping(self) -> Any:
        """The same for a caller who keeps the inputs, which are not written over then."""
        return self._emitted(False).forward if _writes(self.program) else self.forms.emitted

    @cached_property
    def module(self) -> Any:
        """The same as a module that is called with the inputs, one by one; ``torch.compile`` takes it."""
        return emit(self.program, self.engine.position, self.engine.groups, self.engine.device)

    @property
    def code(self) -> str:
        """What this rank was told to do, as text: equal on ranks that do the same on parts of the same sizes."""
        return str(self.module.code)

    def choose_form(self, wish: str, limit: int = 0) -> None:
        """How calls that donate their inputs run: `compiling`; ``limit`` is how many bytes a device may hold."""
        self.forms.choose(wish, limit)

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        return self.run(inputs)[0]

    def run(self, inputs: Sequence[Any], donate: bool = False) -> tuple[list[Any], Executed]:
        """This rank's shards of the inputs -> of the outputs, and what was done.

        With ``donate`` the list is taken over, and empty when the program starts: where the caller holds them nowhere
        else, inputs are gone after their last use.  Inputs that do not fit are left where they are.
        """
        guard = self.engine.guard
        if donate and not self.forms.settled:
            self.forms.prepare(inputs, not self.wrong_inputs(inputs))
        if guard is None:
            wrong = self.wrong_inputs(inputs)
            if wrong:
                raise _misfit(self.program, wrong)
            return self._run(inputs, donate), self.executed
        with guard.step(self.program.name):
            wrong = self.wrong_inputs(inputs)
            if self._first:
                guard.compare_inputs(self.program, wrong)
                self._first = bool(wrong)
            if not wrong:
                return self._run(inputs, donate), self.executed
            everywhere = guard.refused_everywhere()
        error = _misfit(self.program, wrong)
        if not everywhere:
            guard.fail(error)
        raise error

    def _run(self, inputs: Sequence[Any], donate: bool) -> list[Any]:
        with torch.no_grad(), below_autograd(), self._measured(inputs):
            return list(self.forms(take_over(inputs)) if donate else self._keeping(list(inputs)))

    @contextmanager
    def _measured(self, inputs: Sequence[Any]) -> Iterator[None]:
        """Where the engine measures: the most bytes that this rank held, as tensors or as its GPU counts."""
        device = self.engine.device
        if not self.engine.measuring:
            yield
        elif device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            yield
            torch.cuda.synchronize(device)
            self.executed.peak_bytes = torch.cuda.max_memory_allocated(device)
        else:
            with Held(inputs) as held:
                yield
            self.executed.peak_bytes = held.peak

    def wrong_inputs(self, inputs: Sequence[Any]) -> list[str]:
        """What is not as the program says."""
        if len(inputs) != len(self._expected):
            return [f"{len(inputs)} inputs, not {len(self._expected)}"]
        found = []
        for i, (given, (shape, dtype)) in enumerate(zip(inputs, self._expected)):
            if given.dtype is not dtype or given.shape != shape:
                found.append(f"{self.names[i]} is {tensor_type(given)}, not {self.types[i]}")
        return found


def _writes(program: Program) -> bool:
    """Whether some op writes over its operands."""
    return any(instr.op in STATE for instr in program.instrs)


def _misfit(program: Program, wrong: Sequence[str]) -> GraphError:
    return GraphError(
        f"the inputs are not those of {program.name}",
        rows=[("input", text) for text in wrong[:5]],
        help="give this rank's shards: engine.scatter(whole, spec)",
    )


def _gathering(spec: ShardingSpec, type: TensorType) -> Program:
    """A program that makes a tensor whole."""
    return _moving(spec, ShardingSpec.replicate(spec.mesh, spec.rank), type)


def _moving(spec: ShardingSpec, to: ShardingSpec, type: TensorType) -> Program:
    """A program that brings a tensor from one sharding to another."""
    values, instrs = [Local(0, type, spec, "x")], []
    for step in reshard(spec, to, type.shape, type.item_bytes, idle=False):
        values.append(Local(len(values), type, step.after.closed(), f"x_{len(values)}"))
        said = {"dim": step.dim, "to_dim": step.to_dim, "reduction": step.reduction}
        attrs = tuple(sorted((name, value) for name, value in said.items() if value is not None))
        op = LOCAL_STEPS.get(step.kind, step.kind)
        made = len(values) - 1
        instrs.append(Instr(op, (made - 1,), (made,), attrs, step.axes, step.bytes, None, "assemble"))
    return Program("assemble", spec.mesh, tuple(values), tuple(instrs), (0,), (len(values) - 1,))


def share(make: Callable[[], str], devices: int, what: str) -> str | None:
    """The text that rank 0 makes, on every rank of the launch; None where the mesh is not that of the launch.

    ``what`` is the work, such as planning.  A failure of rank 0 is raised everywhere.
    """
    join_others(limits_of())
    if not has_processes() or dist.get_world_size() != devices:
        return None
    return share_text(make, dist.get_rank(), what)


# -- checks ---------------------------------------------------------------------------------------------

_DTYPE_CODES = ["bool", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "f16", "bf16", "f32", "f64", "c64",
                "c128", "f8e4m3", "f8e5m2"]  # fmt: skip


def _chunks(tensor: Any, parts: int, what: str) -> list[tuple[int, int]]:
    if tensor.dim() == 0:
        raise SpecError(f"{what} cuts dim 0, and a 0-d tensor has none", help="reshape it to one dim first")
    return [nested_chunk(tensor.shape[0], [parts], [i]) for i in range(parts)]


def _check_alike(rows: Sequence[Sequence[int]], peers: exchange.Peers) -> None:
    """All but dim 0 must agree; every rank sees the same rows, so every rank raises."""
    first = rows[0]
    for rank, row in zip(peers.ranks, rows):
        if row[:2] != first[:2] or row[3:] != first[3:]:
            raise SpecError(
                f"the tensor of rank {rank} does not fit that of rank {peers.ranks[0]}",
                rows=[(f"rank {r}", _row_text(row)) for r, row in zip(peers.ranks, rows)],
                help="they may differ along dim 0 only",
            )


def _row_text(row: Sequence[int]) -> str:
    return str(TensorType(tuple(row[2 : 2 + row[0]]), _DTYPE_CODES[row[1]]))


def _check_pairs(pairs: Sequence[tuple[int, int]], count: int) -> None:
    for what, members in (("source", [s for s, _ in pairs]), ("target", [t for _, t in pairs])):
        for i, member in enumerate(members):
            if member in members[:i] or not 0 <= member < count:
                raise SpecError(
                    f"member {member} cannot be a {what} here",
                    rows=[("pairs", str(list(pairs))), ("members", str(count))],
                    help=f"each of 0 to {count - 1} stands once among the {what}s at most",
                )

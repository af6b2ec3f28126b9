"""`emit`: the Program of one rank as an FX `GraphModule`.

The module's code is plain calls of ATen operators with constant arguments, and functional collectives; values are
dropped after their last use.  Nothing is decided here but what a rank does differently from others: sizes, offsets and
what it sends.  Instructions are issued in the Program's order: collectives are started, some together, and waited for
where it says so.

Every node says where it comes from: ``meta["source"]``, ``meta["scope"]`` (the module path), ``meta["sharding"]`` (the
tensor with its sharding), for collectives ``meta["cause"]`` and ``meta["collective"]``; ``meta["stack_trace"]`` is
what PyTorch's own tools print.

To extend: an op whose plain call is wrong on a shard gets a kernel in the frontend, or an entry in `_Emitter.makers`
if it can be written as ATen calls; attention is looked up in `attention`.
"""

from __future__ import annotations

import builtins
import keyword
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import fx

from ...errors import ShardwrightError
from ...frontends.torch.compute import prepare
from ...frontends.torch.dtypes import torch_dtype
from ...frontends.torch.kernels import KERNELS, ON_NOTHING
from ...frontends.torch.recording.half_types import WIDE, half_norm
from ...frontends.torch.recording.sizes import local_sizes, operand_sizes
from ...frontends.torch.signatures import Signature, find_op, signature
from ...frontends.torch.steps.updates import STATE
from ...ir.graph import TensorType
from ...ir.order import events_of
from ...ir.program import RUN, START, Collective, Instr, Program
from ...spec.axes import AxisRef, axes_text
from ...spec.chunks import nested_chunk
from ...spec.collective import collective_bytes
from ...spec.pending import ONE_HOLDS, is_first
from ...spec.resharding.steps import permute_sources
from ...spec.sharding import Shape
from ..lifetimes import ends
from . import exchange
from .attention import choose_attention
from .code import INPUTS, PlainCalls
from .groups import GroupSource, NamedGroups, ranks_along
from .layout import Lying, Made, orders
from .updates import DEVICES, Updates
from .wire import Wire, moved_as, reduced_as

aten = torch.ops.aten
Nodes = Sequence[Any]


def emit(
    program: Program,
    position: int,
    groups: GroupSource | None = None,
    device: Any = None,
    *,
    stand_ins: bool = False,
    taking: bool = False,
    donated: bool | None = None,
    fused: bool | None = None,
    attention: str | None = None,
) -> fx.GraphModule:
    """What the device at a position of the mesh does.

    ``groups`` names the process groups; without it the module can be looked at, but its collectives belong to no
    process group.  With ``stand_ins`` local ops of the same shapes take the place of collectives, to run one rank
    alone.  With ``taking`` the module is called with one list of inputs, which it empties: what nobody else has is gone
    after its last use.  State is written over if it is ``donated``, and optimizers step by ``fused`` kernels, else by
    plain operators, which ``torch.compile`` takes; both as ``taking`` says, by default.  ``device`` is where created
    tensors go and what attention is chosen for; ``attention`` names the kernel (flash, cudnn, efficient, math) instead
    of the fastest measured one.  The module's ``meta["collectives"]`` lists what it executes, ``meta["starts"]`` says
    in how many starts.
    """
    emitter = _Emitter(program, position, groups or NamedGroups(), torch.device(device or "cpu"), stand_ins, attention)
    fused = (taking if fused is None else fused) and emitter.device.type in DEVICES
    emitter.updates = Updates(emitter, taking if donated is None else donated, fused)
    return emitter.module(taking)


class _Emitter:
    def __init__(
        self,
        program: Program,
        position: int,
        groups: GroupSource,
        device: torch.device,
        stand_ins: bool,
        attention: str | None = None,
    ) -> None:
        self.program = program
        self.attention = attention
        self.mesh = program.mesh
        self.position = position
        self.rank = self.mesh.device_ids[position]
        self.groups = groups
        self.device = device
        self.graph = fx.Graph()
        self.root = torch.nn.Module()
        self.values: dict[int, Any] = {}
        self.updates: Updates
        self.types: dict[int, TensorType] = {}
        self.begins: dict[Any, int] = {}
        """Offsets by value: what depends on them is chosen when the module is written."""
        self.under_way: dict[tuple[int, ...], list[exchange.Finish]] = {}
        self.starts = 0
        self.ends = ends(program)
        self.orders = orders(program)
        self.executed: dict[int, Collective] = {}
        """By result."""
        self.meta: dict[str, Any] = {}
        self.kernels = 0
        self.arguments: set[str] = {INPUTS}
        self.alone = exchange.stand_in(self.write)
        self.fresh = exchange.stand_in(self.write, fresh=True)
        self.stand_ins = stand_ins
        self._peers: dict[tuple[int, ...], exchange.Peers] = {}
        self.makers: dict[str, Callable[[Instr], Any]] = {
            "all_gather": self.all_gather,
            "all_to_all": self.all_to_all,
            "reduce_scatter": self.reduce_scatter,
            "all_reduce": self.all_reduce,
            "collective_permute": self.collective_permute,
            "core.slice": self.slice,
            "core.to_partial": self.to_partial,
            "core.offset": self.offset,
            "core.constraint": self.same,
            **dict.fromkeys(("aten.view", "aten._unsafe_view", "aten._reshape_alias", "aten.reshape"), self.reshape),
        }

    def module(self, taking: bool) -> fx.GraphModule:
        program = self.program
        for value in program.inputs:
            self.meta = {"sharding": str(program.values[value])}
            node = self.values[value] = self.graph.placeholder(self.argument(program.values[value].name))
            node.target = node.name  # two names for it would be two references, of which code drops one
            node.meta.update(self.meta)
        self.updates.bring_numbers()
        for at, (kind, members) in enumerate(events_of(program)):
            n, instr = members[0], program.instrs[members[0]]
            try:
                self.event(at, kind, members)
            except ShardwrightError as error:
                error.add("instruction", f"{n}: {instr.op}")
                raise error.add("at", instr.source) if instr.source is not None else error from None
        self.updates.flush()
        self.meta = {}
        self.graph.output(tuple(self.values[value] for value in program.outputs))
        self.graph.set_codegen(PlainCalls(taking))
        module = fx.GraphModule(self.root, self.graph, f"rank_{self.rank}")
        module.meta["collectives"] = [self.executed[i.results[0]] for i in program.instrs if i.is_collective]
        module.meta["starts"] = self.starts
        return module

    def argument(self, name: str) -> str:
        """A name for a parameter of the module: two may differ only in what an identifier cannot hold."""
        word = base = _identifier(name)
        while word in self.arguments:
            word = f"{base}_{len(self.arguments)}"
        self.arguments.add(word)
        return word

    # -- writing ----------------------------------------------------------------------------------------

    def write(self, op: Any, *args: Any, **kwargs: Any) -> Any:
        node = self.graph.call_function(op, args, kwargs)
        node.meta.update(self.meta)
        return node

    def event(self, at: int, kind: str, members: tuple[int, ...]) -> None:
        instrs = [self.program.instrs[n] for n in members]
        if instrs[0].op in STATE:
            self.updates.add(instrs[0], at)
            return
        self.updates.flush()
        self.meta = {**self.said(instrs[0]), "instr": members[0]}
        if kind == RUN:
            self.instruction(instrs[0])
        elif kind == START:
            self.starts += 1
            for instr in instrs:
                self.updates.passed(instr, aliases=prod(axis.size for axis in instr.axes) == 1)
            made = [self.makers[instr.op](instr) for instr in instrs]
            messages = [item for item in made if isinstance(item, exchange.Message)]
            # What stands for itself was started when it was written.
            self.under_way[members] = exchange.start(self.call(messages[0].peers), messages) if messages else made
        else:
            for instr, finish in zip(instrs, self.under_way.pop(members)):
                self.meta = self.said(instr)
                self.values[instr.results[0]] = finish()

    def instruction(self, instr: Instr) -> None:
        make = self.makers.get(instr.op)
        self.updates.passed(instr, aliases=make is not None)
        if make is not None:
            self.values[instr.results[0]] = make(instr)
            return
        operands = [
            None if operand is None else [self.values[v] for v in operand] if isinstance(operand, tuple)
            else self.values[operand]
            for operand in instr.operands
        ]  # fmt: skip
        for value, node in zip(instr.results, self.local(instr, operands), strict=True):
            self.values[value] = node

    def said(self, instr: Instr) -> dict[str, Any]:
        sharding = ", ".join(str(self.program.values[value]) for value in instr.results)
        meta: dict[str, Any] = {"op": instr.op, "sharding": sharding}
        if instr.source is not None:
            source = instr.source
            meta["source"], meta["scope"] = f"{source.file}:{source.line}", source.scope
            meta["stack_trace"] = f'  File "{source.file}", line {source.line}, in {source.scope or "<program>"}\n'
        if instr.is_collective:
            meta["cause"] = instr.cause
            meta["collective"] = f"{instr.op} {axes_text(instr.axes)}"
        return meta

    # -- local ops --------------------------------------------------------------------------------------

    def type_here(self, value: int) -> TensorType:
        found = self.types.get(value)
        if found is None:
            local = self.program.values[value]
            found = self.types[value] = TensorType(local.local_shape(self.position), local.type.dtype)
        return found

    def local(self, instr: Instr, operands: Nodes) -> Nodes:
        results = [self.type_here(value) for value in instr.results]
        given = [self.type_here(o) if isinstance(o, int) else None for o in instr.operands]
        begin = self.begins.get(instr.operands[-1], 0) if instr.operands else 0
        return self.calculated(instr.op, dict(instr.attrs), given, results, operands, begin)

    def calculated(
        self,
        op: str,
        attrs: dict[str, Any],
        given: Sequence[TensorType | None],
        results: Sequence[TensorType],
        operands: Nodes,
        begin: int = 0,
    ) -> Nodes:
        """An op on tensors of these types; ``begin`` is where this rank's part begins, if the op is told."""
        if not _on_nothing(op, given, results):
            attention = choose_attention(op, attrs, given, self.device, begin, self.attention)
            if attention is not None:
                return attention(self.write, operands)
        if op in KERNELS or _on_nothing(op, given, results):
            return self.kernel(op, attrs, results, operands)
        absent: Any = attrs.pop("absent", ())
        form = signature(find_op(op))
        sizes = operand_sizes(op, attrs)
        if sizes is not None:
            # A shard need not be contiguous, which these ops ask for.
            operands = [o if o is None else self.write(aten.contiguous.default, o) for o in operands]
            attrs = sizes(attrs, given)
        else:
            attrs = local_sizes(op, attrs, results)
        norm = half_norm(op, given, self.device.type)
        if norm is not None:
            operands = [o if o is None else self.write(aten.contiguous.default, o) for o in operands]
            operands = [self.cast(o, norm[1]) if i in norm[0].operands else o for i, o in enumerate(operands)]
        args, kwargs = _arguments(form, attrs, operands, self.device)
        made = self.write(form.op, *args, **kwargs)
        shape = _result_shape(form, len(results) + len(absent))
        if shape is None:
            return [made]
        widened = () if norm is None or norm[1] == WIDE else norm[0].results
        return [
            self.cast(self.picked(made, place), WIDE) if i in widened else self.picked(made, place)
            for i, place in enumerate(shape)
            if i not in absent
        ]

    def cast(self, x: Any, dtype: str) -> Any:
        return self.write(aten._to_copy.default, x, dtype=torch_dtype(dtype))

    def picked(self, made: Any, place: tuple[int, ...]) -> Any:
        for index in place:
            made = self.write(operator.getitem, made, index)
        return made

    def kernel(self, op: str, attrs: Mapping[str, Any], results: Sequence[TensorType], operands: Nodes) -> Nodes:
        """A function of the frontend's, where one ATen call is not enough."""
        ready = prepare(op, attrs, results, self.device)

        def run(*operands: Any) -> Any:
            return ready(operands)

        self.kernels += 1
        run.__name__ = run.__qualname__ = f"{_identifier(op)}_{self.kernels}"
        made = self.write(run, *operands)
        return [self.write(operator.getitem, made, i) for i in range(len(results))]

    def same(self, instr: Instr) -> Any:
        return self.operand(instr)

    def reshape(self, instr: Instr) -> Any:
        """A shard need not lie in memory as the whole did, so a view of it may have to copy."""
        return self.write(aten.reshape.default, self.operand(instr), list(self.type_here(instr.results[0]).shape))

    def slice(self, instr: Instr) -> Any:
        dim = instr.attr("dim")
        start, stop = self.own_cut(instr, self.shape_in(instr)[dim])
        x = self.operand(instr)
        if (start, stop) == (0, self.shape_in(instr)[dim]):
            return x
        part = self.write(aten.slice.Tensor, x, dim, start, stop)
        if self.ends[instr.as_node().inputs[0]] >= self.ends[instr.results[0]]:
            return part
        return self.write(aten.clone.default, part)  # so that the whole can go

    def to_partial(self, instr: Instr) -> Any:
        """One device of the axes keeps the values, the others hold what changes nothing."""
        x, kind = self.operand(instr), instr.attr("reduction")
        if kind not in ONE_HOLDS or is_first(self.mesh, self.position, instr.axes):
            return x
        return self.write(aten.ones_like.default if kind == "prod" else aten.zeros_like.default, x)

    def offset(self, instr: Instr) -> Any:
        """Where this rank's part of a dim begins: a constant."""
        name = f"offset_{len(list(self.root.buffers()))}"
        start, _ = self.own_cut(instr, instr.attr("size"))
        self.begins[instr.results[0]] = start
        self.root.register_buffer(name, torch.tensor(start, dtype=torch.int64, device=self.device))
        node = self.graph.get_attr(name)
        node.meta.update(self.meta)
        return node

    # -- collectives ------------------------------------------------------------------------------------

    def operand(self, instr: Instr) -> Any:
        return self.values[instr.as_node().inputs[0]]

    def shape_in(self, instr: Instr, position: int | None = None) -> Shape:
        local = self.program.values[instr.as_node().inputs[0]]
        return local.local_shape(self.position if position is None else position)

    def own_cut(self, instr: Instr, size: int, position: int | None = None) -> tuple[int, int]:
        """The part of a dim that the instruction's axes leave to a device."""
        at = self.position if position is None else position
        where = [self.mesh.index_along(at, axis) for axis in instr.axes]
        return nested_chunk(size, [axis.size for axis in instr.axes], where)

    def cuts(self, instr: Instr, dim: int, peers: exchange.Peers) -> list[tuple[int, int]]:
        size = self.shape_in(instr)[dim]
        return [self.own_cut(instr, size, self.at(rank)) for rank in peers.ranks]

    def sizes(self, instr: Instr, dim: int, ranks: Sequence[int]) -> list[int]:
        return [self.shape_in(instr, self.at(rank))[dim] for rank in ranks]

    def at(self, rank: int) -> int:
        return self.mesh.device_ids.index(rank)

    def peers(self, axes: Sequence[AxisRef]) -> exchange.Peers:
        ranks = ranks_along(self.mesh, self.position, axes)
        if ranks not in self._peers:
            self._peers[ranks] = exchange.Peers(self.groups.of(ranks), ranks, self.rank)
        return self._peers[ranks]

    def call(self, peers: exchange.Peers) -> Any:
        """How its collectives are written; a group of one needs none."""
        return self.alone if peers.count == 1 else self.fresh if self.stand_ins else self.write

    def cut_order(self, instr: Instr, dim: int) -> list[AxisRef]:
        """The axes of a collective in the order in which they cut the dim it undoes."""
        order: list[AxisRef] = []
        for axis in self.program.values[instr.as_node().inputs[0]].spec.dims[dim].axes:
            moved = sorted((a for a in instr.axes if a.overlaps(axis)), key=lambda a: a.pre)
            order += [axis] if any(a.contains(axis) for a in moved) else moved
        return order

    def count(self, instr: Instr, wire: Wire, shape: Shape, cut: int | None = None) -> None:
        """Note what is sent: the padded input, in the type that travels."""
        ways = prod(axis.size for axis in instr.axes)
        largest = [-(-size // ways) * ways if d == cut else size for d, size in enumerate(shape)]
        put_in = prod(largest) * wire.item_bytes * (2 if wire.pairs else 1)
        sent = collective_bytes(instr.op, ways, put_in)
        self.executed[instr.results[0]] = Collective(instr.op, axes_text(instr.axes), sent)

    def padded(self, instr: Instr) -> Shape:
        local = self.program.values[instr.as_node().inputs[0]]
        return local.spec.padded_shape(local.type.shape)

    def dtype(self, instr: Instr) -> str:
        return self.program.values[instr.results[0]].type.dtype

    def reduction(self, instr: Instr) -> Wire:
        return reduced_as(self.dtype(instr), instr.attr("reduction"), prod(axis.size for axis in instr.axes))

    def all_gather(self, instr: Instr) -> Made:
        dim, wire = instr.attr("dim"), moved_as(self.dtype(instr))
        peers, lying = self.peers(self.cut_order(instr, dim)), self.lying(instr)
        self.count(instr, wire, self.padded(instr))
        sizes, call = self.sizes(instr, dim, peers.ranks), self.call(peers)
        made = exchange.all_gather(call, lying.x, lying.shape, lying.dim(dim), sizes, wire, peers)
        return lying.brought(call, made)

    def all_to_all(self, instr: Instr) -> Made:
        dim, to_dim, wire = instr.attr("dim"), instr.attr("to_dim"), moved_as(self.dtype(instr))
        peers, shards, lying = self.peers(instr.axes), self.peers(self.cut_order(instr, dim)), self.lying(instr)
        self.count(instr, wire, self.padded(instr), to_dim)
        order = [peers.ranks.index(rank) for rank in shards.ranks]
        sizes, cuts = self.sizes(instr, dim, shards.ranks), self.cuts(instr, to_dim, peers)
        call, dim, to_dim = self.call(peers), lying.dim(dim), lying.dim(to_dim)
        made = exchange.all_to_all(call, lying.x, lying.shape, dim, sizes, to_dim, cuts, wire, peers, order)
        return lying.brought(call, made)

    def reduce_scatter(self, instr: Instr) -> Made:
        dim, wire, peers, lying = instr.attr("dim"), self.reduction(instr), self.peers(instr.axes), self.lying(instr)
        self.count(instr, wire, self.padded(instr), dim)
        cuts, call = self.cuts(instr, dim, peers), self.call(peers)
        made = exchange.reduce_scatter(call, lying.x, lying.shape, lying.dim(dim), cuts, wire, peers)
        return lying.brought(call, made)

    def all_reduce(self, instr: Instr) -> Made:
        wire, peers, lying = self.reduction(instr), self.peers(instr.axes), self.lying(instr)
        self.count(instr, wire, self.padded(instr))
        call = self.call(peers)
        return lying.brought(call, exchange.all_reduce(call, lying.x, wire, peers, lying.shape))

    def lying(self, instr: Instr) -> Lying:
        order = self.orders.get(instr.inputs[0])
        return Lying(self.program, instr, order, self.write, self.operand(instr), self.shape_in(instr))

    def collective_permute(self, instr: Instr) -> exchange.Finish:
        before, after = (self.program.values[v] for v in (instr.as_node().inputs[0], instr.results[0]))
        wire = moved_as(self.dtype(instr))
        sources = permute_sources(before.spec, after.spec)
        peers = self.peers(instr.axes)
        if any(self.mesh.device_ids[sources[self.at(rank)]] not in peers.ranks for rank in peers.ranks):
            peers = self.peers(self.mesh.axes)
        self.count(instr, wire, self.padded(instr))
        from_member = [peers.ranks.index(self.mesh.device_ids[sources[self.at(rank)]]) for rank in peers.ranks]
        shape, made = self.shape_in(instr), after.local_shape(self.position)
        x, block = self.operand(instr), self.padded(instr)
        return exchange.permute(self.call(peers), x, shape, made, block, from_member, wire, peers)


def _on_nothing(op: str, given: Sequence[TensorType | None], results: Sequence[TensorType]) -> bool:
    """Shards without elements, which not every op takes: the frontend knows what stands for the result."""
    nothing_in = any(type is not None and not type.elements for type in given)
    return (op in ON_NOTHING and nothing_in) or (bool(results) and not any(type.elements for type in results))


def _arguments(
    form: Signature, attrs: Mapping[str, Any], operands: Nodes, device: torch.device
) -> tuple[list[Any], dict[str, Any]]:
    """What the op is called with, defaults left out: every argument costs time."""
    args, kwargs = replace(form, op=_given).join(attrs, device)(operands)
    schema = form.op._schema.arguments
    positional = [argument for argument in schema if not argument.kwarg_only]
    while args and _is_default(args[-1], positional[len(args) - 1]):
        args.pop()
    by_name = {argument.name: argument for argument in schema}
    return args, {name: value for name, value in kwargs.items() if not _is_default(value, by_name[name])}


def _given(*args: Any, **kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
    return list(args), kwargs


def _is_default(value: Any, argument: Any) -> bool:
    if isinstance(value, fx.Node) or not argument.has_default_value():
        return False
    default = argument.default_value
    return value is default or (type(value) is type(default) and bool(value == default))


def _result_shape(form: Signature, count: int) -> list[tuple[int, ...]] | None:
    """Where each flat result stands in what the op returns; None if it is one tensor."""
    returns = form.op._schema.returns
    lists = [str(item.type).startswith("List") for item in returns]
    if len(returns) == 1:
        return [(i,) for i in range(count)] if lists[0] else None
    if not any(lists):
        return [(i,) for i in range(len(returns))]
    long = count - (len(returns) - sum(lists))
    if sum(lists) > 1:
        raise ShardwrightError(f"{form.name} returns several lists", help="write a kernel for it in the frontend")
    return [
        place for i, is_list in enumerate(lists) for place in ([(i, k) for k in range(long)] if is_list else [(i,)])
    ]


def _identifier(name: str) -> str:
    """
    >>> _identifier("0.weight"), _identifier("input")
    ('_0_weight', 'input_')
    """
    word = re.sub(r"\W|^(?=\d)", "_", name)
    return f"{word}_" if keyword.iskeyword(word) or hasattr(builtins, word) or word == "self" else word

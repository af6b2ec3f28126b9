"""`Step`: a training step with its state in shards; `train_step` makes one.

A step has one *state* (parameters, buffers, optimizer state, the key of random numbers), in shards that stay where they
are, and one *entry* for each shape of batch that it was called with: the program captured for it, its plan, cut into
pieces where something happens between them, proven and compiled.  All entries hold the state in the same shardings.

    batch -> entry -> gradients (once for each micro-batch) -> norm, if somebody looks at it -> update -> result

What cannot change without another program (what is trained, modes of modules, groups of the optimizer) is compared at
every call; where it has changed, entries are made anew and the state is kept.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from ...errors import ShardwrightError, SpecError
from ...frontends.base import Source
from ...frontends.failing import telling
from ...ir.program import Collective, Program
from ...run.engine import Engine, Executed
from ...spec.sharding import ShardingSpec
from ..arguments import check_numbers
from .batches import Batches, Call, data_place, micro_batches
from .checkpoints import Checkpointed, Held
from .entries import Entry, Measured, Part, Planned

_log = logging.getLogger("shardwright")
MOST_ENTRIES = 8
ON_NONFINITE = ("raise", "skip")
INIT = ("rank0", "check")
Replan = Callable[[Source, Mapping[str, ShardingSpec]], Planned]
"""From a captured program, and the shardings of state that stay, to its plan."""


class Step(Checkpointed):
    """A training step whose parameters, buffers and optimizer state live in shards between calls.

    ``step(*batch)`` or ``step(**batch)`` runs one and returns what the loss function returns.  `sync` writes the state
    back into the modules and optimizers that the step was captured from, `load` takes it from there.  `evaluate` gives
    the loss without training.

    A call hands the state over: what it updates is gone after its last use, so that old and new state are never there
    in full at once.  A call that fails while it runs leaves no state: the next use says so, until `load`.  One that is
    refused before it runs leaves the state as it was.  Modules and optimizers keep their own tensors all along.
    """

    def __init__(
        self,
        plan: Planned,
        replan: Replan,
        batches: Batches,
        on_nonfinite: str | None = None,
        init: str = "rank0",
        example: Call | None = None,
        compile: str | None = None,
    ) -> None:
        if on_nonfinite not in (None, *ON_NONFINITE):
            raise SpecError(f"on_nonfinite= is 'raise' or 'skip', not {on_nonfinite!r}")
        if on_nonfinite is not None and not plan.source.form.checked:
            raise SpecError("on_nonfinite= needs a step that was planned with it", help="make the step with train_step")
        if init not in INIT:
            raise SpecError(f"init= is 'rank0' or 'check', not {init!r}")
        self.plan = plan
        """The plan that is trained: of the batch that the step was made with."""
        self.engine: Engine = batches.engine
        self.batches, self.replan, self.on_nonfinite, self.init = batches, replan, on_nonfinite, init
        self.compile = compile
        self.gradients: dict[str, Any] = {}
        """Shards of the gradients that calls left and added up, if the step has no optimizer."""
        self._gradient_forms: dict[str, tuple[ShardingSpec, tuple[int, ...]]] = {}
        self.executed: Executed | None = None
        """What the last call did: collectives, peak of live bytes."""
        self.steps = 0
        """Updates so far."""
        self.skipped = 0
        """Steps without an update, since gradients were not finite."""
        self.grad_norm: Any = None
        """The norm of all gradients of the last call, before clipping, where it is computed."""
        self.last_checkpoint: str | None = None
        """Where the state was saved last; the error of a call that fails names it."""
        self.measured = Measured()
        self._planned = self._last = Entry(plan, self.engine, compile)
        self._entries: dict[tuple[Hashable, Hashable], Entry] = {}
        """By what cannot change without another program, and by the shapes of a call."""
        self._evaluating: dict[Any, Entry] = {}
        if example is not None:
            self._entries[self._planned.fingerprint, self._signature(example)] = self._planned
        self._state: dict[str, Held] = {}
        self._failed, self._starts = "", True
        self.load()

    # -- what it is -----------------------------------------------------------------------------------------

    @property
    def source(self) -> Source:
        return self._last.source

    @property
    def program(self) -> Program:
        """Of a step in one piece; see `programs`."""
        return self.plan.program

    @property
    def programs(self) -> dict[str, Program]:
        """What runs, by name: ``step``, or ``gradients`` and ``update`` where something happens between them."""
        return {part.name: part.program for part in self._last.parts}

    @property
    def mesh(self) -> Any:
        return self.engine.mesh

    @property
    def collectives(self) -> list[Collective]:
        return [collective for part in self._last.parts for collective in part.program.collectives]

    @property
    def data_rank(self) -> int:
        """Which part of a batch this process gives, from 0: the ``rank`` of a `DistributedSampler`."""
        return self._data_place[0]

    @property
    def data_ranks(self) -> int:
        """How many parts of a batch there are: the ``num_replicas`` of a `DistributedSampler`."""
        return self._data_place[1]

    @property
    def _data_place(self) -> tuple[int, int]:
        engine: Any = self.engine
        return data_place(engine.mesh, self.batches.axes, getattr(engine, "position", 0))

    @property
    def leads(self) -> bool:
        """Whether this is the process that tells of what all do: rank 0, or the only one."""
        return int(getattr(self.engine, "rank", 0)) == 0

    @property
    def compiled(self) -> Any:
        """Of a step in one piece."""
        return self._last.parts[0].compiled

    @property
    def state(self) -> list[Any]:
        """Shards of all that the program reads beside the batch, in the order of its inputs."""
        slots = self._slots(self._last)
        return [slots[slot] for slot in sorted(slots)]

    def compared(self) -> str:
        """What was predicted for a step beside what was measured: the time between calls, the memory of the 20th."""
        every = [part.program for entry in (self._last, *self._entries.values()) for part in entry.parts]
        said = self.measured.line(self.programs, self.batches.accumulate, self.plan.hardware, every)
        return "; ".join([said, *self.forms.values()])

    @property
    def forms(self) -> dict[str, str]:
        """In which form the programs run where an engine has several, and why, by their names."""
        forms = {part.name: getattr(part.compiled, "forms", None) for part in self._last.parts}
        return {name: f"{name} {form}" for name, form in forms.items() if form is not None}

    # -- state ----------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Take the state anew from the modules and optimizers, where it is as of the last `sync`."""
        self._state, self.gradients, self._failed = {}, {}, ""
        self._take_state(self._last, self._last.options if self._starts else ())
        self._starts = False

    def _take_state(self, entry: Entry, options: Sequence[int] = ()) -> None:
        """What this entry reads and nobody holds yet, from where it was captured; ranks take ``options`` of rank 0."""
        missing = [(name, slot) for name, slot in entry.state_names().items() if name not in self._state]
        missing += [("", slot) for slot in entry.consts if slot not in entry.loaded]
        if not missing and self._state:
            return
        missing += [("", slot) for slot in options]
        specs = [entry.specs[entry.data + slot] for _, slot in missing]
        arrays = [(entry.names[slot], entry.source.read(slot)) for _, slot in missing]
        loaded = self._load_arrays(arrays, specs)
        for (name, slot), shards, spec in zip(missing, loaded, specs):
            if name:
                shape = entry.type(slot).shape
                self._state[name] = Held(shards, spec, shape, entry.source, slot, slot in entry.changed)
            elif slot in options:
                if self.engine.name != "virtual" and self.engine.mesh.size > 1:
                    entry.source.write(slot, shards)
            else:
                entry.loaded[slot] = shards

    def _load_arrays(self, arrays: Sequence[tuple[str, Any]], specs: Sequence[ShardingSpec]) -> list[Any]:
        """What the engine holds of these: of several processes what rank 0 has, or, compared, what each has."""
        engine: Any = self.engine
        names, wholes = [name for name, _ in arrays], [whole for _, whole in arrays]
        if not hasattr(engine, "load_from_rank0"):
            return self.engine.load(wholes, specs)
        if self.init == "check":
            engine.check_equal(wholes, names)
            return self.engine.load(wholes, specs)
        found: list[Any] = engine.load_from_rank0(wholes, specs, names)
        return found

    def _agree(self, entry: Entry, given: Sequence[Any]) -> None:
        """Tell the other ranks what this one is about to train with; they tell who differs."""
        engine: Any = self.engine
        if hasattr(engine, "agree_on"):
            options = [float(entry.source.read(slot)) for slot in entry.options]
            like = self.batches.like()
            engine.agree_on(self.measured.calls + 1, str(options), f"{self.batches.data} {entry.digest}", given, like)

    def sync(self) -> None:
        """Write parameters, buffers, optimizer state and gradients back to where they were captured from."""
        self._check_state()
        cleared = {self.source.inputs_are[self._last.data + slot].name for slot in self.source.cleared_slots}
        for name, held in self._state.items():
            if held.changed and name not in cleared:
                held.source.write(held.slot, self.engine.assemble(held.shards, held.spec, held.shape))
        self.source.clear_gradients()
        for name, shards in self.gradients.items():
            spec, shape = self._gradient_forms[name]
            self.source.write_gradient(name, self.engine.assemble(shards, spec, shape))

    def _check_state(self) -> None:
        if self._failed:
            kept = "" if self.last_checkpoint is None else f"; the last checkpoint is {self.last_checkpoint}"
            raise ShardwrightError(
                "this step has no state: a call failed while it ran, and what it updates was handed over",
                rows=[("failed", self._failed)],
                help="step.load() takes the state from the modules and optimizers, as of the last step.sync()" + kept,
            )

    # -- a call ---------------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._check_state()
        check_numbers(self.source, args, kwargs)
        calls = micro_batches(self.batches.framework, (args, kwargs), self.batches.accumulate)
        whole = self.batches.whole(calls[0])
        entry = self._entry(whole)
        batch = [
            self.batches.held(entry.source, call if self.batches.data == "global" else whole, call, entry.specs)
            for call in calls
        ]
        self._take_state(entry)
        self._agree(entry, [array for given, _ in batch for array in given])
        self.measured.begin(self.engine)
        returned = self._train(entry, batch)
        self.measured.end(self.engine, self.executed.peak_bytes if self.executed is not None else 0)
        source = entry.source
        for position, output in source.graph.updates:
            if position < entry.data:
                for (given, _), outputs in zip(batch, returned[output]):
                    source.write_data(given[position], self._assembled(entry, output, outputs))
        for name, output in source.gradients.items():
            for shards in returned[output]:
                self._add_gradient(entry, name, output, shards)
        results = [
            [self._assembled(entry, o, held) for held in returned[o]] for o in range(source.results) if o in returned
        ]
        self._last = entry
        found = source.result([r[0] if len(r) == 1 else source.combined(r) for r in results])
        if source.form.has_norm:
            found, self.grad_norm = found
        return found

    def _add_gradient(self, entry: Entry, name: str, output: int, shards: Any) -> None:
        """Gradients add up, as in eager PyTorch; those of another entry may have come in another sharding."""
        graph, spec = entry.source.graph, entry.plan.complete.outputs[output]
        before = self.gradients.get(name)
        if before is None:
            self.gradients[name], self._gradient_forms[name] = shards, (spec, graph.type(graph.outputs[output]).shape)
            return
        known, shape = self._gradient_forms[name]
        if spec != known:
            shards = self.engine.scatter(self.engine.assemble(shards, spec, shape), known)
        self.gradients[name] = _sum(before, shards)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """What the loss function returns for this batch, with the state as it is, without training."""
        self._check_state()
        check_numbers(self.source, args, kwargs)
        whole = self.batches.whole((args, kwargs))
        key = self._signature(whole)
        entry = self._evaluating.get(key)
        if entry is None or entry.fingerprint != entry.source.fingerprint():
            self._check_room(len(self._evaluating))
            with telling(self.source.graph, *whole):
                source = self.source.evaluation(*whole)
            plan = self.replan(source, {name: held.spec for name, held in self._state.items()})
            entry = self._evaluating[key] = Entry(plan, self.engine)
        self._take_state(entry)
        _, data = self.batches.held(entry.source, whole, (args, kwargs), entry.specs)
        slots = self._slots(entry)
        outputs, self.executed = entry.parts[0].compiled.run([*data, *(slots[slot] for slot in sorted(slots))])
        return entry.source.result([self._assembled(entry, o, outputs[o]) for o in range(entry.source.results)])

    def _assembled(self, entry: Entry, output: int, held: Any) -> Any:
        graph = entry.source.graph
        whole = self.engine.assemble(held, entry.plan.complete.outputs[output], graph.type(graph.outputs[output]).shape)
        return entry.source.framework.arrays.copy(whole) if output in entry.shared else whole

    # -- entries --------------------------------------------------------------------------------------------

    def _signature(self, call: Call) -> Any:
        return self.source.framework.signature(call[0], call[1])

    def _entry(self, call: Call) -> Entry:
        """The entry for these shapes, and for what cannot change without another program: known, or made now."""
        present = self._last.source.fingerprint()
        key = present, self._signature(call)
        entry = self._entries.get(key)
        if entry is not None:
            return entry
        self._last.source.check_alike(*call)
        if self._last.trained != self._last.source.trained():
            return self._with_others_trained(call)
        if present == self._planned.fingerprint and self._planned not in self._entries.values():
            try:  # made without an example
                self._planned.source.bind(*call)
            except ShardwrightError:
                pass
            else:
                self._entries[key] = self._planned
                return self._planned
        if present != self._last.fingerprint:
            _log.info("what the step was captured from has changed: it is captured anew, and its state is kept")
        self._check_room(sum(known == present for known, _ in self._entries))
        return self._made(call)

    def _made(self, call: Call) -> Entry:
        with telling(self._last.source.graph, *call):
            source = self._last.source.recapture(*call)
        plan = self.replan(source, {name: held.spec for name, held in self._state.items()})
        entry = Entry(plan, self.engine, self.compile)
        self._entries[entry.fingerprint, self._signature(call)] = entry
        return entry

    def _with_others_trained(self, call: Call) -> Entry:
        """Optimizers count the steps of each parameter, so they are given their state back, and asked for it anew."""
        self.sync()
        self._entries.clear()
        self._evaluating.clear()
        entry = self._made(call)
        self._state = {}
        return entry

    def _check_room(self, count: int) -> None:
        if count >= MOST_ENTRIES:
            raise SpecError(
                f"this step has been called with {MOST_ENTRIES} shapes of batches, and each is a program of its own",
                help="pad batches and sequences to a few sizes, or drop the last, smaller batch (drop_last=True)",
            )

    # -- running --------------------------------------------------------------------------------------------

    def _slots(self, entry: Entry) -> dict[int, Any]:
        """What the engine holds for every input beside the batch; options are read now."""
        held = {entry.data + slot: self._state[name].shards for name, slot in entry.state_names().items()}
        held |= {entry.data + slot: shards for slot, shards in entry.loaded.items()}
        number = getattr(self.engine, "number", self.engine.scatter)
        for slot in entry.options:
            at = entry.data + slot
            held[at] = number(entry.source.read(slot), entry.specs[at])
        return held

    def _train(self, entry: Entry, batch: Sequence[tuple[list[Any], list[Any]]]) -> dict[int, list[Any]]:
        """Runs all parts; for every output of the program what each run of its part gave."""
        slots: dict[int | str, Any] = dict(self._slots(entry).items())
        for name, slot in entry.state_names().items():
            if slot in entry.changed:
                self._state[name].shards = None  # nobody but the engine has it while it runs
        try:
            return self._run_parts(entry, batch, slots)
        except BaseException as error:
            self._failed = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            if all(entry.data + slot in slots for slot in range(len(entry.names))):  # nothing was taken
                self._failed = ""
            raise
        finally:
            if not self._failed:
                self._put_back(entry, slots)

    def _run_parts(
        self, entry: Entry, batch: Sequence[tuple[list[Any], list[Any]]], slots: dict[int | str, Any]
    ) -> dict[int, list[Any]]:
        returned: dict[int, list[Any]] = {}
        done = Executed()
        first = True
        for part in entry.parts:
            runs = batch if first else [([], [])]
            if part.name == "update" and self.on_nonfinite is not None and not self._finite(entry, returned):
                self._nonfinite()
                break
            for _, data in runs:
                if first:
                    slots.update(enumerate(data))
                outputs = self._run(part, slots, done)
                for output, at in part.returns.items():
                    returned.setdefault(output, []).append(outputs[at])
                for slot, at in part.updates.items():
                    if slot >= entry.data:
                        slots[slot] = outputs[at]
                slots.update({name: outputs[at] for at, name in enumerate(part.gives) if name is not None})
            first = False
        else:
            self.steps += 1
            entry.source.stepped()
        self.executed = done
        return returned

    def _run(self, part: Part, slots: dict[int | str, Any], done: Executed) -> list[Any]:
        takes = part.takes
        donated = {takes[i] for i in part.program.donated}
        handed = [slots.pop(key) if key in donated else slots[key] for key in takes]
        try:
            outputs, executed = part.compiled.run(handed, donate=True)
        except BaseException:
            if handed:  # not taken: the program did not start
                slots.update(zip(takes, handed))
            raise
        done.collectives += executed.collectives
        done.starts += executed.starts
        done.peak_bytes = max(done.peak_bytes, executed.peak_bytes)
        return list(outputs)

    def _put_back(self, entry: Entry, slots: Mapping[int | str, Any]) -> None:
        cleared = set(entry.source.cleared_slots)
        for name, slot in entry.state_names().items():
            held, shards = self._state[name], slots[entry.data + slot]
            if slot in cleared:
                shards = _zeros(entry.source.framework.arrays, shards)
            held.shards, held.changed = shards, held.changed or slot in entry.changed

    # -- gradients that are no numbers ----------------------------------------------------------------------

    def _finite(self, entry: Entry, returned: Mapping[int, list[Any]]) -> bool:
        output = entry.source.results - 1
        self.grad_norm = self._assembled(entry, output, returned[output][0])
        return math.isfinite(float(self.grad_norm))

    def _nonfinite(self) -> None:
        """No update: gradients are let go, parameters and optimizer state stay."""
        if self.on_nonfinite == "raise":
            raise ShardwrightError(
                f"the gradients of step {self.steps + 1} have the norm {float(self.grad_norm)}",
                rows=[("state", "as it was before this step")],
                help="lower the learning rate, look at the batch, or go on without such steps: on_nonfinite='skip'",
            )
        self.skipped += 1


def _zeros(arrays: Any, held: Any) -> Any:
    if isinstance(held, list):
        return [arrays.neutral_like("sum", shard) for shard in held]
    return arrays.neutral_like("sum", held)


def _sum(held: Any, more: Any) -> Any:
    return [a + b for a, b in zip(held, more)] if isinstance(held, list) else held + more

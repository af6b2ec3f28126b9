"""`OwnStepper`: an optimizer's own Python code, run on fakes, as part of the program.

In its groups and in its state stand fakes and live numbers (`numbers`).  Before the step is written into the program
it is tried aside (`trials`), and what was tried is compared:

- on the state as it is and, where that makes new state, on the state after it.  Where both do the same, given what the
  new state begins with, one program serves all steps; else the first step is a program of its own;
- once more, as in a later step and with other options.  What is a constant must then be the same one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch

from ....errors import TraceError
from ..dtypes import tensor_type
from ..private import FakeTensor
from ..recording.aliasing import Record, read
from ..recording.dispatch import Interrupted
from ..recording.slots import Slot, Slots
from .kept_state import Place, Store, Tree, facts, is_plain_number, moving, place_of, put, put_leaf
from .numbers import LiveNumber, Numbers
from .optimizers import has_formula
from .options import SWITCHED_OFF, Path, at, is_number, leaves, option_name, rebuilt
from .stepping import FormulaStepper, Stepper, copied, plainly, restored
from .trials import Start, Trial, difference, moving_constant, nudged, start_of
from .watching import Count, Ledger

_REPLACED = frozenset(("param_groups", "state", "defaults", "step", "zero_grad"))
_NUMBER = ((), (), torch.float64)


def stepper_of(session: Slots, name: str, optimizer: Any, ledgers: dict[int, Ledger]) -> Stepper:
    ledger = ledgers.setdefault(id(optimizer), Ledger())
    own = OwnStepper(session, name, optimizer, ledger)
    return FormulaStepper(session, name, optimizer, ledger, own) if has_formula(optimizer) else own


class OwnStepper(Stepper):
    def __init__(self, session: Slots, name: str, optimizer: Any, ledger: Ledger) -> None:
        super().__init__(session, name, optimizer, ledger)
        _refuse_what_cannot_be(optimizer)
        own = vars(optimizer).get("step")
        self.own_step: Callable[[], Any] = own or type(optimizer).step.__get__(optimizer)
        self.real_state = optimizer.state
        self.store: Store | None = None
        self.starts: dict[str, Start] = {}
        self.after: Tree = {}
        self.born: Tree = {}
        """State that there was none of."""

    # -- in the program -------------------------------------------------------------------------------------

    def run(self) -> None:
        groups = self.optimizer.param_groups
        if self.store is None:
            tree = self._explore()
            self.numbers = Numbers(
                self.session.recording, self._values(tree), lambda name: self._entered(name, tree).fake, moving(tree)
            )
            owners = {id(slot.owner): slot.fake for slot in self.trained()}
            self.store = self._stored(tree, self.numbers, owners, lambda name: self._entered(name, tree).fake, {})
        assert self.numbers is not None
        self._own(self.numbers, groups, self.store)
        with self.running(self.numbers):
            self._ends(self.numbers, groups, self.store)

    def _ends(self, numbers: Numbers, groups: list[Any], store: Store) -> None:
        """What options and state are after the step."""
        owners = {id(slot.fake): slot.owner for slots in self.members for slot in slots}
        for name, place, leaf in self._leaves(store, owners):
            if not place.is_plain:
                slot = self.slots.get(name) or self._state(name, place)
                slot.now = _as_tensor(numbers, leaf, slot)
        for name, leaf in self._changed(groups):
            slot = self.option(name)
            slot.now = _as_tensor(numbers, leaf, slot)

    def _entered(self, name: str, tree: Tree) -> Slot:
        return self.slots.get(name) or (self._state(name, tree[name]) if name in tree else self.option(name))

    def _state(self, name: str, place: Place) -> Slot:
        """A slot for a piece of state; new state is there with what it begins with."""
        owner, path, start = place.owner, place.path, self.ledger.starts.get(name)
        optimizer, number, plains = self.optimizer, place.number, self._plain_of(owner)
        device = owner.device if isinstance(owner, torch.Tensor) and place.shape else None
        dtype = place.dtype or torch.float64

        def read() -> Any:
            self.ledger.forget(name)
            value = at(optimizer.state.get(owner), path)
            if value is None and start is not None:
                value = start.make(self._real, device)
            elif value is None:
                if not self.first_is_special:
                    raise TraceError(
                        f"{name} is gone from the optimizer's state, where it was when the step was captured",
                        help="capture the step again",
                    )
                value = torch.zeros(place.shape, dtype=dtype, device=device)
            return torch.as_tensor(value, dtype=dtype).detach().reshape(place.shape)

        def write(tensor: Any) -> None:
            self.ledger.forget(name)
            state = optimizer.state[owner]
            for where, plain in plains:
                put_leaf(state, where, plain)
            if path:
                put(state, path, tensor if place.shape or at(state, path) is not None else tensor.cpu(), number)
            else:
                optimizer.state[owner] = number(tensor.item()) if number else tensor.clone()

        shape = _NUMBER if number else (place.shape, place.stride, place.dtype)
        return self.slot(name, self.fake(*shape), read, write, owner if isinstance(owner, torch.Tensor) else None)

    def _plain_of(self, owner: Any) -> list[tuple[Path, Any]]:
        return [(place.path, place.plain) for place in self.after.values() if place.owner is owner and place.is_plain]

    def _real(self, name: str) -> Any:
        """The real tensor of a parameter or option."""
        if name in self.option_at:
            return torch.tensor(self._host(name)(), dtype=torch.float64)
        return next(slot for slots in self.members for slot in slots if slot.name == name).read()

    # -- the optimizer's own code ---------------------------------------------------------------------------

    def _own(self, numbers: Numbers, groups: list[Any], store: Store) -> None:
        optimizer, attributes = self.optimizer, vars(self.optimizer)
        held = {key: attributes[key] for key in _REPLACED}
        for g, group in enumerate(groups):
            plain = {key: value for key, value in group.items() if key != "params"}
            group.update(rebuilt(plain, self.as_live(numbers, g)))
            group.update((key, False) for key in SWITCHED_OFF if key in group)
        optimizer.param_groups, optimizer.state = groups, store
        optimizer.defaults = {**held["defaults"], **{k: False for k in SWITCHED_OFF if k in held["defaults"]}}
        stand_ins = {id(s.owner): f for slots, g in zip(self.members, groups) for s, f in zip(slots, g["params"])}
        held |= {key: value for key, value in attributes.items() if key not in held and _holds(value, stand_ins)}
        for key in held.keys() - _REPLACED:
            attributes[key] = rebuilt(held[key], lambda _, leaf: stand_ins.get(id(leaf), leaf))
        del attributes["step"], attributes["zero_grad"]
        try:
            with self.running(numbers):
                self.own_step()
            self._check_kept(attributes)
        finally:
            attributes.update(held)

    def _check_kept(self, attributes: Mapping[str, Any]) -> None:
        """Tensors that a step changes must be in the state: a program has no others."""
        mode = self.session.recording
        kept = [f"self.{key}" for key, value in attributes.items() if key not in _REPLACED and _made(value)]
        written = [tensor for tensor, stand_in in mode._known.values() if mode.written(stand_in)]
        for what in (*kept, *(f"a tensor of shape {list(tensor.shape)}" for tensor in written)):
            raise Interrupted(
                TraceError(
                    f"the step of {type(self.optimizer).__name__} changes {what}, which is not in its state",
                    help="keep tensors that steps change in self.state[p], where PyTorch saves them",
                )
            )

    def live_option(self, numbers: Numbers, name: str, value: Any) -> Any:
        """A tensor stays one, of its own precision."""
        live = numbers.leaf(name, type(value) is int)
        if isinstance(value, torch.Tensor):
            dtype = value.dtype if value.is_floating_point() else torch.float64
            return numbers.tensor(live, dtype).expand(value.shape).clone()
        return live

    def _stored(
        self,
        tree: Tree,
        numbers: Numbers,
        owners: Mapping[int, Any],
        entered: Callable[[str], Any],
        firsts: dict[str, int],
    ) -> Store:
        """The state as the step finds it; ``firsts`` gets what new state is when it is put in."""
        recorder, mode = self.session.recorder, self.session.recording
        back = {id(fake): owner for owner, fake in owners.items()}
        filling = True

        def enter(owner: Any, key: Any, value: Any) -> Any:
            if filling:
                return value
            real, start = self._owner(owner, back), () if key is None else (key,)
            value = rebuilt(
                value,
                lambda path, leaf: numbers.constant(leaf, self._name(real, path)) if is_plain_number(leaf) else leaf,
                start,
            )
            for path, leaf in leaves(value, start):
                name = self._name(real, path)
                if name not in tree and name not in firsts and isinstance(leaf, torch.Tensor | LiveNumber):
                    tensor = numbers.tensor(leaf) if isinstance(leaf, LiveNumber) else leaf
                    firsts[name] = read(recorder, mode.record_of(tensor), None)
            return value

        store = Store(enter)
        for name, place in tree.items():
            owner = owners.get(id(place.owner), place.owner)
            if isinstance(owner, torch.Tensor) and id(place.owner) not in owners:
                continue  # it has no gradient
            leaf = place.plain
            if place.number is not None:
                leaf = numbers.leaf(name, place.number is int)
            elif place.dtype is not None:
                leaf = entered(name)
                if place.single and name in numbers.values:
                    numbers.leaves[mode.record_of(leaf).value] = name
            if place.path:
                put_leaf(store[owner], place.path, leaf)
            else:
                store[owner] = leaf
        filling = False
        return store

    def _owner(self, owner: Any, back: Mapping[int, int]) -> Any:
        real = back.get(id(owner))
        if real is None:
            return owner
        return next(slot.owner for slots in self.members for slot in slots if id(slot.owner) == real)

    def _name(self, owner: Any, path: Path) -> str:
        slot = self.session.by_tensor.get(id(owner))
        first = [slot.name] if slot is not None else [self.name, "state", str(owner)]
        return ".".join([*first, *map(str, path)])

    def _leaves(self, store: Mapping[Any, Any], owners: Mapping[int, Any]) -> Iterator[tuple[str, Place, Any]]:
        for owner, held in store.items():
            real = owners.get(id(owner), owner)
            for path, leaf in leaves(held):
                yield self._name(real, path), place_of(real, path, leaf), leaf

    def _changed(self, groups: list[Any]) -> Iterator[tuple[str, Any]]:
        """Numbers that the step has set in its groups."""
        for g, group in enumerate(groups):
            for path, leaf in leaves({key: value for key, value in group.items() if key != "params"}):
                name = option_name(self.name, path, g, len(groups))
                same = isinstance(leaf, LiveNumber) and leaf.key == ("leaf", name)
                if name in self.option_at and is_number(leaf) and not same:
                    yield name, leaf

    # -- trying it aside ------------------------------------------------------------------------------------

    def _explore(self) -> Tree:
        """Tries the step, refuses what is no program, and returns the state that the program's step is to find."""
        attributes = vars(self.optimizer)
        contents, originals = {key: copied(value) for key, value in attributes.items()}, dict(attributes)
        tree = self._present_tree()
        first = later = self._try(tree, self._values(tree))
        hidden = {key: value for key, value in attributes.items() if self._moved(key, value, contents)}
        if facts(first.tree) != facts(tree):
            allowed = frozenset(slot.name for slots in self.members for slot in slots) | self.option_at.keys()
            found = {name: start_of(first, name, frozenset(allowed)) for name in first.firsts}
            self.starts = {name: start for name, start in found.items() if start is not None}
            later = self._try(first.tree, self._values(first.tree), hidden)
            if facts(later.tree) != facts(first.tree):
                raise self._unsteady(first.tree, later.tree)
            new = [name for name, place in first.tree.items() if name not in tree and not place.is_plain]
            cut = {first.firsts[name]: name for name in new if name in self.starts}
            self.born = {name: first.tree[name] for name in new}
            self.first_is_special = len(cut) < len(new) or difference(first, later, cut) is not None
        if self.first_is_special:
            self._check_constants(first, self._try(tree, nudged(first, {}), hidden))
        self._check_constants(later, self._try(later.tree, nudged(later, later.counts()), hidden))
        attributes.clear()
        attributes.update({key: restored(value, contents[key]) for key, value in originals.items()})
        self.after = later.tree
        self.ledger.starts.update(self.starts)
        return tree if self.first_is_special else later.tree

    def _moved(self, key: str, value: Any, before: Mapping[str, Any]) -> bool:
        if key[0] == "_" or not is_number(value):
            return False
        return isinstance(value, LiveNumber) or key not in before or before[key] != value

    def _present_tree(self) -> Tree:
        """Of the optimizer's state, or, where somebody keeps it, of what is known to be there."""
        trained = {id(slot.owner) for slot in self.trained()}
        found = {name: place for name, place, _ in self._leaves(self.real_state, {})}
        found |= {name: place for name, place in self.ledger.tree.items() if isinstance(place, Place)}
        return {
            name: place
            for name, place in found.items()
            if not isinstance(place.owner, torch.Tensor) or id(place.owner) in trained
        }

    def _values(self, tree: Tree) -> dict[str, float]:
        """Options, and single numbers in the state, that are known now."""
        values = self.option_values()
        for name, place in tree.items():
            if place.single:
                number = self._number(name, place)
                if number is not None:
                    values[name] = number
        return values

    def _number(self, name: str, place: Place) -> float | None:
        if name in self.ledger.values:
            return self.ledger.values[name]
        held = at(self.real_state.get(place.owner), place.path)
        if held is None:
            start = self.starts.get(name) or self.ledger.starts.get(name)
            return start.host if start is not None else None
        if isinstance(held, torch.Tensor) and held.device.type == "meta":
            return None
        return plainly(held)

    def _try(self, tree: Tree, values: Mapping[str, float], hidden: Mapping[str, float] | None = None) -> Trial:
        """One run on tensors of its own; nothing of it stays in the program."""
        session, recorder, mode = self.session, self.session.recorder, self.session.recording
        nodes, inputs, draws, consts = len(recorder.nodes), len(recorder.inputs), recorder.draws, len(mode.consts)
        random, known = mode.random, dict(mode._known)
        entered: dict[str, Any] = {}

        def enter(name: str, make: Callable[[], Any]) -> Any:
            if name not in entered:
                entered[name] = make()
                mode.track(entered[name], Record(recorder.input(tensor_type(entered[name]), name)))
            return entered[name]

        def state(name: str) -> Any:
            place = tree.get(name)
            kind = _NUMBER if place is None or place.number is not None else (place.shape, place.stride, place.dtype)
            return enter(name, partial(self.fake, *kind))

        try:
            owners: dict[int, Any] = {}
            stand_ins = [
                [enter(slot.name, partial(session.fake, slot.fake)) for slot in slots] for slots in self.members
            ]
            pairs = [(slot, fake) for pair in zip(self.members, stand_ins) for slot, fake in zip(*pair)]
            for slot, fake in pairs:
                if slot.fake.grad is not None:
                    fake.grad = enter(f"{slot.name}.grad", partial(session.fake, slot.fake.grad))
                    owners[id(slot.owner)] = fake
            numbers = Numbers(mode, values, state, moving(tree))
            for key, value in (hidden or {}).items():
                setattr(self.optimizer, key, numbers.hidden(f"self.{key}", value))
            firsts: dict[str, int] = {}
            store = self._stored(tree, numbers, owners, state, firsts)
            groups = [{**group, "params": fakes} for group, fakes in zip(self.real_groups, stand_ins)]
            self._own(numbers, groups, store)
            ends: dict[str, int] = {}
            for slot, fake in pairs:
                ends[slot.name] = mode.value_of(fake)
                if fake.grad is not None:
                    ends[f"{slot.name}.grad"] = mode.value_of(fake.grad)
            after: Tree = {}
            real = {id(fake): slot.owner for slot, fake in pairs}
            with self.running(numbers):
                for name, place, leaf in self._leaves(store, real):
                    after[name] = place
                    if not place.is_plain:
                        ends[name] = mode.value_of(numbers.tensor(leaf) if isinstance(leaf, LiveNumber) else leaf)
                for name, leaf in self._changed(groups):
                    live = leaf if isinstance(leaf, LiveNumber) else numbers.constant(leaf)
                    ends[name] = mode.value_of(numbers.tensor(live))
            numbers.look()
            made = recorder.inputs[inputs:]
            fixed = [value for value, label in made if label not in entered]
            return Trial(
                list(recorder.nodes[nodes:]), {value: label for value, label in made if label in entered},
                dict(zip(fixed, mode.consts[consts:])), ends, after, firsts, numbers, recorder.types,
            )  # fmt: skip
        finally:
            del recorder.nodes[nodes:], recorder.inputs[inputs:], mode.consts[consts:]
            recorder.draws, mode.random, mode._known = draws, random, known

    # -- refusing -------------------------------------------------------------------------------------------

    def _check_constants(self, one: Trial, other: Trial) -> None:
        found = difference(one, other)
        if found is not None:
            raise Interrupted(moving_constant(type(self.optimizer).__name__, found))

    def _unsteady(self, one: Tree, other: Tree) -> Interrupted:
        before, after = facts(one), facts(other)
        name = next(name for name in {**one, **other} if before.get(name) != after.get(name))
        return Interrupted(
            TraceError(
                f"every step of {type(self.optimizer).__name__} changes how its state is built",
                rows=[("state", name)],
                help="keep tensors of fixed shape and numbers in the state, made in the first step",
            )
        )

    # -- what cannot change ---------------------------------------------------------------------------------

    def unchanged_options(self) -> list[str]:
        return [name for name in self.option_at if name not in self.slots or self.slots[name].now is None]

    def counts(self) -> dict[str, Count]:
        numbers = self.numbers
        if numbers is None:
            return {}
        options = set(self.unchanged_options())
        terms = {
            name: term
            for name, slot in self.slots.items()
            if name not in options
            and (term := numbers.term_of(self.session.recording.value_of(self.session.now(slot)))) is not None
        }  # fmt: skip
        while True:
            kept = {name: term for name, term in terms.items() if term.leaves <= terms.keys() | options}
            if len(kept) == len(terms):
                break
            terms = kept
        for guard in numbers.guards.values():
            lost = guard.leaves - kept.keys() - options
            if lost:
                raise TraceError(
                    "the optimizer's step decides by a number that depends on data, which capture cannot know",
                    rows=[("number", ", ".join(sorted(lost)))],
                    help="keep it a tensor: torch.where for a choice, torch.minimum and torch.maximum for a bound",
                )
        return {name: Count(self._host_of(name), term) for name, term in kept.items()}

    def _host_of(self, name: str) -> Callable[[], float]:
        if name in self.option_at:
            return self._host(name)
        place, optimizer = self.after[name], self.optimizer
        start = self.ledger.starts.get(name)

        def value() -> float:
            held = at(optimizer.state.get(place.owner), place.path)
            if held is None:
                return start.host if start is not None and start.host is not None else math.nan
            return float(held)

        return value

    def still_fresh(self) -> bool:
        held, kept = self.optimizer.state, self.ledger.tree
        return any(at(held.get(p.owner), p.path) is None and name not in kept for name, p in self.born.items())

    def tree_after(self) -> Tree:
        return self.after


def _as_tensor(numbers: Numbers, leaf: Any, slot: Slot) -> Any:
    if isinstance(leaf, LiveNumber):
        return None if leaf.key == ("leaf", slot.name) else numbers.tensor(leaf)
    if is_number(leaf):
        return numbers.tensor(numbers.constant(leaf))
    return None if leaf is slot.fake else leaf


def _holds(value: Any, stand_ins: Mapping[int, Any]) -> bool:
    return any(id(leaf) in stand_ins for _, leaf in leaves(value))


def _made(value: Any) -> bool:
    """Whether there is a fake in it, which the step has made; fakes of parameters are those of before."""
    return any(isinstance(leaf, FakeTensor) and not isinstance(leaf, torch.nn.Parameter) for _, leaf in leaves(value))


def _refuse_what_cannot_be(optimizer: Any) -> None:
    kind = type(optimizer).__name__
    if isinstance(optimizer, torch.optim.LBFGS):
        raise TraceError(
            f"the step of {kind} cannot be captured: it runs the model again and again, until numbers are small",
            help="train with another optimizer, or leave optimizer= out and step with the gradients",
        )
    for key, value in vars(optimizer).items():
        if isinstance(value, torch.optim.Optimizer):
            raise TraceError(
                f"{kind} steps by means of another optimizer, which it keeps as .{key}",
                help=f"pass the {type(value).__name__} itself, or write its step into this one's",
            )

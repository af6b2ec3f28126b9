"""`Checkpointed`: what a training step saves and loads: nested dicts, by names that do not depend on its programs.

| | |
|---|---|
| ``model`` | parameters and buffers, by the names that ``model.state_dict()`` has |
| ``optimizer`` | ``state`` by parameter; ``shared``: what it has for all; ``param_groups``: numbers and parameters |
| ``step`` | ``steps``, ``skipped``, the ``random`` key, ``buffers`` that steps change and the model does not save |

Gradients are no part of it: a step that has an optimizer leaves none, and others leave them for their user.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

from ...errors import CheckpointError
from ...frontends.base import BUFFER, GRADIENT, OPTIMIZER, PARAMETER, Input, Source
from ...ir.graph import TensorType
from ...run.engine import Engine, checkpoints_of, phase_of
from ...spec.sharding import ShardingSpec

Place = tuple[str | int, ...]
_GROUPS = ("optimizer", "param_groups")
_COUNTS = ("steps", "skipped")
_EXTRA = "extra"


@dataclass
class Held:
    """A piece of state: what the engine holds of it, and where it came from."""

    shards: Any
    spec: ShardingSpec
    shape: tuple[int, ...]
    source: Source
    slot: int
    changed: bool
    """Whether steps change it, so that it has to be written back."""


class Checkpointed:
    """The part of a `Step` that saves and loads its state."""

    engine: Engine
    steps: int
    skipped: int
    gradients: dict[str, Any]
    last_checkpoint: str | None
    _state: dict[str, Held]
    _failed: str

    @property
    def source(self) -> Source:
        raise NotImplementedError

    def _check_state(self) -> None:
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """The state: DTensors over the step's own shards where processes run, else copies as whole tensors.

        ``torch.distributed.checkpoint`` saves it, and loads it onto any other mesh.  Later steps do not change it.
        """
        self._check_state()
        engine, storage = self.engine, self._storage
        mesh = storage.mesh_of(engine)
        return self._tree(lambda kept: storage.placed(engine, kept.shards, kept.spec, kept.shape, mesh))

    def full_state_dict(self) -> dict[str, Any]:
        """The state as whole tensors on the CPU of rank 0, put together one by one; empty on other ranks.

        For files that other programs read: ``safetensors.torch.save_file(step.full_state_dict()["model"], path)``.
        """
        self._check_state()
        tree = self._tree(lambda kept: self._storage.assembled(self.engine, kept.shards, kept.spec, kept.shape))
        return tree if all(tensor is not None for _, tensor in _leaves(tree)) else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`: tensors into the step's shards, numbers into the options of its optimizers.

        Tensors are DTensors of the step's mesh, or whole ones that every rank gives.  What does not fit is refused
        before anything is changed.
        """
        if not isinstance(state, Mapping):
            raise CheckpointError(f"a state is a dict, not {state!r}", help="give what step.state_dict() returned")
        given = dict(_leaves(state))
        framework = self.source.framework
        places = self._places()
        tensors = {place: leaf for place, leaf in given.items() if hasattr(leaf, "shape")}
        rest = {place: leaf for place, leaf in given.items() if place not in tensors}
        self._check(places, {place: framework.array_type(leaf) for place, leaf in tensors.items()})
        counts, groups = self._numbers(rest)
        engine, storage = self.engine, self._storage
        mesh = storage.mesh_of(engine)
        storage.check_given(engine, tensors.values(), mesh)
        for name, place in _once(places).items():
            kept = self._state[name]
            kept.shards = storage.taken(engine, tensors[place], self._form(kept), kept.spec, mesh)
            kept.changed = True  # to be written back by `sync`, whether steps change it or not
        self._loaded(counts, groups)

    def save(self, path: str | PathLike[str], extra: Any = None) -> None:
        """Write a checkpoint: a folder of ``torch.distributed.checkpoint``; an earlier one of that path is replaced.

        It gets its name when all ranks have written their shards, so whenever this is cut off, the one before is there.
        ``extra`` is what else the run needs, such as ``scheduler.state_dict()``: plain values, which `restore` returns.
        """
        where = self._storage.checkpoint_path(path)
        self._storage.check_plain(extra)
        state = {**self.state_dict(), **({} if extra is None else {_EXTRA: (extra,)})}  # a tuple is saved whole
        with phase_of(self.engine, "saving"):
            self._storage.save(self.engine, state, where)
        self.last_checkpoint = str(where)

    def restore(self, path: str | PathLike[str], trusted: bool = False) -> Any:
        """Go on from a checkpoint, whatever the mesh that it was saved on; returns what was saved as ``extra``.

        What is of another model or optimizer is refused by name, before anything is changed.  A file that names more
        than tensors and numbers is refused, too: it could run anything; ``trusted`` reads it as PyTorch does.
        """
        engine, storage = self.engine, self._storage
        where = storage.checkpoint_path(path)
        found = storage.opened(engine, where, trusted)
        places = self._places()
        self._check(places, found.types)
        numbers = found.numbers()
        extra = numbers.pop((_EXTRA,), (None,))
        counts, groups = self._numbers(numbers)
        found.examine(places)
        mesh, once = storage.mesh_of(engine), _once(places)
        targets, forms = {}, {}
        try:
            for name, place in once.items():
                kept = self._state[name]
                forms[name] = form = self._form(kept)
                kept.shards = None  # old and new are never there in full at once
                targets[place] = storage.target(engine, form, kept.spec, kept.shape, mesh)
            with phase_of(self.engine, "loading"):
                found.read(targets)
        except BaseException as error:
            self._failed = f"{type(error).__name__} while a checkpoint was read"
            raise
        for name, place in once.items():
            kept = self._state[name]
            kept.shards = storage.filled(engine, targets.pop(place), forms[name], kept.spec, mesh)
            kept.changed = True
        self._loaded(counts, groups)
        self.last_checkpoint = str(where)
        return extra[0] if isinstance(extra, tuple) and extra else None

    # -- names ----------------------------------------------------------------------------------------------

    @property
    def _storage(self) -> Any:
        return checkpoints_of(self.source.framework)

    def _about(self, kept: Held) -> Input:
        return kept.source.inputs_are[kept.source.data_count + kept.slot]

    def _type(self, kept: Held) -> TensorType:
        graph = kept.source.graph
        return graph.type(graph.inputs[kept.source.data_count + kept.slot])

    def _form(self, kept: Held) -> Any:
        if kept.shards is not None:
            return self._storage.form(kept.shards)
        return self._storage.form_of(self.engine, kept.spec, kept.source.read(kept.slot), kept.shape)

    def _places(self) -> dict[Place, str]:
        """Where each piece of state stands; tied weights stand in several places."""
        known: dict[int, Mapping[str, tuple[str, ...]]] = {}
        found: dict[Place, str] = {}
        for name, kept in self._state.items():
            names = known.setdefault(id(kept.source), kept.source.saved_names())
            found.update(dict.fromkeys(_places_of(name, self._about(kept), names, kept.changed), name))
        return dict(sorted(found.items(), key=lambda item: str(item[0])))

    def _tree(self, tensor_of: Callable[[Held], Any]) -> dict[str, Any]:
        tree: dict[Any, Any] = {}
        for place, name in self._places().items():
            inner = tree
            for key in place[:-1]:
                inner = inner.setdefault(key, {})
            inner[place[-1]] = tensor_of(self._state[name])
        groups = self.source.option_groups()
        if groups:
            tree.setdefault("optimizer", {})["param_groups"] = groups
        tree.setdefault("step", {}).update({key: getattr(self, key) for key in _COUNTS})
        return tree

    # -- what comes in --------------------------------------------------------------------------------------

    def _check(self, places: Mapping[Place, str], found: Mapping[Place, TensorType]) -> None:
        """The same tensors, of the same types."""
        missing = [place for place in places if place not in found]
        extra = [place for place in found if place not in places]
        types = {place: self._type(self._state[name]) for place, name in places.items()}
        other = [place for place in places if place in found and found[place] != types[place]]
        rows = [("not in it", _listed(missing))] if missing else []
        rows += [("not here", _listed(extra))] if extra else []
        rows += [(_text(place), f"{found[place]} in it, {types[place]} here") for place in other[:5]]
        if rows:
            raise CheckpointError(
                "the checkpoint is not of this step: nothing was changed", rows=rows,
                help="make model and optimizer as they were when it was saved; a model alone is filled by "
                "torch.distributed.checkpoint.load({'model': model.state_dict()}), before the step is made",
            )  # fmt: skip

    def _numbers(self, found: Mapping[Place, Any]) -> tuple[dict[str, int], list[dict[str, Any]]]:
        """How many steps were made, and the options of every group; looked at."""
        counts: dict[str, int] = {}
        groups: dict[int, dict[str, Any]] = {}
        odd = []
        for place, value in found.items():
            if len(place) == 2 and place[0] == "step" and place[1] in _COUNTS and type(value) is int:
                counts[str(place[1])] = value
            elif len(place) == 4 and place[:2] == _GROUPS and isinstance(place[2], int):
                groups.setdefault(place[2], {})[str(place[3])] = value
            else:
                odd.append(place)
        if odd or len(counts) < len(_COUNTS) or sorted(groups) != list(range(len(groups))):
            raise CheckpointError(
                "the checkpoint's numbers are not those of a step: nothing was changed",
                rows=[("not known", _listed(odd))] if odd else [("missing", "how many steps were made, or options")],
                help="a checkpoint of a step is written by step.save, or from step.state_dict()",
            )
        made = [groups[at] for at in sorted(groups)]
        self.source.check_option_groups(made)
        return counts, made

    def _loaded(self, counts: Mapping[str, int], groups: Sequence[Mapping[str, Any]]) -> None:
        """The shards are there: whatever follows from them."""
        numbers: dict[str, float] = {}
        for name, kept in self._state.items():
            role = self._about(kept).role
            if role == GRADIENT and kept.shards is None:
                kept.shards = self._storage.zeros(self._form(kept))
            elif role == OPTIMIZER and not kept.shape:
                numbers[name] = float(self.engine.assemble(kept.shards, kept.spec, kept.shape))
        self.gradients, self._failed = {}, ""
        self.steps, self.skipped = counts["steps"], counts["skipped"]
        self.source.set_option_groups(groups)
        if self.steps:
            self.source.resumed(numbers)


def _places_of(name: str, about: Input, names: Mapping[str, tuple[str, ...]], changed: bool) -> list[Place]:
    """
    >>> average = Input("mlp.weight.exp_avg", OPTIMIZER, "mlp", "mlp.weight")
    >>> _places_of(average.name, average, {"mlp.weight": ("net.mlp.weight",)}, True)
    [('optimizer', 'state', 'net.mlp.weight', 'exp_avg')]
    """
    if about.role in (PARAMETER, BUFFER):
        saved = names.get(name, (name,))
        if saved:
            return [("model", one) for one in saved]
        return [("step", "buffers", name)] if changed else []
    if about.role == OPTIMIZER:
        if not about.owner:
            return [("optimizer", "shared", name)]
        owner = names.get(about.owner, (about.owner,))[0]
        return [("optimizer", "state", owner, name.removeprefix(f"{about.owner}."))]
    return [] if about.role == GRADIENT else [("step", name)]


def _once(places: Mapping[Place, str]) -> dict[str, Place]:
    """One place for each piece of state."""
    return {name: place for place, name in reversed([*places.items()])}


def _leaves(tree: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    """What stands where; lists that hold no dicts are values."""
    if isinstance(tree, Mapping):
        for key, part in tree.items():
            yield from _leaves(part, (*place, key))
    elif isinstance(tree, list) and any(isinstance(part, Mapping) for part in tree):
        for i, part in enumerate(tree):
            yield from _leaves(part, (*place, i))
    else:
        yield place, tree


def _text(place: Place) -> str:
    return ".".join(map(str, place))


def _listed(places: Sequence[Place]) -> str:
    more = f" and {len(places) - 5} more" if len(places) > 5 else ""
    return ", ".join(map(_text, places[:5])) + more

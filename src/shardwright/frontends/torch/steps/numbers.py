"""Numbers that stay alive: options and step counts of an optimizer, as its step computes with them.

An optimizer's Python code takes `LiveNumber`s for the numbers in its groups and in its state.  They are floats, so
that code which asks for floats is content, but arithmetic on them is written into the program, on tensors of no
dimension in float64, which is the precision of Python.  A comparison has to be decided while the program is captured:
it is decided by the present value, and kept as a `Guard`, which can be asked again later.  Where an operator takes
plain numbers only, an option is put in as it is, with a guard that it stays so; a number that every step changes
cannot be, and is refused.

`Term` is what is known of a number outside of the program: how it comes from options and counts.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import torch

from ....errors import TraceError
from ..compute import prepare
from ..dtypes import torch_dtype
from ..private import DisableTorchFunction, without_modes
from ..recording.aliasing import Record, read
from ..recording.dispatch import Interrupted, RecordingMode

Values = Callable[[str], float]


def _plainly(run: Callable[..., Any], numbers: Sequence[float]) -> float:
    """Not a number where Python raises: eager code does not get there, or raises, too."""
    try:
        made = run(*numbers)
    except (ArithmeticError, ValueError):
        return math.nan
    return math.nan if isinstance(made, complex) else float(made)


@dataclass(frozen=True, eq=False, slots=True)
class Term:
    """A number as a function of named ones.  Equal terms of one capture are one object."""

    run: Callable[..., float]
    parts: tuple[Term | float, ...]
    what: Any
    """Of terms that differ in nothing but their parts: equal."""
    leaf: str = ""
    """The name of an option or count; there is then nothing to run."""
    leaves: frozenset[str] = frozenset()

    def value(self, values: Values, known: dict[int, float] | None = None) -> float:
        known = {} if known is None else known
        if id(self) not in known:
            parts = [part.value(values, known) if isinstance(part, Term) else part for part in self.parts]
            known[id(self)] = values(self.leaf) if self.leaf else _plainly(self.run, parts)
        return known[id(self)]


@dataclass(frozen=True, slots=True)
class Guard:
    """A comparison that was decided when the program was captured."""

    test: Callable[[Any, Any], bool]
    left: Term | float
    right: Term | float

    def outcome(self, values: Values, known: dict[int, float] | None = None) -> bool:
        known = {} if known is None else known
        return bool(
            self.test(*[side.value(values, known) if isinstance(side, Term) else side for side in self._sides()])
        )

    def _sides(self) -> tuple[Term | float, Term | float]:
        return self.left, self.right

    @property
    def leaves(self) -> frozenset[str]:
        return frozenset().union(*(side.leaves for side in self._sides() if isinstance(side, Term)))


class LiveNumber(float):
    """A number of the program; its float is the present value, not a number where only data can tell."""

    __slots__ = ("build", "integer", "key", "label", "numbers", "term")

    numbers: Numbers
    key: Any
    term: Term | None
    build: Callable[[], Any]
    integer: bool
    label: str
    """Where not empty: a number that the optimizer hides from PyTorch, by name."""

    @classmethod
    def of(
        cls,
        numbers: Numbers,
        key: Any,
        value: float,
        term: Term | None,
        build: Callable[[], Any],
        integer: bool = False,
        label: str = "",
    ) -> Self:
        made = cls(value)
        made.numbers, made.key, made.term, made.build = numbers, key, term, build
        made.integer, made.label = integer, label
        return made

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    def __bool__(self) -> bool:
        return self.numbers.compare("ne", self, 0)

    def __float__(self) -> float:
        return float(self.numbers.plain(self, "float()"))

    def __int__(self) -> int:
        return int(self.numbers.plain(self, "int()"))

    __trunc__ = __int__

    def __index__(self) -> int:
        if not self.integer:
            raise TypeError("'float' object cannot be interpreted as an integer")
        return int(self.numbers.plain(self, "a place for whole numbers"))

    def __round__(self, digits: Any = None) -> Any:
        return round(self.numbers.plain(self, "round()"), digits)

    def __floor__(self) -> int:
        return math.floor(self.numbers.plain(self, "math.floor()"))

    def __ceil__(self) -> int:
        return math.ceil(self.numbers.plain(self, "math.ceil()"))

    def __pos__(self) -> Self:
        return self

    def __hash__(self) -> int:
        return hash(self.numbers.plain(self, "a key"))


_KEEP_WHOLE = ("add", "sub", "mul", "neg", "abs", "floordiv", "mod")


def _binary(name: str) -> tuple[Any, Any]:
    def forward(self: LiveNumber, other: Any) -> Any:
        return self.numbers.combine(name, self, other) if isinstance(other, int | float) else NotImplemented

    def reflected(self: LiveNumber, other: Any) -> Any:
        return self.numbers.combine(name, other, self) if isinstance(other, int | float) else NotImplemented

    return forward, reflected


def _comparison(name: str) -> Any:
    def compare(self: LiveNumber, other: Any) -> Any:
        return self.numbers.compare(name, self, other) if isinstance(other, int | float) else NotImplemented

    return compare


for _name in ("add", "sub", "mul", "truediv", "pow", "floordiv", "mod"):
    _forward, _reflected = _binary(_name)
    setattr(LiveNumber, f"__{_name}__", _forward)
    setattr(LiveNumber, f"__r{_name}__", _reflected)
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(LiveNumber, f"__{_name}__", _comparison(_name))
for _name in ("neg", "abs"):
    setattr(LiveNumber, f"__{_name}__", lambda self, _name=_name: self.numbers.combine(_name, self))

_PLAIN: dict[str, Callable[..., float]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "truediv": operator.truediv, "pow": operator.pow,
    "floordiv": operator.floordiv, "mod": operator.mod, "neg": operator.neg, "abs": operator.abs,
    "minimum": min, "maximum": max,
}  # fmt: skip
_MATH = {
    name: getattr(torch, name)
    for name in ("sqrt", "exp", "log", "log2", "log10", "log1p", "expm1", "sin", "cos", "tan", "tanh", "sigmoid")
    if hasattr(math, name)
} | {"fabs": torch.abs}
_PLAIN |= {name: getattr(math, name) for name in _MATH}
_ON_TENSORS: dict[str, Callable[..., Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "truediv": torch.div, "pow": operator.pow,
    "floordiv": torch.floor_divide, "mod": torch.remainder, "neg": torch.neg, "abs": torch.abs,
    "minimum": torch.minimum, "maximum": torch.maximum, **_MATH,
}  # fmt: skip
_TAKES_NUMBERS = ("add", "sub", "mul", "pow")


@dataclass
class Numbers:
    """The live numbers of one run of an optimizer's step."""

    mode: RecordingMode
    values: Mapping[str, float]
    """What options and counts are now."""
    input_of: Callable[[str], Any]
    """The tensor of no dimension that stands for an option or count in the program, made when it is first asked for."""
    moving: frozenset[str] = frozenset()
    """Names of numbers that steps change."""
    guards: dict[Any, Guard] = field(default_factory=dict)
    leaves: dict[int, str] = field(default_factory=dict)
    """Values of the program that stand for options and counts."""
    _tensors: dict[Any, Any] = field(default_factory=dict)
    _terms: dict[Any, Term] = field(default_factory=dict)
    _makers: dict[int, Any] = field(default_factory=dict)
    _seen: int = 0

    # Making them

    def leaf(self, name: str, integer: bool = False) -> LiveNumber:
        term = self._leaf(name) if name in self.values else None
        value = self.values.get(name, math.nan)

        def build() -> Any:
            tensor = self.input_of(name)
            if term is not None:
                self.leaves[self.mode.record_of(tensor).value] = name
            return self.at_no_dimension(tensor)

        return LiveNumber.of(self, ("leaf", name), value, term, build, integer)

    def constant(self, number: float, place: str = "") -> LiveNumber:
        """A plain number that is to be followed from here on; of each place there is another one."""
        term = self._term(("constant", number), lambda: number, (), ("constant", number))
        build = lambda: torch.full((), number, dtype=torch.float64)  # noqa: E731
        return LiveNumber.of(self, ("constant", number, place), number, term, build, isinstance(number, int))

    def hidden(self, label: str, number: float) -> LiveNumber:
        return LiveNumber.of(self, ("hidden", label), number, None, lambda: self._refuse_hidden(label), True, label)

    def item(self, tensor: Any) -> LiveNumber:
        """The number in a tensor, as it is now."""
        value = read(self.mode.recorder, self.mode.record_of(tensor), None)
        term = self.term_of(value)
        number = term.value(self.values.__getitem__) if term is not None else math.nan
        snapshot = self.mode.fake(tensor.detach())
        self.mode.track(snapshot, Record(value))
        whole = not tensor.is_floating_point()
        return LiveNumber.of(self, ("item", value), number, term, lambda: self.at_no_dimension(snapshot), whole)

    def at_no_dimension(self, tensor: Any) -> Any:
        tensor = tensor.reshape(()) if tensor.dim() else tensor
        return tensor.to(torch.float64)

    def combine(self, name: str, *operands: Any) -> LiveNumber:
        label = next((x.label for x in operands if isinstance(x, LiveNumber) and x.label), "")
        key = (name, *(x.key if isinstance(x, LiveNumber) else (type(x), x) for x in operands))
        number = _plainly(_PLAIN[name], [float.__pos__(x) if isinstance(x, LiveNumber) else x for x in operands])
        term = self._of_operands(key, _PLAIN[name], operands)
        integer = name in _KEEP_WHOLE and all(
            x.integer if isinstance(x, LiveNumber) else type(x) is int for x in operands
        )

        def build() -> Any:
            if label:
                self._refuse_hidden(label)
            whole = name not in _TAKES_NUMBERS
            given = [
                self.tensor(x) if isinstance(x, LiveNumber)
                else self.tensor(self.constant(x)) if whole else x
                for x in operands
            ]  # fmt: skip
            return _ON_TENSORS[name](*given)

        return LiveNumber.of(self, key, number, term, build, integer, label)

    def tensor(self, live: LiveNumber, dtype: Any = None) -> Any:
        """Its tensor, float64 unless another element type is asked for; equal numbers have one."""
        if live.key not in self._tensors:
            self._tensors[live.key] = live.build()
        made = self._tensors[live.key]
        if dtype is None or dtype == made.dtype:
            return made
        if (live.key, dtype) not in self._tensors:
            self._tensors[live.key, dtype] = made.to(dtype)
        return self._tensors[live.key, dtype]

    # Deciding by them

    def compare(self, name: str, left: Any, right: Any) -> bool:
        test = getattr(operator, name)
        sides: list[Term | float] = []
        for side in (left, right):
            if isinstance(side, LiveNumber):
                if side.label:
                    self._refuse_hidden(side.label)
                if side.term is None:
                    raise self.refusal(
                        "the optimizer's step decides by a number that depends on data, which capture cannot know",
                        "keep it a tensor: torch.where for a choice, torch.minimum and torch.maximum for a bound",
                        *([("number", side.key[1])] if side.key[0] == "leaf" else []),
                    )
                sides.append(side.term)
            else:
                sides.append(side)
        guard = Guard(test, sides[0], sides[1])
        self.guards.setdefault((name, *(id(s) if isinstance(s, Term) else s for s in sides)), guard)
        return guard.outcome(self.values.__getitem__)

    def truth(self, tensor: Any) -> bool | None:
        """Whether a tensor of one number is not zero, where options and counts tell."""
        number = self.item(tensor)
        return None if number.term is None else self.compare("ne", number, 0)

    def plain(self, live: LiveNumber, where: str) -> float:
        """The number itself, for what takes no tensors: an option must then stay what it is."""
        number = float.__pos__(live)
        if live.label:
            self._refuse_hidden(live.label)
        if live.term is None:
            raise self.refusal(
                f"the optimizer's step gives {where} a number that depends on data, as a plain number",
                "keep it a tensor, without .item() and float()",
            )
        moving = sorted(live.term.leaves & self.moving)
        if moving:
            raise self.refusal(
                f"the optimizer's step gives {where} a number that changes with every step, as a plain number: "
                f"{number:g} would be wrong from the next step on",
                "use tensor operations and Python's operators on it (+, *, **, math.sqrt), which are captured",
                ("depends on", ", ".join(moving)),
            )
        self.compare("eq", live, number)
        return int(number) if live.integer else number

    def refusal(self, fact: str, help: str, *rows: tuple[str, str]) -> Interrupted:
        place = self.mode.scopes.caller()
        return Interrupted(TraceError(fact, rows=[*rows, *([("at", str(place))] if place else [])], help=help))

    def _refuse_hidden(self, label: str) -> Any:
        raise self.refusal(
            f"the optimizer's step computes with {label}, a Python number that it changes itself: "
            "captured, it would be wrong from the second step on",
            'keep it where PyTorch saves it: self.state[p]["step"], or a number in param_groups',
            ("number", label),
        )

    # What is known outside of the program

    def _leaf(self, name: str) -> Term:
        return self._terms.setdefault(("leaf", name), Term(float, (), "leaf", name, frozenset((name,))))

    def _term(self, key: Any, run: Callable[..., float], parts: tuple[Term | float, ...], what: Any) -> Term:
        if key not in self._terms:
            leaves = frozenset().union(*(part.leaves for part in parts if isinstance(part, Term)))
            self._terms[key] = Term(run, parts, what, "", leaves)
        return self._terms[key]

    def _of_operands(self, key: Any, run: Callable[..., float], operands: tuple[Any, ...]) -> Term | None:
        parts: list[Term | float] = []
        for x in operands:
            if isinstance(x, LiveNumber):
                if x.term is None:
                    return None
                parts.append(x.term)
            else:
                parts.append(x)
        return self._term(key, run, tuple(parts), key[0])

    def look(self) -> None:
        """At the nodes that were written since."""
        nodes = self.mode.recorder.nodes
        for node in nodes[self._seen :]:
            self._makers.update(dict.fromkeys(node.results, node))
        self._seen = len(nodes)

    def term_of(self, value: int) -> Term | None:
        """How a value of the program comes from options and counts alone; None where anything else has a part."""
        if value in self.leaves:
            return self._leaf(self.leaves[value])
        if ("value", value) in self._terms:
            return self._terms["value", value]
        self.look()
        types, node = self.mode.recorder.types, self._makers.get(value)
        if node is None or len(node.results) != 1 or types[value].elements != 1 or node.op.startswith("random."):
            return None
        parts: list[Term | float] = []
        for operand in node.operands:
            if isinstance(operand, tuple):
                return None
            term = None if operand is None else self.term_of(operand)
            if operand is not None and (term is None or types[operand].elements != 1):
                return None
            if term is not None:
                parts.append(term)
        kinds = [None if operand is None else types[operand] for operand in node.operands]
        what = (node.op, repr(node.attrs), repr(kinds), types[value])
        return self._term(("value", value), _computes(node, kinds, types[value]), tuple(parts), what)


def _computes(node: Any, kinds: list[Any], result: Any) -> Callable[..., float]:
    """An op on single numbers, with PyTorch."""

    call: list[Any] = []
    wanted = [None if kind is None else (kind.shape, torch_dtype(kind.dtype)) for kind in kinds]

    def run(*numbers: float) -> float:
        given = iter(numbers)
        with without_modes(), DisableTorchFunction(), torch.no_grad():
            if not call:
                call.append(prepare(node.op, dict(node.attrs), [result]))
            operands = [None if kind is None else torch.full(kind[0], next(given), dtype=kind[1]) for kind in wanted]
            return float(call[0](operands)[0].item())

    return run


@contextmanager
def live_builtins(numbers: Numbers) -> Iterator[None]:
    """``min``, ``max`` and ``math.sqrt`` look at floats from within: while a step is captured, they take live ones."""

    def choosing(name: str, known: Any) -> Any:
        def choose(*args: Any, **kwargs: Any) -> Any:
            items = list(args) if len(args) > 1 else args[0] if isinstance(args[0], list | tuple) else ()
            if kwargs or not any(isinstance(item, LiveNumber) for item in items):
                return known(*args, **kwargs)
            made = items[0]
            for item in items[1:]:
                made = numbers.combine(name, made, item)
            return made

        return choose

    def function(name: str, known: Any) -> Any:
        def call(*args: Any) -> Any:
            if len(args) == 1 and isinstance(args[0], LiveNumber):
                return numbers.combine(name, args[0])
            return known(*args)

        return call

    def power(left: Any, right: Any) -> Any:
        if isinstance(left, LiveNumber) or isinstance(right, LiveNumber):
            return numbers.combine("pow", left, right)
        return before[math, "pow"](left, right)

    patched: list[tuple[Any, str, Any]] = [
        (builtins, "min", choosing("minimum", min)),
        (builtins, "max", choosing("maximum", max)),
        (math, "pow", power),
        *((math, name, function(name, getattr(math, name))) for name in _MATH),
    ]
    before = {(module, name): getattr(module, name) for module, name, _ in patched}
    try:
        for module, name, made in patched:
            setattr(module, name, made)
        yield
    finally:
        for (module, name), known in before.items():
            setattr(module, name, known)

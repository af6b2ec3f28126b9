"""One reader for every string: meshes, axes, specs, tensors and rules; it gives their parts.

Grammar (spaces are free between words):

    mesh     = [ name "=" int { "," name "=" int } ] [ ";" "devices=[" int { "," int } "]" ]
    axis     = name [ ":(" int ")" int ]
    axes     = "_" | ( axis | "?" ) { "+" ( axis | "?" ) }
    dim      = axes [ "!" int ]
    spec     = "[" [ dim { "," dim } ] "]" [ "//" partials ] [ "~" axis { "," axis } ]
    partials = partial { "," partial }        partial = axis | kind "(" axis ")"
    tensor   = dtype "[" [ int [ "@" axes ] { "," ... } ] "]" [ "//" partials ]
    rule     = tensors "->" tensors { ";" clause } [ "|" name "=" int { name "=" int } ]
    tensors  = dims { "," dims }              dims = "()" | { factor | "(" factor+ ")" | "..." | "1" }
    clause   = factor [ "@" int ] ":" word { word } | states "->" states
    state    = "R" | "P(" kind ")"

In a rule under a plan a factor may carry its axes, ``m/dp+tp``, and a result its pending ones,
``// tp+max(ep)``: joined by + there, since a comma begins the next result.
Errors carry the position, so that the caret stands under the spot.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn, Protocol

from ..errors import MeshError, NotationError, RuleError, ShardwrightError, near_misses
from .axes import Axes, AxisRef, merge_axes
from .collective import check_reduction
from .rule_parts import ELLIPSIS, FLAG_WORDS, ONE, REDUCED_BY, SAME, Dim, FactorNote, Pattern, Tensor, Transfer

_TOKEN = re.compile(r"\s*(?:(?P<int>[0-9]+)|(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<punct>->|//|\.\.\.|\S))")
MOST_DIGITS = 18
"""Of a number; no size, axis or device has more."""

Pending = list[tuple[AxisRef, str]]
"""Pending axes in the order in which they are written, each with its reduction."""
DimWords = tuple[Axes, bool, int | None]
"""Of one dim: the axes that cut it, whether it is open, its priority."""


class HasAxes(Protocol):
    """What a reader asks of a mesh."""

    def axis(self, text: str) -> AxisRef: ...

    def sub_axis(self, name: str, pre: int, size: int) -> AxisRef: ...


@dataclass(frozen=True, slots=True)
class Token:
    kind: str
    text: str
    at: int


class Reader:
    """Tokens of one string, with positions, and the small questions a parser asks."""

    pattern = _TOKEN

    def __init__(self, text: str, error: type[NotationError] = NotationError) -> None:
        self.text = text
        self.error = error
        self.tokens: list[Token] = []
        at = 0
        while found := self.pattern.match(text, at):
            kind = found.lastgroup or "punct"
            self.tokens.append(Token(kind, found.group(kind), found.start(kind)))
            at = found.end()
        self.tokens.append(Token("end", "", len(text.rstrip())))
        self.next = 0

    @property
    def token(self) -> Token:
        return self.tokens[self.next]

    def take(self) -> Token:
        token = self.token
        self.next += 1
        return token

    def peek(self, *texts: str) -> bool:
        token = self.token
        return token.kind != "end" and token.text in texts

    def skip(self, text: str) -> bool:
        if self.peek(text):
            self.next += 1
            return True
        return False

    def expect(self, text: str) -> Token:
        if not self.peek(text):
            self.fail(f"expected {text!r}{self._found()}")
        return self.take()

    def name(self, what: str) -> Token:
        if self.token.kind != "name":
            self.fail(f"expected {what}{self._found()}")
        return self.take()

    def integer(self, what: str) -> int:
        if self.token.kind != "int":
            self.fail(f"expected {what}{self._found()}")
        if len(self.token.text) > MOST_DIGITS:
            self.fail(f"{what} has {len(self.token.text)} digits")
        return int(self.take().text)

    def end(self) -> None:
        if self.token.kind != "end":
            self.fail(f"nothing should follow here{self._found()}")

    def _found(self) -> str:
        return ", the text ends" if self.token.kind == "end" else f", found {self.token.text!r}"

    def fail(self, fact: str, at: int | None = None, help: str | None = None) -> NoReturn:
        raise self.error(fact, text=self.text, at=self.token.at if at is None else at, help=help)


def parse_axis(text: str) -> tuple[str, int, int | None]:
    """``tp`` or ``tp:(1)2`` -> (name, pre, size); the size is None for the whole axis."""
    reader = Reader(text)
    parts = _axis_parts(reader)
    reader.end()
    return parts


def _axis_parts(reader: Reader) -> tuple[str, int, int | None]:
    name = reader.name("a mesh axis").text
    if not reader.skip(":"):
        return name, 1, None
    reader.expect("(")
    pre = reader.integer("the size of the more major part")
    reader.expect(")")
    return name, pre, reader.integer("the size of the sub-axis")


def _axis(reader: Reader, mesh: HasAxes) -> AxisRef:
    at = reader.token.at
    name, pre, size = _axis_parts(reader)
    try:
        return mesh.axis(name) if size is None else mesh.sub_axis(name, pre, size)
    except MeshError as error:
        raise error.place(reader.text, at) from None


def parse_mesh(text: str) -> tuple[tuple[int, ...], tuple[str, ...], tuple[int, ...] | None]:
    """``dp=2, tp=4`` -> sizes, names, device ids."""
    reader = Reader(text)
    sizes: list[int] = []
    names: list[str] = []
    ids: list[int] | None = None
    while reader.token.kind != "end":
        name = reader.name("an axis name").text
        reader.expect("=")
        if name == "devices" and reader.skip("["):
            ids = []
            while not reader.peek("]"):
                ids.append(reader.integer("a device id"))
                reader.skip(",")
            reader.expect("]")
            reader.end()
            break
        if name in names:
            raise MeshError(
                f"axis {name!r} stands twice in one mesh",
                text=text,
                at=reader.tokens[reader.next - 2].at,
                help="give each axis its own name",
            )
        names.append(name)
        sizes.append(reader.integer("the size of the axis"))
        if not reader.skip(",") and not reader.skip(";"):
            reader.end()
    return tuple(sizes), tuple(names), tuple(ids) if ids is not None else None


def _dim(reader: Reader, mesh: HasAxes) -> DimWords:
    axes, is_open = ((), False) if reader.skip("_") else _axes(reader, mesh)
    priority = reader.integer("a priority") if reader.skip("!") else None
    return axes, is_open, priority


def _axes(reader: Reader, mesh: HasAxes) -> tuple[Axes, bool]:
    found: list[AxisRef] = []
    is_open = False
    while True:
        if reader.skip("?"):
            is_open = True
        else:
            found.append(_axis(reader, mesh))
        if not reader.skip("+"):
            return merge_axes(found), is_open


def parse_dim(text: str, mesh: HasAxes) -> DimWords:
    reader = Reader(text)
    dim = _dim(reader, mesh)
    reader.end()
    return dim


def _partials(reader: Reader, mesh: HasAxes, between: str = ",") -> Pending:
    pairs: Pending = []
    while True:
        following = reader.tokens[reader.next + 1].text if reader.token.kind == "name" else ""
        if following == "(":
            word = reader.take()
            kind = _reduction(reader, word)
            reader.expect("(")
            axis = _axis(reader, mesh)
            reader.expect(")")
        else:
            kind, axis = "sum", _axis(reader, mesh)
        pairs.append((axis, kind))
        if not reader.skip(between):
            return pairs


def _reduction(reader: Reader, word: Token) -> str:
    try:
        return check_reduction(word.text)
    except ShardwrightError as error:
        raise error.place(reader.text, word.at) from None


def parse_partial(text: str, mesh: HasAxes) -> Pending:
    reader = Reader(text)
    partial = _partials(reader, mesh)
    reader.end()
    return partial


def _suffix(reader: Reader, mesh: HasAxes) -> tuple[Pending, list[AxisRef]]:
    partial = _partials(reader, mesh) if reader.skip("//") else []
    replicated: list[AxisRef] = []
    if reader.skip("~"):
        replicated.append(_axis(reader, mesh))
        while reader.skip(","):
            replicated.append(_axis(reader, mesh))
    return partial, replicated


def parse_spec(text: str, mesh: HasAxes) -> tuple[list[DimWords], Pending, list[AxisRef]]:
    """``[dp, tp+?, _] // ep ~ pp`` on a mesh -> its dims, pending axes and axes kept replicated."""
    reader = Reader(text)
    reader.expect("[")
    dims: list[DimWords] = []
    while not reader.peek("]"):
        dims.append(_dim(reader, mesh))
        if not reader.skip(","):
            break
    reader.expect("]")
    partial, replicated = _suffix(reader, mesh)
    reader.end()
    return dims, partial, replicated


def read_tensor(reader: Reader, mesh: HasAxes | None) -> tuple[str, tuple[int, ...], list[Axes], Pending]:
    """``f32[16@dp, 2048] // tp`` -> dtype, shape, axes of each dim, pending axes; without a mesh there are no axes."""
    dtype = reader.name("a dtype").text
    reader.expect("[")
    shape: list[int] = []
    dims: list[Axes] = []
    while not reader.peek("]"):
        shape.append(reader.integer("the size of a dim"))
        if reader.skip("@"):
            if mesh is None:
                reader.fail("axes on a tensor, but no mesh to read them on")
            dims.append(_axes(reader, mesh)[0])
        else:
            dims.append(())
        if not reader.skip(","):
            break
    reader.expect("]")
    partial = _partials(reader, mesh) if mesh is not None and reader.skip("//") else []
    return dtype, tuple(shape), dims, partial


# -- rules ----------------------------------------------------------------------------------------------


class RuleReader(Reader):
    """Reads a rule; factors may carry axes when a mesh is given."""

    def __init__(self, text: str, mesh: HasAxes | None = None) -> None:
        super().__init__(text, RuleError)
        self.mesh = mesh
        self.axes: dict[str, tuple[AxisRef, ...]] = {}
        self.places: dict[str, int] = {}
        self.counts = (0, 0)

    def rule(self) -> tuple[Pattern, dict[str, int]]:
        operands: tuple[Tensor, ...] = () if self.peek("->") else self.tensors(("->",))
        if not self.skip("->"):
            self.fail("a rule needs an arrow", help="write what comes out: 'm k, k n -> m n'")
        results = self.tensors((";", "|"), pending=True)
        self.counts = len(operands), len(results)
        notes: list[FactorNote] = []
        transfers: list[Transfer] = []
        while self.skip(";"):
            clause = self.clause()
            (notes if isinstance(clause, FactorNote) else transfers).append(clause)  # type: ignore[arg-type]
        sizes: dict[str, int] = {}
        if self.skip("|"):
            while self.token.kind == "name":
                name = self.take().text
                self.expect("=")
                sizes[name] = self.integer(f"the size of {name}")
        self.end()
        pattern = Pattern(operands, results, tuple(notes), tuple(transfers))
        self.check(pattern, sizes)
        return pattern, sizes

    def tensors(self, stop: tuple[str, ...], pending: bool = False) -> tuple[Tensor, ...]:
        found = [self.tensor(stop, pending)]
        while self.skip(","):
            found.append(self.tensor(stop, pending))
        return tuple(found)

    def tensor(self, stop: tuple[str, ...], pending: bool) -> Tensor:
        dims: list[Dim] = []
        seen: set[str] = set()
        while not self.peek(",", *stop) and self.token.kind != "end":
            if pending and self.mesh is not None and self.skip("//"):
                _partials(self, self.mesh, "+")  # follows from the factors; read to be skipped
                break
            at = self.token.at
            if self.skip("("):
                group: list[str] = []
                while not self.peek(")"):
                    group.append(self.factor(seen))
                self.expect(")")
                if group:
                    dims.append(tuple(group))
                elif dims or not (self.peek(",", "//", *stop) or self.token.kind == "end"):
                    self.fail("'()' stands for a tensor without dims", at, "leave it out")
            elif self.skip("..."):
                if ELLIPSIS in dims:
                    self.fail("'...' stands twice in one tensor", at)
                self.places.setdefault("...", at)
                dims.append(ELLIPSIS)
            elif self.skip("1"):
                dims.append(ONE)
            else:
                dims.append((self.factor(seen),))
        return tuple(dims)

    def factor(self, seen: set[str]) -> str:
        token = self.token
        if token.kind == "int":
            self.fail(
                f"a dim of fixed size {token.text} needs a factor name",
                help="only '1' may stand for itself",
            )
        name = self.name("a factor").text
        if name in seen:
            self.fail(
                f"factor {name!r} stands twice in one tensor",
                token.at,
                "a diagonal is not a factor; give each dim its own name",
            )
        seen.add(name)
        self.places.setdefault(name, token.at)
        if self.skip("/"):
            if self.mesh is None:
                self.fail("axes on a factor, but no mesh to read them on")
            axes = _axes(self, self.mesh)[0]
            if self.axes.setdefault(name, axes) != axes:
                self.fail(f"factor {name!r} carries different axes in two places", token.at)
        return name

    def clause(self) -> FactorNote | Transfer:
        start = self.token
        if self._at_transfer():
            operands = self.states()
            self.expect("->")
            transfer = Transfer(operands, self.states())
            if (len(transfer.operands), len(transfer.results)) != self.counts:
                self.fail(f"the transfer '{transfer}' does not have one state for each tensor", start.at)
            return transfer
        if self.skip("..."):
            factor = "..."
        else:
            factor = self.name("a factor, or a transfer like 'P(sum), R -> P(sum)'").text
        if factor not in self.places:
            self.fail(f"no factor is called {factor!r}", start.at, near_misses(factor, self.places))
        result: int | None = None
        if self.skip("@"):
            at = self.token.at
            result = self.integer("the number of a result")
            if result >= self.counts[1]:
                self.fail(f"there is no result {result}", at, "results are counted from 0")
        self.expect(":")
        words: list[str] = []
        while self.token.kind == "name":
            words.append(self.word())
        if not words:
            self.fail("expected what the factor is", help="one of " + ", ".join((*REDUCED_BY, *FLAG_WORDS, SAME)))
        return FactorNote(factor, tuple(words), result)

    def _at_transfer(self) -> bool:
        """Factors may be called R and P, too; what follows tells."""
        following = self.tokens[self.next + 1].text if self.token.kind != "end" else ""
        return (self.peek("R") and following in (",", "->")) or (self.peek("P") and following == "(")

    def word(self) -> str:
        token = self.take()
        if token.text == "form":
            self.expect("(")
            name = self.name("the name of a local form").text
            while self.skip("."):
                name += "." + self.name("the name of a local form").text
            self.expect(")")
            return f"form({name})"
        known = (*REDUCED_BY, *FLAG_WORDS, SAME)
        if token.text not in known:
            self.fail(
                f"a factor cannot be {token.text!r}",
                token.at,
                near_misses(token.text, known) or "one of " + ", ".join((*known, "form(name)")),
            )
        return token.text

    def states(self) -> tuple[str, ...]:
        found = [self.state()]
        while self.skip(","):
            found.append(self.state())
        return tuple(found)

    def state(self) -> str:
        if self.skip("R"):
            return "R"
        if not self.skip("P"):
            self.fail("expected 'R' or 'P(kind)'")
        self.expect("(")
        word = self.name("a reduction")
        kind = word.text if word.text == "any" else _reduction(self, word)
        self.expect(")")
        return f"P({kind})"

    def check(self, pattern: Pattern, sizes: dict[str, int]) -> None:
        left = {name for tensor in pattern.operands for dim in tensor for name in dim}
        new = {note.factor for note in pattern.notes if "new" in note.words}
        for tensor in pattern.results:
            for name in (name for dim in tensor for name in dim):
                if name in left or name in new or name in sizes or name in ONE:
                    continue
                if name == "...":
                    self.fail("'...' stands on the right but on no input", self._right_place(name))
                self.fail(
                    f"factor {name!r} appears on the right but on no input",
                    self._right_place(name),
                    _new_factor_help(name, pattern),
                )

    def _right_place(self, name: str) -> int:
        arrow = next(token.at for token in self.tokens if token.text == "->")
        return next(token.at for token in self.tokens if token.text == name and token.at > arrow)


def _new_factor_help(name: str, pattern: Pattern) -> str:
    left = [factor for tensor in pattern.operands for dim in tensor for factor in dim]
    right = {factor for tensor in pattern.results for dim in tensor for factor in dim}
    # A factor that several inputs share is contracted on purpose.
    spare = [f for f in left if left.count(f) == 1 and f not in right and f not in ("1", "...")]
    sized = f"size it as a new factor: rule(..., {name}=4)"
    return f"rename {spare[-1]!r} to {name!r}, or {sized}" if spare else sized


def read_rule(text: str) -> tuple[Pattern, dict[str, int]]:
    """A rule as written: its pattern, and the sizes that a bound rule's text carries."""
    return RuleReader(text).rule()


def parse_sharded_rule(text: str, mesh: HasAxes) -> tuple[Pattern, dict[str, tuple[AxisRef, ...]]]:
    """``m/dp k/tp, k/tp n -> m/dp n // tp`` -> the rule and the axes of its factors."""
    reader = RuleReader(text, mesh)
    pattern, _ = reader.rule()
    return pattern, reader.axes

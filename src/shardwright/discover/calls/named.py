"""What an operator names by itself: numbers, words and dtypes in its code, its documentation and its error messages.

A rule that was seen on accidental values fails, if it fails, near these: a threshold, a window, a size at which the
code branches.  So fresh calls are drawn around them.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..operator import Operator, Sample, names_dims
from .widen import runs, with_value

_MOST = 24
"""Constants of one kind that are used: code with more is a table, not a branch."""

_DTYPE = re.compile(r"(bool|u?int(8|16|32|64)|b?float(16|32|64)|complex(64|128)|half|double|long|short)")
_SHORT = {"half": "float16", "double": "float64", "long": "int64", "short": "int16", "bfloat16": "bfloat16"}


@dataclass(frozen=True)
class Named:
    """Constants by kind."""

    numbers: tuple[float, ...] = ()
    words: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """Whole numbers that a dim may have as its size, and multiples of one just beyond another."""
        found = [int(n) for n in self.numbers if n == int(n) and 1 <= n <= 48]
        beyond = [a * (b // a + 1) for a in found for b in found if 1 < a < b]
        return tuple(dict.fromkeys((*found, *beyond)))

    @property
    def counts(self) -> tuple[int, ...]:
        """Larger ones: a number of elements, perhaps."""
        return tuple(int(n) for n in self.numbers if n == int(n) and 8 < n <= 600) if self.numbers else ()


def named_by(operator: Operator) -> Named:
    """What the operator's Python code names; nothing of a kernel's."""
    numbers: dict[float, None] = {}
    words: dict[str, None] = {}
    dtypes: dict[str, None] = {}
    for value in _constants(operator.facts.get("code", operator.call), set(), 0):
        if isinstance(value, bool):
            continue
        if isinstance(value, (int, float)) and value == value and abs(value) < 1e12:
            numbers[value] = None
        elif isinstance(value, str):
            if (found := _DTYPE.fullmatch(value)) is not None:
                dtypes[_SHORT.get(found[0], found[0])] = None
            if re.fullmatch(r"[A-Za-z][\w\-]{0,23}", value):
                words[value] = None
    return Named(tuple(numbers)[:_MOST], tuple(words)[:_MOST], tuple(dtypes))


def _constants(call: Any, seen: set[int], depth: int) -> Iterator[Any]:
    """Numbers and words in a function's code, its closure, its defaults and the functions it calls."""
    if id(call) in seen or depth > 4:
        return
    seen.add(id(call))
    if isinstance(call, (bool, int, float, str)):
        yield call
    elif isinstance(call, (tuple, list, frozenset, set)):
        for item in list(call)[:_MOST]:
            yield from _constants(item, seen, depth + 1)
    elif isinstance(call, dict):
        for name, value in list(call.items())[:_MOST]:
            yield from _constants(name, seen, depth + 1)
            yield from _constants(value, seen, depth + 1)
    elif isinstance(call, types.MethodType):
        yield from _constants(call.__func__, seen, depth)
        yield from _constants(getattr(call.__self__, "__dict__", {}), seen, depth + 1)
    elif isinstance(call, types.FunctionType):
        yield from _in_function(call, seen, depth)
    elif hasattr(call, "func") and hasattr(call, "keywords"):  # functools.partial
        for part in (call.func, call.args, call.keywords):
            yield from _constants(part, seen, depth + 1)
    elif isinstance(call, types.CodeType):
        yield from call.co_names  # attributes, dtypes among them
        for value in call.co_consts:
            yield from _constants(value, seen, depth)


def _in_function(function: types.FunctionType, seen: set[int], depth: int) -> Iterator[Any]:
    code = function.__code__
    constants = code.co_consts
    if constants and constants[0] == function.__doc__:
        constants = constants[1:]
    yield from code.co_names
    for value in constants:
        yield from _constants(value, seen, depth)
    for cell in function.__closure__ or ():
        try:
            yield from _constants(cell.cell_contents, seen, depth + 1)
        except ValueError:  # an empty cell
            continue
    for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        yield from _constants(default, seen, depth + 1)
    modules = []
    for name in code.co_names:
        value = function.__globals__.get(name)
        if isinstance(value, types.ModuleType):
            modules.append(value)
        elif isinstance(value, types.FunctionType):
            if value.__module__ == function.__module__ and not (value.__module__ or "").startswith("torch"):
                yield from _constants(value, seen, depth + 1)
        elif isinstance(value, (int, float, str, tuple, list, dict, frozenset, set)):
            yield from _constants(value, seen, depth + 1)
    for module in modules:  # math.pi
        values = (getattr(module, name, None) for name in code.co_names)
        yield from (value for value in values if type(value) in (int, float))


def choices_of(operator: Operator, sample: Sample, name: str, documents: tuple[str, ...], named: Named) -> list[str]:
    """The words that an argument accepts: those that the call's error messages, the documentation or the code name, and
    with which this call runs."""
    found: dict[str, None] = {}
    texts = [*documents]
    for wrong in ("no such word", ""):
        changed = with_value(operator, sample, name, wrong)
        if changed is None:
            return []
        library = operator.library
        args, kwargs = changed.fill([library.copy(library.tensor(array)) for array in changed.tensors])
        try:
            operator.call(*args, **kwargs)
        except Exception as error:  # whatever the library raises: its text is what is wanted
            texts.insert(0, str(error)[:2000])
    for text in texts:
        found.update(dict.fromkeys(_words(text, name)))
    found.update(dict.fromkeys(named.words))
    return list(found)[:60]


def _words(text: str, name: str) -> Iterator[str]:
    """Words in quotes; of long texts those in the paragraphs that speak of the argument."""
    if len(text) > 2000:
        parts = re.split(r"\n\s*\n|\n(?=\s+\w+ \()", text)
        text = "\n".join(part for part in parts if re.search(rf"\b{re.escape(name)}\b", part))
    yield from re.findall(r"""["'`]+([A-Za-z][\w\-]{0,23})["'`]+""", text)
    for group in re.findall(r"(?:one of|either|expected|are|be):?\s+((?:\w+(?:,\s*|\s+or\s+|\s+and\s+))+\w+)", text):
        yield from re.findall(r"\b[A-Za-z]\w*\b", group)


def documents_of(operator: Operator) -> tuple[str, ...]:
    """The operator's own documentation."""
    own = inspect.getdoc(operator.facts.get("code", operator.call)) or ""
    return tuple(text for text in (own, *operator.facts.get("documents", ())) if text)


def numbers_in(operator: Operator, samples: Sequence[Sample]) -> list[float]:
    """Numbers among the arguments of calls."""
    found: dict[float, None] = {}
    for sample in samples:
        for name, value in sample.values(operator).items():
            if isinstance(value, (int, float)) and not isinstance(value, bool) and not names_dims(operator, name):
                found[float(value)] = None
    return list(found)


def dims_by_behaviour(operator: Operator, samples: Sequence[Sample]) -> tuple[str, ...]:
    """Arguments that take exactly the dims of the call's largest tensor: -n to n-1, in calls of two ranks."""
    found: dict[str, set[int]] = {}
    for sample in samples[:12]:
        rank = max((a.ndim for a in sample.tensors), default=0)
        for name, value in sample.values(operator).items():
            if rank and type(value) is int and not names_dims(operator, name) and -rank <= value < rank:
                changed = [(v, with_value(operator, sample, name, v)) for v in range(-rank - 1, rank + 1)]
                taken = [v for v, call in changed if call is not None and runs(operator, call)]
                ranks = found.setdefault(name, set())
                ranks.add(rank if taken == [*range(-rank, rank)] else 0)
    return tuple(name for name, ranks in found.items() if 0 not in ranks and ranks)

"""A concrete call through DTensor: whether it is at fault, and the smallest like it that still is.

Parts of the tensors are the only truth here: the whole tensors are put together from them, so that a case can be cut
and rounded at will, and stays a fair question.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..calls.forms import resized
from ..calls.widen import runs
from ..judging.encode import assemble, split
from ..operator import Array, Operator, Sample
from ..table import Inputs
from ..torch.ops import TORCH, call_sample, tensors_in
from .dtensor import Dispatched, run_dispatched

_TOLERANCE = 1e-7
"""Of the largest number in a result: float64 leaves 1e-16, and a wrong rule is off by far more."""
_ROUNDINGS = 64.0
"""What a narrower type may lose, in units of its precision, of the largest number that any rank holds."""


@dataclass(frozen=True)
class Case:
    """One call, and what each rank holds of its tensors."""

    operator: Operator
    sample: Sample
    inputs: Inputs
    world: int
    parts: tuple[tuple[Array, ...], ...]
    before: Sample | None = None
    """A call on the same tensors that ran before, and whose answer the cache may give again."""

    @property
    def elements(self) -> int:
        return sum(part.size for held in self.parts for part in held)


@dataclass(frozen=True)
class Fault:
    """A case that DTensor gets wrong."""

    case: Case
    how: str
    """What was seen, in a sentence."""
    raises: bool
    dispatched: Dispatched


def case_of(
    operator: Operator,
    sample: Sample,
    inputs: Inputs,
    world: int,
    encoding: str = "random",
    before: Sample | None = None,
) -> Case:
    """The sample with its tensors lying like this."""
    parts = tuple(
        tuple(split(array, placement, world, encoding, seed=i))
        for i, (array, placement) in enumerate(zip(sample.tensors, inputs))
    )
    return Case(operator, sample, inputs, world, parts, before)


def examine(case: Case) -> tuple[Dispatched, Fault | None, str]:
    """Run the case: what DTensor gave, the fault if there is one, and why it cannot be judged if it cannot."""
    whole = whole_sample(case)
    if whole is None:
        return Dispatched(), None, "its parts do not fit together"
    try:
        want = [TORCH.array(tensor) for tensor in tensors_in(call_sample(case.operator, whole))]
    except Exception as error:
        return Dispatched(), None, f"the plain call raises {type(error).__name__}"
    given = run_dispatched(
        case.operator.overload, whole, case.inputs, case.world, case.parts, before=_on(case.before, whole)
    )
    if given.before_raised:
        return given, None, f"the call before raises {given.error}"
    if given.error:
        return given, Fault(case, f"raises {given.error}", True, given), ""
    if len(given.outputs) != len(want):
        return given, None, f"it gives {len(given.outputs)} tensors, the plain call {len(want)}"
    for number, (got, true) in enumerate(zip(given.outputs, want)):
        off = difference(got, true, _largest(case))
        if off:
            which = f"output {number} is " if len(want) > 1 else "the result is "
            told = f" (said to be {given.placements[number]})"
            return given, Fault(case, which + off + told, False, given), ""
    if given.disagree:
        return given, Fault(case, "the ranks do not see the same result", False, given), ""
    return given, None, ""


def refused_locally(case: Case) -> bool:
    """Whether the plain operator does not take what some rank holds: then no rule could help."""
    for rank in range(case.world):
        try:
            call_sample(case.operator, case.sample.with_tensors(tuple(held[rank] for held in case.parts)))
        except Exception:  # whatever the library raises
            return True
    return False


def difference(got: Array, want: Array, held: float = 0.0) -> str:
    """How two results differ, beyond rounding; empty if they do not.  `held`: the largest number on any rank."""
    if got.shape != want.shape:
        return f"of shape {list(got.shape)} instead of {list(want.shape)}"
    if want.dtype.kind not in "fc":
        wrong = int((got != want).sum())
        return f"wrong in {wrong} of {want.size} elements" if wrong else ""
    with np.errstate(all="ignore"):
        largest = float(np.abs(want[np.isfinite(want)]).max(initial=0.0))
        precision = float(np.finfo(want.dtype).eps)
        allowed = _TOLERANCE * max(1e-3, largest)
        if precision > 1e-10:
            allowed = max(allowed, _ROUNDINGS * precision * max(largest, held))
        off = np.abs(got - want)
        fine = (off <= allowed) | (got == want) | (np.isnan(got) & np.isnan(want))
        if fine.all():
            return ""
        worst = float(np.where(fine, 0.0, off).max(initial=0.0))
    size = f"by up to {worst:.3g}" if np.isfinite(worst) else "NaN or Inf where it should not be"
    return f"wrong in {int((~fine).sum())} of {want.size} elements, {size}"


def _largest(case: Case) -> float:
    numbers = [np.abs(part[np.isfinite(part)]) for held in case.parts for part in held if part.dtype.kind in "fc"]
    return max((float(found.max(initial=0.0)) for found in numbers), default=0.0)


def whole_sample(case: Case) -> Sample | None:
    """The call on the tensors that the parts make."""
    tensors = [assemble(held, placement) for held, placement in zip(case.parts, case.inputs)]
    found = tuple(tensor for tensor in tensors if tensor is not None)
    return case.sample.with_tensors(found) if len(found) == len(tensors) else None


def evened(case: Case) -> Case | None:
    """The same call with every size a multiple of the number of ranks, so that whatever is cut is cut evenly.

    Pivots exchange nothing then: those of another size may be out of range, which kernels do not look at.
    """
    tensors = []
    for array, name in zip(case.sample.tensors, case.sample.tensor_names(case.operator)):
        shape = tuple(-(-size // case.world) * case.world for size in array.shape)
        pivots = name.partition("[")[0].endswith("pivots")
        tensors.append(
            np.broadcast_to(np.arange(1, shape[-1] + 1, dtype=array.dtype), shape).copy()
            if pivots
            else resized(array, shape)
        )
    sample = case.sample.with_tensors(tuple(tensors))
    if not runs(case.operator, sample):
        return None
    return case_of(case.operator, sample, case.inputs, case.world, before=case.before)


def simplified(fault: Fault) -> Fault:
    """The same fault on smaller tensors, fewer ranks and rounder numbers, as far as it goes."""
    best = fault
    for step in (_fewer_ranks, _smaller, _plainer_arguments, _rounder):
        for case in step(best.case):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = examine(case)[1]
            if found is not None and found.raises == fault.raises:
                best = found
                break
    return best


def _on(sample: Sample | None, whole: Sample) -> Sample | None:
    return None if sample is None else sample.with_tensors(whole.tensors)


def _fewer_ranks(case: Case) -> Iterator[Case]:
    for world in range(2, case.world):
        for encoding in ("random", "large"):
            yield case_of(case.operator, case.sample, case.inputs, world, encoding, case.before)


def _smaller(case: Case) -> Iterator[Case]:
    """Every dim cut to 2, or 3, or 4: where the call allows it."""
    for most in (2, 3, 4):
        parts = []
        for held, placement in zip(case.parts, case.inputs):
            whole = assemble(held, placement)
            if whole is None:
                return
            sizes = [min(size, most * case.world if placement.dim == d else most) for d, size in enumerate(whole.shape)]
            cut = tuple(slice(0, size) for size in sizes)
            if placement.kind == "S":
                parts.append(tuple(split(np.ascontiguousarray(whole[cut]), placement, case.world, "random", 0)))
            else:
                parts.append(tuple(np.ascontiguousarray(part[cut]) for part in held))
        smaller = replace(case, parts=tuple(parts))
        if smaller.elements < case.elements:
            yield smaller


def _rounder(case: Case) -> Iterator[Case]:
    for digits in (0, 1, 2):
        parts = tuple(tuple(_rounded(part, digits) for part in held) for held in case.parts)
        yield replace(case, parts=parts)


def _plainer_arguments(case: Case) -> Iterator[Case]:
    for digits in (0, 1):
        args = tuple(_plain(value, digits) for value in case.sample.args)
        kwargs = {name: _plain(value, digits) for name, value in case.sample.kwargs.items()}
        if (args, kwargs) != (case.sample.args, case.sample.kwargs):
            yield replace(case, sample=replace(case.sample, args=args, kwargs=kwargs))


def _plain(value: Any, digits: int) -> Any:
    return round(value, digits) if isinstance(value, float) and math.isfinite(value) else value


def _rounded(array: Array, digits: int) -> Array:
    return np.round(array, digits) + 0.0 if array.dtype.kind in "fc" else array

"""Makes a case smaller while it stays wrong in the same way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from .drawing import numeric
from .judging import BY_HAND, Case, Verdict, judge
from .programs import Call, Fill, FuzzProgram, Ref

MOST_TRIALS = 400


def shrink(case: Case, verdict: Verdict) -> Case:
    """The smallest case found that gives a verdict of the same kind; greedy, from large cuts to small ones."""
    trials = 0
    while trials < MOST_TRIALS:
        for smaller in smaller_cases(case):
            trials += 1
            if _size(smaller) < _size(case) and judge(smaller).kind == verdict.kind:
                case = smaller
                break
            if trials >= MOST_TRIALS:
                break
        else:
            break
    return case


def smaller_cases(case: Case) -> Iterator[Case]:
    """Cases with one thing less, those first that take away most."""
    for candidate in _programs(case):
        try:
            yield candidate.only(candidate.program.read())
        except (KeyError, IndexError):  # something that is needed was cut away
            continue
    yield from _requests(case)


def _programs(case: Case) -> Iterator[Case]:
    program, request = case.program, case.request
    n, returned = len(program.inputs), program.returned
    if program.backward:
        yield replace(case, program=replace(program, backward=False))
    if len(returned) > 1:
        for i in range(len(returned)):
            gradients = request.out_specs[len(returned) :]
            for outs in (request.out_specs[i : i + 1] + gradients, ()):
                yield Case(replace(program, returned=(returned[i],)), replace(request, out_specs=outs))
    values = _values(program)
    for made in range(n, n + len(program.calls)):  # what comes before a value is cut off
        fill = _fill_like(values[made], made, program)
        if fill is not None:
            yield _cut(case, made, fill)
    for made in reversed(range(n, n + len(program.calls))):  # what comes after it is
        if hasattr(values[made], "dtype") and returned != (made,):
            yield Case(replace(program, returned=(made,)), replace(request, out_specs=()))
    for made in reversed(range(n, n + len(program.calls))):  # a call is skipped
        for operand in program.calls[made - n].refs():
            if _alike(values[operand], values[made]):
                names = {i: operand if i == made else i for i in range(n + len(program.calls))}
                later = tuple(call.renamed(names) if i >= made else call for i, call in enumerate(program.calls, n))
                yield Case(replace(program, calls=later, returned=tuple(names[i] for i in returned)), request)
    for i in range(len(program.constraints)):
        yield Case(replace(program, constraints=program.constraints[:i] + program.constraints[i + 1 :]), request)
    for i, fill in enumerate(program.inputs):
        for simple in (replace(fill, kind="normal") if fill.kind == "nan" else fill, replace(fill, seed=0)):
            if simple != fill:
                yield Case(replace(program, inputs=(*program.inputs[:i], simple, *program.inputs[i + 1 :])), request)


def _requests(case: Case) -> Iterator[Case]:
    request = case.request
    for simple in (
        replace(request, memory=None), replace(request, uneven=False), replace(request, reload=False),
        replace(request, asked=()), replace(request, printed=False),
        replace(request, hardware="virtual"), replace(request, in_specs=()), replace(request, out_specs=()),
    ):  # fmt: skip
        yield replace(case, request=simple)
    if request.way != BY_HAND:
        yield replace(case, request=replace(request, way=BY_HAND, memory=None, uneven=False, asked=()))
    for name in ("in_specs", "out_specs"):
        specs = getattr(request, name)
        for i, spec in enumerate(specs):
            if spec is None:
                continue
            for simpler in (None, *_simpler(spec)):
                changed = (*specs[:i], simpler, *specs[i + 1 :])
                said: Any = {name: changed if any(changed) else ()}
                yield replace(case, request=replace(request, **said))
    axes = [axis.strip() for axis in request.mesh.split(",")]
    told = " ".join(map(str, (request.in_specs, request.out_specs, case.program.constraints, request.asked)))
    for i, axis in enumerate(axes):
        name, _, size = axis.partition("=")
        if len(axes) > 1 and name not in told:
            yield replace(case, request=replace(request, mesh=", ".join(axes[:i] + axes[i + 1 :])))
        for less in (2, 3):
            if less < int(size):
                mesh = ", ".join([*axes[:i], f"{name}={less}", *axes[i + 1 :]])
                yield replace(case, request=replace(request, mesh=mesh))


def _simpler(spec: str) -> Iterator[str]:
    """The sharding with one dim whole, or nothing pending."""
    head, slashes, pending = spec.partition(" // ")
    if slashes:
        yield head
    dims = head.strip("[]").split(", ") if head != "[]" else []
    for d, dim in enumerate(dims):
        if dim != "_":
            for less in dict.fromkeys(("_", dim.partition("+")[0])):
                if less != dim:
                    yield "[" + ", ".join([*dims[:d], less, *dims[d + 1 :]]) + "]" + slashes + pending


def _cut(case: Case, made: int, fill: Fill) -> Case:
    """The value becomes an input."""
    program, request = case.program, case.request
    n = len(program.inputs)
    names = {i: i + (i >= n) for i in range(n + len(program.calls))}
    names[made] = n
    calls = [call.renamed(names) for i, call in enumerate(program.calls, n)]
    calls[made - n] = Call("np.negative", (Ref(0),))  # nobody reads it
    cut = replace(
        program,
        inputs=(*program.inputs, fill),
        calls=tuple(calls),
        returned=tuple(names[i] for i in program.returned),
        constraints=tuple((names[i], spec) for i, spec in program.constraints if i != made),
    )
    return Case(cut, replace(request, in_specs=(*request.in_specs, None) if request.in_specs else ()))


def _fill_like(value: Any, made: int, program: FuzzProgram) -> Fill | None:
    """An input with numbers of the same kind as a value, if there is one."""
    if not hasattr(value, "dtype") or any(call.writes and made in call.refs() for call in program.calls):
        return None
    dtype, numbers = str(value.dtype).removeprefix("torch."), numeric(value)
    if numbers.dtype.kind == "c":
        return None
    gradient = program.backward and "float" in dtype
    if numbers.dtype.kind in "iu" and numbers.size and numbers.min() >= 0:
        return Fill(tuple(value.shape), dtype, 0, "below", int(numbers.max()) + 1)
    positive = numbers.dtype.kind == "f" and numbers.size and numbers.min() > 0
    return Fill(tuple(value.shape), dtype, 0, "positive" if positive else "normal", gradient=bool(gradient))


def _values(program: FuzzProgram) -> list[Any]:
    import warnings

    import numpy as np

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return program.values(program.arguments())


def _alike(a: Any, b: Any) -> bool:
    return all(hasattr(x, "dtype") for x in (a, b)) and (a.dtype, a.shape) == (b.dtype, b.shape)


def _size(case: Case) -> tuple[int, ...]:
    """How much there is to read."""
    program, request = case.program, case.request
    flags = (request.memory is not None, request.uneven, request.reload, request.printed)
    options = sum(flags) + len(request.asked) + (request.hardware != "virtual")
    said = len(str((request.in_specs, request.out_specs, program.constraints, request.mesh)))
    devices = 1
    for axis in request.mesh.split(","):
        devices *= int(axis.partition("=")[2])
    odd = sum((fill.kind == "nan") + (fill.seed != 0) for fill in program.inputs)
    return (
        2 * len(program.calls) + 2 * program.backward + len(program.inputs) + len(program.returned),
        options + (request.way != BY_HAND), said, devices, odd,
    )  # fmt: skip

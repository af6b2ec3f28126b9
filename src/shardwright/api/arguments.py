"""What users hand to `plan` and its kin, looked at before any work is done."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import MeshError, SpecError, TraceError, near_misses
from ..frontends.base import BUFFER, PARAMETER, Source, StepForm
from ..frontends.failing import check_call
from ..spec.mesh import DeviceMesh


def mesh_of(mesh: Any) -> DeviceMesh:
    """A mesh with at least one axis, in whatever form it is given."""
    found = DeviceMesh.of(mesh)
    if not found.axes:
        raise MeshError(
            "the mesh has no axis", rows=[("mesh", repr(mesh))], help='write mesh="dp=2, tp=4", or "d=1" for one device'
        )
    return found


def check_time_limit(time_limit: Any) -> None:
    """None, or seconds."""
    if time_limit is not None:
        check_seconds(time_limit, "time_limit")


def check_seconds(seconds: Any, name: str) -> None:
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not number or not 0 < seconds < math.inf:
        raise SpecError(
            f"{name} takes seconds, more than 0, not {seconds!r}",
            help=f"write {name}=30 for half a minute, or leave it out",
        )


def check_loss(loss: Any) -> None:
    """None, or something that can be called with a model's output alone."""
    if loss is None:
        return
    if not callable(loss):
        raise SpecError(f"loss= takes a function of the model's output, not {loss!r}", help=_LOSS)
    try:
        signature = inspect.signature(loss.forward if hasattr(loss, "forward") else loss)
    except (TypeError, ValueError):
        return  # builtins and the like do not say
    try:
        signature.bind(object())
    except TypeError as error:
        name = getattr(loss, "__name__", type(loss).__name__)
        raise SpecError(
            f"loss= is called with the model's output alone, which {name} does not take: {error}",
            rows=[("signature", f"{name}{signature}")], help=_LOSS,
        ) from None  # fmt: skip


_LOSS = (
    "targets are arguments of the model: write a module or function that takes them and returns the loss, "
    "or loss=lambda out: ..."
)


def check_path(path: Any, what: str) -> None:
    """None, or where a file is."""
    if path is not None and not isinstance(path, str | os.PathLike):
        raise SpecError(f"{what} takes the path of a file, not {path!r}")


def check_function(fn: Any, name: str) -> None:
    """Something that can be called and captured."""
    if isinstance(fn, type):
        raise SpecError(
            f"{name} takes a function or a module, not the class {fn.__name__}", help=f"make one: {fn.__name__}(...)"
        )
    if not callable(fn) and not hasattr(fn, "graph_module"):  # an ExportedProgram is called as its module
        raise SpecError(
            f"{name} takes a function or a module, not a {type(fn).__name__}",
            help=f"write {name}(fn, *args, mesh=...), where fn(*args) is what is to be split",
        )


def call_of(
    fn: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None,
    named: Mapping[str, Any],
    options: Callable[..., Any],
    name: str,
    decided: Sequence[str] = (),
) -> dict[str, Any]:
    """The function's keyword arguments, and that it can be called so.

    They are what ``kwargs`` holds, and plain keywords that its signature names.  Any other keyword is refused: an
    option of ours that is misspelt must not vanish in a function's ``**kwargs``.  ``decided`` are options of `plan`
    that say nothing here.
    """
    check_function(fn, name)
    found = {**(kwargs or {}), **named}
    called = getattr(fn, "__name__", type(fn).__name__)
    try:
        signature = inspect.signature(fn.forward if hasattr(fn, "forward") else fn)
    except (TypeError, ValueError):
        return found  # builtins and the like do not say
    named_kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    theirs = [parameter.name for parameter in signature.parameters.values() if parameter.kind in named_kinds]
    ours = [p.name for p in inspect.signature(options).parameters.values() if p.kind is p.KEYWORD_ONLY]
    unknown = next((key for key in named if key not in theirs), None)
    if unknown in decided:
        raise TraceError(
            f"{unknown}= is what the plan has decided", help=f"leave it out, or plan anew for another {unknown}"
        )
    if unknown is not None:
        takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
        own = f"kwargs={{{unknown!r}: ...}} hands it to {called}" if takes_any else None
        raise TraceError(
            f"{unknown!r} is neither an option of {name} nor a named parameter of {called}",
            rows=[("signature", f"{called}{signature}")],
            help=near_misses(unknown, [*ours, *theirs]) or own or "give the function's own arguments right after it",
        )
    check_call(fn, args, found)
    return found


def check_numbers(source: Source, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Refuse to run on tensors of the meta device, which have no numbers; planning does with them."""
    given = source.framework.leaves((args, dict(kwargs)))
    empty = next((i for i, leaf in enumerate(given) if getattr(leaf, "is_meta", False)), None)
    if empty is not None:
        raise SpecError(f"array {empty} of the call is on the meta device, so it has no numbers", help=_META)
    for slot, about in enumerate(source.inputs_are[source.data_count :]):
        if about.role in (PARAMETER, BUFFER) and getattr(source.read(slot), "is_meta", False):
            raise SpecError(f"{about.name} is on the meta device, so it has no numbers to compute with", help=_META)


_META = (
    "plan and prove as it is; to run it, make the model with numbers and bind the plan to it: "
    "sw.load_plan(plan.to_json(), model, *args, ...)"
)


def step_form(clip: Any, accumulate: Any, autocast: Any, reduce_dtype: Any, on_nonfinite: Any) -> StepForm:
    """What belongs to a training step beside its model, looked at."""
    number = isinstance(clip, int | float) and not isinstance(clip, bool)
    if clip is not None and (not number or not clip > 0):
        raise SpecError(f"clip_grad_norm= takes a norm, more than 0, not {clip!r}", help="write clip_grad_norm=1.0")
    if not isinstance(accumulate, int) or isinstance(accumulate, bool) or accumulate < 1:
        raise SpecError(f"accumulate= takes a number of batches, 1 or more, not {accumulate!r}")
    if autocast is not None and not getattr(autocast, "is_floating_point", False):  # as of torch.dtype
        text = f"the text {autocast!r}" if isinstance(autocast, str) else repr(autocast)
        raise SpecError(f"autocast= takes an element type, not {text}", help="write autocast=torch.bfloat16")
    for option, dtype in (("autocast", autocast), ("reduce_dtype", reduce_dtype)):
        if "float16" in str(dtype) and "bfloat16" not in str(dtype):
            raise SpecError(
                f"{option}= in float16 needs a scaled loss, which follows what overflows in step after step",
                help=f"use torch.bfloat16, whose range is that of float32: {option}=torch.bfloat16",
            )
    if reduce_dtype is not None:
        raise SpecError("reduce_dtype= cannot be chosen yet: gradients are summed in the type that they have")
    return StepForm(None if clip is None else float(clip), accumulate, autocast, reduce_dtype, on_nonfinite is not None)

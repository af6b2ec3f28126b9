"""`Answers`: what calls return, remembered within one capture.

A deep model makes the same few hundred calls over and over, and asking PyTorch for the shape that a call returns takes
longer than all else in a capture.  Of equal calls only the first asks; the others get new tensors like its answer, and
views into the memory of their own operands.  That holds where nothing but shapes, strides and element types of the
operands decides about the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import torch

from ..private import DisableTorchDispatch, DisableTorchFunction, FakeTensor, active_fake_mode
from ..signatures import Signature, tensors_in

_META = torch.device("meta")


class _Made(NamedTuple):
    """A tensor that was returned, and what it has of the operands."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    offset: int = 0
    memory_of: int | None = None
    """The operand in whose memory it lies; None for memory of its own."""
    is_operand: int | None = None
    """The operand that was written and returned."""


class _Answer(NamedTuple):
    results: tuple[_Made | None, ...]
    container: type[list[Any]] | type[tuple[Any, ...]] | None


class Answers:
    def __init__(self) -> None:
        self._known: dict[Hashable, _Answer] = {}

    def ask(
        self, form: Signature, operands: Sequence[Any], attrs: dict[str, Any], kwargs: dict[str, Any],
        call: Callable[[], Any],
    ) -> Any:  # fmt: skip
        """What a call returns on fake tensors."""
        key = self.key(form, operands, attrs, kwargs)
        if key is None:
            return call()
        known = self._known.get(key)
        if known is not None:
            return _again(known, operands)
        made = call()
        # What has another shape or other strides afterwards was not only written.
        if not form.mutates or self.key(form, operands, attrs, kwargs) == key:
            answer = _answer(made, operands, form)
            if answer is not None:
                self._known[key] = answer
        return made

    def key(self, form: Signature, operands: Sequence[Any], attrs: dict[str, Any], kwargs: dict[str, Any]) -> Hashable:
        """What the answer to a call depends on; None if it cannot be remembered."""
        if form.changes_metadata or kwargs.get("layout") not in (None, torch.strided):
            return None
        parts: list[Hashable] = [
            form.name, repr(attrs), kwargs.get("device"), torch.get_default_dtype(), torch.is_inference_mode_enabled(),
        ]  # fmt: skip
        fake = False
        for operand in operands:
            several = isinstance(operand, list)
            for tensor in operand if several else (operand,):
                if tensor is None:
                    parts.append(None)
                    continue
                if isinstance(tensor, FakeTensor):
                    fake = True
                    if tensor.constant is not None:
                        return None  # its number is known, and so may be that of the result
                elif not tensor.is_meta:
                    return None
                if not _is_plain(tensor):
                    return None
                parts += (tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.device)
            parts.append(len(operand) if several else -1)
        return tuple(parts) if fake or active_fake_mode() is not None else None


def _is_plain(tensor: Any) -> bool:
    return tensor.layout is torch.strided and not tensor.dtype.is_complex and not tensor.is_neg()


def _answer(made: Any, operands: Sequence[Any], form: Signature) -> _Answer | None:
    """What is remembered of results; None if they are no such tensors."""
    several = isinstance(made, list | tuple)
    tensors = list(tensors_in(operands))
    results: list[_Made | None] = []
    for result in made if several else (made,):
        if result is None and several:
            results.append(None)
            continue
        if not isinstance(result, FakeTensor) or result.constant is not None or not _is_plain(result):
            return None
        made_so = _Made(result.shape, result.stride(), result.dtype, result.fake_device, int(result.storage_offset()))
        memory = result.untyped_storage()._cdata
        shared = [i for i, tensor in enumerate(tensors) if tensor.untyped_storage()._cdata == memory]
        same = [i for i in shared if tensors[i] is result]
        if same:
            results.append(made_so._replace(is_operand=same[0]))
        elif form.mutates:
            return None
        elif shared and tensors[shared[0]].dtype is result.dtype:
            results.append(made_so._replace(memory_of=shared[0]))
        elif shared or form.is_view or result.storage_offset():
            return None
        else:
            results.append(made_so)
    return _Answer(tuple(results), type(made) if several else None)


def _again(answer: _Answer, operands: Sequence[Any]) -> Any:
    tensors = list(tensors_in(operands))
    mode = next((tensor.fake_mode for tensor in tensors if isinstance(tensor, FakeTensor)), None) or active_fake_mode()
    with DisableTorchFunction(), DisableTorchDispatch():
        results = [None if made is None else _tensor(made, tensors, mode) for made in answer.results]
    return results[0] if answer.container is None else answer.container(results)


def _tensor(made: _Made, tensors: Sequence[Any], mode: Any) -> Any:
    if made.is_operand is not None:
        return tensors[made.is_operand]
    if made.memory_of is None:
        plain = torch.empty_strided(made.shape, made.stride, dtype=made.dtype, device=_META)
    else:
        plain = torch.empty(0, dtype=made.dtype, device=_META)
        plain.set_(tensors[made.memory_of].untyped_storage(), made.offset, made.shape, made.stride)
    return FakeTensor(mode, plain, made.device)

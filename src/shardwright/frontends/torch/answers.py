"""`Answers`: what calls return, remembered within one capture.

A deep model makes the same few hundred calls over and over, and asking PyTorch for the shape that a call returns takes
longer than all else in a capture.  Of equal calls only the first asks; the others get a new tensor like its answer.
That holds for ops whose one result is a tensor of its own, and where nothing but shapes, strides and element types of
the operands decides about it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch

from .private import DisableTorchFunction, FakeTensor, unset_fake_temporarily
from .signatures import Signature

Answer = tuple[Any, torch.Size, tuple[int, ...], torch.dtype, torch.device]
"""Whose fake tensor it was, and all that it was."""


class Answers:
    def __init__(self) -> None:
        self._known: dict[Hashable, Answer] = {}

    def key(self, form: Signature, operands: Sequence[Any], attrs: dict[str, Any], kwargs: dict[str, Any]) -> Hashable:
        """What the answer to a call depends on; None if it cannot be remembered."""
        if form.is_view or form.functional or kwargs.get("layout") not in (None, torch.strided):
            return None
        parts: list[Hashable] = [form.name, repr(attrs), torch.get_default_dtype(), torch.is_inference_mode_enabled()]
        for operand in operands:
            for tensor in operand if isinstance(operand, list) else (operand,):
                if tensor is None:
                    parts.append(None)
                elif tensor.constant is not None or tensor.layout is not torch.strided or tensor.dtype.is_complex:
                    return None  # its numbers are known, and so may be those of the result; or it is no plain tensor
                else:
                    parts += (tensor.shape, tensor.stride(), tensor.dtype, tensor.fake_device)
            parts.append(len(operand) if isinstance(operand, list) else -1)
        return tuple(parts)

    def again(self, key: Hashable) -> Any:
        """A new tensor like the one that such a call returned; None if there was none."""
        known = self._known.get(key) if key is not None else None
        if known is None:
            return None
        mode, shape, stride, dtype, device = known
        with DisableTorchFunction(), unset_fake_temporarily():
            return FakeTensor(mode, torch.empty_strided(shape, stride, dtype=dtype, device="meta"), device)

    def remember(self, key: Hashable, made: Any) -> None:
        if key is None or not isinstance(made, FakeTensor) or made.constant is not None:
            return
        if made.layout is torch.strided and not made.dtype.is_complex and not made.storage_offset():
            self._known[key] = (made.fake_mode, made.shape, made.stride(), made.dtype, made.fake_device)

"""`NeutralForms`: keeps a program independent of the device it is captured on.

It stands above PyTorch's dispatcher, where a call still is what the user wrote: attention and dropout stay one op
each, and every device the user names becomes the one of the fake tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from ....errors import TraceError
from ..private import active_in_backward, mkldnn_enabled, set_mkldnn_enabled
from .attention import whole_attention
from .dispatch import Interrupted
from .recorder import Recorder

_DEVICES = ("cuda", "meta", "xpu", "mps", "npu", "hpu", "xla")
_ATTENTION = (
    F.scaled_dot_product_attention,
    torch.ops.aten.scaled_dot_product_attention,
    torch.ops.aten.scaled_dot_product_attention.default,
)
_DROPOUT = (F.dropout, torch.dropout, torch.ops.aten.dropout, torch.ops.aten.dropout.default)
_LEAVES = (torch.Tensor.numpy, torch.Tensor.__array__)
_MOVES = (torch.Tensor.cuda, torch.Tensor.cpu)


class NeutralForms(TorchFunctionMode):
    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _ATTENTION:
            return whole_attention(*args, **kwargs)
        if func in _DROPOUT:
            return _dropout(*args, **kwargs)
        if func is F.multi_head_attention_forward:
            with attention_inside():
                return func(*args, **kwargs)
        if func in _MOVES:
            return args[0]
        if func in _LEAVES:
            error = TraceError(
                "a traced tensor cannot become a NumPy array: it has no numbers",
                help="compute with torch, or take what NumPy computes as an argument",
            )
            raise Interrupted(error)
        if "device" in kwargs:
            kwargs = {**kwargs, "device": _here(kwargs["device"])}
        elif func is torch.Tensor.to:
            args = tuple(_here(arg) for arg in args)
        return func(*args, **kwargs)


@contextmanager
def attention_inside() -> Iterator[None]:
    """A function of PyTorch's that calls attention itself: a mode does not see what its own handler calls."""
    known = F.scaled_dot_product_attention
    F.scaled_dot_product_attention = whole_attention
    try:
        yield
    finally:
        F.scaled_dot_product_attention = known


@contextmanager
def neutral_forms(recorder: Recorder) -> Iterator[None]:
    """Everything in this file, for the time of a capture."""
    mode = NeutralForms(recorder)
    with mode, active_in_backward(mode), autocast_here(), plain_recurrence(), draws_with_the_generator(recorder):
        yield


@contextmanager
def autocast_here() -> Iterator[None]:
    """``torch.autocast("cuda", ...)`` would do nothing on the fake tensors' device; it means the device of the run."""
    begin = torch.autocast.__init__

    def init(self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        begin(self, "cpu", torch.get_autocast_dtype(device_type) if dtype is None else dtype, *args, **kwargs)

    torch.autocast.__init__ = init  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.autocast.__init__ = begin  # type: ignore[method-assign]


@contextmanager
def plain_recurrence() -> Iterator[None]:
    """Without oneDNN, whose fused recurrent layers are the CPU's own: `torch.nn.LSTM` is recorded step by step.

    Set directly, since `torch.backends.mkldnn.flags` also sets, and warns of, what Intel's GPUs do.
    """
    before = mkldnn_enabled()
    set_mkldnn_enabled(False)
    try:
        yield
    finally:
        set_mkldnn_enabled(before)


@contextmanager
def draws_with_the_generator(recorder: Recorder) -> Iterator[None]:
    """Setting the generator back, as checkpointing does before it recomputes, sets back the numbering of draws.

    So a dropout that is recomputed has the ``draw`` of the first time, and drops the same elements.
    """
    get, put = torch.get_rng_state, torch.set_rng_state
    known: list[tuple[Any, int]] = []

    def get_rng_state() -> Any:
        known.append((get(), recorder.draws))
        return known[-1][0]

    def set_rng_state(new_state: Any) -> None:
        for before, draws in known:
            if before is new_state:
                recorder.draws = draws
        put(new_state)

    torch.get_rng_state, torch.set_rng_state = get_rng_state, set_rng_state
    try:
        yield
    finally:
        torch.get_rng_state, torch.set_rng_state = get, put


def _here(device: Any) -> Any:
    if isinstance(device, torch.device) or (isinstance(device, str) and device.split(":")[0] in _DEVICES):
        return torch.device("cpu")
    return device


def _dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """On a CPU, dropout is a draw and a product; as one op the mask is a result that the backward op reads."""
    if not training or p == 0.0:
        return input
    made = torch.native_dropout(input, p, True)[0]
    return input.copy_(made) if inplace else made

"""Parameters that repeat a size of the result, or of an operand, and so mean another number on a shard.

While a program is captured they are spelled out (``view(-1)`` becomes the size it has); when an op is computed they
are taken from the result's type.  To extend: add the op here, or a kernel to `kernels` if that is not enough.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ....ir.graph import TensorType

_SIZE = (
    "view", "_unsafe_view", "reshape", "_reshape_alias", "expand", "expand_copy", "broadcast_to", "full",
    "zeros", "ones", "empty.memory_format", "rand", "randn", "randint", "randint.low",
    "new_zeros", "new_ones", "new_full", "new_empty",
)  # fmt: skip
_INPUT_SIZES = ("slice_backward", "select_backward", "diagonal_backward", "unfold_backward")
_INPUT_SIZE = tuple(
    f"{kind}_backward"
    for kind in ("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d",
                 "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d",
                 "_upsample_bilinear2d_aa", "upsample_bicubic2d", "_upsample_bicubic2d_aa", "upsample_trilinear3d")
)  # fmt: skip

WHOLE_SHAPE: dict[str, str] = {
    **dict.fromkeys((f"aten.{name}" for name in _SIZE), "size"),
    **dict.fromkeys((f"aten.{name}" for name in _INPUT_SIZES), "input_sizes"),
    **dict.fromkeys((f"aten.{name}" for name in _INPUT_SIZE), "input_size"),
    "aten.value_selecting_reduction_backward": "sizes",
}
"""The parameter that is the shape of the (only) result."""


def local_sizes(op: str, attrs: dict[str, Any], results: Sequence[TensorType]) -> dict[str, Any]:
    """Attributes with the sizes that the results have here.

    >>> local_sizes("aten.zeros", {"size": (8, 4)}, [TensorType((2, 4))])
    {'size': (2, 4)}
    """
    if op in WHOLE_SHAPE:
        return {**attrs, WHOLE_SHAPE[op]: results[0].shape}
    if op in ("aten.embedding_dense_backward", "aten._embedding_bag_dense_backward", "aten._embedding_bag_backward"):
        return {**attrs, "num_weights": results[0].shape[0]}
    if op == "aten.one_hot":
        return {**attrs, "num_classes": results[0].shape[-1]}
    if op == "aten.convolution_backward" and attrs["bias_sizes"] is not None:
        return {**attrs, "bias_sizes": results[-1].shape}
    return attrs


OperandSizes = Callable[[dict[str, Any], Sequence[Any]], dict[str, Any]]


def _group_norm(position: int) -> OperandSizes:
    def sizes(attrs: dict[str, Any], operands: Sequence[Any]) -> dict[str, Any]:
        """Channels are split by whole groups, so the number of groups shrinks with them."""
        count, channels, *space = operands[position].shape
        area = 1
        for size in space:
            area *= size
        groups = attrs["group"] * channels // attrs["C"]
        return {**attrs, "N": count, "C": channels, "HxW": area, "group": groups}

    return sizes


def _convolution(place: int) -> OperandSizes:
    def sizes(attrs: dict[str, Any], operands: Sequence[Any]) -> dict[str, Any]:
        """Channels are split by whole groups, so the number of groups shrinks with them."""
        first, weight = operands[0], operands[place + 1]
        at = 1 - len(weight.shape)
        here = operands[place].shape[at]
        told = {**attrs, "groups": attrs["groups"] * here // attrs.get("channels", here)}
        if attrs.get("bias_sizes") is not None:
            told["bias_sizes"] = (first.shape[at],)
        return told

    return sizes


_CONTIGUOUS = ("adaptive_max_pool3d_backward", "fractional_max_pool3d_backward", "_embedding_bag",
               "_embedding_bag_forward_only", "_embedding_bag_backward", "_embedding_bag_dense_backward",
               "_embedding_bag_per_sample_weights_backward", "native_layer_norm_backward")  # fmt: skip
"""Of views their kernels give other numbers, or bring the process down."""


def _as_they_are(attrs: dict[str, Any], operands: Sequence[Any]) -> dict[str, Any]:
    """Nothing to tell, but operands are taken for contiguous."""
    return attrs


_OPERAND_SIZES: dict[str, OperandSizes] = {
    "aten.native_group_norm": _group_norm(0),
    "aten.native_group_norm_backward": _group_norm(1),
    "aten.convolution": _convolution(0),
    "aten.convolution_backward": _convolution(1),
    **dict.fromkeys((f"aten.{name}" for name in _CONTIGUOUS), _as_they_are),
}


def operand_sizes(op: str, attrs: Mapping[str, Any]) -> OperandSizes | None:
    """For ops whose sizes are those of an operand, known only when they run: a function of attributes and operands."""
    return None if op == "aten.convolution" and attrs["groups"] == 1 else _OPERAND_SIZES.get(op)


def grouped_channels(op: str, attrs: Mapping[str, Any], operands: Sequence[Any]) -> int | None:
    """Of a grouped convolution: how many input channels there are in all.  Its own attribute, since no shard tells."""
    place = {"aten.convolution": 0, "aten.convolution_backward": 1}.get(op)
    if place is None or attrs["groups"] == 1:
        return None
    return int(operands[place].shape[1 - operands[place + 1].dim()])

"""What planning needs of PyTorch programs.  Imported only where tensors of PyTorch are met."""

from __future__ import annotations

from typing import Any

import torch

from ..frontends.torch import Captured, capture, capture_step
from ..frontends.torch.private import tree_unflatten
from ..spec.mesh import DeviceMesh
from ..spec.sharding import ShardingSpec
from .shard_map import in_specs_by_position
from .torch_programs import Leaf, bind, spread


def captured_problem(
    fn: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    mesh: DeviceMesh,
    in_specs: Any,
    out_specs: Any,
    optimizer: Any,
    loss: Any,
) -> tuple[Captured, dict[int, ShardingSpec], dict[int, ShardingSpec]]:
    """The captured program, and the shardings that the user gave for its arguments and results."""
    if optimizer is not None or loss is not None:
        captured = capture_step(fn, *args, optimizer=optimizer, loss=loss, **kwargs)
    else:
        captured = capture(fn, *args, **kwargs)
    graph = captured.graph
    forward = fn.forward if isinstance(fn, torch.nn.Module) else fn
    given = spread(in_specs_by_position(in_specs, forward, args, kwargs), (args, dict(kwargs)), "in_specs")
    values = {
        value: bind(spec, mesh, graph, value, graph.values[value].name)
        for value, spec in zip(graph.inputs, given)
        if spec is not None
    }
    wanted = {}
    if out_specs is not None:
        filled = [Leaf() if is_tensor else None for is_tensor in captured.out_tensors]
        asked = spread(out_specs, tree_unflatten(filled, captured.out_spec), "out_specs")
        wanted = {
            i: bind(spec, mesh, graph, graph.outputs[i], f"output {i}")
            for i, spec in enumerate(asked)
            if spec is not None
        }
    return captured, values, wanted

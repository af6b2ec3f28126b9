"""An operator of your own: which shardings of it are valid, found by running it on shards."""

from __future__ import annotations

import torch

from shardwright.discover import analyze_and_synthesize


@torch.library.custom_op("examples::scaled_columns", mutates_args=())
def scaled_columns(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return x * scale


@scaled_columns.register_fake
def _(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def main() -> None:
    op, name = torch.ops.examples.scaled_columns, "examples.scaled_columns"
    found = analyze_and_synthesize(op, name, input_ndims=[2, 1], input_shape=(8, 4))
    print(found["formatted"])


if __name__ == "__main__":
    main()

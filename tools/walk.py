"""Follow one weight from `sw.plan` to the collective that moves it: which files does it meet?

    python tools/walk.py                # a training step of PyTorch
    python tools/walk.py --numpy        # a function of NumPy

A small model is planned and trained once to load everything, then once more under a profiler.  The weight has a shape
that nothing else has.  A file is *met by the weight* when a function in it is handed the weight: its array or a shard,
its type, its entry in the graph or the program, its name, its sharding, a request about it, or a short list that holds
one of these.  Files that a newcomer would have to open to follow it are these; *entered at all* are those in which
anything ran, for whichever tensor.  The forms of "a plan" and of "what was asked" that were met are listed, too.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import shardwright as sw

ROOT = str(Path(sw.__file__).parent) + "/"
SHAPE = (508, 64)
"""Of the weight."""
SHARDS = {(508, 64), (254, 64), (127, 64), (508, 32), (508, 16), (64, 508)}
NAMES = {"0.weight", "w1"}
FORMS = (".Plan", ".Planned", ".Candidate", ".Solved", ".Lowered", ".Asked", ".Wish", ".Said")
"""Names of types that hold a plan or what was asked, those that older versions had included."""


def is_of_weight(item: Any, deep: int = 1) -> bool:
    """Whether something is the weight itself, one of its shards, or speaks of it alone."""
    kind = type(item).__name__
    if isinstance(item, str):
        return item in NAMES
    if kind in ("ndarray", "Tensor", "Parameter", "FakeTensor", "TensorType"):
        return tuple(item.shape) in SHARDS
    if kind == "Tracer":
        try:
            return tuple(item._shape) in SHARDS
        except AttributeError:  # it is just being made
            return False
    if kind in ("Value", "Local", "Input"):
        return item.name in NAMES
    if kind == "Request":
        return bool(NAMES & set(item.says)) if isinstance(item.says, tuple) else False
    if kind in ("list", "tuple") and deep and len(item) < 16:
        return any(is_of_weight(part, deep - 1) for part in item)
    return False


class Walk:
    """What a profiler sees."""

    def __init__(self) -> None:
        self.entered: set[str] = set()
        self.met: dict[str, str] = {}
        self.forms: set[str] = set()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(ROOT) or code.co_name == "<module>":
            return
        file = code.co_filename.removeprefix(ROOT)
        self.entered.add(file)
        count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
        for name in code.co_varnames[:count]:
            item = frame.f_locals.get(name)
            kind = f"{type(item).__module__}.{type(item).__name__}".removeprefix("shardwright.")
            if kind.endswith(FORMS):
                self.forms.add(kind)
            if file not in self.met and is_of_weight(item):
                self.met[file] = code.co_name


def walk(program: Callable[[], None]) -> Walk:
    """Run a program twice, and look at the second time."""
    program()
    found = Walk()
    sys.setprofile(found)
    try:
        program()
    finally:
        sys.setprofile(None)
    return found


def numpy_program() -> None:
    args = [np.ones(shape) for shape in ((16, 508), SHAPE, (64, 508))]
    constraints = {"w1": "[dp+tp, _]"}
    plan = sw.plan(lambda x, w1, w2: np.maximum(x @ w1, 0) @ w2, *args, mesh="dp=2, tp=2", constraints=constraints)
    plan(*args)
    assert plan.collectives


def torch_program() -> None:
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(SHAPE[1], SHAPE[0]), torch.nn.ReLU(), torch.nn.Linear(SHAPE[0], 8))
    optimizer, x = torch.optim.AdamW(model.parameters()), torch.ones(16, SHAPE[1])
    plan = sw.plan(
        model, x, optimizer=optimizer, loss=torch.sum, mesh="dp=2, tp=2", constraints={"0.weight": "[dp+tp, _]"}
    )
    plan.step()(x)
    assert any(c.kind == "all_gather" for c in plan.collectives)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--numpy", action="store_true")
    found = walk(numpy_program if parser.parse_args().numpy else torch_program)
    for file, function in found.met.items():
        print(f"{file:48} {function}")
    print(f"{len(found.met)} files are met by the weight, {len(found.entered)} are entered at all")
    print(f"forms of a plan and of what was asked: {', '.join(sorted(found.forms))}")


if __name__ == "__main__":
    main()

"""Every rank: checkpoints of a training step, saved and gone on from, here and on other meshes; a kill while saving."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.tensor import DTensor

import shardwright.torch as swt
from shardwright.errors import CheckpointError, RankError, ShardwrightError

CUT = {"x": "[dp, _]", "y": "[dp, _]"}
MESHES: dict[str, dict[str, Any]] = {
    "dp=4": {"recipe": "zero3"},
    "dp=2, tp=2": {"specs": {**CUT, "*first.weight*": "[tp, _]", "first.bias*": "[tp]", "*second.weight*": "[_, tp]"}},
    "dp=3": {"specs": {**CUT, "*first.weight*": "[dp, _]", "*second.bias*": "[dp]"}},
    "tp=2": {"specs": {"*first.weight*": "[tp, _]", "*second.weight*": "[_, tp]"}},
    "dp=1": {"recipe": "replicated"},
    "tp=2, dp=2": {"specs": {**CUT, "first.weight*": "[dp+tp, _]", "second.weight": "[_, dp]"}},
    "dp=1, tp=4": {"specs": {"first.weight*": "[tp:(1)2, tp:(2)2]"}},
}
DRAW = torch.Generator().manual_seed(1)
DATA = [
    (torch.randn(12, 8, generator=DRAW, dtype=torch.float64), torch.randn(12, 4, generator=DRAW, dtype=torch.float64))
    for _ in range(6)
]


class Net(torch.nn.Module):
    def __init__(self, wide: int = 16) -> None:
        super().__init__()
        self.first = torch.nn.Linear(8, wide)
        self.dropout = torch.nn.Dropout(0.2)
        self.second = torch.nn.Linear(wide, 4)
        self.register_buffer("mean", torch.zeros(wide))

    def forward(self, x: Any, y: Any) -> Any:
        hidden = torch.relu(self.first(x))
        with torch.no_grad():
            self.mean.mul_(0.9).add_(hidden.mean(0))
        return (self.second(self.dropout(hidden + self.mean)) - y).square().mean()


def made(mesh: str, seed: int = 0, wide: int = 16) -> Any:
    torch.manual_seed(seed)
    net = Net(wide)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    return swt.train_step(net, optimizer=optimizer, batch=DATA[0], mesh=mesh, data="global", verify="off",
                          clip_grad_norm=1.0, accumulate=2, **MESHES[mesh])  # fmt: skip


def tensors(tree: Any, path: str = "") -> dict[str, Any]:
    if isinstance(tree, dict):
        return {key: leaf for name, part in tree.items() for key, leaf in tensors(part, f"{path}{name}.").items()}
    return {path: tree} if isinstance(tree, torch.Tensor) else {}


def whole(step: Any) -> dict[str, Any]:
    """The state as whole tensors, on every rank."""
    found = tensors(step.state_dict())
    return {key: leaf.full_tensor() if isinstance(leaf, DTensor) else leaf for key, leaf in found.items()}


def check_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys(), (one.keys(), other.keys())
    assert [key for key in one if not torch.equal(one[key], other[key])] == []


def said(text: str) -> None:
    print(f"passed {text}", flush=True)


def save(path: Path) -> None:
    """On four: what is written, and that going on is as never having stopped."""
    step = made("dp=4")
    for batch in DATA[:3]:
        step(*batch)
    step.save(path)
    assert step.last_checkpoint == str(path)
    assert sorted(entry.name for entry in path.iterdir()) == [".metadata", *(f"__{r}_0.distcp" for r in range(4))]
    state = step.state_dict()
    assert all(isinstance(leaf, DTensor) for leaf in tensors(state).values())
    full = step.full_state_dict()
    assert bool(full) == (dist.get_rank() == 0)
    if full:
        torch.save(full, path.with_suffix(".whole"))
        check_same(tensors(full), tensors(torch.load(path.with_suffix(".whole"))))
        written = sum(file.stat().st_size for file in path.glob("*.distcp"))
        most = sum(leaf.nbytes for leaf in tensors(full).values())
        assert written < most + 3000 * 4 * len(tensors(full)), "what all have is written once"
    resumed = made("dp=4", seed=dist.get_rank())
    resumed.restore(path)
    check_same(whole(resumed), whole(step))
    for batch in DATA[3:]:
        assert torch.equal(resumed(*batch), step(*batch))
    check_same(whole(resumed), whole(step))
    said("stopped and gone on")
    dcp.save(state, checkpoint_id=path.with_name("by hand"))
    resumed.restore(path.with_name("by hand"))
    assert resumed.steps == 3
    step.load_state_dict(state)
    check_same(whole(resumed), whole(step))
    said("saved by PyTorch")


def resume(path: Path, mesh: str) -> None:
    """Going on here is starting here from the gathered state."""
    resumed, started = made(mesh, seed=5), made(mesh, seed=6)
    resumed.restore(path)
    started.load_state_dict(torch.load(path.with_suffix(".whole")))
    assert (resumed.steps, started.steps) == (3, 3)
    check_same(whole(resumed), whole(started))
    for batch in DATA[3:]:
        assert torch.equal(resumed(*batch), started(*batch))
    check_same(whole(resumed), whole(started))
    resumed.save(path.with_name(mesh))
    started.restore(path.with_name(mesh))
    check_same(whole(resumed), whole(started))
    said(f"resumed on {mesh}")


class Malicious:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.system, (f"touch '{self.marker}'",)


def refused(path: Path) -> None:
    """On every rank, whoever found it, and nothing is changed."""
    step = made("dp=2, tp=2", wide=20)
    before = copy.deepcopy(whole(step))
    for wrong, says in ((path, "model.first.weight"), (path.with_name("none"), "there is no checkpoint")):
        try:
            step.restore(wrong)
        except CheckpointError as error:
            assert says in str(error), error
        else:
            raise AssertionError("loaded")
    step, elsewhere = made("dp=2, tp=2"), made("dp=4").state_dict()
    marker = path.with_name("it ran")
    if dist.get_rank() == 0:
        (bad := path.with_name("bad")).mkdir()
        for file in path.iterdir():
            (bad / file.name).write_bytes(file.read_bytes())
        torch.save(Malicious(marker), bad / "__9_0.distcp")
        metadata = pickle.loads((bad / ".metadata").read_bytes())
        info = next(info for index, info in metadata.storage_data.items() if index.fqn == "model.second.weight")
        info.relative_path, info.offset, info.length = "__9_0.distcp", 0, (bad / "__9_0.distcp").stat().st_size
        (bad / ".metadata").write_bytes(pickle.dumps(metadata))
    dist.barrier()
    before = copy.deepcopy(whole(step))
    for call, wrong, says in (
        (step.restore, path.with_name("bad"), "posix.system"),
        (step.save, path.with_name(f"rank {dist.get_rank()}"), "different paths"),
        (step.save, path.with_suffix(".whole"), "a file is where"),
        (step.load_state_dict, elsewhere, "a DTensor of another mesh"),
    ):
        try:
            call(wrong)
        except ShardwrightError as error:
            assert isinstance(error, CheckpointError | RankError)
            assert says in str(error), error
        else:
            raise AssertionError("loaded or saved")
        check_same(whole(step), before)
    assert not marker.exists()
    said("refused")


def kill(path: Path) -> None:
    """A rank dies while shards are written."""
    step = made("dp=2, tp=2", seed=5)
    step.restore(path)
    step(*DATA[3])
    write = dcp.FileSystemWriter.write_data

    def dying(self: Any, *args: Any) -> Any:
        made = write(self, *args)
        if dist.get_rank() == 2:
            print("fault", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        return made

    dcp.FileSystemWriter.write_data = dying
    step.save(path)
    raise AssertionError("saved")


def main() -> None:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    dist.init_process_group("gloo")
    path = Path(sys.argv[1])
    if dist.get_world_size() == 4:
        save(path)
        refused(path)
    for mesh in sys.argv[2:]:
        resume(path, mesh)
    if dist.get_world_size() == 4:
        kill(path)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

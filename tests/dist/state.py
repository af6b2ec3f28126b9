"""Every rank: state that all ranks start from: rank 0's, sent shard by shard; or compared, tensor by tensor."""

from __future__ import annotations

import os
from typing import Any

import torch

from shardwright.errors import RankError
from shardwright.run.torch import TorchEngine
from shardwright.run.torch.held import Held

DTYPES = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.float16,
          torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128, torch.float8_e4m3fn)  # fmt: skip
MESHES = ("w=4", "dp=2, tp=2", "dp=2, tp=2; devices=[3, 1, 0, 2]", "w=4; devices=[2, 0, 3, 1]")
CUT = {
    "w": ("[w, _]", "[_, w]", "[_, _]", "[w:(1)2, _]", "[_, w:(2)2]", "[w:(2)2, w:(1)2]"),
    "dp": ("[dp, tp]", "[tp, dp]", "[dp, _]", "[_, tp]", "[dp+tp, _]", "[tp+dp, _]", "[_, _]", "[_, _] // dp",
           "[tp, _] // dp"),
}  # fmt: skip
SHAPES = ((8, 4), (5, 3), (1, 6), (0, 3), (2, 0))


def whole(shape: tuple[int, ...], dtype: torch.dtype) -> Any:
    """The same on every rank."""
    made = torch.randint(0, 100, shape, generator=torch.Generator().manual_seed(7)).to(torch.float32)
    return (made > 50).to(dtype) if dtype is torch.bool else made.to(dtype)


def own(tensor: Any, rank: int, meta: bool) -> Any:
    """Other ranks have other values, or none."""
    if rank == 0:
        return tensor
    return torch.empty_like(tensor, device="meta") if meta else torch.zeros_like(tensor)


def sent() -> None:
    for mesh in MESHES:
        engine = TorchEngine(mesh)
        for dtype in DTYPES:
            specs = [spec for spec in CUT[mesh.partition("=")[0]] if "//" not in spec or dtype is torch.float32]
            cases = [(spec, shape) for spec in specs for shape in (SHAPES if dtype is torch.float32 else SHAPES[1:2])]
            for meta in (False, True) if dtype is torch.float32 else (True,):
                right = [whole(shape, dtype) for _, shape in cases]
                found = engine.load_from_rank0([own(one, engine.rank, meta) for one in right], [s for s, _ in cases])
                for (spec, shape), one, shard in zip(cases, right, found):
                    expected = engine.scatter(one, spec)
                    assert shard.dtype is dtype
                    assert shard.shape == expected.shape, (mesh, spec, shape)
                    assert bytes_of(shard) == bytes_of(expected), (mesh, spec, shape, shard, expected)
                    assert shard.untyped_storage().nbytes() == shard.numel() * shard.element_size()
        number = torch.tensor(3.5 if engine.rank == 0 else 0.0)
        assert engine.load_from_rank0([number], ["[]"], ["lr"])[0].item() == 3.5
        assert engine.counts["load"] > 1


def bytes_of(tensor: Any) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def held() -> None:
    """Beside its shards a rank holds little more than one tensor; gloo's threads let go of it when they come to it."""
    engine = TorchEngine("dp=2, tp=2")
    size = 64 * 64 * 4
    model = [own(torch.ones(64, 64), engine.rank, True) for _ in range(10)]
    with Held([] if engine.rank else model) as counted:
        shards = engine.load_from_rank0(model, ["[dp, tp]"] * 10)
    assert sum(shard.numel() * 4 for shard in shards) == 10 * size // 4
    extra = counted.peak - 10 * size // 4 - (0 if engine.rank else 10 * size)
    assert extra <= 3 * size, extra / size


def compared() -> None:
    engine = TorchEngine("dp=2, tp=2")
    state = {"up.weight": torch.ones(3, 4), "up.bias": torch.zeros(3), "steps": torch.tensor(0)}
    names = list(state)

    def refused() -> str:
        try:
            engine.check_equal(list(state.values()), names)
        except RankError as error:
            return str(error)
        return ""

    assert refused() == ""
    if engine.rank == 2:
        state["up.bias"] = torch.tensor([0.0, 0.0, -0.0])
    assert "rank 2 has other values of 'up.bias' than ranks 0, 1, 3" in refused()
    state["up.bias"] = torch.zeros(3, device="meta" if engine.rank == 1 else "cpu")
    assert "rank 1 has no values of 'up.bias': it is on the meta device" in refused()
    state["up.bias"] = torch.zeros(4 if engine.rank > 1 else 3)
    assert "ranks 2, 3 have other values of 'up.bias' than ranks 0, 1" in refused()


def unlike() -> None:
    """Ranks that brought other models are told before anything is sent."""
    engine = TorchEngine("dp=2, tp=2")

    def refused(shape: tuple[int, ...], dtype: torch.dtype, spec: str) -> str:
        try:
            engine.load_from_rank0([torch.ones(2), torch.ones(*shape, dtype=dtype)], ["[_]", spec], ["a", "b"])
        except RankError as error:
            return str(error)
        return ""

    odd = engine.rank == 3
    fact = "rank 3 has another shape, type or sharding of 'b' than ranks 0, 1, 2"
    assert fact in refused((4, 6 if odd else 4), torch.float32, "[dp, _]")
    assert fact in refused((4, 4), torch.float64 if odd else torch.float32, "[dp, _]")
    assert fact in refused((4, 4), torch.float32, "[tp, _]" if odd else "[dp, _]")
    assert refused((4, 4), torch.float32, "[dp, _]") == ""
    try:
        engine.load_from_rank0([torch.ones(2)] * (2 if odd else 1), ["[_]"] * (2 if odd else 1))
    except RankError as error:
        assert "rank 3 has another number of tensors than ranks 0, 1, 2" in str(error), error
    else:
        raise AssertionError("another number of tensors")
    try:
        engine.load_from_rank0([torch.ones(2, device="meta")], ["[_]"], ["w"])
    except RankError as error:
        assert "rank 0 has no values of 'w': it is on the meta device" in str(error), error
    else:
        raise AssertionError("no values")


def main() -> None:
    torch.set_num_threads(1)
    os.environ.pop("SHARDWRIGHT_TIMEOUT", None)
    for check in (sent, held, compared, unlike):
        check()
        print(f"passed {check.__name__}", flush=True)


if __name__ == "__main__":
    main()

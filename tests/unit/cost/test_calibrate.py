"""Calibration: from measurements of a pretended machine to a file that is hardware again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from shardwright.cost import Link, compute_cost, hardware_of
from shardwright.run import calibrate as module
from shardwright.run.calibrate import calibrate
from shardwright.spec.rule import OpShardingRule


class Pretended(module._Numpy):
    """A device whose calls take 2 us, 1 ns for 1000 operations of f32, 500 of f64, and 1 ns for 10 bytes."""

    memory = 16 * 10**9  # type: ignore[assignment]
    title = "pretended, for tests"  # type: ignore[assignment]

    def product(self, m: int, k: int, n: int, dtype: type) -> Callable[[], object]:
        narrow = dtype.__name__ == "float32"
        size = (4 if narrow else 8) * (m * k + k * n + m * n)
        return lambda: 2e-6 + 2 * m * k * n / (1e12 if narrow else 5e11) + size / 1e10

    def move(self, count: int) -> Callable[[], object]:
        return lambda: 2e-6 + 8 * count / 1e10


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_device", Pretended)
    monkeypatch.setattr(module, "seconds", lambda work, wait, spent: work())
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("pretended")
@pytest.mark.parametrize("quick", [False, True])
def test_what_is_written_is_hardware(quick: bool, tmp_path: Path) -> None:
    found = calibrate(tmp_path / "here.toml", quick=quick)
    assert hardware_of(str(tmp_path / "here.toml")) == found
    assert (found.name, found.memory) == ("pretended", 16 * 10**9)
    assert found.bandwidth == pytest.approx(1e10, rel=0.01)
    assert isinstance(found.default_link, Link)
    assert "run under torchrun" in found.source


@pytest.mark.usefixtures("pretended")
def test_figures_predict_what_was_measured() -> None:
    """The constants make up for a peak that launches hide."""
    found = calibrate()
    rule = OpShardingRule.parse("m k, k n -> m n | m=700 k=700 n=700")
    for dtype, rate, item in (("f32", 1e12, 4), ("f64", 5e11, 8)):
        true = 2e-6 + 2 * 700**3 / rate + 3 * item * 700**2 / 1e10
        assert compute_cost(rule, "matmul", ((),) * 3, dtype, found) / 1e12 == pytest.approx(true, rel=0.1)
    moved = OpShardingRule.parse("i -> i | i=1000000")
    assert compute_cost(moved, "pointwise", ((),), "f32", found) / 1e12 == pytest.approx(2e-6 + 8e-4, rel=0.05)


@pytest.mark.usefixtures("pretended")
def test_only_the_first_process_writes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RANK", "1")
    calibrate(tmp_path / "here.toml", quick=True)
    assert not (tmp_path / "here.toml").exists()


def test_numpy_is_measured_for_real() -> None:
    device = module._Numpy()
    assert module.seconds(device.product(8, 8, 8, device.kinds[0][1]), device.wait, 1e-3) > 0
    assert module.seconds(device.move(64), device.wait, 1e-3) > 0
    assert device.memory > 0


def test_groups_double_up_to_the_whole() -> None:
    assert [module._doubling(limit) for limit in (1, 2, 3, 4, 6, 8)] == [[], [2], [2, 3], [2, 4], [2, 4, 6], [2, 4, 8]]

"""`benchmarks/gpu_step.py` runs on any machine: tiny models, every result in its file."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

pytest.importorskip("transformers")

import torch
from gpu_step import main


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_tiny_steps_and_ranks(tmp_path, capsys):
    plans, out = tmp_path / "plans", tmp_path / "rows.jsonl"
    tiny = ["--tiny", "--device", "cpu", "--models", "llama", "--columns", "eager", "emitted"]
    assert main([*tiny, "--make-plans", str(plans)]) == 0
    assert main([*tiny, "--plans", str(plans), "--recipes", "plan", "fsdp+tp", "--out", str(out)]) == 0
    steps, *ranks = (json.loads(line) for line in out.read_text(encoding="utf-8").splitlines())
    assert [row["recipe"] for row in ranks] == ["plan", "fsdp+tp"]
    assert steps["loss"]["eager"] == pytest.approx(steps["loss"]["emitted"], rel=0.01)
    assert set(steps["ms"]) == {"eager", "emitted"}
    for row in ranks:
        assert row["predicted"] > 0
        assert row["predicted_bytes"] == pytest.approx(row["held"], rel=0.02)
        assert row["differs"] == 0
    assert main(["--report", str(out)]) == 0
    assert "pairs in the measured order" in capsys.readouterr().out


def test_what_fails_costs_only_itself(tmp_path, capsys):
    out = tmp_path / "rows.jsonl"
    options = ["--tiny", "--device", "cpu", "--models", "llama", "--columns", "emitted", "--parts", "ranks"]
    assert main([*options, "--plans", str(tmp_path), "--recipes", "plan", "dp", "--out", str(out)]) == 1
    failed, measured = (json.loads(line) for line in out.read_text(encoding="utf-8").splitlines())
    assert "no plan can be read" in failed["errors"]["all"]
    assert measured["ms"]["emitted"] > 0
    assert main([*options, "--recipes", "dp", "--seconds", "-1"]) == 0
    assert "left out" in capsys.readouterr().out

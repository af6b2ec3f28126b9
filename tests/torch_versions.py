"""Tests that hold for one version of PyTorch alone: its faults come and go."""

from __future__ import annotations

import pytest
import torch

of_torch_2_13 = pytest.mark.skipif(
    not torch.__version__.startswith("2.13"), reason="the faults are those of torch 2.13"
)

"""Automatic sharding, as seed 001 asks for it: decisions, convergence, numbers, communication where it is needed."""

from __future__ import annotations

import contextlib
import io
import re
import unittest
from typing import Any

import numpy as np

import shardwright as sw
from shardwright import P


class TestAutoSharding(unittest.TestCase):
    def setUp(self) -> None:
        self.mesh = sw.DeviceMesh("dp=2, tp=4")
        self.random = np.random.default_rng(0)

    def normal(self, *shape: int) -> np.ndarray:
        return self.random.standard_normal(shape) / 8

    def run_auto(self, fn: Any, *args: np.ndarray, mesh: Any = None, in_specs: Any = None) -> tuple[Any, str, Any]:
        mapped = sw.shard_map(fn, mesh or self.mesh, in_specs=in_specs, auto_sharding=True, debug=True)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            found = mapped(*args)
        np.testing.assert_allclose(found, fn(*args), rtol=1e-9, atol=1e-12)
        self.assertNotIn("WARNING", out.getvalue())
        return mapped, out.getvalue(), mapped.program(*args)

    def test_integration_e2e(self) -> None:
        _, printed, program = self.run_auto(np.matmul, self.normal(256, 64), self.normal(64, 32))
        self.assertRegex(printed, r"\[Solver\] Analyzing Node 0: matmul")
        self.assertRegex(printed, r"  > Costs: DP=\d\.\d\de[+-]\d\d, MP=\d\.\d\de[+-]\d\d")
        self.assertRegex(printed, r"  > Selected Strategy: ")
        self.assertRegex(printed, r"\[Solver\] Propagation iteration 1: changed=")
        self.assertRegex(printed, r"\[Solver\] Fixed-point reached after \d+ iterations")
        self.assertTrue(program.values)

    def test_multi_op_chain(self) -> None:
        def chain(x: Any, a: Any, b: Any, c: Any) -> Any:
            return np.tanh(np.maximum(x @ a, 0) @ b) @ c

        args = [self.normal(64, 32), self.normal(32, 64), self.normal(64, 32), self.normal(32, 16)]
        mapped, printed, _ = self.run_auto(chain, *args)
        self.assertEqual(len(re.findall(r"Analyzing Node \d+: matmul", printed)), 3)
        iterations = int(re.findall(r"reached after (\d+) iterations", printed)[-1])
        self.assertLessEqual(iterations, 5)
        self.assertFalse(mapped.program(*args).notes)

    def test_large_batch_is_data_parallel(self) -> None:
        _, printed, program = self.run_auto(np.matmul, self.normal(4096, 16), self.normal(16, 16), mesh="dp=4")
        self.assertIn("Data Parallel (Split M)", printed)
        self.assertEqual(program.collectives, [])

    def test_tall_inner_dimension_splits_k(self) -> None:
        _, printed, program = self.run_auto(np.matmul, self.normal(8, 1 << 15), self.normal(1 << 15, 8), mesh="tp=4")
        self.assertIn("Split K", printed)
        self.assertEqual([c.kind for c in program.collectives], ["all_reduce"])

    def test_manual_and_automatic_agree(self) -> None:
        def mlp(x: Any, w1: Any, w2: Any) -> Any:
            return np.maximum(x @ w1, 0) @ w2

        args = [self.normal(16, 32), self.normal(32, 64), self.normal(64, 32)]
        manual = sw.shard_map(mlp, self.mesh, in_specs=(P("dp", None), P(None, "tp"), P("tp", None)))
        automatic, _, _ = self.run_auto(mlp, *args)
        np.testing.assert_allclose(manual(*args), automatic(*args), rtol=1e-10)

    def test_forks_diamonds_and_residuals(self) -> None:
        def f(x: Any, w: Any) -> Any:
            h = x @ w
            left, right = np.tanh(h), h * 2
            return x + (left - right) @ w.T

        self.run_auto(f, self.normal(32, 16), self.normal(16, 24))

    def test_multi_head_attention(self) -> None:
        def attention(x: Any, wq: Any, wk: Any, wv: Any, wo: Any) -> Any:
            b, s, d = x.shape
            q, k, v = ((x @ w).reshape(b, s, 4, d // 4).transpose(0, 2, 1, 3) for w in (wq, wk, wv))
            return sw.numpy.attention(q, k, v).transpose(0, 2, 1, 3).reshape(b, s, d) @ wo

        self.run_auto(attention, self.normal(4, 8, 32), *(self.normal(32, 32) for _ in range(4)))

    def test_deterministic(self) -> None:
        args = [self.normal(64, 32), self.normal(32, 64)]
        programs = {str(self.run_auto(np.matmul, *args)[2]) for _ in range(3)}
        self.assertEqual(len(programs), 1)


if __name__ == "__main__":
    unittest.main()

"""The collectives: on the engine by name, and in programs exactly where they are needed."""

from __future__ import annotations

import unittest

import numpy as np

import shardwright as sw
from shardwright import P
from shardwright.frontends.numpy import prepare
from shardwright.run import NumpyEngine, VirtualEngine
from shardwright.spec.collective import collective_bytes


class TestCommunicationOps(unittest.TestCase):
    def setUp(self) -> None:
        self.mesh = sw.DeviceMesh("dp=2, tp=2")
        self.engine = VirtualEngine(self.mesh, prepare)
        self.shards = [np.arange(4.0) + 10 * p for p in range(4)]

    def test_engine_supports_distributed(self) -> None:
        self.assertTrue(self.engine.supports_distributed())
        self.assertFalse(NumpyEngine().supports_distributed())

    def test_numpy_engine_refuses(self) -> None:
        for name in ("all_reduce_sum", "all_gather", "reduce_scatter"):
            with self.assertRaises(NotImplementedError):
                getattr(NumpyEngine(), name)(self.shards[0])

    def test_all_reduce_sum(self) -> None:
        for found in self.engine.all_reduce_sum(self.shards):
            np.testing.assert_array_equal(found, sum(self.shards))
        over_tp = self.engine.all_reduce_sum(self.shards, ["tp"])
        np.testing.assert_array_equal(over_tp[0], self.shards[0] + self.shards[1])
        np.testing.assert_array_equal(over_tp[3], self.shards[2] + self.shards[3])

    def test_all_gather(self) -> None:
        np.testing.assert_array_equal(self.engine.all_gather(self.shards)[2], np.concatenate(self.shards))
        over_dp = self.engine.all_gather(self.shards, ["dp"])
        np.testing.assert_array_equal(over_dp[1], np.concatenate([self.shards[1], self.shards[3]]))

    def test_reduce_scatter(self) -> None:
        found = self.engine.reduce_scatter(self.shards)
        np.testing.assert_array_equal(np.concatenate(found), sum(self.shards))
        uneven = [np.arange(5.0)] * 4
        self.assertEqual([len(part) for part in self.engine.reduce_scatter(uneven)], [2, 2, 1, 0])

    def test_bytes(self) -> None:
        for kind, expected in [
            ("all_gather", 300),
            ("reduce_scatter", 75),
            ("all_to_all", 75),
            ("all_reduce", 150),
            ("collective_permute", 100),
            ("slice", 0),
        ]:
            self.assertEqual(collective_bytes(kind, 4, 100), expected)

    def test_nan_is_kept_in_a_max_over_shards(self) -> None:
        x = np.array([[1.0, np.nan], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]])
        found = sw.shard_map(lambda x: x.max(axis=0), self.mesh, in_specs=(P("dp", None),))(x)
        np.testing.assert_array_equal(found, [7.0, np.nan])

    def test_empty_shards_take_part_with_the_identity(self) -> None:
        x = np.array([[-1.0, -2.0], [-3.0, -4.0]])
        found = sw.shard_map(lambda x: x.max(axis=0), "x=4", in_specs=(P("x", None),))(x)
        np.testing.assert_array_equal(found, [-1.0, -2.0])

    def test_each_reshard_once_per_copy(self) -> None:
        """Two readers of the same gathered value share one all_gather."""

        def f(x, w):
            return np.sort(x, axis=0) @ w, np.cumsum(x, axis=0)

        x, w = np.random.default_rng(0).standard_normal((8, 4)), np.ones((4, 2))
        mapped = sw.shard_map(f, "x=4", in_specs=(P("x", None), P()))
        for found, expected in zip(mapped(x, w), f(x, w)):
            np.testing.assert_allclose(found, expected)
        program = mapped.program(x, w)
        moves = [i for i in program.instrs if i.is_collective and i.operands == (program.inputs[0],)]
        self.assertEqual(len(moves), 1)
        readers = [i.op for i in program.instrs if moves[0].results[0] in i.operands]
        self.assertEqual(readers, ["sort", "cumsum"])

    def test_nothing_moves_where_nothing_is_needed(self) -> None:
        x = np.ones((8, 8))
        for f in (np.tanh, lambda x: x.T + 1, lambda x: x.reshape(8, 2, 4), lambda x: x.sum(axis=1)):
            self.assertEqual(sw.shard_map(f, "x=4", in_specs=(P("x", None),)).program(x).collectives, [])


if __name__ == "__main__":
    unittest.main()

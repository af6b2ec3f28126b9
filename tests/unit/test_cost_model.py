"""The cost model as a whole: compute, communication and memory of each class of op; nothing counted twice."""

from __future__ import annotations

import unittest
from dataclasses import replace

from shardwright import DeviceMesh, FactorSharding, Graph, Program, ShardingSpec, sharding_rule
from shardwright.cost import H100, communication_cost, compute_cost, memory_cost, program_cost, program_memory
from shardwright.ir.graph import TensorType
from shardwright.lower import lower
from shardwright.propagation import rule_of, run_hierarchical_propagation_pass
from shardwright.propagation.complete import complete
from shardwright.rules import lookup
from shardwright.spec.rule import OpShardingRule

OPS: list[tuple[str, list[tuple[int, ...]], tuple[int, ...], dict[str, object]]] = [
    ("matmul", [(4096, 1024), (1024, 2048)], (4096, 2048), {}),
    ("add", [(4096, 1024), (4096, 1024)], (4096, 1024), {}),
    ("gelu", [(4096, 1024)], (4096, 1024), {}),
    ("reduce_sum", [(4096, 1024)], (4096,), {"axis": 1}),
    ("transpose", [(4096, 1024)], (1024, 4096), {}),
    ("reshape", [(4096, 1024)], (4096, 32, 32), {}),
    ("sort", [(4096, 1024)], (4096, 1024), {"axis": 1}),
    ("concatenate", [(4096, 512), (4096, 512)], (4096, 1024), {"axis": 1}),
    ("take", [(50000, 1024), (4096,)], (4096, 1024), {"axis": 0}),
]
"""One of each class, with a first result dim of 4096 that can be split."""


class TestCostModel(unittest.TestCase):
    def setUp(self) -> None:
        self.mesh = DeviceMesh("dp=2, tp=4")
        self.dp, self.tp = self.mesh.axes

    def rule(self, op: str, operands: list[tuple[int, ...]], result: tuple[int, ...], attrs: object) -> OpShardingRule:
        return sharding_rule(op, operands, [result], attrs)  # type: ignore[arg-type]

    def split_rows(self, rule: OpShardingRule, rows: int) -> FactorSharding:
        """The factor of the result's dim of this many rows, over tp."""
        dim = next(dim for dim in rule.results[0] if rule.sizes[dim[0]] == rows)
        return FactorSharding.of(rule, self.mesh, {rule.factors[dim[0]].name: "tp"})

    # -- compute ----------------------------------------------------------------------------------------

    def test_compute_cost_of_each_class(self) -> None:
        for op, operands, result, attrs in OPS:
            with self.subTest(op):
                rule, record = self.rule(op, operands, result, attrs), lookup(op)
                whole = compute_cost(rule, record, ((),) * len(rule.factors), "f32", H100)
                split = compute_cost(rule, record, self.split_rows(rule, 4096).axes, "f32", H100)
                assert type(whole) is int
                if record.cost == "view":
                    assert (whole, split) == (0, 0)
                else:
                    assert H100.launch_ps < split
                    assert split < whole

    def test_matmul_flops_are_two_for_each_product(self) -> None:
        rule = self.rule("matmul", [(4096, 4096), (4096, 4096)], (4096, 4096), {})
        plain = replace(H100, launch=0.0, flops_percent=100, bandwidth=10**30, classes=())
        cost = compute_cost(rule, "matmul", ((), (), ()), "bf16", plain)
        flops = cost / 10**12 * plain.peak("bf16")
        assert abs(flops - 2 * 4096**3) < 2 * 4096**3 / 10**6

    def test_splitting_any_factor_of_a_matmul_divides_its_flops_alike(self) -> None:
        rule = self.rule("matmul", [(1024, 1024), (1024, 1024)], (1024, 1024), {})
        plain = replace(H100, bandwidth=10**30)
        costs = {
            compute_cost(rule, "matmul", FactorSharding.of(rule, self.mesh, {f: "tp"}).axes, "f32", plain)
            for f in "mkn"
        }
        assert len(costs) == 1

    # -- communication ----------------------------------------------------------------------------------

    def test_communication_cost(self) -> None:
        costs = [
            communication_cost(kind, (self.tp,), 2**24, H100)
            for kind in ("slice", "all_to_all", "reduce_scatter", "all_reduce", "all_gather")
        ]
        assert costs[0] == 0
        assert costs[1] > 0  # an all_to_all is not free
        assert max(costs[1:3]) < 1.3 * min(costs[1:3])  # as many bytes as a reduce_scatter, in about the time
        assert costs[2] < costs[3]
        assert costs[3] < costs[4]  # four times what was put in

    def test_more_devices_take_longer_to_reduce(self) -> None:
        two, eight = (communication_cost("all_reduce", axes, 2**20, H100) for axes in ((self.dp,), self.mesh.axes))
        assert two < eight

    # -- memory -----------------------------------------------------------------------------------------

    def test_memory_cost_of_each_class(self) -> None:
        for op, operands, result, attrs in OPS:
            with self.subTest(op):
                rule = self.rule(op, operands, result, attrs)
                type, views = TensorType(result, "f32"), [(0, 0)] if lookup(op).view else []
                whole = memory_cost(rule, [ShardingSpec.replicate(self.mesh, len(result))], [type], views)
                split = memory_cost(rule, self.split_rows(rule, 4096).result_specs, [type], views)
                assert whole == (0 if views else type.bytes)
                assert split == (0 if views else type.bytes // 4)

    def test_matmul_makes_m_by_n(self) -> None:
        rule = self.rule("matmul", [(8, 1000), (1000, 4)], (8, 4), {})
        type = TensorType((8, 4), "f16")
        by_k = FactorSharding.of(rule, self.mesh, {"k": "tp"})
        assert memory_cost(rule, by_k.result_specs, [type]) == 8 * 4 * 2
        both = FactorSharding.of(rule, self.mesh, {"m": "dp", "n": "tp"})
        assert memory_cost(rule, both.result_specs, [type]) == 8

    # -- programs ---------------------------------------------------------------------------------------

    def lowered(self, text: str, given: dict[str, str]) -> Program:
        graph = Graph.parse(text)
        pinned = {graph.by_name[name]: ShardingSpec.parse(spec, self.mesh) for name, spec in given.items()}
        specs = run_hierarchical_propagation_pass(graph, pinned, rule_of).specs
        return lower(complete(graph, self.mesh, specs, rule_of, pinned=pinned))

    def test_no_communication_is_counted_twice(self) -> None:
        """A K-split product read by three ops, and returned: one all_reduce, paid once."""
        program = self.lowered(
            """graph f(%x: f32[64, 128], %w: f32[128, 32]) {
              %h = matmul(%x, %w) : f32[64, 32]
              %a = exp(%h) : f32[64, 32]
              %b = tanh(%h) : f32[64, 32]
              %c = multiply(%h, %h) : f32[64, 32]
              return %a, %b, %c, %h
            }""",
            {"x": "[_, tp]", "w": "[tp, _]"},
        )
        assert [item.kind for item in program.collectives] == ["all_reduce"]
        cost = program_cost(program, H100)
        assert cost.communication == communication_cost("all_reduce", (self.tp,), 64 * 32 * 4, H100)
        assert [(c.kind, c.axis, c.bytes) for c in cost.collectives] == program.collectives
        # Compute holds no communication: without its collectives the same ops cost the same.
        local = replace(program, instrs=tuple(i for i in program.instrs if not i.is_collective))
        assert program_cost(local, H100).compute == cost.compute
        assert program_cost(local, H100).communication == 0

    def test_a_program_of_one_device_has_no_communication(self) -> None:
        self.mesh = DeviceMesh("d=1")
        program = self.lowered("graph f(%x: f32[8, 8]) { %y = matmul(%x, %x) : f32[8, 8] return %y }", {"x": "[d, _]"})
        assert program_cost(program, H100).communication == 0
        assert program_memory(program) == 2 * 8 * 8 * 4


if __name__ == "__main__":
    unittest.main()

"""500 random programs: the same numbers as NumPy, predicted collectives executed, and proven exactly."""

from __future__ import annotations

import numpy as np
import pytest
from drawn_programs import MESHES, draw_program, draw_specs

from shardwright.api import shard_map
from shardwright.proof import check_identity, check_structure
from shardwright.spec.mesh import DeviceMesh

BATCH = 25


@pytest.mark.parametrize("batch", range(500 // BATCH))
def test_random_programs(batch: int) -> None:
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        program = draw_program(seed)
        mesh = DeviceMesh(MESHES[seed % len(MESHES)])
        specs = draw_specs(program, mesh, seed)
        args = program.arguments(seed)
        what = f"seed {seed} on {mesh}: {program} with {specs}"
        mapped = shard_map(program, mesh, in_specs=specs)
        found, expected = mapped(*args), program(*args)
        assert mapped.executed is not None, what
        for a, b in zip(found, expected):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9, err_msg=what)
            assert np.shape(a) == np.shape(b), what
        lowered = mapped.plan(*args)
        assert mapped.executed.collectives == lowered.program.collectives, what
        check_structure(lowered.program)
        check_identity(lowered.graph, lowered.program, seed=seed, rounds=1)

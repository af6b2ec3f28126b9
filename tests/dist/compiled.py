"""Every rank: a step in the form that a compiler takes trains as the emitted one does; ranks settle on one together.

In place of the compiler the module itself: gloo's gathers do not stand what Inductor would make of them.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

import shardwright.torch as swt
from shardwright.run.torch import compiling


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(8, 12), torch.nn.Linear(12, 4)

    def forward(self, x, y):
        return (self.down(torch.tanh(self.up(x))) - y).square().mean()


def trained(form: str, recipe: str) -> tuple[list[float], swt.Step]:
    torch.manual_seed(0)
    model = Model().double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    draw = torch.Generator().manual_seed(1)
    batch = [torch.randn(8, n, generator=draw, dtype=torch.float64) for n in (8, 4)]
    step = swt.train_step(
        model, optimizer=optimizer, batch=batch, mesh=f"dp={dist.get_world_size()}", recipe=recipe, data="global",
        compile=form,
    )  # fmt: skip
    return [float(step(*batch)) for _ in range(2 * (compiling.WARM + compiling.TIMED) + 1)], step


if __name__ == "__main__":
    dist.init_process_group("gloo")
    compiling.TRIED = ("cpu",)
    slow = dist.get_rank() == 1

    def compile_ahead(module, inputs):
        if slow and fails:
            raise RuntimeError("not here")
        return lambda *given: (time.sleep(wait), module(*given))[1]

    compiling.compile_ahead = compile_ahead
    wait, fails = 0.0, True
    _, step = trained("auto", "dp")
    assert "could not be compiled" in step.forms["step"], step.forms
    assert step._last.parts[0].compiled.forms.form == compiling.EMITTED
    fails, wait = False, 0.3 * slow  # the slowest rank decides
    _, step = trained("auto", "dp")
    assert "that is faster" in step.forms["step"], step.forms
    wait = 0.0
    for recipe in ("dp", "zero3"):
        plain, _ = trained("off", recipe)
        for form in ("on", "auto"):
            losses, step = trained(form, recipe)
            assert all(abs(a - b) < 1e-10 for a, b in zip(losses, plain)), (form, losses, plain)
            (forms,) = (part.compiled.forms for part in step._last.parts)
            assert forms.settled
            forms = step.engine.exchange([forms.form == compiling.COMPILED])
            assert len(set(map(tuple, forms))) == 1, forms
            assert form == "auto" or forms[0] == [1], step.forms
    print("passed compiled")
    dist.destroy_process_group()

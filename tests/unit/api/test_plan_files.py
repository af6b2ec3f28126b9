"""Plan files that were written on another machine: bound by the hash of the captured graph, and trained.

The files were made with PyTorch 2.13 without a GPU; the same test passes on 2.11 with one.  Where a plan is meant to
change, run this file as a script: it writes them anew.
"""

from __future__ import annotations

import builtins
import copy
import logging
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

sys.path.insert(0, str(Path(__file__).parents[2]))

import shardwright as sw  # noqa: E402
import torch_zoo as zoo  # noqa: E402
from shardwright.errors import GraphError  # noqa: E402
from shardwright.plans import read_plan  # noqa: E402

FILES = Path(__file__).parents[2] / "golden" / "plan_files"
MADE_WITH = "5.22.2"
"""The `transformers` whose models the files are for: another version may be written otherwise."""
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class ViT(torch.nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        config = transformers.ViTConfig(
            hidden_size=16, num_hidden_layers=1, num_attention_heads=4, intermediate_size=32, image_size=8,
            patch_size=4, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )  # fmt: skip
        self.inner = transformers.ViTModel(config)

    def forward(self, pixels: Any) -> Any:
        return self.inner(pixel_values=pixels).pooler_output.square().mean()


MODELS: dict[str, Any] = {
    "mlp": (lambda: Loss(zoo.MLP()), lambda: {"x": torch.randn(8, 6)}),
    "llama": (lambda: zoo.llama(num_hidden_layers=1), lambda: zoo.tokens(8, 8, 96)),
    "gpt2": (lambda: zoo.gpt2(n_layer=1), lambda: zoo.tokens(8, 8, 96)),
    "vit": (ViT, lambda: {"pixels": torch.randn(8, 3, 8, 8)}),
}


class Loss(torch.nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Any) -> Any:
        return self.inner(x).square().mean()


def program(name: str, device: str = DEVICE) -> tuple[Any, dict[str, Any], Any]:
    """A model in float64, a batch, and an optimizer."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    torch.manual_seed(0)
    make, data = MODELS[name]
    model = make().double().to(device)
    batch = {key: x.to(device, torch.float64 if x.is_floating_point() else x.dtype) for key, x in data().items()}
    return model, batch, torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-3)


@pytest.fixture
def _same_models() -> None:
    if version("transformers") != MADE_WITH:
        pytest.skip(f"the files are for the models of transformers {MADE_WITH}")


@pytest.mark.usefixtures("_same_models")
@pytest.mark.parametrize("name", MODELS)
def test_a_file_from_elsewhere_trains(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a solver of anybody's, and as eager PyTorch does."""
    real = builtins.__import__

    def without(module: str, *args: Any, **kwargs: Any) -> Any:
        if module.partition(".")[0] == "highspy":
            raise ImportError("not here")
        return real(module, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    model, batch, optimizer = program(name)
    eager = copy.deepcopy(model)
    theirs = torch.optim.AdamW(eager.parameters(), lr=1e-3, eps=1e-3)
    plan = sw.load_plan(FILES / f"{name}.json", model, optimizer=optimizer, **batch)
    assert plan.collectives
    step = plan.step()
    for _ in range(2):
        loss = eager(**batch)
        loss.backward()
        theirs.step()
        theirs.zero_grad()
        torch.testing.assert_close(step(**batch), loss.detach(), rtol=1e-9, atol=1e-9)
    step.sync()
    for left, right in zip(model.parameters(), eager.parameters()):
        torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-9)


@pytest.mark.usefixtures("_same_models")
def test_a_file_is_for_one_program() -> None:
    model, batch, optimizer = program("mlp")
    with pytest.raises(GraphError, match="the plan is for another program"):
        sw.load_plan(FILES / "llama.json", model, optimizer=optimizer, **batch)
    with pytest.raises(GraphError, match="the plan is for another program"):
        sw.load_plan(FILES / "mlp.json", model, **batch)  # no optimizer: not the step that was planned


def test_the_files_are_of_this_version() -> None:
    for name in MODELS:
        record = read_plan((FILES / f"{name}.json").read_text())
        assert len(record["meshes"]) == len(record["pieces"]) == 1


if __name__ == "__main__":
    for name in MODELS:
        model, batch, optimizer = program(name, "cpu")
        about: Any = {"constraints": {"*.up.weight": "[tp, _]"}} if name == "mlp" else {}
        about = {"recipe": "zero3"} if name == "vit" else about  # so small a model is best left whole
        made = sw.plan(model, mesh="dp=2, tp=2", hardware="virtual", optimizer=optimizer, **about, **batch)
        (FILES / f"{name}.json").write_text(made.to_json() + "\n")

"""Models on four real processes: one launch, many models."""

from __future__ import annotations

from launch import launch

CHECKS = (
    "llama megatron", "llama zero3", "llama sequence", "llama mixed", "gpt2 megatron", "gpt2 uneven", "resnet",
    "experts", "cell", "unet", "recommender", "strategies", "mapped",
)  # fmt: skip


def test_models_on_four_processes() -> None:
    """Three AdamW steps equal eager ones; collectives are the Program's and those that PyTorch counts."""
    done = launch("models.py", timeout=400)
    for text in done.outputs:
        for name in CHECKS:
            assert f"passed {name}\n" in text, str(done)
    assert done.code == 0, str(done)
    assert done.left == ()

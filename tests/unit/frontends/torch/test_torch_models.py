"""Whole models, captured and trained: the same numbers as eager PyTorch, in float64."""

from __future__ import annotations

import copy
import logging

import pytest

torch = pytest.importorskip("torch")

from shardwright.frontends.torch import capture, capture_step  # noqa: E402
from torch_zoo import Cell, Experts, Recommender, UNet  # noqa: E402


@pytest.fixture(autouse=True)
def _double():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    logging.getLogger("transformers").setLevel(logging.ERROR)
    yield
    torch.set_default_dtype(before)


def assert_trains_alike(eager, steps=3, **data):
    """Three AdamW steps; parameters and the loss agree."""
    model = copy.deepcopy(eager)
    ours, theirs = (torch.optim.AdamW(m.parameters(), lr=1e-3) for m in (model, eager))
    captured = capture_step(model, optimizer=ours, **data)
    for _ in range(steps):
        out = eager(**data)
        loss = getattr(out, "loss", out)
        loss.backward()
        theirs.step()
        theirs.zero_grad()
        torch.testing.assert_close(captured(**data), loss.detach(), rtol=1e-10, atol=1e-10)
    for left, right in zip((*model.parameters(), *model.buffers()), (*eager.parameters(), *eager.buffers())):
        torch.testing.assert_close(left, right, rtol=1e-10, atol=1e-10)
    return captured


def test_mixture_of_experts():
    assert_trains_alike(Experts(), x=torch.randn(2, 3, 8))


def test_recurrent_cell():
    assert_trains_alike(Cell(), x=torch.randn(2, 4, 6))


def test_unet():
    assert_trains_alike(UNet(), x=torch.randn(2, 2, 8, 8))


def test_recommender():
    items, users = torch.randint(0, 13, (5, 3)), torch.randint(0, 7, (5,))
    assert_trains_alike(Recommender(), items=items, users=users, clicked=torch.rand(5).round())


SMALL = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64,
}  # fmt: skip


def _pretrained(kind, **config):
    transformers = pytest.importorskip("transformers")
    return getattr(transformers, f"{kind}ForCausalLM" if kind != "GPT2" else "GPT2LMHeadModel")(
        getattr(transformers, f"{kind}Config")(**config, bos_token_id=1, eos_token_id=2)
    ).eval()


@pytest.mark.parametrize("kind", ["Llama", "GPT2"])
def test_transformers(kind):
    config = SMALL | {"num_key_value_heads": 2}
    if kind == "GPT2":
        config = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64, "n_positions": 32}
    model = _pretrained(kind, **config)
    ids = torch.randint(3, 64, (2, 8))
    forward = capture(model, input_ids=ids, use_cache=False)
    with torch.no_grad():
        expected = model(input_ids=ids, use_cache=False).logits
    torch.testing.assert_close(forward(input_ids=ids, use_cache=False).logits, expected, rtol=1e-10, atol=1e-10)
    captured = assert_trains_alike(model, input_ids=ids, labels=ids, use_cache=False)
    assert sum(node.op == "shardwright.attention" for node in captured.graph.nodes) == 2
    layer = "model.layers.1.self_attn" if kind == "Llama" else "transformer.h.1.attn"
    backward = [node for node in captured.graph.nodes if node.op == "shardwright.attention_backward"]
    assert backward[0].source.scope == layer


def test_many_layers_in_little_memory():
    """A large model takes no memory, and not much time a layer."""
    with torch.device("meta"):
        model = _pretrained("Llama", **SMALL | {"hidden_size": 8192, "intermediate_size": 28672, "vocab_size": 128256})
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.zeros(4, 8192, dtype=torch.int64)
    captured = capture_step(model, input_ids=ids, labels=ids, use_cache=False, optimizer=optimizer)
    weights = sum(captured.graph.type(value).bytes for value in captured.graph.inputs)
    assert weights > 20 * 2**30

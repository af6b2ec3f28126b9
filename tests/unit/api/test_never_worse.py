"""A plan is never worse than a recipe that fits: every kind of model, a mesh of one axis and one of two.

Without a limit, and with as much memory as a recipe needs: there at least that recipe fits, and the plan is as good.
For small models every recipe's need is a limit; for large ones the need of each recipe is one somewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import shardwright as sw  # noqa: E402
import shardwright.frontends.torch.recording.capturing as capturing  # noqa: E402
import torch_zoo as zoo  # noqa: E402
from shardwright.errors import ShardwrightError  # noqa: E402
from shardwright.solve.recipes import DISTINCT, RECIPES  # noqa: E402

torch.set_num_threads(1)
MESHES = ("d=4", "x=2, y=2")
LARGE = {
    "llama": (lambda: zoo.llama(num_hidden_layers=1), lambda: zoo.tokens(8, 8, 96)),
    "llama odd": (
        lambda: zoo.llama(num_hidden_layers=1, vocab_size=97, num_key_value_heads=2), lambda: zoo.tokens(6, 7, 97)
    ),
    "gpt2": (lambda: zoo.gpt2(n_layer=1), lambda: zoo.tokens(8, 8, 96)),
    "resnet": zoo.CASES["resnet"][:2],
}  # fmt: skip
"""One layer of each: another would plan alike."""
SMALL = {name: zoo.CASES[name][:2] for name in ("experts", "cell", "unet", "recommender")}
MODELS = {**LARGE, **SMALL}
LIMITS = [
    ("llama", "d=4", "zero3"), ("llama", "d=4", "dp"), ("llama odd", "x=2, y=2", "fsdp+tp"),
    ("gpt2", "d=4", "megatron"), ("gpt2", "x=2, y=2", "zero1"), ("resnet", "d=4", "replicated"),
    ("resnet", "x=2, y=2", "sequence"), ("llama", "x=2, y=2", "hsdp"), ("gpt2", "x=2, y=2", "fsdp+tp+sequence"),
]  # fmt: skip
"""Large model, mesh, and the recipe whose need is the limit."""


@pytest.fixture(autouse=True, scope="module")
def captured_once() -> Iterator[None]:
    """Every plan of a model is made from one capture of it."""
    real, known = capturing.capture_step, dict[int, Any]()

    def once(model: Any, *args: Any, **kwargs: Any) -> Any:
        if id(model) not in known:
            known[id(model)] = real(model, *args, **kwargs)
        return known[id(model)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capturing, "capture_step", once)
        yield


@cache
def model_of(name: str) -> tuple[Any, dict[str, Any], Any]:
    torch.manual_seed(0)
    make, data = MODELS[name]
    model = make()
    return model, data(), torch.optim.AdamW(model.parameters())


def plan_of(name: str, mesh: str, **asked: Any) -> Any:
    model, batch, optimizer = model_of(name)
    return sw.plan(model, mesh=mesh, optimizer=optimizer, hardware="h100", **asked, **batch)


@cache
def recipes_of(name: str, mesh: str) -> dict[str, Any]:
    """Those that fit the model."""
    found = {}
    for recipe in DISTINCT:
        try:
            found[recipe] = plan_of(name, mesh, recipe=recipe)
        except ShardwrightError:
            continue
    return found


def check(name: str, mesh: str, limit: int | None = None) -> None:
    made = plan_of(name, mesh, memory=limit)
    assert made.lower_bound <= made.cost.objective
    assert limit is None or made.memory <= limit
    for recipe, other in recipes_of(name, mesh).items():
        if limit is None or other.memory <= limit:
            assert made.cost.objective <= other.cost.objective, recipe


@pytest.mark.parametrize(
    ("name", "mesh"), [(name, mesh) for name in MODELS for mesh in MESHES if (name, mesh) != ("llama odd", "d=4")]
)
def test_without_a_limit(name: str, mesh: str) -> None:
    assert {"replicated", "dp", "zero1", "zero3"} <= set(recipes_of(name, mesh))
    check(name, mesh)


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("name", SMALL)
def test_with_as_much_memory_as_each_recipe_needs(name: str, mesh: str) -> None:
    for limit in {made.memory for made in recipes_of(name, mesh).values()}:
        check(name, mesh, limit)


@pytest.mark.parametrize(("name", "mesh", "recipe"), LIMITS)
def test_with_as_much_memory_as_a_recipe_needs(name: str, mesh: str, recipe: str) -> None:
    check(name, mesh, recipes_of(name, mesh)[recipe].memory)


def test_every_recipe_is_a_limit_somewhere() -> None:
    assert {recipe for _, _, recipe in LIMITS} == set(DISTINCT)
    assert {name for name, _, _ in LIMITS} == set(LARGE)
    assert {RECIPES[name] for name in DISTINCT} == set(RECIPES.values())

"""The mistakes that new users make, one each, and what they read: ``golden/messages/mistake_<name>.txt``.

None ends in an error of NumPy, PyTorch or Python, none is silent.  ``UPDATE_GOLDEN=1`` writes the files anew.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardwright as sw
from shardwright import P
from shardwright.errors import ShardwrightError

torch = pytest.importorskip("torch")
import shardwright.torch as swt  # noqa: E402
from shardwright.api.front import propagate_sharding  # noqa: E402
from shardwright.discover import analyze_and_synthesize  # noqa: E402

GOLDEN = Path(__file__).parent / "golden" / "messages"
CASES: dict[str, Callable[[], Any]] = {}
A = sw.ShapeDtype((8, 8), np.float32)


def case(function: Callable[[], Any]) -> Callable[[], Any]:
    CASES[function.__name__] = function
    return function


def product(a: Any, b: Any) -> Any:
    return a @ b


def planned(*args: Any, **about: Any) -> Any:
    return sw.plan(product, *(args or (A, A)), **{"mesh": "d=2", **about})


def layer() -> tuple[Any, Any]:
    return torch.nn.Linear(8, 4), torch.zeros(16, 8)


def stepped(loss: Any = lambda out: out.square().mean(), optimizer: Any = None, **about: Any) -> Any:
    model, x = layer()
    made = torch.optim.SGD(model.parameters(), lr=0.1) if optimizer is None else optimizer
    return sw.plan(model, x, mesh="d=2", optimizer=made, loss=loss, **about)


# -- arguments of the program ---------------------------------------------------------------------------------


@case
def too_few_arguments() -> None:
    planned(A)


@case
def shapes_as_tuples() -> None:
    planned((8, 8), (8, 8))


@case
def a_shape_for_a_module() -> None:
    sw.plan(layer()[0], (16, 8), mesh="d=2")


@case
def an_array_for_a_module() -> None:
    sw.plan(layer()[0], np.ones((16, 8), np.float32), mesh="d=2")


@case
def a_stand_in_of_numpy_for_a_module() -> None:
    sw.plan(layer()[0], A, mesh="d=2")


@case
def wrong_width() -> None:
    sw.plan(layer()[0], torch.zeros(16, 9), mesh="d=2")


@case
def wrong_width_of_arrays() -> None:
    planned(A, sw.ShapeDtype((9, 8), np.float32))


@case
def unlike_element_types() -> None:
    model, x = layer()
    sw.plan(model, x.double(), mesh="d=2")


@case
def missing_input() -> None:
    sw.plan(layer()[0], mesh="d=2")


@case
def unknown_keyword() -> None:
    planned(A, A, mehs="d=2")


@case
def lists_for_arrays() -> None:
    planned([[1.0, 2.0], [3.0, 4.0]], A)


@case
def lists_for_arrays_of_shard_map() -> None:
    sw.shard_map(product, "d=2")([[1.0, 2.0], [3.0, 4.0]], np.eye(2))


@case
def dtype_misspelt() -> None:
    sw.ShapeDtype((8, 8), "flaot32")


@case
def dtype_that_numpy_lacks() -> None:
    sw.ShapeDtype((8, 8), "bfloat16")


@case
def dtype_of_torch() -> None:
    sw.ShapeDtype((8, 8), torch.float32)


@case
def a_size_for_a_shape() -> None:
    sw.ShapeDtype(8, "float32")  # type: ignore[arg-type]


@case
def a_size_that_is_no_number() -> None:
    sw.ShapeDtype((8.0, 8), "float32")  # type: ignore[arg-type]


@case
def the_function_fails() -> None:
    sw.plan(lambda a: {}["lost"], A, mesh="d=2")


# -- training -------------------------------------------------------------------------------------------------


@case
def optimizer_class() -> None:
    stepped(optimizer=torch.optim.AdamW)


@case
def optimizer_by_name() -> None:
    stepped(optimizer="adamw")


@case
def optimizer_of_another_model() -> None:
    stepped(optimizer=torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1))


@case
def loss_not_scalar() -> None:
    stepped(loss=lambda out: out * 2)


@case
def loss_by_name() -> None:
    stepped(loss="mse")


@case
def loss_with_targets() -> None:
    stepped(loss=torch.nn.MSELoss())


@case
def loss_as_a_number() -> None:
    stepped(loss=lambda out: out.sum().item())


@case
def autocast_by_name() -> None:
    stepped(autocast="bfloat16")


@case
def a_batch_of_another_width() -> None:
    stepped().step()(torch.zeros(16, 9))


@case
def a_step_without_its_batch() -> None:
    stepped().step()()


@case
def running_without_numbers() -> None:
    model = torch.nn.Linear(8, 4, device="meta")
    x = torch.zeros(16, 8, device="meta")
    sw.plan(model, x, mesh="d=2")(x)


@case
def running_a_model_without_numbers() -> None:
    model = torch.nn.Linear(8, 4, device="meta")
    sw.plan(model, torch.zeros(16, 8, device="meta"), mesh="d=2")(torch.zeros(16, 8))


# -- meshes, shardings, options -------------------------------------------------------------------------------


@case
def mesh_without_names() -> None:
    planned(mesh="2x4")


@case
def mesh_as_a_number() -> None:
    planned(mesh=8)


@case
def mesh_with_colons() -> None:
    planned(mesh="dp:2, tp:4")


@case
def mesh_with_spaces() -> None:
    planned(mesh="dp=2 tp=4")


@case
def memory_as_a_float() -> None:
    planned(memory=40.5)


@case
def memory_without_a_unit() -> None:
    planned(memory="40 gigs")


@case
def specs_of_another_tree() -> None:
    sw.plan(lambda t: t["a"] @ t["b"], {"a": A, "b": A}, mesh="d=2", in_specs=({"c": P("d", None)},))


@case
def too_few_specs() -> None:
    planned(in_specs=(P("d", None),))


@case
def two_specs_for_one_output() -> None:
    planned(out_specs=(P("d", None), P(None, "d")))


@case
def a_spec_of_another_rank() -> None:
    planned(in_specs=(P("d", None, None), None))


@case
def an_axis_that_is_not_there() -> None:
    planned(mesh="dp=2", in_specs=(P("pd", None), None))


@case
def a_constraint_on_nothing() -> None:
    planned(constraints={"aa": "[d, _]"})


@case
def a_pin_that_is_no_sharding() -> None:
    sw.pin("a", 3)


@case
def a_word_for_a_switch() -> None:
    planned(uneven="no")


@case
def unknown_recipe() -> None:
    planned(recipe="zero-3")


@case
def unknown_hardware() -> None:
    planned(hardware="h1000")


# -- plans and proofs -----------------------------------------------------------------------------------------


@case
def a_call_of_other_shapes() -> None:
    planned()(np.ones((4, 9), np.float32), np.ones((8, 8), np.float32))


@case
def a_page_that_cannot_be_written() -> None:
    planned().html("nowhere/plan.html", compare=False)


@case
def a_page_without_a_name() -> None:
    planned().html(None, compare=False)


@case
def proving_a_class() -> None:
    swt.prove(lambda mesh: layer()[0], like=torch.nn.Linear, mesh="d=2", inputs=(layer()[1],))


@case
def proving_a_module_for_a_function() -> None:
    swt.prove(layer()[0], like=layer()[0], mesh="d=2", inputs=(layer()[1],))


@case
def proving_with_a_bare_tensor() -> None:
    swt.prove(lambda mesh: layer()[0], like=layer()[0], mesh="d=2", inputs=layer()[1])


# -- one line each --------------------------------------------------------------------------------------------


def trained(**about: Any) -> Any:
    model, x = layer()
    given = {"optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "batch": (x,), "mesh": "d=2", **about}
    return swt.train_step(model, **{"loss": lambda out: out.square().mean(), **given})


def proved(**about: Any) -> Any:
    model, x = layer()
    given = {"parallel": lambda mesh: copy.deepcopy(model), "like": model, "mesh": "d=2", "inputs": (x,), **about}
    return swt.prove(given.pop("parallel"), **given)


def loaded(text: Any, *args: Any, **about: Any) -> Any:
    return sw.load_plan(text, product, *(args or (A, A)), **about)


B = np.ones((8, 8), np.float32)
NINE = torch.tensor([9])
SHARED = torch.nn.Linear(8, 4)
WIDE = torch.zeros(8, 9)
LAZY = torch.nn.LazyLinear(4)
CASES |= {
    "no_mesh": lambda: sw.plan(product, A, A),
    "no_fn": lambda: sw.load_plan("plan.json"),
    "mesh_by_keywords": lambda: sw.DeviceMesh(dp=2, tp=4),
    "mesh_in_two_texts": lambda: sw.DeviceMesh("dp=2", "tp=4"),
    "a_class_for_a_module": lambda: sw.plan(torch.nn.Linear, 8, 4, mesh="d=2"),
    "a_name_for_a_function": lambda: sw.shard_map("product", "d=2"),
    "a_lazy_module": lambda: sw.plan(LAZY, torch.zeros(16, 8), mesh="d=2"),
    "an_assertion_of_the_function": lambda: sw.plan(asserting, A, mesh="d=2"),
    "wrong_width_inside_a_model": lambda: sw.plan(
        torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(9, 4)), torch.zeros(16, 8), mesh="d=2"
    ),
    "lists_inside_a_dict": lambda: sw.plan(lambda t: t["a"] @ t["b"], {"a": [[1.0, 2.0]], "b": A}, mesh="d=2"),
    "an_axis_by_number": lambda: planned(in_specs=(P(0), None)),
    "a_dict_that_is_none": lambda: planned(kwargs=[1]),
    "a_word_for_a_switch_of_shard_map": lambda: sw.shard_map(product, "d=2", auto_sharding="no"),
    "specs_in_a_list": lambda: sw.shard_map(product, "d=2", specs=[P("d")]),
    "autocast_in_whole_numbers": lambda: stepped(autocast=torch.int8),
    "accumulate_without_a_model": lambda: planned(accumulate=2),
    "a_word_for_text": lambda: planned().text(all="no"),
    "explaining_nothing": lambda: planned().explain(None),
    "explaining_an_unknown_value": lambda: planned().explain("w"),
    "comparing_two_plans": lambda: sw.compare(planned(), planned(), mesh="d=2"),
    "comparing_with_another_program": lambda: sw.compare(
        product, A, A, mesh="d=2", plans=sw.plan(lambda a: a, A, mesh="d=2")
    ),
    "foreign_programs_without_names": lambda: sw.compare(product, A, A, mesh="d=2", foreign=[product]),
    "a_number_beyond_its_table": lambda: sw.plan(torch.nn.Embedding(9, 4), NINE, mesh="d=2")(NINE),
    "train_step_misspelt": lambda: trained(acumulate=2),
    "train_step_without_a_batch": lambda: swt.train_step(layer()[0], optimizer=None),
    "train_step_on_a_loader": lambda: trained(batch=torch.utils.data.DataLoader([0])),
    "data_axes_by_number": lambda: trained(data="local", data_axes=0),
    "an_unknown_engine": lambda: trained(engine="nccl"),
    "a_step_on_tensors_without_numbers": lambda: trained()(torch.zeros(16, 8, device="meta")),
    "an_empty_plan": lambda: loaded(""),
    "a_plan_that_is_no_plan": lambda: loaded("{}"),
    "a_plan_that_is_no_json": lambda: loaded("{bad"),
    "a_plan_with_a_mesh": lambda: loaded(planned().to_json(), mesh="d=2"),
    "proving_nothing": lambda: proved(parallel=lambda mesh: None),
    "proving_one_module_for_all_ranks": lambda: proved(parallel=lambda mesh: SHARED),
    "proving_with_two_parameters": lambda: proved(parallel=lambda mesh, rank: layer()[0]),
    "proving_a_wrong_width": lambda: proved(inputs=(torch.zeros(16, 9),)),
    "proving_with_a_loss_of_many": lambda: proved(loss=lambda out: out),
    "proving_on_too_many_ranks": lambda: proved(mesh="d=100000"),
    "proving_lazy_modules": lambda: proved(like=LAZY),
    "placements_in_text": lambda: proved(placements="x"),
    "a_placement_that_is_none": lambda: proved(placements={"input": "dp"}),
    "sharded_creation_without_a_mesh": lambda: sw.randn((8, 8)),
    "sharded_creation_of_a_misspelt_type": lambda: sw.zeros((8, 8), mesh="d=2", dtype="flaot32"),
    "sharding_text": lambda: sw.asarray("abc", mesh="d=2"),
    "sharding_rows_of_unlike_length": lambda: sw.asarray([[1, 2], [3]], mesh="d=2"),
    "sharded_arrays_that_do_not_fit": lambda: sw.asarray(B, mesh="d=2") + sw.asarray(B[:, :3], mesh="d=2"),
    "a_sharded_array_as_a_condition": lambda: bool(sw.asarray(B, mesh="d=2")),
    "tracing_shapes": lambda: sw.trace(product, (8, 8), (8, 8)),
    "resharding_a_size": lambda: sw.reshard(P("d"), P(None), 8, mesh="d=2"),
    "a_rule_that_is_a_number": lambda: sw.rule("mine.op", 3),
    "pin_without_a_sharding": lambda: sw.pin("a"),
    "no_element_type": lambda: sw.ShapeDtype((8, 8), None),
    "too_few_specs_for_a_rule": lambda: propagate_sharding("m k, k n -> m n | m=8 k=4 n=8", ["[d, _]"], mesh="d=2"),
    "a_world_of_nobody": lambda: analyze_and_synthesize(torch.relu, "relu", [2], [2], (8, 4), world_size=0),
    "a_size_for_input_shape": lambda: analyze_and_synthesize(torch.relu, "relu", [2], [2], 8),
    "a_generator_for_a_function": lambda: sw.plan(yielding, A, mesh="d=2"),
    "masked_arrays": lambda: sw.plan(lambda a: a + 1, np.ma.array([1.0, 2.0], mask=[0, 1]), mesh="d=2"),
    "a_module_without_its_init": lambda: sw.plan(Unmade(), torch.zeros(8), mesh="d=2"),
    "an_empty_sharding": lambda: planned(constraints={"a": ""}),
    "writing_to_a_sharded_array": lambda: sw.zeros(8, mesh="d=2").__setitem__(0, 1),
    "a_seed_that_is_a_word": lambda: sw.randn(8, mesh="d=2", seed="x"),
    "sharded_tensors_that_do_not_fit": lambda: sw.asarray(WIDE, mesh="d=2") @ sw.asarray(WIDE, mesh="d=2"),
    "a_sharded_tensor_as_a_condition": lambda: bool(sw.asarray(WIDE, mesh="d=2")),
    "a_rule_without_a_name": lambda: sw.rule(3, "m k, k n -> m n"),
    "an_op_without_its_rule": lambda: sw.numpy.op("mine.y"),
    "capturing_nothing": lambda: swt.capture(None),
    "capturing_without_arguments": lambda: swt.capture_step(layer()[0]),
    "local_shapes_without_a_mesh": lambda: sw.compute_global_shape([(2,)], "[d]"),
}  # fmt: skip


class Unmade(torch.nn.Module):
    def __init__(self) -> None:
        self.width = 8


def yielding(a: Any) -> Any:
    yield a


def asserting(a: Any) -> None:
    raise AssertionError("four rows are wanted")


def message_of(name: str) -> str:
    with pytest.raises(ShardwrightError) as caught:
        CASES[name]()
    text = f"{type(caught.value).__name__}: {caught.value}\n"
    return re.sub(r"(test_mistakes\.py):\d+", r"\1:LINE", text)


@pytest.mark.parametrize("name", CASES)
def test_what_is_read(name: str) -> None:
    path = GOLDEN / f"mistake_{name}.txt"
    found = message_of(name)
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(found)
    assert found == path.read_text()


def test_every_text_has_a_case() -> None:
    assert {path.stem.removeprefix("mistake_") for path in GOLDEN.glob("mistake_*.txt")} == set(CASES)


def test_what_a_library_said_is_kept_behind_it() -> None:
    with pytest.raises(sw.ShardwrightError) as caught:
        sw.plan(layer()[0], torch.zeros(16, 9), mesh="d=2")
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_faults_of_ours_stay_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **about: Any) -> Any:
        raise AttributeError("a fault")

    from shardwright.frontends import failing

    monkeypatch.setattr("shardwright.frontends.numpy.source_of", broken)
    monkeypatch.setattr(failing, "PACKAGE", Path(__file__).parent)  # the fault stands in this file
    with pytest.raises(AttributeError, match="a fault"):
        planned()


def test_versions_outside_the_tested_range_are_told() -> None:
    from shardwright.frontends.versions import outside_tested

    assert outside_tested("2.11.0") is None
    assert outside_tested("2.14.1+cu130") is None
    for version in ("2.10.2", "2.15.0", "3.0", "nightly"):
        assert "is not among the tested versions" in str(outside_tested(version))


def test_lists_that_may_be_axes_are_told() -> None:
    (note,) = sw.plan(lambda a, rows: a[rows], A, [1, 2], mesh="d=2").notes
    assert note == "argument 1, [1, 2], is a constant of the program: another value needs another plan"


def test_programs_that_compute_nothing_are_told() -> None:
    assert any("returns no array" in note for note in sw.plan(lambda a: None, A, mesh="d=2").notes)


def test_switches_and_dicts_are_looked_at_by_their_types() -> None:
    """Of whatever function of the front row: its annotations say what it takes."""
    with pytest.raises(sw.ShardwrightError, match="learn= takes True or False, not 1"):
        sw.shard_map(product, "d=2", learn=1)  # type: ignore[arg-type]


def test_errors_inside_a_call_are_not_taken_for_misfits() -> None:
    from shardwright.errors import front

    @front
    def outer(x: int) -> None:
        (lambda: None)(x)  # type: ignore[call-arg]

    with pytest.raises(TypeError) as caught:
        outer(1)
    assert not isinstance(caught.value, sw.ShardwrightError)


def test_names_that_are_not_there_have_near_misses() -> None:
    with pytest.raises(AttributeError, match="did you mean 'shard_map'"):
        sw.shrad_map  # noqa: B018

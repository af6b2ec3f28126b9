"""PyTorch's operators: found by name, described by schema, watched as they run, sampled."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from shardwright.discover.operator import REQUIRED, Operator, Sample, Slot  # noqa: E402
from shardwright.discover.torch import samples as torch_samples  # noqa: E402
from shardwright.discover.torch.ops import (  # noqa: E402
    TORCH,
    aten_calls,
    call_sample,
    fits,
    is_random,
    resolved,
    sample_of,
    study_of,
    tensors_in,
    torch_operator,
)
from shardwright.discover.torch.samples import (  # noqa: E402
    opinfo_available,
    opinfo_names,
    opinfo_operator,
    runs,
    samples_from_opinfo,
    samples_from_schema,
    samples_of,
)
from shardwright.errors import DiscoverError  # noqa: E402

needs_opinfo = pytest.mark.skipif(not opinfo_available(), reason="the OpInfo database needs expecttest")


def call(*tensors: np.ndarray, **kwargs: object) -> Sample:
    return Sample(tuple(Slot(i) for i in range(len(tensors))), kwargs, tensors, ("data",) * len(tensors))


def normal(*shape: int) -> np.ndarray:
    return np.asarray(np.random.default_rng(sum(shape) * 10 + shape[0] if shape else 0).normal(size=shape))


# The library


@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128", "int64", "bool", "uint8"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0, 3)])
def test_arrays_become_tensors_and_come_back(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.asarray(normal(*shape) * 3).astype(dtype)
    tensor = TORCH.tensor(array)
    assert tuple(tensor.shape) == shape
    back = TORCH.array(tensor)
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)
    assert TORCH.is_tensor(tensor)
    assert not TORCH.is_tensor(array)


def test_strided_read_only_and_lazily_conjugated_values() -> None:
    array = normal(4, 6)
    np.testing.assert_array_equal(TORCH.array(TORCH.tensor(array[::-1, ::2])), array[::-1, ::2])
    np.testing.assert_array_equal(TORCH.array(TORCH.tensor(np.broadcast_to(array[0], (3, 6)))), [array[0]] * 3)
    imaginary = torch.tensor([1 + 2j, 3 - 1j])
    np.testing.assert_array_equal(TORCH.array(imaginary.conj()), [1 - 2j, 3 + 1j])
    np.testing.assert_array_equal(TORCH.array(imaginary.conj().imag), [-2, 1])
    np.testing.assert_array_equal(TORCH.array(torch.ones(2, requires_grad=True)), [1, 1])
    tensor = TORCH.tensor(array)
    TORCH.copy(tensor).zero_()
    assert array.any(), "a copy shares nothing"


def test_what_no_array_holds_is_refused_with_the_reason() -> None:
    with pytest.raises(DiscoverError, match="NumPy has no bfloat16") as caught:
        TORCH.array(torch.ones(2, dtype=torch.bfloat16))
    assert "float64" in str(caught.value)
    with pytest.raises(DiscoverError, match="only dense tensors"):
        TORCH.array(torch.eye(2).to_sparse())
    with pytest.raises(DiscoverError, match="only dense tensors"):
        TORCH.array(torch.ones(2, device="meta"))
    with pytest.raises(DiscoverError, match="no tensors of NumPy's <U1"):
        TORCH.tensor(np.array(["a"]))


# Names


@pytest.mark.parametrize(
    ("target", "name", "short", "arguments"),
    [
        ("torch.cross", "torch.cross", "cross", "input other dim"),
        ("torch.nn.functional.relu", "torch.nn.functional.relu", "relu", "input inplace"),
        ("torch.linalg.vector_norm", "torch.linalg.vector_norm", "vector_norm", "input ord dim keepdim dtype"),
        ("aten.add.Tensor", "aten.add.Tensor", "add", "self other alpha"),
        ("torch.ops.aten.add.Tensor", "aten.add.Tensor", "add", "self other alpha"),
        ("aten::add.Tensor", "aten.add.Tensor", "add", "self other alpha"),
        ("aten.linalg_cross", "aten.linalg_cross.default", "cross", "self other dim"),
        ("torch.Tensor.add_", "torch.Tensor.add_", "add", "self other alpha"),
    ],
)
def test_operators_by_name(target: str, name: str, short: str, arguments: str) -> None:
    operator = torch_operator(target)
    assert (operator.name, operator.short_name) == (name, short)
    assert [argument.name for argument in operator.arguments] == arguments.split()
    assert operator.overload == (name if name.startswith("aten") else "")


def test_pooling_has_the_signature_behind_the_dispatch() -> None:
    names = [argument.name for argument in torch_operator("torch.nn.functional.max_pool2d").arguments]
    assert names[0] == "input"
    assert names[-1] == "return_indices"


def test_functions_and_overloads_are_targets_too() -> None:
    assert torch_operator(torch.add).name == "torch.add"
    assert torch_operator(torch.linalg.cross).name == "torch.linalg.cross"
    assert torch_operator(torch.Tensor.add_).name == "torch.Tensor.add_"
    assert torch_operator(torch.nn.functional.relu).name == "torch.nn.functional.relu"
    assert torch_operator(torch.ops.aten.add.Tensor).overload == "aten.add.Tensor"

    def mine(x: torch.Tensor, flag: bool = True) -> torch.Tensor:
        return x

    own = torch_operator(mine)
    assert [(a.name, a.tensor, a.type) for a in own.arguments] == [("x", True, "Tensor"), ("flag", False, "bool")]


def test_custom_operators() -> None:
    @torch.library.custom_op("shardwright_test::double", mutates_args=("room",))
    def double(x: torch.Tensor, room: torch.Tensor, times: int = 2) -> torch.Tensor:
        room.copy_(x)
        return x * times

    for target in ("shardwright_test.double", "torch.ops.shardwright_test.double.default", double._opoverload):
        operator = torch_operator(target)
        assert operator.overload == "shardwright_test.double.default"
        assert [a.name for a in operator.arguments] == ["x", "room", "times"]
        assert operator.mutates == ("room",)
        assert [a.default for a in operator.arguments] == [REQUIRED, REQUIRED, 2]
    assert samples_from_schema(torch_operator("shardwright_test.double"))


@pytest.mark.parametrize(
    ("target", "fact", "hint"),
    [
        ("torch.crss", "torch has no 'crss'", "did you mean 'cross'?"),
        ("torch.vector_norm", "torch has no 'vector_norm'", "did you mean 'torch.linalg.vector_norm'?"),
        ("aten.linalg_cros.default", "aten has no 'linalg_cros'", "'linalg_cross'"),
        ("aten.add.Tensr", "aten.add has no 'Tensr'", "did you mean 'Tensor'"),
        ("cross", "neither in torch nor", "write torch.cross"),
        ("torch.ops.nosuch.op", "no operators are registered under 'nosuch'", "import the library"),
        ("torch.nn.ReLU", "is a class, not an operator", "torch.nn.functional.relu"),
        ("torch.linalg", "is a module, not an operator", "give a function"),
        ("torch", "is a module, not an operator", "torch.cross"),
        ("torch.add(1)", "is no dotted name", "torch.cross"),
        ("no_such_module.function", "neither in torch nor", "yourmodule"),
    ],
)
def test_near_misses(target: str, fact: str, hint: str) -> None:
    with pytest.raises(DiscoverError) as caught:
        torch_operator(target)
    assert fact in str(caught.value)
    assert hint in (caught.value.help or "")


def test_what_is_written_to() -> None:
    assert torch_operator("aten.add.Tensor").mutates == ()
    assert torch_operator("aten.add_.Tensor").mutates == ("self",)
    assert torch_operator("aten.add.out").mutates == ("out",)
    assert torch_operator("torch.Tensor.add_").mutates == ("self",)
    assert torch_operator("torch.add").mutates == ()
    assert torch_operator("aten.max.dim_max").mutates == ("max", "max_values")
    with_out = Sample((Slot(0), Slot(1)), {"out": Slot(2)}, (normal(2), normal(2), np.zeros(2)), ("data",) * 3)
    assert resolved(torch_operator("torch.add"), with_out).mutates == ("out",)


def test_what_is_random() -> None:
    for name in ("aten.bernoulli.default", "torch.nn.functional.dropout", "torch.rand_like", "aten.normal_.default"):
        assert torch_operator(name).random, name
    for name in ("torch.cross", "aten.add.Tensor", "torch.linalg.vector_norm"):
        assert not torch_operator(name).random, name
    dropout = torch_operator("torch.nn.functional.dropout")
    assert is_random(dropout, call(normal(4, 6), p=0.5))
    assert not is_random(dropout, call(normal(4, 6), p=0.5, training=False))


def test_the_arguments_of_a_call_are_those_of_its_overload() -> None:
    maximum = torch_operator("torch.max")
    by_dim = resolved(maximum, Sample((Slot(0), 1), {}, (normal(2, 3),), ("data",)))
    assert [a.name for a in by_dim.arguments] == ["input", "dim", "keepdim"]
    by_other = resolved(maximum, call(normal(2, 3), normal(2, 3)))
    assert [a.name for a in by_other.arguments] == ["input", "other"]


# Watching


def test_cross_is_one_call() -> None:
    found = study_of(torch_operator("torch.cross"), call(normal(4, 3), normal(3, 4).T, dim=1))
    assert found is not None
    operator, sample = found
    assert (operator.name, operator.overload) == ("torch.cross", "aten.linalg_cross.default")
    assert sample.values(operator) == {"dim": 1}
    assert sample.shapes == ((4, 3), (4, 3))
    np.testing.assert_allclose(TORCH.array(call_sample(operator, sample)), np.cross(*sample.tensors), atol=1e-12)
    filled = study_of(torch_operator("torch.linalg.cross"), call(normal(3, 4, 3), normal(3, 4, 3)))
    assert filled is not None
    assert filled[1].values(filled[0]) == {"dim": -1}


def test_composites_are_not_one_call() -> None:
    linear = torch_operator("torch.nn.functional.linear")
    sample = call(normal(4, 6), normal(3, 6))
    assert [operator.overload for operator, _ in aten_calls(linear, sample)] == ["aten.t.default", "aten.mm.default"]
    assert study_of(linear, sample) is None

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x.exp()[:1].reshape(-1)

    assert study_of(torch_operator(scaled), call(normal(4))) is None

    def partly(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.exp()

    assert study_of(torch_operator(partly), call(normal(4), normal(4))) is None, "it does not take both"


def test_calls_are_seen_with_the_values_from_before() -> None:
    values = normal(4)
    sample = call(values, values * 2)
    ((operator, seen),) = aten_calls(torch_operator("torch.Tensor.add_"), sample)
    assert operator.overload == "aten.add_.Tensor"
    np.testing.assert_array_equal(seen.tensors[0], values)
    np.testing.assert_array_equal(sample.tensors[0], values)  # and the sample is not written to


def test_gradients_are_calls_too() -> None:
    calls = aten_calls(torch_operator("torch.tanh"), call(normal(4)), backward=True)
    assert "aten.tanh_backward.default" in [operator.overload for operator, _ in calls]
    assert torch.is_grad_enabled()


def test_lists_of_tensors_and_roles() -> None:
    cat = torch_operator("torch.cat")
    sample = sample_of(cat, ([torch.ones(2), torch.zeros(3)], 0), {})
    assert sample.args == ([Slot(0), Slot(1)], 0)
    gather = sample_of(torch_operator("torch.gather"), (torch.ones(2, 2), 0, torch.zeros(2, 2, dtype=torch.int64)), {})
    assert gather.roles == ("data", "index")
    where = sample_of(torch_operator("torch.where"), (torch.ones(2) > 0, torch.ones(2), torch.ones(2)), {})
    assert where.roles == ("mask", "data", "data")
    whole = torch.arange(4)
    assert sample_of(torch_operator("torch.bitwise_and"), (whole, whole), {}).roles == ("data", "data")
    assert sample_of(torch_operator("torch.gather"), (whole, 0, whole), {}).roles == ("data", "index")
    one_hot = torch_operator("torch.nn.functional.one_hot")
    assert sample_of(one_hot, (whole,), {}).roles == ("index",)


# Samples


@needs_opinfo
@pytest.mark.parametrize(
    "name", ["cross", "linalg.vector_norm", "searchsorted", "sort", "nn.functional.conv2d", "where"]
)
def test_samples_from_opinfo_run_and_differ(name: str) -> None:
    operator = opinfo_operator(name)
    samples = samples_from_opinfo(name, limit=12)
    assert 0 < len(samples) <= 12
    assert len({sample.key(operator) for sample in samples}) == len(samples)
    for sample in samples:
        assert runs(operator, sample), sample
        assert sample.tensors
        assert sum(t.size for t in sample.tensors) <= torch_samples.LARGE
        assert fits(resolved(operator, sample), sample), sample
        assert any(t.dtype == np.float64 for t in sample.tensors)
    again = samples_from_opinfo(name, limit=12)
    assert [[t.tobytes() for t in s.tensors] for s in again] == [[t.tobytes() for t in s.tensors] for s in samples]


@needs_opinfo
def test_samples_are_spread() -> None:
    few = samples_from_opinfo("sum", limit=5)
    ranks = {sample.tensors[0].ndim for sample in few}
    assert len(ranks) >= 3
    assert max(few[0].tensors[0].shape) > 1, "the first is no constant"
    assert len({repr(sample.kwargs) for sample in few}) >= 3


@needs_opinfo
def test_variants_dtypes_and_unknown_names() -> None:
    assert "div.floor_rounding" in opinfo_names()
    assert len(opinfo_names()) == len(set(opinfo_names())) > 500
    floors = samples_from_opinfo("div.floor_rounding", limit=4)
    assert all(sample.kwargs == {"rounding_mode": "floor"} for sample in floors)
    whole = samples_from_opinfo("add", dtype=torch.int64, limit=4)
    assert all(t.dtype == np.int64 and role == "data" for s in whole for t, role in zip(s.tensors, s.roles))
    assert {t.dtype.kind for s in samples_from_opinfo("bitwise_and", limit=4) for t in s.tensors} <= {"i", "b"}
    assert samples_from_opinfo("ones") == [], "no tensors, no samples"
    with pytest.raises(DiscoverError, match="OpInfo has no 'serchsorted'") as caught:
        samples_from_opinfo("serchsorted")
    assert "searchsorted" in str(caught.value)


@needs_opinfo
def test_random_numbers_of_others_are_left_alone() -> None:
    torch.default_generator.manual_seed(3)
    np.random.seed(3)
    expected = (torch.rand(2).tolist(), np.random.rand(2).tolist())
    torch.default_generator.manual_seed(3)
    np.random.seed(3)
    samples_from_opinfo("add", limit=2)
    assert (torch.rand(2).tolist(), np.random.rand(2).tolist()) == expected


@pytest.mark.parametrize(
    "name",
    [
        *("aten.add.Tensor", "aten.relu.default", "aten.mm.default", "aten.bmm.default", "aten.sum.dim_IntList"),
        *("aten.cat.default", "aten.linalg_cross.default", "aten.native_layer_norm.default", "aten.where.self"),
        *("aten.gather.default", "aten.addmm.default", "aten.bitwise_and.Tensor", "aten.transpose.int"),
        *("aten._foreach_add.List", "aten.add.out", "aten.add_.Tensor", "torch.cross", "torch.nn.functional.relu"),
    ],
)
def test_samples_from_schema_run(name: str) -> None:
    operator = torch_operator(name)
    samples = samples_from_schema(operator, limit=10)
    assert samples
    for sample in samples:
        assert runs(operator, sample)
        assert fits(operator, sample)
    assert len({sample.key(operator) for sample in samples}) == len(samples)


def test_schema_samples_sweep_dims_and_flags() -> None:
    operator = torch_operator("aten.sum.dim_IntList")
    found = [sample.values(operator) for sample in samples_from_schema(operator, limit=40)]
    assert {-1, 0, 1} <= {value["dim"][0] for value in found if value["dim"]}
    assert {value["keepdim"] for value in found} == {False, True}


def test_room_for_the_result_has_its_shape() -> None:
    operator = torch_operator("aten.mm.out")
    for sample in samples_of(operator, 4):
        first, second, room = sample.shapes
        assert room == (first[0], second[1])
        assert not sample.tensors[2].any()


@needs_opinfo
@pytest.mark.parametrize(
    "name",
    ["aten._softmax.default", "aten.convolution.default", "aten.tanh_backward.default", "aten.index_put_.default"],
)
def test_overloads_are_sampled_by_the_functions_that_call_them(name: str) -> None:
    operator = torch_operator(name)
    samples = samples_of(operator, 6)
    assert samples
    assert all(sample.label.startswith("OpInfo") for sample in samples)
    assert all(runs(operator, sample) and fits(operator, sample) for sample in samples)


def test_samples_without_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_samples, "_database", lambda: ())
    monkeypatch.setattr(torch_samples, "_keyed", dict)
    assert not opinfo_available()
    operator: Operator = torch_operator("torch.cross")
    samples = samples_of(operator, 6)
    assert samples
    assert {sample.label for sample in samples} == {"schema"}
    with pytest.raises(DiscoverError, match="cannot be imported") as caught:
        samples_from_opinfo("cross")
    assert "expecttest" in str(caught.value)


def test_tensors_in_results() -> None:
    one, two = torch.ones(1), torch.ones(2)
    assert tensors_in((one, [two, None, 3], {"k": one})) == [one, two, one]
    assert tensors_in(torch.sort(two))[0].shape == (2,)

"""Edited and hostile plan files: refused with an error of ours, or right; see `plan_edits`."""

from __future__ import annotations

import json
import re
import tracemalloc
from typing import Any

import numpy as np
import pytest

import plan_edits
import shardwright as sw
from shardwright.errors import GraphError, ShardwrightError, SpecError, printable
from shardwright.spec.mesh import MOST_AXES, MOST_DEVICES, DeviceMesh
from shardwright.spec.sharding import ShardingSpec

TORCH = {"torch mlp step", "transformer layer"}


@pytest.mark.parametrize("name", plan_edits.SUBJECTS)
def test_a_sample_of_edits(name: str) -> None:
    if name in TORCH:
        pytest.importorskip("torch")
    _, wrong = plan_edits.tried(name, 60)
    assert wrong == []


@pytest.mark.long
@pytest.mark.parametrize("name", plan_edits.SUBJECTS)
def test_all_edits(name: str) -> None:
    counts, wrong = plan_edits.tried(name, 10**9)
    assert wrong == []
    assert sum(counts.values()) >= 2000
    assert min(counts[kind] for kind in plan_edits.GOOD) > 0


# -- what the known ones say ----------------------------------------------------------------------------------


def edited(change: Any, name: str = "numpy mlp") -> str:
    """The file after a change of its record, in which texts stand in the place of their numbers."""
    record = json.loads(plan_edits.SUBJECTS[name]().plan.to_json())
    texts = record["texts"]

    def number(text: str) -> int:
        if text not in texts:
            texts.append(text)
        return int(texts.index(text))

    change(record, record["pieces"][0], number)
    return json.dumps(record)


def refused(text: str, name: str = "numpy mlp") -> str:
    subject = plan_edits.SUBJECTS[name]()
    with plan_edits.captured(subject), pytest.raises(ShardwrightError) as caught:
        sw.load_plan(text, print)
    return str(caught.value)


def test_a_dropped_all_reduce_is_seen() -> None:
    """The matmul that leaves a pending sum is said to leave none."""

    def change(record: Any, piece: Any, number: Any) -> None:
        at = next(n for n, node in enumerate(piece["nodes"]) if record["texts"][node[2][0]] == "[dp, _] // tp")
        piece["nodes"][at][2] = piece["nodes"][at][3] = [number("[dp, _]")]

    said = refused(edited(change))
    assert "result 0 of an op is [dp, _], but its split makes that [dp, _] // tp" in said
    assert "node   3 matmul" in said
    assert "m/dp k/tp, k/tp n -> m/dp n // tp" in said


CHANGES: list[tuple[Any, str]] = [
    (lambda r, p, t: p["inputs"].update(w1=t("[tp, _]")), "does not keep what was asked"),
    (lambda r, p, t: p["inputs"].update(w3=t("[tp, _] // dp")), "input 'w3' is pending, which nobody asked for"),
    (lambda r, p, t: p["outputs"].__setitem__(0, t("[dp] // tp")), "output 0 is pending, which nobody asked for"),
    (lambda r, p, t: p["nodes"][0].__setitem__(0, [t("tp"), t("_"), t("tp")]), "over tp and tp together"),
    (lambda r, p, t: p["nodes"][0].__setitem__(0, [t("_")] * 2), "gives axes to 2 factors, but the op's rule has 3"),
    (lambda r, p, t: p["nodes"][0][3].__setitem__(0, t("[dp, _] // tp")), "is made as [dp, tp] and kept as"),
    (lambda r, p, t: p["copies"].update({"999": []}), "speaks of value 999"),
    (lambda r, p, t: p["copies"].update({"00": []}), "'00' is no number of a value"),
    (lambda r, p, t: p["copies"].update({"9" * 5000: []}), "is no number of a value"),
    (
        lambda r, p, t: p["copies"].update({"0": [[t("[tp, _]"), t("[_, _]")], [t("[_, _]"), t("[tp, _]")]]}),
        "a copy of %x is made from itself",
    ),
    (lambda r, p, t: p["copies"].update({"0": [[t("[tp, _]"), t("[_, tp]")]]}), "[_, tp], which is not there"),
    (lambda r, p, t: p["copies"].update({"0": [[t("[tp, _]"), t("[dp, _]")]]}), "which nobody reads"),
    (lambda r, p, t: p["copies"].update({"0": [[t("[dp, _]"), t("[_, _]")]]}), "so that is no copy of it"),
    (lambda r, p, t: p["kept"].update({"0": t("[tp, dp]")}), "is to be kept as [tp, dp], which is not made"),
    (lambda r, p, t: r["meshes"].__setitem__(0, "dp=2, tp=1000000000"), f"more than {MOST_DEVICES} devices"),
    (lambda r, p, t: r["meshes"].__setitem__(0, ", ".join(f"a{i}=1" for i in range(9000))), "a mesh of 9000 axes"),
    (lambda r, p, t: r["meshes"].__setitem__(0, "dp=" + "9" * 5000), "has 5000 digits"),
    (lambda r, p, t: r["cost"].update(compute=-1), "compute of the plan is -1"),
    (lambda r, p, t: r.update(memory=-5), "memory of the plan is -5"),
    (lambda r, p, t: r.update(lower_bound=True), "field 'lower_bound' of plan is a bool"),
    (lambda r, p, t: r["rewrites"].append({"name": "constraints", "arguments": {}}), "was rewritten otherwise"),
    (lambda r, p, t: r["asked"].append({"kind": "recipe", "says": "zero9"}), "no recipe is called 'zero9'"),
    (lambda r, p, t: r["asked"].append({"kind": "recipe", "says": "dp"}), "says that 'elimination' made it"),
    (lambda r, p, t: r["asked"].append({"kind": "constraint", "says": 3}), "cannot be asked for 'constraint'"),
    (
        lambda r, p, t: r["asked"].append({"kind": "pin", "says": ["[" * 50_000, "[_]"]}),
        "a pattern of 50000 characters",
    ),
    (lambda r, p, t: r["asked"].append({"kind": "memory", "says": "9" * 400 + "GiB"}), "is no amount of memory"),
    (lambda r, p, t: r["asked"].append({"kind": "out_specs", "says": [["output 00", "[_]"]]}), "has no 'output 00'"),
    (lambda r, p, t: r["asked"].append({"kind": "out_specs", "says": [["output " + "1" * 5000, "[_]"]]}), "has no"),
]


@pytest.mark.parametrize(("change", "words"), CHANGES, ids=[words for _, words in CHANGES])
def test_what_is_wrong_is_said(change: Any, words: str) -> None:
    assert words in refused(edited(change))


def test_states_are_updated_in_their_sharding() -> None:
    def change(record: Any, piece: Any, number: Any) -> None:
        graph = plan_edits.torch_mlp().plan.graph
        output = next(o for i, o in graph.updates if graph.type(graph.inputs[i]).rank == 2)
        piece["outputs"][output] = number("[dp, _]")

    pytest.importorskip("torch")
    assert "has another sharding than the state" in refused(edited(change, "torch mlp step"), "torch mlp step")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, '{"a": ' + "[" * 200 + "]" * 200 + "}"])
def test_deep_nesting_is_refused(text: str) -> None:
    assert "deep inside each other" in refused(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"memory": ' + "7" * 5000 + "}", "a number of 5000 digits"),
        ('{"memory": 1e999}', "a number that is too large"),
        ('{"memory": NaN}', "NaN is not JSON"),
        (r'{"name": "\ud800"}', r"half a character: '\ud800'"),
        (r'{"\udfff": 1}', r"half a character: '\udfff'"),
        ('{"a": 1, "a": 1}', "stands twice"),
    ],
)
def test_what_json_readers_stumble_over(text: str, words: str) -> None:
    assert words in refused(text)


def test_a_mesh_is_refused_before_it_is_built() -> None:
    tracemalloc.start()
    for mesh in ("d=1000000000", "a=100000, b=100000", {"d": 10**5000}, ", ".join(f"a{i}=2" for i in range(30))):
        with pytest.raises(ShardwrightError, match="devices"):
            DeviceMesh(mesh)
    with pytest.raises(ShardwrightError, match="axes"):
        DeviceMesh({f"a{i}": 1 for i in range(MOST_AXES + 1)})
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2**20
    with pytest.raises(SpecError, match="not JSON"):
        ShardingSpec.from_json("[" * 100_000)


# -- what is shown --------------------------------------------------------------------------------------------

ESCAPE = "\x1b]52;c;cm0gLXJm\x07"


@pytest.mark.parametrize("what", ["solver", "notes", "name", "hardware", "texts", "asked", "input", "mesh", "source"])
def test_escape_bytes_are_not_shown(what: str) -> None:
    def change(record: Any, piece: Any, number: Any) -> None:
        places = {
            "notes": lambda: record["notes"].append(ESCAPE),
            "texts": lambda: record["texts"].__setitem__(0, record["texts"][0] + ESCAPE),
            "asked": lambda: record["asked"].append({"kind": "pin", "says": ["x" + ESCAPE, "[_, _]" + ESCAPE]}),
            "input": lambda: piece["inputs"].update({"x" + ESCAPE: 0}),
            "mesh": lambda: record["meshes"].__setitem__(0, record["meshes"][0] + ESCAPE),
        }
        places.get(what, lambda: record.__setitem__(what, ESCAPE + record[what]))()

    subject, text = plan_edits.numpy_mlp(), edited(change)
    assert plan_edits.outcome(subject, plan_edits.Edit(what, text)) in plan_edits.GOOD  # looks at all that is shown
    if what not in ("solver", "notes", "name"):
        assert r"\x1b" in refused(text)


def test_the_caret_stands_under_the_spot() -> None:
    with pytest.raises(ShardwrightError) as caught:
        ShardingSpec.parse("[x,\x1b\x1b y]", DeviceMesh("x=2, y=2"))
    lines = str(caught.value).splitlines()
    assert lines[1][lines[2].index("^") :].startswith(r"\x1b")
    assert lines[1] == r"    [x,\x1b\x1b y]"


def test_printable() -> None:
    assert printable("plain é 漢") == "plain é 漢"
    assert printable("a\x00\x1b\n\u202e\ud800") == r"a\x00\x1b\n\u202e\ud800"
    assert len(str(GraphError("x" * 10**6))) < 10**4


# -- what a file claims ---------------------------------------------------------------------------------------


def test_a_bound_is_claimed_by_the_file() -> None:
    plan = plan_edits.numpy_mlp().plan
    rng = np.random.default_rng(0)
    args = [rng.standard_normal(shape) for shape in ((8, 8), (8, 16), (16, 8), (8, 6))]
    loaded = sw.load_plan(plan.to_json(), plan_edits._mlp, *args)
    assert "no plan is better (elimination)" in repr(plan)
    assert "no plan is better, claimed by the file (elimination)" in repr(loaded)
    assert (plan.gap, loaded.gap) == (0.0, 1.0)
    assert loaded.to_json() == plan.to_json()
    assert (loaded.cost, loaded.memory) == (plan.cost, plan.memory)
    lied = json.loads(plan.to_json())
    lied["cost"]["compute"], lied["memory"], lied["lower_bound"] = 1, 1, plan.lower_bound // 2
    other = sw.load_plan(json.dumps(lied), plan_edits._mlp, *args)
    assert (other.cost, other.memory) == (plan.cost, plan.memory)
    assert re.search(r"within 5.\.\d\d% of the best, claimed by the file", str(other))

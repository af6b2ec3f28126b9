"""The oracle itself: rules known to be true are accepted, rules known to be false are rejected.

What is true is written down here from what the operators are, not from what the oracle says.
"""

# ruff: noqa: E501 - the table of claims reads better a rule a line

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402

from shardwright.discover.judging.oracle import check, refute  # noqa: E402
from shardwright.discover.operator import Operator, Sample, Slot  # noqa: E402
from shardwright.discover.placement import Placement, parse_placement  # noqa: E402
from shardwright.discover.torch.ops import TorchLibrary  # noqa: E402

F = torch.nn.functional

ALWAYS_UNARY = ["R -> R", "S(0) -> S(0)", "S(1) -> S(1)"]
NEVER_UNARY = ["S(0) -> S(1)", "S(0) -> R", "S(1) -> P(sum)", "P(sum) -> R", "P(max) -> R"]
LINEAR = ["P(sum) -> P(sum)", "P(avg) -> P(avg)"]
RISING = ["P(max) -> P(max)", "P(min) -> P(min)"]
FALLING = ["P(max) -> P(min)", "P(min) -> P(max)"]
ALL_KINDS = [f"P({kind}) -> P({kind})" for kind in ("sum", "avg", "max", "min", "prod")]

UNARY = {
    torch.neg: LINEAR + FALLING,
    torch.exp: RISING,
    torch.exp2: RISING,
    torch.expm1: RISING,
    torch.tanh: RISING,
    torch.sigmoid: RISING,
    torch.erf: RISING,
    torch.atan: RISING,
    torch.sinh: RISING,
    torch.asinh: RISING,
    torch.relu: RISING,
    torch.floor: RISING,
    torch.ceil: RISING,
    torch.trunc: RISING,
    torch.abs: ["P(prod) -> P(prod)"],
    torch.square: ["P(prod) -> P(prod)"],
    torch.cos: [],
    torch.sin: [],
    torch.sign: [*RISING, "P(prod) -> P(prod)"],
    torch.reciprocal: ["P(prod) -> P(prod)"],
    F.gelu: [],
    F.silu: [],
    torch.clone: ALL_KINDS,
    # All parts of a pending minimum lie above it: where it has a root, they have.
    torch.sqrt: ["P(min) -> P(min)"],
    torch.log: ["P(min) -> P(min)"],
}
UNARY_CANDIDATES = [*ALL_KINDS, *FALLING, "P(max) -> P(sum)", "P(min) -> P(avg)", "P(sum) -> P(max)"]

X, Y = (6, 10), (6, 10)
OTHERS = {
    "add": (torch.add, [X, Y], {}, "S(0), S(0) -> S(0) | S(1), S(1) -> S(1) | P(sum), P(sum) -> P(sum) | "
            "P(avg), R -> P(avg) | P(max), R -> P(max) | R, P(min) -> P(min)",
            "P(sum), R -> P(sum) | P(max), P(max) -> P(max) | S(0), R -> S(0) | P(max), P(min) -> P(max) | "
            "S(0), S(1) -> S(0) | P(prod), R -> P(prod)"),
    "sub": (torch.sub, [X, Y], {}, "S(1), S(1) -> S(1) | P(sum), P(sum) -> P(sum) | R, P(max) -> P(min) | "
            "R, P(min) -> P(max) | P(max), R -> P(max)",
            "R, P(max) -> P(max) | P(max), P(max) -> P(avg) | P(min), P(min) -> P(avg) | P(max), P(min) -> P(min)"),
    "mul": (torch.mul, [X, Y], {}, "S(0), S(0) -> S(0) | P(sum), R -> P(sum) | R, P(sum) -> P(sum) | "
            "P(prod), P(prod) -> P(prod)",
            "P(sum), P(sum) -> P(sum) | P(max), R -> P(max) | P(prod), R -> P(prod) | P(avg), P(avg) -> P(avg)"),
    "div": (torch.div, [X, Y], {}, "S(0), S(0) -> S(0) | P(sum), R -> P(sum) | P(avg), R -> P(avg)",
            "R, P(sum) -> P(sum) | P(max), R -> P(max) | P(sum), P(sum) -> P(sum)"),
    "maximum": (torch.maximum, [X, Y], {}, "P(max), P(max) -> P(max) | P(min), R -> P(min) | R, P(max) -> P(max)",
                "P(min), P(min) -> P(min) | P(max), P(min) -> P(max) | P(max), P(max) -> P(avg) | P(sum), R -> P(sum) | "
                "P(min), P(max) -> P(min)"),
    "minimum": (torch.minimum, [X, Y], {}, "P(min), P(min) -> P(min) | P(max), R -> P(max) | S(1), S(1) -> S(1)",
                "P(max), P(max) -> P(max) | P(min), P(max) -> P(min) | R, P(sum) -> P(sum)"),
    "atan2": (torch.atan2, [X, Y], {}, "S(0), S(0) -> S(0) | S(1), S(1) -> S(1)",
              "P(sum), R -> P(sum) | P(max), R -> P(max) | R, P(min) -> P(min) | P(sum), P(sum) -> P(sum)"),
    "eq": (torch.eq, [X, Y], {}, "S(0), S(0) -> S(0)", "P(max), P(max) -> P(max) | P(sum), P(sum) -> R | P(max), R -> R"),
    "lt": (torch.lt, [X, Y], {}, "S(0), S(0) -> S(0) | P(max), R -> P(min) | R, P(max) -> P(max)",
           "P(max), R -> P(max) | P(max), P(max) -> P(max) | P(sum), R -> P(max)"),
    "where": (torch.where, ["mask", X, Y], {}, "S(0), S(0), S(0) -> S(0) | R, P(sum), P(sum) -> P(sum) | R, P(max), P(max) -> P(max)",
              "R, P(sum), R -> P(sum) | P(max), R, R -> P(max) | R, P(max), P(min) -> P(max)"),
    "sum": (torch.sum, [X], {"dim": 1}, "S(0) -> S(0) | S(1) -> P(sum) | P(sum) -> P(sum) | P(avg) -> P(avg)",
            "S(1) -> R | P(max) -> P(max) | S(1) -> P(avg) | S(1) -> P(max) | P(prod) -> P(prod)"),
    "mean": (torch.mean, [X], {"dim": 1}, "S(1) -> P(avg) | P(sum) -> P(sum) | P(avg) -> P(avg) | S(0) -> S(0)",
             "S(1) -> P(sum) | P(max) -> P(max) | P(min) -> P(min)"),
    "amax": (torch.amax, [X], {"dim": 0}, "S(0) -> P(max) | S(1) -> S(0) | P(max) -> P(max)",
             "P(min) -> P(min) | P(sum) -> P(sum) | S(0) -> P(sum) | P(avg) -> P(avg) | S(1) -> S(1)"),
    "amin": (torch.amin, [X], {"dim": 0}, "S(0) -> P(min) | S(1) -> S(0) | P(min) -> P(min)",
             "P(max) -> P(max) | S(0) -> P(max) | P(sum) -> P(sum)"),
    "prod": (torch.prod, [X], {"dim": 1}, "S(1) -> P(prod) | S(0) -> S(0) | P(prod) -> P(prod)",
             "S(1) -> P(sum) | P(sum) -> P(sum) | P(max) -> P(max)"),
    "norm2": (torch.linalg.vector_norm, [X], {"dim": 1}, "S(0) -> S(0)",
              "S(1) -> P(sum) | P(sum) -> P(sum) | P(max) -> P(max) | S(1) -> P(max)"),
    "norm_inf": (torch.linalg.vector_norm, [X], {"ord": float("inf"), "dim": 1}, "S(0) -> S(0) | S(1) -> P(max)",
                 "P(max) -> P(max) | P(sum) -> P(sum) | S(1) -> P(sum)"),
    "norm_neg_inf": (torch.linalg.vector_norm, [X], {"ord": float("-inf"), "dim": 1}, "S(0) -> S(0) | S(1) -> P(min)",
                     "P(min) -> P(min) | S(1) -> P(max)"),
    "norm1": (torch.linalg.vector_norm, [X], {"ord": 1, "dim": 1}, "S(0) -> S(0) | S(1) -> P(sum)",
              "P(sum) -> P(sum) | P(avg) -> P(avg) | P(min) -> P(min)"),
    "logsumexp": (torch.logsumexp, [X], {"dim": 1}, "S(0) -> S(0)",
                  "S(1) -> P(sum) | S(1) -> P(max) | P(max) -> P(max) | P(sum) -> P(sum)"),
    "argmax": (torch.argmax, [X], {"dim": 1}, "S(0) -> S(0)", "S(1) -> P(max) | P(max) -> P(max) | P(max) -> R | P(sum) -> R"),
    "matmul": (torch.matmul, [(6, 10), (10, 4)], {}, "S(0), R -> S(0) | R, S(1) -> S(1) | S(1), S(0) -> P(sum) | "
               "P(sum), R -> P(sum) | R, P(avg) -> P(avg)",
               "S(0), S(0) -> P(sum) | P(sum), P(sum) -> P(sum) | P(max), R -> P(max) | S(1), S(0) -> R | S(0), R -> R"),
    "bmm": (torch.bmm, [(4, 6, 10), (4, 10, 2)], {}, "S(0), S(0) -> S(0) | S(1), R -> S(1) | S(2), S(1) -> P(sum) | "
            "P(sum), R -> P(sum)", "S(0), R -> S(0) | S(2), S(1) -> P(avg) | P(sum), P(sum) -> P(sum)"),
    "cumsum": (torch.cumsum, [X], {"dim": 1}, "S(0) -> S(0) | P(sum) -> P(sum) | P(avg) -> P(avg)",
               "S(1) -> S(1) | P(max) -> P(max) | S(1) -> P(sum)"),
    "cummax": (torch.cummax, [X], {"dim": 1}, "S(0) -> S(0)", "S(1) -> S(1) | P(sum) -> P(sum) | P(min) -> P(min)"),
    "sort": (torch.sort, [X], {"dim": 1}, "S(0) -> S(0)", "S(1) -> S(1) | P(max) -> P(max) | P(sum) -> P(sum)"),
    "softmax": (torch.softmax, [X], {"dim": 1}, "S(0) -> S(0)",
                "S(1) -> S(1) | P(max) -> P(max) | P(sum) -> P(sum) | P(sum) -> P(prod)"),
    "layer_norm": (F.layer_norm, [X], {"normalized_shape": [10]}, "S(0) -> S(0)",
                   "S(1) -> S(1) | P(sum) -> P(sum) | P(avg) -> P(avg) | P(max) -> P(max)"),
    "flip": (torch.flip, [X], {"dims": [1]}, "S(0) -> S(0) | P(sum) -> P(sum) | P(max) -> P(max)",
             "S(1) -> S(1) | S(1) -> S(0) | P(max) -> P(min)"),
    "roll": (torch.roll, [X], {"shifts": 1, "dims": 1}, "S(0) -> S(0) | P(min) -> P(min)", "S(1) -> S(1) | P(sum) -> P(max)"),
    "transpose": (torch.t, [X], {}, "S(0) -> S(1) | S(1) -> S(0) | P(sum) -> P(sum)", "S(0) -> S(0) | P(sum) -> P(avg)"),
    "tril": (torch.tril, [X], {}, "R -> R | P(sum) -> P(sum) | P(avg) -> P(avg)",
             "S(0) -> S(0) | S(1) -> S(1) | P(max) -> P(sum)"),
    "gather": (lambda x, i: torch.gather(x, 1, i), [X, "index"], {}, "S(0), S(0) -> S(0) | R, S(1) -> S(1) | "
               "P(sum), R -> P(sum) | P(max), R -> P(max)", "S(1), R -> R | S(1), S(1) -> S(1) | S(0), R -> S(0) | S(1), R -> P(sum)"),
    "index_select": (lambda x, i: torch.index_select(x, 0, i), [X, "index1"], {}, "S(1), R -> S(1) | R, S(0) -> S(0) | "
                     "P(min), R -> P(min)", "S(0), R -> S(0) | S(0), R -> P(sum) | S(0), S(0) -> S(0)"),
    "embedding": (lambda w, i: F.embedding(i, w), [X, "index1"], {}, "S(1), R -> S(1) | R, S(0) -> S(0) | P(sum), R -> P(sum)",
                  "S(0), R -> S(0) | S(0), R -> R"),
    "clamp": (torch.clamp, [X], {"min": -0.5, "max": 0.5}, "S(0) -> S(0) | P(max) -> P(max) | P(min) -> P(min)",
              "P(sum) -> P(sum) | P(max) -> P(min) | P(max) -> P(sum)"),
    "threshold": (lambda x: F.threshold(x, 0.25, 20.0), [X], {}, "S(0) -> S(0) | S(1) -> S(1)",
                  "P(max) -> P(max) | P(min) -> P(min) | P(sum) -> P(sum)"),
    "outer": (torch.outer, [(6,), (10,)], {}, "S(0), R -> S(0) | R, S(0) -> S(1) | P(sum), R -> P(sum)",
              "S(0), S(0) -> S(0) | R, S(0) -> S(0) | P(sum), P(sum) -> P(sum)"),
    "cross": (torch.linalg.cross, [(6, 3), (6, 3)], {"dim": 1}, "S(0), S(0) -> S(0) | P(sum), R -> P(sum) | R, P(sum) -> P(sum)",
              "S(1), S(1) -> S(1) | P(sum), P(sum) -> P(sum) | P(max), R -> P(max)"),
    "solve_triangular": (lambda a, b: torch.linalg.solve_triangular(a, b, upper=False), ["lower", (2, 5, 4)], {},
                         "S(0), S(0) -> S(0) | R, S(2) -> S(2) | R, P(sum) -> P(sum)",
                         "R, S(0) -> S(0) | S(1), R -> S(1) | P(sum), R -> P(sum)"),
    "conv1d": (F.conv1d, [(4, 6, 12), (8, 6, 3)], {}, "S(0), R -> S(0) | R, S(0) -> S(1) | S(1), S(1) -> P(sum) | P(sum), R -> P(sum)",
               "S(2), R -> S(2) | S(1), R -> P(sum) | S(1), S(0) -> S(1)"),
    "logical_and": (torch.logical_and, ["mask", "mask"], {}, "S(0), S(0) -> S(0) | P(min), P(min) -> P(min) | P(max), R -> P(max)",
                    "P(max), P(max) -> P(max) | P(min), P(max) -> P(min)"),
}  # fmt: skip


def _tensor(what: object, number: int) -> tuple[np.ndarray, str]:
    rng = np.random.default_rng(10 + number)
    if what == "mask":
        return rng.random((6, 10)) < 0.5, "mask"
    if what == "index":
        return rng.integers(0, 10, (6, 4)), "index"
    if what == "index1":
        return rng.integers(0, 6, (4,)), "index"
    if what == "lower":
        return np.tril(rng.standard_normal((2, 5, 5))) + 3 * np.eye(5), "data"
    return rng.standard_normal(what) * 2, "data"


def _sample(shapes: list[object], kwargs: dict[str, object], seed: int = 0) -> Sample:
    made = [_tensor(what, seed + i) for i, what in enumerate(shapes)]
    slots = tuple(Slot(i) for i in range(len(made)))
    return Sample(slots, kwargs, tuple(t for t, _ in made), tuple(role for _, role in made))  # type: ignore[arg-type]


def _parsed(text: str) -> tuple[tuple[Placement, ...], Placement]:
    left, right = text.split("->")
    return tuple(parse_placement(word) for word in left.split(", ")), parse_placement(right)


def _claims() -> dict[str, tuple[object, list[object], dict[str, object], list[str], list[str]]]:
    found: dict[str, tuple[object, list[object], dict[str, object], list[str], list[str]]] = {}
    for function, holds in UNARY.items():
        true = [*ALWAYS_UNARY, *holds]
        false = [text for text in (*NEVER_UNARY, *UNARY_CANDIDATES) if text not in true]
        found[function.__name__] = (function, [X], {}, true, false)
    for name, (function, shapes, kwargs, true_text, false_text) in OTHERS.items():
        true = [word.strip() for word in true_text.split("|")]
        found[name] = (function, list(shapes), kwargs, true, [word.strip() for word in false_text.split("|")])
    return found


CLAIMS = _claims()


def test_there_are_enough() -> None:
    assert len(CLAIMS) >= 40
    assert sum(len(true) for _, _, _, true, _ in CLAIMS.values()) >= 200
    assert sum(len(false) for _, _, _, _, false in CLAIMS.values()) >= 200


@pytest.mark.parametrize("name", CLAIMS)
def test_true_rules_are_accepted_and_false_ones_rejected(name: str) -> None:
    function, shapes, kwargs, true, false = CLAIMS[name]
    operator = Operator(name, function, TorchLibrary())  # type: ignore[arg-type]
    table = check(operator, _sample(shapes, kwargs), variants=[_sample(shapes, kwargs, seed=5)])
    assert not table.refused
    wrongly_rejected = [text for text in true if not table.holds(_parsed(text)[0], 0, _parsed(text)[1])]
    wrongly_accepted = [text for text in false if table.holds(_parsed(text)[0], 0, _parsed(text)[1])]
    assert (wrongly_rejected, wrongly_accepted) == ([], [])


@pytest.mark.parametrize("name", ["norm_inf", "threshold", "tril", "sort", "where"])
def test_a_false_rule_comes_with_its_counterexample(name: str) -> None:
    function, shapes, kwargs, true, false = CLAIMS[name]
    operator = Operator(name, function, TorchLibrary())  # type: ignore[arg-type]
    samples = [_sample(shapes, kwargs, seed) for seed in (0, 5)]
    for text in true:
        assert refute(operator, samples, _parsed(text)[0], 0, _parsed(text)[1]) is None
    for text in false:
        found = refute(operator, samples, _parsed(text)[0], 0, _parsed(text)[1])
        assert found is not None
        assert text.split("->")[0].strip() in str(found)

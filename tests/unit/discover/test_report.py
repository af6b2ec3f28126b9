"""Reports: the keys and look of the YAML, JSON with the same keys, the text, the rule book's line."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import yaml

import discover_statements as made
from shardwright.discover.placement import P, R
from shardwright.discover.report import as_dict, as_json, as_text, as_yaml, plain, rule_book_line
from shardwright.discover.statement import Rule
from shardwright.errors import RuleError
from shardwright.spec.rule import RulePattern

YAML = """\
operator: torch.cross
signature: torch.cross(input, other, *, dim=-1)

analysis:
  category: computed along dim
  dim_parameter: dim
  mathematical_properties:
    - bilinear in input, other

sample_inputs_tested:
  shapes: [[[8, 3], [8, 3]], [[3, 4, 3], [3, 4, 3]]]
  dtypes: [float64]
  world_size: [2, 3, 4]
  generators:
    - make_arange: Ordered values
    - make_ones: All ones
  kwargs_swept:
    dim: [1, 0, -1]

notation:
  placement: R | S(DIM) | P(KIND)
  R: 'replicated: every device holds all of it'
  S(DIM): sharded along that dim, counted from 0; DIM is a number, or words that `python` spells out
  P(KIND): 'pending: it is the sum, avg, max, min or prod (KIND) of what the devices hold'
  shards: 'even: all devices hold equally much; uneven: they do not; empty: some hold nothing. Those are listed on which
    calls showed the rule to hold, and none refuted it'
  bears_out: so many calls were run on which it holds; on none it fails
  d: 'a dim: of the tensor that a rule names under `d`, for each for which its condition holds'

unconditional_rules:
  - tensors: [input, other]
    inputs: [R, R]
    output: [R]
  - tensors: [input, other]
    inputs: [P(sum), R]
    output: [P(sum)]
    justification: linear in input
  - tensors: [input, other]
    inputs: [R, P(sum)]
    output: [P(sum)]
    justification: linear in other

conditional_rules:
  - tensors: [input, other]
    inputs: [S(d), S(d)]
    output: [S(d)]
    d: of input; ndim is its rank
    condition: d != dim
    justification: dim is computed along; slices along other dims are independent
    counterexamples:
      - 'S(1), S(1) -> S(1) with dim=1, shapes [8, 3], [8, 3]: rank 0 fails'
    shards: [even, uneven, empty]

adversarial_generators:
  - gen_orthogonal: 'Orthogonal vectors: the largest results'

rule_book:
  - rule: 'a k, a k -> a k ; k: whole ; P(sum), R -> P(sum) ; R, P(sum) -> P(sum)'
    when: dim=1

dropped:
  - rule: R, P(max) -> P(max)
    reason: only with a constant output

held_out:
  agreeing: 12
  all: 12
  disagreements: []

not_covered: []

combinations: 720
"""

TEXT = """\
torch.cross(input, other, *, dim=-1)   (aten.linalg_cross.default)
  computed along dim; bilinear in input, other

  R, R        -> R
  P(sum), R   -> P(sum)
  R, P(sum)   -> P(sum)
  S(d), S(d)  -> S(d)    WHEN d != dim

  why the conditions
    d != dim: dim is computed along; slices along other dims are independent
      otherwise S(1), S(1) -> S(1) with dim=1, shapes [8, 3], [8, 3]: rank 0 fails

  rule book
    rule("linalg_cross", "a k, a k -> a k ; k: whole ; P(sum), R -> P(sum) ; R, P(sum) -> P(sum)")  # dim=1

  tested on 3 samples, 720 combinations, on 2, 3, 4 devices, held out: 12 of 12 agree
  dropped, they say nothing
    R, P(max) -> P(max): only with a constant output
"""


def test_yaml_of_cross() -> None:
    assert as_yaml(made.cross()) == YAML


def test_text_of_cross() -> None:
    assert as_text(made.cross()) == TEXT


def test_yaml_and_json_hold_the_same() -> None:
    statement = made.cross()
    assert yaml.safe_load(as_yaml(statement)) == json.loads(as_json(statement)) == as_dict(statement)


def test_rule_book_line_parses() -> None:
    line = rule_book_line(made.cross())
    found = re.fullmatch(r'rule\("linalg_cross", "(.*)"\)  # dim=1', line)
    assert found is not None
    pattern = RulePattern.parse(found[1])
    assert str(pattern) == found[1]
    assert [str(transfer) for transfer in pattern.transfers] == ["P(sum), R -> P(sum)", "R, P(sum) -> P(sum)"]


def test_transfers_are_said_once_and_for_any_kind_where_they_hold_for_all() -> None:
    kinds = tuple(Rule((P(kind), R), (P(kind),)) for kind in ("sum", "max", "min", "prod"))
    statement = replace(
        made.cross(),
        rules=(Rule((R, R), (R,)), *kinds, Rule((R, P("max")), (P("min"),))),
        factor_lines=(("a b, a b -> a b ; R, P(max) -> P(min)", ""), ("a, b, c -> a b c", "three tensors")),
    )
    assert rule_book_line(statement).splitlines() == [
        'rule("linalg_cross", "a b, a b -> a b ; R, P(max) -> P(min) ; P(any), R -> P(any)")',
        'rule("linalg_cross", "a, b, c -> a b c")  # three tensors',
    ]


def test_a_factor_line_that_does_not_parse_is_refused() -> None:
    with pytest.raises(RuleError, match="appears on the right"):
        rule_book_line(replace(made.cross(), factor_lines=(("a -> b", ""),)))


def test_little_found_and_refused() -> None:
    bare = replace(made.cross(), rules=(), factor_lines=(), dropped=(), leftover=("S(0) -> S(0) of [4]",) * 7)
    text = as_text(bare)
    assert "no rule was found" in text
    assert "and 2 more" in text
    refused = replace(bare, refused="it hangs")
    assert "cannot judge: it hangs" in as_text(refused)
    assert as_dict(refused)["refused"] == "it hangs"
    assert yaml.safe_load(as_yaml(refused)) == as_dict(refused)


def test_grades_are_told() -> None:
    rules = tuple(replace(made.cross().rules[3], grade=grade) for grade in ("even", "uneven"))
    statement = replace(made.cross(), rules=rules)
    assert [rule["shards"] for rule in as_dict(statement)["conditional_rules"]] == [["even"], ["even", "uneven"]]
    assert "(even shards only)" in as_text(statement)
    assert "(not on empty shards)" in as_text(statement)


def test_values_become_plain() -> None:
    odd = (1, (2.5, np.int64(3)), float("inf"), {"a": complex(1, 2)}, None, True)
    assert plain(odd) == [1, [2.5, 3], "inf", {"a": "(1+2j)"}, None, True]

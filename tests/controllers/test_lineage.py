"""Tests of the lineage and member rows, and of following them back."""

import json
import math

import jax.numpy as jnp
import numpy as np
import pytest

from qdrl_haiku import controllers
from qdrl_haiku.controllers import lineage

_COLUMNS = {
  "generation",
  "step",
  "child",
  "parent",
  "child_fitness",
  "parent_fitness",
  "old_hyperparams",
  "new_hyperparams",
  "operator",
}


_OPERATORS = ("survive", "perturb", "resample", "mixed", "reinitialise")


def _row(generation, child, parent):
  return {"generation": generation, "child": child, "parent": parent}


def _decision(parents, operators, **hyperparams):
  return controllers.Decision(
    jnp.array(parents, jnp.int32),
    {name: jnp.array(values) for name, values in hyperparams.items()},
    jnp.array([_OPERATORS.index(name) for name in operators]),
  )


def test_initial_rows_have_one_per_agent():
  rows = lineage.initial_rows({"tau": jnp.array([0.25, 0.5])})
  assert [set(row) for row in rows] == [_COLUMNS, _COLUMNS]
  assert rows[1] == {
    "generation": 0,
    "step": 0,
    "child": 1,
    "parent": -1,
    "child_fitness": None,
    "parent_fitness": None,
    "old_hyperparams": None,
    "new_hyperparams": {"tau": 0.5},
    "operator": "init",
  }


def test_rows_have_one_per_replaced_agent():
  decision = _decision(
    [2, 1, 2, 2],
    ["perturb", "survive", "survive", "resample"],
    tau=[0.75, 0.5, 0.25, 0.125],
  )
  fitness = jnp.array([1.0, 2.0, 3.0, math.nan])
  old = {"tau": jnp.array([1.0, 0.5, 0.25, 2.0])}
  rows = lineage.rows(5, jnp.int32(1000), decision, fitness, old, _OPERATORS)
  assert rows == [
    {
      "generation": 5,
      "step": 1000,
      "child": 0,
      "parent": 2,
      "child_fitness": 1.0,
      "parent_fitness": 3.0,
      "old_hyperparams": {"tau": 1.0},
      "new_hyperparams": {"tau": 0.75},
      "operator": "perturb",
    },
    {
      "generation": 5,
      "step": 1000,
      "child": 3,
      "parent": 2,
      "child_fitness": None,
      "parent_fitness": 3.0,
      "old_hyperparams": {"tau": 2.0},
      "new_hyperparams": {"tau": 0.125},
      "operator": "resample",
    },
  ]


def test_rows_have_the_decisions_reasons():
  operators = ["perturb", "survive", "resample"]
  decision = _decision([1, 1, 1], operators, tau=[0.0] * 3)
  reasons = {"predicted_change": jnp.array([0.5, 7.0, math.nan])}
  rows = lineage.rows(
    1,
    10,
    decision._replace(reasons=reasons),
    jnp.arange(3.0),
    {"tau": jnp.ones(3)},
    _OPERATORS,
  )
  assert [row["predicted_change"] for row in rows] == [0.5, None]
  assert set(rows[0]) == {*_COLUMNS, "predicted_change"}


def test_a_members_fitness_is_there_where_it_is_not_the_return():
  rows = lineage.member_rows(
    1, 10, np.zeros(2), {"tau": np.zeros(2)}, np.array([0.5, math.nan])
  )
  assert [row["fitness"] for row in rows] == [0.5, None]


def test_member_rows_have_one_per_member():
  rows = lineage.member_rows(
    2, 300, np.array([1.5, -math.inf]), {"tau": np.array([0.25, 0.5])}
  )
  assert rows == [
    {
      "generation": 2,
      "step": 300,
      "member": 0,
      "return": 1.5,
      "hyperparams": {"tau": 0.25},
    },
    {
      "generation": 2,
      "step": 300,
      "member": 1,
      "return": None,
      "hyperparams": {"tau": 0.5},
    },
  ]


def test_rows_are_strict_json_whatever_diverged():
  decision = _decision([1, 1], ["mixed", "survive"], tau=[math.inf, 0.25])
  fitness = jnp.array([math.nan, math.inf])
  old = {"tau": jnp.array([math.nan, 0.25])}
  rows = lineage.initial_rows(old)
  rows += lineage.rows(1, 10, decision, fitness, old, _OPERATORS)
  rows += lineage.member_rows(1, 10, fitness, old)
  assert len(rows) == 5
  assert json.loads(json.dumps(rows, allow_nan=False)) == rows


def test_names_of_any_tree_are_joined_paths():
  tree = {"sac": {"tau": jnp.array([0.5, math.nan])}, "x": (jnp.ones(2),)}
  assert lineage.named_hyperparams(tree) == [
    {"sac/tau": 0.5, "x/0": 1.0},
    {"sac/tau": None, "x/0": 1.0},
  ]


def test_sample_rows_have_one_per_member_that_an_elite_replaced():
  rows = lineage.sample_rows(
    4,
    jnp.int32(900),
    jnp.array([-1, 7, 0]),
    jnp.array([3.0, math.nan, 1.0]),
    {"tau": jnp.array([0.5, 0.25, 0.125])},
    {"tau": jnp.array([0.5, 2.0, math.inf])},
  )
  assert rows == [
    {
      "generation": 4,
      "step": 900,
      "child": 1,
      "parent": -1,
      "child_fitness": None,
      "parent_fitness": None,
      "old_hyperparams": {"tau": 0.25},
      "new_hyperparams": {"tau": 2.0},
      "operator": "sample",
      "cell": 7,
    },
    {
      "generation": 4,
      "step": 900,
      "child": 2,
      "parent": -1,
      "child_fitness": 1.0,
      "parent_fitness": None,
      "old_hyperparams": {"tau": 0.125},
      "new_hyperparams": {"tau": None},
      "operator": "sample",
      "cell": 0,
    },
  ]
  assert set(rows[0]) == _COLUMNS | {"cell"}
  assert json.loads(json.dumps(rows, allow_nan=False)) == rows


def test_ancestry_ends_at_an_elite_of_the_repertoire():
  sample = _row(2, 0, -1) | {"operator": "sample", "cell": 5}
  rows = [_row(0, 0, -1), _row(0, 1, -1), sample, _row(3, 1, 0)]
  assert lineage.ancestry(rows, 1) == [sample, _row(3, 1, 0)]
  assert lineage.ancestry(rows, 0) == [sample]


def test_ancestry_by_hand():
  rows = [
    *(_row(0, i, -1) for i in range(4)),
    _row(1, 0, 2),
    # Simultaneous: member 3 takes over from member 0 as generation 1 left it,
    # not from what generation 2 puts in its place.
    _row(2, 0, 1),
    _row(2, 3, 0),
    _row(4, 2, 3),
    # After member 2 had taken over from it.
    _row(5, 3, 1),
  ]
  assert lineage.ancestry(rows, 2) == [
    _row(0, 2, -1),
    _row(1, 0, 2),
    _row(2, 3, 0),
    _row(4, 2, 3),
  ]
  assert lineage.ancestry(rows, 0) == [_row(0, 1, -1), _row(2, 0, 1)]
  assert lineage.ancestry(rows, 1) == [_row(0, 1, -1)]


def test_ancestry_goes_on_through_a_reinitialised_member():
  rows = [_row(0, 0, -1), _row(1, 0, 0), _row(2, 0, 0)]
  assert lineage.ancestry(rows, 0) == rows


def test_ancestry_refuses_a_member_without_rows():
  with pytest.raises(ValueError, match=r"member=4 has no .* use one of \[0\]"):
    lineage.ancestry([_row(0, 0, -1)], 4)


def _grown(generation, child, parent, rate, operator="perturb"):
  return _row(generation, child, parent) | {
    "operator": operator, "new_hyperparams": {"rate": rate}
  }


def _trained(generation, member, rate):
  return {
    "generation": generation, "member": member, "hyperparams": {"rate": rate}
  }


_LINEAGE = [
  *(_grown(0, i, -1, rate, "init") for i, rate in enumerate([1.0, 2.0, 3.0])),
  _grown(1, 2, 0, 1.25),
  _grown(2, 0, 2, 7.0, "resample"),
  # After member 0 had taken over from it.
  _grown(2, 2, 1, 1.6),
  _grown(4, 1, 0, 5.6),
  # After member 1 was evaluated in generation 5.
  _grown(5, 1, 0, 8.75),
]


def test_schedule_by_hand():
  assert lineage.schedule(_LINEAGE, 1, 5) == [
    _trained(1, 0, 1.0),
    _trained(2, 2, 1.25),
    _trained(3, 0, 7.0),
    _trained(4, 0, 7.0),
    _trained(5, 1, 5.6),
  ]
  assert lineage.schedule(_LINEAGE, 1, 4) == [
    _trained(generation, 1, 2.0) for generation in range(1, 5)
  ]
  # The row of the last generation comes after its evaluation.
  assert lineage.schedule(_LINEAGE, 2, 1) == [_trained(1, 2, 3.0)]


def test_schedule_refuses_who_descends_from_an_elite():
  sample = _grown(3, 0, -1, 9.0, "sample") | {"cell": 17}
  with pytest.raises(ValueError, match="cell 17 that joined in generation 3"):
    lineage.schedule([*_LINEAGE, sample], 1, 5)
  assert len(lineage.schedule([*_LINEAGE, sample], 2, 5)) == 5


def test_schedule_refuses_a_lineage_without_its_beginning():
  with pytest.raises(ValueError, match="no lineage row before generation 1"):
    lineage.schedule(_LINEAGE[3:], 1, 5)


def test_hyperparams_by_name_become_a_tree_again():
  tree = {"sac": {"tau": 0.5}, "x": (1.0, 2.0)}
  named = [
    {"x/1": 6.0, "x/0": 3.0, "sac/tau": 0.1}, {"sac/tau": 1, "x/0": 4, "x/1": 7}
  ]
  stacked = lineage.stacked_hyperparams(named, tree)
  assert stacked["sac"]["tau"].tolist() == [np.float32(0.1), 1.0]
  assert [x.tolist() for x in stacked["x"]] == [[3.0, 4.0], [6.0, 7.0]]
  assert stacked["x"][0].dtype == np.float32

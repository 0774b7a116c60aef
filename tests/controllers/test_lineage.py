"""Tests of the lineage and member rows, and of following them back."""

import math

import jax.numpy as jnp
import numpy as np

from qdrl_haiku import controllers
from qdrl_haiku.controllers import lineage

_COLUMNS = (
  "generation", "step", "child", "parent", "child_fitness", "parent_fitness",
  "old_hyperparams", "new_hyperparams", "operator", "cell")
_OPERATORS = ("survive", "perturb", "resample", "mixed", "reinitialise")


def _whole(*values):
  """A row with all columns, in their order in the file."""
  return dict(zip(_COLUMNS, values, strict=False))


def _row(generation, child, parent):
  return {"generation": generation, "child": child, "parent": parent}


def _decision(parents, operators, **hyperparams):
  return controllers.Decision(
    jnp.array(parents, jnp.int32),
    {name: jnp.array(values) for name, values in hyperparams.items()},
    jnp.array([_OPERATORS.index(name) for name in operators]))


def test_rows_have_one_per_replaced_agent_with_the_decisions_reasons():
  decision = _decision(
    [2, 1, 2, 3], ["perturb", "survive", "survive", "reinitialise"],
    tau=[0.75, 0.5, 0.25, 0.125],
  )._replace(reasons={"hope": jnp.array([0.5, 7.0, 7.0, math.nan])})
  fitness = jnp.array([1.0, 2.0, 3.0, math.nan])
  old = {"tau": jnp.array([1.0, 0.5, 0.25, 2.0])}
  rows = lineage.lineage_rows(
    5, jnp.int32(900), decision, fitness, old, _OPERATORS)
  assert rows == [
    _whole(5, 900, 0, 2, 1.0, 3.0, {"tau": 1.0}, {"tau": 0.75}, "perturb")
    | {"hope": 0.5},
    _whole(
      5, 900, 3, 3, None, None, {"tau": 2.0}, {"tau": 0.125}, "reinitialise")
    | {"hope": None}]
  assert list(rows[0]) == [*_COLUMNS[:-1], "hope"]


def test_elites_that_replaced_members_come_last_with_their_cells():
  decision = _decision(
    [0, 2, 2, 0], ["survive", "perturb", "survive", "mixed"], tau=[0.0] * 4)
  rows = lineage.lineage_rows(
    4, jnp.int32(900), decision, jnp.array([1.0, math.nan, 3.0, 4.0]),
    {"tau": jnp.array([0.125, 0.25, 0.5, 1.0])}, _OPERATORS,
    jnp.array([0, 7, -1, -1]), {"tau": jnp.array([math.inf, 2.0, 0.5, 0.5])})
  assert rows == [
    _whole(4, 900, 3, 0, 4.0, 1.0, {"tau": 1.0}, {"tau": 0.0}, "mixed"),
    _whole(
      4, 900, 0, -1, 1.0, None, {"tau": 0.125}, {"tau": None}, "sample", 0),
    _whole(4, 900, 1, -1, None, None, {"tau": 0.25}, {"tau": 2.0}, "sample", 7)]
  assert tuple(rows[-1]) == _COLUMNS


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
    _row(5, 3, 1)]
  assert lineage.trace_lineage(reversed(rows), 2) == [
    _row(0, 2, -1), _row(1, 0, 2), _row(2, 3, 0), _row(4, 2, 3)]
  assert lineage.trace_lineage(rows, 0) == [_row(0, 1, -1), _row(2, 0, 1)]
  # It ends at an elite of a repertoire.
  sample = _row(3, 3, -1) | {"operator": "sample", "cell": 5}
  assert lineage.trace_lineage([*rows, sample], 2) == [sample, _row(4, 2, 3)]


def test_hyperparams_by_name_become_a_tree_again():
  tree = {"sac": {"tau": 0.5}, "x": (1.0, 2.0)}
  named = [
    {"x/1": 6.0, "x/0": 3.0, "sac/tau": 0.1},
    {"sac/tau": 1, "x/0": 4, "x/1": 7}]
  stacked = lineage.stack_lineage_hyperparams(named, tree)
  assert stacked["sac"]["tau"].tolist() == [np.float32(0.1), 1.0]
  assert [x.tolist() for x in stacked["x"]] == [[3.0, 4.0], [6.0, 7.0]]
  assert stacked["x"][0].dtype == np.float32
  assert lineage.lineage_hyperparams(stacked)[1] == {
    "sac/tau": 1.0, "x/0": 4.0, "x/1": 7.0}

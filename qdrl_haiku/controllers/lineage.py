"""Rows of the lineage and of members' records, and ancestries read from them.

Everything here runs on the host. Rows hold plain Python values, None in place
of numbers that aren't finite, so that each is one line of strict JSON.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np

from qdrl_haiku import trees
from qdrl_haiku.controllers.base import SURVIVE, Decision
from qdrl_haiku.types import Array, Hyperparams, Record

"""One line of a record, by column name."""
Named = dict[str, float | None]
"""The hyperparameters of one member by name, None where not finite."""


def lineage_hyperparams(hyperparams: Hyperparams) -> list[Named]:
  """Returns the hyperparameters of each member of a tree with leaves [P]."""
  named = trees.tree_leaves_by_name(jax.device_get(hyperparams))
  columns = [_numbers(leaf) for leaf in named.values()]
  return [
    dict(zip(named, values, strict=True))
    for values in zip(*columns, strict=True)]


def initial_lineage_rows(hyperparams: Hyperparams) -> list[Record]:
  """Returns the rows of generation 0, of hyperparameters with leaves [P]."""
  return [
    _row(0, 0, child, new_hyperparams=new, operator="init")
    for child, new in enumerate(lineage_hyperparams(hyperparams))]


def lineage_rows(
  generation: int, step: int, decision: Decision, fitness: Array,
  old_hyperparams: Hyperparams, operators: Sequence[str],
  cells: Array | None = None, sampled: Hyperparams = None,
) -> list[Record]:
  """Makes the lineage rows of one generation, one per replaced agent.

  Args:
    generation: from 1.
    step: environment steps per agent so far.
    decision: of the controller.
    fitness: [P], before the decision.
    old_hyperparams: leaves [P], before the decision.
    operators: the controller's.
    cells: int32 [P], the cell whose elite took a member's place, else -1.
    sampled: leaves [P], those elites' hyperparameters.

  Returns:
    Rows with the decision's reasons in order of `child`, then rows of elites,
    with parent -1, operator "sample" and a column `cell`.
  """
  decision, fitness, old_hyperparams = jax.device_get(
    (decision, fitness, old_hyperparams))
  fitnesses = _numbers(fitness)
  old = lineage_hyperparams(old_hyperparams)
  new = lineage_hyperparams(decision.hyperparams)
  reasons = {name: _numbers(x) for name, x in decision.reasons.items()}
  from_cells = np.full(len(old), -1) if cells is None else np.asarray(cells)
  found = [
    _row(
      generation, step, child, parent=parent, child_fitness=fitnesses[child],
      parent_fitness=fitnesses[parent], old_hyperparams=old[child],
      new_hyperparams=new[child], operator=operators[code])
    | {name: values[child] for name, values in reasons.items()}
    for child, (parent, code) in enumerate(
      zip(decision.parents.tolist(), decision.operator.tolist(), strict=True))
    if operators[code] != SURVIVE and from_cells[child] < 0]
  elites = np.flatnonzero(from_cells >= 0).tolist()
  joined = lineage_hyperparams(sampled) if elites else []
  return found + [
    _row(
      generation, step, child, child_fitness=fitnesses[child],
      old_hyperparams=old[child], new_hyperparams=joined[child],
      operator="sample", cell=int(from_cells[child]))
    for child in elites]


def lineage_member_rows(
  generation: int, step: int, returns: Array, hyperparams: Hyperparams,
  fitness: Array | None = None,
) -> list[Record]:
  """Makes the members' rows of one generation.

  Args:
    generation: counted from 0.
    step: environment steps per agent so far.
    returns: [P], of the members.
    hyperparams: leaves [P], with which they were trained.
    fitness: [P], given where it isn't the return.
  """
  columns: dict[str, list[Any]] = {
    "return": _numbers(returns),
    "hyperparams": lineage_hyperparams(hyperparams)}
  if fitness is not None:
    columns["fitness"] = _numbers(fitness)
  return [
    {"generation": int(generation), "step": int(step), "member": member}
    | dict(zip(columns, values, strict=True))
    for member, values in enumerate(zip(*columns.values(), strict=True))]


def trace_lineage(rows: Iterable[Record], member: int) -> list[Record]:
  """Follows a member of the last generation back to generation 0.

  Returns the rows of the chain, oldest first: from `row["step"]` until the next
  one, the member's ancestor was trained with `row["new_hyperparams"]`. A member
  with a "reinitialise" row is its own parent, although it inherits nothing.
  """
  by_child: dict[int, list[Record]] = {}
  for row in sorted(rows, key=lambda row: row["generation"]):
    by_child.setdefault(row["child"], []).append(row)
  if member not in by_child:
    raise ValueError(
      f"member={member} has no lineage row; use one of {sorted(by_child)}.")
  chain: list[Record] = []
  generation = math.inf
  # Replacements of one generation are simultaneous: a parent is as it was
  # before its own row of that generation, hence strictly older rows only.
  while older := [
    row for row in by_child.get(member, []) if row["generation"] < generation
  ]:
    chain.append(older[-1])
    generation, member = older[-1]["generation"], older[-1]["parent"]
  return chain[::-1]


def schedule_from_lineage(
  rows: Iterable[Record], member: int, generation: int
) -> list[Record]:
  """Returns the hyperparameters that a member was trained with.

  Args:
    rows: lineage rows of a whole run, in any order.
    member: its index.
    generation: the one in which it was evaluated, from 1.

  Returns:
    A row for each generation from 1 to that one, with the columns generation,
    member (its ancestor's index then) and hyperparams.

  Raises:
    ValueError: if an elite of a repertoire took the place of an ancestor.
  """
  older = [row for row in rows if row["generation"] < generation]
  chain = trace_lineage(older, member)
  first = chain[0]
  if first["operator"] == "sample":
    raise ValueError(
      f"member={member} descends from the elite of cell {first['cell']} that "
      f"joined in generation {first['generation']}; how that one was trained "
      "isn't recorded.")
  ends = [row["generation"] for row in chain[1:]] + [generation]
  return [
    {"generation": trained, "member": row["child"],
     "hyperparams": row["new_hyperparams"]}
    for row, end in zip(chain, ends, strict=True)
    for trained in range(row["generation"] + 1, end + 1)]


def stack_lineage_hyperparams(
  named: Iterable[dict[str, float]], like: Hyperparams
) -> Hyperparams:
  """Puts n hyperparameters by name back into a tree like one, leaves [n]."""
  names, rows = [*trees.tree_leaves_by_name(like)], list(named)
  for row in rows:
    if row.keys() != {*names}:
      raise ValueError(
        f"hyperparameters {row} have other names than {', '.join(names)}.")
  leaves = [
    np.asarray([row[name] for row in rows], np.float32) for name in names]
  return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _row(generation: int, step: int, child: int, **columns: Any) -> Record:
  """Makes a row; columns that aren't given are those of a first agent."""
  return {
    "generation": int(generation), "step": int(step), "child": child,
    "parent": -1, "child_fitness": None, "parent_fitness": None,
    "old_hyperparams": None} | columns


def _numbers(values: Array) -> list[float | None]:
  """Converts an array [P] to floats, None where one is not finite."""
  return [
    value if math.isfinite(value) else None
    for value in np.asarray(values, np.float64).tolist()]

"""Reads jaxprs of functions."""

import jax
from jax.extend.core import Literal, jaxprs_in_params


def equations(function, *args, outside_of=""):
  """Returns all equations of a function and of its inner ones.

  Those within operations of one name, such as "cond", may be left out.
  """
  found, jaxprs = [], [jax.make_jaxpr(function)(*args).jaxpr]
  while jaxprs:
    for equation in jaxprs.pop().eqns:
      found.append(equation)
      if equation.primitive.name != outside_of:
        jaxprs.extend(jaxprs_in_params(equation.params))
  return found


def named(function, name, *args, **kwargs):
  """Returns the equations of one primitive, such as "dot_general"."""
  found = equations(function, *args, **kwargs)
  return [e for e in found if e.primitive.name == name]


def waiting_loops(function, *args):
  """Returns loops of `vmap(function)` that wait for all of a batch."""
  batch = jax.tree.map(lambda x: jax.numpy.stack([x, x]), args)
  return [
    loop
    for loop in named(jax.vmap(function), "while", *batch)
    if loop.params["cond_jaxpr"].out_avals[0].shape]


def reused_keys(function, *args):
  """Returns the equations that draw from a key that was drawn from before.

  Drawing from a key, splitting it, and folding the same number into it again
  are such uses. Values are known by how they are computed; what is different in
  each turn of a loop is taken for the first turn's.
  """
  numbers, used, found = {}, set(), []

  def number(*computed):
    return numbers.setdefault(computed, len(numbers))

  def visit(jaxpr, inputs):
    known = dict(zip(jaxpr.invars, inputs, strict=True))
    known |= {x: number("constant", id(x)) for x in jaxpr.constvars}

    def of(variable):
      if isinstance(variable, Literal):
        return number("literal", str(variable.val))
      return known[variable]

    for equation in jaxpr.eqns:
      name, params = equation.primitive.name, equation.params
      given = [of(x) for x in equation.invars]
      inner = list(jaxprs_in_params(params))
      # To print what is within takes longer than all else.
      computed = (name, id(equation)) if inner else (name, str(params))
      for each in inner:
        # Of an operation with several, the last inputs are theirs.
        outputs = visit(each, given[len(given) - len(each.invars) :])
      if name in ("random_bits", "random_split", "random_fold_in"):
        use = name == "random_fold_in", *given
        if use in used:
          found.append(str(equation))
        used.add(use)
      if len(inner) != 1 or name == "scan":
        outputs = [
          number(*computed, *given, i) for i in range(len(equation.outvars))]
      known.update(zip(equation.outvars, outputs, strict=True))
    return [of(x) for x in jaxpr.outvars]

  jaxpr = jax.make_jaxpr(function)(*args).jaxpr
  visit(jaxpr, [number("argument", i) for i in range(len(jaxpr.invars))])
  return found

"""What a function computes, read from its jaxpr."""

import jax
from jax.extend.core import jaxprs_in_params


def equations(function, *args):
  """All equations of a function, those of its inner functions included.

  Args:
    function: to be traced.
    *args: its arguments.

  Returns:
    The equations, in no order to rely on.
  """
  found, jaxprs = [], [jax.make_jaxpr(function)(*args).jaxpr]
  while jaxprs:
    for equation in jaxprs.pop().eqns:
      found.append(equation)
      jaxprs.extend(jaxprs_in_params(equation.params))
  return found


def named(function, name, *args):
  """The equations of one primitive, such as "dot_general"."""
  return [e for e in equations(function, *args) if e.primitive.name == name]


def waiting_loops(function, *args):
  """The loops of `vmap(function)` that run until all of a batch are done.

  Args:
    function: to be traced, of one instance.
    *args: its arguments, of one instance.

  Returns:
    The equations: those whose predicate is one for each of the batch.
  """
  batch = jax.tree.map(lambda x: jax.numpy.stack([x, x]), args)
  return [
    loop
    for loop in named(jax.vmap(function), "while", *batch)
    if loop.params["cond_jaxpr"].out_avals[0].shape
  ]

"""What is compiled by itself, for one device, amid a program for several.

A program for several devices rounds otherwise than the same program for one:
before XLA divides it, it inlines calls and merges equal operations, whose order
then differs, and so what is fused with what. A decision that looks for the
highest of many numbers may then be another one. So what is marked here leaves a
hole in the program around it. It becomes a program of its own, the same
whatever the devices are; each process has its first one run it, and hands the
results to its others.

So there are three programs to be started instead of one, and what passes from
the first to the last has to be there in between. On the other hand devices that
are threads of one CPU don't all decide the same at once.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.extend import core as jax_core
from jax.sharding import (
  Mesh,
  NamedSharding,
  PartitionSpec,
  SingleDeviceSharding,
)

from qdrl_haiku import types

_NAME = "by_itself"


def by_itself(function: Callable[..., Any]) -> Callable[..., Any]:
  """Marks a function, which `Program` then compiles by itself.

  It's found where it's called by what becomes the program, or by what that
  calls, but not within transformations, `jax.jit` or loops. In any other
  program it's a part like others.

  Args:
    function: of trees of arrays, closing over no traced value.

  Returns:
    The function.
  """

  def call(*args: Any) -> Any:
    leaves, treedef = jax.tree.flatten(args)
    result = []

    def by_itself(*leaves: types.Array) -> list[types.Array]:
      tree = function(*jax.tree.unflatten(treedef, leaves))
      leaves, result_treedef = jax.tree.flatten(tree)
      result.append(result_treedef)
      return leaves

    assert by_itself.__name__ == _NAME
    leaves = jax.jit(by_itself)(*leaves)
    return jax.tree.unflatten(result[0], leaves)

  return call


class Compiled(NamedTuple):
  """A compiled function, like that of `jax.jit`.

  Attributes:
    call: it.
    parts: the programs that it consists of, as jax has them.
  """

  call: Callable[..., Any]
  parts: tuple[Any, ...]

  def __call__(self, *args: Any) -> Any:
    """Calls it."""
    return self.call(*args)

  def as_text(self) -> str:
    """Returns all parts as XLA's text."""
    return "\n".join(part.as_text() for part in self.parts)


class Program:
  """A function of arrays on a mesh, compiled around what is `by_itself` in it.

  At most one such part is.
  """

  def __init__(
    self,
    function: Callable[..., Any],
    mesh: Mesh,
    *,
    out_shardings: Any,
    compiler_options: dict[str, Any],
    own_options: dict[str, Any],
  ) -> None:
    """Compiles nothing yet.

    Args:
      function: whose first argument is donated.
      mesh: the devices.
      out_shardings: as of `jax.jit`.
      compiler_options: as of `jax.jit`.
      own_options: those of what is by itself.
    """
    self._function = function
    self._mesh = mesh
    self._out_shardings = out_shardings
    self._options = compiler_options
    self._own_options = own_options
    self._compiled: Compiled | None = None

  def __call__(self, *args: Any) -> Any:
    """Calls the function, which is compiled the first time."""
    if self._compiled is None:
      self._compiled = self.compile(*args)
    return self._compiled(*args)

  def compile(self, *args: Any) -> Compiled:
    """Compiles the function.

    Args:
      *args: arrays, or shapes, dtypes and shardings.

    Returns:
      The compiled function, of arrays as these.
    """
    closed, shapes = jax.make_jaxpr(self._function, return_shape=True)(*args)
    jaxpr = closed.jaxpr
    hole = _place(jaxpr)
    if hole is None:
      whole = self._jit(self._function, self._out_shardings, (0,), args)
      return Compiled(whole, (whole,))
    before, part, *after = (jaxpr.eqns[:hole], *jaxpr.eqns[hole:])
    shardings = jax.tree.leaves(
      jax.tree.broadcast(self._out_shardings, shapes)
    )
    given = dict(zip(jaxpr.invars, jax.tree.leaves(args), strict=True))
    donated = set(jaxpr.invars[: len(jax.tree.leaves(args[0]))])

    # What is known before is a result at once; all else, and arguments, which
    # may be donated, come last.
    early = {x: None for equation in before for x in equation.outvars}
    is_early = [
      not isinstance(x, jax_core.Literal) and x in early
      for x in jaxpr.outvars
    ]
    soon, late = (
      [i for i, known in enumerate(is_early) if known == when]
      for when in (True, False)
    )
    last_results = [jaxpr.outvars[i] for i in late]
    kept = _inputs(after, last_results)
    handed = [x for x in early if x in kept]
    needed = _inputs(before, part.invars)
    first = [x for x in jaxpr.invars if x in needed]
    last = [x for x in jaxpr.invars if x in kept]

    replicated = NamedSharding(self._mesh, PartitionSpec())
    begin = self._jit(
      _function(
        closed,
        before,
        first,
        [*part.invars, *handed, *[jaxpr.outvars[i] for i in soon]],
      ),
      [
        *[replicated] * len(part.invars),
        *[None] * len(handed),
        *[shardings[i] for i in soon],
      ],
      [i for i, x in enumerate(first) if x in donated and x not in kept],
      [given[x] for x in first],
    )
    num_asked, num_known = len(part.invars), len(part.invars) + len(handed)
    chosen = begin.output_shardings[num_asked:num_known]
    end = self._jit(
      _function(closed, after, [*last, *handed, *part.outvars], last_results),
      [shardings[i] for i in late],
      [i for i, x in enumerate(last) if x in donated],
      [
        *[given[x] for x in last],
        *map(_specified, handed, chosen),
        *[_specified(x, replicated) for x in part.outvars],
      ],
    )
    device = SingleDeviceSharding(self._mesh.local_devices[0])
    decide = (
      jax.jit(
        jax_core.jaxpr_as_fun(part.params["jaxpr"]),
        compiler_options=self._own_options,
      )
      .lower(*[_specified(x, device) for x in part.invars])
      .compile()
    )
    places = {x: i for i, x in enumerate(jaxpr.invars)}
    treedef = jax.tree.structure(shapes)

    def call(*args: Any) -> Any:
      leaves = jax.tree.leaves(args)
      known = begin(*[leaves[places[x]] for x in first])
      asked, handed = known[:num_asked], known[num_asked:num_known]
      decided = decide(*[x.addressable_data(0) for x in asked])
      results = [
        *known[num_known:],
        *end(
          *[leaves[places[x]] for x in last],
          *handed,
          *_everywhere(replicated, decided),
        ),
      ]
      by_place = dict(zip([*soon, *late], results, strict=True))
      return jax.tree.unflatten(
        treedef, [by_place[i] for i in range(len(by_place))]
      )

    return Compiled(call, (begin, decide, end))

  def _jit(
    self, function: Any, out_shardings: Any, donated: Any, args: Any
  ) -> Any:
    """Compiles a function for the mesh."""
    return (
      jax.jit(
        function,
        donate_argnums=tuple(donated),
        out_shardings=out_shardings,
        compiler_options=self._options,
      )
      .lower(*args)
      .compile()
    )


def _place(jaxpr: Any) -> int | None:
  """Returns which operation is the marked call; None where there is none."""
  for i, equation in enumerate(jaxpr.eqns):
    if equation.primitive.name == "jit" and equation.params["name"] == _NAME:
      return i
  return None


def _function(
  closed: Any, equations: Any, arguments: Any, results: Any
) -> Callable[..., Any]:
  """Makes a function of some of a program's operations."""
  jaxpr = closed.jaxpr
  part = jaxpr.replace(invars=arguments, outvars=results, eqns=equations)
  return jax_core.jaxpr_as_fun(jax_core.ClosedJaxpr(part, closed.consts))


def _inputs(equations: Any, results: Any) -> set[Any]:
  """Returns the variables that operations take, and those of the results."""
  taken = [x for equation in equations for x in equation.invars]
  return {x for x in [*taken, *results] if not isinstance(x, jax_core.Literal)}


def _specified(variable: Any, sharding: Any) -> jax.ShapeDtypeStruct:
  """Returns what a compiled function needs to know of an argument."""
  aval = variable.aval
  return jax.ShapeDtypeStruct(
    aval.shape, aval.dtype, sharding=sharding, weak_type=aval.weak_type
  )


def _everywhere(
  replicated: NamedSharding, arrays: list[types.Array]
) -> list[types.Array]:
  """Hands what this process's first device has to its others."""
  copies = [
    jax.device_put(arrays, device)
    for device in replicated.mesh.local_devices
  ]
  return [
    jax.make_array_from_single_device_arrays(x[0].shape, replicated, list(x))
    for x in zip(*copies, strict=True)
  ]

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

import functools
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

    def by_itself(*leaves: Any) -> list[Any]:
      tree = function(*jax.tree.unflatten(treedef, leaves))
      results, result_treedef = jax.tree.flatten(tree)
      result.append(result_treedef)
      return results

    assert by_itself.__name__ == _NAME
    results = jax.jit(by_itself)(*leaves)
    return jax.tree.unflatten(result[0], results)

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


class Plan(NamedTuple):
  """How three programs make one; it can be pickled.

  Attributes:
    treedef: of the results.
    first: which of the arguments' leaves the first program takes.
    last: which of them the last one takes.
    num_asked: how many of the first one's results what is by itself takes.
    num_handed: how many of those after them the last one takes.
    is_early: of each leaf of the results, whether the first one returns it.
  """

  treedef: Any
  first: tuple[int, ...]
  last: tuple[int, ...]
  num_asked: int
  num_handed: int
  is_early: tuple[bool, ...]


class Keeping(NamedTuple):
  """Where what is compiled may be found, so that nothing needs to be traced.

  Attributes:
    plan: (makes a `Plan`, or None for a function that is one program) -> it.
    part: (name, traces and lowers a program, options, devices) -> it, compiled.
  """

  plan: Callable[[Callable[[], Plan | None]], Plan | None]
  part: Callable[[str, Callable[[], Any], dict[str, Any], list[Any]], Any]


NOT_KEPT = Keeping(
  plan=lambda make: make(),
  part=lambda name, lower, options, devices: lower().compile(),
)
"""Traces and compiles."""


class Program:
  """A function of arrays on a mesh, compiled around what is `by_itself` in it.

  At most one such part is.
  """

  def __init__(
    self,
    function: Callable[..., Any],
    mesh: Mesh,
    *,
    arguments: Callable[[], tuple[Any, ...]],
    out_shardings: Any,
    compiler_options: dict[str, Any],
    own_options: dict[str, Any],
    keeping: Keeping = NOT_KEPT,
  ) -> None:
    """Compiles nothing yet.

    Args:
      function: whose first argument is donated.
      mesh: the devices.
      arguments: returns arrays like those that it's called with, or their
        shapes, dtypes and shardings.
      out_shardings: as of `jax.jit`.
      compiler_options: as of `jax.jit`.
      own_options: those of what is by itself.
      keeping: where its parts may be found.
    """
    self._function = function
    self._mesh = mesh
    self._arguments = arguments
    self._out_shardings = out_shardings
    self._options = compiler_options
    self._own_options = own_options
    self._keeping = keeping
    self._compiled: Compiled | None = None

  def __call__(self, *args: Any) -> Any:
    """Calls the function, which is compiled the first time."""
    return self.compile()(*args)

  def compile(self) -> Compiled:
    """Returns the compiled function."""
    if self._compiled is None:
      self._compiled = self._compile()
    return self._compiled

  def _compile(self) -> Compiled:
    # Where all is kept, it's not cut at all.
    cut = functools.cache(self._cut)
    part = self._keeping.part
    devices, first = [*self._mesh.devices.flat], self._mesh.local_devices[:1]
    plan = self._keeping.plan(lambda: cut().plan)
    if plan is None:
      whole = part("whole", self._lower_whole, self._options, devices)
      return Compiled(whole, (whole,))
    begin = part("begin", lambda: cut().begin(), self._options, devices)
    own = part("own", lambda: cut().own(), self._own_options, first)
    end = part(
      "end",
      lambda: cut().end(begin.output_shardings),
      self._options,
      devices,
    )
    return Compiled(
      functools.partial(_call, plan, self._mesh, begin, own, end),
      (begin, own, end),
    )

  def _lower_whole(self) -> Any:
    return self._lowered(
      self._function, self._out_shardings, (0,), self._arguments()
    )

  def _cut(self) -> "_Pieces":
    """Traces the function, and cuts it where something is by itself."""
    args = self._arguments()
    closed, shapes = jax.make_jaxpr(self._function, return_shape=True)(*args)
    jaxpr = closed.jaxpr
    hole = _place(jaxpr)
    if hole is None:
      return _Pieces(plan=None)
    part, before, after = (
      jaxpr.eqns[hole],
      jaxpr.eqns[:hole],
      jaxpr.eqns[hole + 1 :],
    )
    shardings = jax.tree.leaves(
      jax.tree.broadcast(self._out_shardings, shapes)
    )
    given = dict(zip(jaxpr.invars, jax.tree.leaves(args), strict=True))
    donated = set(jaxpr.invars[: len(jax.tree.leaves(args[0]))])

    # What is known before is a result at once; all else, and arguments, which
    # may be donated, come last.
    early = {x: None for equation in before for x in equation.outvars}
    is_early = [_is_in(x, early) for x in jaxpr.outvars]
    soon = [x for x in jaxpr.outvars if _is_in(x, early)]
    late = [x for x in jaxpr.outvars if not _is_in(x, early)]
    kept = _inputs(after, late)
    handed = [x for x in early if x in kept]
    needed = _inputs(before, part.invars)
    first = [x for x in jaxpr.invars if x in needed]
    last = [x for x in jaxpr.invars if x in kept]
    num_asked, num_known = len(part.invars), len(part.invars) + len(handed)
    replicated = NamedSharding(self._mesh, PartitionSpec())

    def begin() -> Any:
      of_first = [shardings[i] for i, x in enumerate(is_early) if x]
      return self._lowered(
        _function(closed, before, first, [*part.invars, *handed, *soon]),
        [*[replicated] * num_asked, *[None] * len(handed), *of_first],
        [i for i, x in enumerate(first) if x in donated and x not in kept],
        [given[x] for x in first],
      )

    def own() -> Any:
      device = SingleDeviceSharding(self._mesh.local_devices[0])
      return jax.jit(
        jax_core.jaxpr_as_fun(part.params["jaxpr"]),
        compiler_options=self._own_options,
      ).lower(*[_specified(x, device) for x in part.invars])

    def end(chosen: Any) -> Any:
      return self._lowered(
        _function(closed, after, [*last, *handed, *part.outvars], late),
        [shardings[i] for i, x in enumerate(is_early) if not x],
        [i for i, x in enumerate(last) if x in donated],
        [
          *[given[x] for x in last],
          *map(_specified, handed, chosen[num_asked:num_known]),
          *[_specified(x, replicated) for x in part.outvars],
        ],
      )

    places = {x: i for i, x in enumerate(jaxpr.invars)}
    plan = Plan(
      treedef=jax.tree.structure(shapes),
      first=tuple(places[x] for x in first),
      last=tuple(places[x] for x in last),
      num_asked=num_asked,
      num_handed=len(handed),
      is_early=tuple(is_early),
    )
    return _Pieces(plan, begin, own, end)

  def _lowered(
    self, function: Any, out_shardings: Any, donated: Any, args: Any
  ) -> Any:
    """Lowers a function for the mesh."""
    return jax.jit(
      function,
      donate_argnums=tuple(donated),
      out_shardings=out_shardings,
      compiler_options=self._options,
    ).lower(*args)


def _nothing(*_: Any) -> None:
  """Stands for a piece that isn't there."""


class _Pieces(NamedTuple):
  """What a function was cut into: how, if at all, and what lowers each piece.

  The last one takes what the first one hands on where the compiler has put it.
  """

  plan: Plan | None
  begin: Callable[[], Any] = _nothing
  own: Callable[[], Any] = _nothing
  end: Callable[[Any], Any] = _nothing


def _call(
  plan: Plan, mesh: Mesh, begin: Any, own: Any, end: Any, *args: Any
) -> Any:
  """Calls the three programs that are one function."""
  leaves = jax.tree.leaves(args)
  known = begin(*[leaves[i] for i in plan.first])
  num_known = plan.num_asked + plan.num_handed
  asked, handed = known[: plan.num_asked], known[plan.num_asked : num_known]
  decided = own(*[x.addressable_data(0) for x in asked])
  replicated = NamedSharding(mesh, PartitionSpec())
  late = iter(
    end(
      *[leaves[i] for i in plan.last],
      *handed,
      *_everywhere(replicated, decided),
    )
  )
  soon = iter(known[num_known:])
  return jax.tree.unflatten(
    plan.treedef, [next(soon if x else late) for x in plan.is_early]
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


def _is_in(variable: Any, variables: dict[Any, None]) -> bool:
  return not isinstance(variable, jax_core.Literal) and variable in variables


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

"""Makes configurations of learners from settings that stand side by side."""

import dataclasses
import pathlib

from qdrl_haiku.programs import experiment

_FLAGFILES = pathlib.Path(__file__).parents[1] / "launchers" / "flagfiles"


def make(config_class, **settings):
  """Returns a learner's configuration; settings of networks are nested."""
  network = config_class.network
  names = {field.name for field in dataclasses.fields(network)}
  shape = {name: x for name, x in settings.items() if name in names}
  own = {name: x for name, x in settings.items() if name not in names}
  return config_class(network=dataclasses.replace(network, **shape), **own)


def sized(config_class, *sizes, **settings):
  """Returns a configuration of a policy's and a critic's widths."""
  names = ("policy_hidden_layer_sizes", "critic_hidden_layer_sizes")
  return make(config_class, **dict(zip(names, sizes, strict=True)), **settings)


def configured(name, flags, preset=None):
  """The configuration that a program makes of flags and of a flagfile."""
  program = experiment.LAUNCHERS[name]
  given = {}
  if preset is not None:
    lines = (_FLAGFILES / f"{preset}.flags").read_text().splitlines()
    given |= _parsed(program, [x for x in lines if x.startswith("--")])
  typed = _parsed(program, flags.split())
  return program.configure(given | typed, frozenset(typed))


def _parsed(program, flags):
  """The values of flags as absl parses them."""
  known, given = program.settings(), {}
  for flag in flags:
    key, is_, value = flag.removeprefix("--").partition("=")
    if not is_:
      given |= {key: True} if key in known else {key.removeprefix("no"): False}
    elif known[key].kind.base is not tuple:
      given[key] = {"true": True, "false": False}.get(value, value)
    elif known[key].declared.repeatable or known[key].declared.keys:
      given.setdefault(key, []).append(value)
    else:
      given[key] = value.split(",") if value else []
  return given

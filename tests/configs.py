"""Makes configurations of learners from settings that stand side by side."""

import dataclasses

from qdrl_haiku import experiment


def make(config_class, **settings):
  """A learner's configuration; settings of networks are its network's."""
  network = config_class.network
  names = {field.name for field in dataclasses.fields(network)}
  shape = {name: x for name, x in settings.items() if name in names}
  own = {name: x for name, x in settings.items() if name not in names}
  return config_class(network=dataclasses.replace(network, **shape), **own)


def sized(config_class, *sizes, **settings):
  """A configuration of a policy's and a critic's widths."""
  names = ("policy_hidden_layer_sizes", "critic_hidden_layer_sizes")
  return make(config_class, **dict(zip(names, sizes, strict=True)), **settings)


def configured(name, flags):
  """The configuration that a program makes of flags, all of them typed."""
  program = experiment.PROGRAMS[name]
  known, given = program.settings(), {}
  for flag in flags.split():
    key, is_, value = flag.removeprefix("--").partition("=")
    if not is_:
      given |= {key: True} if key in known else {key.removeprefix("no"): False}
    elif known[key].kind.base is not tuple:
      given[key] = {"true": True, "false": False}.get(value, value)
    elif known[key].declared.repeatable or known[key].declared.keys:
      given.setdefault(key, []).append(value)
    else:
      given[key] = value.split(",") if value else []
  return program.configure(given, frozenset(given))

"""Makes configurations of learners from settings that stand side by side."""

import dataclasses


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

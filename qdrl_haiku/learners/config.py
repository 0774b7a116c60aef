"""The settings that several learners have."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from qdrl_haiku.config import Settings, UsersOwn, setting
from qdrl_haiku.hyperparameter import Hyperparameter
from qdrl_haiku.learners.hyperparameters import OF_TEMPERATURES
from qdrl_haiku.networks import Cell, NetworkConfig, OwnNetworks

_WINDOW, *_RECURRENT = ALL_MEMORIES = ("window", "gru", "lstm")
"""Lists what agents may remember by, if their networks can be recurrent."""


@dataclasses.dataclass(frozen=True)
class AgentConfig(Settings):
  """Shapes an agent's networks and what they see.

  The class attribute `hyperparameters` has declarations of all that such agents
  may have, by name; `memories`, what they may remember by.
  """

  title = "Learner"
  hyperparameters: ClassVar[Mapping[str, Hyperparameter]] = MappingProxyType({})
  memories: ClassVar[tuple[str, ...]] = (_WINDOW,)

  network: NetworkConfig = NetworkConfig()
  normalize_observations: bool | None = setting(
    None,
    "Whether networks see observations normalised by the agent's own running "
    "statistics; by default yes without a repertoire, and no with one, whose "
    "variations mix the weights of two parents.")
  policy_network: str | None = setting(
    None,
    "package.module:function of a policy network of your own: called with the "
    "number N of the policy's outputs (2A, for td3 A, with actions [A]; n, if "
    "they are one of n), it returns a function that calls Haiku's modules and "
    "maps observations [B, O] to outputs [B, N].")
  memory: str = setting(
    "none",
    "What agents remember of an episode: none; window:K, the last K "
    "observations, which networks see side by side, zeros before the first; or "
    "of sac, td3 and ppo, gru:H or lstm:H, H numbers that each network makes "
    "of all observations so far.")
  discount_growth: int = setting(
    0,
    "Critic steps within which 1 - discount falls from 0.05 to its value, "
    "geometrically, so that values are learned soon; 0 for a discount that "
    "stays.",
    low=0, needs="replay updates")

  def __post_init__(self) -> None:
    super().__post_init__()
    self.remembered()
    for name in ("policy_hidden_layer_sizes", "policy_final_init"):
      value = getattr(self.network, name)
      if self.policy_network is not None and value is not None:
        raise ValueError(
          f"{name}={value} has no effect: policy_network="
          f"{self.policy_network} is the policy; leave it out.")

  def remembered(self) -> tuple[str, int]:
    """Returns the kind of memory and its size, or refuses the setting."""
    kind, _, number = self.memory.partition(":")
    size = int(number) if number.isdecimal() else 0
    is_known = kind in self.memories and size >= 1 + (kind == _WINDOW)
    if not is_known and self.memory != "none":
      raise ValueError(
        f"memory={self.memory!r} is unknown to this learner; give none, "
        f"{', '.join(f'{x}:K' for x in self.memories)}, where K is 1 or more, "
        "of a window 2 or more.")
    return kind, size

  @property
  def cell(self) -> Cell | None:
    """The cell of recurrent networks."""
    kind, size = self.remembered()
    return Cell(kind, size) if kind in _RECURRENT else None

  @property
  def declared(self) -> dict[str, Hyperparameter]:
    """Declarations of the agents' hyperparameters, by name."""
    has_blocks = self.network.has_residual_blocks
    return {
      name: x for name, x in self.hyperparameters.items()
      if has_blocks or name != "weight_decay"}

  def own_networks(
    self, given: OwnNetworks | None, num_outputs: int
  ) -> OwnNetworks:
    """Returns the networks of a user's own.

    Args:
      given: networks that the learner was called with, if any.
      num_outputs: N, the policy's outputs for one observation.
    """
    given = given or OwnNetworks()
    if self.policy_network is None or given.policy is not None:
      return given
    policy: Any = UsersOwn(self.policy_network).call(
      "policy_network", object, num_outputs=num_outputs)
    return given._replace(policy=policy)

  @property
  def normalizes(self) -> bool:
    """Whether observations are normalised."""
    return self.normalize_observations is not False


@dataclasses.dataclass(frozen=True)
class SequenceAgentConfig(AgentConfig):
  """Shapes an agent which, if it's recurrent, learns from sequences."""

  memories = ALL_MEMORIES
  sequence_length: int = setting(
    40,
    "Steps of each sequence that sac and td3 learn from with --memory=gru:H or "
    "lstm:H; --batch_size counts those after --burn_in.",
    low=1, needs="learning")
  burn_in: int = setting(
    8,
    "First steps of these sequences, which aren't learned from, but bring the "
    "stored memory up to date.",
    low=0, needs="learning")

  def __post_init__(self) -> None:
    super().__post_init__()
    length, burn_in = self.sequence_length, self.burn_in
    if burn_in >= length:
      raise ValueError(
        f"burn_in={burn_in} leaves nothing of sequence_length={length} to "
        "learn from; lower the first or raise the second.")
    kind = SequenceAgentConfig
    is_default = (length, burn_in) == (kind.sequence_length, kind.burn_in)
    if self.cell is None and not is_default:
      raise ValueError(
        f"sequence_length={length} and burn_in={burn_in} have no effect: "
        f"memory={self.memory} isn't learned from sequences; leave them out.")


@dataclasses.dataclass(frozen=True)
class RolloutAgentConfig(AgentConfig):
  """Shapes an agent which learns from rollouts by minibatches."""

  num_epochs: int = setting(
    4, "How often ppo and pqn go through each rollout.", low=1, offered=False,
    needs="learning")
  num_minibatches: int = setting(
    4,
    "Batches into which ppo and pqn cut a rollout, anew each time; one step of "
    "each network on each.",
    low=1, offered=False, needs="learning")

  @property
  def num_steps(self) -> int:
    """Counts the steps that each network takes on a rollout."""
    return self.num_epochs * self.num_minibatches


@dataclasses.dataclass(frozen=True)
class SoftAgentConfig(AgentConfig):
  """Shapes an agent whose policy is rewarded for its entropy."""

  learn_temperature: bool = setting(
    True,
    "Whether the temperature is learned; if not, it stays at "
    "--initial_temperature.",
    offered=False, needs="learning")
  initial_temperature: float = setting(
    0.3, "Temperature of the entropy at first.", low=1e-30, high=1e30,
    needs="learning")

  @property
  def declared(self) -> dict[str, Hyperparameter]:
    """See `AgentConfig.declared`; a fixed temperature has none."""
    return {
      name: x for name, x in super().declared.items()
      if self.learn_temperature or name not in OF_TEMPERATURES}


def policy_delay_setting() -> int:
  """Declares how many critic steps there are to one policy step."""
  return setting(
    2,
    "Critic steps per policy step of td3, crossq and xqc; 1 moves the policy "
    "with every critic step.",
    low=1, needs="learning")


@dataclasses.dataclass(frozen=True)
class DelayedSoftAgentConfig(SoftAgentConfig):
  """Shapes a soft agent whose policy moves after several critic steps."""

  # The papers take 3; TD3's 2 lets all learners group their steps alike.
  policy_delay: int = policy_delay_setting()

"""Population-based and quality-diversity reinforcement learning in JAX.

A researcher starts a launcher; an engineer composes learners, actors and
controllers; an author tests one loss. Each package stands alone and says in
its docstring what it is for.
"""

from qdrl_haiku import compatibility

__version__ = "0.2.0"

compatibility.check()

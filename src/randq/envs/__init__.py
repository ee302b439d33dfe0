"""Environments that run inside the compiled loop. `randq.envs.gym` offers them to Gymnasium."""

from typing import Any

from randq.envs.base import Environment, Step
from randq.envs.deep_sea import DeepSea
from randq.envs.nchain import NChain

ENVIRONMENTS: dict[str, type[Environment[Any, Any]]] = {"nchain": NChain, "deep_sea": DeepSea}
"""Every environment by its name on the command line."""

__all__ = ["ENVIRONMENTS", "DeepSea", "Environment", "NChain", "Step"]

"""Environments that run inside the compiled loop. `randq.envs.gym` offers them to Gymnasium."""

from typing import Any

from randq.envs.acrobot import Acrobot
from randq.envs.base import Environment, Step
from randq.envs.cart_pole import CartPole
from randq.envs.deep_sea import DeepSea
from randq.envs.mountain_car import MountainCar
from randq.envs.mountain_car_continuous import MountainCarContinuous
from randq.envs.nchain import NChain
from randq.envs.pendulum import Pendulum

ENVIRONMENTS: dict[str, type[Environment[Any, Any]]] = {
    "nchain": NChain,
    "deep_sea": DeepSea,
    "mountain_car": MountainCar,
    "cart_pole": CartPole,
    "acrobot": Acrobot,
    "pendulum": Pendulum,
    "mountain_car_continuous": MountainCarContinuous,
}
"""Every environment by its name on the command line."""

IDS = {name: f"randq/{cls.__name__}-v0" for name, cls in ENVIRONMENTS.items()}
"""The id of each with Gymnasium."""

__all__ = [
    "ENVIRONMENTS",
    "IDS",
    "Acrobot",
    "CartPole",
    "DeepSea",
    "Environment",
    "MountainCar",
    "MountainCarContinuous",
    "NChain",
    "Pendulum",
    "Step",
]

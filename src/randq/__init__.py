"""Weight posteriors over Q-networks, and exploration by sampling from them."""

from typing import TYPE_CHECKING, Any

from randq.version import VERSION

if TYPE_CHECKING:
    from randq.api import Agent, Policy, evaluate, load, make
    from randq.presets import preset

__all__ = ["Agent", "Policy", "evaluate", "load", "make", "preset"]

__version__ = VERSION


def __getattr__(name: str) -> Any:
    # The api brings Gymnasium with it, which those who only want a posterior need not wait for.
    if name not in __all__:
        raise AttributeError(f"module 'randq' has no attribute {name!r}")
    from randq import api, presets

    return getattr(presets if name == "preset" else api, name)

"""Which key decides what: the same for both loops, so that they can play the same run."""

from typing import NamedTuple

import jax

from randq import threefry
from randq.types import Array, Int32, Key, Shaped


class RunKeys(NamedTuple):
    """What the number of a seed becomes."""

    run: Key
    """All that happens after the start."""
    evaluation: Key
    """Evaluation has a key of its own, so that it changes nothing in training."""
    agent: Key
    world: Key
    env: Key
    """The first episode."""


class StepKeys(NamedTuple):
    """The keys of one step."""

    refresh: Key
    act: Key
    env: Key
    reset: Key
    mask: Key


class UpdateKeys(NamedTuple):
    """The keys of one update."""

    sample: Key
    learn: Key
    condition: Key


def run_keys(seed: Int32[Array, ""]) -> RunKeys:
    return RunKeys(*threefry.split(jax.random.key(seed), len(RunKeys._fields)))


def block_keys(
    key: Key, block: Int32[Array, ""], steps: int, updates: int
) -> tuple[Shaped[Array, "steps step_fields"], Shaped[Array, "updates update_fields"]]:
    """The keys of a block's steps (`StepKeys`) and updates (`UpdateKeys`), from its number."""
    for_steps = steps * len(StepKeys._fields)
    total = for_steps + updates * len(UpdateKeys._fields)
    keys = threefry.split(threefry.fold_in(key, block), total)
    return (
        keys[:for_steps].reshape(steps, len(StepKeys._fields)),
        keys[for_steps:].reshape(updates, len(UpdateKeys._fields)),
    )

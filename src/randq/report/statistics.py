"""Statistics of runs of which some are censored: not solved within their budget.

A censored run stands as infinity: later than all others, by how much nobody knows. A quantile that
would need to know is infinite itself.
"""

import math
from collections.abc import Sequence

import numpy as np

from randq.config import whole, within


def as_times(solved_at: Sequence[int | None]) -> np.ndarray:
    """Episodes as numbers, and infinity for None."""
    return np.array([math.inf if at is None else float(at) for at in solved_at])


def quantile(times: np.ndarray, share: float) -> float:
    """Linear between order statistics, as numpy has it, but at home with infinity."""
    within("share", share, 0.0, 1.0)
    whole("times", len(times), at_least=1)
    ordered = np.sort(times)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    weight = place - below
    if weight == 0:
        return float(ordered[below])
    low, high = float(ordered[below]), float(ordered[below + 1])
    return high if math.isinf(high) else low + weight * (high - low)


def bootstrap_medians(times: np.ndarray, resamples: int, rng: np.random.Generator) -> np.ndarray:
    """The median, and after it those of resamples of the seeds."""
    chosen = rng.integers(len(times), size=(resamples, len(times)))
    return np.concatenate([[quantile(times, 0.5)], np.median(times[chosen], axis=1)])


def wilson(successes: int, trials: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's 95% interval of a share."""
    whole("trials", trials, at_least=1)
    share = successes / trials
    centre = (share + z**2 / (2 * trials)) / (1 + z**2 / trials)
    half = math.sqrt(share * (1 - share) / trials + z**2 / (4 * trials**2))
    half *= z / (1 + z**2 / trials)
    return max(0.0, centre - half), min(1.0, centre + half)

"""Statistics of runs of which some are censored: not solved within their budget.

A censored run stands as infinity: later than all others, by how much nobody knows. A quantile that
would need to know is infinite itself. Returns are not censored: means of them have t intervals.
"""

import math
from collections.abc import Sequence
from functools import cache

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


@cache
def t_quantile(level: float, freedom: float) -> float:
    """How far from 0, on either side, this share of Student's t reaches."""
    # In the angle whose tangent is t / sqrt(freedom), the density is a power of the cosine.
    angles = np.linspace(0, math.pi / 2, 100_001)
    density = np.cos(angles) ** (freedom - 1)
    mass = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    return math.sqrt(freedom) * math.tan(np.interp(level, mass / mass[-1], angles))


def t_interval(values: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """Student's interval of a mean. From a single value it is infinite."""
    whole("values", len(values), at_least=1)
    if len(values) == 1:
        return -math.inf, math.inf
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    mean, half = float(np.mean(values)), t_quantile(level, float(len(values) - 1)) * error
    return mean - half, mean + half


def welch(a: np.ndarray, b: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """Welch's interval of the mean of a minus that of b: their variances may differ."""
    counts = len(a), len(b)
    whole("values", min(counts), at_least=1)
    if min(counts) == 1:
        return -math.inf, math.inf
    shares = [float(np.var(x, ddof=1)) / len(x) for x in (a, b)]
    total, difference = sum(shares), float(np.mean(a) - np.mean(b))
    if total == 0:
        return difference, difference
    freedom = total**2 / sum(s**2 / (n - 1) for s, n in zip(shares, counts, strict=True))
    half = t_quantile(level, freedom) * math.sqrt(total)
    return difference - half, difference + half

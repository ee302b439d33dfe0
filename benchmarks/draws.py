"""Milliseconds per draw with its cost, beside the time of drawing that many normal numbers, with
`jax.random` and with `randq.threefry`, which gives the same ones.

    python benchmarks/draws.py

Both run inside jit on one layer; the best of several repeats is printed. A draw whose cost is
linear in the number of parameters keeps a constant time per parameter as the layer grows.
"""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from randq import threefry
from randq.networks import MLP
from randq.posteriors import MNF, Family, MeanField, Noisy

SIZES = [(64, 64), (256, 256), (512, 512), (1024, 1024), (3136, 512)]
FAMILIES: dict[str, Family] = {
    "noisy": Noisy(),
    "mean_field": MeanField(),
    "mnf": MNF(flow_steps=2, auxiliary_steps=2, flow_hidden=50),
}


def milliseconds(function: Callable[..., Any], *arguments: Any, repeats: int = 30) -> float:
    jax.block_until_ready(function(*arguments))
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        best = min(best, time.perf_counter() - start)
    return 1e3 * best


def main() -> None:
    key = jax.random.key(0)
    print(f"generator: {jax.random.key_impl(key)}   device: {jax.devices()[0].device_kind}")
    columns = "".join(f"{name:>12}" for name in FAMILIES)
    print(
        f"{'layer':>12}{'parameters':>12}{'jax.random':>12}{'threefry':>12}{columns}"
        "   (ms; in brackets, ns a weight)"
    )
    for size_in, size_out in SIZES:
        count = size_in * size_out + size_out
        theirs = jax.jit(lambda key, count=count: jax.random.normal(key, (count,)))
        ours = jax.jit(lambda key, count=count: threefry.normal(key, (count,), jnp.float32))
        times = [milliseconds(theirs, key), milliseconds(ours, key)]
        for family in FAMILIES.values():
            posterior = family.build(lambda k: MLP.create(size_in, [], size_out, key=k), key)  # noqa: B023
            times.append(milliseconds(jax.jit(lambda p, key: p.sample(key)), posterior, key))
        cells = "".join(f"{f'{t:.3f} ({1e6 * t / count:.0f})':>12}" for t in times)
        print(f"{f'{size_in}x{size_out}':>12}{count:>12}{cells}")


if __name__ == "__main__":
    main()

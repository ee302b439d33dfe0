"""How sure is each posterior away from its data? The command `randq regression`, as a script.

    python examples/regression.py [STEPS]

fits y = x^3 + noise with every family and writes results/regression.png.
"""

import sys
from pathlib import Path

import jax.numpy as jnp

from randq.regression import FAMILIES, Regression, run
from randq.report import figures

steps = int(sys.argv[1]) if len(sys.argv) > 1 else Regression.steps
settings, seeds = Regression(steps=steps), jnp.arange(4)
fits = {name: run(family, settings, seeds) for name, family in FAMILIES.items()}
for name, fit in fits.items():
    inside, outside = fit.spread()
    print(f"{name:<16} spread {inside.mean():6.2f} at |x| < 3, {outside.mean():6.2f} at |x| = 6")
picture = Path("results/regression.png")
figures.regression(fits, picture)
print(f"The picture is {picture}")

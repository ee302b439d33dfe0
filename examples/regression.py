"""How sure is each posterior away from its data? The command `randq regression`, as a script.

Fits y = x^3 + noise with every family and writes results/regression.png.
"""

from pathlib import Path

import jax.numpy as jnp

from randq.regression import FAMILIES, Regression, run
from randq.report import figures


def main(out: Path = Path("results/regression.png"), settings: Regression | None = None) -> None:
    settings = settings or Regression()
    fits = {name: run(family, settings, jnp.arange(4)) for name, family in FAMILIES.items()}
    for name, fit in fits.items():
        inside, outside = fit.spread()
        print(
            f"{name:<16} spread {inside.mean():6.2f} at |x| < 3, {outside.mean():6.2f} at |x| = 6"
        )
    figures.regression(fits, out)
    print(f"The picture is {out}")


if __name__ == "__main__":
    main()

"""Weight posteriors: a family is a value, built over any network."""

from dataclasses import fields
from typing import Any

from randq.config import one_of
from randq.posteriors.base import Draw, Family, Frozen, Members, Posterior, learnt, trainable
from randq.posteriors.bayes_linear import BayesLinear
from randq.posteriors.bootstrap import Bootstrap
from randq.posteriors.layerwise import LayerPosterior, Layerwise, randomise
from randq.posteriors.mean_field import MeanField
from randq.posteriors.mnf import MNF
from randq.posteriors.noisy import Noisy
from randq.posteriors.point import Point

FAMILIES: dict[str, type[Family]] = {
    "point": Point,
    "noisy": Noisy,
    "mean_field": MeanField,
    "mnf": MNF,
    "bootstrap": Bootstrap,
    "bayes_linear": BayesLinear,
}
"""Every family by name."""


def family(name: str, **settings: Any) -> Family:
    """A family by its name, for example `family("mnf", flow_steps=2)`."""
    one_of("family", name, FAMILIES)
    kind = FAMILIES[name]
    for setting in settings:
        one_of(f"setting of {name}", setting, [f.name for f in fields(kind)])  # type: ignore[arg-type]
    return kind(**settings)


__all__ = [
    "FAMILIES",
    "MNF",
    "BayesLinear",
    "Bootstrap",
    "Draw",
    "Family",
    "Frozen",
    "LayerPosterior",
    "Layerwise",
    "MeanField",
    "Members",
    "Noisy",
    "Point",
    "Posterior",
    "family",
    "learnt",
    "randomise",
    "trainable",
]

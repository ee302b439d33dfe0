"""What a posterior is, and how to implement one.

A posterior is a distribution over the weights of a value network. It is a pytree of arrays, so jit,
grad and vmap go through it, and every random step is a pure function of a key. A family (`MNF`,
`Bootstrap`, ...) is the frozen record of settings that builds one; nothing outside a family's own
file asks which family it holds.

How to implement a posterior
----------------------------
*A distribution over each layer's weights* (most families). Write

1. a `LayerPosterior`: `noise(supply)` takes the normal numbers that one draw needs, `draw(noise)`
   makes a plain layer and its cost of them, and `mean()` is the layer with all noise disabled;
2. a `Family`: a frozen dataclass whose `build(init, key)` returns
   `Layerwise(randomise(init(key), layers, make))`, where `make(layer)` turns an initialised layer
   into your distribution over it.

`examples/new_posterior.py` does this for MC dropout.

*Anything else* (an ensemble, a closed form). Subclass `Posterior` and implement its methods;
`bootstrap.py` and `bayes_linear.py` are the examples. Wrap arrays that gradients must never reach
in `Frozen`.

Then add one line to `FAMILIES` in `posteriors/__init__.py`: the contract tests find it there.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp

from randq.networks import Network
from randq.types import Array, Batch, Float, Int, Key, Scalar

T = TypeVar("T")

Init = Callable[[Key], Network]
"""Makes one freshly initialised network."""

Function = Callable[[Any], Float[Array, " out"]]
"""A network of fixed weights, or an average or a vote of several: one example in, values out."""


class Frozen(eqx.Module, Generic[T]):
    """Arrays that no gradient reaches: constant for ever, or updated in closed form."""

    tree: T
    constant: bool = eqx.field(static=True)

    @property
    def value(self) -> T:
        return jax.lax.stop_gradient(self.tree)


def trainable(posterior: T) -> tuple[T, T]:
    """Split off what an optimiser sees; `equinox.combine` puts the two parts together again."""
    return _partition(posterior, lambda frozen: False)


def learnt(posterior: T) -> tuple[T, T]:
    """Split off what changes in training, by gradient or not: what a target network copies."""
    return _partition(posterior, lambda frozen: not frozen.constant)


def _partition(tree: T, keep: Callable[[Frozen[Any]], bool]) -> tuple[T, T]:
    def is_frozen(node: object) -> bool:
        return isinstance(node, Frozen)

    def spec(node: Any) -> Any:
        return keep(node) if is_frozen(node) else eqx.is_inexact_array(node)

    return eqx.partition(tree, jax.tree.map(spec, tree, is_leaf=is_frozen))


def zero_cost(tree: Any) -> Scalar:
    """The cost of what is not random, in the dtype of the tree's weights."""
    return jnp.zeros((), next(x.dtype for x in jax.tree.leaves(tree) if eqx.is_inexact_array(x)))


class Draw(eqx.Module):
    """One sample of a posterior: a network of fixed weights, and its regularization cost."""

    network: Function
    cost: Scalar

    def __call__(self, x: Any) -> Float[Array, " out"]:
        return self.network(x)


class Members(eqx.Module):
    """The draws that a loss trains at once, as a function of a whole batch."""

    cost: eqx.AbstractVar[Scalar]

    @abstractmethod
    def __call__(self, xs: Batch) -> Float[Array, "members batch out"]:
        """The outputs of every member for every example."""


class OneNetwork(Members):
    """A single member with one set of weights for the whole batch."""

    network: Function
    cost: Scalar

    def __call__(self, xs: Batch) -> Float[Array, "members batch out"]:
        return jax.vmap(self.network)(xs)[None]


class Posterior(eqx.Module):
    """A distribution over the weights of a value network; above is how to implement one."""

    @property
    @abstractmethod
    def num_members(self) -> int:
        """How many networks a loss trains at once: one, or the heads of an ensemble."""

    @abstractmethod
    def sample(self, key: Key) -> Draw:
        """One network to act with, and its cost. The same key gives the same draw."""

    @abstractmethod
    def mean(self) -> Function:
        """The draw with all noise disabled; for an ensemble, the average of its members."""

    @abstractmethod
    def members(self, key: Key | None) -> Members:
        """What a loss trains, or, for `None`, the same with all noise disabled (for a target)."""

    @abstractmethod
    def settled(self) -> "Posterior":
        """The posterior that has all noise disabled for good: its members without noise are those
        of this one, with nothing left to compute. It is what a target network copies."""

    @abstractmethod
    def masks(self, key: Key, batch: int) -> Float[Array, "members batch"]:
        """Which member learns from which of `batch` new examples: ones and zeros."""

    @abstractmethod
    def evaluator(self) -> Function:
        """The noise-free scores whose argmax is the action in evaluation."""

    @abstractmethod
    def condition(
        self, xs: Batch, outputs: Int[Array, " batch"], targets: Float[Array, " batch"]
    ) -> Self:
        """What is updated in closed form, given targets for one output of each example.

        Families that learn by gradient alone return themselves.
        """


class Family:
    """The settings of a family. Subclasses are frozen dataclasses that validate themselves."""

    @abstractmethod
    def build(self, init: Init, key: Key) -> Posterior:
        """A freshly initialised posterior over the weights of the networks that `init` makes."""

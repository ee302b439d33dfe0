"""A posterior that writes down what it is asked, and as whom: online or target."""

from dataclasses import dataclass

import jax.numpy as jnp

from randq.posteriors import Family, Frozen, Posterior

ONLINE, TARGET = 0.0, 1.0
TAPE: list[tuple] = []


class Taped(Posterior):
    """Any posterior, on tape."""

    inner: Posterior
    who: Frozen  # learnt but not trained, like the last layer of BDQN: it stays what it is set to

    @property
    def num_members(self):
        return self.inner.num_members

    def write(self, what, key):
        TAPE.append((what, self.who.value, key))

    def sample(self, key):
        self.write("sample", key)
        return self.inner.sample(key)

    def mean(self):
        self.write("mean", None)
        return self.inner.mean()

    def members(self, key):
        self.write("members", key)
        return self.inner.members(key)

    def settled(self):
        return Taped(self.inner.settled(), self.who)

    def masks(self, key, batch):
        return self.inner.masks(key, batch)

    def evaluator(self):
        self.write("evaluator", None)
        return self.inner.evaluator()

    def condition(self, xs, outputs, targets):
        self.write("condition", None)
        return Taped(self.inner.condition(xs, outputs, targets), self.who)


@dataclass(frozen=True)
class Tape(Family):
    """Any family, on tape."""

    family: Family

    def build(self, init, key):
        return Taped(self.family.build(init, key), Frozen(jnp.float32(ONLINE), constant=False))


def taped(function):
    """The result of a function, and what it wrote on the tape: (what, key), and who."""
    TAPE.clear()
    result = function()
    return result, list(TAPE)

"""The ring against a list: only the last `capacity` items can be sampled, all alike."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import example, given
from hypothesis import strategies as st

from randq.replay.ring import Ring

EXAMPLE = {"number": jnp.zeros((), jnp.int32), "pair": jnp.zeros(2)}


def items(numbers):
    """A block of items that know which one they are, in both of their arrays."""
    pair = jnp.stack([numbers, -numbers], axis=1).astype(jnp.float32)
    return {"number": numbers, "pair": pair}


@functools.cache
def filled(ring, blocks):
    """After some blocks of the numbers 1, 2, ...: a ring, 600 samples of it, and a list."""

    @jax.jit
    def fill(numbers):
        add = lambda state, n: (ring.add(state, items(n)), None)  # noqa: E731
        state, _ = jax.lax.scan(add, ring.init(EXAMPLE), numbers)
        return state, ring.size(state), ring.sample(state, jax.random.key(ring.capacity), 600)

    numbers = np.arange(1, 1 + ring.block * blocks, dtype=np.int32)
    state, size, drawn = fill(numbers.reshape(blocks, ring.block))
    naive = numbers.tolist()[-ring.capacity :]
    assert int(size) == len(naive)
    assert int(state.written) == len(numbers)
    return state, jax.device_get(drawn), naive


@functools.partial(jax.jit, static_argnums=(0, 3))
def sample(ring, state, key, count):
    return ring.sample(state, key, count)


@given(st.integers(1, 20), st.integers(1, 8), st.integers(1, 14))
@example(capacity=8, block=4, blocks=2)  # exactly full
@example(capacity=8, block=4, blocks=3)  # the first block that could overwrite
@example(capacity=8, block=4, blocks=4)  # the first wrap-around
@example(capacity=3, block=8, blocks=3)  # a block is larger than all that is kept
@example(capacity=7, block=3, blocks=13)  # the capacity is not a whole number of blocks
def test_holds_what_a_list_would_hold(capacity, block, blocks):
    _, drawn, naive = filled(Ring(capacity, block), blocks)
    # With 600 samples the chance that one of 20 items never comes is below 1e-12.
    assert set(drawn["number"].tolist()) == set(naive)
    # All arrays of an item come from the same slot.
    np.testing.assert_array_equal(drawn["pair"][:, 0], drawn["number"])
    np.testing.assert_array_equal(drawn["pair"][:, 1], -drawn["number"])


@pytest.mark.parametrize("blocks", [1, 2, 3, 7, 20])
def test_samples_uniformly(blocks):
    ring = Ring(capacity=10, block=4)
    state, _, naive = filled(ring, blocks)
    p_values = []
    for seed in range(5):
        drawn = np.asarray(sample(ring, state, jax.random.key(seed), 20_000)["number"])
        counts = [int((drawn == number).sum()) for number in naive]
        assert sum(counts) == len(drawn)
        p_values.append(scipy.stats.chisquare(counts).pvalue)
    assert min(p_values) > 1e-3, p_values
    assert max(p_values) > 1e-1, p_values


def test_samples_are_independent_of_each_other():
    """With replacement: among 2 of 10 items, pairs are alike one time in ten."""
    ring = Ring(capacity=10, block=5)
    state, _, _ = filled(ring, 3)
    keys = jax.random.split(jax.random.key(0), 20_000)
    pairs = jax.jit(jax.vmap(lambda key: ring.sample(state, key, 2)["number"]))(keys)
    alike = int(jnp.sum(pairs[:, 0] == pairs[:, 1]))
    assert scipy.stats.binomtest(alike, len(pairs), 0.1).pvalue > 1e-3


def test_the_same_key_gives_the_same_sample():
    ring = Ring(capacity=10, block=5)
    state, _, _ = filled(ring, 3)
    first, second, other = (
        sample(ring, state, jax.random.key(int(i)), 50)["number"] for i in "001"
    )
    assert (first == second).all()
    assert (first != other).any()


def test_vmapped_rings_do_not_mix():
    ring = Ring(capacity=7, block=3)

    @jax.jit
    @jax.vmap
    def run(row, key):
        def add(state, block):
            numbers = 1000 * row + 3 * block + jnp.arange(3, dtype=jnp.int32)
            return ring.add(state, items(numbers)), None

        state, _ = jax.lax.scan(add, ring.init(EXAMPLE), jnp.arange(9, dtype=jnp.int32))
        return ring.sample(state, key, 300)["number"]

    rows = np.arange(4, dtype=np.int32)
    for row, drawn in enumerate(np.asarray(run(rows, jax.random.split(jax.random.key(0), 4)))):
        assert set(drawn.tolist()) == {1000 * row + number for number in range(20, 27)}


def test_memory_is_the_capacity_and_at_most_two_blocks():
    for capacity, block in [(1, 1), (10, 4), (10_000, 108), (32, 108)]:
        ring = Ring(capacity, block)
        assert ring.slots % block == 0
        assert capacity + block <= ring.slots < capacity + 2 * block


@pytest.mark.parametrize(("capacity", "block"), [(0, 1), (-3, 1), (5, 0)])
def test_wrong_sizes_are_refused(capacity, block):
    with pytest.raises(ValueError, match=r"replay .*: got .*, takes an integer >= 1"):
        Ring(capacity, block)


def test_writes_the_chosen_items_of_a_block_in_order():
    """Against a list, over wrap-arounds and blocks of which nothing or everything is chosen."""
    ring = Ring(capacity=7, block=3)
    state, held, number = ring.init(jnp.zeros((), jnp.int32)), [], 0
    rng = np.random.RandomState(0)
    add = jax.jit(ring.add_some)
    for _ in range(40):
        chosen = rng.rand(3) < rng.choice([0.0, 0.5, 1.0])
        items = np.arange(number, number + 3)
        number += 3
        state = add(state, jnp.asarray(items, jnp.int32), jnp.asarray(chosen))
        held = (held + items[chosen].tolist())[-7:]
        assert int(ring.size(state)) == len(held)
        if held:
            drawn = ring.sample(state, jax.random.key(number), 300)
            assert sorted(set(np.asarray(drawn).tolist())) == held

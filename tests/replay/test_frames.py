"""The frame replay against a list of full stacks, over episodes, wrap-arounds and environments."""

import functools
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from randq.replay import Frames, Transitions, replay_for
from randq.types import Spaces, Transition

GAMMA = 0.5
MEMBERS = 2


def example(stack, shape=(2, 1), dtype=jnp.uint8):
    observation = jax.ShapeDtypeStruct((stack, *shape), dtype)
    action = jax.ShapeDtypeStruct((), jnp.int32)
    reward, flag = (jax.ShapeDtypeStruct((), t) for t in (jnp.float32, bool))
    masks = jax.ShapeDtypeStruct((MEMBERS,), jnp.float32)
    return Transition(observation, action, reward, observation, flag, masks)


@functools.cache
def programs(frames, count):
    sample = jax.jit(frames.sample, static_argnums=2)
    return jax.jit(frames.add), lambda state, key: jax.device_get(sample(state, key, count))


class World:
    """One environment: frames that tell which they are, stacked as Gymnasium's wrapper does it."""

    def __init__(self, number, stack):
        self.number, self.stack, self.clock = number, stack, 0
        self.begin()

    def frame(self):
        self.clock += 1
        return np.array([[self.clock % 251], [self.number]], np.uint8)

    def begin(self):
        self.seen = np.stack([self.frame()] * self.stack)

    def step(self):
        before = self.seen
        self.seen = np.concatenate([before[1:], self.frame()[None]])
        return before, self.seen


class Step(NamedTuple):
    """One transition as a list keeps it."""

    observation: bytes
    action: int
    reward: float
    next_observation: np.ndarray
    terminated: bool
    masks: tuple
    last: bool
    """Whether the episode ended here, for whatever reason."""


GIVEN_UP, IDLE, GOES_ON, STOPS, TERMINATES, TRUNCATES = range(6)
events = st.lists(st.integers(GIVEN_UP, TRUNCATES), min_size=1, max_size=70)


def played(frames, envs, scripts):
    """The state after all scripts, one for each environment, and the rows that a list would keep:
    None stands for the frame that the end of an episode takes."""
    stack = frames.stack
    worlds = [World(i, stack) for i in range(envs)]
    rows = [[] for _ in range(envs)]
    add, _ = programs(frames, 1)
    state, rng = jax.jit(frames.init)(), np.random.default_rng(0)
    for t in range(max(map(len, scripts))):
        happens = [script[t] if t < len(script) else IDLE for script in scripts]
        observation = np.stack([world.seen for world in worlds])
        final = observation.copy()
        action = rng.integers(0, 100, envs).astype(np.int32)
        reward = rng.integers(-3, 4, envs).astype(np.float32)
        masks = rng.integers(0, 2, (envs, MEMBERS)).astype(np.float32)
        taken, ended, terminated = (np.zeros(envs, bool) for _ in range(3))
        for i, what in enumerate(happens):
            running = bool(rows[i]) and rows[i][-1] is not None
            if what == IDLE and running:
                what = GOES_ON  # an environment idles only after the end of an episode
            if what == GIVEN_UP:
                if running:
                    rows[i][-1] = rows[i][-1]._replace(last=True)
                    rows[i].append(None)
                worlds[i].begin()
            if what < GOES_ON:
                continue
            taken[i] = True
            ended[i] = what in (TERMINATES, TRUNCATES)
            terminated[i] = what in (TERMINATES, STOPS)
            before, final[i] = worlds[i].step()
            rows[i].append(
                Step(
                    before.tobytes(),
                    int(action[i]),
                    float(reward[i]),
                    final[i].copy(),
                    bool(terminated[i]),
                    tuple(masks[i].tolist()),
                    bool(ended[i]),
                )
            )
            if ended[i]:
                rows[i].append(None)
                worlds[i].begin()
        item = Transition(observation, action, reward, final, terminated, masks)
        state = add(state, jax.tree.map(jnp.asarray, item), jnp.asarray(taken), jnp.asarray(ended))
    return state, rows


def expected(rows, at, n_step):
    """The transition over up to n steps that begins in a row, in full."""
    first = last = rows[at]
    total, steps = first.reward, 1
    while steps < n_step and not (last.terminated or last.last) and at + steps < len(rows):
        last = rows[at + steps]
        total += GAMMA**steps * last.reward
        steps += 1
    discount = GAMMA**steps if n_step > 1 else None
    following = last.next_observation.tobytes()
    return first.observation, first.action, total, following, last.terminated, first.masks, discount


def seen(batch, i):
    return (
        batch.observation[i].tobytes(),
        int(batch.action[i]),
        float(batch.reward[i]),
        batch.next_observation[i].tobytes(),
        bool(batch.terminated[i]),
        tuple(batch.masks[i].tolist()),
        None if batch.discount is None else float(batch.discount[i]),
    )


# Capacity, frames of a stack, rewards of a return, environments: few enough to compile.
CASES = [(1, 1, 1, 1), (5, 3, 1, 1), (12, 3, 3, 1), (3, 2, 5, 1), (13, 4, 1, 3), (6, 1, 3, 3)]


@settings(max_examples=60)
@given(
    st.sampled_from(CASES).flatmap(
        lambda case: st.tuples(st.just(case), st.lists(events, min_size=case[3], max_size=case[3]))
    )
)
def test_samples_what_a_list_of_full_stacks_holds_and_all_of_it(drawn_case):
    (capacity, stack, n_step, envs), scripts = drawn_case
    frames = Frames(capacity, example(stack), envs, n_step, GAMMA)
    state, rows = played(frames, envs, scripts)
    held = [
        expected(mine, at, n_step)
        for mine in rows
        for at in range(max(0, len(mine) - frames.share), len(mine))
        if mine[at] is not None
    ]
    if not held:
        return
    # With 600 samples the chance that one of 18 never comes is below 1e-13.
    drawn = programs(frames, 600)[1](state, jax.random.key(len(held)))
    assert {seen(drawn, i) for i in range(600)} == set(held)


def test_samples_uniformly_over_environments_and_around_borders():
    frames = Frames(30, example(3), 3)
    long, short = [GOES_ON] * 40, [GOES_ON, TRUNCATES] * 20
    few = [IDLE] * 35 + [GOES_ON] * 4 + [TERMINATES]
    state, rows = played(frames, 3, [long, short, few])
    held = [step for mine in rows for step in mine[-frames.share :] if step is not None]
    assert [sum(step is None for step in mine[-10:]) for mine in rows] == [0, 4, 1]
    assert len(held) == 10 + 6 + 5
    sample = programs(frames, 20_000)[1]
    p_values = []
    for seed in range(5):
        drawn = sample(state, jax.random.key(seed))
        found = [seen(drawn, i)[:2] for i in range(20_000)]
        counts = [found.count((step.observation, step.action)) for step in held]
        assert sum(counts) == len(found)
        p_values.append(scipy.stats.chisquare(counts).pvalue)
    assert min(p_values) > 1e-3, p_values
    assert max(p_values) > 1e-1, p_values


def test_an_empty_replay_can_be_asked():
    frames = Frames(10, example(2))
    drawn = programs(frames, 4)[1](frames.init(), jax.random.key(0))
    assert not drawn.observation.any()


SCREEN = Frames(1_000_000, example(4, (84, 84)))


def test_a_million_transitions_take_less_than_seven_and_a_third_gigabytes():
    assert SCREEN.size < 7.3e9
    heads = example(4, (84, 84))._replace(masks=jax.ShapeDtypeStruct((10,), jnp.float32))
    for one in (SCREEN.example, heads):
        per_row = Frames(1_000_000, one).size / 1_000_000
        assert 7056 < per_row <= 7056 + 64
    whole = Transitions(1_000_000, SCREEN.example)
    assert whole.size > 7.9 * SCREEN.size


def test_the_time_of_a_sample_does_not_depend_on_the_capacity():
    """And is less than a millisecond, where a copy of the larger one would take many."""

    def seconds(capacity):
        frames = Frames(capacity, example(4, (84, 84)))
        add, _ = programs(frames, 32)
        state = jax.jit(frames.init)()
        stack = jnp.zeros((1, 4, 84, 84), jnp.uint8)
        yes, no = jnp.ones(1, bool), jnp.zeros(1, bool)
        one = jnp.zeros(1, jnp.int32), jnp.zeros(1, jnp.float32), stack, no
        state = add(state, Transition(stack, *one, jnp.ones((1, MEMBERS))), yes, no)
        state = state._replace(written=jnp.array([capacity], jnp.int32))
        full = jnp.ones_like(state.items.acted)
        state = state._replace(items=state.items._replace(acted=full))
        draw = jax.jit(frames.sample, static_argnums=2)
        times = []
        for i in range(100):
            before = time.perf_counter()
            jax.block_until_ready(draw(state, jax.random.key(i), 32))
            times.append(time.perf_counter() - before)
        return min(times)

    small, large = seconds(1000), seconds(60_000)
    assert large < 5 * small
    assert large < 0.001


def test_rows_can_be_kept_elsewhere_and_put_back():
    frames = Frames(12, example(3))
    script = [GOES_ON, GOES_ON, TERMINATES, GOES_ON, GOES_ON, GOES_ON, TRUNCATES] * 5
    state, _ = played(frames, 1, [[*script, GOES_ON, GOES_ON]])
    first, end = frames.span(state)
    assert end - first == frames.slots - 1
    stretches = list(frames.rows(state, first, end))
    empty = frames.init()
    for start, rows in stretches:
        numbers = jnp.arange(start, start + len(rows[0]), dtype=jnp.int32)
        # What has a negative number is left out.
        padded = [jnp.concatenate([jnp.asarray(x), jnp.ones_like(x[:2])]) for x in rows]
        numbers = jnp.concatenate([numbers, jnp.array([-1, -1], jnp.int32)])
        empty = frames.put(empty, padded, numbers)
    back = state._replace(items=empty.items)
    for (_, mine), (_, other) in zip(stretches, frames.rows(back, first, end), strict=True):
        for a, b in zip(mine, other, strict=True):
            np.testing.assert_array_equal(a, b)
    # The newest frame comes with the next step.
    items = back.items._replace(frame=state.items.frame)
    drawn, other = (
        programs(frames, 300)[1](x, jax.random.key(0)) for x in (state, back._replace(items=items))
    )
    np.testing.assert_array_equal(drawn.observation, other.observation)


def test_rows_are_read_in_stretches(monkeypatch):
    frames = Frames(12, example(3))
    state, _ = played(frames, 1, [[GOES_ON] * 11])
    monkeypatch.setattr("randq.replay.base.STRETCH", 4 * frames.size // frames.slots)
    found = list(frames.rows(state, 2, 11))
    assert [(start, len(rows[0])) for start, rows in found] == [(2, 4), (6, 4), (10, 1)]
    assert np.concatenate([rows[0][:, 0, 0] for _, rows in found]).tolist() == list(range(3, 12))


def test_observations_decide_which_replay_it_is():
    stacked = Spaces((4, 8, 8), 2, dtype="uint8", stack=4)
    assert isinstance(replay_for(stacked, example(4, (8, 8)), 100, n_step=3), Frames)
    plain = Spaces((4, 8, 8), 2, dtype="uint8")
    assert isinstance(replay_for(plain, example(4, (8, 8)), 100), Transitions)
    with pytest.raises(ValueError, match="n_step: got 3, takes 1 where an observation is not a st"):
        replay_for(plain, example(4, (8, 8)), 100, n_step=3)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"capacity": 0}, "replay capacity: got 0"),
        ({"n_step": 0}, "n_step: got 0, takes an integer >= 1"),
        ({"example": example(300)}, "frame_stack: got 300, takes a number from 1 to 255"),
    ],
)
def test_wrong_settings_are_refused(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        Frames(**{"capacity": 10, "example": example(4), **settings})

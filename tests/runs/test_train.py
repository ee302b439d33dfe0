"""What `train` makes of a program: budgets, chunks, stopping, records. And that agents learn.

The program is played by a script where only that matters, so that nothing needs compiling.
"""

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

import randq.runs.train as train_module
from randq.envs import CartPole, DeepSea, NChain
from randq.envs.base import is_optimal
from randq.loops.compiled import Compiled, Record, RunState, Steps
from randq.presets import preset
from randq.runs.train import Outcome, censored_median, train

ENV = NChain(length=4)
AGENT = preset("ddqn", "nchain")


@pytest.fixture
def script(monkeypatch):
    """Evaluations for two seeds, by episode; training returns are half of them."""
    played = SimpleNamespace(evaluations=np.zeros((0, 2)), chunks=[], seeds=None)

    class Scripted(Compiled):
        def init(self, seeds):
            played.seeds = seeds.tolist()
            return RunState(*[None] * 8, block=0)

        def run(self, run_state, blocks):
            state = run_state.block
            played.chunks.append(blocks)
            rows = played.evaluations[state : state + blocks].astype(np.float32)
            assert len(rows) == blocks
            good = [
                np.asarray(is_optimal(jnp.asarray(x), jnp.float32(10))) for x in (rows / 2, rows)
            ]
            last = np.arange(self.steps_per_block)[None, :, None] == self.steps_per_block - 1
            ended = np.broadcast_to(last, (blocks, self.steps_per_block, 2))
            total, length = (np.where(ended, x, 0) for x in (rows[:, None] / 2, np.int32(12)))
            steps = Steps(ended, ended & good[0][:, None], total, length)
            numbers = np.arange(state + 1, state + blocks + 1)
            due = np.broadcast_to(numbers[:, None] % self.evaluate_every == 0, rows.shape)
            record = Record(steps, due, rows, good[1], rows + 100, rows + 200)
            return run_state._replace(block=state + blocks), record

    monkeypatch.setattr(train_module, "Compiled", Scripted)
    return played


def returns(*seeds):
    """Evaluations as they come: 1 is optimal, 0 is not."""
    return np.array([[10.0 if c == "1" else 3.0 for c in seed] for seed in seeds]).T


def test_stops_when_every_seed_is_solved(script):
    script.evaluations = returns("0111" + "0" * 96, "0000011111" + "0" * 90)
    seen = []
    outcome = train(AGENT, ENV, [5, 9], episodes=100, streak=3, chunk=4, watch=seen.append)
    assert script.seeds == [5, 9]
    assert script.chunks == [4, 4]  # the second seed has its three after episode 8
    assert outcome.solved_at == (2, 6)
    assert outcome.seeds == (5, 9)
    assert outcome.episodes == (8, 8)
    assert outcome.final_return == (3.0, 10.0)
    assert outcome.solved_fraction == 1.0
    assert outcome.median_solved_at == 4.0
    assert [(p.done, p.budget, p.unit, p.solved, p.seeds) for p in seen] == [
        (4, 100, "episodes", 1, 2),
        (8, 100, "episodes", 2, 2),
    ]
    assert all(p.steps_per_second > 0 for p in seen)


def test_a_seed_that_does_not_solve_it_is_censored(script):
    script.evaluations = returns("0111111111", "1101101101")
    outcome = train(AGENT, ENV, [0, 1], episodes=10, streak=3, chunk=4)
    assert sum(script.chunks) == 10
    assert outcome.episodes == (10, 10)
    assert outcome.solved_at == (2, None)
    assert outcome.solved_fraction == 0.5
    assert outcome.median_solved_at is None


def test_training_returns_count_for_the_definition_of_bsuite(script):
    script.evaluations = 2 * returns("0000000001", "0100000000")
    outcome = train(AGENT, ENV, [0, 1], episodes=10, streak=100)
    assert outcome.solved_training == (None, 2)
    assert outcome.solved_at == (None, None)


@pytest.mark.parametrize(("steps", "episodes"), [(1, 1), (12, 1), (13, 2), (60, 5)])
def test_a_budget_of_steps_is_rounded_up_to_blocks(script, steps, episodes):
    script.evaluations = returns("0" * 9, "0" * 9)
    assert train(AGENT, ENV, [0, 1], steps=steps).episodes == (episodes, episodes)
    assert sum(script.chunks) == episodes


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({}, "budget: .* takes either episodes or steps"),
        ({"episodes": 5, "steps": 5}, "budget: .* takes either episodes or steps"),
        ({"episodes": 0}, "episodes: got 0, takes an integer >= 1"),
        ({"episodes": -3}, "episodes: got -3, takes an integer >= 1"),
        ({"steps": 0}, "steps: got 0, takes an integer >= 1"),
        ({"episodes": 5, "streak": 0}, "streak: got 0, takes an integer >= 1"),
        ({"episodes": 5, "chunk": 0}, "chunk: got 0, takes an integer >= 1"),
        ({"episodes": 5, "chunk": -1}, "chunk: got -1, takes an integer >= 1"),
    ],
)
def test_wrong_budgets_are_refused(script, settings, sentence):
    script.evaluations = returns("0" * 9, "0" * 9)
    with pytest.raises(ValueError, match=sentence):
        train(AGENT, ENV, [0, 1], **settings)
    assert script.chunks == []
    assert script.seeds is None


def test_no_seeds_are_refused(script):
    with pytest.raises(ValueError, match="seeds: got 0, takes an integer >= 1"):
        train(AGENT, ENV, [], episodes=3)


class Kept:
    """Keeps what a keeper is given."""

    def __init__(self):
        self.rows, self.records, self.steps = {}, [], []

    def begin(self, training):
        self.rows = {seed: [] for seed in training.seeds}

    def chunk(self, training, record, rows):
        self.records.append(record)
        self.steps.append(training.steps)
        for seed, new in zip(training.seeds, rows, strict=True):
            self.rows[seed] += new


def test_every_episode_of_every_seed_is_kept(script):
    script.evaluations = returns("0110100", "1101001")
    kept = Kept()
    train(AGENT, ENV, [5, 9], episodes=7, streak=50, chunk=3, keeper=kept)
    assert kept.steps == [36, 72, 84]
    for column, seed in enumerate((5, 9)):
        rows = kept.rows[seed]
        assert [row.episode for row in rows] == list(range(1, 8))
        assert [row.step for row in rows] == [row.eval_step for row in rows]
        assert [row.step for row in rows] == list(range(12, 85, 12))
        assert {row.length for row in rows} == {12}
        expected = script.evaluations[:, column].tolist()
        assert [row.eval_return for row in rows] == expected
        assert [row.train_return for row in rows] == [value / 2 for value in expected]


def test_evaluations_may_be_rare(script):
    script.evaluations = returns("0110110110", "1001001001")
    kept = Kept()
    outcome = train(
        AGENT, ENV, [5, 9], episodes=10, evaluate_every=3, streak=2, chunk=4, keeper=kept
    )
    assert outcome.solved_at == (3, None)
    assert outcome.final_return == (10.0, 3.0)
    found = [row.eval_return for row in kept.rows[5]]
    assert found == [None, None, 10, None, None, 10, None, None, 10, None]


def test_seeds_that_are_ahead_wait_for_the_others_unrecorded():
    """Episodes of many lengths, in the real program."""
    agent = replace(preset("ddqn"), update_every=3, hidden=(4,), random_steps=10_000)
    seen, kept = [], Kept()
    outcome = train(
        agent, CartPole(), range(4), episodes=25, chunk=1, keeper=kept, watch=seen.append
    )
    assert outcome.episodes == (25, 25, 25, 25)
    for seed in range(4):
        own = kept.rows[seed]
        assert [row.episode for row in own] == list(range(1, 26))
        assert [row.train_return for row in own] == [row.length for row in own]
        assert [row.step for row in own] == np.cumsum([row.length for row in own]).tolist()
        assert all(row.step <= row.eval_step < row.step + 3 for row in own)
    rows = [row._asdict() for seed in range(4) for row in kept.rows[seed]]
    assert len({row["length"] for row in rows}) > 10
    assert seen[-1].done == 25
    assert all(a.done <= b.done for a, b in pairwise(seen))
    by_steps = train(agent, CartPole(), range(4), steps=300)
    assert len(set(by_steps.episodes)) > 1


@pytest.mark.parametrize(
    ("values", "median"),
    [
        ([3], 3.0),
        ([5, 1, 3], 3.0),
        ([1, 2, 3, 10], 2.5),
        ([None, 1, 3], 3.0),  # censored is later than all others
        ([None, None, 1], None),
        ([None, 4, None, 1, 2], 4.0),
        ([None, None, 1, 2], None),  # in the middle of 2 and never
        ([None], None),
    ],
)
def test_censored_median(values, median):
    assert censored_median(values) == median


def test_json_has_its_stable_keys():
    curves = {"first_good": (1, None), "returns": ((), ()), "evaluations": ((), ())}
    outcome = Outcome(
        seeds=(3, 4),
        solved_at=(17, None),
        solved_training=(None, 2),
        episodes=(40, 39),
        final_return=(10.0, None),
        steps_per_second=1234.5,
        seconds=6.7,
        **curves,
    )
    summary = outcome.as_json("mnf-dqn", "nchain")
    assert {
        "agent",
        "env",
        "seeds",
        "median_solved_at",
        "solved_fraction",
        "steps_per_second",
        "seconds",
    } <= set(summary)
    assert all(
        {"seed", "solved_at", "episodes", "final_return"} <= set(s) for s in summary["seeds"]
    )
    assert [s["seed"] for s in summary["seeds"]] == [3, 4]
    assert [s["solved_at"] for s in summary["seeds"]] == [17, None]
    assert [s["solved_training"] for s in summary["seeds"]] == [None, 2]
    assert [s["final_return"] for s in summary["seeds"]] == [10.0, None]
    assert [s["episodes"] for s in summary["seeds"]] == [40, 39]
    assert (summary["agent"], summary["env"]) == ("mnf-dqn", "nchain")
    assert summary["median_solved_at"] is None
    assert summary["solved_fraction"] == 0.5


# --- learning ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mnf-dqn", "boot-dqn"])
def test_solves_a_short_chain(name):
    """Of 20 seeds, most have a streak of 50 optimal evaluations within 400 episodes."""
    env = NChain(length=10)
    outcome = train(preset(name, "nchain"), env, range(20), episodes=400, streak=50, chunk=200)
    assert outcome.solved_fraction >= 0.75, outcome.solved_at
    assert len(set(outcome.solved_at)) > 5, "seeds that are alike are not seeds"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnf-dqn", "bbqn", "boot-dqn", "boot-dqn-prior"])
def test_solves_a_longer_chain(name):
    env = NChain(length=30)
    outcome = train(preset(name, "nchain"), env, range(20), episodes=2000, chunk=500)
    assert outcome.solved_fraction >= 0.8, outcome.solved_at


@pytest.mark.slow
def test_priors_explore_deep_sea_better_than_epsilon():
    def solved(name):
        agent = preset(name, "deep_sea")
        return train(agent, DeepSea(size=10), range(20), episodes=1000).solved_fraction

    with_priors, with_epsilon = solved("boot-dqn-prior"), solved("ddqn")
    assert with_priors >= 0.9
    assert with_epsilon <= with_priors - 0.25

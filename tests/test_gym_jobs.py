"""Jobs of the host loop: plain data, performed in a run's folder, stopped and gone on with."""

import json
from dataclasses import replace
from functools import partial

import pytest

from randq.cli import main
from randq.presets import preset
from randq.runs.directory import RESULT
from randq.runs.execute import begin, carry_out
from randq.settings import to_json
from randq.sweep import Finished, GymJob, Underway, gather, local, read_job, sweep
from randq.sweep.gym import ROWS, _thinned

SMALL = {"hidden": [4], "learning_starts": 20, "replay_capacity": 200}


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory):
    """Workers begin with nothing compiled, and leave nothing in the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


def job(**changes):
    settings = {"steps": 60, "evaluate_every": 30, "evaluation_episodes": 1, "log_every": 30}
    return GymJob("ddqn", "CartPole-v1", **{"seed": 3, "overrides": SMALL, **settings, **changes})


def by_hand(folder, *options):
    """What somebody types who makes the run of `job(overrides={})` without a sweep."""
    run = ["train", "ddqn", "--env", "CartPole-v1", "--seed", "3", "--steps", "600"]
    every = ["--evaluate-every", "300", "--evaluation-episodes", "1", "--log-every", "300"]
    main([*run, *every, "--out", str(folder / "runs"), "--json", *options])


AGENT = preset("ddqn", "cart_pole")
HAND = {"overrides": {}, "steps": 600, "evaluate_every": 300, "log_every": 300}


def no_run(*arguments):
    raise AssertionError("nothing is left to run")


# --- data --------------------------------------------------------------------------------------


def test_a_job_survives_json_and_is_its_own_key():
    again = read_job(json.loads(json.dumps(job().as_json())))
    assert again == job()
    assert again.key == job().key
    others = [
        job(seed=4),
        job(steps=90),
        job(overrides={**SMALL, "gamma": 0.5}),
        job(env_settings={"sutton_barto_reward": True}),
    ]
    assert len({item.key for item in [job(), *others]}) == 5
    assert json.loads(job().settings)["agent"]["hidden"] == [4]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: job(steps=0), "steps: got 0"),
        (lambda: job(seed=2**31), "below 2**31"),
        (lambda: job(evaluation_episodes=0), "evaluation_episodes: got 0"),
        (lambda: job(overrides={"gama": 1}), "did you mean 'gamma'"),
        (lambda: replace(job(), agent="dddqn"), "did you mean 'ddqn'"),
        (lambda: read_job({"kind": "gim"}), "did you mean 'gym'"),
    ],
)
def test_a_wrong_job_is_refused_when_it_is_made(make, says):
    with pytest.raises(ValueError, match="got") as refusal:
        make()
    assert says in str(refusal.value)


@pytest.mark.parametrize(
    ("env", "says"),
    [("CartPol-v1", "did you mean 'CartPole-v1'"), ("nchain", "an id of Gymnasium")],
)
def test_an_environment_that_is_not_there_is_refused_before_anything_runs(tmp_path, env, says):
    with pytest.raises(ValueError, match="env: got") as refusal:
        replace(job(), env=env).check(tmp_path)
    assert says in str(refusal.value)


def test_the_folder_names_what_differs_from_the_preset(tmp_path):
    where = GymJob("mnf-ddpg", "Pendulum-v1", 2000, 600, 300, 1, overrides={"alpha": 1e-4})
    run = where.directory(tmp_path).path
    assert run == tmp_path / "runs" / "alpha=0.0001" / "mnf-ddpg" / "Pendulum-v1" / "seed-2000"
    plain = replace(where, overrides={}).directory(tmp_path).path
    assert plain == tmp_path / "runs" / "mnf-ddpg" / "Pendulum-v1" / "seed-2000"
    odd = replace(where, overrides={"hidden": [4, 5], "alpha": 1.0}).directory(tmp_path).path
    assert odd.parent.parent.parent.name == "hidden=-4-5-,alpha=1.0".replace("4-5", "4,-5")


def test_very_many_training_returns_are_thinned_to_means():
    few = [(i, float(i)) for i in range(ROWS)]
    assert _thinned(few) == [[i, float(i)] for i in range(ROWS)]
    many = [(i, float(i % 3)) for i in range(3 * ROWS - 1)]
    thinned = _thinned(many)
    assert len(thinned) == ROWS
    assert thinned[0] == [2, 1.0]
    assert thinned[-1] == [3 * ROWS - 2, 0.5]
    assert _thinned([]) == []


# --- runs --------------------------------------------------------------------------------------


def test_perform_keeps_a_run_and_says_what_came_of_it(tmp_path, monkeypatch):
    assert job().found(tmp_path) is None
    seen = []
    result = job().perform(tmp_path, lambda share, note: seen.append(share))
    assert result["seed"] == 3
    assert result["steps"] == 60
    assert [step for step, _ in result["evaluations"]] == [30, 60]
    assert result["final_return"] == pytest.approx(result["evaluations"][-1][1])
    assert result["episodes"]
    assert all(step <= 60 for step, _ in result["episodes"])
    assert len(result["fingerprint"]) == 64
    assert seen
    assert 0 < seen[0] <= 1
    # A run that is there is read, and not run again.
    monkeypatch.setattr("randq.sweep.gym.carry_out", no_run)
    assert job().perform(tmp_path) == result
    assert job().found(tmp_path) == (result, True)


def test_a_run_made_by_hand_is_taken_over_and_one_of_other_settings_refused(tmp_path, monkeypatch):
    by_hand(tmp_path)
    monkeypatch.setattr("randq.sweep.gym.carry_out", no_run)
    taken = job(**HAND)
    result = taken.perform(tmp_path)
    path = taken.directory(tmp_path).path
    assert result["fingerprint"] == json.loads((path / RESULT).read_text())["fingerprint"]
    assert gather([taken], tmp_path).done == ((taken, result),)
    # It is also one of several seeds that were typed together, and may have been checkpointed
    # more often: that changes nothing of what comes of it.
    settings = json.loads((path / "settings.json").read_text())
    free = {**settings, "seed": 0, "seeds": 5, "checkpoint_every": 1.0}
    (path / "settings.json").write_text(json.dumps(free))
    assert taken.perform(tmp_path) == result
    for other, says in [
        (job(**{**HAND, "steps": 900}), "whose steps is 600, takes a folder where it is 900"),
        (job(**{**HAND, "evaluation_episodes": 2}), "whose evaluation_episodes is 1"),
    ]:
        with pytest.raises(ValueError, match="out: got") as refusal:
            other.check(tmp_path)
        assert says in str(refusal.value).replace("'", "")
        assert "\n" not in str(refusal.value)
        with pytest.raises(ValueError, match="out: got"):
            other.perform(tmp_path)
    (path / "run.json").write_text(json.dumps({"seed": 7}))
    with pytest.raises(ValueError, match="whose seed is 7"):
        taken.check(tmp_path)


class PowerCut(BaseException):
    """The end of a process, as far as a run can tell."""


def test_an_unfinished_run_is_shown_as_far_as_it_is_and_gone_on_with(tmp_path):
    one = job(steps=400, evaluate_every=200)
    run = one.directory(tmp_path).path
    plan = replace(one.plan, checkpoint_every=0.0)

    def cut(progress):
        if progress.done > 1:  # so that there is a checkpoint
            raise PowerCut

    with pytest.raises(PowerCut):
        carry_out(begin(plan, run.parents[2], "by hand"), cut, print)
    found = one.found(tmp_path)
    assert not found.finished
    assert found.result["fingerprint"] is None
    assert list((run / "checkpoints").iterdir())
    gathered = gather([one, replace(one, seed=4)], tmp_path)
    assert gathered.done == ()
    assert gathered.unfinished == ((one, found.result),)
    whole = one.perform(tmp_path / "other")
    assert one.perform(tmp_path)["fingerprint"] == whole["fingerprint"]


def test_a_record_is_not_taken_for_nothing(tmp_path):
    """A run without epsilon has a null where the preset has a record."""
    run = job(**HAND).directory(tmp_path)
    run.lock()
    run.create(3, to_json(replace(job(**HAND).plan, agent=replace(AGENT, epsilon=None))), "by hand")
    run.close()
    with pytest.raises(ValueError, match=r"whose agent.epsilon is None"):
        job(**HAND).check(tmp_path)


def test_a_sweep_that_was_stopped_goes_on_inside_its_run(tmp_path):
    long = job(steps=3000, evaluate_every=1000)
    whole = long.perform(tmp_path / "whole")
    running = local.run([long], tmp_path, workers=1)
    event = next(running)
    assert isinstance(event, Underway)
    assert event.job == long
    assert 0 < event.share < 1
    running.close()
    path = long.directory(tmp_path).path
    assert not (path / RESULT).exists()
    saved = [int(name.stem.split("-")[-1]) for name in (path / "checkpoints").iterdir()]
    assert saved
    assert 0 < max(saved) < 3000

    seen = []
    results = sweep([long], tmp_path, partial(local.run, workers=1), seen.append)
    ((_, result),) = results.done
    for key in ("fingerprint", "evaluations", "episodes", "final_return"):
        assert result[key] == whole[key]
    assert any(at.underway and at.underway[0].job == long for at in seen)
    assert (seen[-1].done, seen[-1].underway) == (1, ())
    assert sweep([long], tmp_path, no_run).done == results.done


def test_progress_says_how_far_jobs_are(tmp_path):
    first, second = job(seed=0), job(seed=1)
    result = {"seed": 0}

    def engine(jobs, folder):
        assert folder == tmp_path
        yield Underway(first, 0.25, "going")
        yield Underway(second, 0.5, "going")
        yield Finished(first, result)
        yield Finished(second, None, "no luck")

    seen = []
    results = sweep([first, second], tmp_path, engine, seen.append)
    assert [sum(each.share for each in at.underway) for at in seen] == [0, 0.25, 0.75, 0.5, 0]
    assert results.done == ((first, result),)
    assert [failure.error for failure in results.failed] == ["no luck"]

"""The table of DeepSea, and searches of settings: their jobs, their numbers, their commands."""

import json
import math
from dataclasses import replace
from functools import partial

import pytest
from rich.console import Console

from randq.cli import main
from randq.config import override
from randq.experiments import EXPERIMENTS, SEARCHES
from randq.experiments.search import Search, best_first, scores
from randq.presets import PRESETS, preset
from randq.reproduce import ReproduceCommand, SearchCommand
from randq.sweep import Finished

SEARCH = SEARCHES["nchain"]


def results(job, at):
    rows = [{"seed": s, "solved_at": at(s), "solved_training": None} for s in job.seeds]
    return {"seeds": rows, "seconds": 12.3}


def pretend(jobs, folder, workers, at, fail=()):
    """An engine that solves everything when it is told to."""
    for job in jobs:
        if job.agent in fail:
            yield Finished(job, None, "made to fail")
        else:
            yield Finished(job, results(job, partial(at, job)))


def run(command, tmp_path):
    with (tmp_path / "log").open("w") as file:
        command.run(Console(width=250, file=file))
    return (tmp_path / "log").read_text()


# --- DeepSea -----------------------------------------------------------------------------------


def test_the_full_table_has_every_agent_at_three_sizes_with_twenty_seeds():
    jobs = EXPERIMENTS["deep_sea"]["full"].jobs()
    assert {(j.agent, j.env_settings["size"]) for j in jobs} == {
        (agent, size) for agent in PRESETS for size in (10, 20, 30)
    }
    assert all(len(j.seeds) == 20 and j.episodes == 1000 for j in jobs)
    for job in jobs:
        assert job.resolved[1].randomize_actions


def test_the_table_counts_what_is_solved(tmp_path, monkeypatch):
    def at(job, seed):
        return None if job.agent == "ddqn" or seed == 2 else 10 * (seed + 1)

    monkeypatch.setattr("randq.sweep.local.run", partial(pretend, at=at))
    log = run(ReproduceCommand("deep_sea", scale="smoke", out=tmp_path), tmp_path)
    page = (tmp_path / "deep_sea.md").read_text()
    assert "| boot-dqn-prior | 5 | 2/3 | 20 (15 to > 200) | 0/3 |" in page
    assert "| ddqn | 5 | 0/3 | > 200 (> 200 to > 200) |" in page
    assert "`randq reproduce deep_sea --scale smoke --out" in page
    assert "2/3" in log


def test_what_failed_is_missing_from_the_table(tmp_path, monkeypatch):
    engine = partial(pretend, at=lambda job, seed: 1, fail=("ddqn",))
    monkeypatch.setattr("randq.sweep.local.run", engine)
    with pytest.raises(SystemExit):
        run(ReproduceCommand("deep_sea", scale="smoke", out=tmp_path), tmp_path)
    page = (tmp_path / "deep_sea.md").read_text()
    assert "1 jobs are missing" in page
    assert "| ddqn |" not in page


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["reproduce", "figure8"], "figure: got 'figure8', takes one of figure1, figure2,"),
        (["reproduce", "deep_sea", "--scale", "paper"], "scale of deep_sea: got 'paper'"),
        (["reproduce", "figure1", "--scale", "full"], "scale of figure1: got 'full'"),
        (["search", "nchian"], "name: got 'nchian', takes one of nchain, mountain_car"),
        (["search", "nchain", "--workers", "0"], "workers: got 0"),
        (["search", "nchain", "--out", "/proc/search"], "out: got '/proc/search'"),
    ],
)
def test_wrong_commands_are_refused_in_one_line(arguments, words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


# --- searches ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_is_fair_and_stays_away_from_the_reported_seeds(name):
    search = SEARCHES[name]
    assert len({len(search.trials(agent)) for agent in search.grids}) == 1
    assert search.seeds[0] >= 1000
    jobs = search.jobs()
    assert len(jobs) == len(set(map(str, jobs)))
    times = len(search.places) if isinstance(search, Search) else len(search.seeds)
    assert len(jobs) == sum(len(search.trials(a)) for a in search.grids) * times
    # Those on MuJoCo began with the settings for any numbers as actions, and led to MuJoCo's.
    domains = (search.env,) if isinstance(search, Search) else ("continuous", "mujoco")
    domains = ("atari",) if search.env.startswith("atari-") else domains
    for agent in search.grids:
        presets = [preset(agent, domain) for domain in domains]
        found = [sum(override(p, dict(t)) == p for t in search.trials(agent)) for p in presets]
        assert max(found) == 1, "a preset is one of the trials"


def test_an_unfair_search_is_refused():
    with pytest.raises(ValueError, match=r"grids: got .*, takes as many trials for every agent"):
        replace(SEARCH, grids={"ddqn": {"gamma": (0.9, 0.99)}, "bbqn": {"gamma": (0.9,)}})


def test_scores_count_a_censored_run_as_its_budget():
    search = replace(SEARCH, grids={"ddqn": {"gamma": (0.9, 0.99)}}, seeds=range(5, 8), episodes=40)
    times = {0.9: [10, None, 30], 0.99: [None, None, 20]}
    done = [
        (job, results(job, lambda seed, job=job: times[job.overrides["gamma"]][seed - 5]))
        for job in search.jobs()
    ]
    found = scores(search, done)
    better, worse = found["ddqn", (("gamma", 0.9),)], found["ddqn", (("gamma", 0.99),)]
    assert better.medians == (30.0,) * 3
    assert better.failed == (1,) * 3
    assert better.mean == pytest.approx((10 + 40 + 30) / 3)
    assert worse.medians == (math.inf,) * 3
    assert worse.mean == pytest.approx((40 + 40 + 20) / 3)


def test_scores_by_the_return_of_the_last_episodes():
    """Evaluations of the last 100 episodes count, and a seed without any success is counted."""
    grids = {"ddqn": {"gamma": (0.9, 0.99)}}
    search = replace(SEARCHES["mountain_car"], grids=grids, episodes=500)
    done = []
    for job in search.jobs():
        assert job.curves
        assert job.evaluate_every == 10
        last = {0.9: -200.0, 0.99: -100.0}[job.overrides["gamma"]]
        evaluations = [[i, -1000.0 if i <= 400 else last] for i in range(10, 501, 10)]
        rows = [{"evaluations": evaluations, "first_good": 7} for _ in search.seeds]
        rows[0] = {"evaluations": [[i, -1000.0] for i in range(10, 501, 10)], "first_good": None}
        done.append((job, {"seeds": rows}))
    found = scores(search, done)
    worse, better = found["ddqn", (("gamma", 0.9),)], found["ddqn", (("gamma", 0.99),)]
    assert (worse.medians, worse.failed) == ((-200.0,), (1,))
    assert better.mean == pytest.approx((3 * -100 - 1000) / 4)
    assert best_first(search, better) < best_first(search, worse)


def test_the_command_sorts_trials_and_resumes(tmp_path, monkeypatch):
    def at(job, seed):
        return None if job.overrides.get("learning_rate") == 1e-3 else job.env_settings["length"]

    monkeypatch.setattr("randq.sweep.local.run", partial(pretend, at=at))
    run(SearchCommand("nchain", out=tmp_path), tmp_path)
    page = (tmp_path / "search.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| mnf-dqn")]
    assert len(rows) == 8
    assert "95, 0/20 | 45, 0/20 | 15, 0/20 | 52 |" in rows[0]
    assert "> 2000, 20/20" in rows[-1]
    assert sum("(preset)" in line for line in page.splitlines()) == 5
    kept = (tmp_path / "results.jsonl").read_text()
    assert len({json.dumps(json.loads(line)["job"]) for line in kept.splitlines()}) == 120
    monkeypatch.setattr("randq.sweep.local.run", pytest.fail)  # nothing is left to run
    assert "120 jobs in" in run(SearchCommand("nchain", out=tmp_path), tmp_path)

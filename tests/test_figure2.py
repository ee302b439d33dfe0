"""Figure 2: its statistics by hand and by scipy, its numbers and verdicts on made-up curves."""

import csv
import math
from dataclasses import replace
from functools import partial
from importlib.resources import files

import numpy as np
import pytest
import scipy.stats
from rich.console import Console

from randq.experiments.figure2 import FIGURE2_SCALES, Figure2, figure2_results
from randq.report.figure2 import draw, judge, paper_curves, paper_order, running_mean, summary
from randq.report.statistics import t_interval, t_quantile, welch
from randq.reproduce import ReproduceCommand
from randq.sweep import Finished

INF = math.inf
QUICK, PAPER = FIGURE2_SCALES["quick"], FIGURE2_SCALES["paper"]
# From figure2.csv, whose points are 10 episodes apart and end at 990.
PUBLISHED = {"mnf-dqn": -538.32, "bbqn": -824.59, "noisy-dqn": -854.12, "ddqn": -784.15}

# --- statistics --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "freedom", "value"),  # any table of Student's t
    [
        (0.95, 1.0, 12.706),
        (0.95, 2.0, 4.303),
        (0.95, 4.0, 2.776),
        (0.95, 10.0, 2.228),
        (0.95, 19.0, 2.093),
        (0.95, 40.0, 2.021),
        (0.99, 4.0, 4.604),
        (0.9, 4.0, 2.132),
    ],
)
def test_quantiles_of_t_are_those_of_the_tables(level, freedom, value):
    assert t_quantile(level, freedom) == pytest.approx(value, abs=5e-4)


@pytest.mark.parametrize("freedom", [1.0, 1.3, 4.7, 33.3, 500.0])
@pytest.mark.parametrize("level", [0.5, 0.95, 0.999])
def test_quantiles_of_t_are_those_of_scipy(level, freedom):
    true = scipy.stats.t.ppf((1 + level) / 2, freedom)
    assert t_quantile(level, freedom) == pytest.approx(true, rel=1e-4)


def test_interval_of_a_mean_by_hand():
    # mean 3, deviation sqrt(2.5), standard error sqrt(0.5)
    half = 2.776445 * math.sqrt(0.5)
    assert t_interval(np.arange(1, 6)) == pytest.approx((3 - half, 3 + half), abs=1e-5)
    assert t_interval(np.array([7.0])) == (-INF, INF)
    assert t_interval(np.array([7.0, 7.0])) == (7, 7)


def test_interval_of_a_difference_is_that_of_scipy():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=5), rng.normal(2, 3, size=20)
    true = scipy.stats.ttest_ind(a, b, equal_var=False).confidence_interval()
    assert welch(a, b) == pytest.approx((true.low, true.high), rel=1e-5)
    # Without any spread in b it is the interval of a's mean, moved.
    low, high = t_interval(a)
    assert welch(a, np.full(5, 10.0)) == pytest.approx((low - 10, high - 10))
    assert welch(np.zeros(3), np.ones(3)) == (-1, -1)
    assert welch(a, np.ones(1)) == (-INF, INF)


# --- the paper's curves ------------------------------------------------------------------------


def test_the_papers_curves_are_all_there():
    rows = list(csv.DictReader((files("randq") / "data/figure2.csv").read_text().splitlines()))
    assert len(rows) == 393 == sum(len(curve.points) for curve in paper_curves().values())
    assert {curve.points[-1] for curve in paper_curves().values()} == {990}
    for agent, curve in paper_curves().items():
        assert curve.last == pytest.approx(PUBLISHED[agent], abs=0.01)
    order = "MNF-DQN -538, ε-greedy DDQN -784, BBQN -825, NoisyDQN -854"
    assert paper_order() == order


# --- made-up results ---------------------------------------------------------------------------


def row(seed, end, job, first_good=None):
    """A run that stays at -1000 and spends its last 100 episodes at some return."""
    episodes = np.arange(1, job.episodes + 1)
    values = np.where(episodes > job.episodes - 100, float(end), -1000.0)
    return {
        "seed": seed,
        "episodes": job.episodes,
        "final_return": float(end),
        "first_good": first_good,
        "returns": (values - 5).tolist(),
        "evaluations": [
            [int(at), value]
            for at, value in zip(episodes, values.tolist(), strict=True)
            if at % job.evaluate_every == 0
        ],
    }


def finished(job, ends, first_good=lambda agent, seed: seed + 1):
    """Every seed ends where its agent does, a few units apart."""
    return {
        "seeds": [
            row(s, ends[job.agent] + 4 * (s % 5 - 2), job, first_good(job.agent, s))
            for s in job.seeds
        ]
    }


def made_up(scale=QUICK, **ends):
    ends = {agent.replace("_", "-"): end for agent, end in ends.items()}
    jobs = [job for job in scale.jobs() if job.agent in ends]
    return figure2_results((job, finished(job, ends)) for job in jobs)


AS_HOPED = {"mnf_dqn": -150, "bbqn": -400, "noisy_dqn": -500, "ddqn": -600}


def verdicts(results):
    return [v.verdict for v in judge(results)]


# --- results -----------------------------------------------------------------------------------


def test_jobs_of_each_scale():
    for scale in FIGURE2_SCALES.values():
        jobs = scale.jobs()
        assert len({job.key for job in jobs}) == len(jobs)
        assert all(job.curves and job.env == "mountain_car" for job in jobs)
    assert {job.seeds for job in QUICK.jobs()} == {(0, 1, 2, 3, 4)}
    assert [job.agent for job in QUICK.jobs()] == ["mnf-dqn", "bbqn", "noisy-dqn", "ddqn"]
    assert {(job.episodes, job.evaluate_every) for job in PAPER.jobs()} == {(1000, 10)}
    assert {job.resolved[1].max_steps for job in PAPER.jobs()} == {1000}
    mine = [job.seeds for job in PAPER.jobs() if job.agent == "bbqn"]
    assert [seed for seeds in mine for seed in seeds] == list(range(20))
    assert {job.seeds for job in Figure2("", seeds=7).jobs()} == {(0, 1, 2, 3, 4), (5, 6)}
    assert {job.seeds for job in Figure2("", 7, first_seed=3).jobs()} == {(3, 4, 5, 6, 7), (8, 9)}
    fresh = [seed for job in FIGURE2_SCALES["full"].jobs() for seed in job.seeds]
    assert sorted(fresh) == sorted([*range(20, 120)] * 2)
    with pytest.raises(ValueError, match="episodes: got 9"):
        Figure2("", seeds=1, episodes=9)


def test_batches_are_put_together_in_the_order_of_seeds():
    jobs = [job for job in PAPER.jobs() if job.agent == "ddqn"]
    results = figure2_results((job, finished(job, {"ddqn": -300})) for job in reversed(jobs))
    runs = results["ddqn"]
    assert runs.seeds == tuple(range(20))
    assert runs.first_good == tuple(range(1, 21))
    assert runs.evaluations.shape == (20, 100)
    assert runs.returns.shape == (20, 1000)
    assert runs.points.tolist() == list(range(10, 1001, 10))
    assert runs.evaluations[:, -1].tolist() == [-300 + 4 * (s % 5 - 2) for s in range(20)]
    assert runs.first(3).seeds == (0, 1, 2)
    assert runs.first(3).evaluations.shape == (3, 100)


def test_an_evaluation_that_came_late_counts_where_it_was_due():
    scale = Figure2("", seeds=1, episodes=60, agents=("ddqn",))
    (job,) = scale.jobs()
    # Due at 10 and seen at 11; due at 20, 30 and lost at 40; seen at 59 for 50; lost at 60.
    evaluations = [[11, -1.0], [20, -2.0], [30, -3.0], [59, -5.0]]
    seen = {**row(0, -1, job), "evaluations": evaluations}
    runs = figure2_results([(job, {"seeds": [seen]})])["ddqn"]
    assert runs.evaluations.tolist() == [[-1, -2, -3, -3, -5, -5]]
    seen["evaluations"] = [[35, -3.0]]
    runs = figure2_results([(job, {"seeds": [seen]})])["ddqn"]
    assert runs.evaluations.tolist() == [[-3] * 6]


def test_numbers_of_known_curves():
    (row,) = summary(made_up(mnf_dqn=-150))
    # deviation of -158, -154, ..., -142 is sqrt(40), standard error sqrt(8)
    half = 2.776 * math.sqrt(8)
    interval = f"-150 ({-150 - half:.0f} to {-150 + half:.0f})"
    assert row == ("MNF-DQN", "5", interval, "-155", "-538", "5/5", "3")


def test_curves_end_at_the_numbers_of_the_table():
    assert running_mean(np.array([[1.0, 3.0, 5.0, 9.0]]), 2).tolist() == [[1, 2, 4, 7]]
    runs = made_up(mnf_dqn=-150)["mnf-dqn"]
    curves = running_mean(runs.evaluations, runs.window)
    assert curves[:, -1] == pytest.approx(runs.evaluated_last())
    assert curves[:, 89].tolist() == [-1000] * 5


def test_more_seeds_than_are_shown_have_a_row_of_their_own():
    ends = dict.fromkeys(PAPER.agents, -300)
    jobs = PAPER.jobs()

    def first_good(agent, seed):
        return None if seed >= 5 else 7

    results = figure2_results((job, finished(job, ends, first_good)) for job in jobs)
    rows = summary(results)
    assert [(r[0], r[1]) for r in rows[:2]] == [("MNF-DQN", "5"), ("MNF-DQN", "20")]
    assert rows[0][-2:] == ("5/5", "7")
    assert rows[1][-2:] == ("5/20", "> 1000")
    assert len(rows) == 8


# --- verdicts ----------------------------------------------------------------------------------


def test_all_claims_hold_where_mnf_dqn_is_best():
    assert verdicts(made_up(**AS_HOPED)) == ["holds"] * 5
    assert verdicts(made_up(PAPER, **AS_HOPED)) == ["holds"] * 5


def test_verdicts_turn_with_the_numbers():
    holds, fails, open_ = "holds", "does not hold", "undecided"
    assert verdicts(made_up(**{**AS_HOPED, "mnf_dqn": -300})) == [holds] * 4 + [fails]
    assert verdicts(made_up(**{**AS_HOPED, "mnf_dqn": -700})) == [fails] * 5
    assert verdicts(made_up(**{**AS_HOPED, "ddqn": -120}))[1] == fails
    assert verdicts(made_up(**{**AS_HOPED, "ddqn": -152}))[1] == open_
    assert verdicts(made_up(**{**AS_HOPED, "bbqn": -120}))[2] == fails
    assert verdicts(made_up(**{**AS_HOPED, "noisy_dqn": -120}))[3] == fails


@pytest.mark.parametrize(("end", "side"), [(-536, "above"), (-541, "below")])
def test_a_point_estimate_alone_decides_nothing(end, side):
    first = judge(made_up(**{**AS_HOPED, "mnf_dqn": end}))[0]
    assert first.verdict == "undecided"
    assert first.why == f"point estimate {side}, interval not"
    assert (first.paper, first.rule) == ("-538", "the whole interval is above -538")


def test_agents_that_all_stay_in_the_valley_are_not_told_apart():
    jobs = QUICK.jobs()
    stuck = figure2_results((j, {"seeds": [row(s, -1000, j) for s in j.seeds]}) for j in jobs)
    assert verdicts(stuck) == ["does not hold", *["undecided"] * 3, "does not hold"]
    assert [r[-2:] for r in summary(stuck)] == [("0/5", "> 1000")] * 4


def test_few_seeds_decide_nothing():
    results = {agent: runs.first(4) for agent, runs in made_up(**AS_HOPED).items()}
    assert verdicts(results) == ["undecided"] * 5
    assert judge(results)[0].why == "4 seeds of MNF-DQN are too few"


@pytest.mark.parametrize(
    "changed", [{"env_settings": {"max_episode_steps": 200}}, {"episodes": 990}]
)
def test_another_task_decides_nothing(changed):
    found = judge(made_up(replace(QUICK, **changed), **AS_HOPED))
    assert {v.verdict for v in found} == {"undecided"}
    assert {v.why for v in found} == {"task or budget are not the paper's"}


def test_what_is_missing_decides_nothing():
    found = judge(made_up(mnf_dqn=-150, ddqn=-600))
    assert [v.verdict for v in found] == ["holds"] * 2 + ["undecided"] * 2 + ["holds"]
    assert found[2].why == "no runs of BBQN"
    assert {v.verdict for v in judge({})} == {"undecided"}


# --- the command -------------------------------------------------------------------------------


@pytest.mark.parametrize("seeds", [1, 5, 20])
def test_the_picture_is_drawn(tmp_path, seeds):
    draw(made_up(replace(QUICK, seeds=seeds), **AS_HOPED), tmp_path / "figure2.png")
    assert (tmp_path / "figure2.png").stat().st_size > 50_000


def pretend(jobs, folder, workers, fail=lambda job: False):
    for job in jobs:
        if fail(job):
            yield Finished(job, None, "made to fail")
        else:
            ends = dict(zip(QUICK.agents, AS_HOPED.values(), strict=True))
            yield Finished(job, finished(job, ends))


def run(command, tmp_path):
    with (tmp_path / "log").open("w") as file:
        command.run(Console(width=250, file=file))
    return (tmp_path / "log").read_text()


def test_the_command_shows_and_keeps_numbers_and_verdicts(tmp_path, monkeypatch):
    monkeypatch.setattr("randq.sweep.local.run", pretend)
    log = run(ReproduceCommand("figure2", scale="paper", out=tmp_path), tmp_path)
    page = (tmp_path / "figure2.md").read_text()
    assert "| MNF-DQN | 5 | -150 (-158 to -142) | -155 | -538 | 5/5 | 3 |" in page
    assert "| MNF-DQN | 20 | -150 (-153 to -147) | -155 | -538 | 20/20 | 10.5 |" in page
    assert page.count("**holds**") == 5
    assert paper_order() in page
    assert "randq reproduce figure2 --scale paper" in page
    assert log.count("holds") == 5
    assert "-538 against -784" in log
    assert (tmp_path / "figure2.png").stat().st_size > 50_000


def test_what_failed_is_missing_and_the_rest_is_shown(tmp_path, monkeypatch):
    # One agent altogether, and of another one the seeds that would be shown.
    def fail(job):
        return job.agent == "bbqn" or (job.agent == "mnf-dqn" and 0 in job.seeds)

    monkeypatch.setattr("randq.sweep.local.run", partial(pretend, fail=fail))
    with pytest.raises(SystemExit) as end:
        run(ReproduceCommand("figure2", scale="paper", out=tmp_path), tmp_path)
    assert end.value.code == 1
    page = (tmp_path / "figure2.md").read_text()
    assert "5 jobs are missing" in page
    assert "| MNF-DQN | 15 |" in page
    assert "| BBQN |" not in page
    assert "**undecided** (no runs of BBQN)" in page
    assert (tmp_path / "figure2.png").exists()


def test_smoke_decides_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("randq.sweep.local.run", pretend)
    run(ReproduceCommand("figure2", scale="smoke", out=tmp_path), tmp_path)
    page = (tmp_path / "figure2.md").read_text()
    assert page.count("**undecided**") == 5
    assert "holds**" not in page

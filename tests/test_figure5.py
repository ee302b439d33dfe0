"""Figure 5 and the search of its alpha: jobs, numbers and verdicts on made-up curves, commands."""

import csv
import json
import sys
from dataclasses import replace
from importlib.resources import files

import numpy as np
import pytest
from rich.console import Console

from randq.cli import main
from randq.experiments import SEARCHES, piece
from randq.experiments.figure5 import FIGURE5_AGENTS, FIGURE5_ENVS, FIGURE5_SCALES, figure5_results
from randq.experiments.search import last_returns
from randq.posteriors import MNF
from randq.presets import preset
from randq.report import figure5, search
from randq.report.figure5 import MUCH, judge, published, summary
from randq.report.page import Page
from randq.reproduce import ReproduceCommand
from randq.sweep import Finished, Results

SMOKE, QUICK, PAPER = (FIGURE5_SCALES[scale] for scale in ("smoke", "quick", "paper"))
CHEETAH, WALKER, HOPPER = FIGURE5_ENVS
SEARCH = SEARCHES["half_cheetah"]

# --- jobs --------------------------------------------------------------------------------------


def test_the_scales_are_those_of_the_paper():
    jobs = PAPER.jobs()
    assert len(jobs) == 60 == len(set(map(str, jobs)))
    assert {(j.env, j.agent) for j in jobs} == {
        (e, a) for e in FIGURE5_ENVS for a in FIGURE5_AGENTS
    }
    assert {j.seed for j in jobs} == set(range(5))
    assert [j.seed for j in jobs] == sorted(j.seed for j in jobs)
    numbers = {
        (j.steps, j.evaluate_every, j.evaluation_episodes, j.log_every)
        for j in [*jobs, *(replace(j, steps=1_000_000) for j in QUICK.jobs())]
    }
    assert numbers == {(1_000_000, 10_000, 20, 10_000)}
    assert {(j.agent, j.env, j.seed, j.steps) for j in QUICK.jobs()} == {
        (agent, CHEETAH, seed, 200_000) for agent in ("ddpg", "mnf-ddpg") for seed in (0, 1)
    }
    for job in SMOKE.jobs():
        job.check(files("randq"))  # it needs nothing that is not always installed


def test_the_paper_scale_can_be_run_in_pieces():
    some = piece(PAPER, {"agents": ("ddpg",), "envs": (HOPPER,), "seeds": 2, "steps": 50_000})
    assert [(j.agent, j.env, j.seed, j.steps) for j in some.jobs()] == [
        ("ddpg", HOPPER, 0, 50_000),
        ("ddpg", HOPPER, 1, 50_000),
    ]
    assert set(map(str, some.jobs())) < set(map(str, PAPER.jobs()))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["figure5", "--agents", "dpg"], "agents: got 'dpg', takes one of mnf-ddpg, ddpg (did you"),
        (["figure5", "--envs", HOPPER], f"envs: got '{HOPPER}', takes one of Pendulum-v1"),
        (["figure5", "--seeds", "2"], "seeds: got 2, takes at most 1 at this scale"),
        (["figure5", "--steps", "0"], "steps: got 0"),
        (["figure1", "--steps", "9"], "steps: got 9, takes nothing; this experiment has no choice"),
    ],
)
def test_pieces_that_are_none_are_refused_in_one_line(options, words, capsys, tmp_path):
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", *options, "--scale", "smoke", "--out", str(tmp_path)])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("command", [["reproduce", "figure5"], ["search", "half_cheetah"]])
def test_without_mujoco_one_sentence_says_what_to_install(command, capsys, monkeypatch, tmp_path):
    for name in [x for x in sys.modules if x.partition(".")[0] == "mujoco" or "envs.mujoco" in x]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mujoco", None)  # an import of it fails
    with pytest.raises(SystemExit) as stop:
        main([*command, "--out", str(tmp_path)])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert 'pip install "randq[mujoco]"' in error
    assert error.count("\n") == 1


# --- numbers -----------------------------------------------------------------------------------


def test_the_papers_curves_are_all_there():
    rows = list(csv.DictReader((files("randq") / "data/figure5.csv").read_text().splitlines()))
    assert len(rows) == 1197 == sum(len(curve.epochs) for curve in published().values())
    assert {int(curve.epochs[-1]) for curve in published().values()} == {100}
    assert published()[CHEETAH, "mnf-ddpg"].end == pytest.approx(6952, abs=1)
    assert published()[CHEETAH, "mnf-ddpg"].last(1) == 231  # its first point is its second epoch
    assert published()[CHEETAH, "ddpg"].last(20) == pytest.approx(2437, abs=1)


def row(job, level, epochs=None):
    """A run that climbs to some return and stays there for its last 10 epochs."""
    count = job.steps // job.evaluate_every if epochs is None else epochs
    values = np.where(np.arange(count) >= count - 10, level, 0.5 * level)
    evaluations = [[job.evaluate_every * (i + 1), float(v)] for i, v in enumerate(values)]
    return {"seed": job.seed, "steps": count * job.evaluate_every, "evaluations": evaluations}


def made_up(scale, levels, spread=0.004, epochs=lambda job: None):
    """Seeds a little apart, around a level for each environment and agent."""
    return figure5_results(
        (job, row(job, levels[job.env, job.agent] * (1 + spread * (job.seed - 2)), epochs(job)))
        for job in scale.jobs()
        if (job.env, job.agent) in levels
    )


LIKE_THE_PAPER = {place: 1.01 * curve.end for place, curve in published().items()}


def verdicts(results):
    return [v.verdict for v in judge(results)]


def test_numbers_of_known_curves():
    results = made_up(QUICK, {(CHEETAH, "mnf-ddpg"): 1000.0}, spread=0.1)
    (found,) = summary(results)
    assert found[:4] == ("MNF-DDPG", CHEETAH, "2", "200,000")
    assert found[4].startswith("850 (")  # 800 and 900
    assert found[5:] == ("3616", "6952")


def test_unfinished_runs_count_as_far_as_all_of_them_are():
    levels = {(CHEETAH, "ddpg"): 1000.0}
    reached = {0: None, 1: None, 2: 40, 3: 5, 4: None}
    results = made_up(PAPER, levels, epochs=lambda job: reached[job.seed])
    curves = results[CHEETAH, "ddpg"]
    assert [curve.seed for curve in curves.counted] == [0, 1, 2, 4]
    assert curves.epochs == 40 == len(curves.mean)
    assert curves.last(40)[2] == 1000
    assert curves.last(40)[0] == pytest.approx(0.5 * 992)  # which has not climbed by then
    (found,) = summary(results)
    assert found[2:4] == ("5", "3 at 1,000,000, 1 at 400,000, 1 at 50,000")
    only_short = made_up(PAPER, levels, epochs=lambda job: 3)[CHEETAH, "ddpg"]
    assert (len(only_short.counted), only_short.epochs) == (5, 3)


def test_runs_without_an_epoch_are_left_out():
    (job, *_) = QUICK.jobs()
    assert figure5_results([(job, {"seed": 0, "steps": 900, "evaluations": []})]) == {}


# --- verdicts ----------------------------------------------------------------------------------


def test_all_claims_hold_where_all_is_as_in_the_paper():
    assert verdicts(made_up(PAPER, LIKE_THE_PAPER)) == ["holds"] * 8
    assert {v.why for v in judge(made_up(PAPER, LIKE_THE_PAPER))} == {""}


def test_what_is_much_tells_the_papers_own_sentences_apart():
    def gaps(env):
        base = published()[env, "ddpg"].end
        return [abs(published()[env, agent].end / base - 1) for agent in FIGURE5_AGENTS]

    assert max(gaps(WALKER)) < max(gaps(HOPPER)) < MUCH - 0.05
    assert max(gaps(CHEETAH)) > MUCH + 0.05


def test_verdicts_turn_with_the_numbers():
    def turned(**changes):
        levels = {**LIKE_THE_PAPER, **changes.pop("at")}
        return verdicts(made_up(PAPER, levels, **changes))

    fails, holds, open_ = "does not hold", "holds", "undecided"
    low = turned(at={(CHEETAH, "mnf-ddpg"): 3000.0})
    assert low == [fails, fails, fails, holds, holds, fails, holds, holds]
    assert turned(at={(CHEETAH, "ddpg"): 9000.0})[0] == fails
    assert turned(at={(CHEETAH, "ddpg"): 7020.0})[0] == open_
    assert turned(at={(WALKER, "noisy-ddpg"): 900.0})[3] == fails
    assert turned(at={(HOPPER, "bbqn-ddpg"): 20.0})[4] == fails
    noisy = turned(at={}, spread=0.3)
    assert noisy[3:5] == [open_, open_]
    assert noisy[5] == open_


def test_shorter_runs_are_judged_at_the_same_steps_with_a_word_of_caution():
    at_40 = {place: 1.01 * curve.last(40) for place, curve in published().items()}
    found = judge(made_up(PAPER, at_40, epochs=lambda job: 40))
    assert found[0].verdict == "holds"
    assert found[0].why == "at 400,000 steps, of the paper's 1,000,000"
    assert found[0].paper == "5758 against 3480"
    assert found[5].verdict == "holds"
    # One of the two is further: both are read where the other one is.
    further = judge(made_up(PAPER, at_40, epochs=lambda job: 90 if job.agent == "ddpg" else 40))
    assert further[0].paper == "5758 against 3480"


def test_too_little_decides_nothing():
    levels = {(CHEETAH, "mnf-ddpg"): 9000.0, (CHEETAH, "ddpg"): 100.0}
    few = judge(made_up(QUICK, levels))
    assert {v.verdict for v in few} == {"undecided"}
    assert few[0].why == "2 seeds of MNF-DDPG are too few"
    assert few[1].why == "no runs of BBQ-DDPG on HalfCheetah"
    short = judge(made_up(PAPER, LIKE_THE_PAPER, epochs=lambda job: 9))
    assert {v.verdict for v in short} == {"undecided"}
    other = judge(made_up(replace(PAPER, epoch=5000), LIKE_THE_PAPER))
    assert {v.why for v in other} == {"epochs are not the paper's 10,000 steps"}
    assert {v.verdict for v in judge({})} == {"undecided"}


# --- the page and the commands -----------------------------------------------------------------


def page_of(report, swept, tmp_path):
    with (tmp_path / "log").open("w") as file:
        report(Page(tmp_path, "made up", "randq", Console(width=250, file=file)), swept)
    return (tmp_path / "log").read_text()


@pytest.mark.parametrize("scale", ["quick", "paper"])
def test_the_page_shows_finished_and_unfinished_runs(tmp_path, scale):
    jobs = FIGURE5_SCALES[scale].jobs()
    done = tuple((job, row(job, LIKE_THE_PAPER[job.env, job.agent])) for job in jobs[:-1])
    begun = ((jobs[-1], row(jobs[-1], 100.0, epochs=12)),)
    log = page_of(figure5.report, Results(done, (), begun), tmp_path)
    page = (tmp_path / "figure5.md").read_text()
    assert "1 runs are not finished" in page
    assert "1 at 120,000" in page
    assert "| MNF-DDPG | HalfCheetah-v5 |" in page
    assert "undecided" in log
    assert (tmp_path / "figure5.png").stat().st_size > 30_000


def pretend(jobs, folder, workers):
    for job in jobs:
        yield Finished(job, row(job, -500.0))


def run(command, tmp_path):
    command.check()
    with (tmp_path / "log").open("w") as file:
        command.run(Console(width=250, file=file))
    return (tmp_path / "log").read_text()


def test_pieces_come_together_on_one_page(tmp_path, monkeypatch):
    monkeypatch.setattr("randq.sweep.local.run", pretend)
    smoke = ReproduceCommand("figure5", scale="smoke", out=tmp_path)
    assert "nothing to show" in run(replace(smoke, look=True), tmp_path)
    log = run(replace(smoke, agents=("ddpg",)), tmp_path)
    assert "randq reproduce figure5 --scale smoke --agents ddpg --out" in log
    page = (tmp_path / "figure5.md").read_text()
    assert "| OU-noise DDPG | Pendulum-v1 | 1 | 400 |" in page
    assert "MNF-DDPG | Pendulum" not in page
    run(replace(smoke, agents=("mnf-ddpg",)), tmp_path)
    page = (tmp_path / "figure5.md").read_text()
    assert "| OU-noise DDPG | Pendulum-v1 | 1 | 400 |" in page
    assert "| MNF-DDPG | Pendulum-v1 | 1 | 400 |" in page
    monkeypatch.setattr("randq.sweep.local.run", pytest.fail)  # nothing is left to run
    assert "2 jobs in" in run(smoke, tmp_path)


def test_smoke_from_end_to_end(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "cache"))
    log = run(ReproduceCommand("figure5", scale="smoke", out=tmp_path), tmp_path)
    assert "The picture is" in log
    page = (tmp_path / "figure5.md").read_text()
    assert page.count("**undecided**") == 8
    assert "holds**" not in page
    kept = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert {line["job"]["agent"] for line in kept} == {"mnf-ddpg", "ddpg"}
    for line in kept:
        assert [step for step, _ in line["result"]["evaluations"]] == [100, 200, 300, 400]
    run_folder = tmp_path / "runs" / "mnf-ddpg" / "Pendulum-v1" / "seed-0"
    assert (run_folder / "agent.randq").exists()


# --- the search --------------------------------------------------------------------------------


def test_the_grid_of_alpha_is_the_papers():
    """Powers of ten from 1e-6 to 1e-2: of Atari all of it, of MuJoCo a part."""
    for agent in ("mnf-ddpg", "bbqn-ddpg"):
        values = SEARCH.grids[agent]["alpha"]
        assert values == tuple(10.0**k for k in range(-6, -1))
    assert (SEARCH.steps, SEARCH.evaluate_every, SEARCH.evaluation_episodes) == (
        100_000,
        10_000,
        10,
    )
    assert list(SEARCH.seeds) == [2000, 2001]
    assert {j.overrides["alpha"] for j in SEARCH.jobs()} == {10.0**k for k in range(-6, -1)}
    later = SEARCHES["half_cheetah_alpha"].grids["mnf-ddpg"]["alpha"]
    assert set(later) < {times * 10.0**k for times in (1, 4, 8) for k in range(-6, 0)}


def test_what_the_searches_found_is_the_preset():
    found = preset("mnf-ddpg", "mujoco")
    assert isinstance(found.posterior, MNF)
    assert (found.posterior.initial_std, found.alpha) == (0.1, 0.1)
    assert all(preset(agent, "mujoco").normalise_observations for agent in FIGURE5_AGENTS)
    # Every task of the paper has the settings of MuJoCo.
    assert {job.agent_settings for job in PAPER.jobs()} == {
        preset(agent, "mujoco") for agent in FIGURE5_AGENTS
    }


def test_the_table_of_the_search_has_the_best_alpha_first(tmp_path, monkeypatch):
    there = replace(SEARCH, env="Pendulum-v1")  # MuJoCo may not be installed
    monkeypatch.setitem(SEARCHES, "half_cheetah", there)
    done = []
    for job in there.jobs():
        level = -np.log10(job.overrides["alpha"]) * 100 + job.seed
        # The first half of the evaluations must not count.
        values = [9e9] * 5 + [level - 10, level, level + 10, level, level]
        evaluations = [[10_000 * (i + 1), float(v)] for i, v in enumerate(values)]
        done.append((job, {"evaluations": evaluations}))
    done = tuple(
        entry for entry in done if entry[0].overrides["alpha"] != 1e-4 or entry[0].seed == 2000
    )
    found = last_returns(there, done)
    fixed = {"posterior.initial_std": 0.25, "normalise_observations": False}
    first = ("mnf-ddpg", (("alpha", 1e-6), *fixed.items()))
    assert found[first] == pytest.approx({2000: 2600, 2001: 2601})
    page_of(lambda page, swept: search.report("half_cheetah", page, swept), Results(done), tmp_path)
    page = (tmp_path / "search.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| mnf-ddpg")]
    rest = "".join(f", {name} {value}" for name, value in fixed.items())
    assert rows[0] == f"| mnf-ddpg | alpha 1e-06{rest} (preset) | 2600 | 2601 | 2600 |"
    assert rows[2] == f"| mnf-ddpg | alpha 0.0001{rest} | 2400 | - | 2400 |"
    assert rows[-1] == f"| mnf-ddpg | alpha 0.01{rest} | 2200 | 2201 | 2200 |"
    assert "last 5 evaluations" in page
    assert "seeds 2000 to 2001, 100,000 steps" in page


def test_a_search_may_be_judged_by_training(tmp_path):
    there, done = SEARCHES["amidar"], []
    for level, job in enumerate(there.jobs()):
        # What came before the last 100,000 steps must not count, nor must evaluations.
        episodes = [[99_999, 9e9], [100_000, 9e9], [100_001, level], [200_000, level + 1.0]]
        done.append((job, {"episodes": episodes, "evaluations": [[200_000, 8e9]]}))
    swept = Results(tuple(done))
    page_of(lambda page, swept: search.report("amidar", page, swept), swept, tmp_path)
    page = (tmp_path / "search.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| mnf-dqn")]
    assert [line.split(" | ")[2] for line in rows] == ["4", "4", "2", "2", "0"]
    assert rows[0].startswith("| mnf-dqn | alpha 0.01 |")
    assert "in its last 100,000 steps" in page

"""Figure 1: its statistics by hand, its verdicts on made-up results, and the whole of it, small."""

import csv
import json
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from rich.console import Console

from randq.experiments.figure1 import (
    FIGURE1_AGENTS,
    FIGURE1_SCALES,
    Cell,
    Chains,
    Figure1,
    Figure1Results,
    figure1_results,
)
from randq.report.claims import paper_points
from randq.report.figure1 import draw
from randq.report.page import verdict_table
from randq.report.statistics import as_times, bootstrap_medians, quantile, wilson
from randq.report.verdict import judge, summary, write_verdict
from randq.reproduce import ReproduceCommand
from randq.runs.train import censored_median
from randq.sweep import Finished

INF = math.inf

# Statistics


@pytest.mark.parametrize(
    ("solved_at", "low", "median", "high"),
    [
        ([5], 5, 5, 5),
        ([1, 2, 3, 4], 1.75, 2.5, 3.25),
        ([4, None, 2, 3], 2.75, 3.5, INF),  # 2 3 4 inf
        ([1, 2, None, None], 1.75, INF, INF),  # half way between 2 and nobody knows
        ([7, None, None], INF, INF, INF),
        ([1, 2, None], 1.5, 2, INF),
        ([None, None], INF, INF, INF),
    ],
)
def test_quantiles_of_censored_runs_by_hand(solved_at, low, median, high):
    times = as_times(solved_at)
    assert [quantile(times, share) for share in (0.25, 0.5, 0.75)] == [low, median, high]
    assert censored_median(solved_at) == (None if median == INF else median)


def test_quantiles_without_censoring_are_those_of_numpy():
    times = np.random.default_rng(0).uniform(size=11)
    for share in (0.0, 0.1, 0.25, 0.5, 0.9, 1.0):
        assert quantile(times, share) == pytest.approx(np.quantile(times, share))


def test_resampled_medians_start_with_the_true_one_and_stay_among_the_seeds():
    medians = bootstrap_medians(as_times([1, 2, None]), 500, np.random.default_rng(0))
    assert medians[0] == 2
    assert set(medians) == {1, 2, INF}
    # P(at least 2 of 3 are the censored one) = 7/27
    assert np.mean(medians[1:] == INF) == pytest.approx(7 / 27, abs=0.06)


def test_wilson_interval():
    # Newcombe (1998), table I: 81 of 263, and 0 of 20
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(0, 20) == pytest.approx((0, 0.1611), abs=5e-5)


def test_the_papers_points_are_all_there():
    points = paper_points()
    assert {agent: sorted(lengths) for agent, lengths in points.items()} == {
        agent: list(range(10, 100)) for agent in ("mnf-dqn", "bbqn", "noisy-dqn", "ddqn")
    }
    assert np.median(list(points["mnf-dqn"].values())) == 54
    assert max(points["mnf-dqn"].values()) == 385
    assert sum(value == 2000 for value in points["ddqn"].values()) == 76


# Verdicts


def made_up(times, seeds=10, lengths=(10, 50, 75, 100), budget=2000, luck=0, random=None):
    """Every seed at its agent's time, a few episodes apart."""
    cells = {}
    for action_map, table in (("fixed", times), ("random", random or times)):
        for agent, at in table.items():
            for n in lengths:
                solved = tuple(None if at is None else at + seed for seed in range(seeds))
                cells[action_map, agent, n] = Cell(solved, budget)
    untrained = {(agent, n): (luck, 200) for agent in times for n in lengths}
    return Figure1Results(cells, untrained)


AS_PAPER = {"mnf-dqn": 40, "bbqn": 80, "noisy-dqn": 400, "ddqn": None, "boot-dqn": 10}
REVERSED = {"mnf-dqn": None, "bbqn": 900, "noisy-dqn": 30, "ddqn": 20, "boot-dqn": 10}


def answers(results):
    return [v.verdict for v in judge(results)]


def test_a_world_like_the_papers_makes_every_claim_hold():
    assert set(answers(made_up(AS_PAPER))) == {"holds"}


def test_a_world_upside_down_makes_none_hold():
    verdicts = judge(made_up(REVERSED, luck=60))
    wrong = {v.claim: v.verdict for v in verdicts if v.verdict != "does not hold"}
    assert not wrong


def test_few_seeds_or_lengths_decide_nothing():
    assert set(answers(made_up(AS_PAPER, seeds=4))[:8]) == {"undecided"}
    assert set(answers(made_up(AS_PAPER, lengths=(10, 100)))[:5]) == {"undecided"}
    assert set(answers(Figure1Results({}))) == {"undecided"}


def test_what_all_fail_is_undecided():
    nobody = dict.fromkeys(AS_PAPER, None)
    verdicts = judge(made_up(AS_PAPER, random=nobody))
    assert {v.verdict for v in verdicts if "random" in v.claim} == {"undecided"}
    assert "unsolved after 2000 episodes" in verdicts[-1].why


def test_failing_within_a_smaller_budget_than_the_papers_is_no_failure():
    (failing,) = (v for v in judge(made_up(AS_PAPER, budget=500)) if "fails to" in v.claim)
    assert failing.verdict == "undecided"
    (solving,) = (v for v in judge(made_up(REVERSED, budget=500)) if "fails to" in v.claim)
    assert solving.verdict == "does not hold"


def test_seeds_that_disagree_leave_it_open():
    results = made_up(AS_PAPER)
    torn = Cell((10,) * 6 + (1000,) * 4, 2000)
    cells = {k: torn if k[1] == "mnf-dqn" else v for k, v in results.cells.items()}
    by_claim = {v.claim: v for v in judge(replace(results, cells=cells))}
    consistent = by_claim["MNF-DQN has very consistent performance across different chain lengths"]
    assert consistent.verdict == "undecided"
    assert 0 < consistent.agreement < 0.95


def test_luck_is_judged_by_its_interval():
    def luck(count):
        return judge(made_up(AS_PAPER, luck=count))[8].verdict

    assert [luck(count) for count in (2, 10, 30)] == ["holds", "undecided", "does not hold"]


def test_lengths_that_nobody_solves_do_not_count():
    results = made_up({**AS_PAPER, "ddqn": 200})
    cells = {k: Cell((None,) * 10, 2000) if k[2] > 50 else v for k, v in results.cells.items()}
    by_claim = {v.claim: v for v in judge(replace(results, cells=cells))}
    faster = by_claim["random action map: MNF-DQN clearly outperforms ε-greedy DQN"]
    assert (faster.verdict, faster.here) == ("holds", "twice as fast at 100% of lengths")
    best = by_claim["random action map: MNF-DQN performs best"]
    assert (best.verdict, best.here) == ("holds", "best at 100% of lengths")


def test_much_worse_is_not_slightly_worse():
    (bbqn,) = (v for v in judge(made_up({**AS_PAPER, "bbqn": 300})) if "slightly" in v.claim)
    assert bbqn.verdict == "does not hold"


def test_numbers_of_the_paper_are_computed_from_its_points():
    by_claim = {v.claim: v.paper for v in judge(Figure1Results({}))}
    fast = by_claim["MNF-DQN solves chains as fast as the points of the figure"]
    assert fast == "54 (worst length 385, 0% of lengths fail)"
    assert by_claim["MNF-DQN clearly outperforms ε-greedy DQN"] == "54 against > 2000"
    best = by_claim["MNF-DQN consistently performs best across different chain lengths"]
    assert best == "best at 64% of lengths"


def test_verdicts_are_written_for_readers_and_scripts(tmp_path):
    results = made_up(AS_PAPER, luck=1)
    write_verdict(tmp_path, results, judge(results), "made up", "randq reproduce")
    data = json.loads((tmp_path / "verdict.json").read_text())
    assert {claim["verdict"] for claim in data["claims"]} == {"holds"}
    assert len(data["agents"]) == 2 * len(FIGURE1_AGENTS)
    text = (tmp_path / "verdict.md").read_text()
    for claim in data["claims"]:
        line = f"| {claim['claim']} | {claim['rule']} | {claim['paper']} | {claim['here']} "
        assert line + "| **holds** |" in text
    console = Console(width=200, record=True, file=(tmp_path / "console").open("w"))
    console.print(verdict_table("Claims", judge(results)))
    assert console.export_text().count("holds") == len(data["claims"])
    console.file.close()


def test_summary_counts_censored_runs():
    cells = {
        ("fixed", "ddqn", 10): Cell((1, 3, None), 50),
        ("fixed", "ddqn", 20): Cell((5, None, None), 50),
    }
    (row,) = summary(Figure1Results(cells, {("ddqn", 10): (3, 4), ("ddqn", 20): (1, 4)}))
    assert (row.solved, row.median, row.worst, row.untrained) == (0.5, None, None, 0.5)


# The experiment


def test_jobs_of_each_scale():
    quick = FIGURE1_SCALES["quick"].jobs()
    trains = [item for item in quick if item.kind == "train"]
    assert len(trains) == 5 * (5 + 4)
    assert {len(item.seeds) for item in trains} == {10}
    assert len({item.key for item in quick}) == len(quick)
    paper = [item for item in FIGURE1_SCALES["paper"].jobs() if item.kind == "train"]
    fixed = [item for item in paper if item.env_settings["action_map"] == "fixed"]
    assert {item.env_settings["length"] for item in fixed} == set(range(10, 100))
    assert len(fixed) == 90 * 5
    assert {item.episodes for item in paper} == {2000}
    seeds = [item.seeds for item in paper if item.env_settings["action_map"] == "random"]
    assert set(seeds) == {tuple(range(10)), tuple(range(10, 20))}


def test_batches_of_seeds_are_put_together():
    chains = Chains((10,), seeds=5, episodes=7)
    scale = Figure1("", fixed=chains, random=chains, untrained=(10,), batch=3)
    jobs = [item for item in scale.jobs() if item.agent == "bbqn"]

    def result(item):
        if item.kind == "untrained":
            return {"optimal": 5, "networks": 200}
        return {"seeds": [{"solved_at": seed or None} for seed in item.seeds]}

    results = figure1_results((item, result(item)) for item in jobs)
    assert results.cells["fixed", "bbqn", 10] == Cell((None, 1, 2, 3, 4), 7)
    assert results.cells["fixed", "bbqn", 10].censored == 0.2
    assert results.untrained == {("bbqn", 10): (5, 200)}
    assert results.lengths("fixed", "bbqn") == [10]
    assert results.lengths("fixed", "bbqn", "ddqn") == []


def test_drawing_copes_with_gaps_and_with_nothing(tmp_path):
    some = {("fixed", "ddqn", 10): Cell((1, None, None), 50)}
    for name, results in {"some": Figure1Results(some), "none": Figure1Results({})}.items():
        draw(results, tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000


# The command


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"scale": "quik"}, "did you mean 'quick'"),
        ({"figure": "figure7"}, "did you mean 'figure"),
        ({"workers": 0}, "workers: got 0"),
    ],
)
def test_the_command_refuses_before_it_runs(tmp_path, wrong, says):
    with pytest.raises(ValueError, match="got") as refusal:
        # past the type checker, as from a script without one
        _unchecked(ReproduceCommand, {"out": tmp_path, **wrong}).check()
    assert says in str(refusal.value)


def _unchecked(cls, fields):
    record = cls()
    for name, value in fields.items():
        object.__setattr__(record, name, value)
    return record


def test_the_command_refuses_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="out: got"):
        ReproduceCommand(out=tmp_path / "file").check()


def run(command, path):
    with path.open("w") as file:
        console = Console(width=200, file=file)
        command.run(console)
    return path.read_text()


def pretend(jobs, folder, workers, fail=()):
    for item in jobs:
        if item.agent in fail:
            yield Finished(item, None, "made to fail")
        elif item.kind == "untrained":
            yield Finished(item, {"optimal": 5, "networks": 200})
        else:
            rows = [{"seed": seed, "solved_at": seed + 1} for seed in item.seeds]
            yield Finished(item, {"seeds": rows})


def test_the_command_says_what_failed_and_draws_the_rest(tmp_path, monkeypatch):
    monkeypatch.setattr("randq.sweep.local.run", partial(pretend, fail=("ddqn",)))
    command = ReproduceCommand(scale="smoke", out=tmp_path)
    with pytest.raises(SystemExit) as end:
        run(command, tmp_path / "log")
    assert end.value.code == 1
    log = (tmp_path / "log").read_text()
    assert "failed ddqn nchain length=25" in log
    assert "made to fail" in log
    assert "to try them again: randq reproduce figure1 --scale smoke" in log
    assert (tmp_path / "figure1.png").exists()
    assert "5 jobs are missing" in (tmp_path / "verdict.md").read_text()
    monkeypatch.setattr("randq.sweep.local.run", pretend)
    assert "25 jobs" in run(command, tmp_path / "log")


def test_ctrl_c_says_how_to_resume(tmp_path, monkeypatch):
    def interrupted(jobs, folder, workers):
        yield from list(pretend(jobs, folder, workers))[:2]
        raise KeyboardInterrupt

    monkeypatch.setattr("randq.sweep.local.run", interrupted)
    with pytest.raises(SystemExit) as end:
        run(ReproduceCommand(scale="smoke", out=tmp_path), tmp_path / "log")
    assert end.value.code == 130
    assert f"--out {tmp_path} resumes" in (tmp_path / "log").read_text()
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 2


def test_smoke_from_end_to_end(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "cache"))
    log = run(ReproduceCommand(scale="smoke", out=tmp_path), tmp_path / "log")
    assert "The picture is" in log
    assert (tmp_path / "figure1.png").stat().st_size > 50_000
    data = json.loads((tmp_path / "verdict.json").read_text())
    assert {claim["verdict"] for claim in data["claims"]} == {"undecided"}
    kept = (tmp_path / "results.jsonl").read_bytes()
    monkeypatch.setattr("randq.sweep.local.run", pytest.fail)  # nothing is left to run
    assert "25 jobs in" in run(ReproduceCommand(scale="smoke", out=tmp_path), tmp_path / "log")
    assert (tmp_path / "results.jsonl").read_bytes() == kept


def test_the_copy_of_the_papers_points_is_whole():
    from importlib.resources import files

    rows = list(csv.DictReader((files("randq") / "data/figure1.csv").read_text().splitlines()))
    assert len(rows) == 360

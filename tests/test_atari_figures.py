"""Figures 3, 4 and 6: jobs, curves, scores and verdicts on made-up returns, and the commands."""

import csv
import json
import sys
from dataclasses import replace
from importlib.resources import files

import numpy as np
import pytest
from rich.console import Console
from scipy.stats import trim_mean

from randq.cli import main
from randq.envs.gym.atari import GAMES
from randq.experiments import EXPERIMENTS, piece, shown
from randq.experiments.atari import FIGURE_AGENTS, FRAMES, WINDOW, Run, Runs, atari_results, window
from randq.report import atari
from randq.report.atari import frames_run, iqm_rows, summary
from randq.report.atari_claims import claims, judge
from randq.report.atari_scores import (
    bdqn_by_raw_frames,
    iqm,
    iqm_interval,
    normalised,
    paper_level,
    players,
    published,
    published_at,
    published_iqm,
)
from randq.report.page import Page
from randq.reproduce import ReproduceCommand
from randq.sweep import Finished, Results

FIGURES = ("figure3", "figure4", "figure6")
SMOKE, QUICK, PAPER = (EXPERIMENTS["figure3"][scale] for scale in ("smoke", "quick", "paper"))
BREAKOUT = replace(QUICK, games=("Breakout",))

# --- jobs --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("figure", "runs"), [("figure3", 260), ("figure4", 130), ("figure6", 70)])
def test_the_paper_scale_is_the_papers(figure, runs, tmp_path):
    jobs = EXPERIMENTS[figure]["paper"].jobs()
    assert len(jobs) == runs == len(set(map(str, jobs)))
    assert {j.agent for j in jobs} == set(FIGURE_AGENTS[figure])
    assert [j.seed for j in jobs] == sorted(j.seed for j in jobs)
    assert {(j.steps, tuple(j.overrides)) for j in jobs} == {(10_000_000, ())}
    assert all(j.env.startswith("atari-paper/") for j in jobs)
    # Every place has a curve in the paper, and every game its random and human player.
    for job in jobs:
        game = job.env.partition("/")[2]
        assert (game, job.agent) in published()
        assert game in players()


@pytest.mark.parametrize("figure", FIGURES)
def test_smoke_and_quick_are_two_agents_of_the_figure(figure, tmp_path):
    for scale, steps in (("smoke", 10_000), ("quick", 250_000)):
        jobs = EXPERIMENTS[figure][scale].jobs()
        assert {(j.seed, j.steps) for j in jobs} == {(0, steps)}
        assert len(jobs) == 2
        assert {j.agent for j in jobs} < {*FIGURE_AGENTS[figure], ""}
        for job in jobs:
            job.check(tmp_path)  # the settings fit together
            assert job.agent_settings.learning_starts < steps / 4


def test_a_figure_can_be_run_in_pieces():
    some = piece(PAPER, {"agents": ("ddqn",), "games": ("Alien", "hard8"), "frames": 4_000_000})
    jobs = replace(some, seeds=1).jobs()
    assert [j.env for j in jobs] == [f"atari-paper/{game}" for game in GAMES["hard8"]]
    assert {j.steps for j in jobs} == {1_000_000}
    # What is shown is as long, of all agents, and on these games and those of the figure.
    all_of_it = shown(PAPER, {"agents": ("ddqn",), "games": ("hard8",), "frames": 4_000_000})
    envs = {j.env.partition("/")[2] for j in all_of_it.jobs()}
    assert envs == {*GAMES["paper13"], *GAMES["hard8"]}
    assert set(map(str, jobs)) < set(map(str, all_of_it.jobs()))
    assert {j.agent for j in all_of_it.jobs()} == set(PAPER.agents)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["figure3", "--games", "Brekout"], "(did you mean Breakout?)"),
        (
            ["figure4", "--agents", "boot"],
            "agents: got 'boot', takes one of mnf-dqn, boot-dqn (did",
        ),
        (["figure3", "--frames", "0"], "frames: got 0"),
        (["figure3", "--frames", "39998"], "frames: got 39998, takes a multiple of 4"),
        (["figure3", "--frames", "50000"], "frames: got 50000, takes at most 40000 at this scale"),
        (["figure6", "--seeds", "2"], "seeds: got 2, takes at most 1 at this scale"),
        (["figure6", "--steps", "9"], "steps: got 9, takes only for: agents, games, seeds, frames"),
        (["figure5", "--games", "Alien"], "games: got ('Alien',), takes only for: agents, envs"),
    ],
)
def test_pieces_that_are_none_are_refused_in_one_line(options, words, capsys, tmp_path):
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", *options, "--scale", "smoke", "--out", str(tmp_path)])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_without_ale_py_one_sentence_says_what_to_install(capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", "figure3", "--out", str(tmp_path)])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert 'pip install "randq[atari]"' in error
    assert error.count("\n") == 1


# --- curves and scores -------------------------------------------------------------------------


def run_of(*episodes, frames=100, seed=0):
    ends, returns = zip(*episodes, strict=True)
    return Run(seed, frames, np.array(ends), np.array(returns, float))


def test_the_window_is_the_papers_or_a_twentieth_of_a_short_run():
    assert window(FRAMES) == WINDOW == 400_000
    assert window(1_000_000) == 50_000
    assert window(40_000) == 2000


def test_a_point_of_a_curve_is_the_mean_of_the_episodes_that_ended_in_its_window():
    run = run_of((11, 1.0), (20, 3.0), (21, 10.0), (45, 7.0), frames=59)
    curve = run.curve(10)
    np.testing.assert_allclose(curve, [np.nan, 2, 10, 10, 7])  # and the last 9 frames are no window


def test_a_score_is_the_mean_of_the_last_tenth():
    run = run_of((80, 1.0), (90, 2.0), (91, 4.0), (100, 8.0), (101, 50.0))
    assert run.score(100) == 6
    assert run.score(89) == 1  # none ended in the last tenth
    assert run.score(10) == 1


def test_quartiles_are_over_seeds_and_as_far_as_all_counted_ones_are():
    ends = range(10, 101, 10)
    seeds = [run_of(*((e, s * e) for e in ends), seed=s) for s in range(4)]
    seeds.append(run_of(*((e, 1000.0) for e in ends[:6]), frames=60, seed=4))
    seeds.append(run_of((10, -9e9), frames=40, seed=5))  # less than half as far
    runs = Runs(seeds, window=10)
    assert [run.seed for run in runs.counted] == [0, 1, 2, 3, 4]
    assert runs.frames == 60
    expected = [np.percentile([0, e, 2 * e, 3 * e, 1000.0], (25, 50, 75)) for e in ends[:6]]
    np.testing.assert_allclose(runs.quartiles, np.transpose(expected))
    np.testing.assert_allclose(runs.scores(60), [0, 60, 120, 180, 1000])


def test_episodes_of_a_job_are_put_at_their_frames():
    (job, other) = QUICK.jobs()
    result = {"steps": 30_000, "episodes": [[10_000, 2.0], [29_000, 4.0]]}
    found = atari_results([(job, result), (other, {"steps": 9, "episodes": []})])
    assert list(found) == [("Amidar", job.agent)]
    (run,) = found["Amidar", job.agent].seeds
    assert run.frames == 120_000
    assert list(run.ends) == [40_000, 116_000]


# --- the paper and other players ---------------------------------------------------------------


def test_the_papers_curves_are_all_there():
    counts = dict.fromkeys(("figure3.csv", "figure4.csv", "figure6.csv", "bdqn.csv"), 0)
    for name in counts:
        text = (files("randq") / "data" / name).read_text()
        counts[name] = len(list(csv.DictReader(text.splitlines())))
    assert list(counts.values()) == [4982, 2518, 1362, 4200]
    assert len(published()) == 3 * 13 + 2 * 13 + 7
    mnf = published()["Alien", "mnf-dqn"]
    assert (mnf.frames[0], mnf.median[0]) == (400_000, 315.4)  # of Figure 4
    # From summary.csv, which takes the last 10% of the axis.
    assert published_at("Gravitar", "bbqn", FRAMES) == pytest.approx(83, abs=1)
    assert published_at("Alien", "mnf-dqn", 300_000) is None
    assert published_at("Alien", "mnf-dqn", 600_000) == pytest.approx((315.4 + 406.1) / 2)
    assert published_at("Freeway", "mnf-dqn", FRAMES) is None


def test_bdqn_has_13_raw_frames_in_each_step():
    raw, theirs = bdqn_by_raw_frames()["Breakout"], published()["Breakout", "bdqn"]
    assert raw.frames[0] == 1_300_000
    shared = slice(0, 90)
    np.testing.assert_allclose(raw.frames[shared] * 4 / 13, theirs.frames[shared])
    np.testing.assert_allclose(raw.median[shared], theirs.median[shared], rtol=0.05, atol=0.5)
    level = paper_level("Breakout", "bdqn")
    assert level.low == level.median == level.high  # it has no band


def test_normalised_scores_are_0_for_a_random_and_1_for_a_human_player():
    assert len(players()) == 18
    for game in {*GAMES["paper13"], *GAMES["hard8"]}:
        np.testing.assert_allclose(normalised(game, np.array(players()[game])), [0, 1])
    assert normalised("Breakout", 16.1) == pytest.approx(0.5)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 13, 65, 66])
def test_the_iqm_is_the_mean_of_the_middle_half(count):
    values = np.random.default_rng(count).normal(size=(3, count))
    np.testing.assert_allclose(iqm(values), trim_mean(values, 0.25, axis=1))


def test_the_interval_of_the_iqm_resamples_seeds_within_games():
    assert iqm_interval([np.array([1.0]), np.array([5.0])]) is None
    # Games far apart, seeds alike: an interval that resampled games would be wide.
    alike = [np.full(5, level) for level in (0.0, 10.0, 20.0, 30.0)]
    assert iqm_interval(alike) == (15.0, 15.0)
    rng = np.random.default_rng(1)
    noisy = [level + rng.normal(size=50) for level in (0.0, 10.0, 20.0, 30.0)]
    low, high = iqm_interval(noisy)
    assert low < iqm(np.concatenate(noisy)) < high
    # The middle half is two games of 50 runs each, of variance 1.
    assert high - low == pytest.approx(2 * 1.96 / np.sqrt(100), rel=0.3)


# --- verdicts ----------------------------------------------------------------------------------


def episodes(job, level):
    """A run that climbs to some return and stays there for its last fifth."""
    ends = np.linspace(0, job.steps, 101)[1:].astype(int)
    return [[int(e), float(level if i >= 80 else 0.5 * level)] for i, e in enumerate(ends)]


def row(job, level, share=1.0):
    rows = episodes(replace(job, steps=int(share * job.steps)), level)
    return {"seed": job.seed, "steps": int(share * job.steps), "episodes": rows}


def made_up(figure, changes=(), seeds=5, spread=1.0, share=1.0, up=1.03):
    """Seeds around the paper's medians, MNF-DQN a little above, and some places changed."""
    found = []
    for job in EXPERIMENTS[figure]["paper"].jobs():
        place = (job.env.partition("/")[2], job.agent)
        low, median, high = (float(v[0]) for v in paper_level(*place))
        centre = dict(changes).get(place, median * (up if job.agent == "mnf-dqn" else 1.0))
        width = spread * (high - low) / 2
        if job.seed < seeds:
            found.append((job, row(job, centre + width * (job.seed - 2) / 2, share)))
    return atari_results(found)


def verdicts(figure, *changes, **settings):
    return [v.verdict for v in judge(figure, made_up(figure, changes, **settings))]


@pytest.mark.parametrize("figure", FIGURES)
def test_the_papers_own_curves_pass_every_test(figure):
    for claim in claims(figure):
        assert claim.test({place: paper_level(*place) for place in claim.places}).all(), claim.says


def test_all_claims_hold_where_all_is_as_in_the_paper():
    assert verdicts("figure3", spread=0.5) == ["holds"] * 6
    assert verdicts("figure4", spread=0.5) == ["holds"] * 2
    assert verdicts("figure6", spread=0.5) == ["holds"] * 2


def test_verdicts_turn_with_the_numbers():
    fails, open_ = "does not hold", "undecided"
    assert verdicts("figure3", (("Tutankham", "bbqn"), 190.0), spread=0.1)[0] == fails
    like_mnf = [
        ((game, "ddqn"), float(paper_level(game, "mnf-dqn").median[0])) for game in GAMES["paper13"]
    ]
    assert verdicts("figure3", *like_mnf)[1] == fails
    assert verdicts("figure3", (("Gravitar", "noisy-dqn"), 600.0))[2] == fails
    assert verdicts("figure3", (("Gravitar", "noisy-dqn"), 421.0), spread=3.0)[2] == open_
    assert verdicts("figure3", (("Gravitar", "bbqn"), 300.0))[3] == fails
    assert verdicts("figure3", (("Qbert", "ddqn"), 20_000.0))[4] == fails
    assert verdicts("figure3", up=1.0)[5] == open_
    poor = [((game, "mnf-dqn"), 0.0) for game in GAMES["paper13"]]
    assert verdicts("figure3", *poor)[5] == fails
    assert verdicts("figure4", *poor) == [fails, fails]
    assert verdicts("figure6", (("Alien", "bdqn"), 9000.0), spread=0.1)[0] == fails


def test_fewer_seeds_or_frames_than_the_paper_decide_nothing():
    few = judge("figure4", made_up("figure4", seeds=4))
    assert {(v.verdict, v.why) for v in few} == {("undecided", "4 of the paper's 5 seeds")}
    assert few[0].here.startswith("better on ")
    short = judge("figure4", made_up("figure4", share=0.5))
    assert {v.why for v in short} == {"20,000,000 of the paper's 40,000,000 frames"}
    one = judge("figure3", atari_results((job, row(job, 9.0)) for job in QUICK.jobs()))
    assert {v.verdict for v in one} == {"undecided"}
    assert one[0].why == "50 of 52 are missing, such as MNF-DQN on Alien"
    assert {v.here for v in judge("figure6", {})} == {"no runs"}


# --- tables, the page and the commands ---------------------------------------------------------


def test_numbers_of_known_runs():
    jobs = [replace(job, seed=seed) for seed in (0, 1, 2) for job in BREAKOUT.jobs()]
    levels = {"mnf-dqn": 16.1, "ddqn": 1.7}
    results = atari_results(
        (job, row(job, levels[job.agent] + 2.88 * (job.seed - 1))) for job in jobs
    )
    best, other = summary(results)
    assert best[:6] == ("MNF-DQN", "Breakout", "3", "1,000,000", "16.1 (14.7 to 17.5)", "0.500")
    assert best[6] == "-"  # the paper's curve starts later
    assert other[6] == f"{published_at('Breakout', 'ddqn', 1_000_000):.1f}"
    assert best[7] == f"{published_at('Breakout', 'mnf-dqn', FRAMES):.1f}"
    (first, second) = iqm_rows(results)
    assert first[:4] == ("MNF-DQN", "1", "3", "0.500 (0.400 to 0.600)")
    assert first[5] == f"{published_iqm({'Breakout': FRAMES}, 'mnf-dqn'):.3f}"
    assert second[3].startswith("0.000 (")
    assert frames_run("figure3", results) == (
        "6,000,000 frames were run: 6 runs of 1,000,000; the paper scale is 260 runs of 40,000,000."
    )


def test_the_iqm_is_over_games_that_all_agents_have_runs_on():
    jobs = [j for j in PAPER.jobs() if (j.agent, j.env) != ("ddqn", "atari-paper/Alien")]
    rows = iqm_rows(atari_results((job, row(job, 100.0)) for job in jobs))
    assert [line[1:3] for line in rows] == [("12", "60")] * 4
    alone = [j for j in PAPER.jobs() if (j.agent == "ddqn") == (j.env == "atari-paper/Alien")]
    assert iqm_rows(atari_results((job, row(job, 100.0)) for job in alone)) == []


def page_of(figure, swept, tmp_path):
    with (tmp_path / "log").open("w") as file:
        page = Page(tmp_path, "made up", "randq", Console(width=250, file=file))
        atari.report(figure, page, swept)
    return (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    ("figure", "scale"), [("figure3", "quick"), ("figure4", "paper"), ("figure6", "paper")]
)
def test_the_page_shows_finished_and_unfinished_runs(figure, scale, tmp_path):
    jobs = EXPERIMENTS[figure][scale].jobs()
    done = tuple((job, row(job, 10.0)) for job in jobs[:-1])
    begun = ((jobs[-1], row(jobs[-1], 10.0, share=0.3)),)
    log = page_of(figure, Results(done, (), begun), tmp_path)
    page = (tmp_path / f"{figure}.md").read_text()
    assert "1 runs are not finished" in page
    assert "frames were run: " in page
    assert "frames were run: " in log
    assert "| MNF-DQN | Amidar |" in page
    assert ("13 frames of the emulator" in page) == (figure == "figure6")
    assert ("50,000 frames" in page) == (scale == "quick")
    assert f"Claims about Figure {figure[-1]}" in log
    assert (tmp_path / f"{figure}.png").stat().st_size > 30_000


def test_runs_without_an_episode_show_nothing(tmp_path):
    begun = tuple((job, {"steps": 5, "episodes": []}) for job in QUICK.jobs())
    assert "nothing to show" in page_of("figure3", Results((), (), begun), tmp_path)


def pretend(jobs, folder, workers):
    for job in jobs:
        yield Finished(job, row(job, 200.0))


def run(command, tmp_path):
    command.check()
    with (tmp_path / "log").open("w") as file:
        command.run(Console(width=250, file=file))
    return (tmp_path / "log").read_text()


def test_pieces_come_together_on_one_page(tmp_path, monkeypatch):
    monkeypatch.setattr("randq.sweep.local.run", pretend)
    smoke = ReproduceCommand("figure3", scale="smoke", out=tmp_path)
    log = run(replace(smoke, agents=("ddqn",)), tmp_path)
    assert "randq reproduce figure3 --scale smoke --agents ddqn --out" in log
    log = run(replace(smoke, agents=("mnf-dqn",), games=("Freeway",)), tmp_path)
    assert "--agents mnf-dqn --games Freeway" in log
    page = (tmp_path / "figure3.md").read_text()
    assert "| DDQN | SpaceInvaders | 1 | 40,000 | 200.0 |" in page
    assert "| MNF-DQN | Freeway | 1 | 40,000 | 200.0 |" in page
    assert "| DDQN | Freeway" not in page
    assert "80,000 frames were run" in page


def test_runs_that_do_not_fit_into_memory_together_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("randq.config.available_memory", lambda: 12e9)
    quick = ReproduceCommand("figure3", out=tmp_path, workers=2)
    with pytest.raises(ValueError, match=r"^replay_capacity: got '2 runs at once .* fewer workers"):
        quick.check()
    replace(quick, workers=1).check()
    replace(quick, look=True).check()


def test_smoke_from_end_to_end(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "cache"))
    log = run(ReproduceCommand("figure3", scale="smoke", out=tmp_path), tmp_path)
    assert "80,000 frames were run: 2 runs of 40,000" in log
    page = (tmp_path / "figure3.md").read_text()
    assert page.count("**undecided**") == 6
    assert "holds**" not in page
    assert "hold**" not in page
    kept = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert {line["job"]["agent"] for line in kept} == {"mnf-dqn", "ddqn"}
    for line in kept:
        assert line["result"]["steps"] == 10_000
        assert len(line["result"]["episodes"]) > 3
        (run_folder,) = tmp_path.glob(f"runs/*/{line['job']['agent']}/*/seed-0")
        assert (run_folder / "agent.randq").exists()

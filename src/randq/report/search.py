"""The table of a search of settings."""

from randq.experiments.search import LAST, SEARCHES, Score, Search, best_first, scores
from randq.report.page import Page, episodes, markdown, terminal
from randq.sweep import Job, Results

ORDER = {
    "solved_at": (
        "The best trial of each agent comes first: the one with the lowest mean of episodes to",
        "solve over all seeds and places, where a censored run counts as its whole budget.",
    ),
    "last_return": (
        "The best trial of each agent comes first: the one with the highest mean return of the",
        f"evaluations of the last {LAST} episodes, all noise disabled.",
    ),
}


def report(name: str, page: Page, swept: Results) -> None:
    """Print the trials of each agent, the best first, and keep them as `search.md`."""
    search = SEARCHES[name]
    found = scores(search, swept.done)
    places = [", ".join(f"{k} {v}" for k, v in place.items()) for place in search.places]
    failed = "censored" if search.measure == "solved_at" else "never a success"
    heads = [f"{place}: median, {failed}".removeprefix(": ") for place in places]
    columns = ("agent", "settings", *heads, "mean")
    rows = []
    for agent in search.grids:
        trials = [(trial, score) for (a, trial), score in found.items() if a == agent]
        for trial, score in sorted(trials, key=lambda entry: best_first(search, entry[1])):
            is_preset = _settings(search.env, agent, dict(trial)) == _settings(search.env, agent)
            words = ", ".join(f"{key} {value}" for key, value in trial)
            words += " (preset)" if is_preset else ""
            rows.append((agent, words, *_cells(search, score), f"{score.mean:.0f}"))
    lines = [
        f"# Search of settings: {name}",
        "",
        f"`{page.command}`: {page.about}; seeds {search.seeds[0]} to {search.seeds[-1]},"
        f" {search.episodes} episodes.",
        "",
        *ORDER[search.measure],
        "",
        *markdown(columns, rows),
    ]
    path = page.folder / "search.md"
    path.write_text("\n".join(lines) + "\n")
    page.console.print(terminal(f"Search: {name}", columns, rows))
    page.console.print(f"The table is also in {path}", soft_wrap=True)


def _cells(search: Search, score: Score) -> list[str]:
    def shown(median: float) -> str:
        solved = search.measure == "solved_at"
        return episodes(median, search.episodes) if solved else f"{median:.0f}"

    pairs = zip(score.medians, score.failed, strict=True)
    return [f"{shown(median)}, {failed}/{len(search.seeds)}" for median, failed in pairs]


def _settings(env: str, agent: str, trial: dict[str, object] | None = None) -> str:
    return str(Job(agent, env, (0,), overrides=trial or {}, episodes=1).resolved[0])

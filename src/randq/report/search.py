"""The table of a search of settings."""

from randq.experiments.search import SEARCHES, scores
from randq.report.page import Page, episodes, markdown, terminal
from randq.sweep import Job, Results


def report(name: str, page: Page, swept: Results) -> None:
    """Print the trials of each agent, the best first, and keep them as `search.md`."""
    search = SEARCHES[name]
    found = scores(swept.done)
    places = [", ".join(f"{k} {v}" for k, v in place.items()) for place in search.places]
    columns = ("agent", "settings", *(f"{place}: median, censored" for place in places), "mean")
    seeds = len(search.seeds)
    rows = []
    for agent in search.grids:
        trials = [(trial, score) for (a, trial), score in found.items() if a == agent]
        for trial, score in sorted(trials, key=lambda entry: entry[1].mean):
            is_preset = _settings(search.env, agent, dict(trial)) == _settings(search.env, agent)
            words = ", ".join(f"{key} {value}" for key, value in trial)
            cells = [
                f"{episodes(median, search.episodes)}, {censored}/{seeds}"
                for median, censored in zip(score.medians, score.censored, strict=True)
            ]
            rows.append(
                (agent, words + (" (preset)" if is_preset else ""), *cells, f"{score.mean:.0f}")
            )
    lines = [
        f"# Search of settings: {name}",
        "",
        f"`{page.command}`: {page.about}; seeds {search.seeds[0]} to {search.seeds[-1]},"
        f" {search.episodes} episodes.",
        "",
        "The best trial of each agent comes first: the one with the lowest mean of episodes to",
        "solve over all seeds and places, where a censored run counts as its whole budget.",
        "",
        *markdown(columns, rows),
    ]
    path = page.folder / "search.md"
    path.write_text("\n".join(lines) + "\n")
    page.console.print(terminal(f"Search: {name}", columns, rows))
    page.console.print(f"The table is also in {path}", soft_wrap=True)


def _settings(env: str, agent: str, trial: dict[str, object] | None = None) -> str:
    return str(Job(agent, env, (0,), overrides=trial or {}, episodes=1).resolved[0])

"""The folder of a run: what it says of a run, and what it refuses."""

import json
import os
import random
import struct
import time
from contextlib import suppress

import pytest

import randq
from randq.cli import main
from randq.runs import events
from randq.runs.directory import (
    EPISODES,
    EVALUATIONS,
    EVENTS,
    FAILURE,
    METRICS,
    RESULT,
    RUN,
    SETTINGS,
    BusyError,
    RunDirectory,
    find_runs,
)
from randq.runs.execute import groups
from randq.storage import StorageError

NAMES = {
    *("step", "episode", "rollout/ep_rew_mean", "rollout/ep_len_mean", "train/loss", "time/fps"),
    *("time/time_elapsed", "posterior/cost", "posterior/q_std", "posterior/action_disagreement"),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Two seeds of a small run."""
    out = tmp_path_factory.mktemp("runs")
    options = ["--env.length", "4", "--seeds", "2", "--seed", "9", "--episodes", "150"]
    options += ["--agent.posterior.flow-hidden", "4", "--tensorboard", "--out", str(out)]
    main(["train", "mnf-dqn", *options])
    return out


def test_a_run_has_all_its_files(finished):
    for seed in (9, 10):
        folder = finished / "mnf-dqn" / "nchain" / f"seed-{seed}"
        about = json.loads((folder / RUN).read_text())
        assert about["seed"] == seed
        assert about["command"].startswith("randq train mnf-dqn --env.length 4 --seeds 2")
        assert {"python", "randq", "jax", "numpy"} <= set(about["versions"])
        assert about["machine"]["cores"] >= 1
        records = [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]
        assert [record["episode"] for record in records] == [100, 150]
        assert all(set(record) == NAMES for record in records)
        assert all(record["posterior/q_std"] > 0 for record in records)
        evaluations = [json.loads(line) for line in (folder / EVALUATIONS).read_text().splitlines()]
        assert [record["episode"] for record in evaluations] == list(range(1, 151))
        assert all("eval/mean_reward" in record for record in evaluations)
        assert len((folder / EPISODES).read_text().splitlines()) == 151
        result = json.loads((folder / RESULT).read_text())
        assert len(result["fingerprint"]) == 64
        assert randq.load(folder).settings == randq.load(folder / "agent.randq").settings


def test_equal_runs_have_equal_fingerprints(finished, tmp_path, capsys):
    settings = finished / "mnf-dqn" / "nchain" / "seed-9" / SETTINGS
    main(["train", "--config", str(settings), "--out", str(tmp_path / "a"), "--json"])
    again = json.loads(capsys.readouterr().out)
    main(["runs", str(finished), "--json"])
    listed = json.loads(capsys.readouterr().out)
    assert [row["fingerprint"] for row in again["seeds"]] == [row["fingerprint"] for row in listed]
    assert [(row["seed"], row["status"]) for row in listed] == [(9, "finished"), (10, "finished")]
    assert [(row["done"], row["budget"], row["unit"]) for row in listed] == [
        (150, 150, "episodes")
    ] * 2
    other = ["--seed", "10", "--seeds", "1", "--out", str(tmp_path / "b"), "--json"]
    main(["train", "--config", str(settings), *other])
    (row,) = json.loads(capsys.readouterr().out)["seeds"]
    assert row["seed"] == 10
    assert row["fingerprint"] != again["seeds"][0]["fingerprint"]


def test_a_finished_run_is_not_begun_again_by_accident(finished, capsys):
    command = ["train", "mnf-dqn", "--seed", "9", "--seeds", "1", "--out", str(finished)]
    with pytest.raises(SystemExit) as stop:
        main(command)
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert "which has this run already" in error
    assert "--overwrite" in error
    main(["resume", str(finished), "--json"])
    out, err = capsys.readouterr()
    assert "is finished already" in " ".join(err.split())
    assert [row["seed"] for row in json.loads(out)["seeds"]] == [9, 10]


def test_events_are_what_tensorboard_reads(finished):
    (path,) = (finished / "mnf-dqn" / "nchain" / "seed-9" / EVENTS).iterdir()
    content, found = path.read_bytes(), []
    while content:
        length, crc = struct.unpack("<QI", content[:12])
        data, checksum = content[12 : 12 + length], content[12 + length : 16 + length]
        assert events._checksum(content[:8]) == struct.pack("<I", crc)
        assert events._checksum(data) == checksum
        found.append(data)
        content = content[16 + length :]
    assert b"brain.Event:2" in found[0]
    assert len(found) == 1 + 2 + 150
    assert sum(b"rollout/ep_rew_mean" in data for data in found) == 2
    assert sum(b"eval/mean_reward" in data for data in found) == 150


def test_the_checksum_is_castagnolis():
    assert events.crc32c(b"123456789") == 0xE3069283  # RFC 3720
    assert events.crc32c(bytes(32)) == 0x8A9136AA
    assert events.crc32c(bytes([255]) * 32) == 0x62A8AB43


# --- status -----------------------------------------------------------------------------------


@pytest.fixture
def directory(tmp_path):
    directory = RunDirectory(tmp_path / "runs" / "dqn" / "nchain" / "seed-3")
    directory.lock()
    directory.create(3, {"name": "dqn", "env": {"kind": "nchain"}, "episodes": 10}, "randq train")
    yield directory
    directory.close()


def test_the_status_is_that_of_the_lock_and_the_files(directory):
    assert directory.summary().status == "running"
    directory.append(METRICS, '{"episode": 4, "rollout/ep_rew_mean": 2.5}\n{"episode": 5, "rol')
    summary = directory.summary()
    assert (summary.done, summary.budget, summary.unit) == (4, 10, "episodes")
    assert summary.last_return == 2.5
    assert (summary.agent, summary.env, summary.seed) == ("dqn", "nchain", 3)
    assert 0 <= summary.age < 100
    other = RunDirectory(directory.path)
    with pytest.raises(BusyError, match=f"process {os.getpid()} is at work"):
        other.lock()
    directory.close()
    assert directory.summary().status == "interrupted"
    directory.write_json(FAILURE, {"why": "no reason"})
    assert directory.summary()[4:6] == ("failed", "no reason")
    directory.write_json(RESULT, {"fingerprint": "abc"})
    assert directory.summary().status == "finished"
    assert directory.summary().fingerprint == "abc"


def test_logs_are_cut_to_what_they_were(directory):
    directory.append(METRICS, "one\n")
    sizes = directory.sync()
    assert sizes == {METRICS: 4, EVALUATIONS: 0, EPISODES: 0}
    directory.append(METRICS, "two\nthr")
    directory.cut(sizes)
    directory.append(METRICS, "zwei\n")
    assert (directory.path / METRICS).read_text() == "one\nzwei\n"
    with pytest.raises(StorageError, match="has 9 bytes, where the checkpoint saw 100"):
        directory.cut({**sizes, METRICS: 100})


@pytest.mark.parametrize("name", [METRICS, SETTINGS, "checkpoints/000000000001.randq", "replay"])
def test_a_run_with_a_link_in_it_is_refused(directory, tmp_path, name):
    directory.close()
    target = tmp_path / "precious"
    target.write_text("precious")
    (directory.path / name).unlink(missing_ok=True)
    (directory.path / name).symlink_to(target)
    with pytest.raises(StorageError, match="is a link"):
        directory.lock()
    assert target.read_text() == "precious"


def test_what_a_killed_process_left_behind_is_swept_away(directory):
    directory.close()
    rest = directory.path / "checkpoints" / ".tmp-0123"
    rest.write_bytes(b"half")
    directory.lock()
    assert not rest.exists()


# --- hostile files ----------------------------------------------------------------------------


def mutated(content, dice):
    """The content with something wrong with it."""
    content = bytearray(content)
    kind = dice.randrange(5)
    if kind == 0:
        del content[dice.randrange(len(content) + 1) :]
    elif kind == 1:
        for _ in range(dice.randrange(1, 20)):
            content[dice.randrange(len(content))] = dice.randrange(256)
    elif kind == 2:
        content = bytearray(b"[" * 100_000) + content
    elif kind == 3:
        at = dice.randrange(len(content))
        content[at:at] = b'"x": 1e999, "\\ud800": [' + b"9" * dice.choice([5, 5000])
    else:
        for digit in b"123456789":
            content = content.replace(bytes([digit]), bytes([digit]) * dice.choice([1, 40]))
    return bytes(content)


def fuzz(finished, tmp_path, count):
    source = finished / "mnf-dqn" / "nchain"
    dice = random.Random(0)
    for i in range(count):
        name = dice.choice([SETTINGS, RUN, RESULT, METRICS])
        folder = tmp_path / str(i) / "seed-9"
        folder.mkdir(parents=True)
        for file in (SETTINGS, RUN, RESULT, METRICS):
            content = (source / "seed-9" / file).read_bytes()
            (folder / file).write_bytes(mutated(content, dice) if file == name else content)
        start = time.process_time()
        for run in find_runs(tmp_path / str(i)):
            json.dumps(run.summary())
        with suppress(StorageError):
            groups(tmp_path / str(i))
        assert time.process_time() - start < 1


def test_damaged_runs_are_listed_or_refused_at_once(finished, tmp_path):
    fuzz(finished, tmp_path, 100)


@pytest.mark.slow
def test_many_damaged_runs_are_listed_or_refused_at_once(finished, tmp_path):
    fuzz(finished, tmp_path, 1000)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"agent": {"replay_capacity": 10**15}}, "replay_capacity: got '1000000000000000 trans"),
        ({"seeds": 10**9}, "seeds"),
        ({"name": "../../etc"}, "name: got '../../etc'"),
    ],
)
def test_a_run_that_asks_for_the_world_is_refused(finished, tmp_path, capsys, change, sentence):
    source = finished / "mnf-dqn" / "nchain" / "seed-9"
    folder = tmp_path / "seed-9"
    folder.mkdir()
    data = json.loads((source / SETTINGS).read_text()) | {"seeds": 1}
    agent = data["agent"] | change.get("agent", {})
    (folder / SETTINGS).write_text(json.dumps({**data, **change, "agent": agent}))
    (folder / RUN).write_bytes((source / RUN).read_bytes())
    with pytest.raises(SystemExit):
        main(["resume", str(folder)])
    error = capsys.readouterr().err
    assert sentence in error
    assert "Traceback" not in error

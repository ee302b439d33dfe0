"""Checkpoints and segments on disk."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from randq.runs.checkpoints import Checkpoints, Segments
from randq.storage import StorageError

ROW = [np.zeros(3, np.float32), np.zeros((), np.uint8)]


def rows(start, end):
    """Rows that know their number."""
    numbers = np.arange(start, end)
    return [np.stack([numbers] * 3, axis=1).astype(np.float32), (numbers % 256).astype(np.uint8)]


def test_the_last_two_checkpoints_are_kept(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "notes.txt").write_text("not a checkpoint")
    checkpoints = Checkpoints(tmp_path, may_be_nan=lambda name: "loss" in name)
    for step in (3, 20, 100):
        tree = {"x": np.full(2, step), "loss": np.array(np.nan)}
        checkpoints.save(step, tree, {"step": step})
    checkpoints.prune()
    assert checkpoints.steps == [100, 20]
    assert checkpoints.header(20) == {"step": 20}
    loaded = checkpoints.load(100, {"x": np.zeros(2, int), "loss": np.array(0.0)})
    assert loaded["x"].tolist() == [100, 100]
    assert np.isnan(loaded["loss"])
    checkpoints.drop(after=20)
    assert checkpoints.steps == [20]
    with pytest.raises(ValueError, match="not finite"):
        checkpoints.save(200, {"x": np.array(np.nan)}, {})


@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=12),
    capacity=st.integers(1, 40),
    data=st.data(),
)
def test_segments_hold_the_window_of_every_checkpoint(tmp_path_factory, lengths, capacity, data):
    """Written as a run writes them, with some going back to the checkpoint before."""
    folder = tmp_path_factory.mktemp("run")
    segments, kept, checkpoints = Segments(folder), 0, [0]
    for length in lengths:
        if data.draw(st.booleans()) and len(checkpoints) > 1:
            checkpoints.pop()
            kept = checkpoints[-1]
            segments.drop(after=kept)
        end = kept + length
        first = max(kept, end - capacity)
        segments.add(first, rows(first, end))
        kept = end
        checkpoints = [*checkpoints[-1:], end]
        segments.prune(before=checkpoints[0] - capacity)
        for written in checkpoints:
            start = max(0, written - capacity)
            found = segments.read(start, written, ROW)
            numbers = [n for _, stretch in found for n in stretch[0][:, 0].astype(int).tolist()]
            assert numbers == list(range(start, written))
            assert all(x[1].dtype == np.uint8 for _, x in found)
            assert [at for at, _ in found] == [int(x[0][0, 0]) for _, x in found]
    files = list((folder / "replay").iterdir()) if (folder / "replay").exists() else []
    assert len(files) <= len(lengths)


def test_a_gap_or_damage_is_noticed(tmp_path):
    segments = Segments(tmp_path)
    for start in (0, 10, 20):
        segments.add(start, rows(start, start + 10))
    with pytest.raises(StorageError, match="lacks the transitions from 30 to 31"):
        list(segments.read(0, 31, ROW))
    middle = tmp_path / "replay" / "000000000010-000000000020.randq"
    content = bytearray(middle.read_bytes())
    content[-1] ^= 1
    middle.write_bytes(content)
    with pytest.raises(StorageError, match="damaged"):
        list(segments.read(0, 30, ROW))
    assert len(list(segments.read(20, 30, ROW))) == 1
    middle.unlink()
    with pytest.raises(StorageError, match="lacks the transitions from 10 to 30"):
        list(segments.read(0, 30, ROW))
    middle.write_bytes((tmp_path / "replay" / "000000000000-000000000010.randq").read_bytes())
    with pytest.raises(StorageError, match="holds other transitions"):
        list(segments.read(0, 30, ROW))

"""The folder of shards: size limit, thinning with known probabilities, and killed processes."""

import errno
import os
import signal
import subprocess
import sys

import msgspec
import numpy as np
import pytest

from gatewise.errors import InputError
from gatewise_export.archive.folder import (
    ArchiveFolder,
    find_release,
    read_rows,
    shards_by_release,
    shards_in,
)
from gatewise_export.archive.shard import read_facts, read_shard
from tests.export.archive.archived_rows import FACTS, make_archived_rows

pytest.importorskip("pyarrow")

DAY_SECONDS = 86_400.0
#: Any time in seconds since 1970.
NOW = 1_700_000_000.0


def open_folder(path, *, max_bytes=1e9, max_days=30.0, seed=0):
    rng = np.random.default_rng(seed)
    return ArchiveFolder(path, max_bytes=max_bytes, max_days=max_days, rng=rng)


def test_shards_are_listed_oldest_first(tmp_path):
    archive = open_folder(tmp_path / "new" / "kept")
    written_shards = [archive.add(make_archived_rows(5, seed=i), FACTS, NOW + i) for i in range(3)]
    assert shards_in(archive.path) == written_shards
    assert shards_by_release(archive.path) == {("tiny", "1"): written_shards}
    assert len(read_rows(written_shards)) == 15


def test_old_shards_are_deleted(tmp_path):
    archive = open_folder(tmp_path, max_days=2.0)
    archive.add(make_archived_rows(5), FACTS, NOW)
    newest_shard = archive.add(make_archived_rows(5), FACTS, NOW + 2 * DAY_SECONDS + 1)
    assert shards_in(archive.path) == [newest_shard]


def test_an_archive_on_a_full_disk_drops_old_shards_and_recovers(tmp_path, monkeypatch, caplog):
    archive = open_folder(tmp_path, max_days=2.0)
    old_shard = archive.add(make_archived_rows(5), FACTS, NOW)

    def raise_disk_full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full_disk:
        full_disk.setattr("gatewise_export.archive.folder.write_shard", raise_disk_full)
        with pytest.raises(OSError, match="No space left"):
            archive.add(make_archived_rows(5), FACTS, NOW + 3 * DAY_SECONDS)
    assert not old_shard.exists()
    # a shard that is stored counts as stored, even if no room is left to thin others
    monkeypatch.setattr(archive, "_limit_size", raise_disk_full)
    shard = archive.add(make_archived_rows(5), FACTS, NOW)
    assert shards_in(tmp_path) == [shard]
    assert "cannot thin the instances" in caplog.text


def test_a_version_of_several_models_must_name_the_model(tmp_path):
    archive = open_folder(tmp_path)
    other_facts = msgspec.structs.replace(FACTS, model="other")
    for shard_number, facts in enumerate([FACTS, other_facts, FACTS]):
        archive.add(make_archived_rows(5, seed=shard_number), facts, NOW + shard_number)
    shards_of = shards_by_release(tmp_path)
    assert {release: len(shards) for release, shards in shards_of.items()} == {
        ("tiny", "1"): 2,
        ("other", "1"): 1,
    }
    assert find_release(tmp_path, shards_of, None) == ("tiny", "1")
    assert find_release(tmp_path, shards_of, "other/1") == ("other", "1")
    with pytest.raises(InputError, match="has tiny/1, other/1, and 1 names several of them"):
        find_release(tmp_path, shards_of, "1")
    with pytest.raises(InputError, match="has tiny/1, other/1, not 2"):
        find_release(tmp_path, shards_of, "2")


def test_two_bundles_of_the_same_name_and_version_are_not_mixed(tmp_path):
    archive = open_folder(tmp_path)
    archive.add(make_archived_rows(5), FACTS, NOW)
    archive.add(make_archived_rows(5), msgspec.structs.replace(FACTS, classes=("b", "c")), NOW + 1)
    with pytest.raises(InputError, match="two bundles named tiny/1"):
        shards_by_release(tmp_path)


def test_thinning_keeps_the_size_limit_and_known_probabilities(tmp_path):
    """The inverses of the probabilities sum to the number of offered instances."""
    unlimited_archive = open_folder(tmp_path / "unlimited")
    unlimited_archive.add(make_archived_rows(800), FACTS, NOW)
    # Room for three of the 16 shards.
    archive = open_folder(tmp_path / "bounded", max_bytes=3 * unlimited_archive.size_bytes())
    n_offered = 0
    for shard_number in range(16):
        rows = make_archived_rows(800, seed=shard_number, audit_share=0.0)
        is_stored = (
            np.random.default_rng(shard_number).random(800) < archive.read_admission_probability()
        )
        rows.stored_probability[:] = archive.read_admission_probability()
        facts = _facts_with_probability(archive.read_admission_probability())
        archive.add(rows.take(is_stored), facts, NOW + shard_number)
        n_offered += 800
        assert archive.size_bytes() <= archive.max_bytes
    assert archive.read_admission_probability() <= 0.5
    remaining_rows = read_rows(shards_in(archive.path))
    # Three standard errors: the sum of weights w has a variance of sum(w (w - 1)).
    max_error = 3 * np.sqrt((remaining_rows.weights * (remaining_rows.weights - 1)).sum())
    assert abs(remaining_rows.weights.sum() - n_offered) < max_error < 0.15 * n_offered
    for shard in shards_in(archive.path):
        assert (read_shard(shard).stored_probability == read_facts(shard).stored_probability).all()


@pytest.mark.parametrize("content", [b"", "cut"])
def test_other_shards_are_thinned_beside_a_damaged_one(tmp_path, caplog, content):
    archive = open_folder(tmp_path)
    damaged_shard = archive.add(make_archived_rows(800), FACTS, NOW)
    complete_content = damaged_shard.read_bytes()
    if content == "cut":  # the facts are at the end
        content = bytes(1000) + complete_content[1000:]
    damaged_shard.write_bytes(content)
    archive.max_bytes = 3 * len(complete_content)
    for number in range(1, 5):
        archive.add(make_archived_rows(800, seed=number), FACTS, NOW + number)
        assert archive.size_bytes() <= archive.max_bytes
    assert damaged_shard.read_bytes() == content
    assert f"cannot be thinned: {damaged_shard} is not" in caplog.text


def test_storing_probability_doubles_while_the_folder_has_room(tmp_path):
    archive = open_folder(tmp_path, max_bytes=1e9)
    (tmp_path / "chance.json").write_text('{"chance": 0.25}')
    for expected_probability in (0.5, 1.0, 1.0):
        archive.add(make_archived_rows(5), FACTS, NOW)
        assert archive.read_admission_probability() == expected_probability


def test_error_names_a_folder_that_cannot_be_created(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"--keep .*file/kept"):
        open_folder(tmp_path / "file" / "kept")


def test_error_of_an_empty_folder_says_how_to_fill_it(tmp_path):
    with pytest.raises(InputError, match="--keep"):
        shards_by_release(tmp_path)


#: Adds shards to a bounded folder until it is killed.
WRITER_PROGRAM = """
import sys
from tests.export.archive.test_folder import FACTS, NOW, make_archived_rows, open_folder
from pathlib import Path
archive = open_folder(Path(sys.argv[1]), max_bytes=60_000)
print("ready", flush=True)
for i in range(10_000):
    archive.add(make_archived_rows(300, seed=i), FACTS, NOW + i)
    print(i, flush=True)
"""


@pytest.mark.slow  # starts processes
def test_a_kill_leaves_every_closed_shard_complete(tmp_path):
    for n_lines in (3, 11):  # a kill after few and after more shards
        child = subprocess.Popen(
            [sys.executable, "-c", WRITER_PROGRAM, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(n_lines):
            child.stdout.readline()
        os.kill(child.pid, signal.SIGKILL)
        child.communicate()
        for shard in shards_in(tmp_path):
            rows = read_shard(shard)
            assert len(rows) > 0
            assert (rows.stored_probability == read_facts(shard).stored_probability).all()
    open_folder(tmp_path)
    assert not list(tmp_path.glob("*.open"))  # the next start deletes unfinished files


def _facts_with_probability(probability):
    return msgspec.structs.replace(FACTS, stored_probability=probability)

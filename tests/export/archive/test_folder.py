"""The folder of shards: bounds, thinning with known chances, and processes that are killed."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from gatewise.errors import InputError
from gatewise_export.archive.folder import ArchiveFolder, read_archive, shards_in
from gatewise_export.archive.shard import read_facts, read_shard
from tests.export.archive.archived_rows import FACTS, archived

pytest.importorskip("pyarrow")

DAY = 86_400.0
NOW = 1_700_000_000.0


def folder(path, *, max_bytes=1e9, max_days=30.0, seed=0):
    rng = np.random.default_rng(seed)
    return ArchiveFolder(path, max_bytes=max_bytes, max_days=max_days, rng=rng)


def test_shards_come_back_in_order_of_time(tmp_path):
    archive = folder(tmp_path / "new" / "kept")
    written = [archive.add(archived(5, seed=i), FACTS, NOW + i) for i in range(3)]
    assert archive.shards == written
    facts, rows = read_archive(archive.path)["tiny", "1"]
    assert (facts, len(rows)) == (FACTS, 15)


def test_old_shards_go(tmp_path):
    archive = folder(tmp_path, max_days=2.0)
    archive.add(archived(5), FACTS, NOW)
    newest = archive.add(archived(5), FACTS, NOW + 2 * DAY + 1)
    assert archive.shards == [newest]


def test_the_bound_holds_and_the_chances_say_how_many_there_were(tmp_path):
    """The inverses of the chances sum to the number of instances that came."""
    one = folder(tmp_path / "one")
    one.add(archived(800), FACTS, NOW)
    archive = folder(tmp_path / "bounded", max_bytes=3 * one.n_bytes)
    n_came = 0
    for i in range(16):
        rows = archived(800, seed=i, audits=0.0)
        stays = np.random.default_rng(i).random(800) < archive.chance
        rows.stored_chance[:] = archive.chance
        facts = _with_chance(archive.chance)
        archive.add(rows.take(stays), facts, NOW + i)
        n_came += 800
        assert archive.n_bytes <= archive.max_bytes
    assert archive.chance <= 0.5
    _, left = read_archive(archive.path)["tiny", "1"]
    # the sum of weights w has a variance of sum(w (w - 1)): 3 standard errors
    error = 3 * np.sqrt((left.weights * (left.weights - 1)).sum())
    assert abs(left.weights.sum() - n_came) < error < 0.15 * n_came
    for shard in archive.shards:
        assert (read_shard(shard).stored_chance == read_facts(shard).stored_chance).all()


def test_once_there_is_room_more_is_stored_again(tmp_path):
    archive = folder(tmp_path, max_bytes=1e9)
    (tmp_path / "chance.json").write_text('{"chance": 0.25}')
    for expected in (0.5, 1.0, 1.0):
        archive.add(archived(5), FACTS, NOW)
        assert archive.chance == expected


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"--keep .*file/kept"):
        folder(tmp_path / "file" / "kept")


def test_an_empty_folder_says_how_to_fill_it(tmp_path):
    with pytest.raises(InputError, match="--keep"):
        read_archive(tmp_path)


WRITER = """
import sys
from tests.export.archive.test_folder import FACTS, NOW, archived, folder
from pathlib import Path
archive = folder(Path(sys.argv[1]), max_bytes=60_000)
print("ready", flush=True)
for i in range(10_000):
    archive.add(archived(300, seed=i), FACTS, NOW + i)
    print(i, flush=True)
"""


@pytest.mark.slow  # processes of their own
def test_a_kill_leaves_every_closed_shard_whole(tmp_path):
    for n_lines in (3, 11):
        child = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(n_lines):
            child.stdout.readline()
        os.kill(child.pid, signal.SIGKILL)
        child.communicate()
        for shard in shards_in(tmp_path):
            rows = read_shard(shard)
            assert len(rows) > 0
            assert (rows.stored_chance == read_facts(shard).stored_chance).all()
    folder(tmp_path)
    assert not list(tmp_path.glob("*.open"))  # what was being written is cleared at the next start


def _with_chance(chance):
    import msgspec

    return msgspec.structs.replace(FACTS, stored_chance=chance)

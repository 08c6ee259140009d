"""The operator's repository: signed static files, and the command line for it."""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from tuf.api.metadata import Metadata

from gatewise.cli import main
from gatewise.errors import InputError
from gatewise_export.bundle.errors import ManifestError
from gatewise_export.bundle.manifest import FileSpec
from gatewise_export.repository.release import Release
from gatewise_export.repository.repository import Repository
from tests.support.small_bundle import write_bundle

RELEASE = Release(
    "small", "8", {"stage_0.onnx": FileSpec("0" * 64, 12)}, ("a", "b"), "0.1.0", ("aarch64",)
)


@pytest.fixture
def make(tmp_path):
    return lambda version, **changes: (
        write_bundle(
            tmp_path / f"v{version}-{len(list(tmp_path.iterdir()))}", version=version, **changes
        ).path
    )


@pytest.fixture
def repository(tmp_path):
    return Repository.init(tmp_path / "repo")


def test_a_release_is_read_as_it_was_written():
    assert Release.from_json(RELEASE.to_json()) == RELEASE
    assert RELEASE.digest == hashlib.sha256(RELEASE.to_json()).hexdigest()


@pytest.mark.parametrize(
    "change",
    [
        {"release": 2},
        {"model": "../x"},
        {"version": ".."},
        {"files": {"../x": {"sha256": "0" * 64, "size": 1}}},
        {"files": {"x": {"sha256": "0" * 63, "size": 1}}},
        {"files": {"x": {"sha256": "0" * 64, "size": -1}}},
        {"features": "ab"},
        {"more": 1},
    ],
)
def test_a_release_is_read_strictly(change):
    with pytest.raises(ManifestError):
        Release.from_json(json.dumps(json.loads(RELEASE.to_json()) | change).encode())


@pytest.mark.parametrize(
    ("device", "why"),
    [
        ({}, None),
        ({"features": ("c", "b", "a")}, None),
        ({"runtime": "0.10"}, None),
        ({"model": "other"}, "model"),
        ({"features": ("a",)}, "feature 'b'"),
        ({"runtime": "0.0.9"}, "needs gatewise 0.1.0"),
        ({"hardware": "x86_64"}, "aarch64"),
    ],
)
def test_which_devices_a_release_fits(device, why):
    fits = {"model": "small", "features": ("a", "b"), "runtime": "0.1.0", "hardware": "aarch64"}
    found = RELEASE.misfit(**(fits | device))
    assert found is None if why is None else why in found


def test_files_are_named_by_their_hashes_and_the_timestamp_names_the_rest(repository, make):
    repository.add(make("8"))
    for path in (repository.folder / "targets").rglob("*.*"):
        if path.is_file():
            digest, _, name = path.name.partition(".")
            assert hashlib.sha256(path.read_bytes()).hexdigest() == digest
            assert name != "cloud.onnx"
    metadata = repository.folder / "metadata"
    timestamp = Metadata.from_file(str(metadata / "timestamp.json")).signed
    assert (metadata / f"{timestamp.snapshot_meta.version}.snapshot.json").is_file()


def test_a_version_never_changes(repository, make):
    release = repository.add(make("8"))
    assert repository.add(make("8")) == release
    with pytest.raises(InputError, match="another version"):
        repository.add(make("8", created="2027-01-01T00:00:00Z"))
    with pytest.raises(InputError, match="names are of letters"):
        repository.add(make("8", name="a b"))


def test_publishing_and_rolling_back(repository, make):
    for version in ("8", "9"):
        repository.add(make(version))
    with pytest.raises(InputError, match="no release is offered"):
        repository.rollback()
    assert [repository.publish(f"small/{v}").serial for v in ("8", "9")] == [1, 2]
    assert repository.publish("9", 0.25) == replace(repository.offers()[0], rollout=2500)
    assert repository.publish("8").serial == 3  # going back is to publish the older one
    assert str(repository.rollback()) == "small/8"
    assert [(o.version, o.rollout) for o in repository.offers()] == [("8", 0), ("9", 2500)]
    for share in (0, 1.5, -1):
        with pytest.raises(InputError, match="rollout"):
            repository.publish("8", share)
    with pytest.raises(InputError, match="10"):
        repository.publish("10")


def test_what_somebody_wrote_into_the_folder_is_not_signed(repository, make):
    repository.add(make("8"))
    path = max((repository.folder / "metadata").glob("*.targets.json"))
    content = path.read_bytes().replace(b'"rollout":0', b'"rollout":9')
    assert content != path.read_bytes()
    path.write_bytes(content)
    for act in (lambda: Repository(repository.folder), lambda: repository.publish("8")):
        with pytest.raises(InputError, match="cannot be used"):
            act()


@pytest.mark.parametrize("role", ["root", "targets", "snapshot", "timestamp"])
def test_keys_rotate(repository, make, role):
    before = repository.roles()
    fresh = repository.rotate_key(role)
    after = {r["role"]: r for r in Repository(repository.folder).roles()}
    for old in before:
        same = after[old["role"]]["keys"] == old["keys"]
        assert same == (old["role"] != role)
    assert after[role]["keys"] == [fresh]
    repository.add(make("8"))
    with pytest.raises(InputError, match="no key of"):
        repository.rotate_key(role, revoke="0" * 64)
    with pytest.raises(InputError, match="choose one of"):
        repository.rotate_key("mirrors")


def test_keys_that_are_not_here(repository, make):
    (repository.keys / "root-1.key").unlink()
    repository.add(make("8"))
    with pytest.raises(InputError, match="must sign"):
        repository.rotate_key("timestamp")
    assert Repository(repository.folder).offers()
    (repository.keys / "targets-1.key").unlink()
    repository.refresh()
    with pytest.raises(InputError, match="must sign"):
        repository.publish("8")


def test_a_writer_that_is_killed_leaves_the_repository_usable(tmp_path, repository, make):
    program = (
        "import os, signal, sys\n"
        "from gatewise_export.repository import repository as module\n"
        "left, replace = int(sys.argv[2]), os.replace\n"
        "def killing(*args):\n"
        "    global left\n"
        "    left -= 1\n"
        "    if left < 0: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    replace(*args)\n"
        "repository = module.Repository(sys.argv[1])\n"
        "os.replace = killing\n"
        "repository.publish('8')\n"
        "repository.rotate_key('snapshot')\n"
    )
    repository.add(make("8"))
    for left in range(12):
        args = [sys.executable, "-c", program, str(repository.folder), str(left)]
        done = subprocess.run(args, capture_output=True, text=True, timeout=60)
        assert len(Repository(repository.folder).offers()) == 1
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
    assert left >= 5


def test_the_command_line(tmp_path, make, capsys):
    repo = str(tmp_path / "fleet")
    assert main(["repo", "init", repo, "--root-keys", "3", "--threshold", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["root"].endswith("1.root.json")
    assert main(["repo", "add", repo, str(make("8")), "--hardware", "aarch64"]) == 0
    assert main(["repo", "publish", repo, "small/8", "--rollout", "10%"]) == 0
    assert "10%" in capsys.readouterr().out
    assert main(["repo", "publish", repo]) == 0
    assert main(["repo", "rotate-key", repo, "timestamp"]) == 0
    capsys.readouterr()
    assert main(["repo", "status", repo, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["releases"][0]["rollout"] == 0.1
    assert found["roles"][0]["role"] == "root"
    assert main(["repo", "status", repo]) == 0
    shown = capsys.readouterr().out
    assert "small/8" in shown
    assert "2 of 3" in shown
    assert main(["repo", "rollback", repo]) == 0
    for bad in (
        ["status", str(tmp_path / "none")],
        ["init", repo],
        ["publish", repo, "small/8", "--rollout", "often"],
        ["publish", repo, "small/8", "--ca-file", "x"],
        ["init", repo + "2", "--threshold", "2"],
    ):
        assert main(["repo", *bad]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1

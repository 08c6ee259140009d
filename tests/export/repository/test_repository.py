"""The repository of releases, and its command line."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from tuf.api.metadata import Metadata

from gatewise.cli import main
from gatewise.documents import DocumentError
from gatewise.errors import InputError
from gatewise_export.bundle.manifest_records import FileSpec
from gatewise_export.repository.release import Release
from gatewise_export.repository.repository import (
    LIFETIME_DAYS,
    RENEWAL_DAYS,
    Repository,
    StaleVersionError,
)
from tests.support.small_bundle import write_bundle

RELEASE = Release(
    release=1, model="small", version="8", files={"stage_0.onnx": FileSpec("0" * 64, 12)},
    features=("a", "b"), runtime="0.1.0", hardware=("aarch64",),
)  # fmt: skip


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    """Paths of two versions of the small bundle."""
    folder = tmp_path_factory.mktemp("bundles")
    return {version: write_bundle(folder / version, version=version).path for version in ("8", "9")}


@pytest.fixture(scope="module")
def unchanged_repository(tmp_path_factory, bundles):
    """A repository with release 8, which is not offered; tests must not change it."""
    repository = Repository.init(tmp_path_factory.mktemp("made") / "repo")
    repository.add(bundles["8"])
    return repository


@pytest.fixture
def repository(unchanged_repository, tmp_path):
    """A copy of the repository and its keys, which a test may change."""
    shutil.copytree(unchanged_repository.folder.parent, tmp_path / "copy")
    return Repository(tmp_path / "copy" / "repo")


def test_init_can_be_repeated_after_its_keys_could_not_be_written(tmp_path):
    (tmp_path / "keys").write_text("")
    with pytest.raises((InputError, OSError)):
        Repository.init(tmp_path / "repo", tmp_path / "keys")
    (tmp_path / "keys").unlink()
    assert Repository.init(tmp_path / "repo", tmp_path / "keys").version == 1


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
    assert Release.from_json(RELEASE.to_json()) == RELEASE
    with pytest.raises(DocumentError):
        Release.from_json(json.dumps(json.loads(RELEASE.to_json()) | change).encode())


@pytest.mark.parametrize(
    ("device_changes", "expected_reason"),
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
def test_misfit_names_why_a_device_cannot_run_a_release(device_changes, expected_reason):
    fitting_device = {
        "model": "small",
        "features": ("a", "b"),
        "runtime": "0.1.0",
        "hardware": "aarch64",
    }
    reason = RELEASE.misfit_reason(**(fitting_device | device_changes))
    assert reason is None if expected_reason is None else expected_reason in reason


def test_files_are_named_by_their_hashes_and_a_version_never_changes(repository, bundles, tmp_path):
    for path in (repository.folder / "targets").rglob("*.*"):
        if path.is_file():
            digest, _, name = path.name.partition(".")
            assert hashlib.sha256(path.read_bytes()).hexdigest() == digest
            assert name != "cloud.onnx"
    metadata = repository.folder / "metadata"
    timestamp = Metadata.from_file(str(metadata / "timestamp.json")).signed
    assert (metadata / f"{timestamp.snapshot_meta.version}.snapshot.json").is_file()
    assert str(repository.add(bundles["8"])) == "small/8"
    for changes, message in (
        ({"created": "2027-01-01T00:00:00Z"}, "another version"),
        ({"name": "a b"}, "use at most 64 letters"),
    ):
        other_bundle = write_bundle(tmp_path / message, version="8", **changes)
        with pytest.raises(InputError, match=message):
            repository.add(other_bundle.path)


def test_rollback_withdraws_the_release_that_another_process_published(repository, bundles):
    repository.add(bundles["9"])
    repository.publish("8")
    Repository(repository.folder).publish("9")
    assert str(repository.rollback()) == "small/9"


def test_publish_and_rollback_change_the_preferred_release(repository, bundles):
    repository.add(bundles["9"])
    with pytest.raises(InputError, match="no release is offered"):
        repository.rollback()
    assert [repository.publish(f"small/{version}").serial for version in ("8", "9")] == [1, 2]
    assert repository.publish("9", 0.25) == replace(
        repository.offers()[0], rollout=2500
    )  # of 10,000
    assert repository.publish("8").serial == 3  # an older release can be published again
    assert str(repository.rollback()) == "small/8"
    version = repository.version
    assert str(repository.rollback("small/8")) == "small/8"  # already withdrawn
    assert repository.version == version
    with pytest.raises(StaleVersionError, match=f"at version {version}, not {version - 1}"):
        repository.publish("9", expected_version=version - 1)
    with pytest.raises(StaleVersionError):
        repository.rollback("small/9", expected_version=version - 1)
    assert [(offer.version, offer.rollout) for offer in repository.offers()] == [
        ("8", 0),
        ("9", 2500),
    ]
    for share in (0, 1.5, -1):
        with pytest.raises(InputError, match="rollout"):
            repository.publish("8", share)
    with pytest.raises(InputError, match="10"):
        repository.publish("10")


def test_unsigned_files_in_the_folder_are_not_signed(repository):
    path = max((repository.folder / "metadata").glob("*.targets.json"))
    content = path.read_bytes().replace(b'"rollout":0', b'"rollout":9')
    assert content != path.read_bytes()
    path.write_bytes(content)
    for action in (lambda: Repository(repository.folder), lambda: repository.publish("8")):
        with pytest.raises(InputError, match="cannot be used"):
            action()


@pytest.mark.parametrize("role", ["root", "targets", "snapshot", "timestamp"])
def test_a_rotated_key_replaces_the_old_one(repository, role):
    roles_before = repository.roles()
    new_id = repository.rotate_key(role)
    role_after = {
        role_entry["role"]: role_entry for role_entry in Repository(repository.folder).roles()
    }
    for old_role in roles_before:
        assert (role_after[old_role["role"]]["keys"] == old_role["keys"]) == (
            old_role["role"] != role
        )
    assert role_after[role]["keys"] == [new_id]
    repository.publish("8")
    with pytest.raises(InputError, match="not a key of"):
        repository.rotate_key(role, revoke="0" * 64)
    with pytest.raises(InputError, match="choose one of"):
        repository.rotate_key("mirrors")


def test_changes_need_the_keys_of_their_roles(repository):
    (repository.keys / "root-1.key").unlink()
    repository.publish("8")
    with pytest.raises(InputError, match="must sign"):
        repository.rotate_key("timestamp")
    assert Repository(repository.folder).offers()
    (repository.keys / "targets-1.key").unlink()
    repository.refresh()
    with pytest.raises(InputError, match="must sign"):
        repository.publish("8")


def test_roles_that_expire_soon_are_signed_again_or_named(repository, monkeypatch, capsys):
    def read_expiries():
        return {role["role"]: role["expires"] for role in repository.roles()}

    with monkeypatch.context() as context:  # metadata that expires soon
        for role in ("root", "targets"):
            context.setitem(LIFETIME_DAYS, role, RENEWAL_DAYS - 10.0)
        repository.rotate_key("targets")
    expiries_before = read_expiries()
    (repository.keys / "root-1.key").unlink()
    assert main(["repo", "publish", str(repository.folder)]) == 0
    assert f"root expires on {expiries_before['root'][:10]}" in capsys.readouterr().err
    repository = Repository(repository.folder)
    assert read_expiries()["root"] == expiries_before["root"]
    assert read_expiries()["targets"] > expiries_before["targets"]
    assert repository.refresh().keys() == {"root"}


#: Changes a repository twice, and kills itself before it has replaced more than n files.
KILLED_WRITER = """
import os, signal, sys
from gatewise_export.repository.repository import Repository
n_left = int(sys.argv[2])
replace = os.replace
def replace_or_die(*arguments):
    global n_left
    n_left -= 1
    if n_left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    replace(*arguments)
repository = Repository(sys.argv[1])
os.replace = replace_or_die
repository.publish("8")
repository.rotate_key("snapshot")
"""


@pytest.mark.slow
def test_a_writer_that_is_killed_leaves_the_repository_usable(repository):
    for n_replaced in range(12):  # more files than the two changes write
        command = [sys.executable, "-c", KILLED_WRITER, str(repository.folder), str(n_replaced)]
        process = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert len(Repository(repository.folder).offers()) == 1
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, process.stderr
    assert n_replaced >= 5  # else the files were not counted


def test_commands_manage_a_repository_and_refuse_wrong_arguments(
    tmp_path, bundles, run_command, assert_refused
):
    repository_path = str(tmp_path / "fleet")

    def run_repo(*arguments: str) -> str:
        exit_status, stdout, stderr = run_command("repo", *arguments)
        assert exit_status == 0, stderr
        return stdout

    output = run_repo("init", repository_path, "--root-keys", "3", "--threshold", "2", "--json")
    assert json.loads(output)["root"].endswith("1.root.json")
    run_repo("add", repository_path, str(bundles["8"]), "--hardware", "aarch64")
    assert "10%" in run_repo("publish", repository_path, "small/8", "--rollout", "10%")
    run_repo("publish", repository_path)
    run_repo("rotate-key", repository_path, "timestamp")
    status = json.loads(run_repo("status", repository_path, "--json"))
    assert status["releases"][0]["rollout"] == 0.1
    assert status["roles"][0]["role"] == "root"
    status_text = run_repo("status", repository_path)
    assert "small/8" in status_text
    assert "2 of 3" in status_text
    run_repo("rollback", repository_path, "small/8")
    for wrong_arguments in (
        ["rollback", repository_path],
        ["status", str(tmp_path / "none")],
        ["init", repository_path],
        ["publish", repository_path, "small/8", "--rollout", "often"],
        ["publish", repository_path, "small/8", "--ca-file", "x"],
        ["init", repository_path + "2", "--threshold", "2"],
    ):
        assert_refused("repo", *wrong_arguments)

"""Keys and signatures of bundles: what is refused, and what changes sign again."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gatewise.errors import InputError
from gatewise_export.bundle import signing
from gatewise_export.bundle.bundle import Bundle, set_operating_point
from gatewise_export.bundle.errors import BundleError, DamagedFileError, SignatureError
from gatewise_export.bundle.repacking import repack
from gatewise_export.bundle.signing import MANIFEST_CONTEXT, PublicKey, Signer, keygen
from tests.support.bundle_files import read_contents
from tests.support.processes import run_python

WriteBundle = Callable[..., Path]
FEW_EXAMPLES = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """Path of a private key."""
    return keygen(tmp_path / "fleet")[0]


@pytest.fixture
def other_key(tmp_path: Path) -> Path:
    return keygen(tmp_path / "other_key")[0]


def find_public_key(key: Path) -> Path:
    """Return the path of the public key beside a private key."""
    return key.with_suffix(".pub")


@pytest.fixture
def signed_path(write_bundle: WriteBundle, tmp_path: Path, key: Path) -> Path:
    path = tmp_path / "signed"
    repack(write_bundle(), path, sign=key)
    return path


# -- keys ----------------------------------------------------------------------------------


def test_keys_are_made_once_and_kept_secret(tmp_path):
    key_file, public_key_file = keygen(tmp_path / "fleet")
    assert (key_file.name, public_key_file.name) == ("fleet.key", "fleet.pub")
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
    read_key = PublicKey(public_key_file)
    assert (
        read_key.raw
        == PublicKey(str(public_key_file)).raw
        == PublicKey(public_key_file.read_bytes()).raw
    )
    assert Signer(key_file).public.key_id == read_key.key_id == PublicKey(read_key.raw).key_id
    assert len(read_key.key_id) == 16  # hexadecimal digits
    first_key_bytes = key_file.read_bytes()
    with pytest.raises(InputError, match="not overwritten"):
        keygen(tmp_path / "fleet")
    key_file.unlink()
    with pytest.raises(InputError, match=r"fleet\.pub exists"):
        keygen(tmp_path / "fleet")
    assert not key_file.exists()
    assert keygen(tmp_path / "other")[0].read_bytes() != first_key_bytes


def test_a_key_whose_second_file_cannot_be_written_leaves_none(tmp_path, monkeypatch):
    open_file = os.open

    def open_private_key(path: Path, flags: int, mode: int) -> int:
        if path.suffix == ".pub":
            raise OSError(errno.ENOSPC, "No space left on device")
        return open_file(path, flags, mode)

    with monkeypatch.context() as full_disk:
        full_disk.setattr("os.open", open_private_key)
        with pytest.raises(InputError, match=r"fleet\.pub cannot be written: No space left"):
            keygen(tmp_path / "fleet")
    assert keygen(tmp_path / "fleet")[0].exists()


def test_files_other_than_a_key_are_refused(tmp_path):
    key, public_key_file = keygen(tmp_path / "fleet")
    text_file, curve_key_file, encrypted_key_file = (
        tmp_path / name for name in ("text", "curve", "secret")
    )
    text_file.write_text("hello")
    pem_format = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    curve_key = ec.generate_private_key(ec.SECP256R1())
    curve_key_file.write_bytes(curve_key.private_bytes(*pem_format, serialization.NoEncryption()))
    encryption = serialization.BestAvailableEncryption(b"secret")
    encrypted_key_file.write_bytes(
        ed25519.Ed25519PrivateKey.generate().private_bytes(*pem_format, encryption)
    )
    for load_key, path, message in (
        (Signer, public_key_file, "is a public key"),
        (PublicKey, key, "is a private key"),
        (Signer, tmp_path / "none.key", "cannot be read"),
        (PublicKey, tmp_path / "none.pub", "cannot be read"),
        (Signer, text_file, "not a PEM file"),
        (PublicKey, text_file, "not a PEM file"),
        (Signer, curve_key_file, "not an Ed25519 key"),
        (Signer, encrypted_key_file, "encrypted"),
    ):
        with pytest.raises(InputError, match=message):
            load_key(path)


# -- invalid signatures --------------------------------------------------------------------


def test_a_signed_bundle_opens_only_with_its_key(signed_path, key, other_key):
    bundle = Bundle.open(signed_path, public_key=find_public_key(key))
    assert bundle.signed_by == Signer(key).public.key_id
    assert bundle.claimed_key_ids() == (bundle.signed_by,)
    assert Bundle.open(signed_path).signed_by is None
    # Any program can verify the signature.
    signatures = signing.read_signatures((signed_path / "SIGNATURE").read_bytes())
    public_key = ed25519.Ed25519PublicKey.from_public_bytes(PublicKey(find_public_key(key)).raw)
    signed_content = MANIFEST_CONTEXT + (signed_path / "manifest.json").read_bytes()
    public_key.verify(signatures[0].value, signed_content)
    with pytest.raises(SignatureError, match="is signed by key") as error_info:
        Bundle.open(signed_path, public_key=find_public_key(other_key))
    for signer in (key, other_key):
        assert Signer(signer).public.key_id in str(error_info.value)
    unsigned_path = signed_path.parent / "bundle"  # the signed bundle is a copy of it
    assert Bundle.open(unsigned_path).claimed_key_ids() == ()
    with pytest.raises(SignatureError, match="is not signed"):
        Bundle.open(unsigned_path, public_key=find_public_key(key))


@FEW_EXAMPLES
@given(
    byte_index=st.integers(0, 10**6),
    bit_index=st.integers(0, 7),
    name=st.sampled_from(["manifest.json", "SIGNATURE"]),
)
def test_any_flipped_bit_is_refused(signed_path, key, byte_index, bit_index, name):
    path = signed_path / name
    valid_content = path.read_bytes()
    flipped_content = bytearray(valid_content)
    flipped_content[byte_index % len(flipped_content)] ^= 1 << bit_index
    path.write_bytes(flipped_content)
    with pytest.raises(SignatureError):
        Bundle.open(signed_path, public_key=find_public_key(key))
    path.write_bytes(valid_content)


@FEW_EXAMPLES
@given(content=st.binary(max_size=600))
def test_a_signature_file_of_any_bytes_is_refused(signed_path, key, content):
    (signed_path / "SIGNATURE").write_bytes(content)
    with pytest.raises(SignatureError, match="not a signature file of a known format"):
        Bundle.open(signed_path, public_key=find_public_key(key))


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text + "\n",
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.rstrip("\n"),
        lambda text: text.replace("ed25519", "ed448"),
        lambda text: text.replace("signature 1", "signature 2"),
        lambda text: text + 2 * text.split("\n", 1)[1],
        lambda text: text.replace("==", "="),
        lambda text: text.upper(),
        lambda text: " " + text,
    ],
)
def test_another_form_of_a_signature_is_refused(signed_path, key, change):
    text = (signed_path / "SIGNATURE").read_text()
    (signed_path / "SIGNATURE").write_bytes(change(text).encode())
    with pytest.raises(SignatureError, match="not a signature file of a known format"):
        Bundle.open(signed_path, public_key=find_public_key(key))


def write_invalid_json(path: Path, key: Path) -> None:
    (path / "manifest.json").write_bytes(b"{ not JSON")


def sign_for_another_context(path: Path, key: Path) -> None:
    content = (path / "manifest.json").read_bytes()
    foreign_signature = Signer(key).sign(b"another context\0", content)
    (path / "SIGNATURE").write_bytes(signing.write_signatures(foreign_signature))


def damage_a_stage(path: Path, key: Path) -> None:
    (path / "stage_0.onnx").write_bytes(b"First graph")


def link_the_signature(path: Path, key: Path) -> None:
    os.rename(path / "SIGNATURE", path.parent / "elsewhere")
    (path / "SIGNATURE").symlink_to(path.parent / "elsewhere")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (write_invalid_json, SignatureError, "is invalid"),  # it is checked before parsing
        (sign_for_another_context, SignatureError, "is invalid"),
        (damage_a_stage, DamagedFileError, "SHA-256 differs"),
        (link_the_signature, DamagedFileError, "plain file"),
    ],
)
def test_content_that_the_key_did_not_sign_is_refused(signed_path, key, change, error, message):
    change(signed_path, key)
    with pytest.raises(error, match=message):
        Bundle.open(signed_path, public_key=find_public_key(key))


# -- other operating points ----------------------------------------------------------------


@pytest.mark.parametrize("bundle_form", ["directory", "zip"])
def test_switching_the_operating_point_signs_again(signed_path, key, bundle_form):
    path = signed_path
    if bundle_form == "zip":
        path = signed_path.with_suffix(".gwb")
        repack(signed_path, path)
    files_before = read_contents(path)
    with pytest.raises(BundleError, match=r"is signed by key .* \(--sign NAME\.key\)"):
        set_operating_point(path, 1)
    assert read_contents(path) == files_before
    switched_bundle = set_operating_point(path, 1, sign=key)
    assert switched_bundle.manifest.active == 1
    assert switched_bundle.signed_by == Signer(key).public.key_id
    files_after = read_contents(path)
    assert files_after.keys() == files_before.keys()
    assert {name for name in files_after if files_after[name] != files_before[name]} == {
        "manifest.json",
        "SIGNATURE",
    }
    assert len(files_after["SIGNATURE"].splitlines()) == 2  # a header and one signature
    assert Bundle.open(path, public_key=find_public_key(key)).manifest.active == 1


def test_an_altered_bundle_is_not_signed(signed_path, key):
    document = json.loads((signed_path / "manifest.json").read_text())
    document["features"][0]["own"] = 0.0
    (signed_path / "manifest.json").write_text(json.dumps(document))
    files_before = read_contents(signed_path)
    with pytest.raises(SignatureError):
        set_operating_point(signed_path, 1, sign=key)
    with pytest.raises(SignatureError):
        repack(signed_path, signed_path.parent / "copy", sign=key)
    assert read_contents(signed_path) == files_before
    assert not (signed_path.parent / "copy").exists()


#: Makes each change in a process of its own, forked from one that has the imports. The process
#: ends with status 9 before it makes more than n renames.
EXIT_AT_RENAME = """
import os, sys
from gatewise_export.bundle.bundle import set_operating_point
def change_point(n_left, path, point_index):
    replace = os.replace
    def replace_or_exit(source, target):
        nonlocal n_left
        n_left -= 1
        if n_left < 0:
            os._exit(9)
        replace(source, target)
    os.replace = replace_or_exit
    set_operating_point(path, point_index, sign=sys.argv[1])
for line in sys.stdin:
    n_left, point_index, path = line.rstrip().split(" ", 2)
    pid = os.fork()
    if not pid:
        change_point(int(n_left), path, int(point_index))
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


@contextlib.contextmanager
def start_changes(key: Path) -> Iterator[Callable[..., str]]:
    """Start the process; yield a function that makes a change and returns the exit status."""
    command = [sys.executable, "-c", EXIT_AT_RENAME, key]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:

        def change_point(*arguments: object) -> str:
            print(*arguments, file=process.stdin, flush=True)
            return process.stdout.readline().strip()

        yield change_point


@pytest.mark.slow
@pytest.mark.parametrize("signing_key", ["same", "other"])
def test_an_interrupted_change_of_the_point_leaves_a_signed_bundle(
    signed_path, key, other_key, signing_key
):
    """Let the process die before each of its renames in turn, then switch again."""
    signer = key if signing_key == "same" else other_key
    public_keys = {Signer(path).public.key_id: find_public_key(path) for path in (key, other_key)}
    with start_changes(signer) as change_point:
        for n_renames in range(4):  # a switch makes three renames
            path = signed_path.with_name(f"cut-{n_renames}")
            shutil.copytree(signed_path, path)
            for point_index in (1, 0, 1):  # later switches start from an interrupted state
                status = change_point(n_renames, point_index, path)
                assert status == ("9" if n_renames < 3 else "0")
                claimed_key_id, *_ = Bundle.open(path).claimed_key_ids()
                Bundle.open(path, public_key=public_keys[claimed_key_id])
            switched_bundle = set_operating_point(path, 1, sign=signer)
            assert switched_bundle.manifest.active == 1
            assert len((path / "SIGNATURE").read_text().splitlines()) == 2
            assert Bundle.open(path, public_key=find_public_key(signer)).manifest.active == 1


# -- copies --------------------------------------------------------------------------------


def test_a_copy_has_the_same_manifest_and_signature(signed_path, key):
    copied_bundle = repack(signed_path, signed_path.parent / "copy.gwb")
    assert read_contents(copied_bundle.path) == read_contents(signed_path)
    assert (
        Bundle.open(copied_bundle.path, public_key=find_public_key(key)).manifest
        == copied_bundle.manifest
    )


def test_a_bundle_for_devices_lacks_only_the_high_cost_model(signed_path, key):
    device_copy = repack(signed_path, signed_path.parent / "device.gwb", for_device=True)
    assert read_contents(signed_path).keys() - read_contents(device_copy.path).keys() == {
        "cloud.onnx"
    }
    device_bundle = Bundle.open(device_copy.path, public_key=find_public_key(key), for_device=True)
    assert device_bundle.absent_files() == ("cloud.onnx",)
    assert device_bundle.read("stage_0.onnx") == b"first graph"
    assert device_bundle.sample()["label"].tolist() == [1, 1, 1, 0, 1]
    with pytest.raises(DamagedFileError, match=r"cloud\.onnx is missing"):
        device_bundle.read("cloud.onnx")
    with pytest.raises(DamagedFileError, match=r"cloud\.onnx is missing"):
        Bundle.open(device_copy.path, public_key=find_public_key(key))
    copy_of_copy = repack(device_copy.path, signed_path.parent / "device", for_device=True)
    (copy_of_copy.path / "stage_0.onnx").unlink()
    with pytest.raises(DamagedFileError, match=r"stage_0\.onnx is missing"):
        Bundle.open(copy_of_copy.path, for_device=True)


def test_a_bundle_can_be_signed_in_place(write_bundle, key):
    path = write_bundle()
    repack(path, path, sign=key)
    assert Bundle.open(path, public_key=find_public_key(key)).signed_by
    assert list(path.parent.glob(".*")) == []  # no temporary file
    (path / "SIGNATURE").unlink()
    set_operating_point(path, 1, sign=key)  # switching also signs
    assert Bundle.open(path, public_key=find_public_key(key)).manifest.active == 1


@pytest.mark.parametrize("is_interrupted_before", [True, False])
@pytest.mark.parametrize("interrupted_rename", [1, 2])
def test_an_interruption_between_renames_leaves_a_bundle_in_place(
    signed_path, monkeypatch, interrupted_rename, is_interrupted_before
):
    renamed_paths = []
    rename = os.rename

    def rename_or_interrupt(source: Path, target: Path) -> None:
        renamed_paths.append(source)
        if not (is_interrupted_before and len(renamed_paths) == interrupted_rename):
            rename(source, target)
        if len(renamed_paths) == interrupted_rename:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", rename_or_interrupt)
    with pytest.raises(KeyboardInterrupt):
        repack(signed_path, signed_path)
    monkeypatch.undo()
    assert Bundle.open(signed_path).manifest.active == 0


def test_a_file_larger_than_the_limit_is_not_read(signed_path):
    bundle = Bundle.open(signed_path)
    assert bundle.read("cloud.onnx", max_bytes=11) == b"large graph"
    with pytest.raises(DamagedFileError, match="has 11 B, more than 10 B"):
        bundle.read("cloud.onnx", max_bytes=10)


# -- the command line ----------------------------------------------------------------------


@pytest.mark.slow
def test_commands_sign_and_check_bundles(write_bundle, tmp_path, run_command, assert_refused):
    bundle = write_bundle()
    copied_bundle = tmp_path / "x.gwb"
    key, public_key_file = tmp_path / "ops.key", tmp_path / "ops.pub"

    def run_successfully(*arguments: object) -> str:
        status, stdout, stderr = run_command(*arguments)
        assert status == 0, stderr
        return str(stdout)

    # make keys as the help of `gatewise pack` shows
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", key], check=True)
    subprocess.run(["openssl", "pkey", "-in", key, "-pubout", "-out", public_key_file], check=True)
    key_id = PublicKey(public_key_file).key_id
    pack_output = run_successfully("pack", bundle, "--out", copied_bundle, "--sign", key, "--json")
    assert json.loads(pack_output)["key_id"] == key_id
    assert "--for fun" in assert_refused("pack", bundle, "--out", copied_bundle, "--for", "fun")
    inspect_document = json.loads(run_successfully("inspect", copied_bundle, "--json"))
    assert (inspect_document["signed"], inspect_document["key_id"]) == (True, key_id)
    assert not inspect_document["signature_checked"]
    inspect_output = run_successfully("inspect", copied_bundle, "--public-key", public_key_file)
    assert f"signed by key {key_id}: the signature is valid" in inspect_output
    assert "not signed" in run_successfully("inspect", bundle)
    for command in ("inspect", "verify"):
        assert "is not signed" in assert_refused(command, bundle, "--public-key", public_key_file)
    assert "signed by key" in assert_refused("frontier", copied_bundle, "--budget", "200")
    run_successfully("frontier", copied_bundle, "--budget", "200", "--sign", key)
    assert Bundle.open(copied_bundle, public_key=public_key_file).manifest.active == 1


def test_reading_without_a_key_loads_no_cryptography(signed_path):
    program = (
        "import sys; from gatewise_export import Bundle; "
        "Bundle.open(sys.argv[1]).claimed_key_ids();"
        "print('cryptography' in sys.modules)"
    )
    assert run_python(program, signed_path) == "False"

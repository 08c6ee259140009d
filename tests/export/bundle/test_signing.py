from __future__ import annotations

import contextlib
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
from tests.support.bundle_files import contents
from tests.support.processes import run_python

Write = Callable[..., Path]
Change = Callable[[Path, Path], None]
FEW_EXAMPLES = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return keygen(tmp_path / "fleet")[0]


@pytest.fixture
def other_key(tmp_path: Path) -> Path:
    return keygen(tmp_path / "other_key")[0]


def pub(key: Path) -> Path:
    return key.with_suffix(".pub")


@pytest.fixture
def signed(write_bundle: Write, tmp_path: Path, key: Path) -> Path:
    path = tmp_path / "signed"
    repack(write_bundle(), path, sign=key)
    return path


# -- keys ----------------------------------------------------------------------------------


def test_keys_are_made_once_and_kept_secret(tmp_path: Path) -> None:
    key, public = keygen(tmp_path / "fleet")
    assert (key.name, public.name) == ("fleet.key", "fleet.pub")
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    read_key = PublicKey(public)
    assert read_key.raw == PublicKey(str(public)).raw == PublicKey(public.read_bytes()).raw
    assert Signer(key).public.key_id == read_key.key_id == PublicKey(read_key.raw).key_id
    assert len(read_key.key_id) == 16
    before = key.read_bytes()
    with pytest.raises(InputError, match="not overwritten"):
        keygen(tmp_path / "fleet")
    key.unlink()
    with pytest.raises(InputError, match=r"fleet\.pub exists"):
        keygen(tmp_path / "fleet")
    assert not key.exists()
    assert keygen(tmp_path / "other")[0].read_bytes() != before


def test_files_other_than_a_key_are_refused(tmp_path: Path) -> None:
    key, public = keygen(tmp_path / "fleet")
    text, curve, secret = (tmp_path / name for name in ("text", "curve", "secret"))
    text.write_text("hello")
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    of_curve = ec.generate_private_key(ec.SECP256R1())
    curve.write_bytes(of_curve.private_bytes(*form, serialization.NoEncryption()))
    hidden = serialization.BestAvailableEncryption(b"secret")
    secret.write_bytes(ed25519.Ed25519PrivateKey.generate().private_bytes(*form, hidden))
    for read, path, message in (
        (Signer, public, "is a public key"),
        (PublicKey, key, "is a private key"),
        (Signer, tmp_path / "none.key", "cannot be read"),
        (PublicKey, tmp_path / "none.pub", "cannot be read"),
        (Signer, text, "not a PEM file"),
        (PublicKey, text, "not a PEM file"),
        (Signer, curve, "not an Ed25519 key"),
        (Signer, secret, "encrypted"),
    ):
        with pytest.raises(InputError, match=message):
            read(path)


# -- invalid signatures --------------------------------------------------------------------


def test_a_signed_bundle_opens_only_with_its_key(signed: Path, key: Path, other_key: Path) -> None:
    bundle = Bundle.open(signed, public_key=pub(key))
    assert bundle.signed_by == Signer(key).public.key_id
    assert bundle.claimed_key_ids() == (bundle.signed_by,)
    assert Bundle.open(signed).signed_by is None
    value = signing.read_signatures((signed / "SIGNATURE").read_bytes(), "it")[0].value
    raw = ed25519.Ed25519PublicKey.from_public_bytes(PublicKey(pub(key)).raw)
    raw.verify(value, MANIFEST_CONTEXT + (signed / "manifest.json").read_bytes())  # as any program
    with pytest.raises(SignatureError, match="is signed by key") as caught:
        Bundle.open(signed, public_key=pub(other_key))
    for signer in (key, other_key):
        assert Signer(signer).public.key_id in str(caught.value)
    unsigned = signed.parent / "bundle"  # the signed bundle is a copy of it
    assert Bundle.open(unsigned).claimed_key_ids() == ()
    with pytest.raises(SignatureError, match="is not signed"):
        Bundle.open(unsigned, public_key=pub(key))


@FEW_EXAMPLES
@given(
    byte=st.integers(0, 10**6),
    bit=st.integers(0, 7),
    name=st.sampled_from(["manifest.json", "SIGNATURE"]),
)
def test_any_flipped_bit_is_refused(
    signed: Path, key: Path, byte: int, bit: int, name: str
) -> None:
    path = signed / name
    good = path.read_bytes()
    bad = bytearray(good)
    bad[byte % len(bad)] ^= 1 << bit
    path.write_bytes(bad)
    with pytest.raises(SignatureError):
        Bundle.open(signed, public_key=pub(key))
    path.write_bytes(good)


@FEW_EXAMPLES
@given(content=st.binary(max_size=600))
def test_a_signature_file_of_any_bytes_is_refused(signed: Path, key: Path, content: bytes) -> None:
    (signed / "SIGNATURE").write_bytes(content)
    with pytest.raises(SignatureError, match="not a signature file of a known format"):
        Bundle.open(signed, public_key=pub(key))


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
def test_another_form_of_a_signature_is_refused(
    signed: Path, key: Path, change: Callable[[str], str]
) -> None:
    text = (signed / "SIGNATURE").read_text()
    (signed / "SIGNATURE").write_bytes(change(text).encode())
    with pytest.raises(SignatureError, match="not a signature file of a known format"):
        Bundle.open(signed, public_key=pub(key))


def not_json(path: Path, key: Path) -> None:
    (path / "manifest.json").write_bytes(b"{ not JSON")


def of_another_context(path: Path, key: Path) -> None:
    other = Signer(key).sign(b"another context\0", (path / "manifest.json").read_bytes())
    (path / "SIGNATURE").write_bytes(signing.write_signatures(other))


def damaged(path: Path, key: Path) -> None:
    (path / "stage_0.onnx").write_bytes(b"First graph")


def linked(path: Path, key: Path) -> None:
    os.rename(path / "SIGNATURE", path.parent / "elsewhere")
    (path / "SIGNATURE").symlink_to(path.parent / "elsewhere")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (not_json, SignatureError, "is invalid"),  # the signature is checked before parsing
        (of_another_context, SignatureError, "is invalid"),
        (damaged, DamagedFileError, "SHA-256 differs"),
        (linked, DamagedFileError, "plain file"),
    ],
)
def test_content_that_the_key_did_not_sign_is_refused(
    signed: Path, key: Path, change: Change, error: type[BundleError], message: str
) -> None:
    change(signed, key)
    with pytest.raises(error, match=message):
        Bundle.open(signed, public_key=pub(key))


# -- other operating points ----------------------------------------------------------------


@pytest.mark.parametrize("kind", ["directory", "zip"])
def test_switching_the_operating_point_signs_again(signed: Path, key: Path, kind: str) -> None:
    path = signed
    if kind == "zip":
        path = signed.with_suffix(".gwb")
        repack(signed, path)
    before = contents(path)
    with pytest.raises(BundleError, match=r"is signed by key .* \(--sign NAME\.key\)"):
        set_operating_point(path, 1)
    assert contents(path) == before
    switched = set_operating_point(path, 1, sign=key)
    assert switched.manifest.active == 1
    assert switched.signed_by == Signer(key).public.key_id
    after = contents(path)
    assert after.keys() == before.keys()
    assert {n for n in after if after[n] != before[n]} == {"manifest.json", "SIGNATURE"}
    assert len((after["SIGNATURE"]).splitlines()) == 2
    assert Bundle.open(path, public_key=pub(key)).manifest.active == 1


def test_an_altered_bundle_is_not_signed(signed: Path, key: Path) -> None:
    document = json.loads((signed / "manifest.json").read_text())
    document["features"][0]["own"] = 0.0
    (signed / "manifest.json").write_text(json.dumps(document))
    before = contents(signed)
    with pytest.raises(SignatureError):
        set_operating_point(signed, 1, sign=key)
    with pytest.raises(SignatureError):
        repack(signed, signed.parent / "copy", sign=key)
    assert contents(signed) == before
    assert not (signed.parent / "copy").exists()


#: Makes each change in a process of its own, forked from one that has the imports.
EXIT_AT_RENAME = """
import os, sys
from gatewise_export.bundle.bundle import set_operating_point
def change(n_left, path, target):
    replace = os.replace
    def replace_or_exit(source, target):
        nonlocal n_left
        n_left -= 1
        if n_left < 0:
            os._exit(9)
        replace(source, target)
    os.replace = replace_or_exit
    set_operating_point(path, target, sign=sys.argv[1])
for line in sys.stdin:
    n_left, target, path = line.rstrip().split(" ", 2)
    pid = os.fork()
    if not pid:
        change(int(n_left), path, int(target))
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


@pytest.fixture
def changing() -> Iterator[Callable[[Path], Any]]:
    """Start the process that makes changes; its standard error is that of the tests."""
    with contextlib.ExitStack() as stack:
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        yield lambda signer: stack.enter_context(
            subprocess.Popen([sys.executable, "-c", EXIT_AT_RENAME, signer], **pipes)
        )


@pytest.mark.slow
@pytest.mark.parametrize("by", ["same", "other"])
def test_an_interrupted_change_of_the_point_leaves_a_signed_bundle(
    signed: Path, key: Path, other_key: Path, changing: Callable[[Path], Any], by: str
) -> None:
    """Let the process die before each of its renames in turn, then switch again."""
    signer = key if by == "same" else other_key
    process = changing(signer)
    for renames in range(4):
        path = signed.with_name(f"cut-{renames}")
        shutil.copytree(signed, path)
        for target in (1, 0, 1):  # later switches start from an interrupted state
            process.stdin.write(f"{renames} {target} {path}\n")
            process.stdin.flush()
            assert process.stdout.readline() == ("9\n" if renames < 3 else "0\n")
            keys = [Bundle.open(path).claimed_key_ids()[0]]
            opened = [
                Bundle.open(path, public_key=pub(k))
                for k in (key, other_key)
                if PublicKey(pub(k)).key_id in keys
            ]
            assert len(opened) == 1, "the claimed key does not open the bundle"
        switched = set_operating_point(path, 1, sign=signer)
        assert switched.manifest.active == 1
        assert len((path / "SIGNATURE").read_text().splitlines()) == 2
        assert Bundle.open(path, public_key=pub(signer)).manifest.active == 1


# -- copies --------------------------------------------------------------------------------


def test_a_copy_has_the_same_manifest_and_signature(signed: Path, key: Path) -> None:
    copy = repack(signed, signed.parent / "copy.gwb")
    assert contents(copy.path) == contents(signed)
    assert Bundle.open(copy.path, public_key=pub(key)).manifest == copy.manifest


def test_a_bundle_for_devices_lacks_only_the_high_cost_model(signed: Path, key: Path) -> None:
    made = repack(signed, signed.parent / "device.gwb", for_device=True)
    assert contents(signed).keys() - contents(made.path).keys() == {"cloud.onnx"}
    device = Bundle.open(made.path, public_key=pub(key), for_device=True)
    assert device.absent_files() == ("cloud.onnx",)
    assert device.read("stage_0.onnx") == b"first graph"
    assert device.sample()["label"].tolist() == [1, 1, 1, 0, 1]
    with pytest.raises(DamagedFileError, match=r"cloud\.onnx is missing"):
        device.read("cloud.onnx")
    with pytest.raises(DamagedFileError, match=r"cloud\.onnx is missing"):
        Bundle.open(made.path, public_key=pub(key))
    folder = repack(made.path, signed.parent / "device", for_device=True)
    (folder.path / "stage_0.onnx").unlink()
    with pytest.raises(DamagedFileError, match=r"stage_0\.onnx is missing"):
        Bundle.open(folder.path, for_device=True)


def test_a_bundle_can_be_signed_in_place(write_bundle: Write, key: Path) -> None:
    path = write_bundle()
    repack(path, path, sign=key)
    assert Bundle.open(path, public_key=pub(key)).signed_by
    assert [p.name for p in path.parent.iterdir() if p.name.startswith(".")] == []
    (path / "SIGNATURE").unlink()
    set_operating_point(path, 1, sign=key)  # switching also signs
    assert Bundle.open(path, public_key=pub(key)).manifest.active == 1


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("number", [1, 2])
def test_an_interruption_between_renames_leaves_a_bundle_in_place(
    signed: Path, monkeypatch: pytest.MonkeyPatch, number: int, before: bool
) -> None:
    calls = []
    rename = os.rename

    def interrupted(source: Path, target: Path) -> None:
        calls.append(source)
        if not (before and len(calls) == number):
            rename(source, target)
        if len(calls) == number:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        repack(signed, signed)
    monkeypatch.undo()
    assert Bundle.open(signed).manifest.active == 0


def test_a_file_larger_than_the_limit_is_not_read(signed: Path) -> None:
    bundle = Bundle.open(signed)
    assert bundle.read("cloud.onnx", max_bytes=11) == b"large graph"
    with pytest.raises(DamagedFileError, match="has 11 B, more than 10 B"):
        bundle.read("cloud.onnx", max_bytes=10)


# -- the command line ----------------------------------------------------------------------


@pytest.mark.slow
def test_the_commands(
    write_bundle: Write, tmp_path: Path, run: Callable[..., Any], refused: Callable[..., str]
) -> None:
    bundle, name, made = write_bundle(), tmp_path / "ops", tmp_path / "x.gwb"
    key, public = f"{name}.key", f"{name}.pub"

    def done(*args: object) -> str:
        status, out, err = run(*args)
        assert status == 0, err
        return str(out)

    # make keys as the help of `gatewise pack` shows
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", key], check=True)
    subprocess.run(["openssl", "pkey", "-in", key, "-pubout", "-out", public], check=True)
    key_id = PublicKey(public).key_id
    packed = done("pack", bundle, "--out", made, "--sign", key, "--json")
    assert json.loads(packed)["key_id"] == key_id
    assert "--for fun" in refused("pack", bundle, "--out", made, "--for", "fun")
    facts = json.loads(done("inspect", made, "--json"))
    assert (facts["signed"], facts["key_id"], facts["signature_checked"]) == (True, key_id, False)
    shown = done("inspect", made, "--public-key", public)
    assert f"signed by key {key_id}: the signature is valid" in shown
    assert "not signed" in done("inspect", bundle)
    for command in ("inspect", "verify"):
        assert "is not signed" in refused(command, bundle, "--public-key", public)
    assert "signed by key" in refused("frontier", made, "--budget", "200")
    done("frontier", made, "--budget", "200", "--sign", key)
    assert Bundle.open(made, public_key=public).manifest.active == 1


def test_reading_without_a_key_loads_no_cryptography(signed: Path) -> None:
    probe = (
        "import sys; from gatewise_export import Bundle; "
        "Bundle.open(sys.argv[1]).claimed_key_ids();"
        "print('cryptography' in sys.modules)"
    )
    assert run_python(probe, signed) == "False"

"""Bundles as directories and zips: reading, switching the operating point, and refusals."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.bench_journeys import CallCounter
from gatewise_export.bundle.arrays import read_arrays, write_arrays
from gatewise_export.bundle.bundle import Bundle, set_operating_point
from gatewise_export.bundle.errors import BundleError, DamagedFileError, ManifestError
from tests.support.bundle_files import read_contents, replace_file
from tests.support.hand_made_bundle import Document
from tests.support.processes import run_python

WriteBundle = Callable[..., Path]


def write_zip(folder: Path) -> Path:
    """Write a bundle's directory as a zip beside it."""
    path = folder.with_suffix(".gwb")
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in read_contents(folder).items():
            archive.writestr(name, content)
    return path


def test_unlisted_files_of_a_zip_are_not_copied(write_bundle: WriteBundle) -> None:
    path = write_zip(write_bundle())
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb", bytes(10 << 20))
        archive.writestr("secret", b"of no concern")
    content = bytearray(path.read_bytes())
    # Flag the last entry as encrypted: the flags follow 8 bytes after the signature of its header
    # in the central directory (APPNOTE.TXT of PKWARE, 4.3.12).
    content[content.rfind(b"PK\1\2") + 8] |= 1
    path.write_bytes(content)
    assert set_operating_point(path, 1).manifest.active == 1
    with zipfile.ZipFile(path) as archive:
        assert not {"bomb", "secret"} & set(archive.namelist())


def test_the_error_for_a_full_disk_names_the_file(tmp_path: Path) -> None:
    # No file may become longer than nine bytes.
    code = (
        "import resource, sys, pathlib; from gatewise_export.bundle.storage import write_file\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (9, 9))\n"
        "try: write_file(pathlib.Path(sys.argv[1]), bytes(99))\n"
        "except OSError as error: print(error.filename)"
    )
    assert run_python(code, tmp_path / "file") == str(tmp_path / "file")


def test_the_sample_has_the_decisions_of_the_bundle(write_bundle: WriteBundle) -> None:
    bundle = Bundle.open(write_bundle())
    assert "heart" in repr(bundle)
    sample = bundle.sample()
    assert sample["exit"].tolist() == [0, 1, 2, 0, 1]
    assert sample["label"].tolist() == [1, 1, 1, 0, 1]
    assert sample["exit"].dtype == sample["label"].dtype == np.int64
    assert sample["cost"].tolist() == bundle.manifest.exit_costs()[[0, 1, 2, 0, 1]].tolist()
    all_offloaded = bundle.with_active(1).sample()
    assert all_offloaded["exit"].tolist() == [2] * 5
    assert all_offloaded["label"].tolist() == sample["cloud_label"].tolist()


def test_opening_makes_few_calls_and_none_for_further_points(
    document: Document, write_bundle: WriteBundle
) -> None:
    call_counts = []
    for n_copies in (1, 30):
        points = n_copies * document["operating_points"]
        path = write_bundle(document | {"operating_points": points})
        Bundle.open(path)  # import modules before counting
        with CallCounter() as counter:
            Bundle.open(path)
        n_objects = json.dumps(points).count("{")  # each is one call of the JSON parser
        call_counts.append(counter.n_calls - n_objects)
        shutil.rmtree(path)
    # Points beyond the first cost nothing. An opening makes about 140 calls.
    assert call_counts[0] == call_counts[1] < 400


@pytest.mark.parametrize("convert", [lambda folder: folder, write_zip], ids=["directory", "zip"])
def test_switching_the_operating_point_rewrites_only_the_manifest(
    write_bundle: WriteBundle, convert: Callable[[Path], Path]
) -> None:
    path = convert(write_bundle())
    bundle_before = Bundle.open(path)
    bundle_after = set_operating_point(path, 1)
    assert bundle_after.manifest == bundle_before.manifest.with_active(1)
    assert Bundle.open(path).manifest.active == 1
    for name in bundle_before.manifest.files:
        assert bundle_after.read(name) == bundle_before.read(name)
    assert list(path.parent.glob(".*")) == []  # no temporary file
    with pytest.raises(ManifestError, match="active"):
        set_operating_point(path, 7)
    assert Bundle.open(path).manifest.active == 1


@pytest.mark.parametrize("name", ["stage_0.onnx", "cloud.onnx", "sample.npz"])
@pytest.mark.parametrize(
    "change", [lambda content: content[:-1], lambda content: b"?" + content[1:]]
)
def test_an_altered_file_is_refused_when_opened_and_when_read(
    write_bundle: WriteBundle, name: str, change: Callable[[bytes], bytes]
) -> None:
    path = write_bundle()
    bundle = Bundle.open(path)
    valid_content = (path / name).read_bytes()
    (path / name).write_bytes(change(valid_content))
    archive = write_zip(path)
    if name == "sample.npz":  # opening checked it and kept its content
        assert bundle.read(name) == valid_content
    for open_or_read in (
        lambda: Bundle.open(path), lambda: Bundle.open(archive), lambda: bundle.read(name)
    ):  # fmt: skip
        with pytest.raises(DamagedFileError, match="is not the file that was packed") as error_info:
            open_or_read()
        assert error_info.value.file == name


def test_missing_files_are_refused_by_name(write_bundle: WriteBundle) -> None:
    path = write_bundle()
    with pytest.raises(DamagedFileError, match=r"'notes\.txt' is not in its manifest"):
        Bundle.open(path).read("notes.txt")
    (path / "cloud.onnx").unlink()
    with pytest.raises(DamagedFileError, match=r"cloud\.onnx is missing"):
        Bundle.open(path)
    (path / "manifest.json").unlink()
    with pytest.raises(BundleError, match=r"manifest\.json is missing"):
        Bundle.open(path)
    with pytest.raises(BundleError, match="does not exist"):
        Bundle.open(path / "nowhere")
    (path / "notes.txt").write_text("hello")
    with pytest.raises(BundleError, match="is not a bundle"):
        Bundle.open(path / "notes.txt")


@pytest.mark.parametrize("new_keys", [{}, {"key_of_99": 1}])
def test_a_bundle_for_a_newer_gatewise_is_refused(
    write_bundle: WriteBundle, document: dict[str, Any], new_keys: dict[str, int]
) -> None:
    document |= {"min_runtime_version": "99.0.0"} | new_keys
    with pytest.raises(BundleError, match=r"needs gatewise 99\.0\.0 or newer"):
        Bundle.open(write_bundle(document))


# -- sample --------------------------------------------------------------------------------


def test_arrays_round_trip_and_their_file_is_reproducible() -> None:
    arrays = {"X": np.eye(3, dtype=np.float32), "y": np.arange(3), "s": np.float64(2.5)}
    content = write_arrays(arrays)  # type: ignore[arg-type]
    assert content == write_arrays(dict(reversed(arrays.items())))  # type: ignore[arg-type]
    restored_arrays = read_arrays(content)
    assert restored_arrays["X"].tolist() == np.eye(3).tolist()
    assert restored_arrays["X"].dtype == np.float32
    with np.load(io.BytesIO(content), allow_pickle=False) as numpy_arrays:
        assert set(numpy_arrays.files) == {"X", "y", "s"}


def make_npz(header: str, body: bytes = b"") -> bytes:
    """Make a file with one array in the .npy format 1.0: magic, version, length and header."""
    length = len(header).to_bytes(2, "little")
    content = b"\x93NUMPY\x01\x00" + length + header.encode() + body
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("X.npy", content)
    return stream.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        b"not a zip",
        make_npz("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,)}"),
        make_npz("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", b"cos\nsystem\n"),
        make_npz("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, -1)}", b"1234"),
        make_npz("__import__('os').getcwd()"),
        make_npz("{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}", b"1234"),
    ],
)
def test_invalid_arrays_are_refused(content: bytes) -> None:
    with pytest.raises(BundleError, match=r"sample\.npz cannot be read"):
        read_arrays(content)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"X": None}, "lacks the array 'X'"),
        ({"stage_1": None}, "lacks the array 'stage_1'"),
        ({"X": np.zeros((5, 3), np.float32)}, "'X' is float32"),
        ({"cloud_label": np.zeros(4, np.int64)}, "'cloud_label' is int64 of shape"),
        ({"stage_0": np.zeros((5, 1))}, "'stage_0' is float64"),
        ({"X": np.zeros((0, 4), np.float32)}, "sample.npz has no rows"),
    ],
)
def test_a_sample_that_does_not_fit_the_manifest_is_refused(
    write_bundle: WriteBundle, change: dict[str, Any], message: str
) -> None:
    path = write_bundle()
    arrays = read_arrays(Bundle.open(path).read("sample.npz")) | change
    content = write_arrays({name: array for name, array in arrays.items() if array is not None})
    replace_file(path, "sample.npz", content)
    with pytest.raises(BundleError, match=message):
        Bundle.open(path).sample()

"""Tests of downloads of public data sets, from a local server with the bytes of the sources."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest

from benchmarks.data import __main__ as command
from benchmarks.data.fetching import SMALL_SETS, fetch
from benchmarks.data.sources import SOURCES, hash_arrays
from gatewise.errors import InputError

pytest.importorskip("pooch")


def make_letter_file() -> bytes:
    """Make the raw file of Letters from the arrays of the repository."""
    with np.load(SMALL_SETS / "letter.npz") as arrays:
        rows = zip(arrays["y"], arrays["X"], strict=True)
        lines = [f"{chr(ord('A') + label)},{','.join(map(str, row))}" for label, row in rows]
    header = "Letter," + ",".join(map(str, range(1, 17)))  # 16 features
    return "\n".join([header, *lines]).encode()


class Server(HTTPServer):
    """Server of files by path that omits the last `n_missing_bytes` of each response."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.requested_paths: list[str] = []
        self.n_missing_bytes = 0
        self.address = f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.requested_paths.append(self.path)
        content = self.server.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) - self.server.n_missing_bytes])

    def log_message(self, *_arguments: object) -> None:
        """Do not log requests."""


@pytest.fixture
def server():
    """A running server that has the file of Letters."""
    server = Server()
    server.files["/letter/letter-recognition.data"] = make_letter_file()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def list_files(folder):
    """List the files in a folder and below it."""
    return [path for path in folder.rglob("*") if path.is_file()]


def test_every_source_has_licence_citation_and_hashes():
    for name, source in SOURCES.items():
        assert source.licence
        assert source.citation.endswith(".")
        assert all(len(file.sha256) == 64 for file in source.files), name
        assert all(file.url.startswith("https://") for file in source.files)


@pytest.mark.parametrize("name", [path.stem for path in sorted(SMALL_SETS.glob("*.npz"))])
def test_sets_of_the_repository_are_the_known_arrays(name):
    with np.load(SMALL_SETS / f"{name}.npz") as file:
        arrays = {key: file[key] for key in file.files}
    assert hash_arrays(arrays) == SOURCES[name].arrays_sha256


def test_fetched_set_has_the_known_arrays_and_is_fetched_once(server, tmp_path, capsys):
    arguments = ["fetch", "letter", "--folder", str(tmp_path), "--mirror", server.address]
    assert command.main(arguments) == 0
    assert "CC BY 4.0" in capsys.readouterr().err
    assert command.main(arguments) == 0
    assert server.requested_paths == ["/letter/letter-recognition.data"]
    with np.load(tmp_path / "letter.npz") as file, np.load(SMALL_SETS / "letter.npz") as known:
        assert sorted(file.files) == sorted(known.files)
        assert all(np.array_equal(file[key], known[key]) for key in file.files)


@pytest.mark.slow
def test_changed_arrays_are_prepared_again_from_the_fetched_file(server, tmp_path):
    path = fetch("letter", tmp_path, mirror=server.address)
    with np.load(path) as file:
        arrays = {key: file[key] for key in file.files}
    arrays["y"] = arrays["y"][::-1]
    np.savez(path, **arrays)
    fetch("letter", tmp_path, mirror=server.address)
    with np.load(path) as file:
        assert (
            hash_arrays({key: file[key] for key in file.files}) == SOURCES["letter"].arrays_sha256
        )
    assert len(server.requested_paths) == 1


def test_changed_file_is_refused_and_deleted(server, tmp_path):
    content = bytearray(server.files["/letter/letter-recognition.data"])
    content[1000] ^= 1
    server.files["/letter/letter-recognition.data"] = bytes(content)
    with pytest.raises(InputError, match="does not have the known SHA-256"):
        fetch("letter", tmp_path, mirror=server.address)
    assert list_files(tmp_path) == []


@pytest.mark.parametrize("n_missing_bytes", [1, 700_000])
def test_truncated_file_is_refused_and_deleted(server, tmp_path, n_missing_bytes):
    server.n_missing_bytes = n_missing_bytes
    with pytest.raises(InputError, match=r"letter-recognition\.data"):
        fetch("letter", tmp_path, mirror=server.address)
    assert list_files(tmp_path) == []


def test_error_for_a_missing_file_names_its_address(server, tmp_path):
    with pytest.raises(
        InputError, match=f"{server.address}/thyroid/ann-train.data cannot be fetched"
    ):
        fetch("thyroid", tmp_path, mirror=server.address)


def test_unreachable_server_gives_a_message_of_one_line(server, tmp_path, capsys):
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as closed_server:
        address = f"http://127.0.0.1:{closed_server.server_port}"
    arguments = ["fetch", "letter", "--folder", str(tmp_path), "--mirror", address]
    assert command.main(arguments) == 2
    message = capsys.readouterr().err.strip()
    assert "cannot be fetched (ConnectionError)" in message
    assert "\n" not in message
    assert list_files(tmp_path) == []


def test_unknown_set_is_refused_before_any_download(server, tmp_path, capsys):
    arguments = ["fetch", "letter", "nothing", "--folder", str(tmp_path)]
    assert command.main([*arguments, "--mirror", server.address]) == 2
    assert "no source of 'nothing'" in capsys.readouterr().err
    assert server.requested_paths == []


def test_list_shows_the_file_of_each_set(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("GATEWISE_DATA", str(tmp_path))
    assert command.main(["list"]) == 0
    output = capsys.readouterr().out
    assert str(SMALL_SETS / "letter.npz") in output
    assert "python -m benchmarks.data fetch covertype" in output

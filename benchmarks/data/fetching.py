"""Search for data files in the data folders, and download of public sets."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import numpy as np

from benchmarks.cache import CACHE
from benchmarks.data.sources import SOURCES, SourceFile, hash_arrays
from gatewise.errors import InputError

#: Folder of downloaded sets.
FETCHED = CACHE / "data"

#: Folder of small sets in the repository, with their licences.
SMALL_SETS = Path(__file__).parent / "sets"


def data_folders() -> list[Path]:
    """List the folders of data files in the order of the search."""
    preferred_folder = os.environ.get("GATEWISE_DATA", CACHE.parents[1] / "shared" / "data")
    return [Path(preferred_folder), FETCHED, SMALL_SETS]


def find_file(name: str) -> Path | None:
    """Find a set in the first data folder that has it, or return None."""
    paths = (folder / f"{name}.npz" for folder in data_folders())
    return next((path for path in paths if path.is_file()), None)


def fetch(name: str, folder: Path, *, mirror: str | None = None) -> Path:
    """Download and check the files of a set, and write its arrays into `folder`.

    Parameters
    ----------
    name : str
        A set of :data:`.SOURCES`.
    folder : Path
        Files go to ``folder/raw/NAME``, arrays to ``folder/NAME.npz``. Writes are atomic.
    mirror : str, optional
        Address of a mirror with files at ``MIRROR/NAME/FILE``; by default that of the source.

    Returns
    -------
    Path
        File of the arrays.

    Raises
    ------
    InputError
        If a download fails, or the hash of a file or of the arrays is not the known one.
    """
    source = SOURCES[name]
    path = folder / f"{name}.npz"
    if path.is_file() and _hash_file(path) == source.arrays_sha256:
        return path
    contents = {
        file.name: _fetch_file(file, folder / "raw" / name, name, mirror).read_bytes()
        for file in source.files
    }
    arrays = source.prepare(contents)
    if hash_arrays(arrays) != source.arrays_sha256:
        raise InputError(
            f"{name}: the arrays made from its files do not have the known hash; "
            "this version of numpy may read or store them differently"
        )
    folder.mkdir(parents=True, exist_ok=True)
    partial_file = folder / f"{name}.partial.npz"
    np.savez_compressed(partial_file, allow_pickle=False, **arrays)
    partial_file.replace(path)
    return path


def _hash_file(path: Path) -> str:
    with np.load(path, allow_pickle=False) as file:
        return hash_arrays({name: file[name] for name in file.files})


def _fetch_file(file: SourceFile, folder: Path, set_name: str, mirror: str | None) -> Path:
    """Download a file unless the folder has it; raise InputError if its hash is wrong."""
    import pooch
    import requests

    pooch.get_logger().setLevel(logging.ERROR)
    url = file.url if mirror is None else f"{mirror.rstrip('/')}/{set_name}/{file.name}"
    downloader = pooch.HTTPDownloader(timeout=30, progressbar=False)
    try:
        path = pooch.retrieve(
            url, known_hash=file.sha256, fname=file.name, path=folder, downloader=downloader
        )
    except requests.RequestException as error:
        raise InputError(
            f"{set_name}: {url} cannot be fetched ({type(error).__name__}); try again later, use "
            f"--mirror, or put the file into {folder}"
        ) from error
    except ValueError as error:
        raise InputError(
            f"{set_name}: {url} does not have the known SHA-256 {file.sha256}: the file was "
            "cut off or changed, and the download was deleted"
        ) from error
    return Path(path)

#!/usr/bin/env python
"""A command-line client of a repository for the conformance suite of The Update Framework.

`make test-tuf` runs the suite (github.com/theupdateframework/tuf-conformance) with this program.
The suite's CLIENT-CLI.md describes the protocol. The program stores the versions that it has seen
in the file `seen` in the metadata folder; a device stores them in its state.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

from gatewise_export.repository.client import RepositoryClient
from gatewise_export.repository.fetcher import BoundedFetcher
from gatewise_export.repository.release import UpdateError

TRUSTED_ROOT_FILE = "trusted-root"
SEEN_VERSIONS_FILE = "seen"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--metadata-dir", type=Path, required=True)
    parser.add_argument("--metadata-url")
    parser.add_argument("--target-name", action="append", default=[])
    parser.add_argument("--target-base-url")
    parser.add_argument("--target-dir", type=Path)
    parser.add_argument("command", choices=["init", "refresh", "download"])
    parser.add_argument("trusted_root", nargs="?")
    options = parser.parse_args()
    folder = options.metadata_dir
    if options.command == "init":
        for name in (TRUSTED_ROOT_FILE, "root.json"):
            shutil.copyfile(options.trusted_root, folder / name)
        return 0
    try:
        client = _refresh_metadata(folder, options.metadata_url)
        for name in options.target_name:
            _download_target(client, name, options.target_dir)
    except UpdateError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _refresh_metadata(folder: Path, url: str) -> RepositoryClient:
    """Fetch and verify the metadata; return the client with it."""
    client = RepositoryClient(
        [url.rstrip("/").removesuffix("/metadata")],
        folder,
        trust=folder / TRUSTED_ROOT_FILE,
        fetcher=BoundedFetcher(),
    )
    seen_file = folder / SEEN_VERSIONS_FILE
    seen_lists = json.loads(seen_file.read_text()) if seen_file.exists() else {}
    # JSON has lists for the pairs of version and key ids.
    seen_versions = {role: tuple(version_and_keys) for role, version_and_keys in seen_lists.items()}
    _, versions = client.refresh(seen_versions)
    seen_file.write_text(json.dumps(versions))
    return client


def _download_target(client: RepositoryClient, name: str, folder: Path) -> None:
    """Download a target, perhaps of a delegated role, unless the folder already has it."""
    updater = client._client
    assert updater is not None
    client._fetcher.set_time_limit(60.0)  # seconds, like those for the metadata
    target = updater.get_targetinfo(name)
    if target is None:
        raise UpdateError("fetch", f"{name} is not in the repository")
    path = folder / name.replace("/", "_")
    if updater.find_cached_target(target, str(path)) is None:
        client._download(target, path)


if __name__ == "__main__":
    sys.exit(main())

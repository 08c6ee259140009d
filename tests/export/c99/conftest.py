"""The client in C of a small bundle, which several modules of tests use."""

from __future__ import annotations

from pathlib import Path

import pytest

from gatewise_export.bundle.bundle import Bundle
from tests.support import small_bundle
from tests.support.c_wire_client import Client, compile_client, make_client


@pytest.fixture(scope="session")
def wire_bundle(tmp_path_factory) -> Bundle:
    return small_bundle.write_bundle(tmp_path_factory.mktemp("wire") / "bundle")


@pytest.fixture(scope="session")
def library_folder(wire_bundle, tmp_path_factory) -> Path:
    return compile_client(wire_bundle, tmp_path_factory.mktemp("wire_c"))


@pytest.fixture
def client(library_folder) -> Client:
    return make_client(library_folder)

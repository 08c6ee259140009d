"""Bundles that come and go while a worker serves."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from gatewise.errors import InputError
from gatewise_cloud import Worker
from gatewise_cloud.errors import BackendBusy
from gatewise_cloud.models.backends import OnnxBackend
from gatewise_cloud.worker.bundle_watch import BundleWatch
from gatewise_cloud.worker.counters import Counters
from gatewise_cloud.worker.served_models import ServedModels
from gatewise_export.bundle.repacking import repack
from tests.support import tiny_bundle as tiny
from tests.support.waiting import wait_until


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "served"
    path.mkdir()
    return path


def versions(worker):
    return {version for _, version in worker.models}


def test_a_version_comes_and_goes_and_no_request_is_lost(tmp_path, folder, mosquitto, caller):
    tiny.write_bundle(folder / "one", version="1")
    with Worker([], mosquitto.url, watch=folder, watch_seconds=0.05) as worker:
        one = caller(mosquitto)
        one.ask(tiny.rows(1), version="1")
        assert one.response().error is None
        tiny.write_bundle(tmp_path / "two", version="2")
        shutil.move(tmp_path / "two", folder / "two")
        wait_until(lambda: versions(worker) == {"1", "2"})
        for version in ("1", "2"):
            one.ask(tiny.rows(1), version=version)
            answer = one.response()
            assert (answer.error, answer.version) == (None, version)
        shutil.rmtree(folder / "one")
        wait_until(lambda: versions(worker) == {"2"})
        one.ask(tiny.rows(1), version="1")
        assert one.response().error == "no-model"
        one.ask(tiny.rows(1), version="2")
        assert one.response().error is None
        wait_until(lambda: not worker.models.retired)
        assert worker.counters["watched"] == {"added": 2, "removed": 1}


@pytest.mark.slow
def test_one_that_goes_answers_what_it_took(slow_bundle, folder, mosquitto, caller):
    shutil.copytree(slow_bundle, folder / "slow")
    with Worker([], mosquitto.url, watch=folder, watch_seconds=0.02, max_batch=1) as worker:
        one = caller(mosquitto)
        asked = [one.ask(tiny.rows(1), model="slow", ttl_ms=60_000) for _ in range(6)]
        wait_until(lambda: worker.counters["received"] == 6)
        shutil.rmtree(folder / "slow")
        wait_until(lambda: not worker.models)
        answers = one.responses(6)
        assert {a.id: a.error for a in answers} == {r.id: None for r in asked}
        wait_until(lambda: not worker.models.retired)


def test_models_are_those_of_one_instant(bundle):
    models = ServedModels()
    key = models.load(bundle)
    listed = iter(models.values())
    models.retire(key)
    assert [model.key for model in listed] == [key]


def test_what_is_no_good_is_refused_once_and_the_rest_served(folder, mosquitto, caplog):
    tiny.write_bundle(folder / "good")
    tiny.write_bundle(folder / "spoilt", version="2", spoil=True)
    tiny.write_bundle(folder / "twin")
    (folder / "notes.txt").write_text("not a bundle")
    (folder / "broken.gwb").write_bytes(b"nothing")
    with Worker([], mosquitto.url, watch=folder, watch_seconds=0.02) as worker:
        assert versions(worker) == {"1"}
        # Put right, it is taken.
        shutil.rmtree(folder / "spoilt")
        tiny.write_bundle(folder / "spoilt", version="2")
        wait_until(lambda: versions(worker) == {"1", "2"})
        (folder / "good" / "cloud.onnx").write_bytes(b"other")
        wait_until(lambda: worker.counters["watched"]["refused"] == 4)
        assert versions(worker) == {"1", "2"}
    for words in ("sample rows", "tiny 1 is served already", "broken.gwb", "cloud.onnx"):
        assert words in caplog.text


@pytest.mark.slow
def test_one_that_takes_long_to_load_is_refused_while_the_rest_answers(
    tmp_path, folder, mosquitto, caller, caplog
):
    tiny.write_bundle(folder / "good")
    with Worker([], mosquitto.url, watch=folder, watch_seconds=0.02) as worker:
        limits = {"bytes": 1e9, "seconds": 0.5}
        costly = tiny.costly_graph()
        tiny.write_bundle(tmp_path / "costly", version="2", graph=costly, loading=limits)
        shutil.move(tmp_path / "costly", folder / "costly")
        one = caller(mosquitto)
        n_answers = 0
        while "refused" not in worker.counters["watched"]:
            one.ask(tiny.rows(1))
            assert one.response().error is None
            n_answers += 1
    assert n_answers > 20
    assert "loading it took more than 0.5 s" in caplog.text


def test_one_that_may_not_be_read_is_refused_and_the_rest_served(bundle, caplog):
    models, user = ServedModels(), os.geteuid()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(bundle, folder / "open")
        tiny.write_bundle(folder / "closed", version="2")
        folder.chmod(0o755)
        (folder / "closed").chmod(0)
        watch = BundleWatch(folder, models, lambda key: 0, Counters())
        try:
            if user == 0:  # who may read everything
                os.seteuid(65534)
            watch.start()
        finally:
            os.seteuid(user)
            watch.stop()
            (folder / "closed").chmod(0o755)
    assert [*models] == [("tiny", "1")]
    assert "closed is not served" in caplog.text


def test_a_server_that_is_away_is_tried_again(bundle, folder, caplog):
    away = [True]

    def backend(manifest):
        if away:
            raise BackendBusy(manifest.title, "its server does not answer")
        graph = bundle.joinpath("cloud.onnx").read_bytes()
        return OnnxBackend(graph, kind="margins", model=manifest.title)

    shutil.copytree(bundle, folder / "one")
    models, counters = ServedModels(backend=backend), Counters()
    watch = BundleWatch(folder, models, lambda key: 0, counters, seconds=60.0)
    watch.start()
    watch.scan()
    assert not models
    assert caplog.text.count("its server does not answer") == 1
    away.clear()
    watch.scan()
    watch.stop()
    assert [*models] == [("tiny", "1")]
    assert counters.snapshot()["watched"] == {"refused": 1, "added": 1}


def test_a_file_that_is_replaced_is_served_if_its_version_is_another(
    tmp_path, folder, mosquitto, caller, caplog
):
    for state in ("1", "2", "2 again"):
        repack(tiny.write_bundle(tmp_path / state, version=state[0]), tmp_path / f"{state}.gwb")
    (tmp_path / "1.gwb").rename(folder / "small.gwb")
    with Worker([], mosquitto.url, watch=folder, watch_seconds=0.02) as worker:
        (tmp_path / "2.gwb").rename(folder / "small.gwb")
        wait_until(lambda: versions(worker) == {"2"})
        one = caller(mosquitto)
        one.ask(tiny.rows(1), version="2")
        assert one.response().version == "2"
        (tmp_path / "2 again.gwb").rename(folder / "small.gwb")
        wait_until(lambda: worker.counters["watched"].get("refused"))
        assert versions(worker) == {"2"}
        assert "tiny 2 is served already" in caplog.text
        (folder / "small.gwb").unlink()
        wait_until(lambda: not worker.models)
        assert worker.counters["watched"] == {"added": 2, "removed": 2, "refused": 1}


def test_a_folder_that_is_none(mosquitto, tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        Worker([], mosquitto.url, watch=tmp_path / "nothing")


def test_an_empty_folder_is_a_worker_that_waits(folder, mosquitto):
    with Worker([], mosquitto.url, watch=folder) as worker:
        assert worker.trouble == "it has no model yet"

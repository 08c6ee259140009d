"""Bundles that are added, replaced and removed while a worker serves."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from gatewise.errors import InputError
from gatewise_cloud import Worker
from gatewise_cloud.errors import BackendBusy
from gatewise_cloud.models.backends import OnnxBackend
from gatewise_cloud.models.cloud_model import CloudModel
from gatewise_cloud.worker.bundle_watch import BundleWatch
from gatewise_cloud.worker.counters import Counters
from gatewise_cloud.worker.served_models import ServedModels
from gatewise_export.bundle.repacking import repack
from tests.support import tiny_bundle as tiny
from tests.support.waiting import wait_until


@pytest.fixture
def folder(tmp_path):
    """An empty folder for the bundles of a worker."""
    path = tmp_path / "served"
    path.mkdir()
    return path


def served_versions(worker):
    return {version for _, version in worker.models}


@pytest.mark.slow
def test_a_removed_model_answers_its_queued_requests(
    slow_bundle, folder, mosquitto, connect_caller
):
    shutil.copytree(slow_bundle, folder / "slow")
    with Worker([], mosquitto.url, watch=folder, watch_seconds=0.02, max_batch=1) as worker:
        client = connect_caller(mosquitto)
        requests = [client.ask(tiny.random_rows(1), model="slow", ttl_ms=60_000) for _ in range(6)]
        wait_until(lambda: worker.counters["received"] == 6)
        shutil.rmtree(folder / "slow")
        wait_until(lambda: not worker.models)
        responses = client.responses(6)
        assert {response.id: response.error for response in responses} == {
            request.id: None for request in requests
        }
        wait_until(lambda: not worker.models.retired_keys)


def test_a_model_dropped_between_the_checks_and_the_queue_is_refused(
    folder, mosquitto, connect_caller, monkeypatch
):
    tiny.write_bundle(folder / "one", version="1")
    with Worker([], mosquitto.url, watch=folder, watch_seconds=60.0) as worker:
        check_rows = CloudModel.check_instances

        def check_and_retire(model, rows):
            check_rows(model, rows)
            worker.models.retire(model.key)
            worker._server.drop_idle_models()

        monkeypatch.setattr(CloudModel, "check_instances", check_and_retire)
        client = connect_caller(mosquitto)
        client.ask(tiny.random_rows(1), version="1")
        assert client.response().error == "no-model"
        assert not worker.models.retired_keys


def test_invalid_bundles_are_refused_once_and_the_others_served(folder, mosquitto, caplog):
    tiny.write_bundle(folder / "good")
    tiny.write_bundle(folder / "spoilt", version="2", has_wrong_sample=True)
    tiny.write_bundle(folder / "twin")
    (folder / "notes.txt").write_text("not a bundle")
    (folder / "broken.gwb").write_bytes(b"nothing")
    with Worker([], mosquitto.url, watch=folder, watch_seconds=0.02) as worker:
        assert served_versions(worker) == {"1"}
        # The worker loads the bundle after it has been corrected.
        shutil.rmtree(folder / "spoilt")
        tiny.write_bundle(folder / "spoilt", version="2")
        wait_until(lambda: served_versions(worker) == {"1", "2"})
        (folder / "good" / "cloud.onnx").write_bytes(b"other")
        wait_until(lambda: worker.counters["watched"]["refused"] == 4)
        assert served_versions(worker) == {"1", "2"}
    # The four refusals: the wrong sample, the second tiny 1, the broken file and the changed file.
    for reason in ("sample rows", "tiny 1 is served already", "broken.gwb", "cloud.onnx"):
        assert reason in caplog.text


@pytest.mark.slow
def test_a_bundle_that_loads_slowly_is_refused_while_others_answer(
    tmp_path, folder, mosquitto, connect_caller, caplog
):
    tiny.write_bundle(folder / "good")
    with Worker([], mosquitto.url, watch=folder, watch_seconds=0.02) as worker:
        load_limits = {"bytes": 1e9, "seconds": 0.5}
        graph = tiny.costly_graph()
        tiny.write_bundle(tmp_path / "costly", version="2", graph=graph, loading=load_limits)
        shutil.move(tmp_path / "costly", folder / "costly")
        client = connect_caller(mosquitto)
        n_answers = 0
        while "refused" not in worker.counters["watched"]:
            client.ask(tiny.random_rows(1))
            assert client.response().error is None
            n_answers += 1
    # a worker that waits for the load answers one or two requests in its half second
    assert n_answers > 3
    assert "loading it took more than 0.5 s" in caplog.text


def test_an_unreadable_bundle_is_refused_and_the_others_served(bundle, caplog):
    models = ServedModels()
    user_id = os.geteuid()
    # Other users cannot enter pytest's temporary folder.
    with tempfile.TemporaryDirectory() as folder_name:
        folder = Path(folder_name)
        shutil.copytree(bundle, folder / "open")
        tiny.write_bundle(folder / "closed", version="2")
        folder.chmod(0o755)
        (folder / "closed").chmod(0)
        watch = BundleWatch(folder, models, lambda: None, Counters())
        try:
            if user_id == 0:  # root may read everything
                os.seteuid(65534)  # nobody
            watch.start()
        finally:
            os.seteuid(user_id)
            watch.stop()
            (folder / "closed").chmod(0o755)
    assert [*models] == [("tiny", "1")]
    assert "closed is not served" in caplog.text


def test_a_copy_is_served_once_the_original_has_left(bundle, folder):
    models = ServedModels()
    shutil.copytree(bundle, folder / "a")
    watch = BundleWatch(folder, models, lambda: None, Counters(), scan_interval_seconds=600.0)
    watch.start()
    shutil.copytree(bundle, folder / "b")
    for _ in range(2):  # the copy is refused, because its model is served already
        watch.scan()
    shutil.rmtree(folder / "a")
    watch.scan()
    watch.stop()
    assert [*models] == [("tiny", "1")]


def test_other_files_in_the_folder_retire_no_bundle(bundle, folder):
    models = ServedModels()
    shutil.copytree(bundle, folder / "tiny")
    watch = BundleWatch(folder, models, lambda: None, Counters(), scan_interval_seconds=600.0)
    watch.start()
    for number in range(1001):
        (folder / f"log-{number:04d}.txt").touch()
    watch.scan()
    watch.stop()
    assert [*models] == [("tiny", "1")]


def test_a_bundle_whose_server_is_absent_is_tried_again(bundle, folder, caplog):
    is_server_absent = True

    def make_backend(manifest):
        if is_server_absent:
            raise BackendBusy(manifest.title, "its server does not answer")
        graph = bundle.joinpath("cloud.onnx").read_bytes()
        return OnnxBackend(graph, kind="margins", model=manifest.title)

    shutil.copytree(bundle, folder / "one")
    models, counters = ServedModels(make_backend=make_backend), Counters()
    watch = BundleWatch(folder, models, lambda: None, counters, scan_interval_seconds=60.0)
    watch.start()
    watch.scan()
    assert not models
    assert caplog.text.count("its server does not answer") == 1
    is_server_absent = False
    watch.scan()
    watch.stop()
    assert [*models] == [("tiny", "1")]
    assert counters.snapshot()["watched"] == {"refused": 1, "added": 1}


def test_versions_are_added_replaced_and_removed(
    tmp_path, folder, mosquitto, connect_caller, caplog
):
    for name in ("1", "2", "3", "3 again"):
        repack(tiny.write_bundle(tmp_path / name, version=name[0]), tmp_path / f"{name}.gwb")
    (tmp_path / "1.gwb").rename(folder / "first.gwb")
    with Worker([], mosquitto.url, watch=folder, watch_seconds=0.02) as worker:
        client = connect_caller(mosquitto)

        def ask_for(version):
            client.ask(tiny.random_rows(1), version=version)
            response = client.response()
            assert response.version == version
            return response.error

        assert ask_for("1") is None
        shutil.move(tmp_path / "2", folder / "two")  # a folder
        wait_until(lambda: served_versions(worker) == {"1", "2"})
        assert (ask_for("1"), ask_for("2")) == (None, None)
        (tmp_path / "3.gwb").rename(folder / "first.gwb")
        wait_until(lambda: served_versions(worker) == {"2", "3"})
        assert (ask_for("1"), ask_for("2"), ask_for("3")) == ("no-model", None, None)
        (tmp_path / "3 again.gwb").rename(folder / "first.gwb")
        wait_until(lambda: worker.counters["watched"].get("refused"))
        assert "tiny 3 is served already" in caplog.text
        shutil.rmtree(folder / "two")
        (folder / "first.gwb").unlink()
        wait_until(lambda: not worker.models)
        assert ask_for("2") == "no-model"
        wait_until(lambda: not worker.models.retired_keys)
        # A replaced file counts as added and removed.
        assert worker.counters["watched"] == {"added": 3, "removed": 3, "refused": 1}


def test_an_absent_folder_is_refused(mosquitto, tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        Worker([], mosquitto.url, watch=tmp_path / "nothing")


def test_a_worker_that_watches_an_empty_folder_reports_that_it_has_no_model(folder, mosquitto):
    with Worker([], mosquitto.url, watch=folder) as worker:
        assert worker.trouble == "it has no model yet"

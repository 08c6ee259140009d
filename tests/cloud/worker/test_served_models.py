"""Models of a worker that are retired, replaced and dropped."""

from __future__ import annotations

import pytest

from gatewise_cloud.models.backends import OnnxBackend
from gatewise_cloud.worker.served_models import ServedModels

#: Model and version of the tiny bundle.
KEY = ("tiny", "1")


@pytest.fixture
def backends():
    """Backends of all loaded models, in the order of the loads."""
    return []


@pytest.fixture
def models(bundle, backends):
    """Models with backends that count the calls of `close`."""

    class CountingBackend(OnnxBackend):
        n_closes = 0

        def close(self):
            self.n_closes += 1

    def make_backend(manifest):
        graph = bundle.joinpath("cloud.onnx").read_bytes()
        backends.append(CountingBackend(graph, kind="margins", model=manifest.title))
        return backends[-1]

    return ServedModels(make_backend=make_backend)


def test_a_model_that_is_loaded_again_replaces_the_retired_one(models, bundle, backends):
    models.load(bundle)
    retired_model = models.find(KEY)
    models.retire(KEY)
    assert models.find(KEY) is retired_model
    models.load(bundle)
    assert models.find(KEY) is models[KEY] is not retired_model
    # the retired model may still have requests
    assert models.retired_keys == (KEY,)
    assert [backend.n_closes for backend in backends] == [0, 0]
    models.drop(KEY)
    assert models.retired_keys == ()
    assert [backend.n_closes for backend in backends] == [1, 0]
    assert list(models) == [KEY]


def test_close_closes_each_retired_model_of_a_key(models, bundle, backends):
    for _ in range(2):
        models.load(bundle)
        models.retire(KEY)
    models.load(bundle)
    models.close()
    assert [backend.n_closes for backend in backends] == [1, 1, 1]

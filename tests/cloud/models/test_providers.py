"""Execution providers: refusal of missing providers and of those that answer differently."""

from __future__ import annotations

import logging
import warnings

import numpy as np
import pytest

import gatewise as gw
from gatewise.errors import InputError
from gatewise.imports import CPU, load_onnxruntime
from gatewise_cloud import CloudModel, ModelError
from gatewise_cloud.models import cloud_model
from gatewise_cloud.service.cli import CloudSettings
from gatewise_edge.device import self_checks
from gatewise_edge.errors import SelfTestError
from tests.support.image_models import fit_conv_graph, load_digit_images

ONNXRUNTIME_PROVIDER_NAMES = load_onnxruntime().get_available_providers()
PROVIDERS = [name.removesuffix("ExecutionProvider").lower() for name in ONNXRUNTIME_PROVIDER_NAMES]
OTHER_PROVIDERS = [name for name in PROVIDERS if name != CPU]
needs_other_provider = pytest.mark.skipif(
    not OTHER_PROVIDERS, reason="this onnxruntime has only the CPU provider"
)


@pytest.fixture(scope="module")
def bundle_and_rows(tmp_path_factory):
    """A bundle of two networks, and rows that the networks have not seen."""
    images, y = load_digit_images()
    rows = images[900:1300]  # the networks are fitted to those before
    low_cost_graph = fit_conv_graph(images[:300], y[:300])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the solver does not converge on these rows
        high_cost_graph = fit_conv_graph(images[:900], y[:900])
    system = gw.PairCascade(low_cost_model=low_cost_graph, high_cost_model=high_cost_graph).fit(
        rows, y[900:1300]
    )
    folder = tmp_path_factory.mktemp("pair")
    return gw.pack(system, folder / "bundle", sample=rows[:64]), rows


@pytest.mark.slow
def test_a_missing_provider_is_refused_with_the_list_of_providers(bundle_and_rows):
    bundle, _ = bundle_and_rows
    message = f"provider 'neuron' is not in the onnxruntime installed here, which has .*{CPU}"
    with pytest.raises(InputError, match=message):
        gw.Device(bundle, provider="neuron")
    with pytest.raises(InputError, match=message):
        CloudModel.from_bundle(bundle, provider="neuron")
    with pytest.raises(InputError, match=message):
        gw.Worker([], "mqtt://127.0.0.1:1", watch=bundle.path, provider="neuron")
    settings = CloudSettings(backend="python:math:floor", provider="neuron")
    with pytest.raises(InputError, match="either --provider or --backend"):
        settings.make_worker()


@pytest.mark.slow
@pytest.mark.parametrize("provider", OTHER_PROVIDERS)
def test_answers_of_a_provider_equal_those_of_the_cpu(bundle_and_rows, provider):
    bundle, rows = bundle_and_rows
    X = rows.reshape(len(rows), -1).astype(np.float32)
    cpu_answer = CloudModel.from_bundle(bundle).answer(X)
    answer = CloudModel.from_bundle(bundle, provider=provider).answer(X)
    np.testing.assert_array_equal(answer.labels, cpu_answer.labels)
    np.testing.assert_allclose(answer.probabilities, cpu_answer.probabilities, atol=1e-3)
    with gw.Device(bundle) as cpu_device, gw.Device(bundle, provider=provider) as device:
        for row in rows[:50]:
            assert device.answer(row).label == cpu_device.answer(row).label


@pytest.mark.slow
@needs_other_provider
def test_a_provider_beyond_the_tolerance_is_refused(bundle_and_rows, monkeypatch):
    bundle, _ = bundle_and_rows
    for module in (cloud_model, self_checks):
        monkeypatch.setattr(module, "PROVIDER_TOLERANCE", -1.0)  # equal answers exceed it as well
    with pytest.raises(
        SelfTestError, match=f"with the provider '{OTHER_PROVIDERS[0]}' a probability"
    ):
        CloudModel.from_bundle(bundle, provider=OTHER_PROVIDERS[0])
    with pytest.raises(SelfTestError, match="stage_0 in 64 of 64 rows"):
        gw.Device(bundle, provider=OTHER_PROVIDERS[0])


@pytest.mark.slow
@needs_other_provider
def test_models_without_a_graph_refuse_or_ignore_a_provider(tmp_path, caplog):
    import lightgbm
    from sklearn.datasets import load_iris

    X, y = load_iris(return_X_y=True)
    # LightGBM runs linear trees itself, because they have no graph
    model = lightgbm.LGBMClassifier(n_estimators=3, linear_tree=True, n_jobs=1, verbose=-1)
    system = gw.ConfidenceCascade(
        model.fit(X, y), low_cost_model="linear", n_subsets=1, offload_rate=0.4, random_state=0
    ).fit(X, y)
    bundle = gw.pack(system, tmp_path / "bundle", sample=X[:16])
    with pytest.raises(ModelError, match="lightgbm runs the high-cost model"):
        CloudModel.from_bundle(bundle, provider=OTHER_PROVIDERS[0])
    with (
        caplog.at_level(logging.WARNING, "gatewise_edge"),
        gw.Device(bundle, provider=OTHER_PROVIDERS[0]),
    ):
        assert "has no stage to run: flat models run on the CPU" in caplog.text

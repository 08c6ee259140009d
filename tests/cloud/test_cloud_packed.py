"""From a fitted system, through its bundle and a worker, to the same answers."""

import numpy as np
import pytest
from sklearn.datasets import load_wine
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from gatewise_cloud import CloudModel, Worker
from gatewise_export import pack
from gatewise_training import StagedCascade


@pytest.mark.slow
def test_a_worker_answers_as_the_high_cost_model_does(tmp_path, mosquitto, caller):
    X, y = load_wine(return_X_y=True)
    f0 = make_pipeline(StandardScaler(), SVC(random_state=0)).fit(X, y)
    system = StagedCascade(f0, n_stages=1, families=("linear",), random_state=0).fit(X, y)
    bundle = pack(system, tmp_path / "wine.gwb", sample=X[::6], name="wine", version="2026-01")
    rows = X.astype(np.float32)
    want = system.high_cost_model_.labels(rows)
    probabilities = system.high_cost_model_.predict_proba(rows)
    asked = np.ascontiguousarray(rows[:, bundle.manifest.cloud_inputs()])

    alone = CloudModel.from_bundle(bundle).answer(asked)
    np.testing.assert_array_equal(alone.labels, want)
    # scikit-learn computes in float64, onnxruntime in float32
    np.testing.assert_allclose(alone.probabilities, probabilities, atol=1e-4)

    with Worker(bundle, mosquitto.url) as worker:
        one = caller(mosquitto)
        requests = [
            one.ask(part, model="wine", version="2026-01") for part in np.array_split(asked, 20)
        ]
        answers = {answer.id: answer for answer in one.responses(20)}
    got = np.concatenate([answers[request.id].labels for request in requests])
    np.testing.assert_array_equal(got, want)
    assert worker.counters["instances"] == len(X)

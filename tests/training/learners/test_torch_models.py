"""PyTorch modules and exported programs as high-cost and low-cost models."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.datasets import load_digits

import gatewise as gw
from gatewise.errors import InputError
from gatewise_export.packing.verification import verify
from gatewise_training.learners.given_models.given_graph import GivenGraph, graph_answer
from tests.support.processes import run_python

torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch onnxscript")
pytest.importorskip("onnxscript", reason="onnxscript is not installed: pip install onnxscript")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]


def make_picture_network(n_channels: int = 1, n_classes: int = 10) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(n_channels, 8, 3, padding=1),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(4),
        torch.nn.Flatten(),
        torch.nn.Dropout(0.5),
        torch.nn.Linear(128, n_classes),
    )


def predict_labels(module: torch.nn.Module, batch: np.ndarray) -> np.ndarray:
    module.eval()
    with torch.no_grad():
        return module(torch.from_numpy(batch)).argmax(dim=1).numpy()


def test_module_with_channels_first_takes_pictures_with_channels_last():
    pictures = np.random.default_rng(0).normal(size=(50, 8, 8, 3)).astype(np.float32)
    module = make_picture_network(n_channels=3)
    assert module.training
    graph = GivenGraph(gw.OnnxModel(module), (8, 8, 3), "model")
    assert module.training  # the export must not leave it in evaluation mode
    assert (graph.form.scores, graph.form.n_columns) == ("logits", 10)  # a column for each digit
    labels, _ = graph_answer(graph.content, graph.form, pictures.reshape(50, -1))
    expected_labels = predict_labels(module, np.ascontiguousarray(pictures.transpose(0, 3, 1, 2)))
    np.testing.assert_array_equal(labels, expected_labels)


def test_exported_program_with_a_fixed_batch_predicts_all_rows():
    rows = np.random.default_rng(0).normal(size=(50, 12)).astype(np.float32)
    module = torch.nn.Sequential(torch.nn.Linear(12, 3), torch.nn.Softmax(dim=1)).eval()
    program = torch.export.export(module, (torch.zeros(1, 12),))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # rows may run one by one
        graph = GivenGraph(gw.OnnxModel(program, classes=["a", "b", "c"]), (12,), "model")
    assert (graph.form.scores, graph.form.names) == ("probabilities", ("a", "b", "c"))
    labels, _ = graph_answer(graph.content, graph.form, rows)
    np.testing.assert_array_equal(labels, predict_labels(module, rows))


def test_module_that_cannot_run_the_rows_is_refused():
    with pytest.raises(
        InputError, match=r"does not accept instances of the rows' shape.*Unflatten"
    ):
        GivenGraph(gw.OnnxModel(make_picture_network()), (64,), "high_cost_model")


def train_module(module: torch.nn.Module, pictures: np.ndarray, y: np.ndarray) -> None:
    """Train a module on pictures with pixels from 0 to 16, after adding an axis of one channel.

    The pixels are divided by 16 in training only. The modules then answer pixels less well, which
    does not matter here: the tests compare answers of the same module.
    """
    inputs, targets = torch.from_numpy(pictures[:, None] / 16), torch.from_numpy(y)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    for _ in range(40):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(inputs), targets).backward()
        optimizer.step()


def test_pair_of_modules_packs_and_verifies(tmp_path):
    X, y = load_digits(return_X_y=True)
    pictures = X.reshape(-1, 8, 8).astype(np.float32)
    training_pictures, pair_pictures, test_pictures = np.split(pictures, [900, 1300])
    torch.manual_seed(0)
    low_cost_module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    high_cost_module = make_picture_network()
    for module in (low_cost_module, high_cost_module):
        train_module(module, training_pictures, y[:900])
    # modules within a module; pixels lie between 0 and 16, so the clipping changes no answer
    low_cost_model, high_cost_model = (
        torch.nn.Sequential(torch.nn.Hardtanh(0, 16), module)
        for module in (low_cost_module, high_cost_module)
    )
    pair = gw.PairCascade(low_cost_model=low_cost_model, high_cost_model=high_cost_model)
    pair.fit(pair_pictures)
    bundle = gw.pack(pair, tmp_path / "bundle", sample=pair_pictures[:64])
    test_rows = test_pictures.reshape(-1, 64)
    report = verify(pair, bundle, test_rows)
    assert (report.differing_decisions, report.cloud_label_differences) == (0, 0)
    labels = pair.high_cost_model_.labels(test_rows)
    # the pair reads flat rows, and the module pictures with a channel
    np.testing.assert_array_equal(labels, predict_labels(high_cost_model, test_pictures[:, None]))


def test_torch_is_not_imported_without_a_torch_model():
    run_python(
        "import sys, numpy as np, gatewise as gw\n"
        "from sklearn.datasets import load_iris\n"
        "from sklearn.linear_model import LogisticRegression\n"
        "X, y = load_iris(return_X_y=True)\n"
        "model = LogisticRegression(max_iter=500).fit(X, y)\n"
        "gw.ConfidenceCascade(model, low_cost_model='linear', n_subsets=1, offload_rate=0.4,"
        " random_state=0).fit(X, y)\n"
        "assert 'torch' not in sys.modules\n"
    )

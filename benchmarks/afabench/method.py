"""Adapter of `StagedCascade` and `AdaptGBRT` to AFABench, and its training script.

The pipeline of AFABench runs this file in its environment with arguments ``key=value``, as
described in its tutorial on new methods. It loads the saved method again for evaluation.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import yaml
from afabench.common.bundle import load_bundle, save_bundle
from afabench.common.config_classes import UnmaskerConfig
from afabench.common.unmaskers.utils import get_afa_unmasker_from_config
from afabench.eval.plotting_config import DATASETS_WITH_F_SCORE
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score

from benchmarks.afabench.acquisition_policy import AcquisitionPolicy, make_feature_costs
from gatewise_training import AdaptGBRT, StagedCascade

#: With fewer validation rows, methods cross-fit on training and validation rows together.
FEW_VALIDATION_ROWS = 300

Rows = tuple[NDArray[np.float32], NDArray[np.int64]]


class GatewiseMethod:
    """Fitted system with the protocol ``AFAMethod``."""

    has_builtin_classifier = True
    cost_param = None

    def __init__(self, policy: AcquisitionPolicy) -> None:
        self.policy = policy
        self.device = torch.device("cpu")

    def act(
        self, masked_features: Any, feature_mask: Any, selection_mask: Any = None, **_: Any
    ) -> Any:
        """Choose actions, shape (n, 1): 0 stops, k acquires selection k - 1."""
        actions = self._act_and_predict(masked_features, feature_mask)[0]
        return torch.from_numpy(actions)[:, None]

    def predict(self, masked_features: Any, feature_mask: Any, **_: Any) -> Any:
        """Compute class probabilities, shape (n, n_classes)."""
        return torch.from_numpy(self._act_and_predict(masked_features, feature_mask)[1])

    def _act_and_predict(
        self, masked_features: Any, feature_mask: Any
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        return self.policy.choose_actions(masked_features.numpy(), feature_mask.numpy())

    def set_cost_param(self, cost_param: float) -> None:
        """Choose the point that maximises accuracy - cost_param * cost on validation rows."""
        system = self.policy.system
        point = max(
            system.frontier_.points,
            key=lambda candidate: candidate.effective_accuracy - cost_param * candidate.cost,
        )
        self.policy.system = system.at(budget=point.cost)

    def set_seed(self, seed: int | None) -> None:
        """Do nothing, because answers are not random."""

    def to(self, device: Any) -> Self:
        """Return the method, which runs only on the CPU."""
        return self

    def save(self, path: Path) -> None:
        (path / "policy.pkl").write_bytes(pickle.dumps(self.policy))

    @classmethod
    def load(cls, path: Path, device: Any) -> Self:
        return cls(pickle.loads((path / "policy.pkl").read_bytes()))


def fit_system(
    name: str, training: Rows, validation: Rows, hard_budget: float | None, **settings: Any
) -> Any:
    """Fit a method of this project within a hard budget, or for all soft budgets.

    A hard budget limits the cost of every instance. This excludes offloads, because they need all
    features. The high-cost model is then not used, and AdaptGBRT is fitted without offloads.
    """
    high_cost_model = None
    if hard_budget is not None:
        settings |= {"budget": hard_budget, "max_instance_cost": hard_budget}
        high_cost_model = LogisticRegression()
        if name == "adapt-gbrt":
            settings["p_full"] = (0.0,)
    method_class = {"staged": StagedCascade, "adapt-gbrt": AdaptGBRT}[name]
    system = method_class(high_cost_model, **settings)
    if len(validation[1]) >= FEW_VALIDATION_ROWS:
        return system.fit(*training, validation=validation)
    features = np.concatenate([training[0], validation[0]])
    return system.fit(features, np.concatenate([training[1], validation[1]]))


def main(arguments: list[str]) -> None:
    """Fit on training and validation rows of AFABench, and save the method as a bundle."""
    options = dict(argument.split("=", 1) for argument in arguments)
    dataset, manifest = load_bundle(Path(options["train_dataset_bundle_path"]))
    validation = _read_rows(load_bundle(Path(options["val_dataset_bundle_path"]))[0])
    training = _read_rows(dataset)
    # selections and their prices
    unmasker = _load_unmasker(options["components/unmaskers@unmasker"])
    n_features = training[0].shape[1]
    selection_of_feature = _find_selections(unmasker, n_features)
    prices = unmasker.get_selection_costs(dataset.get_feature_acquisition_costs()).double().numpy()
    settings: dict[str, Any] = {
        "feature_costs": make_feature_costs(selection_of_feature, prices),
        "random_state": int(options["seed"]),
    }
    budget = None if options["hard_budget"] == "null" else float(options["hard_budget"])
    method_name = options["method"]
    # if the metric is macro F1, validation rows choose between no class weights and balanced ones
    if options["experiment@_global_"] in DATASETS_WITH_F_SCORE:
        systems = [
            fit_system(
                method_name, training, validation, budget, class_weight=class_weight, **settings
            )
            for class_weight in (None, "balanced")
        ]
        system = max(systems, key=lambda candidate: _macro_f1(candidate, validation))
    else:
        system = fit_system(method_name, training, validation, budget, **settings)
    n_classes = dataset.label_shape.numel()
    class_shares = np.bincount(training[1], minlength=n_classes) / len(training[1])
    adapter = GatewiseMethod(AcquisitionPolicy(system, selection_of_feature, class_shares))
    metadata = {"dataset_class_name": manifest["class_name"], **options}
    save_bundle(adapter, Path(options["save_path"]), metadata)


def _macro_f1(system: Any, validation: Rows) -> float:
    return float(f1_score(validation[1], system.predict(validation[0]), average="macro"))


def _read_rows(dataset: Any) -> Rows:
    features, labels = dataset.get_all_data()
    return features.numpy().astype(np.float32), labels.argmax(-1).numpy().astype(np.int64)


def _load_unmasker(name: str) -> Any:
    settings = yaml.safe_load(Path(f"extra/conf/components/unmaskers/{name}.yaml").read_text())
    return get_afa_unmasker_from_config(UnmaskerConfig(**settings))


def _find_selections(unmasker: Any, n_features: int) -> NDArray[np.intp]:
    """Find the index of the selection that reveals each feature."""
    n_selections = unmasker.get_n_selections(torch.Size([n_features]))
    selections = torch.arange(n_selections)[:, None]
    no_features = torch.zeros((n_selections, n_features))
    revealed_features = unmasker.unmask(
        masked_features=no_features,
        feature_mask=no_features.bool(),
        features=no_features,
        afa_selection=selections,
        selection_mask=torch.zeros((n_selections, n_selections), dtype=torch.bool),
        feature_shape=torch.Size([n_features]),
    )
    return revealed_features.numpy().argmax(axis=0)


if __name__ == "__main__":
    main(sys.argv[1:])

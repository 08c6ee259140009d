"""Given classifiers as stages, which are refused before the fit if they have no exact form."""

from __future__ import annotations

import pytest
from sklearn.datasets import load_wine
from sklearn.ensemble import AdaBoostClassifier, VotingClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from gatewise.errors import InputError
from gatewise_training.learners.given_models.given_classifiers import check_first_stages


@pytest.mark.filterwarnings("ignore:The `probability` parameter:FutureWarning")
@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (KNeighborsClassifier(), "KNeighborsClassifier: neighbours at equal distances"),
        (AdaBoostClassifier(), "AdaBoostClassifier: its votes have no exact form"),
        (
            make_pipeline(StandardScaler(), KNeighborsClassifier()),
            r"KNeighborsClassifier \(in Pipeline\): neighbours",
        ),
        (SVC(probability=True), "SVC: probability=True has no exact form"),
        (
            VotingClassifier([("svm", SVC(probability=True))]),
            r"SVC \(in VotingClassifier\): probability=True",
        ),
    ],
)
@pytest.mark.parametrize("has_columns", [False, True])
def test_stages_without_an_exact_form_are_refused_before_the_fit(model, reason, has_columns):
    X, y = load_wine(return_X_y=True)
    model.fit(X, y)
    first_stage = (model, list(range(13))) if has_columns else model
    message = (
        rf"first_stages\[0\] cannot be packed: {reason}.*; give another classifier, or an ONNX"
    )
    with pytest.raises(InputError, match=message):
        check_first_stages([first_stage], allow_missing=False)

"""Models that are Python functions or objects."""

import numpy as np
import pytest

from gatewise.errors import InputError
from gatewise.models.opaque_models import PythonModel


def test_a_model_with_the_same_class_twice_is_refused():
    class Duplicates:
        classes_ = ("no", "yes", "yes")

        def predict_proba(self, X):
            return np.tile([0.5, 0.25, 0.25], (len(X), 1))

    with pytest.raises(InputError, match="has class 'yes' twice in classes_"):
        PythonModel(Duplicates(), ["no", "yes"])

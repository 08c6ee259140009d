"""Predicted sizes for ``max_bytes``, compared with the tables of the generated C."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gatewise.errors import InputError, TooLargeError
from gatewise_export import pack, to_c
from gatewise_export.c99.cascade_reader import cascade_of
from gatewise_export.c99.writer import write_cascade
from gatewise_training.operating_points.packed_size import packed_bytes
from tests.support.budgeted_methods import N_FEATURES, load_table, make_method

pytestmark = pytest.mark.usefixtures("two_folds")

STAGED_CASES = {
    "staged-boosting": ("staged", {"families": ("boosting",)}),
    "staged-forest": ("staged", {"families": ("extra-trees",)}),
    "staged-svm": ("staged", {"families": ("svm", "linear")}),
}


@pytest.fixture(
    scope="module",
    params=[
        ("staged-boosting", False), ("staged-forest", False), ("staged-svm", True),
        ("adapt-gbrt", False), ("l1", True),
    ],
    ids=str,
)  # fmt: skip
def fitted_system(request, make_once):
    """A fitted system, and test rows."""
    method, is_binary = request.param
    name, settings = STAGED_CASES.get(method, (method, {}))
    X, X_test, y, _ = load_table(is_binary)

    def fit_system(_folder):
        return make_method(name, X, y, max_loss=0.03, **settings).fit(X, y)

    return make_once(f"packed-{method}-{is_binary}", fit_system), X_test


@pytest.mark.slow
def test_predicted_sizes_bound_the_tables_in_c(fitted_system, tmp_path) -> None:
    system, _ = fitted_system
    for chain_index, chain in enumerate(system.chains_):
        offloading_cascade = replace(
            cascade_of(system), stages=chain, thresholds=(1.0,) * len(chain), offloads=True
        )
        table_bytes = write_cascade(offloading_cascade, tmp_path / f"c{chain_index}").table_bytes
        assert table_bytes <= packed_bytes(chain)
        # The bound is close: it may include the numbers of each stage's features, in up to three
        # tables, and a small remainder.
        tolerance = 3 * N_FEATURES * len(chain) + 64
        assert packed_bytes(chain) <= 1.02 * table_bytes + tolerance


@pytest.mark.slow
def test_at_stays_within_max_bytes_with_the_same_decisions(fitted_system, tmp_path) -> None:
    system, X = fitted_system
    sizes = sorted(
        {point.bytes for point in (*system.frontier_.points, *system.frontier_.off_curve_points)}
    )
    smallest_size = sizes[0]
    with pytest.raises(TooLargeError) as error_info:
        system.at(max_bytes=smallest_size - 1)
    assert error_info.value.smallest_bytes == smallest_size
    assert error_info.value.max_bytes == smallest_size - 1
    for max_bytes in (smallest_size, sizes[len(sizes) // 2], sizes[-1]):
        small_system = system.at(max_bytes=max_bytes, max_loss=0.5)
        point = small_system.operating_point_
        assert point.bytes <= max_bytes
        assert to_c(small_system, tmp_path / f"c{max_bytes}").table_bytes <= max_bytes
        assert len(small_system.stages_) == len(point.thresholds)
        assert sum(point.exit_shares) == pytest.approx(1.0)
        # The full system has the same thresholds, and also the stages that never stop.
        full_system = system.at(max_loss=0.5)
        full_system.operating_point_ = system.frontier_.within_bytes(max_bytes).at(
            max_loss=0.5, slack=1.0
        )
        np.testing.assert_array_equal(small_system.predict(X), full_system.predict(X))
        np.testing.assert_array_equal(small_system.offload(X), full_system.offload(X))
        assert (small_system.cost(X) <= full_system.cost(X) + 1e-9).all()  # sums of other order
        # The limit still holds for another goal.
        assert small_system.at(budget=1e9).operating_point_.bytes <= max_bytes


@pytest.mark.slow
@pytest.mark.parametrize("method", ["staged", "adapt-gbrt"])
def test_a_fit_with_max_bytes_packs_within_them(method, tmp_path) -> None:
    X, X_test, y, y_test = load_table()
    max_bytes = 12_000
    system = make_method(method, X, y, max_bytes=max_bytes).fit(X, y)
    assert system.score(X_test, y_test) > 0.85
    assert all(packed_bytes(chain) <= max_bytes for chain in system.chains_)
    bundle = pack(system, tmp_path / "bundle", sample=X_test.to_numpy()[:8])
    point = bundle.manifest.active_point
    assert point.bytes == system.operating_point_.bytes
    assert to_c(system, tmp_path / "c").table_bytes <= max_bytes
    assert to_c(bundle, tmp_path / "c").table_bytes <= max_bytes
    assert len(bundle.manifest.operating_points) >= len(system.frontier_.points)


@pytest.mark.parametrize("max_bytes", [0, 1.5])
def test_invalid_sizes_are_refused(max_bytes) -> None:
    X, _, y, _ = load_table()
    with pytest.raises(InputError, match="max_bytes"):
        make_method("staged", X, y, max_bytes=max_bytes).fit(X, y)

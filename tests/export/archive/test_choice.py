"""Choices of instances to label, with their probabilities, reasons and files."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier

import numpy as np
import pytest
from msgspec.structs import replace as replace_fields

from gatewise.errors import InputError
from gatewise_export.archive.choice import (
    REASON_SHARES,
    choice_csv,
    choice_probabilities,
    choose,
    lock_choices,
    read_choices,
    reason_scores,
    write_choice,
)
from tests.export.archive.archived_rows import FACTS, make_archived_rows
from tests.export.archive.test_folder import NOW, open_folder

pytest.importorskip("pyarrow")


def make_rng(seed=0):
    return np.random.default_rng(seed)


@pytest.mark.parametrize("n_labels", [1, 20, 190, 500])
def test_choice_probabilities_sum_to_the_number_of_labels(n_labels):
    probability, _ = choice_probabilities(make_archived_rows(200), n_labels, make_rng())
    assert probability.sum() == pytest.approx(min(n_labels, 200))
    assert ((probability > 0) & (probability <= 1)).all()


def test_no_weight_exceeds_four_times_the_mean_weight():
    rows = make_archived_rows(2000)
    probability, _ = choice_probabilities(rows, 50, make_rng())
    mean_weight = rows.weights.sum() / 50
    # A quarter of the labels is spread evenly; rounding gets 1e-9.
    assert (rows.weights / probability).max() <= mean_weight / REASON_SHARES["estimate"]["even"] * (
        1 + 1e-9
    )


def test_doubt_disagreement_and_rare_regions_raise_the_probability():
    # Row 0 is in doubt, row 1 has a disagreement, and row 2 lies far from all others.
    rows = make_archived_rows(1000, audit_share=0.0)
    first_class_probability = np.full(1000, 0.999, np.float32)
    first_class_probability[0] = 0.5
    device_label = np.full(1000, -1)
    device_label[1] = 1  # the high-cost model says 0
    rows.X[:] = make_rng().normal(size=rows.X.shape) * 0.01 + 1.0
    rows.X[2] = -40.0
    rows = replace(
        rows,
        probabilities=np.column_stack([first_class_probability, 1 - first_class_probability]),
        cloud_label=np.zeros(1000, np.int32),
        device_label=device_label.astype(np.int32),
        sent_probability=np.ones(1000),
    )
    probability, main_reason = choice_probabilities(rows, 20, make_rng())
    assert (probability[:3] > 2 * np.median(probability)).all()
    assert main_reason[1] == "disagreement"


def test_a_choice_for_a_refit_prefers_small_margins_whatever_the_weights():
    rows = make_archived_rows(400, audit_share=0.0)
    margins = np.linspace(0.0, 1.0, 400)
    sent_probability = np.where(np.arange(400) % 2, 1.0, 0.02)
    rows = replace(
        rows,
        probabilities=np.column_stack([1 + margins, 1 - margins]) / 2,
        sent_probability=sent_probability,
    )
    probability, main_reason = choice_probabilities(rows, 40, make_rng(), "refit")
    assert probability.sum() == pytest.approx(40)
    # c_i = n' (s_even w_i / sum w + s_margin (1 - m_i)^4 / sum (1 - m_j)^4)
    scores = (1 - margins) ** 4
    expected_shares = 0.25 * rows.weights / rows.weights.sum() + 0.75 * scores / scores.sum()
    np.testing.assert_allclose(probability, 40 * expected_shares, rtol=1e-6)
    assert main_reason[1] == "margin"
    assert main_reason[398] == "even"


def test_labels_are_spread_evenly_if_all_answers_are_certain():
    rows = make_archived_rows(100, audit_share=0.0)
    rows = replace(rows, X=np.ones_like(rows.X), probabilities=np.tile([1.0, 0.0], (100, 1)))
    rows = replace(rows, cloud_label=np.zeros(100, np.int32))
    assert not reason_scores(rows, make_rng())["doubt"].any()
    probability, _ = choice_probabilities(rows, 10, make_rng())
    np.testing.assert_allclose(probability, 0.1)


def test_weights_of_chosen_instances_sum_to_all_weights_on_average():
    """Horvitz and Thompson: the mean over choices of sum(w / c) is sum(w).

    Here w are the weights, and c the probabilities of being chosen.
    """
    rows = make_archived_rows(300)
    probability, _ = choice_probabilities(rows, 60, make_rng())
    weights = rows.weights / probability
    totals = [weights[make_rng(seed).random(300) < probability].sum() for seed in range(400)]
    max_error = 4 * np.std(totals) / np.sqrt(len(totals))  # four standard errors of the mean
    assert abs(np.mean(totals) - rows.weights.sum()) < max_error


def test_an_instance_is_in_one_choice_only(tmp_path):
    archive = open_folder(tmp_path)
    archive.add(make_archived_rows(100, seed=1), FACTS, NOW)
    first_choice = choose(tmp_path, 30, make_rng())
    write_choice(tmp_path, first_choice, "1")
    with pytest.raises(InputError, match="newer than the last choice"):
        choose(tmp_path, 30, make_rng())
    archive.add(make_archived_rows(50, seed=2), FACTS, NOW + 1)
    second_choice = choose(tmp_path, 30, make_rng())
    write_choice(tmp_path, second_choice, "2")
    assert not set(first_choice.rows.ids) & set(second_choice.rows.ids)
    first_read, second_read = read_choices(tmp_path)
    assert first_read.rows.ids.tolist() == first_choice.rows.ids.tolist()
    assert second_read.rows.ids.tolist() == second_choice.rows.ids.tolist()
    assert first_read.choice_facts == first_choice.choice_facts
    np.testing.assert_array_equal(second_read.choice_probability, second_choice.choice_probability)


def test_a_choice_has_instances_of_one_model(tmp_path):
    archive = open_folder(tmp_path)
    archive.add(make_archived_rows(50), FACTS, NOW)
    archive.add(make_archived_rows(50), replace_fields(FACTS, model="other"), NOW + 1)
    choice = choose(tmp_path, 30, make_rng())
    assert choice.facts.model == "other"
    write_choice(tmp_path, choice, "1")
    with pytest.raises(InputError, match="no instances of other/1 that are newer"):
        choose(tmp_path, 30, make_rng(), version="other/1")
    write_choice(tmp_path, choose(tmp_path, 30, make_rng(), version="tiny/1"), "2")
    assert [choice.facts.model for choice in read_choices(tmp_path, ("tiny", "1"))] == ["tiny"]
    with pytest.raises(InputError, match="newer than the last choice"):
        choose(tmp_path, 30, make_rng())


def test_csv_has_an_empty_label_and_no_answer(tmp_path):
    open_folder(tmp_path).add(make_archived_rows(100), FACTS, NOW)
    choice = choose(tmp_path, 30, make_rng())
    header, first_row, *_ = choice_csv(choice).splitlines()
    assert header == "id,label,device,time,f0,f1,f2"
    assert first_row.split(",")[:2] == [choice.rows.ids[0], ""]


def test_a_choice_without_instances_is_refused(tmp_path):
    with pytest.raises(InputError, match="--n 0"):
        choose(tmp_path, 0, make_rng())
    with pytest.raises(InputError, match=r"no kept instances: workers .* every keep_seconds"):
        choose(tmp_path, 5, make_rng())
    open_folder(tmp_path).add(make_archived_rows(10), FACTS, NOW)
    with pytest.raises(InputError, match="has tiny/1, not 9"):
        choose(tmp_path, 5, make_rng(), version="9")


def test_of_two_choices_at_once_the_second_covers_no_instance_of_the_first(tmp_path):
    open_folder(tmp_path).add(make_archived_rows(100), FACTS, NOW)
    barrier = Barrier(2)

    def choose_and_write(timestamp):
        barrier.wait()
        with lock_choices(tmp_path):
            choice = choose(tmp_path, 10, make_rng())
            write_choice(tmp_path, choice, timestamp)

    with ThreadPoolExecutor(2) as threads:
        futures = [threads.submit(choose_and_write, timestamp) for timestamp in ("1", "2")]
    (error,) = filter(None, [future.exception() for future in futures])
    assert "newer than the last choice" in str(error)
    assert len(read_choices(tmp_path)) == 1

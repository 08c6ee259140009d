"""Ranking files: what they hold, and which line is wrong."""

from __future__ import annotations

import numpy as np
import pytest

from gatewise.errors import InputError
from gatewise_training.data.ranking_data import load_mq2008, load_svmlight
from tests.support.shared_data import shared_data

GOOD = """\
# as Yahoo writes it
2 qid:7 1:0.5 3:0.25
0 qid:7 3:1.0 # a comment
1 qid:9 2:-2e-1 3:0.125
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "set1.train.txt"
    path.write_text(GOOD)
    return path


def test_a_file_becomes_a_table(file):
    data = load_svmlight(file)
    wanted = [[0.5, 0, 0.25], [0, 0, 1.0], [0, -0.2, 0.125]]
    np.testing.assert_array_equal(data.X, np.array(wanted, np.float32))
    assert (data.X.dtype, data.X.flags.c_contiguous) == (np.float32, True)
    assert data.y.tolist() == [2, 0, 1]
    assert data.qid[0] == data.qid[1] != data.qid[2]
    assert data.feature_names == ("f1", "f2", "f3")
    assert data.feature_costs.total == 3.0
    assert data.name == "set1.train"
    assert data.parts == {}


def test_files_share_columns_and_no_queries(file, tmp_path):
    test = tmp_path / "set1.test.txt"
    test.write_text("0 qid:9 5:1\n3 qid:8 1:2\n")
    data = load_svmlight({"train": file, "test": test})
    assert data.X.shape == (5, 5)
    assert data.X[data.parts["test"]].tolist() == [[0, 0, 0, 0, 1], [2, 0, 0, 0, 0]]
    assert {p: len(rows) for p, rows in data.parts.items()} == {"train": 3, "test": 2}
    assert len(set(data.qid.tolist())) == 4  # 9 of one file is not 9 of the other
    assert data.qid[2] != data.qid[3]


def test_prices_belong_to_all_columns_or_to_those_in_use(file, tmp_path):
    prices = tmp_path / "costs.txt"
    prices.write_text("100.000000\n20\n5\n")
    data = load_svmlight(file, prices=prices)
    assert data.feature_costs.own.tolist() == [100, 20, 5]
    file.write_text("1 qid:1 2:1 699:2\n0 qid:2 5:3\n")  # three features, numbered up to 699
    data = load_svmlight(file, prices=prices)
    assert data.feature_names == ("f2", "f5", "f699")
    assert data.X.tolist() == [[1, 0, 2], [0, 3, 0]]
    assert data.feature_costs.price([2]) == 5
    prices.write_text("1\n2\n")
    with pytest.raises(InputError, match="2 prices, but the data has 699 columns, 3 of them in"):
        load_svmlight(file, prices=prices)
    prices.write_text("1\n-2\n3\n")
    with pytest.raises(InputError, match=r"costs.txt, line 2: '-2' is not a price"):
        load_svmlight(file, prices=prices)


def test_the_published_prices_load(tmp_path):
    path = tmp_path / "train.txt"
    path.write_text("1 qid:1 1:1 519:1\n0 qid:1 2:1\n")
    costs = load_svmlight(path, prices=shared_data("yahoo_ltr_costs.txt")).feature_costs
    assert costs.n_features == 519
    # CEGB, section 5, names 10 beside these; no price of the published file is 10
    assert set(costs.own.tolist()) == {1, 5, 20, 50, 100, 150, 200}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("qid:1 1:2", "'qid:1' is not a grade"),
        ("-1 qid:1 1:2", "'-1' is not a grade"),
        ("0.5 qid:1 1:2", "'0.5' is not a grade"),
        ("1 qid:a 1:2", "second word must be qid"),
        ("1", "second word must be qid"),
        ("1 qid:1 2", "'2' is not <feature>:<value>"),
        ("1 qid:1 a:2", "'a:2' is not <feature>:<value>"),
        ("1 qid:1 2:x", "'x' is not a number"),
        ("1 qid:1 2:nan", "value must be finite"),
        ("1 qid:1 2:1e300", "value must be finite"),
        ("1 qid:1 0:1", "feature 0 stands after feature 0"),
        ("1 qid:1 3:1 3:1", "feature 3 stands after feature 3"),
        ("1 qid:1 100001:1", "end at 100000"),
    ],
)
def test_bad_lines_are_named(tmp_path, line, message):
    path = tmp_path / "bad.txt"
    path.write_text(f"{GOOD}{line}\n0 qid:9 1:1\n")
    with pytest.raises(InputError, match=f"bad.txt, line 5: .*{message}"):
        load_svmlight(path)


def test_empty_and_missing_files_are_refused(tmp_path):
    (tmp_path / "empty.txt").write_text("# nothing\n\n")
    with pytest.raises(InputError, match=r"empty.txt has no documents"):
        load_svmlight(tmp_path / "empty.txt")
    with pytest.raises(InputError, match=r"nowhere.txt is not a file"):
        load_svmlight(tmp_path / "nowhere.txt")
    with pytest.raises(InputError, match="at least one"):
        load_svmlight({})


def test_mq2008_rotates_its_partitions(tmp_path):
    path = tmp_path / "mq.npz"
    part = np.repeat([1, 2, 3, 4, 5], 2)
    np.savez(path, X=np.eye(10), y=np.arange(10) % 3, qid=np.repeat(np.arange(5), 2), part=part)

    def published(fold):
        parts = load_mq2008(path, fold=fold).parts
        return {name: sorted({int(p) for p in part[rows]}) for name, rows in parts.items()}

    assert published(1) == {"train": [1, 2, 3], "validation": [4], "test": [5]}
    assert published(2) == {"train": [2, 3, 4], "validation": [5], "test": [1]}
    assert published(4) == {"train": [1, 4, 5], "validation": [2], "test": [3]}
    with pytest.raises(InputError, match="folds 1 to 5, not 0"):
        load_mq2008(path, fold=0)
    np.savez(path, X=np.eye(2), y=np.arange(2))
    with pytest.raises(InputError, match="no array 'qid'"):
        load_mq2008(path)
    np.savez(path, X=np.eye(2), y=np.arange(2), qid=np.zeros(3), part=np.ones(2))
    with pytest.raises(InputError, match="one value for each of the 2 rows"):
        load_mq2008(path)

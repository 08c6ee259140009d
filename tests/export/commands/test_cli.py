from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_wine

from gatewise.cli import main
from gatewise.prices import PriceList
from gatewise_export import Bundle
from gatewise_export.bundle.arrays import read_arrays, write_arrays
from gatewise_export.packing.verification import graph_outcome
from gatewise_training import methods
from tests.support.bundle_files import contents, replace_file

pytestmark = pytest.mark.slow  # fits models or starts processes

COSTS = """\
[features]
alcohol = 1.0
malic_acid = {own = 0.5, group = "lab"}
ash = {own = 0.25, group = "lab"}
magnesium = 2.0
hue = 0.1

[groups]
lab = 1.5
"""


#: Few stages, trees and penalties: what is tested is the way from a table to a bundle and back.
SMALL: dict[str, dict[str, Any]] = {
    "staged": {"n_stages": 2, "effort": "low", "max_trees": 20},
    "staged-lazy": {"n_stages": 2, "effort": "low", "max_trees": 20},
    "adapt-gbrt": {"p_full": (0.3,), "penalties": (0.01,), "n_rounds": 10},
    "adapt-lin": {"p_full": (0.3,), "penalties": (0.05,)},
}


@pytest.fixture(scope="module", autouse=True)
def small_fits() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, settings in SMALL.items():
            kind, given = methods._METHODS[name]
            patch.setitem(methods._METHODS, name, (kind, given | settings))
        yield


def wine() -> pd.DataFrame:
    data = load_wine(as_frame=True)
    frame = data.data[["alcohol", "malic_acid", "ash", "magnesium", "hue"]].copy()
    frame["cultivar"] = np.array(["north", "middle", "south"])[data.target]
    return frame


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a table, prices and a trained bundle."""
    path = tmp_path_factory.mktemp("home")
    wine().to_csv(path / "wine.csv", index=False)
    (path / "prices.toml").write_text(COSTS)
    args = ["train", f"{path}/wine.csv", "--target", "cultivar", "--method", "adapt-gbrt"]
    args += ["--costs", f"{path}/prices.toml", "--max-loss", "0.02", "--test-size", "0.2"]
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        assert main([*args, "--out", f"{path}/bundle", "--json"]) == 0
    assert err.getvalue() == ""
    (path / "result.json").write_text(out.getvalue())
    return path


@pytest.fixture
def bundle(home: Path, tmp_path: Path) -> Path:
    """A copy of the trained bundle."""
    return Path(shutil.copytree(home / "bundle", tmp_path / "bundle"))


Run = Callable[..., tuple[int, str, str]]
Refused = Callable[..., str]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """A function that runs the command line: exit status, standard output, standard error."""

    def call(*args: object) -> tuple[int, str, str]:
        capsys.readouterr()
        status = main([str(a) for a in args])
        out, err = capsys.readouterr()
        return status, out, err

    return call


@pytest.fixture
def refused(run: Run) -> Callable[..., str]:
    """A function that runs what must end with status 2, and one line on standard error: it."""

    def call(*args: object) -> str:
        status, out, err = run(*args)
        assert (status, out, err.count("\n")) == (2, "", 1)
        return err

    return call


# -- train ---------------------------------------------------------------------------------


def test_training_tells_what_it_made_in_json(home: Path) -> None:
    result = json.loads((home / "result.json").read_text())
    assert result["bundle"] == str(home / "bundle")
    assert result["test"]["rows"] == 36
    assert result["verify"]["differing_decisions"] == 0
    assert result["test"]["cloud_only"]["cost"] == pytest.approx(1 + 0.5 + 0.25 + 2 + 0.1 + 1.5)
    manifest = Bundle.open(home / "bundle").manifest
    assert (manifest.name, manifest.version) == ("wine", "1")
    assert set(manifest.classes) == {"north", "middle", "south"}
    assert [g.name for g in manifest.groups] == ["lab"]
    assert result["operating_point"]["expected_cost"] == manifest.active_point.expected_cost


def test_training_tells_people_what_it_made(home: Path, run: Run, tmp_path: Path) -> None:
    out = tmp_path / "made" / "b.gwb"
    args = ["train", home / "wine.csv", "--target", "cultivar", "--method", "adapt-gbrt"]
    args += ["--name", "cellar", "--bundle-version", "3", "--offload-rate", "0.3", "--seed", "1"]
    status, text, err = run(*args, "--out", out)
    assert status == 0
    assert "on 45 test rows" in text
    assert "<- active" in text
    assert "differ in 0 of 45 decisions" in text
    assert "100%" in err
    manifest = Bundle.open(out).manifest
    assert (manifest.name, manifest.version) == ("cellar", "3")
    assert manifest.active_point.offload_rate <= 0.3


def table(home: Path, edit: Callable[[pd.DataFrame], Any]) -> str:
    frame = wine()
    changed = edit(frame)
    path = home / "bad.csv"
    (frame if changed is None else changed).to_csv(path, index=False)
    return str(path)


def put(column: str, value: object) -> Callable[[pd.DataFrame], None]:
    def edit(frame: pd.DataFrame) -> None:
        frame[column] = frame[column].astype(object)
        frame.loc[3, column] = value

    return edit


def measured(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(cultivar=frame.ash + 0.001)


def doubled(frame: pd.DataFrame) -> pd.DataFrame:
    frame.columns = ["ash", *frame.columns[1:]]
    return frame


BAD_TABLES: list[tuple[Callable[[pd.DataFrame], Any], str]] = [
    (put("ash", np.nan), "'ash' is empty (NaN) in 1 of 178 rows (--impute or --allow-missing)"),
    (put("hue", np.inf), "'hue' has infinite values"),
    (put("hue", "red"), "'hue' is not numbers in 1 rows (as 'red') (--na red --impute or --drop"),
    (lambda f: f.assign(hue=f.hue.map("{} deg".format)), "'hue' is not numbers: 78 different"),
    (lambda f: f.assign(hue="2025-01-03"), "'hue' holds dates (as '2025-01-03') (--time hue"),
    (lambda f: f.assign(ash=np.nan, hue="x"), "To mend all: --drop ash --categorical hue"),
    (put("cultivar", "moon"), "class 'moon' has one row only"),
    (put("cultivar", np.nan), "'cultivar' is missing in 1 row"),
    (doubled, "column name 'ash' stands twice"),
    (lambda f: f.head(0), "has no rows"),
    (lambda f: f[f.cultivar == "north"], "one class only"),
    (lambda f: f[["cultivar"]], "no column beside the label"),
    (measured, "label type: continuous. This learns classes: bin measured values into classes"),
]


@pytest.mark.parametrize(("edit", "why"), BAD_TABLES, ids=[why for _, why in BAD_TABLES])
def test_bad_tables(
    home: Path, refused: Refused, tmp_path: Path, edit: Callable[[pd.DataFrame], Any], why: str
) -> None:
    out = tmp_path / "bundle"
    assert why in refused("train", table(home, edit), "--target", "cultivar", "--out", out)
    assert list(tmp_path.iterdir()) == []


BAD_COSTS = [
    (COSTS.replace("hue = 0.1", "hue = -0.1"), "'hue' is -0.1"),
    (COSTS.replace("hue = 0.1", ""), "no price for feature 'hue'"),
    (COSTS.replace("hue", "hew"), "'hue'"),
    (COSTS.replace("hue = 0.1", "hue = 0.1\nflavour = 1"), "unknown feature 'flavour'"),
    (COSTS.replace("1.5", "nan"), "'lab' is nan"),
    ("[features", "prices.toml"),
]


@pytest.mark.parametrize(("costs", "why"), BAD_COSTS, ids=[why for _, why in BAD_COSTS])
def test_bad_costs(home: Path, refused: Refused, tmp_path: Path, costs: str, why: str) -> None:
    file = tmp_path / "prices.toml"
    file.write_text(costs)
    args = ["train", home / "wine.csv", "--target", "cultivar", "--costs", file]
    assert why in refused(*args, "--out", tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


BAD_OPTIONS: list[tuple[list[str], str]] = [
    (["--target", "grape"], "no column 'grape'"),
    ([], "say which column is the label"),
    (["--target", "cultivar", "--budget", "3", "--max-loss", "0.1"], "not several"),
    (["--target", "cultivar", "--budget", "-3"], "in the range [0.0"),
    (["--target", "cultivar", "--method", "magic"], "no method 'magic'"),
    (["--target", "cultivar", "--budget", "0.5"], "below the price of the cheapest feature"),
    (["--target", "cultivar", "--time", "hue=%A"], "'%A' is no format of a time"),
    (["--target", "cultivar", "--categorical", "huge"], "'huge' is named, but there is no such"),
    (["--target", "cultivar", "--drop", "hue", "--boolean", "hue"], "'hue' is given two kinds"),
    (["--target", "cultivar", "--boolean", "hue"], "'hue' is not true or false in "),
    (["--target", "cultivar", "--default-price", "-1"], "--default-price is -1.0"),
    (["--target", "cultivar", "--test-size", "1.5"], "between 0 and 1"),
    (["--target", "cultivar", "--test-size", "0.001"], "--test-size 0.001"),
    (["--target", "cultivar", "--costs", "nowhere.toml"], "does not exist"),
    (["--target", "cultivar", "--method", "adapt-lin", "--allow-missing"], "takes no missing"),
]


@pytest.mark.parametrize(("options", "why"), BAD_OPTIONS, ids=[why for _, why in BAD_OPTIONS])
def test_bad_options(
    home: Path, refused: Refused, tmp_path: Path, options: list[str], why: str
) -> None:
    assert why in refused("train", home / "wine.csv", *options, "--out", tmp_path / "bundle")
    assert list(tmp_path.iterdir()) == []


def test_a_file_cut_short_is_refused(home: Path, refused: Refused, tmp_path: Path) -> None:
    whole = (home / "wine.csv").read_text()
    (tmp_path / "cut.csv").write_text(whole[: whole.rindex(",") - 9])
    err = refused("train", tmp_path / "cut.csv", "--target", "cultivar", "--out", tmp_path / "b")
    assert "line 179: 4 cells under 6 columns; is the file cut short?" in err
    wine().to_csv(tmp_path / "cut.csv", index=False, sep=";", decimal=",")
    err = refused("train", tmp_path / "cut.csv", "--target", "cultivar", "--out", tmp_path / "b")
    assert "its columns are separated by ';'" in err


def test_a_file_of_prices_is_begun(home: Path, run: Run, refused: Refused, tmp_path: Path) -> None:
    frame = wine().assign(bottle=[f"B{i}" for i in range(178)], when="2025-01-03 10:00")
    frame["bin no."] = np.arange(178) + 7000
    frame["grape, kind"] = np.where(frame.ash > 2.3, "Müller", 'a "b"')
    frame.loc[3, "hue"] = np.nan
    frame.to_csv(tmp_path / "w.csv", index=False)
    out = tmp_path / "prices.toml"
    status, _, err = run("init", tmp_path / "w.csv", "--target", "cultivar", "--out", out)
    assert status == 0
    command = shlex.split(err.splitlines()[1])
    assert command[1:] == [
        "train", str(tmp_path / "w.csv"), "--target", "cultivar", "--costs", str(out), "--impute",
        "--out", "bundle",
    ]  # fmt: skip
    kinds = {name: entry.kind for name, entry in PriceList.read(out).features.items()}
    assert kinds["bottle"] == kinds["bin no."] == "drop"
    assert kinds["when"] == "time"
    assert kinds["grape, kind"] == "category"
    assert kinds["hue"] is None
    args = [*command[1:-1], tmp_path / "b.gwb", "--method", "confidence", "--max-loss", "0.1"]
    status, _, _ = run(*args)
    assert status == 0
    manifest = Bundle.open(tmp_path / "b.gwb").manifest
    assert manifest.feature_costs().total == 7.0
    assert "grape, kind=Müller" in manifest.feature_names
    rows = pd.read_csv(tmp_path / "b-test.csv")
    assert (len(rows), list(rows.columns)) == (45, [*frame.drop(columns="cultivar"), "cultivar"])
    verify = ["verify", tmp_path / "b.gwb", "--data", tmp_path / "b-test.csv"]
    status, text, _ = run(*verify, "--target", "cultivar", "--json")
    assert (status, json.loads(text)["data"]["rows"]) == (0, 45)
    assert "exists" in refused("init", tmp_path / "w.csv", "--target", "cultivar", "--out", out)


def test_a_missing_table(refused: Refused, tmp_path: Path) -> None:
    err = refused("train", tmp_path / "x.csv", "--out", tmp_path / "bundle")
    assert "neither a file nor a bundled set" in err


def test_a_place_that_is_taken_is_refused_before_anything_is_learned(
    home: Path, refused: Refused, tmp_path: Path
) -> None:
    out = tmp_path / "thesis"
    out.mkdir()
    (out / "chapter.txt").write_text("one")
    err = refused("train", home / "wine.csv", "--target", "cultivar", "--out", out)
    assert "is not a bundle" in err
    assert contents(out) == {"chapter.txt": b"one"}


# -- frontier ------------------------------------------------------------------------------


def test_the_frontier_is_shown_and_left_alone(bundle: Path, run: Run) -> None:
    before = contents(bundle)
    status, text, _ = run("frontier", bundle)
    assert status == 0
    assert text.count("<- active") == 1
    status, text, _ = run("frontier", bundle, "--json")
    document = json.loads(text)
    manifest = Bundle.open(bundle).manifest
    assert document["active"] == manifest.active
    assert [p["cost"] for p in document["points"]] == [
        p.expected_cost for p in manifest.operating_points
    ]
    assert contents(bundle) == before


@pytest.mark.parametrize("goal", ["budget", "max_loss", "offload_rate"])
def test_the_operating_point_is_switched(bundle: Path, run: Run, goal: str) -> None:
    points = Bundle.open(bundle).manifest.operating_points
    wanted = {
        "budget": points[0].expected_cost,
        "max_loss": 1.0,
        "offload_rate": min(p.offload_rate for p in points),
    }[goal]
    before = contents(bundle)
    status, text, _ = run("frontier", bundle, f"--{goal.replace('_', '-')}", wanted, "--json")
    assert status == 0
    after = contents(bundle)
    manifest = Bundle.open(bundle).manifest
    assert json.loads(text)["active"] == manifest.active
    if goal != "offload_rate":
        assert manifest.active == 0
    else:
        assert manifest.active_point.offload_rate == wanted
    assert after.pop("manifest.json") != before.pop("manifest.json")
    assert after == before
    assert run("verify", bundle)[0] == 0


def test_the_frontier_is_drawn(bundle: Path, run: Run, refused: Refused, tmp_path: Path) -> None:
    assert run("frontier", bundle, "--plot", tmp_path / "f.png")[0] == 0
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")
    err = refused("frontier", bundle, "--budget", 0, "--plot", tmp_path / "f.txt")
    assert ".png, .svg or .pdf" in err


def test_an_operating_point_that_there_is_not(bundle: Path, refused: Refused) -> None:
    before = contents(bundle)
    assert "not several" in refused("frontier", bundle, "--budget", "1", "--offload-rate", "0.5")
    assert "nan" in refused("frontier", bundle, "--max-loss", "nan")
    assert contents(bundle) == before


# -- inspect -------------------------------------------------------------------------------


def test_inspect(bundle: Path, run: Run) -> None:
    status, text, _ = run("inspect", bundle)
    assert status == 0
    for word in ("wine 1", "every hash holds", "stage_", "cloud.onnx", "1 groups"):
        assert word in text
    status, text, _ = run("inspect", bundle, "--json")
    document = json.loads(text)
    assert document["manifest"] == json.loads((bundle / "manifest.json").read_text())
    assert document["bytes"] == sum(p.stat().st_size for p in bundle.iterdir()) - (
        (bundle / "manifest.json").stat().st_size
    )


def test_inspect_is_light_enough_for_a_device(
    bundle: Path, run_python: Callable[[str], str]
) -> None:
    heavy = "{'sklearn', 'scipy', 'lightgbm', 'onnx', 'skl2onnx', 'matplotlib', 'numba', 'pandas'}"
    code = (
        "import sys, contextlib, io\n"
        "from gatewise_export.commands.cli import commands\n"
        "from pathlib import Path\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        f"    commands['inspect'](Path({str(bundle)!r}))\n"
        f"print(sorted({heavy} & {{m.split('.')[0] for m in sys.modules}}))"
    )
    assert run_python(code) == "[]"


@pytest.mark.parametrize("command", ["inspect", "frontier", "verify"])
def test_bundles_that_are_not(bundle: Path, refused: Refused, tmp_path: Path, command: str) -> None:
    assert "does not exist" in refused(command, tmp_path / "nowhere")
    (bundle / "cloud.onnx").write_bytes(b"something else")
    assert "cloud.onnx is not the file that was packed" in refused(command, bundle)
    document = json.loads((bundle / "manifest.json").read_text())
    document["cloud"]["file"] = "../cloud.onnx"
    (bundle / "manifest.json").write_text(json.dumps(document))
    assert "cloud.file" in refused(command, bundle)


# -- verify --------------------------------------------------------------------------------


def test_verify(home: Path, bundle: Path, run: Run) -> None:
    status, text, _ = run("verify", bundle)
    assert status == 0
    assert "decides as it must" in text
    args = ["verify", bundle, "--data", home / "wine.csv", "--target", "cultivar"]
    status, text, _ = run(*args)
    assert status == 0
    status, text, _ = run(*args, "--json")
    document = json.loads(text)
    assert document["agrees"] is True
    data = document["data"]
    assert (data["rows"], data["differing_decisions"], data["max_margin_difference"]) == (178, 0, 0)
    assert data["accuracy"] > 0.8
    assert 0 <= data["offload_rate"] <= 1


def test_columns_are_found_by_their_names(home: Path, bundle: Path, run: Run) -> None:
    frame = wine()
    frame["spare"] = 1.0
    frame[frame.columns[::-1]].to_csv(home / "turned.csv", index=False)
    args = ["verify", bundle, "--target", "cultivar", "--json", "--data"]
    straight = json.loads(run(*args, home / "wine.csv")[1])["data"]
    turned = json.loads(run(*args, home / "turned.csv")[1])["data"]
    assert turned == straight


def test_a_bundle_that_decides_otherwise_is_told(bundle: Path, run: Run) -> None:
    manifest = Bundle.open(bundle).manifest
    arrays = dict(read_arrays((bundle / "sample.npz").read_bytes()))
    arrays["cloud_label"] = (arrays["cloud_label"] + 1) % manifest.n_classes
    replace_file(bundle, "sample.npz", write_arrays(arrays))
    status, text, _ = run("verify", bundle)
    assert status == 1
    assert "DIFFERS" in text
    status, text, _ = run("verify", bundle, "--json")
    assert status == 1
    assert json.loads(text)["agrees"] is False


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (lambda f: f.drop(columns="ash"), "no column 'ash'"),
        (put("cultivar", "moon"), "label 'moon' is not among the bundle's classes"),
        (put("hue", np.nan), "column 'hue' is empty (NaN)"),
    ],
)
def test_rows_that_do_not_fit_the_bundle(
    home: Path, bundle: Path, refused: Refused, edit: Callable[[pd.DataFrame], Any], why: str
) -> None:
    args = ["verify", bundle, "--target", "cultivar", "--data", table(home, edit)]
    assert why in refused(*args)


@pytest.mark.parametrize("method", ["staged", "adapt-gbrt", "adapt-lin"])
def test_a_bundle_trained_on_data_with_a_large_offset(
    run: Run, tmp_path: Path, method: str
) -> None:
    frame = wine()
    frame[frame.columns[:-1]] += 1e6
    frame.to_csv(tmp_path / "far.csv", index=False)
    args = ["--target", "cultivar", "--json"]
    train = ["train", tmp_path / "far.csv", *args, "--method", method, "--out", tmp_path / "b"]
    status, text, _ = run(*train)
    assert status == 0
    assert json.loads(text)["verify"]["differing_decisions"] == 0
    status, text, _ = run("verify", tmp_path / "b", "--data", tmp_path / "far.csv", *args)
    assert status == 0
    data = json.loads(text)["data"]
    assert (data["differing_decisions"], data["differing_labels"]) == (0, 0)


def test_a_bundle_that_buys_node_by_node_goes_all_the_way(
    home: Path, run: Run, tmp_path: Path
) -> None:
    out = tmp_path / "lazy.gwb"
    train = ["train", home / "wine.csv", "--target", "cultivar", "--method", "staged-lazy"]
    status, text, err = run(*train, "--costs", home / "prices.toml", "--out", out, "--json")
    assert (status, err) == (0, "")
    report = json.loads(text)["verify"]
    assert report["rows"] == 45
    assert {k for k, v in report.items() if v} <= {"rows", "cloud_probability_max_difference"}
    data = ["--data", home / "wine.csv", "--target", "cultivar"]
    status, text, _ = run("verify", out, *data, "--json")
    document = json.loads(text)
    assert (status, document["agrees"], document["data"]["max_margin_difference"]) == (0, True, 0)
    status, text, _ = run("inspect", out)
    assert status == 0
    assert "stage_0.npz" in text
    assert "up to" in text
    status, text, _ = run(
        "edge", out, "--data", home / "wine.csv", "--policy", "edge-only", "--json"
    )
    assert status == 0
    *answers, last = (json.loads(line) for line in text.splitlines())
    assert last["summary"]["answers"]["edge"] == len(answers) == 178
    opened = Bundle.open(out)
    rows = wine()[list(opened.manifest.feature_names)].to_numpy(np.float32)
    expected = graph_outcome(opened, rows)
    stopped = expected.exits < len(opened.manifest.stages)
    assert stopped.any()
    for answer, cost, exit_, stops in zip(
        answers, expected.costs.tolist(), expected.exits.tolist(), stopped, strict=True
    ):
        if stops:
            assert (answer["cost"], answer["stage"]) == (round(cost, 9), exit_)


def test_a_method_without_a_cloud_goes_all_the_way(
    home: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"penalties": (0.02,), "n_rounds": 20}
    entry = ("GreedyMiser", settings)
    monkeypatch.setitem(methods._METHODS, "alone", entry)
    out = tmp_path / "alone"
    train = ["train", home / "wine.csv", "--target", "cultivar", "--method", "alone", "--out", out]
    status, text, _ = run(*train)
    assert status == 0
    assert "cloud_only" not in text
    assert "0 of 45 decisions" in text
    status, text, _ = run(*train, "--json")
    test = json.loads(text)["test"]
    assert (test["cloud_only"], test["system"]["offload_rate"]) == (None, 0.0)
    assert Bundle.open(out).manifest.cloud is None
    for command in ("inspect", "verify", "frontier"):
        assert run(command, out)[0] == 0
    status, text, _ = run("edge", out, "--data", home / "wine.csv", "--json")
    assert status == 0
    assert json.loads(text.splitlines()[-1])["summary"]["answers"]["edge"] == 178


@pytest.mark.parametrize("command", ["train", "frontier", "inspect", "verify"])
def test_every_command_has_help_with_an_example(run: Run, command: str) -> None:
    status, text, _ = run(command, "--help")
    assert status == 0
    assert f"gatewise {command} " in text
    assert "Example" in text

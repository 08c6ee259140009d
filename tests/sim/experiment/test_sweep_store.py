import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from gatewise.errors import InputError
from gatewise_sim.experiment.scenario import Scenario
from gatewise_sim.experiment.sweep.store import Fingerprints, SweepFolder
from gatewise_sim.report.model import POINT_KIND


@dataclass(frozen=True)
class Names:
    """What a job of a sweep names."""

    bundle: str
    data: str
    scenario: Scenario


@pytest.fixture
def job(tmp_path):
    bundle = tmp_path / "bundle"
    (bundle / "stages").mkdir(parents=True)
    (bundle / "manifest.json").write_text("{}")
    (bundle / "stages" / "a.onnx").write_bytes(b"a")
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    (tmp_path / "trace.csv").write_text("time\n1\n")
    (tmp_path / "link.toml").write_text("rtt_ms = 10\n")
    return Names(
        str(bundle),
        str(tmp_path / "rows.csv"),
        Scenario(
            workload=f"replay:{tmp_path / 'trace.csv'}:every=1day", link=str(tmp_path / "link.toml")
        ),
    )


def digest(job: Names) -> str:
    return Fingerprints().digest(job)


def test_another_content_of_any_file_or_another_setting_is_another_point(job, tmp_path):
    seen = {digest(job), digest(replace(job))}
    assert len(seen) == 1
    assert set(*seen) <= set("0123456789abcdef")
    changes = (
        {"seed": 1}, {"outages": "cloud:12:00-12:10"}, {"baselines": False}, {"budget": 0.1},
    )  # fmt: skip
    seen |= {digest(replace(job, scenario=job.scenario.changed(**change))) for change in changes}
    for file in ("manifest.json", "stages/a.onnx"):
        path = tmp_path / "bundle" / file
        path.write_text(path.read_text() + " ")
        seen.add(digest(job))
    for file in ("rows.csv", "trace.csv", "link.toml"):
        (tmp_path / file).write_text((tmp_path / file).read_text() + " ")
        seen.add(digest(job))
    (tmp_path / "bundle/stages/a.onnx").rename(tmp_path / "bundle/stages/b.onnx")
    seen.add(digest(job))
    assert len(seen) == 1 + 5 + 1 + len(changes)


def test_another_function_in_a_module_is_another_point(job, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = tmp_path / "one_policy.py"
    seen = set()
    for word in ("stop", "offload"):
        module.write_text(f"def decide(point):\n    return {word!r}\n")
        own = replace(job, scenario=job.scenario.changed(policy="one_policy:decide"))
        seen |= {digest(own), digest(replace(own, data="block=one_policy:decide"))}
    assert len(seen) == 4


def test_files_are_read_once(job, tmp_path):
    prints = Fingerprints()
    before = prints.digest(job)
    (tmp_path / "rows.csv").write_text("other")
    assert prints.digest(job) == before  # within one sweep the files are what they were


def test_no_password_is_written(job, tmp_path):
    secret = replace(
        job, scenario=Scenario(engine="live", broker="mqtt://me:hunter2@localhost:1883")
    )
    store, prints = SweepFolder(tmp_path / "out"), Fingerprints()
    store.keep(digest(secret), prints.contents(secret), {"kind": "gatewise-simulation"})
    assert "hunter2" not in store.path(digest(secret)).read_text()


def test_what_is_kept_is_found_and_nothing_else(tmp_path):
    store = SweepFolder(tmp_path / "out")
    assert store.find("a" * 32) is None
    store.keep("a" * 32, {"job": {}}, {"accuracy": 0.5})
    assert store.find("a" * 32) == {"accuracy": 0.5}
    document = json.loads(store.path("a" * 32).read_text())
    assert document["kind"] == POINT_KIND
    for text in (
        "", "{", "[]", "null", json.dumps(document | {"kind": "x"}), "[" * 100_000,
        json.dumps(document | {"digest": "b" * 32}), json.dumps(document | {"report": 1}),
    ):  # fmt: skip
        store.path("a" * 32).write_text(text)
        assert store.find("a" * 32) is None


def test_somebody_elses_folder_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="file is a file, not a folder: give another --out"):
        SweepFolder(tmp_path / "file")
    with pytest.raises(InputError, match=r"holds other files: give another --out"):
        SweepFolder(tmp_path)
    assert not (tmp_path / "points").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "points").touch()
    with pytest.raises(InputError, match="points is a file"):
        SweepFolder(tmp_path / "mine")


@pytest.mark.parametrize(
    ("kind", "ours"),
    [("gatewise-sweep", True), ("gatewise-simulation", True), ("gatewise-demo", False)],
)
def test_a_folder_of_a_sweep_or_a_simulation_is_taken(tmp_path, kind, ours):
    name = "sweep.json" if "sweep" in kind else "report.json"
    (tmp_path / name).write_text(json.dumps({"kind": kind}))
    (tmp_path / "timeline.csv").touch()
    if ours:
        assert SweepFolder(tmp_path).points.is_dir()
    else:
        with pytest.raises(InputError, match="other files"):
            SweepFolder(tmp_path)


def test_names_that_are_no_files_do_no_harm():
    strange = Names("a\0b", "x" * 10_000, Scenario())
    assert digest(strange) == digest(strange)
    assert Fingerprints().contents(strange)["files"] == {}


def test_a_job_that_names_the_folder_it_is_in_hashes_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").mkdir()
    assert Fingerprints().contents(Names(".", "digits", Scenario()))["files"] == {}
    assert Path("digits").is_dir()

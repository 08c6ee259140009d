from __future__ import annotations

import datetime

from gatewise_sim.doctor.installation import examine_installation

REQUIREMENTS = [
    "numpy>=1.26",
    'numpy>=99.1; extra == "edge"',
    'no-such-library>=1; (python_version >= "3.8") and extra == "edge"',
    'gatewise[edge,parquet]; extra == "cloud"',
    'pytest; extra == "parquet"',
    "scipy>=0.1; extra == 'train'",
]


def by_code(**settings):
    return {finding.code: finding for finding in examine_installation(**settings)}


def test_this_installation_is_whole(tmp_path):
    found = list(examine_installation(folder=tmp_path))
    assert {finding.state for finding in found} == {"ok"}
    extras = [finding.says for finding in found if finding.check == "extra"]
    assert len(extras) == 7
    assert any(finding.check == "onnxruntime" for finding in found)


def test_what_an_extra_lacks_is_named_with_that_of_extras_it_includes():
    found = list(examine_installation(requirements=REQUIREMENTS))
    lacking = {f.says for f in found if f.code == "extra-missing"}
    assert len(lacking) == 2
    for says in lacking:
        assert "no-such-library" in says
        assert "numpy>=99.1 (it is " in says
    assert any("[cloud]" in says for says in lacking)
    whole = [f.says for f in found if f.code == "extra"]
    assert [says.split("]")[0] for says in whole][:3] == ["[train", "[export", "[sim"]


def test_clock_and_disk(tmp_path, monkeypatch):
    long_ago = datetime.datetime(2001, 1, 1, tzinfo=datetime.UTC)
    assert by_code(now=long_ago)["clock-behind"].state == "problem"
    assert by_code(folder=tmp_path)["disk"].state == "ok"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "mosquitto" in by_code()["broker" if "broker" in by_code() else "no-mosquitto"].says

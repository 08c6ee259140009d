from __future__ import annotations

import datetime
import re

from gatewise_sim.doctor.installation import check_installation

REQUIREMENTS = [
    "numpy>=1.26",
    'numpy>=99.1; extra == "edge"',
    'no-such-library>=1; (python_version >= "3.8") and extra == "edge"',
    'gatewise[edge,parquet]; extra == "cloud"',
    'pytest; extra == "parquet"',
    "scipy>=0.1; extra == 'train'",
]


def by_code(**settings):
    return {finding.code: finding for finding in check_installation(device=False, **settings)}


def test_this_installation_is_whole():
    found = list(check_installation(device=False))
    assert {finding.state for finding in found} == {"ok"}
    assert sum(finding.text.startswith("[") for finding in found) == 5
    assert any(finding.text.startswith("onnxruntime ") for finding in found)


def test_what_an_extra_lacks_is_named_with_that_of_extras_it_includes():
    found = list(check_installation(device=False, requirements=REQUIREMENTS))
    lacking = {f.text for f in found if f.code == "package-missing"}
    assert len(lacking) == 2
    for says in lacking:
        assert "no-such-library" in says
        assert re.search(r"numpy>=99\.1 \(\S+ is installed\)", says)
    assert any("[cloud]" in says for says in lacking)
    whole = [f.text.split("]")[0] for f in found if f.text.endswith("is installed")]
    assert whole == ["[train", "[export", "[sim"]


def test_of_a_device_a_missing_library_is_a_problem_and_other_extras_are_left_out():
    found = list(check_installation(device=True, requirements=REQUIREMENTS))
    assert [f.state for f in found if f.text.startswith("[")] == ["problem"]


def test_a_clock_before_the_installation_is_behind():
    long_ago = datetime.datetime(2001, 1, 1, tzinfo=datetime.UTC)
    assert by_code(now=long_ago)["clock-behind"].state == "problem"

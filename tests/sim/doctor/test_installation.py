"""Tests of the doctor's check of the installation."""

from __future__ import annotations

import datetime
import re

from gatewise_sim.doctor.installation import check_installation

#: Requirements of a package, of which edge needs a newer numpy and a library that do not exist.
REQUIREMENTS = [
    "numpy>=1.26",
    'numpy>=99.1; extra == "edge"',
    'no-such-library>=1; (python_version >= "3.8") and extra == "edge"',
    'gatewise[edge,parquet]; extra == "cloud"',
    'pytest; extra == "parquet"',
    "scipy>=0.1; extra == 'train'",
]


#: Extras that the doctor reports.
EXTRAS = ("train", "export", "edge", "cloud", "sim")


def check_by_code(**settings):
    """Check the installation of a machine that is no device; return the findings by code."""
    return {finding.code: finding for finding in check_installation(is_device=False, **settings)}


def test_this_installation_is_complete():
    findings = list(check_installation(is_device=False))
    assert {finding.state for finding in findings} == {"ok"}
    assert sum(finding.text.startswith("[") for finding in findings) == len(EXTRAS)
    assert any(finding.text.startswith("onnxruntime ") for finding in findings)


def test_missing_libraries_of_an_extra_and_its_extras_are_named():
    findings = list(check_installation(is_device=False, requirements=REQUIREMENTS))
    missing_texts = {finding.text for finding in findings if finding.code == "package-missing"}
    assert len(missing_texts) == 2
    for text in missing_texts:
        assert "no-such-library" in text
        assert re.search(r"numpy>=99\.1 \(\S+ is installed\)", text)
    assert any("[cloud]" in text for text in missing_texts)
    complete_extras = [
        finding.text.split("]")[0] for finding in findings if finding.text.endswith("is installed")
    ]
    assert complete_extras == ["[train", "[export", "[sim"]


def test_device_is_checked_for_the_edge_extra_only():
    findings = list(check_installation(is_device=True, requirements=REQUIREMENTS))
    assert [finding.state for finding in findings if finding.text.startswith("[")] == ["problem"]


def test_a_clock_before_the_installation_is_behind():
    long_ago = datetime.datetime(2001, 1, 1, tzinfo=datetime.UTC)
    assert check_by_code(now=long_ago)["clock-behind"].state == "problem"

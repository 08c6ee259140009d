"""The table of texts and the checks that use it belong together."""

import re
from pathlib import Path

from gatewise_sim.doctor import certificates, findings, network
from gatewise_sim.doctor.findings import note, problem

SOURCE = "".join(path.read_text() for path in Path(findings.__file__).parent.glob("*.py"))


def test_every_case_is_used_and_every_use_is_a_case():
    for case in findings._TEXTS:
        assert SOURCE.count(f'"{case}"') >= 2, case
    used = {*certificates._UNVERIFIED.values(), *network._REFUSALS.values()}
    used |= set(re.findall(r'(?:problem|note)\("([^"]+)"', SOURCE))
    assert used <= set(findings._TEXTS)


def test_a_case_gives_check_code_text_and_remedy():
    found = problem("tcp-refused", host="h", port=5)
    assert (found.check, found.state, found.code) == ("tcp", "problem", "tcp-refused")
    assert found.says == "nobody listens on h port 5"
    assert problem("clock-behind the certificate", begin="").code == "clock-behind"
    busy = problem("cloud-{error}", error="busy", detail="{full}", hint="wait")
    assert (busy.code, busy.says, busy.remedy) == (
        "cloud-busy", "the worker answers busy: {full}", "wait",
    )  # fmt: skip
    assert note("no-cloud").remedy == ""

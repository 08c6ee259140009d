"""The page of real simulations, and of odd ones made from them."""

import html as escaping
import re
import xml.etree.ElementTree as ET

import pytest

from gatewise_sim.fleet.estimate.plan import SamplingPlan, Window
from gatewise_sim.report import words
from gatewise_sim.report.simulation_page import render
from gatewise_sim.report.simulation_words import answer, caveats, course_of_outages, leg

pytestmark = pytest.mark.slow  # each works on the report of a real run

OUTAGE = {"outages": "cloud:+200s-+320s"}


def drawings(page: str) -> list[ET.Element]:
    found = [ET.fromstring(part) for part in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]
    return [svg for svg in found if svg.get("aria-hidden") is None]


def text(page: str) -> str:
    """What a reader reads."""
    page = re.sub(r"<(style|script)>.*?</\1>", "", page, flags=re.DOTALL)
    page = re.sub(r"</?(span|b)\b[^>]*>", "", page)
    plain = escaping.unescape(re.sub(r"<[^>]+>", " ", page)).replace("\N{NO-BREAK SPACE}", " ")
    return re.sub(r"\s+", " ", plain)


def test_the_page_has_its_parts_in_order_and_asks_nobody(simulated):
    page = render(simulated(**OUTAGE))
    heads = re.findall(r'<h2 id="[^"]+">([^<]+)', page)
    assert heads == [
        "Accuracy against cost",
        "Time to the answer",
        "Where it goes",
        "In the course of time",
        "Class by class",
        "Who answered, and why",
        "Every policy",
        "Run it again",
    ]
    assert set(re.findall(r"https?://[^\"'\s<>]+", page)) == {"http://www.w3.org/2000/svg"}
    assert re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?(?!#)([^"')\s>]+)""", page) == []
    assert "<h1>" in page[: page.index("Before you rely on it")]


def test_ids_are_unique_and_every_reference_leads_to_one(simulated):
    page = render(simulated(**OUTAGE))
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    asked = re.findall(r"url\(#([^)]+)\)", page)
    for group in re.findall(r'aria-labelledby="([^"]+)"', page):
        asked += group.split()
    assert set(asked) <= set(ids)
    for svg in drawings(page):
        assert svg.get("role") == "img"
        assert svg.find("{*}title").text
        assert svg.find("{*}desc").text


def test_the_answer_says_what_it_costs_and_saves(simulated):
    report = simulated(**OUTAGE)
    said = "".join(answer(report))
    system, cloud = leg(report, "system"), leg(report, "cloud_only")
    assert said.startswith(words.percent(system["accuracy"]["value"]))
    assert words.percent(cloud["accuracy"]["value"]) in said
    assert "fewer bytes" in said
    assert "less energy" in said
    assert words.millis(system["latency_ms"]["p95"]["value"]) in said
    assert "with the cloud down for 2 min" in said
    assert said.endswith(".")
    assert said.count(".") == 1 + len(re.findall(r"\d\.\d", said))
    assert said in text(render(report))


def test_money_is_in_the_answer_once_there_are_prices(simulated, tmp_path):
    (tmp_path / "prices.toml").write_text('currency = "CHF"\nper_mb = 1\nper_device_month = 0.5')
    report = simulated(prices=str(tmp_path / "prices.toml"))
    said = "".join(answer(report))
    assert "CHF a month" in said
    page = text(render(report))
    assert "CHF a month of the whole fleet" in page
    assert "cost per month" in page
    assert "a month" not in text(render(simulated()))


def test_an_outage_is_told_with_what_it_did_to_accuracy(simulated):
    report = simulated(**OUTAGE)
    course = course_of_outages(report)
    assert course["during"] == pytest.approx(course["alone"], abs=0.002)  # edge-only meanwhile
    assert course["fallback"] > 0.05
    page = text(render(report))
    assert "Shaded: cloud down 3:20 to 5:20." in page
    assert "of the answers are fallbacks (see the time line)" in page
    for b in report["timeline"]:  # it falls, and comes back
        b["accuracy"] = 0.5 if 200 <= b["begin"] < 320 else 0.9
    assert "accuracy fell to 50.0 % and came back." in "".join(answer(report))
    for b in report["timeline"]:
        b["accuracy"] = 0.89 if 200 <= b["begin"] < 320 else 0.9
    assert "accuracy stayed about the same (89.0 %)." in "".join(answer(report))
    for b in report["timeline"]:
        b["accuracy"] = 0.5 if b["begin"] >= 200 else 0.9
    assert "accuracy fell to 50.0 % and has not come back since." in "".join(answer(report))


def test_a_short_outage_in_a_long_run_is_drawn_once_more_larger(simulated):
    page = render(simulated(seconds=14_400.0, workload="poisson:1/min", outages="link:+1h-+65min"))
    assert "Around 01:00 to 01:05" in page
    assert 'id="time-1-title"' in page
    assert 'id="time-1-title"' not in render(simulated(**OUTAGE))


def test_every_leg_is_in_drawings_and_tables_with_its_interval(simulated):
    report = simulated()
    page = render(report)
    for entry in report["legs"]:
        assert page.count(entry["name"]) >= 8
        low, high = (words.percent(entry["accuracy"][end]) for end in ("low", "high"))
        if low != high:
            assert f"{low.split()[0]} to {high}" in text(page)


def test_assumed_times_and_a_sample_are_said(simulated):
    report = simulated()
    said = " ".join(caveats(report))
    assert "is assumed" in said
    assert "Sampled" not in said
    report["calibration"]["kind"] = "mine.json"
    assert "is assumed" not in " ".join(caveats(report))


def test_a_million_devices(simulated):
    report = simulated(devices=1_000_000, workers=20, workload="poisson:4/day", baselines=False)
    page = text(render(report))
    assert "1,000,000 devices" in page
    assert f"of {report['instances']:,} instances" in page


def test_a_sample_is_said(simulated):
    report = simulated()
    windows = tuple(Window(b, b + 30.0, 5.0, b, b + 300.0, 0) for b in (0.0, 300.0))
    report["sampling"] = str(SamplingPlan(5, 1, 20, 4, windows, 600.0))
    said = " ".join(caveats(report))
    assert "Sampled, not stepped in full: 5 of 20 devices" in said
    assert "95 % confidence intervals" in said


# -- odd ones ------------------------------------------------------------------------------------


def test_rows_without_labels(simulated):
    report = simulated(labels=False)
    page = render(report)
    assert "The rows have no labels" in text(page)
    assert "of the instances go to the cloud" in text(page)
    assert "oracle" not in [entry["key"] for entry in report["legs"]]
    assert "nan" not in text(page).lower().split()


def test_nothing_is_offloaded(simulated):
    report = simulated(offload_rate=0.0)
    assert report["offload_rate"] == 0
    page = text(render(report))
    assert "100 % fewer bytes" in page
    assert "offloaded: 95 % within" not in page.split("Accuracy against cost")[0]


def test_one_device_for_a_moment_and_no_baselines(simulated):
    report = simulated(devices=1, seconds=20.0, workload="periodic:5s", baselines=False)
    page = text(render(report))
    assert "1 device over" in page
    assert "always asking the cloud" not in page.split("Before you rely on it")[0]


def test_all_are_lost(simulated):
    report = simulated()
    report["answers"] = dict.fromkeys(report["answers"], 0) | {"lost": report["instances"]}
    for entry in report["legs"]:
        entry["answers"] = dict.fromkeys(entry["answers"], 0) | {"lost": entry["instances"]}
        entry["latency_ms"], entry["breakdown_ms"], entry["reasons"] = {}, {}, {}
        entry["histogram"] = {"edges_ms": [], "all": [], "offloaded": []}
    report["timeline"] = report["classes"] = []
    page = text(render(report))
    assert "No instance was answered." in page
    assert f"{words.count(report['instances'])} instances got no answer" in page


def test_names_with_markup_are_only_text(simulated):
    report = simulated(**OUTAGE)
    evil = "</title><script>alert(1)</script>&\"'"
    report["dataset"] = report["method"] = report["workload"] = report["command"] = evil
    report["transport"]["link"] = report["settings"]["link"] = evil
    report["notes"], report["troubles"] = [evil], [evil]
    report["calibration"] |= {"kind": evil, "<b>": evil}
    for entry in report["classes"]:
        entry["label"] = evil
    report["legs"][0]["name"] = evil
    page = render(report)
    assert "<script>alert" not in page
    assert page.count("<script>") == 1
    assert evil in escaping.unescape(page)
    assert drawings(page)


@pytest.mark.parametrize("number", [26, 60])
def test_many_classes(simulated, number):
    report = simulated()
    one = report["classes"][0]
    report["classes"] = [
        {**one, "class_index": k, "label": chr(65 + k), "offload_rate": k / number}
        for k in range(number)
    ] + [{**one, "instances": 0.0, "offload_rate": None, "accuracy": None, "edge_accuracy": None}]
    page = render(report)
    assert f"the {min(number, 40)} of {number + 1} that are offloaded most" in text(page)
    assert len(drawings(page)) == len(drawings(render(simulated())))


def test_a_live_run_stands_beside_its_twin(simulated):
    report = simulated(**OUTAGE)
    report |= {
        "engine": "live",
        "checked": {"compared": 100, "differing": {"labels": 0, "routes": 0, "costs": 0}},
        "twin": {"live": {"accuracy": 0.9, "p50_ms": 1.0}, "virtual": {"accuracy": 0.9,
                                                                       "p50_ms": None}},
        "run": {"seconds": 60.0, "created": "2026-01-01T00:00:00+00:00", "machine": "x"},
    }  # fmt: skip
    report["legs"][0]["engine"] = "live"
    page = text(render(report))
    assert "every one has exactly the label, route and cost" in page
    assert "Live, and in virtual time" in page
    assert "Run live, 2026-01-01" in page
    assert "Only Gatewise itself was run live" in page
    report["checked"]["differing"]["routes"] = 2
    assert "2 another route" in text(render(report))


def test_the_same_report_gives_the_same_page(simulated):
    assert render(simulated(**OUTAGE)) == render(simulated(**OUTAGE))

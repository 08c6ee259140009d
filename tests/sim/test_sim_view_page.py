"""The page in a real browser while a real simulation runs."""

import threading
import time
from itertools import pairwise

import pytest

from gatewise_sim.fleet.progress import Listeners, Snapshot
from gatewise_sim.view import open_watch

pytestmark = pytest.mark.slow  # a real browser, and a real run

PATIENCE = 120.0


def eventually(page, expression):
    """Wait until a JavaScript expression gives something true; that."""
    deadline = time.monotonic() + PATIENCE
    while not (found := page.run(expression)):
        assert time.monotonic() < deadline, f"{expression}: {page.run('document.body.innerText')}"
        time.sleep(0.1)
    return found


def text(name):
    return f"document.getElementById('{name}').textContent"


def number(name):
    return f"parseInt({text(name)}.replace(/[^0-9]/g, '') || '0')"


class Kept:
    """Keeps what a real run told."""

    def __init__(self):
        self.snapshots = []

    def begin(self, title, seconds, total): ...

    def policy(self, key, name): ...

    def advance(self, snapshot):
        self.snapshots.append(snapshot)

    def fault(self, what, up, at): ...

    def end(self, text): ...


@pytest.fixture
def watch():
    watch = open_watch(serve=0, quiet=True)
    watch.__enter__()
    yield watch
    watch.__exit__(KeyboardInterrupt, None, None)  # waits for no page to learn of the end


def test_figures_change_while_a_run_goes_on_and_the_report_comes(small, watch, browser, tmp_path):
    from gatewise_sim.experiment.simulation import simulate

    page = browser.page(watch.url, 390)
    assert page.run(text("title")) == "about to begin"
    kept, done = Kept(), []

    def work():
        done.append(
            simulate(
                small.bundle,
                small.rows,
                small.truth,
                watch=Listeners(watch, kept),
                jobs=1,
                devices=200,
                seconds=86_400.0,
                workload="poisson:1/min",
                outages="cloud:8:00-9:00",
                baselines=False,
            )
        )

    thread = threading.Thread(target=work)
    thread.start()
    try:
        eventually(page, f"{number('answered')} > 0")
        seen = []
        while len(seen) < 4 and thread.is_alive():
            seen.append(page.run(number("answered")))
            eventually(page, f"{number('answered')} != {seen[-1]} || {text('status')}[0] == 'e'")
        assert all(before < after for before, after in pairwise(seen))
        assert len(seen) > 1  # a quick run may be over before the page has asked four times
    finally:
        thread.join()
    simulation = done[0]
    simulation.write(tmp_path / "out")
    watch.report(tmp_path / "out" / "report.html")
    eventually(page, "!document.getElementById('report').hidden")
    report, told = simulation.report, kept.snapshots
    assert page.run(number("answered")) == report["instances"]
    fallbacks = page.run("document.querySelectorAll('#routes tr')[2].lastChild.textContent")
    assert int(fallbacks.replace(",", "")) == report["answers"]["fallback"]
    assert report["answers"]["fallback"]
    assert page.run(text("faults")) == "cloud was down from 8h00m to 9h00m"
    # The picture holds what was told: hatched where the cloud was away, and nowhere else.
    assert len(told) > 2  # told by the clock: a quick machine hears less
    box = page.run(
        "(() => { const b = document.querySelector('#chart path.fallback').getBBox();"
        " const d = document.querySelector('#chart path.down').getBBox();"
        " return [b.x, b.x + b.width, d.x, d.x + d.width]; })()"
    )
    # A piece of news is drawn over the time since the one before it; the outage took an hour.
    apart = max(b - a for a, b in pairwise([0.0, *(snapshot.at for snapshot in told)]))
    slack = apart / 3600.0 * (box[3] - box[2]) + 5
    assert box[0] >= box[2] - slack
    assert box[1] <= box[3] + slack
    assert page.run("document.querySelectorAll('#chart path.p95').length") == 1
    assert page.troubles == []
    assert {url.removeprefix(watch.url) for url in page.requests} <= {"state.json", "data:,"}
    page.call("Page.navigate", url=page.run("document.querySelector('#report a').href"))
    eventually(page, "document.querySelectorAll('svg').length > 3 && document.title")
    assert page.troubles == []
    page.close()


def tell(watch, steps=30):
    watch.begin("ten devices, 2 workers, link 4g", 600.0, 3000)
    watch.policy("system", "Gatewise")
    watch.fault("cloud", False, 200.0)
    watch.fault("cloud", True, 260.0)
    watch.fault("link", False, 500.0)
    for k in range(1, steps + 1):
        snapshot = Snapshot(
            at=10.0 * k,
            answered=50 * k,
            edge=40 * k,
            cloud=8 * k,
            fallback=2 * k,
            right=49 * k,
            p50_ms=30.0,
            p95_ms=80.0 + k,
            workers_up=2,
            devices_up=10,
            done=k / 60,
        )
        watch.advance(snapshot)


@pytest.mark.parametrize(("width", "dark"), [(320, False), (390, True), (1400, False)])
def test_it_fits_phones_and_desks_by_day_and_by_night(watch, browser, width, dark):
    tell(watch)
    page = browser.page(watch.url, width, dark=dark)
    eventually(page, f"{number('answered')} == 1500")
    assert page.run("document.documentElement.scrollWidth") <= width
    texts = page.run(
        "[...document.querySelectorAll('#chart text')].map(t => t.getBoundingClientRect())"
        ".map(r => [r.left, r.right])"
    )
    assert texts
    assert all(left >= -1 and right <= width + 1 for left, right in texts)
    paper = page.run("getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(22, 24, 28)") == dark
    assert page.troubles == []
    page.close()


def test_screen_readers_hear_the_figures_and_of_changes_alone(watch, browser):
    tell(watch)
    page = browser.page(watch.url)
    eventually(page, f"{number('answered')} == 1500")
    names = {(n["role"]["value"], n.get("name", {}).get("value", "")) for n in page.accessible}
    assert ("heading", "ten devices, 2 workers, link 4g") in names
    assert ("progressbar", "of this leg") in names
    assert ("rowheader", "fallback") in names
    assert ("columnheader", "answered by") in names
    assert [n for n in names if n[0] in {"image", "img"} and "who answered" in n[1]]
    assert (
        page.run("document.querySelectorAll('[role=status], [aria-live], [role=log]').length") == 1
    )
    page.run(
        "window.said = []; new MutationObserver(() => said.push(1)).observe("
        "document.querySelector('[role=status]'),"
        "{childList: true, characterData: true, subtree: true})"
    )
    for k in range(31, 41):
        watch.advance(Snapshot(at=10.0 * k, answered=50 * k, edge=50 * k, done=k / 60))
    eventually(page, f"{number('answered')} == 2000")
    assert page.run("said.length") == 0
    watch.advance(Snapshot(at=510.0, answered=2500, edge=2500, done=0.85))
    assert "down: link" in eventually(
        page, f"{text('status')}.includes('down') && {text('status')}"
    )
    assert page.run("said.length") == 1
    page.close()


def test_names_from_files_are_text(watch, browser):
    watch.begin("<img src=x onerror=alert(1)>", 60.0, None)
    watch.policy("a", "</script><b>")
    watch.fault("<i>link</i>", False, 1.0)
    watch.advance(Snapshot(at=2.0, answered=1, edge=1))
    watch.policy("b", "<u>")
    page = browser.page(watch.url)
    eventually(page, f"{text('title')}.includes('<img')")
    assert (
        page.run("document.querySelectorAll('img, b:not(#percent), u, main i:not([class])').length")
        == 0
    )
    assert page.troubles == []
    page.close()


def test_a_server_that_goes_away_is_said_and_the_figures_stay(browser):
    with open_watch(serve=0, quiet=True) as watch:
        tell(watch)
        page = browser.page(watch.url)
        eventually(page, f"{number('answered')} == 1500")
        assert page.troubles == []
        watch._server.close()
        said = eventually(page, f"!document.getElementById('gone').hidden && {text('gone')}")
    assert "does not answer any more" in said
    assert page.run(number("answered")) == 1500
    page.close()


def test_after_the_end_a_server_that_is_gone_is_no_alarm(browser, tmp_path):
    (tmp_path / "report.html").write_text("<h1>report</h1>")
    with open_watch(serve=0, quiet=True) as watch:
        tell(watch)
        watch.end("all is well")
        watch.report(tmp_path / "report.html")
        page = browser.page(watch.url)
        eventually(page, "!document.getElementById('report').hidden")
        assert page.run("document.querySelectorAll('#report a').length") == 1
    page.run("poll(), poll(), poll()")
    said = eventually(page, f"!document.getElementById('gone').hidden && {text('gone')}")
    assert said == "The simulation has ended, and its server with it."
    assert page.run("document.querySelectorAll('#report a').length") == 0
    assert str(tmp_path) in page.run(text("report"))
    page.close()

import json
import threading
import urllib.error
import urllib.request

import pytest

from gatewise.errors import InputError
from gatewise_sim.fleet.progress import ProgressListener, Snapshot
from gatewise_sim.view import open_watch

LINES = ("two devices", "  Gatewise", "  done: Gatewise, 50 answered, 20.0 % offloaded")


def run(watch: ProgressListener) -> None:
    watch.begin("two devices", 60.0, 100)
    watch.policy("system", "Gatewise")
    watch.advance(Snapshot(at=60.0, answered=50, edge=40, cloud=10, done=1.0))
    watch.end("all is well")


def state(url: str) -> dict:
    with urllib.request.urlopen(f"{url}state.json", timeout=30) as answer:
        return json.load(answer)


def test_without_a_terminal_there_are_plain_lines_on_standard_error_alone(capsys):
    with open_watch() as watch:
        assert watch.url is None
        run(watch)
    out, err = capsys.readouterr()
    assert out == ""
    assert tuple(err.splitlines()) == (*LINES, "  ended after 1 s: all is well")


def test_quiet_is_quiet_and_still_knows(capsys):
    with open_watch(quiet=True) as watch:
        run(watch)
        assert watch.picture().now.answered == 50
    assert capsys.readouterr() == ("", "")


def test_the_page_shows_the_run_and_goes_when_it_is_over(capsys, tmp_path):
    (tmp_path / "report.html").write_text("<h1>report</h1>")
    with open_watch(serve=0, quiet=True) as watch:
        url = watch.url
        assert f"watch it at {url}\n" == capsys.readouterr().err
        run(watch)
        assert not state(url)["final"]
        watch.report(tmp_path / "report.html")
        assert state(url)["final"]
        with urllib.request.urlopen(f"{url}report.html", timeout=30) as answer:
            assert answer.read() == b"<h1>report</h1>"
    with pytest.raises(urllib.error.URLError):
        state(url)
    assert not [t for t in threading.enumerate() if t.name in {"page", "board"}]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_whatever_ends_it_everything_ends(error):
    urls = []

    def work():
        with open_watch(serve=0) as watch:
            urls.append(watch.url)
            watch.begin("two devices", 60.0, 100)
            raise error

    with pytest.raises(error):
        work()
    with pytest.raises(urllib.error.URLError):
        state(urls[0])


def test_a_port_that_is_taken_ends_it_before_it_begins():
    with open_watch(serve=0, quiet=True) as one:
        port = int(one.url.rsplit(":", 1)[1].strip("/"))
        with pytest.raises(InputError, match="choose another"), open_watch(serve=port):
            raise AssertionError("entered")


def test_standard_error_that_is_gone_does_not_stop_a_run(monkeypatch, tmp_path):
    gone = (tmp_path / "gone").open("w")
    gone.close()
    watch = open_watch()
    monkeypatch.setattr("sys.stderr", gone)
    with watch:
        run(watch)
    assert watch.picture().phase == "ended"

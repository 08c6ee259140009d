import json
from pathlib import Path

import pytest

from gatewise_sim.report.output import FILES, REPORT_KIND, check_folder, write_folder, write_text
from gatewise_training.errors import InputError

TEXTS = {
    "instances.csv": "a\n1\n",
    "frontier.svg": "<svg/>",
    "report.html": "<p>",
    "report.json": json.dumps({"kind": REPORT_KIND}),
}


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "a-bundle"
    folder.mkdir()
    (folder / "manifest.json").write_text("{}")
    return folder


def tree(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


def test_everything_is_written_and_nothing_else(tmp_path, bundle):
    out = tmp_path / "deep" / "out"
    check_folder(out)
    write_folder(out, bundle, TEXTS)
    assert tree(out) == {*FILES[1:], "bundle/manifest.json"}
    assert (out / "report.html").read_text() == "<p>"
    assert (out / "report.html").stat().st_mode & 0o077 == 0o044


def test_an_earlier_run_is_replaced_and_a_guest_stays(tmp_path, bundle):
    out = tmp_path / "out"
    write_folder(out, bundle, TEXTS)
    (out / "notes.txt").write_text("mine")
    (bundle / "stage_0.onnx").write_text("new")
    check_folder(out)
    write_folder(out, bundle, {**TEXTS, "report.html": "<p>2"})
    assert (out / "notes.txt").read_text() == "mine"
    assert (out / "bundle" / "stage_0.onnx").read_text() == "new"
    assert (out / "report.html").read_text() == "<p>2"


def test_an_interrupted_run_does_not_block_the_next(tmp_path, bundle):
    out = tmp_path / "out"
    write_folder(out, bundle, TEXTS)
    (out / "report.json").unlink()
    check_folder(out)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("thesis.tex", "years of work", "holds other files"),
        ("report.json", '{"kind": "tax"}', "is not a demo's"),
        ("report.json", "not json", "is not a demo's"),
    ],
)
def test_a_folder_of_somebody_elses_is_refused_untouched(tmp_path, name, content, message):
    out = tmp_path / "out"
    out.mkdir()
    (out / name).write_text(content)
    with pytest.raises(InputError, match=message):
        check_folder(out)
    assert (out / name).read_text() == content


def test_a_file_in_the_way_is_named(tmp_path):
    (tmp_path / "out").write_text("")
    for out in (tmp_path / "out", tmp_path / "out" / "deeper"):
        with pytest.raises(InputError, match=r"out is a file, not a folder"):
            check_folder(out)


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "report.html"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "new \ud800")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]

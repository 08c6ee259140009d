import json

import pytest

from gatewise.documents.toml_settings import SettingsTable
from tests.support.refused import refused_file


def test_a_file_is_read_key_by_key(tmp_path):
    path = tmp_path / "s.toml"
    path.write_text('n = 3\nlist = [1, 2.5]\nname = "x"\nkind = "b"\n[inner]\nm = inf\n')
    table = SettingsTable.read(path, "settings file", ("n", "list", "name", "kind", "inner", "q"))
    assert (table.number("n"), table.number("q", 1.5)) == (3.0, 1.5)
    assert table.numbers(("n", "q")) == {"n": 3.0}
    assert table.number_list("list", 2, "stages") == [1.0, 2.5]
    assert (table.text("name"), table.text("q", "y")) == ("x", "y")
    assert (table.choice("kind", {"a": 1, "b": 2}), table.choice("q", {"a": 1}, 7)) == (2, 7)
    assert table.table("inner", ("m",)).number("m", infinite=True) == float("inf")


def read_all(path):
    table = SettingsTable.read(path, "settings file", ("n", "list", "name", "kind", "inner"))
    table.number("n")
    table.number_list("list", 2, "stages")
    table.text("name")
    table.choice("kind", {"a": 1, "b": 2})
    table.table("inner", ("m",)).number("m", positive=True)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("n = 3", "", ": n is missing"),
        ("n = 3", "n = 'x'", ": n is 'x', not a number"),
        ("n = 3", "n = true", ": n is True, not a number"),
        ("n = 3", "n = nan", ": n is nan, not a number"),
        ("n = 3", "n = inf", ": n is inf, must be finite"),
        ("n = 3", "n = -1", ": n is -1, must be at least 0"),
        ("n = 3", "n = 3\nz = 1", ": unknown key 'z'; there are n, list, name"),
        ("[1, 2.5]", "[]", ": list is [], not a list of numbers"),
        ("[1, 2.5]", "3", ": list is 3, not a list of numbers"),
        ("[1, 2.5]", "[1]", ": list has 1 figures, 2 stages"),
        ("[1, 2.5]", "[1, true]", ": list[1] is True, not a number"),
        ('"x"', '" "', ": name is ' ', not a text"),
        ('"x"', "3", ": name is 3, not a text"),
        ('"b"', '"c"', ": kind is 'c'; choose one of a, b"),
        ('"b"', "[1]", ": kind is [1]; choose one of a, b"),
        ("[inner]\n", "inner = 3\n#", ": inner is 3, not a table"),
        ("m = 1", "m = 0", ": inner.m is 0, must be above 0"),
        ("m = 1", "", ": inner.m is missing"),
        ("m = 1", "k = 1", ": inner: unknown key 'k'; there are m"),
        ("n = 3", "n = ", "Invalid value"),
    ],
)
def test_what_cannot_be_is_refused_by_its_key(tmp_path, old, new, says):
    text = 'n = 3\nlist = [1, 2.5]\nname = "x"\nkind = "b"\n[inner]\nm = 1\n'
    path = tmp_path / "s.toml"
    path.write_text(text)
    read_all(path)
    assert text.count(old) == 1
    refused_file(read_all, path, text.replace(old, new), says)


@pytest.mark.parametrize(
    ("text", "says"), [("", "Expecting value"), ("[]", "holds no table"), ('{"z": 1}', "key 'z'")]
)
def test_a_file_of_another_kind_or_with_another_key_is_refused(tmp_path, text, says):
    def read(path):
        SettingsTable.read(path, "settings file", ("n",), parse=json.loads)

    refused_file(read, tmp_path / "s.json", text, says)

"""Trained systems of every kind as C: refused values, sizes, files and command."""

from __future__ import annotations

import json
import re
import subprocess
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_wine

from benchmarks.c99.compiled import STRICT_FLAGS, compile_models, compiler_command
from gatewise.cli import main
from gatewise.errors import InputError
from gatewise_edge import Device
from gatewise_edge.errors import SensorError
from gatewise_export import pack, to_c
from gatewise_export.bundle.errors import ConversionError
from gatewise_export.c99.c_text import c_number
from gatewise_export.c99.cascade_reader import cascade_of
from gatewise_training import (
    BudgetForest,
    CEGBClassifier,
    CEGBRegressor,
    FeatureCosts,
    StagedCascade,
)
from tests.support.needs import needs_compiler

pytestmark = [
    pytest.mark.slow,  # fits models and compiles them
    needs_compiler,
]

X, CULTIVARS = load_wine(return_X_y=True)
X = X.astype(np.float32)
COSTS = FeatureCosts(
    np.linspace(0.2, 1.4, 13), group=["a"] * 4 + ["b"] * 3 + [None] * 6, shared={"a": 2, "b": 1}
)


#: Names of systems that `fit_system` fits.
FITTED_SYSTEMS = ("cancer", "gated-trees", "gated-lines", "missing", "kernels", "lazy")
#: Models without a high-cost model, which are fitted here.
MODELS = {
    "budget-forest": lambda: BudgetForest(COSTS, alpha=0.0, n_estimators=6, random_state=0),
    "cegb": lambda: CEGBClassifier(COSTS, penalties=(0.02,), n_rounds=15, random_state=0),
}


@pytest.fixture(scope="module")
def compiled_systems(fit_system: Any, tmp_path_factory: Any) -> dict[str, Any]:
    """System, rows, bundle and library, with float or 16-bit thresholds in turn."""
    folder = tmp_path_factory.mktemp("systems")
    systems: dict[str, tuple[Any, Any]] = {}
    for name in FITTED_SYSTEMS:
        fitted_system = fit_system(name)
        systems[name] = fitted_system.system, fitted_system.rows
    for name, make_model in MODELS.items():
        systems[name] = make_model().fit(X, CULTIVARS), X
    sources = []
    packed_systems = {}
    for number, (name, (system, rows)) in enumerate(systems.items()):
        bundle = pack(system, folder / f"bundle{number}", sample=rows[:48], name=name)
        n_outputs = [spec.outputs for spec in bundle.manifest.stages]
        source = to_c(
            bundle, folder / f"c{number}", coded=("float", 16)[number % 2], name=f"m{number}"
        )
        sources.append((source, n_outputs))
        packed_systems[name] = system, rows, bundle
    libraries = compile_models(sources, flags=("-O0",))
    return {
        name: (*packed_system, library)
        for (name, packed_system), library in zip(packed_systems.items(), libraries, strict=True)
    }


@pytest.mark.parametrize("name", [*FITTED_SYSTEMS, *MODELS])
def test_c_refuses_values_and_acquires_as_a_device_in_python(compiled_systems, name):
    _, rows, bundle, library = compiled_systems[name]
    rng = np.random.default_rng(3)
    rows = np.array(rows[:60], np.float32)
    rows[rng.random(rows.shape) < 0.1] = np.nan
    rows[rng.random(rows.shape) < 0.04] = np.inf
    c_answers = library(rows)
    feature_names = bundle.manifest.feature_names
    with Device(bundle, runner="numpy") as device:
        for row_number, row in enumerate(rows):
            refused_feature = int(c_answers.refused[row_number])  # -1 if there is none
            answer = device.answer_many(row[None])[0]
            if isinstance(answer, SensorError):
                assert (answer.sensor, c_answers.stages[row_number]) == (
                    feature_names[refused_feature],
                    -1,
                )
                continue
            # without a link the features of the cloud are not acquired
            assert answer.acquired == tuple(np.flatnonzero(c_answers.acquired[row_number]).tolist())
            if refused_feature >= 0:
                problem = "infinite" if np.isinf(row[refused_feature]) else "missing"
                assert answer.reason == f"{problem}:{feature_names[refused_feature]}"
            assert (answer.stage, answer.class_index) == (
                c_answers.stages[row_number],
                c_answers.labels[row_number],
            )


def test_a_system_and_its_bundle_give_the_same_tables(compiled_systems, tmp_path):
    for name in ("lazy", "kernels"):
        system, rows, bundle, _ = compiled_systems[name]
        source_texts = []
        for i, source in enumerate((system, bundle)):
            c_source = to_c(source, tmp_path / f"{name}{i}", name="same", sample=rows[:9])
            assert c_source.sample_rows == 9
            # The first line names the source. A bundle stores 0 for -0, which changes no sum.
            _, source_text = (c_source.folder / "same.c").read_text().split("\n", 1)
            source_texts.append(re.sub(r"-?0\.0f", "0.0f", source_text))
        assert source_texts[0] == source_texts[1]


def test_the_header_states_the_sizes(compiled_systems, tmp_path):
    _, _, bundle, _ = compiled_systems["gated-trees"]
    source = to_c(bundle, tmp_path, coded=16, name="gate")
    header = (tmp_path / "gate.h").read_text()
    constants = dict(re.findall(r"#define (GATE_\w+) (\d+)", header))
    assert int(constants["GATE_TABLE_BYTES"]) == source.table_bytes
    assert int(constants["GATE_INSTANCE_BYTES"]) == source.instance_bytes
    assert int(constants["GATE_STACK_BYTES"]) == source.stack_bytes
    assert (int(constants["GATE_FEATURES"]), int(constants["GATE_CLASSES"])) == (30, 2)
    # The compiler's stack use stays within the stated bound.
    command = [*compiler_command(), *STRICT_FLAGS, "-c", "-Os", "-fstack-usage", "gate.c"]
    subprocess.run(command, cwd=tmp_path, check=True)
    frame_bytes = [int(line.split()[1]) for line in (tmp_path / "gate.su").read_text().splitlines()]
    assert sum(frame_bytes) <= source.stack_bytes


def test_make_builds_and_runs_the_self_test(compiled_systems, tmp_path):
    _, _, bundle, _ = compiled_systems["gated-lines"]
    source = to_c(bundle, tmp_path)
    assert source.name == "gated_lines"
    process = subprocess.run(["make", "-s", "test"], cwd=tmp_path, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert "0 of 304 rows differ (48 of the sample, 256 generated from the model)" in process.stdout


def test_the_self_test_finds_one_wrong_bit(compiled_systems, tmp_path):
    _, _, bundle, _ = compiled_systems["kernels"]
    cascade = cascade_of(bundle)
    source = to_c(bundle, tmp_path, name="m")
    source_text = (tmp_path / "m.c").read_text()
    bias = cascade.stages[0].model.bias
    wrong_number = c_number(float(np.nextafter(bias[0], np.float32(9))))
    (tmp_path / "m.c").write_text(source_text.replace(c_number(float(bias[0])), wrong_number, 1))
    (library,) = compile_models([(source, cascade.stage_n_outputs)], flags=("-O0",))
    assert library.count_selftest_failures() > 0


def test_by_default_the_smallest_form_is_written(compiled_systems, tmp_path):
    for name, (_, _, bundle, _) in compiled_systems.items():
        default_bytes = to_c(bundle, tmp_path / name, name="m").table_bytes
        form_bytes = []
        for coded in ("float", 8):
            with suppress(ConversionError):  # too many thresholds for 8 bits
                coded_source = to_c(bundle, tmp_path / name, coded=coded, name="m")
                form_bytes.append(coded_source.table_bytes)
        assert default_bytes == min(form_bytes)


# -- refused sources -----------------------------------------------------------------------


def test_unusable_sources_and_names_are_refused_and_files_are_kept(compiled_systems, tmp_path):
    model = CEGBRegressor(COSTS, penalties=(0.1,), n_rounds=5, random_state=0).fit(X, CULTIVARS)
    with pytest.raises(ConversionError, match="it is not a classifier"):
        to_c(model, tmp_path)
    with pytest.raises(InputError, match="fitted system or a bundle, not int"):
        to_c(3, tmp_path)
    with pytest.raises(InputError, match="not StagedCascade; fit it first"):
        to_c(StagedCascade(), tmp_path)
    _, _, bundle, _ = compiled_systems["kernels"]
    for name in ("", "main", "while", "9lives", "a-b", "Model", "x" * 50):
        with pytest.raises(InputError, match="cannot begin C identifiers"):
            to_c(bundle, tmp_path, name=name)
    (tmp_path / "main.c").write_text("int main(void) { return 1; }\n")
    with pytest.raises(InputError, match=r"main\.c exists and was not written by Gatewise"):
        to_c(bundle, tmp_path)
    assert list(tmp_path.iterdir()) == [tmp_path / "main.c"]
    (tmp_path / "main.c").unlink()
    to_c(bundle, tmp_path)
    assert to_c(bundle, tmp_path).files  # files that Gatewise wrote are replaced


# -- the command line ----------------------------------------------------------------------


def test_c99_command_writes_the_folder_and_prints_sizes(compiled_systems, tmp_path, capsys):
    _, _, bundle, _ = compiled_systems["lazy"]
    for point_index in (0, len(bundle.manifest.operating_points) - 1):
        switched_bundle = bundle.with_active(point_index)
        thresholds = tuple(switched_bundle.manifest.active_point.thresholds)
        assert cascade_of(switched_bundle).thresholds == thresholds
    assert main(["c99", str(bundle.path), "--out", str(tmp_path / "c"), "--coded", "8",
                 "--json"]) == 0  # fmt: skip
    document = json.loads(capsys.readouterr().out)
    assert document["coded"] == 8
    assert min(document["flash_bytes"], document["ram_bytes"], document["stack_bytes"]) > 0
    assert document["files"][0] == "lazy.h"
    assert (tmp_path / "c" / "lazy.c").is_file()
    assert main(["c99", str(bundle.path), "--out", str(tmp_path / "a b")]) == 0
    assert f"make -C '{tmp_path / 'a b'}' test\n" in capsys.readouterr().out
    assert main(["c99", str(bundle.path), "--out", str(tmp_path / "c")]) == 0
    output = capsys.readouterr().out
    assert all(f"{memory}, bytes" in output for memory in ("flash for tables", "RAM", "stack"))
    assert main(["c99", str(bundle.path), "--out", str(tmp_path / "c"), "--coded", "12"]) == 2
    assert "choose 8, 16 or float" in capsys.readouterr().err
    assert main(["c99", str(tmp_path / "none"), "--out", str(tmp_path / "c")]) == 2

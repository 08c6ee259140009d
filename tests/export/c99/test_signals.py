"""C computes the features of windows as Python does, step by step and only what is needed."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from inspect import isabstract
from pathlib import Path
from string import Template
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

import gatewise_signals as sig
from benchmarks.c99.avr import count_differing
from benchmarks.c99.compiled import (
    CORTEX_M4_LINK,
    CORTEX_M4_RUN,
    STRICT,
    VECTORS,
    compiler,
    deepest_calls,
)
from gatewise.decision import ALWAYS_STOP, split
from gatewise.errors import InputError
from gatewise.models.linear import LinearModel
from gatewise.models.stage import Stage
from gatewise_export import write_signals
from gatewise_export.bundle.errors import ConversionError
from gatewise_export.c99.cascade import Cascade
from gatewise_export.c99.signals.kinds import KINDS
from gatewise_export.c99.signals.signal_writer import BOUND
from gatewise_export.c99.writer import CSource, write_cascade
from gatewise_signals.blocks.block import FunctionBlock, OnnxBlock, SignalBlock
from gatewise_signals.signal_input import SignalInput
from tests.support import avr
from tests.support.needs import needs_compiler
from tests.support.shared_data import shared_data
from tests.support.signal_blocks import RATE_HZ, picture_blocks, signal_blocks

pytestmark = needs_compiler

WARNINGS = (
    "-Wconversion", "-Wdouble-promotion", "-Wshadow", "-Wfloat-conversion", "-Wstrict-prototypes",
)  # fmt: skip

# Reads windows; for each writes all features, and the steps that the first one alone needed. In any
# other order features have the same bits.
PROGRAM = """\
#include <stdio.h>
#include <string.h>
${includes}
${functions}
int main(int argc, char **argv)
{
${calls}    return argc != 2;
}
"""
SELFTEST = """\
#include <stdio.h>
int hapt_signals_selftest(float *farthest, int *other);
int main(void)
{
    float farthest;
    int other, wrong = hapt_signals_selftest(&farthest, &other);
    return printf("%d %g\\n", wrong, (double)farthest) < 0;
}
"""
ONE = """\
int ${p}_signals_selftest(float *farthest, int *other);
static int ${p}(void)
{
    static ${p}_signals it;
    static ${element} window[${size}];
    static float values[${n_features}];
    float value, farthest;
    int i, n_other;
    while (fread(window, sizeof window, 1, stdin)) {
        ${p}_signals_start(&it, window);
        value = ${p}_signals_acquire(0, &it);
        for (i = 0; i < ${P}_SIGNALS_STEPS; i++)
            putchar(${p}_signals_computed(&it, i));
        for (i = 0; i < ${n_features}; i++) {
            values[i] = ${p}_signals_acquire(i, &it);
            fwrite(&values[i], sizeof value, 1, stdout);
        }
        ${p}_signals_start(&it, window);
        for (i = 0; i < 3 * ${n_features}; i++) {
            int number = i < ${n_features} ? ${n_features} - 1 - i : i * 7919 % ${n_features};
            value = ${p}_signals_acquire(number, &it);
            if (memcmp(&value, &values[number], sizeof value))
                return 3;
        }
    }
    return ${p}_signals_selftest(&farthest, &n_other);
}
"""


@dataclass(frozen=True, eq=False)
class Case:
    graph: sig.SignalGraph
    windows: NDArray[Any]
    exact: bool = False


def acceleration(scale: float = 1 / 720) -> sig.Channels:
    return sig.Channels("acc", (0, 1, 2), ("x", "y", "z"), scale)


def random_windows(seed: int, n: int, samples: int, dtype: str = "int16") -> NDArray[Any]:
    """Noise of all levels, with an offset, drifts, clipped, coarse; some constant, some 0."""
    rng = np.random.default_rng(seed)
    level = 10.0 ** rng.uniform(0, 4, (n, 1, 3))
    x = rng.normal(0, level, (n, samples, 3)) + rng.normal(0, 3 * level)
    x += np.linspace(0, 1, samples)[:, None] * level * rng.integers(0, 5, (n, 1, 1))
    x[::7] = np.round(x[::7] / level[::7]) * level[::7]
    x[1::9] = x[1::9, :1]
    x[2::11] = 0
    if dtype == "float32":
        return (x / 1000).astype(np.float32)
    most = np.iinfo(dtype)
    return np.clip(np.round(x * (most.max / 32767)), most.min, most.max).astype(dtype)


def cases() -> dict[str, Case]:
    x = acceleration()
    plain = [
        *(kind(x) for kind in (sig.Mean, sig.Statistics, sig.Quantiles, sig.ZeroCrossings)),
        sig.Autocorrelation(x), sig.Statistics(sig.Magnitude(x)), sig.Mean(sig.Jerk(x, 50.0)),
        sig.Mean(sig.Envelope(x, 3)),
    ]  # fmt: skip
    one = sig.Channels('*/\n#error "é\\', (1,))  # a name may be anything
    few = [sig.Mean(x), sig.Statistics(x), sig.BandPowers(sig.Spectrum(x, 25.0), (0.0, 5.0))]
    # a spectrogram with two readers is kept, one with a single reader is not
    found = {"all": Case(sig.SignalGraph(signal_blocks()), random_windows(5, 80, 100))}
    spectrogram = sig.Spectrogram(one, RATE_HZ, 16, 5)
    blocks = [sig.MelEnergies(sig.MelSpectrogram(spectrogram, bands)) for bands in (3, 4)]
    found["shared"] = Case(sig.SignalGraph(blocks), random_windows(6, 20, 90))
    for dtype in ("int8", "uint16", "float32"):
        found[dtype] = Case(sig.SignalGraph(few), random_windows(5, 40, 60, dtype))
    for n in (17, 1500):  # numpy's sums and C's are the same
        windows = random_windows(n, 24, n)
        found[f"plain{n}"] = Case(sig.SignalGraph(plain), windows, exact=True)
    rng = np.random.default_rng(4)
    for name, shape in {"grey": (19, 23), "colour": (17, 14, 3), "frames": (3, 12, 31)}.items():
        top = rng.choice([3, 90, 256], (60, *([1] * len(shape))))  # flat ones, too
        windows = rng.integers(0, top, (60, *shape)).astype(np.uint8)
        first, last = sig.Frame(0, scale=1 / 255), sig.Frame(2, scale=1 / 255)
        pixels = sig.FrameDifference(first, last) if name == "frames" else sig.Pixels(scale=0.5)
        found[name] = Case(sig.SignalGraph(picture_blocks(pixels)), windows)
    return found


CASES = cases()


def write_all(folder: Path, made: dict[str, Case]) -> list[str]:
    """Write the C of all, and a program that runs the one that is named."""
    includes, functions, calls = "", "", ""
    for name, case in made.items():
        windows = case.windows
        write_signals(
            case.graph, windows.shape[1:], windows.dtype, folder, name=name, sample=windows[::20]
        )
        includes += f'#include "{name}_signals.h"\n'
        text = (folder / f"{name}_signals.h").read_text()
        element = re.search(r"const (\w+) \*window;", text)
        assert element is not None
        functions += Template(ONE).substitute(
            p=name, P=name.upper(), element=element[1], size=windows[0].size,
            n_features=len(case.graph.feature_names),
        )  # fmt: skip
        calls += f'    if (argc == 2 && !strcmp(argv[1], "{name}"))\n        return {name}();\n'
    fill = {"includes": includes, "functions": functions, "calls": calls}
    (folder / "run.c").write_text(Template(PROGRAM).substitute(fill))
    return [path.name for path in folder.glob("*.c")]


def run(command: Sequence[str], folder: Path, data: bytes = b"") -> bytes:
    done = subprocess.run(command, cwd=folder, input=data, capture_output=True, check=False)
    assert done.returncode == 0, f"{done.returncode} {done.stderr.decode()[:2000]}"
    return done.stdout


def features_of(out: bytes, case: Case) -> tuple[NDArray[Any], NDArray[Any]]:
    """Features, and the steps computed for the first feature alone, of what the program wrote."""
    n_features = len(case.graph.feature_names)
    n_steps = len(out) // len(case.windows) - 4 * n_features
    row = np.dtype([("steps", np.uint8, n_steps), ("features", np.float32, n_features)])
    found = np.frombuffer(out, row)
    assert len(found) == len(case.windows)
    return found["features"], found["steps"]


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The program of all cases, compiled once."""
    folder = tmp_path_factory.mktemp("signals")
    files = write_all(folder, CASES)
    run(
        [*(compiler() or ()), *STRICT, *WARNINGS, "-o", "run", *files, "-lm"],
        folder,
    )
    return folder


@pytest.mark.parametrize("name", CASES)
def test_features_are_those_of_python(program, name):
    case = CASES[name]
    out = run(["./run", name], program, case.windows.tobytes())  # the self-test passed, too
    got, steps = features_of(out, case)
    check_features(case, got)
    # steps are numbered in the order of need; parts of the window may be overwritten
    computed = steps.any(axis=0).nonzero()[0]
    assert len(computed) <= computed[-1] + 1 <= len(ancestors(case.graph.blocks[0]))
    assert steps[:, computed[-1]].all()


def check_features(case: Case, got: NDArray[Any]) -> None:
    expected = case.graph.transform(case.windows)
    if case.exact:
        assert got.tobytes() == expected.tobytes()
        return
    apart = np.abs(got - expected) / np.abs(expected).max(axis=0, initial=1e-30)
    worst = dict(zip(case.graph.feature_names, apart.max(axis=0), strict=True))
    assert {feature: gap for feature, gap in worst.items() if not gap <= BOUND} == {}


def ancestors(step: sig.Step) -> set[sig.Step]:
    return {step}.union(*map(ancestors, step.inputs))


def test_every_built_in_step_is_among_the_cases():
    built_in, left = set(), [sig.Step]
    while left:
        left += (cls := left.pop()).__subclasses__()
        if cls.__module__.startswith("gatewise_signals.") and not isabstract(cls):
            built_in.add(cls)
    found = {type(step) for case in CASES.values() for step in case.graph.steps}
    assert found == set(KINDS) == built_in - {FunctionBlock, OnnxBlock}


def test_nan_and_infinite_samples_give_what_numpy_gives(tmp_path):
    windows = random_windows(3, 3, 40, "float32")
    windows[0, 5, 1], windows[1, 7, 0] = np.nan, np.inf
    graph = sig.SignalGraph(signal_blocks()[:5])
    case = Case(graph, windows)
    files = write_all(tmp_path, {"odd": case})
    run([*(compiler() or ()), *STRICT, "-o", "run", *files, "-lm"], tmp_path)
    got, _ = features_of(run(["./run", "odd"], tmp_path, windows.tobytes()), case)
    np.testing.assert_allclose(got, graph.transform(windows), rtol=1e-5)


@dataclass(frozen=True)
class Peak(SignalBlock):
    """A block that C knows nothing of."""

    kind: ClassVar[str] = "peak"
    feature_words: ClassVar[tuple[str, ...]] = ("peak",)

    def values(self, x):
        return x.max(axis=-1, keepdims=True)


def test_what_c_cannot_compute_is_refused_by_name(tmp_path):
    x = acceleration()
    graph = sig.SignalGraph([sig.Mean(x), Peak(x), sig.Statistics(x)])
    with pytest.raises(ConversionError, match=r"^cannot write peak\(acc\) in C: "):
        write_signals(graph, (64, 3), "int16", tmp_path)
    with pytest.raises(ConversionError, match="the C cannot read windows of int64"):
        write_signals(sig.SignalGraph([sig.Mean(x)]), (64, 3), "int64", tmp_path)
    with pytest.raises(InputError, match=r"\(64, 2\)"):
        write_signals(sig.SignalGraph([sig.Mean(x)]), (64, 2), "int16", tmp_path)
    assert not list(tmp_path.iterdir())
    # only features that are not of that block, and only the C that they need
    made = write_signals(graph, (64, 3), "int16", tmp_path, features=[1])
    code = (tmp_path / "model_signals.c").read_text()
    assert (made.n_steps, made.n_features) == (2, 3)
    assert "statistics" not in code
    assert "logf" not in code
    # channels, features, a word of bits, the number of steps; a word that aligns them
    assert made.struct_bytes == 4 + 4 * (64 * 3 + 3 + 2 + 1)


def decider() -> Cascade:
    """Two linear stages on noise; the second reads spectra, and none a block that is not in C."""
    x = acceleration()
    blocks = [
        sig.Mean(x),
        sig.BandPowers(sig.Spectrum(x, 25.0), (0.0, 4.0, 8.0, 12.5)),
        sig.Statistics(x),
        Peak(x),
    ]
    signal = SignalInput(sig.SignalGraph(blocks), (64, 3), "int16")
    windows = random_windows(8, 80, 64)
    rows, rng = signal.features(windows), np.random.default_rng(2)
    stages, thresholds = [], []
    for features in (np.arange(3), np.arange(12)):
        used = rows[:, features]
        scale = 1 / np.maximum(used.std(axis=0), 1e-6)
        weights, bias = rng.normal(size=(len(features), 3)).astype(np.float32), np.zeros(3, "f4")
        model = LinearModel(used.mean(axis=0), scale.astype(np.float32), weights, bias)
        stages.append(Stage(model, features, "softmax"))
        scores = split(stages[-1].margins(rows), "margin")[1]
        thresholds.append(float(np.sort(scores)[50]))  # a score itself, hit exactly
    return Cascade(
        title="noise", stages=tuple(stages), thresholds=tuple(thresholds), rows=rows,
        feature_names=signal.graph.feature_names, classes=(0, 1, 2), takes_missing=False,
        offloads=True, cloud_takes_missing=False, signal=signal, windows=windows,
    )  # fmt: skip


@pytest.mark.slow
def test_a_cascade_decides_on_the_features_that_it_computes(tmp_path):
    cascade = decider()
    source = write_cascade(cascade, tmp_path, name="noise")
    assert source.signals is not None
    # the request's features are computed too, but for those that C cannot
    assert source.signals.n_features == len(cascade.feature_names) - 3
    assert source.ram_bytes == source.instance_bytes + source.signals.struct_bytes
    made = run(["make", "-s", "test", "CFLAGS=-O0"], tmp_path).decode()
    assert "rows differ (80 of the sample, 256 generated from the model)" in made
    found = re.search(r"features of 0 of 80 .* by at most (\S+) of their scale;\n(\d+) more", made)
    assert found is not None
    assert float(found[1]) <= BOUND
    assert int(found[2]) <= 1  # the row that makes the threshold
    code = (tmp_path / "noise_signals.c").read_text()
    wrong = code.replace("0.5f * (a[0] + b[0])", "0.5001f * (a[0] + b[0])")
    assert wrong != code
    (tmp_path / "noise_signals.c").write_text(wrong)
    failed = subprocess.run(
        ["make", "-s", "test", "CFLAGS=-O0"], cwd=tmp_path, capture_output=True, check=False
    )
    assert failed.returncode != 0
    assert re.search(rb"features of [1-9]\d* of 80", failed.stdout)


def test_only_blocks_that_can_be_read_are_written(tmp_path):
    cascade = decider()

    def written(name: str, **changes: Any) -> CSource:
        changed = replace(cascade, **changes).within_reach()
        return write_cascade(changed, tmp_path / name, name=name)

    whole = written("whole")
    lean = written("lean", lean=True)  # nothing of requests
    stages = written("stages", offloads=False)  # no requests
    always = written("always", thresholds=(ALWAYS_STOP, None))  # no second stage, no requests
    n_features = [made.signals.n_features for made in (whole, lean, stages, always)]
    assert n_features == [30, 12, 12, 3]
    assert always.n_stages == 1
    assert always.signals.n_steps == 2
    assert always.ram_bytes < stages.ram_bytes <= whole.ram_bytes
    assert always.flash_bytes < stages.flash_bytes < whole.flash_bytes
    assert "0.5f * (a[0] + b[0])" not in (tmp_path / "always" / "always_signals.c").read_text()
    printed = run(["make", "-s", "test", "CFLAGS=-O0"], tmp_path / "always").decode()
    assert "always: 0 of 336 rows differ" in printed


def test_windows_are_made_where_there_is_no_sample(tmp_path):
    source = write_cascade(replace(decider(), windows=None), tmp_path, name="noise")
    assert source.signals is not None
    assert source.signals.sample_windows == 16
    printed = run(["make", "-s", "test", "CFLAGS=-O0"], tmp_path).decode()
    assert "features of 0 of 16 windows differ" in printed


@avr.needs_avr_gcc
def test_avr_holds_the_tables_of_blocks_in_flash(program):
    for name in ("uint16", "plain17", "frames", "shared"):
        assert avr.sizes(program, f"{name}_signals.c")[1:] == [0, 0]


@avr.needs_avr_gcc
@avr.needs_simavr
@pytest.mark.parametrize("name", ["uint16", "frames", "shared"])
def test_an_emulated_avr_computes_the_features(tmp_path, name):
    case = CASES[name]
    few = case.windows[:3]
    write_signals(case.graph, few.shape[1:], few.dtype, tmp_path, name="m", sample=few)
    declarations = (
        "int m_signals_selftest(float *farthest, int *n_other);\n"
        "static float farthest;\nstatic int n_other;"
    )
    call = "m_signals_selftest(&farthest, &n_other)"
    files = ("m_signals.c", "m_signals_selftest.c")
    assert not count_differing(tmp_path, call, declarations, *files)


TARGETS = {
    "x86-64": ("gcc", "-O2"),
    "aarch64": ("aarch64-linux-gnu-gcc", "-O2", "-static"),
    "arm-none-eabi": ("arm-none-eabi-gcc", "-Os", "-mcpu=cortex-m4", "-mthumb"),
}


def hapt() -> Case:
    with np.load(shared_data("hapt_windows.npz")) as data:
        windows = data["X"][::9]
    names = [f"{signal}_{axis}" for signal in ("acc", "gyro") for axis in "xyz"]
    blocks = sig.standard_blocks(rate_hz=50, channels=names, scale=1 / 720, samples=128)
    return Case(sig.SignalGraph(blocks), windows)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_hapt_on_other_machines(target, tmp_path):
    command, *flags = TARGETS[target]
    if shutil.which(command) is None:
        pytest.skip(f"{command} is not installed")
    case = hapt()
    files = write_all(tmp_path, {"hapt": case})
    if target == "arm-none-eabi":  # how deep do calls go?
        size = [*STRICT, *WARNINGS, *flags, "-fcallgraph-info=su", "-c", "hapt_signals.c"]
        run([command, *size], tmp_path)
        declared = re.search(r"STACK_BYTES (\d+)", (tmp_path / "hapt_signals.h").read_text())
        assert declared is not None
        assert 64 < deepest_calls((tmp_path / "hapt_signals.ci").read_text()) <= int(declared[1])
        run_on_cortex_m4([command, *STRICT, *flags], tmp_path)
        return
    run([command, *STRICT, *WARNINGS, *flags, "-o", "run", *files, "-lm"], tmp_path)
    runner = ["./run"] if target == "x86-64" else [emulator(), "./run"]
    out = run([*runner, "hapt"], tmp_path, case.windows.tobytes())
    check_features(case, features_of(out, case)[0])


def run_on_cortex_m4(command: list[str], folder: Path) -> None:
    """The self-test on an emulated board without an operating system."""
    if shutil.which(CORTEX_M4_RUN[0]) is None:
        pytest.skip(f"{CORTEX_M4_RUN[0]} is not installed (apt install qemu-system-arm)")
    (folder / "vectors.c").write_text(VECTORS)
    (folder / "main.c").write_text(SELFTEST)
    files = ["main.c", "hapt_signals.c", "hapt_signals_selftest.c", "vectors.c"]
    run([*command, "-o", "selftest", *files, *CORTEX_M4_LINK, "-lm"], folder)
    wrong, farthest = run([*CORTEX_M4_RUN, "selftest"], folder).split()
    assert int(wrong) == 0
    assert 0 < float(farthest) <= BOUND


def emulator() -> str:
    found = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
    if found is None:
        pytest.skip("qemu-aarch64-static is not installed (apt install qemu-user-static)")
    return found

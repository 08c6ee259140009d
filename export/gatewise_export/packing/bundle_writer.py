"""Writer of bundles: the files of a fitted system, and a check that they decide as it does.

A bundle is written next to its destination, and renamed to it if its models decide as the system
does. The same system gives the same files, byte for byte; only `created` differs.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import onnx
from numpy.typing import ArrayLike, NDArray

from gatewise.columns.encoders import RowEncoder
from gatewise.errors import InputError, one_line
from gatewise.formats import byte_size
from gatewise.graph_loading import LoadLimits
from gatewise.models.graph_model import GraphModel
from gatewise.prices import MAX_REQUEST_BYTES
from gatewise_export.bundle.arrays import write_arrays
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.errors import VerifyError
from gatewise_export.bundle.flat_models import MAX_BYTES
from gatewise_export.bundle.manifest import Manifest
from gatewise_export.bundle.manifest_records import MANIFEST, RANGES, SAMPLE
from gatewise_export.bundle.repacking import check_destination, replacing
from gatewise_export.bundle.signing import MANIFEST_CONTEXT, SIGNATURE, Signer, write_signatures
from gatewise_export.packing.converters import CloudFile, probed_file
from gatewise_export.packing.system_manifest import (
    BACKEND,
    StageFiles,
    Title,
    chains_of,
    check_column_names,
    manifest_of_system,
)
from gatewise_export.packing.verification import HighCostAnswers, on_features, verify
from gatewise_signals.signal_input import SignalInput
from gatewise_training.data.frames import as_pandas
from gatewise_training.data.table_encoder import encode_table

if TYPE_CHECKING:
    from gatewise.models.stage import Stage
    from gatewise_training.cascades.base import BudgetedClassifier
    from gatewise_training.data.table_encoder import TableEncoder
    from gatewise_training.learners.high_cost_model import HighCostModel

MOST_SAMPLE_ROWS = 64
#: Smallest difference of a sample row's two largest probabilities.
CLOSE = 1e-3
#: Largest difference of a converted high-cost model's probability on the sample.
CLOUD_TOLERANCE = 1e-3


def pack(
    system: BudgetedClassifier,
    path: str | Path,
    *,
    sample: ArrayLike,
    name: str = "model",
    version: str = "1",
    created: datetime | None = None,
    sign: str | Path | None = None,
    encoder: TableEncoder | RowEncoder | None = None,
    max_message: int = MAX_REQUEST_BYTES,
    loading: LoadLimits | None = None,
) -> Bundle:
    """Write a fitted system as a bundle.

    Parameters
    ----------
    system : fitted system
        The bundle has all operating points of its frontier.
    path : str or Path
        A directory, or one zip file if it ends in ``.gwb``. An existing bundle is replaced;
        anything else is refused.
    sample : array-like of shape (n, n_features)
        Real rows for the self-test of devices, of which at most 64 are used; windows, if the system
        was fitted on blocks.
    name, version : str
        Name and version of the bundle; as levels of MQTT topics they have no ``/ + #``.
    created : datetime, optional
        Now by default.
    sign : str or Path, optional
        Ed25519 key in PEM that signs the bundle.
    encoder : TableEncoder, optional
        Fitted encoder that made the features of the fit: devices then read raw columns, and
        `sample` may be a table of them.
    max_message : int, default 131072
        Largest message of the broker in bytes, by default that of AWS IoT Core. A system with
        larger requests is refused.
    loading : LoadLimits, optional
        Memory and time for loading a given graph; by default limits by its size.

    Returns
    -------
    Bundle
        The written bundle, with the system's functions for its blocks.

    Raises
    ------
    BundleError
        If `path` is something else, or a name cannot be in a manifest.
    InputError
        If `system` is not a fitted system, a column's name cannot be in a bundle, a stage is too
        large for devices, the sample is not of the system, or the key cannot be used.
    ConversionError
        If the high-cost model cannot be written as a graph, or its graph gives one of thousands of
        adversarial rows another answer.
    VerifyError
        If the graphs do not decide as the system on the sample; `path` is unchanged.
    """
    # errors of the arguments before any work
    path = check_destination(path)
    signer = None if sign is None else Signer(sign)
    _check_fitted(system)
    rows = None if encoder is None else getattr(encoder, "encoder_", encoder)
    if rows is not None:
        _check_encoder(system, rows)
        sample = encode_table(rows, sample)
    signal: SignalInput | None = getattr(system, "signal_input_", None)
    windows = None
    if signal is not None:
        windows = signal.checked(sample)[:MOST_SAMPLE_ROWS].astype(signal.dtype)
        sample, system = signal.features(windows), on_features(system)
    # graphs of the stages and of the high-cost model
    x = _sample_rows(system, sample)
    stages = [StageFiles.of_stage(stage, i) for i, stage in enumerate(_stages(system))]
    f0 = system.high_cost_model_
    cloud: CloudFile | None = None
    if f0 is not None and f0.opaque is None:
        cloud = probed_file(f0, x, missing=system.missing_["cloud"] == "allowed")
    files = _model_files(system, stages, cloud, signal)
    # sample rows for the self-test, without those whose two largest probabilities are close
    answers = None if f0 is None else _cloud_answers(f0, cloud, x)
    if answers is not None:
        clear = _clear_rows(answers[1])
        x, answers = x[clear], (answers[0][clear], answers[1][clear])
        windows = None if windows is None else windows[clear]
    arrays = _sample_arrays(x, [written.stage for written in stages], answers)
    if signal is not None and windows is not None:
        arrays |= {"X": x[:, : len(signal.graph.feature_names)], "windows": windows}
    files[SAMPLE] = write_arrays(arrays)
    if hasattr(system, "training_ranges_"):
        files[RANGES] = write_arrays(system.training_ranges_.arrays())
    moment = datetime.now(UTC) if created is None else created.astimezone(UTC)
    title = Title(name, version, moment)
    manifest = manifest_of_system(system, title, stages, cloud, files, encoder=rows, signal=signal)
    _check_request(manifest, max_message)
    if loading is not None:
        manifest = msgspec.structs.replace(manifest, loading=loading)
    text = files[MANIFEST] = manifest.to_json()
    if signer is not None:
        files[SIGNATURE] = write_signatures(signer.sign(MANIFEST_CONTEXT, text))
    with replacing(path, files) as fresh:
        opaque = None if answers is None or cloud is not None else HighCostAnswers(answers, answers)
        _check_decisions(system, Bundle.open(fresh), x, opaque)
    bundle = Bundle.open(path, public_key=None if signer is None else signer.public.raw)
    return bundle if signal is None else bundle.with_functions(signal.functions)


# -- parts ---------------------------------------------------------------------------------


def _check_fitted(system: Any) -> None:
    """Check that a system is fitted, and that a bundle can have its names of columns."""
    if not hasattr(system, "operating_points_"):
        advice = "fit StagedCascade or another of its methods"
        if hasattr(system, "steps"):
            advice = "fit one on the columns themselves; its high_cost_model may be a pipeline"
        raise InputError(
            f"{type(system).__name__} cannot be packed: it is not a fitted estimator of Gatewise; "
            f"{advice}"
        )
    check_column_names(system.feature_names_)


def _stages(system: BudgetedClassifier) -> list[Stage]:
    """Stages of all candidate cascades, with given graphs checked."""
    stages = list(dict.fromkeys(stage for chain in chains_of(system) for stage in chain))
    for stage in stages:
        if isinstance(stage.model, GraphModel):
            _check_given_graph(stage.model.content, "a stage that was given")
    return stages


def _check_given_graph(content: bytes, what: str) -> None:
    """Refuse a malformed graph, or one that has data in other files."""
    try:
        model = onnx.load_model_from_string(content)
        onnx.checker.check_model(model, full_check=True)
    except Exception as error:  # errors of protobuf and of shape inference share no base
        raise InputError(f"{what} is not a usable ONNX graph: {one_line(error)}") from error
    external = onnx.external_data_helper.uses_external_data
    outside = [t.name for t in onnx.external_data_helper._get_all_tensors(model) if external(t)]
    if outside:
        raise InputError(f"{what} keeps {outside[0]!r} in another file; save it as one")


def _model_files(
    system: BudgetedClassifier,
    stages: Sequence[StageFiles],
    cloud: CloudFile | None,
    signal: SignalInput | None,
) -> dict[str, bytes]:
    """Files of stages, of networks that are blocks, and of the high-cost model, by name."""
    files = {name: content for written in stages for name, content in written.contents.items()}
    _check_sizes(files)
    for name, content in ({} if signal is None else signal.models).items():
        _check_given_graph(content, name)
        files[name] = content
    f0 = system.high_cost_model_
    if cloud is not None:
        files[cloud.name] = cloud.content
    elif f0 is not None:
        files[BACKEND] = _backend(f0, system.classes_)
    return files


def _check_request(manifest: Manifest, max_message: int) -> None:
    """Refuse requests that are larger than a message of the broker."""
    if manifest.largest_request > max_message:
        raise InputError(
            f"a request would have {manifest.largest_request} bytes, more than max_message="
            f"{max_message}: give the high-cost model fewer features, or raise the broker's limit"
        )


def _check_sizes(files: Mapping[str, bytes]) -> None:
    """Refuse files of stages that are too large for devices."""
    large = [f"{n} of {byte_size(len(c))}" for n, c in files.items() if len(c) > MAX_BYTES]
    if large:
        raise InputError(
            f"a device reads stages of {byte_size(MAX_BYTES)} at most, but there would be "
            f"{' and '.join(large)}: fit with max_bytes=, or give a "
            "smaller model"
        )


def _sample_rows(system: BudgetedClassifier, sample: Any) -> NDArray[np.float32]:
    names = getattr(system, "feature_names_in_", None)
    sample = as_pandas(sample)
    if names is not None and hasattr(sample, "columns"):
        absent = [name for name in names if name not in sample.columns]
        if absent:
            raise InputError(f"sample has no column {absent[0]!r}, which the system was fitted on")
        sample = sample[list(names)]
    try:
        x = np.ascontiguousarray(sample, np.float32)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"sample must hold numbers: {error}; a table of raw columns needs encoder="
        ) from None
    if getattr(system, "instance_", None) is not None and x.ndim > 2:
        x = x.reshape(len(x), -1)
    if x.ndim != 2 or not len(x) or x.shape[1] != system.n_features_in_:
        raise InputError(
            f"sample must have rows of {system.n_features_in_} features, not shape {x.shape}"
        )
    return x[:MOST_SAMPLE_ROWS]


def _backend(f0: HighCostModel, classes: NDArray[Any]) -> bytes:
    """Describe the backend of an opaque model; the file informs people, and is never loaded."""
    document = {
        "backend": f0.backend,
        "inputs": len(f0.features),
        "classes": classes.tolist(),
        "gives": "probabilities, a column for each class",
    }
    return (json.dumps(document, indent=1) + "\n").encode()


def _cloud_answers(
    f0: HighCostModel, cloud: CloudFile | None, x: NDArray[np.float32]
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Class indices and probabilities of the sample, by the graph or by the opaque model."""
    if cloud is None:
        return f0.answers(x)
    return cloud.answers(x[:, f0.features])


def _clear_rows(chances: NDArray[Any]) -> NDArray[np.bool_]:
    """Mark rows with a label that the last bit of ``exp`` cannot change, or all rows."""
    two_best = np.sort(chances, axis=1)[:, -2:]
    is_clear: NDArray[np.bool_] = two_best[:, 1] - two_best[:, 0] > CLOSE
    return is_clear if is_clear.any() else np.ones(len(chances), np.bool_)


def _sample_arrays(
    x: NDArray[np.float32],
    stages: Sequence[Stage],
    cloud: tuple[NDArray[np.int64], NDArray[Any]] | None,
) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {"X": x}
    for i, stage in enumerate(stages):
        arrays[f"stage_{i}"] = stage.margins(x)
        if stage.acquisition == "node":
            arrays[f"bought_{i}"] = stage.acquired(x)[:, stage.features]
    if cloud is not None:
        arrays["cloud_label"] = cloud[0].astype(np.int64)
        arrays["cloud_probabilities"] = cloud[1].astype(np.float32)
    return arrays


def _check_encoder(system: BudgetedClassifier, encoder: RowEncoder) -> None:
    """Check that an encoder has the features of the fit."""
    if not isinstance(encoder, RowEncoder):
        raise InputError("encoder must be a fitted gw.TableEncoder")
    check_column_names(encoder.names)
    if tuple(system.feature_names_) != encoder.feature_names:
        raise InputError(
            f"the encoder makes {len(encoder.feature_names)} features, and the system was fitted "
            f"on other ones ({len(system.feature_names_)}): fit it on encoder.transform(X)"
        )


def _check_decisions(
    system: BudgetedClassifier,
    bundle: Bundle,
    x: NDArray[np.float32],
    answers: HighCostAnswers | None,
) -> None:
    """Compare every chain of the bundle with the system; raise VerifyError if they differ."""
    if answers is None:
        answers = HighCostAnswers.computed(system, bundle, x)
    points = bundle.manifest.operating_points
    first_points = {point.chain: i for i, point in reversed(list(enumerate(points)))}
    for number in {bundle.manifest.active, *first_points.values()}:
        system_there = copy.copy(system)
        system_there.operating_point_ = system.operating_points_[number]
        report = verify(system_there, bundle.with_active(number), x, high_cost=answers)
        if not report.agrees or report.max_margin_difference > 0:
            raise VerifyError(
                f"the graphs decide {max(report.differing_decisions, report.differing_labels)} of "
                f"{report.rows} sample rows differently than the system: nothing was packed",
                report,
            )
        off = report.cloud_probability_max_difference
        if report.cloud_label_differences or off > CLOUD_TOLERANCE:
            raise VerifyError(
                f"the high-cost model's graph gives {report.cloud_label_differences} of "
                f"{report.rows} sample rows another label, and probabilities up to {off:.2g} off: "
                "it does not compute what the model does; give another model or an ONNX file",
                report,
            )

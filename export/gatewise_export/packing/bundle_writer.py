"""Write a fitted system as a bundle, and check that the bundle decides as the system does.

A bundle is written next to its destination, and renamed only if its models decide as the system
does. Apart from the time `created`, the same system always gives the same files, byte for byte.
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
from gatewise_export.bundle.decisions import CloudAnswers
from gatewise_export.bundle.errors import VerifyError
from gatewise_export.bundle.flat_models import MAX_MODEL_BYTES
from gatewise_export.bundle.manifest import Manifest
from gatewise_export.bundle.manifest_records import MANIFEST, RANGES, SAMPLE
from gatewise_export.bundle.repacking import check_destination, replace_when_done
from gatewise_export.bundle.topic_levels import check_topic_level
from gatewise_export.packing.converters import CloudFile, convert_and_probe
from gatewise_export.packing.system_manifest import (
    BACKEND,
    StageFiles,
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

#: Largest number of rows in the self-test, which a device runs whenever it installs a bundle.
MAX_SAMPLE_ROWS = 64
#: Smallest allowed difference between the two largest probabilities of a sample row. The label of a
#: closer row may differ between machines, because they round ``exp`` differently.
MIN_PROBABILITY_GAP = 1e-3
#: Largest allowed difference of a converted high-cost model's probability on the sample; a graph
#: may sum in float32 where the model sums in float64.
CLOUD_TOLERANCE = 1e-3


def pack(
    system: BudgetedClassifier,
    path: str | Path,
    *,
    sample: ArrayLike,
    name: str = "model",
    version: str = "1",
    created: datetime | None = None,
    encoder: TableEncoder | RowEncoder | None = None,
    max_message: int = MAX_REQUEST_BYTES,
    loading: LoadLimits | None = None,
) -> Bundle:
    """Write a fitted system, with all operating points of its frontier, as a bundle.

    Parameters
    ----------
    system : fitted system
        A fitted estimator of Gatewise.
    path : str or Path
        A directory, or one zip file if the path ends in ``.gwb``. An existing bundle is replaced;
        any other file or directory is refused.
    sample : array-like of shape (n, n_features)
        Real rows for the self-test on devices, or windows if the system was fitted on blocks. At
        most 64 are used.
    name, version : str
        Name and version of the bundle. They are levels of MQTT topics: 1 to 64 bytes without ``/``,
        ``+``, ``#`` and control characters.
    created : datetime, optional
        Time of creation; by default now.
    encoder : TableEncoder, optional
        Fitted encoder that made the system's features. Devices then read raw columns, and `sample`
        may be a table of raw columns.
    max_message : int, default 131072
        Largest message that the broker accepts, in bytes; the default is the limit of AWS IoT Core.
        A system whose requests are larger is refused.
    loading : LoadLimits, optional
        Memory and time for loading a given graph; by default they follow from its size.

    Returns
    -------
    Bundle
        The written bundle, with the functions of its blocks.

    Raises
    ------
    BundleError
        If `path` holds anything but a bundle.
    InputError
        If `system` is not a fitted system, a name is not allowed in a bundle, a stage is too large
        for devices, or the sample does not fit the system.
    ConversionError
        If the high-cost model cannot be converted, or the converted model answers any of thousands
        of adversarial rows differently.
    VerifyError
        If decisions or margins of the bundle differ from the system's on a sample row, or answers
        of the high-cost graph from the model's; `path` stays unchanged.
    """
    # check the arguments first, because the conversion below may take minutes
    path = check_destination(path)
    check_topic_level("name", name)
    check_topic_level("version", version)
    _check_fitted(system)
    # devices run the RowEncoder inside of a TableEncoder
    row_encoder = None if encoder is None else getattr(encoder, "encoder_", encoder)
    if row_encoder is not None:
        _check_encoder(system, row_encoder)
        sample = encode_table(row_encoder, sample)
    signal: SignalInput | None = getattr(system, "signal_input_", None)
    windows = None
    if signal is not None:
        windows = signal.as_checked_array(sample)[:MAX_SAMPLE_ROWS].astype(signal.dtype)
        sample, system = signal.features(windows), on_features(system)
    # write the stages and the high-cost model
    rows = _read_sample_rows(system, sample)
    all_stage_files = [
        StageFiles.of_stage(stage, index) for index, stage in enumerate(_list_stages(system))
    ]
    high_cost_model = system.high_cost_model_
    cloud_file: CloudFile | None = None
    if high_cost_model is not None and high_cost_model.python_model is None:
        cloud_file = convert_and_probe(
            high_cost_model, rows, allow_missing=system.missing_["cloud"] == "allowed"
        )
    content_of_file = _collect_model_files(system, all_stage_files, cloud_file, signal)
    # choose the rows of the self-test, which must not have two close largest probabilities
    cloud_answers: CloudAnswers | None = None
    if high_cost_model is not None:
        cloud_answers = _answer_rows(high_cost_model, cloud_file, rows)
        is_clear = _mark_clear_rows(cloud_answers.probabilities)
        rows = rows[is_clear]
        cloud_answers = cloud_answers.take(is_clear)
        windows = None if windows is None else windows[is_clear]
    stages = [stage_files.stage for stage_files in all_stage_files]
    sample_arrays = _make_sample_arrays(rows, stages, cloud_answers)
    if signal is not None and windows is not None:
        sample_arrays |= {"X": rows[:, : len(signal.graph.feature_names)], "windows": windows}
    content_of_file[SAMPLE] = write_arrays(sample_arrays)
    if hasattr(system, "training_ranges_"):
        content_of_file[RANGES] = write_arrays(system.training_ranges_.arrays())
    manifest = manifest_of_system(
        system,
        all_stage_files,
        cloud_file,
        content_of_file,
        name=name,
        version=version,
        created=datetime.now(UTC) if created is None else created.astimezone(UTC),
        encoder=row_encoder,
        signal=signal,
    )
    _check_request(manifest, max_message)
    if loading is not None:
        manifest = msgspec.structs.replace(manifest, loading=loading)
    # the manifest has the hashes of all other files
    content_of_file[MANIFEST] = manifest.to_json()
    with replace_when_done(path, content_of_file) as new_path:
        # an opaque model has no file to compare, and calling it again may be costly
        opaque_answers = cloud_answers if cloud_file is None else None
        _check_decisions(system, Bundle.open(new_path), rows, opaque_answers)
    bundle = Bundle.open(path)
    return bundle if signal is None else bundle.with_functions(signal.functions)


# -- parts ---------------------------------------------------------------------------------


def _check_fitted(system: Any) -> None:
    """Check that a system is fitted, and that its column names are allowed in a bundle."""
    if not hasattr(system, "operating_points_"):
        advice = "fit StagedCascade or another estimator"
        if hasattr(system, "steps"):
            advice = "fit an estimator on the columns; its high_cost_model may be a pipeline"
        raise InputError(
            f"{type(system).__name__} cannot be packed: it is not a fitted estimator of Gatewise; "
            f"{advice}"
        )
    check_column_names(system.feature_names_)


def _list_stages(system: BudgetedClassifier) -> list[Stage]:
    """List the stages of all candidate cascades, and check their given graphs."""
    stages = list(dict.fromkeys(stage for chain in chains_of(system) for stage in chain))
    for stage in stages:
        if isinstance(stage.model, GraphModel):
            _check_given_graph(stage.model.content, "a stage's given graph")
    return stages


def _check_given_graph(content: bytes, name: str) -> None:
    """Refuse a graph that is malformed or has data in other files."""
    try:
        model = onnx.load_model_from_string(content)
        onnx.checker.check_model(model, full_check=True)
    except Exception as error:  # protobuf's and shape inference's errors have no common base class
        raise InputError(f"{name} is not a usable ONNX graph: {one_line(error)}") from error
    # a bundle has one file per graph, and its hash would not cover data in other files
    for tensor in onnx.external_data_helper._get_all_tensors(model):
        if onnx.external_data_helper.uses_external_data(tensor):
            raise InputError(
                f"{name} keeps {tensor.name!r} in another file: save the graph as a single file"
            )


def _collect_model_files(
    system: BudgetedClassifier,
    all_stage_files: Sequence[StageFiles],
    cloud_file: CloudFile | None,
    signal: SignalInput | None,
) -> dict[str, bytes]:
    """Collect the files of stages, of blocks' networks and of the high-cost model, by name."""
    content_of_file = {
        file_name: content
        for stage_files in all_stage_files
        for file_name, content in stage_files.contents.items()
    }
    _check_sizes(content_of_file)  # without the high-cost model's file, which no device reads
    for file_name, content in ({} if signal is None else signal.models).items():
        _check_given_graph(content, file_name)
        content_of_file[file_name] = content
    high_cost_model = system.high_cost_model_
    if cloud_file is not None:
        content_of_file[cloud_file.name] = cloud_file.content
    elif high_cost_model is not None:
        content_of_file[BACKEND] = _backend_content(high_cost_model, system.classes_)
    return content_of_file


def _check_request(manifest: Manifest, max_message: int) -> None:
    """Refuse requests that are larger than the broker's largest message.

    A broker closes the connection of a device that sends such a message.
    """
    if manifest.largest_request > max_message:
        raise InputError(
            f"a request would have {manifest.largest_request} bytes, more than max_message="
            f"{max_message}: give the high-cost model fewer features, or raise the broker's limit"
        )


def _check_sizes(content_of_file: Mapping[str, bytes]) -> None:
    """Refuse stages with files that are too large for devices."""
    large_files = [
        f"{file_name} of {byte_size(len(content))}"
        for file_name, content in content_of_file.items()
        if len(content) > MAX_MODEL_BYTES
    ]
    if large_files:
        raise InputError(
            f"a device reads files of at most {byte_size(MAX_MODEL_BYTES)}, but the system has "
            f"{' and '.join(large_files)}: fit with max_bytes=, or give a smaller model"
        )


def _read_sample_rows(system: BudgetedClassifier, sample: Any) -> NDArray[np.float32]:
    """Check a sample and convert its first rows, in the columns that the system was fitted on."""
    column_names = getattr(system, "feature_names_in_", None)
    sample = as_pandas(sample)
    if column_names is not None and hasattr(sample, "columns"):
        missing_columns = [name for name in column_names if name not in sample.columns]
        if missing_columns:
            raise InputError(
                f"sample has no column {missing_columns[0]!r}, which the system was fitted on"
            )
        sample = sample[list(column_names)]
    try:
        rows = np.ascontiguousarray(sample, np.float32)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"sample must hold numbers: {error}; a table of raw columns needs encoder="
        ) from None
    # instances such as images have more axes, and the system takes their values as columns
    if getattr(system, "instance_", None) is not None and rows.ndim > 2:
        rows = rows.reshape(len(rows), -1)
    if rows.ndim != 2 or not len(rows) or rows.shape[1] != system.n_features_in_:
        raise InputError(
            f"sample must have rows of {system.n_features_in_} features, not shape {rows.shape}"
        )
    return rows[:MAX_SAMPLE_ROWS]


def _backend_content(model: HighCostModel, classes: NDArray[Any]) -> bytes:
    """Describe the backend of an opaque model for people; no program reads this file."""
    document = {
        "backend": model.backend,
        "inputs": len(model.features),
        "classes": classes.tolist(),
        "gives": "probabilities, a column for each class",
    }
    return (json.dumps(document, indent=1) + "\n").encode()


def _answer_rows(
    model: HighCostModel, cloud_file: CloudFile | None, rows: NDArray[np.float32]
) -> CloudAnswers:
    """Answer rows with the converted file, or with an opaque model.

    The sample has the answers of the file, because a worker runs the file and not the model.
    """
    if cloud_file is None:
        return CloudAnswers(*model.answers(rows))
    return cloud_file.answers(rows[:, model.features])


def _mark_clear_rows(probabilities: NDArray[Any]) -> NDArray[np.bool_]:
    """Mark rows with a clear largest probability; mark all rows if no row has one.

    A sample without rows would let every model pass the self-test.
    """
    two_largest = np.sort(probabilities, axis=1)[:, -2:]
    is_clear: NDArray[np.bool_] = two_largest[:, 1] - two_largest[:, 0] > MIN_PROBABILITY_GAP
    return is_clear if is_clear.any() else np.ones(len(probabilities), np.bool_)


def _make_sample_arrays(
    rows: NDArray[np.float32],
    stages: Sequence[Stage],
    cloud_answers: CloudAnswers | None,
) -> dict[str, NDArray[Any]]:
    """Make the arrays of the sample file, with the names that the bundle format defines."""
    arrays: dict[str, NDArray[Any]] = {"X": rows}
    for stage_index, stage in enumerate(stages):
        arrays[f"stage_{stage_index}"] = stage.margins(rows)
        if stage.acquisition == "node":  # other stages acquire all their features
            arrays[f"bought_{stage_index}"] = stage.acquired(rows)[:, stage.features]
    if cloud_answers is not None:
        arrays["cloud_label"] = cloud_answers.labels.astype(np.int64)
        arrays["cloud_probabilities"] = cloud_answers.probabilities.astype(np.float32)
    return arrays


def _check_encoder(system: BudgetedClassifier, encoder: RowEncoder) -> None:
    """Check that an encoder makes the features that the system was fitted on."""
    if not isinstance(encoder, RowEncoder):
        raise InputError("encoder must be a fitted gw.TableEncoder")
    check_column_names(encoder.names)
    if tuple(system.feature_names_) != encoder.feature_names:
        raise InputError(
            f"the encoder makes {len(encoder.feature_names)} features, which differ from the "
            f"{len(system.feature_names_)} that the system was fitted on: fit it on "
            "encoder.transform(X)"
        )


def _check_decisions(
    system: BudgetedClassifier,
    bundle: Bundle,
    rows: NDArray[np.float32],
    opaque_answers: CloudAnswers | None,
) -> None:
    """Compare each chain of the bundle with the system; raise VerifyError if they differ.

    `opaque_answers` are the answers of an opaque high-cost model to the rows.
    """
    answers = (
        HighCostAnswers.of_system(system, bundle, rows)
        if opaque_answers is None
        else HighCostAnswers(opaque_answers, opaque_answers)
    )
    # compare the active point and one point of each chain, because the other points of a chain have
    # the same models and differ only in thresholds
    point_of_chain = {
        point.chain: index for index, point in enumerate(bundle.manifest.operating_points)
    }
    for point_index in {bundle.manifest.active, *point_of_chain.values()}:
        system_at_point = copy.copy(system)  # shares the fitted models
        system_at_point.operating_point_ = system.operating_points_[point_index]
        report = verify(system_at_point, bundle.with_active(point_index), rows, high_cost=answers)
        # stages must give the same bits as in training, because device and simulation must agree
        if not report.agrees:
            raise VerifyError(
                f"nothing was packed: the graphs decide "
                f"{max(report.differing_decisions, report.differing_labels)} of {report.rows} "
                "sample rows differently than the system",
                report,
            )
        if report.max_margin_difference > 0:
            raise VerifyError(
                "nothing was packed: the stages' margins on sample rows differ from the system's "
                f"by up to {report.max_margin_difference:.2g}",
                report,
            )
        difference = report.cloud_probability_max_difference
        if report.cloud_label_differences or difference > CLOUD_TOLERANCE:
            raise VerifyError(
                f"nothing was packed: the high-cost model's graph differs from the model in the "
                f"labels of {report.cloud_label_differences} of {report.rows} sample rows, and in "
                f"probabilities by up to {difference:.2g}: give another model or an ONNX file",
                report,
            )

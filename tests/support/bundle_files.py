"""Files of a bundle, to look at and to exchange; graphs run and compared, rows as tables."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pandas as pd
from numpy.typing import NDArray

from gatewise.decision import labels


def contents(path: Path) -> dict[str, bytes]:
    """Every file of a bundle, directory or zip, by name."""
    if path.is_dir():
        return {p.name: p.read_bytes() for p in path.iterdir()}
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def replace_file(path: Path, name: str, content: bytes) -> None:
    """Put another file into a bundle's directory, with a manifest that lists it."""
    document = json.loads((path / "manifest.json").read_text())
    document["files"][name] = {
        "sha256": hashlib.sha256(content).hexdigest(),
        "size": len(content),
    }
    for stage in document["stages"]:
        if stage["file"] == name:
            stage["bytes"] = len(content)
    (path / name).write_bytes(content)
    (path / "manifest.json").write_text(json.dumps(document))


def rows_as_table(system: Any, rows: NDArray[np.float32]) -> Any:
    """Rows as the table that the system was fitted on, if it was."""
    names = getattr(system, "feature_names_in_", None)
    return rows if names is None else pd.DataFrame(rows, columns=names)


def run_onnx(model: Any, x: Any) -> dict[str, Any]:
    """Outputs of an ONNX model by name, trees added up in their order."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    read = session.get_inputs()[0].name
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(None, {read: x}), strict=True))


def assert_graph_answers(system: Any, out: dict[str, Any], x: NDArray[np.float32]) -> None:
    """Check that the outputs of a system's graph are the estimator's own, bit for bit.

    Probabilities, which need ``exp``, are compared to float32's precision.
    """
    rows = rows_as_table(system, x)
    if hasattr(system, "classes_"):
        stays = system.exit_stage(rows) < len(system.stages_)
        last = system.classes_[labels(system.stages_[-1].run(x)[0])]
        assert out["label"][stays].tolist() == system.predict(rows)[stays].tolist()
        assert out["label"][~stays].tolist() == last[~stays].tolist()
        expected = system.predict_proba(rows)[stays]
        assert np.allclose(out["probabilities"][stays], expected, atol=1e-6, equal_nan=True)
    else:
        assert out["value"].tolist() == system.predict(rows).tolist()
    assert ("offload" in out) == (system.high_cost_model_ is not None)
    if "offload" in out:
        assert out["offload"].tolist() == system.offload(rows).tolist()
    assert ("cost" in out) == all(stage.acquisition == "stage" for stage in system.stages_)
    if "cost" in out:
        assert out["cost"].tolist() == system.cost(rows).tolist()

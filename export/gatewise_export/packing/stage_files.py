"""A stage's files in a bundle: its flat arrays, and the graph written from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from gatewise.models.graph_model import GraphModel
from gatewise.models.stage import Stage
from gatewise_export.bundle.flat_models import canonical, kind_of, write_model
from gatewise_export.bundle.manifest_records import StageKind
from gatewise_export.onnx_writer import write_graph


@dataclass(frozen=True, eq=False)
class StageFiles:
    """A stage, its kind, and the names and contents of its files."""

    stage: Stage
    kind: StageKind
    arrays: str | None
    graph: str | None
    contents: dict[str, bytes]

    @classmethod
    def of_stage(cls, stage: Stage, number: int) -> Self:
        """Write a stage's files; a given graph stays as it is."""
        arrays = f"stage_{number}.npz"
        graph = f"stage_{number}.onnx"
        if isinstance(stage.model, GraphModel):
            return cls(stage, "graph", None, graph, {graph: stage.model.content})
        model = canonical(stage.model)
        kind = kind_of(model, lazy=stage.acquisition == "node")
        contents = {arrays: write_model(model)}
        if kind == "lazy":
            return cls(stage, kind, arrays, None, contents)
        return cls(stage, kind, arrays, graph, contents | {graph: write_graph(model)})

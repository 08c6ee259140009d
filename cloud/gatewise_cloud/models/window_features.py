"""Features of the raw windows of requests, for a high-cost model that reads features."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise_cloud.errors import RefusedRows
from gatewise_signals.graph import SignalGraph

if TYPE_CHECKING:
    from gatewise_export.bundle.bundle import Bundle


class WindowFeatures:
    """Computes what a bundle's high-cost model reads, and no other block.

    Raises BundleError if a network that is a block is refused.
    """

    def __init__(self, bundle: Bundle) -> None:
        from gatewise_export.onnx_files.graph_rules import check_stage_graph

        bundle.read_block_models(check_stage_graph)
        signal, inputs = bundle.manifest.signal, bundle.manifest.cloud_inputs()
        assert signal is not None
        names = signal.graph.feature_names
        blocks = [signal.graph.blocks[b] for b in np.unique(signal.graph.block_of[inputs])]
        self._graph = SignalGraph(blocks)
        self._columns = np.array([self._graph.feature_names.index(names[k]) for k in inputs])
        self._shape, self._dtype = signal.shape, np.dtype(signal.dtype)

    def __len__(self) -> int:
        """Count the features."""
        return len(self._columns)

    def compute(self, rows: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
        """Compute the high-cost model's inputs of windows, given flat as requests carry them.

        Shapes: `rows` (n, n_values); returns (n, n_inputs). Raises RefusedRows if a block cannot
        compute a window.
        """
        with np.errstate(all="ignore"):
            windows = rows.reshape(len(rows), *self._shape).astype(self._dtype)
        if not np.array_equal(windows.reshape(rows.shape), rows, equal_nan=True):
            raise RefusedRows("type", f"the windows hold values that are no {self._dtype}")
        try:
            return np.ascontiguousarray(self._graph.transform(windows)[:, self._columns])
        except (InputError, ValueError, IndexError) as error:
            raise RefusedRows(
                "type", f"blocks on windows of shape {self._shape}: {error}"
            ) from None

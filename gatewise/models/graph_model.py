"""ONNX graph that computes margins, which onnxruntime runs one row at a time.

A matrix product may add its terms in another order for a batch than for one row. The rows are
therefore run one by one, with the settings of a device. An estimator and a device then compute the
same bits on the same kind of machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise.imports import open_session


@dataclass(frozen=True, eq=False)
class GraphModel:
    """ONNX graph with the input ``x`` and the output ``margins``, both float32.

    `content` is the ONNX file.
    """

    content: bytes
    n_features: int
    n_outputs: int

    @property
    def nbytes(self) -> int:
        """Size of the file in bytes."""
        return len(self.content)

    def margins(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Compute the margins of rows.

        Shapes: `x` (n, n_features); returns (n, n_outputs), float32.
        """
        x = np.ascontiguousarray(x, np.float32)
        margins = np.empty((len(x), self.n_outputs), np.float32)
        run = self._session.run
        for row in range(len(x)):
            margins[row] = run(None, {"x": x[row : row + 1]})[0][0]
        return margins

    @cached_property
    def _session(self) -> Any:
        return open_session(self.content)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the session, which cannot be pickled."""
        return {name: value for name, value in self.__dict__.items() if name != "_session"}

"""A given model as an ONNX graph from rows to margins, run by onnxruntime one row at a time.

A matrix product may add in another order for one row than for many, so that margins of a batch can
differ in their last bits from the margins that a device computes. Here every row is run alone, with
the device's settings: estimator and device then have the same bits on the same kind of machine.
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
    """A model that was given, with the input ``x`` and the output ``margins``, both float32.

    `content` is the ONNX file, with everything around the given graph that makes its output
    margins.
    """

    content: bytes
    n_features: int
    n_outputs: int

    @property
    def nbytes(self) -> int:
        """Bytes of the file."""
        return len(self.content)

    def margins(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Margins of rows, float32; each row is run alone.

        Shapes: `x` (n, n_features); returns (n, n_outputs).
        """
        x = np.ascontiguousarray(x, np.float32)
        margins = np.empty((len(x), self.n_outputs), np.float32)
        run = self._session.run
        for i in range(len(x)):
            margins[i] = run(None, {"x": x[i : i + 1]})[0][0]
        return margins

    @cached_property
    def _session(self) -> Any:
        return open_session(self.content)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the session, which cannot be pickled."""
        return {k: v for k, v in self.__dict__.items() if k != "_session"}

"""A bundle ready to run on this device: what depends on it, as one object that never changes.

Each instance holds the object that it began with. So a device takes over a new bundle by putting
another object in place, and an instance under way ends with the stages, prices, sensors and model
version that it began with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise.columns.encoders import RawRow, RowEncoder
from gatewise.errors import InputError
from gatewise_edge.device.auditor import Auditor
from gatewise_edge.device.gate import Gate
from gatewise_edge.link.messages import MAX_PAYLOAD
from gatewise_edge.sensors.feature_reader import FeatureSource, Meter, RawRowSource, RowSource
from gatewise_edge.sensors.sensors import Sensors
from gatewise_edge.stages.plan import StagePlan
from gatewise_edge.stages.stage_models import Runner
from gatewise_edge.stages.stages import StageRunner, self_test
from gatewise_export.bundle.bundle import Bundle

__all__ = ["Installed"]


@dataclass(frozen=True, slots=True, eq=False)
class Installed:
    """A bundle with all that is made of it.

    `source` reads the device's sensors, if there are any; `gate` is that of the stage before an
    instance leaves the device, where one may; `auditor` that of its answers, if any. Rows have
    `width` values, and the bundle's features are their `columns`; None: all, in this order. With
    an `encoder` rows are raw, of the columns `row_names`; without these, floats are features.
    """

    bundle: Bundle
    runner: StageRunner
    plan: StagePlan
    meter: Meter
    source: FeatureSource | None
    width: int
    columns: NDArray[np.intp] | None
    gate: Gate | None = None
    auditor: Auditor | None = None
    encoder: RowEncoder | None = None
    row_names: tuple[str, ...] | None = None

    @classmethod
    def load(
        cls,
        bundle: Bundle,
        *,
        sensors: Sensors | None,
        may_offload: bool,
        check: bool = True,
        runner: Runner = "auto",
        row_names: Sequence[str] | None = None,
    ) -> Self:
        """Load a bundle and prove that it computes here what it computed where it was packed.

        If instances may leave the device, a request's features need sensors and must fit a message.
        Rows have the features `row_names`, matched here by name; without them the bundle's own.
        Raises BundleError if the bundle cannot be read or run, SelfTestError if it computes
        otherwise here, InputError if sensors or rows do not fit it or a request would be too large.
        """
        stages = StageRunner(bundle, runner=runner)
        plan = StagePlan.from_manifest(bundle.manifest)
        carried = plan.request_inputs if may_offload else plan.request_inputs[:0]
        if len(carried) and plan.request_bytes > MAX_PAYLOAD:
            raise InputError(
                f"a request carries {len(carried)} features, more than a message of "
                f"{MAX_PAYLOAD} bytes can hold"
            )
        if check:
            self_test(bundle, stages)
        costs = bundle.manifest.feature_costs()
        source = None
        if sensors is not None:
            needed = [*plan.stage_inputs, *carried]
            source = sensors.bind(costs, needed, bundle.manifest.encoder)
        if (encoder := bundle.manifest.encoder) is not None:
            given = None if row_names is None else tuple(row_names)
            _columns(given or encoder.names, encoder.names)
            width = len(plan.names)
            return cls(
                bundle, stages, plan, Meter(costs), source, width, None,
                encoder=encoder, row_names=given,
            )  # fmt: skip
        names = plan.names if row_names is None else tuple(row_names)
        columns = _columns(names, plan.names)
        return cls(bundle, stages, plan, Meter(costs), source, len(names), columns)

    def holds_features(self, rows: object) -> bool:
        """Whether rows hold features, not the raw columns of an encoder.

        Rows with names of their own are of those columns, even if all of them are numbers.
        """
        if self.encoder is None:
            return True
        floats = isinstance(rows, np.ndarray) and rows.dtype.kind == "f"
        return floats and self.row_names is None

    def source_of(self, row: ArrayLike | RawRow | None) -> FeatureSource:
        """Source of an instance's values: the row given, else the sensors.

        Raises InputError if the row does not fit the bundle, or there are neither row nor sensors.
        """
        if row is not None:
            if self.encoder is not None and not self.holds_features(row):
                return RawRowSource(row, self.encoder, self.row_names)  # type: ignore[arg-type]
            spec = self.bundle.manifest.instance
            if spec is not None and np.shape(row) == spec.shape:  # type: ignore[arg-type]
                row = np.reshape(row, -1)  # type: ignore[arg-type]
            return RowSource(row, self.width, self.columns)  # type: ignore[arg-type]
        if self.source is None:
            raise InputError("no instance: give a row, or give the device sensors")
        return self.source


def _columns(given: tuple[str, ...], wanted: tuple[str, ...]) -> NDArray[np.intp] | None:
    """Positions of the wanted features in a row; None where the orders are the same."""
    if given == wanted:
        return None
    missing = [name for name in wanted if name not in given]
    if missing:
        raise InputError(f"the rows have no feature {missing[0]!r}, which the bundle needs")
    return np.array([given.index(name) for name in wanted], np.intp)

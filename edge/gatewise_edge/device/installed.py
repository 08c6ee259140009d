"""The bundle that a device answers with: what depends on it, as one object that never changes.

Each instance holds the object that it began with. So a device takes over a new bundle by putting
another object in place, and an instance under way ends with the stages, prices, sensors and model
version that it began with.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, Protocol, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise.columns.encoders import RawRow, RowEncoder
from gatewise.errors import GatewiseError, InputError
from gatewise.models.jpeg import load_decoder
from gatewise.prices import request_bytes
from gatewise_edge.checks import MAX_PAYLOAD
from gatewise_edge.device.answer import Policy
from gatewise_edge.device.auditor import Audit, Auditor, disagreement_bound, safer_point
from gatewise_edge.device.gate import Gate
from gatewise_edge.device.pacer import Pacer
from gatewise_edge.device.plan import StagePlan
from gatewise_edge.device.stage_models import Runner
from gatewise_edge.device.stages import StageRunner, self_test
from gatewise_edge.sensors.blocking_reader import BlockingReader
from gatewise_edge.sensors.feature_reader import (
    FeatureSource,
    JpegSource,
    Meter,
    RawRowSource,
    Values,
    WindowSource,
    row_values,
)
from gatewise_edge.sensors.sensors import Sensors
from gatewise_edge.sensors.table import in_order
from gatewise_export.bundle.bundle import Bundle

BlockFunction: TypeAlias = Callable[[NDArray[Any]], ArrayLike]
NO_FUNCTIONS: Final[Mapping[str, BlockFunction]] = MappingProxyType({})

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Installed:
    """A bundle with all that is made of it.

    `source` reads the device's sensors, if there are any; `gate` is that of the stage before an
    instance leaves the device, where one may; `auditor` that of its answers, if any. Rows have
    `width` values named `row_names`, and the bundle's features are their `columns`; None: all, in
    this order. With an `encoder` rows are raw; without `row_names`, floats are features then.
    `block_reader` runs the functions that are blocks.
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
    block_reader: BlockingReader | None = None

    @classmethod
    def load(
        cls,
        bundle: Bundle,
        *,
        sensors: Sensors | None,
        most_bytes: int | None,
        check: bool = True,
        runner: Runner = "auto",
        row_names: Sequence[str] | None = None,
        functions: Mapping[str, BlockFunction] | None = NO_FUNCTIONS,
        block_reader: BlockingReader | None = None,
    ) -> Self:
        """Load a bundle and prove that it computes here what it computed where it was packed.

        If instances may leave the device, in requests whose values have `most_bytes`, their
        features need sensors and must fit.
        Rows have the features `row_names`, matched here by name; without them the bundle's own.
        Raises BundleError if the bundle cannot be read or run, SelfTestError if it computes
        otherwise here, InputError if sensors or rows do not fit it, a block's function is not among
        `functions`, or a request would be too large. Without `functions` at all, instances are
        features that were computed elsewhere: no block is run or tested.
        """
        if functions is not None:
            bundle = bundle.with_functions(functions)
        stages = StageRunner(bundle, runner=runner)
        plan = StagePlan.from_manifest(bundle.manifest)
        carried = plan.request_inputs if most_bytes is not None else plan.request_inputs[:0]
        if most_bytes is not None and "gateway" in plan.tiers:
            most_bytes = MAX_PAYLOAD - request_bytes(0)  # a gateway passes no parts on
        if most_bytes is not None and plan.dtype.itemsize * len(carried) > most_bytes:
            raise InputError(
                f"a request carries {len(carried)} values, more than the {most_bytes} bytes "
                "that it can hold"
            )
        instance = bundle.manifest.instance
        if instance is not None and instance.encoding is not None:
            load_decoder()  # without one a device still sends what no stage reads
        if check:
            self_test(bundle, stages, blocks=functions is not None)
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
        # A window has no names: its features are computed.
        named = row_names is not None and bundle.manifest.signal is None
        names = tuple(row_names or ()) if named else plan.names
        columns = _columns(names, plan.names)
        return cls(
            bundle, stages, plan, Meter(costs), source, len(names), columns,
            row_names=names, block_reader=block_reader,
        )  # fmt: skip

    def holds_features(self, rows: object) -> bool:
        """Whether rows hold features, not the raw columns of an encoder.

        Rows with names of their own are of those columns, even if all of them are numbers.
        """
        if self.encoder is None:
            return True
        floats = isinstance(rows, np.ndarray) and rows.dtype.kind == "f"
        return floats and self.row_names is None

    def checked_rows(self, given: ArrayLike | Sequence[RawRow]) -> Sequence[Any] | NDArray[Any]:
        """Check instances' features together, as a matrix; raw rows and files one by one.

        Raises InputError if they do not fit the bundle.
        """
        rows: Any = given
        if hasattr(rows, "to_dict"):  # a DataFrame
            named = any(isinstance(name, str) for name in rows.columns)
            rows = rows.to_dict("records") if named else rows.to_numpy()
        signal = self.bundle.manifest.signal
        if signal is not None:
            first = next(iter(rows), None) if isinstance(rows, np.ndarray) and rows.ndim else None
            if not signal.is_features(first):
                return signal.checked(rows)
        files = isinstance(rows, list | tuple) and any(isinstance(row, bytes) for row in rows)
        if files or not self.holds_features(rows):
            return rows  # type: ignore[no-any-return]
        if isinstance(rows, list):
            names = self.row_names or ()
            rows = [in_order(row, names) if isinstance(row, Mapping) else row for row in rows]
        try:
            with np.errstate(over="ignore"):
                X = np.asarray(rows, np.float32)
        except (TypeError, ValueError) as error:
            raise InputError(f"the instances must be rows of numbers: {error}") from None
        spec = self.bundle.manifest.instance
        if spec is not None and X.shape[1:] == spec.shape:
            X = X.reshape(len(X), -1)
        if X.ndim != 2 or X.shape[1] != self.width:
            raise InputError(f"instances of shape {X.shape}; they must have {self.width} features")
        return X

    def source_of(self, given: ArrayLike | RawRow | bytes | None) -> FeatureSource | Values:
        """Source of an instance's values, or all of them: the row given, else the sensors.

        Raises InputError if the row does not fit the bundle, or there are neither row nor sensors.
        """
        row: Any = given
        if row is not None:
            if hasattr(row, "to_dict") and np.ndim(row) == 1:  # a Series
                named = row.to_dict()
                row = named if any(isinstance(name, str) for name in named) else row.to_numpy()
            if self.encoder is not None and not self.holds_features(row):
                return RawRowSource(row, self.encoder, self.row_names)
            signal = self.bundle.manifest.signal
            if signal is not None and not signal.is_features(row):
                return WindowSource(row, signal, self.block_reader)
            spec = self.bundle.manifest.instance
            if isinstance(row, Mapping):
                row = in_order(row, self.row_names or ())
            if isinstance(row, bytes):
                if spec is None or spec.encoding is None:
                    raise InputError(
                        "an instance of bytes is a JPEG image, and this bundle takes none: its "
                        'manifest has no "encoding"'
                    )
                return JpegSource(row, spec)
            if spec is not None and np.shape(row) == spec.shape:
                row = np.reshape(row, -1)
            return row_values(row, self.width, self.columns)
        if self.source is None:
            raise InputError("no instance: give a row, or give the device sensors")
        return self.source


class Loader(Protocol):
    """A function that makes what depends on a bundle alone."""

    def __call__(self, bundle: Bundle, *, check: bool) -> Installed: ...


class ActiveBundle:
    """The bundle that new instances are answered with, and how another takes its place.

    `load` makes what depends on a bundle alone; the rest is this device's own.
    """

    def __init__(
        self,
        bundle: Bundle,
        load: Loader,
        *,
        check: bool,
        policy: Policy,
        pacer: Pacer | None,
        audit: Audit | None,
        rng: random.Random,
        on_drift: Callable[[str, float], None],
    ) -> None:
        self._load = load
        self._policy = policy
        self._pacer = pacer
        self._audit = audit
        self._rng = rng
        self._on_drift = on_drift
        self._installing = threading.Lock()
        self.installed = self._install(bundle, check=check)

    def adopt(self, bundle: Bundle) -> None:
        """Install a bundle and prove it; where that fails, the active one stays."""
        with self._installing:
            self.installed = self._install(bundle, check=True)
        manifest = bundle.manifest
        _LOG.debug("model %s, version %s, is active", manifest.name, manifest.version)

    def _install(self, bundle: Bundle, *, check: bool) -> Installed:
        if self._policy == "cloud-only" and bundle.manifest.cloud is None:
            raise InputError("policy cloud-only: the bundle has no cloud model")
        made = self._load(bundle, check=check)
        if self._policy == "cloud-only" and not made.plan.has_cloud:
            most = bundle.manifest.max_instance_cost
            raise InputError(f"policy cloud-only: offloads may cost more than {most:g} an instance")
        if self._policy != "system" or not made.plan.has_cloud:
            return made
        auditor = None
        if self._audit is not None:
            promised = disagreement_bound(bundle.manifest)
            auditor = Auditor(self._audit, made.plan, promised, self._alarmed, self._rng)
        # Last: the pacer goes on with a gate once it is made.
        gate = Gate.from_manifest(
            bundle.manifest, made.plan, pacer=self._pacer, on_drift=self._on_drift
        )
        return replace(made, gate=gate, auditor=auditor)

    def _alarmed(self, auditor: Auditor) -> None:
        """Report an audit's alarm, and take its action."""
        test = auditor.test
        _LOG.warning(
            "audit: about %.3g of the instances are answered otherwise than the high-cost "
            "model would, more than the bound of %.3g (%d of %d audits)",
            test.estimate,
            test.bound,
            test.disagreed,
            test.audits,
        )
        action = None if self._audit is None else self._audit.action
        if action == "offload":
            auditor.offload_all = True
        elif action == "safer":
            # Loading a point's stages takes time, in which responses must be received.
            move = threading.Thread(target=self._move_to_safer_point, args=(auditor,), daemon=True)
            move.start()

    def _move_to_safer_point(self, auditor: Auditor) -> None:
        with self._installing:
            bundle = self.installed.bundle
            if self.installed.auditor is not auditor:  # of a bundle that was replaced meanwhile
                return
            point = safer_point(bundle.manifest)
            try:
                if point is not None:
                    self.installed = self._install(bundle.with_active(point), check=True)
                    _LOG.warning("audit: operating point %d is active", point)
                    return
            except GatewiseError as error:
                _LOG.warning("audit: operating point %s cannot be used: %s", point, error)
            auditor.offload_all = True
            _LOG.warning("audit: no safer operating point; every instance is offloaded")


def _columns(given: tuple[str, ...], wanted: tuple[str, ...]) -> NDArray[np.intp] | None:
    """Positions of the wanted features in a row; None where the orders are the same."""
    if given == wanted:
        return None
    missing = [name for name in wanted if name not in given]
    if missing:
        raise InputError(f"the rows have no feature {missing[0]!r}, which the bundle needs")
    return np.array([given.index(name) for name in wanted], np.intp)

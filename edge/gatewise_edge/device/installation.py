"""An installation of a bundle on a device: its loaded models, prices and inputs.

To adopt a new bundle, a device replaces its installation. Each instance refers to the installation
with which it began, and is finished with the same stages, prices, sensors and model version.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise.columns.encoders import RawRow
from gatewise.errors import InputError
from gatewise.imports import CPU
from gatewise_edge.device.self_checks import self_test
from gatewise_edge.device.stages import DeviceStage, Runner, load_stages
from gatewise_edge.link.messages import MAX_VALUE_BYTES
from gatewise_edge.sensors.blocking_reader import BlockingReader
from gatewise_edge.sensors.cell_source import CellSource, FetchedRow, InputColumns, raw_cells
from gatewise_edge.sensors.feature_reader import FeatureSource, Meter, Values, row_values
from gatewise_edge.sensors.row_reader import order_cells, unpack_series
from gatewise_edge.sensors.sensors import Sensors
from gatewise_edge.sensors.window_source import ChannelLimits, WindowSource
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.manifest import Manifest

BlockFunction: TypeAlias = Callable[[NDArray[Any]], ArrayLike]
NO_BLOCK_FUNCTIONS: Final[Mapping[str, BlockFunction]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Installation:
    """A bundle with its loaded models, prices and inputs at the active operating point.

    Attributes
    ----------
    bundle : Bundle
    manifest : Manifest
        Manifest of the bundle.
    stages : tuple of DeviceStage
        Stages that an instance may reach. A cap on the cost of an instance may exclude the last
        stages and the cloud.
    n_stages : int
        Number of stages in the bundle; also the exit index that stands for the high-cost model.
    has_cloud : bool
        Whether an instance may be offloaded.
    stages_take_nan, cloud_takes_nan : bool
        Whether the stages and the high-cost model allow missing values.
    request_inputs : ndarray of intp
        Features in a request, in this order.
    request_dtype : dtype
        Type of a request's values.
    offload_price, request_price : float
        Price of an offload that gets a response, and of one that gets none, without its features.
    meter : Meter
        Costs of features.
    source : FeatureSource or None
        Sensors of the device.
    columns : InputColumns
        Columns of rows, from which the features are encoded.
    row_names : tuple of str or None
        Names of the values in rows; None if rows have the encoder's columns or float features.
    feature_positions : ndarray of intp or None
        Positions of the bundle's features in a row; None if a row has these features in order.
    row_shape : tuple of int or None
        Shape of a row of float32 features; None if such an array may be raw cells or a window.
    block_reader : BlockingReader or None
        Runs the blocks that are functions or networks.
    channel_limits : ChannelLimits or None
        Plausible values of a window's channels.
    """

    bundle: Bundle
    manifest: Manifest
    stages: tuple[DeviceStage, ...]
    n_stages: int
    has_cloud: bool
    stages_take_nan: bool
    cloud_takes_nan: bool
    request_inputs: NDArray[np.intp]
    request_dtype: np.dtype[Any]
    offload_price: float
    request_price: float
    meter: Meter
    source: FeatureSource | None
    columns: InputColumns
    row_names: tuple[str, ...] | None
    feature_positions: NDArray[np.intp] | None
    row_shape: tuple[int, ...] | None
    block_reader: BlockingReader | None
    channel_limits: ChannelLimits | None

    @classmethod
    def load(
        cls,
        bundle: Bundle,
        *,
        sensors: Sensors | None = None,
        may_offload: bool = False,
        runs_self_test: bool = True,
        runner: Runner = "auto",
        provider: str = CPU,
        row_names: Sequence[str] | None = None,
        block_functions: Mapping[str, BlockFunction] | None = NO_BLOCK_FUNCTIONS,
        block_reader: BlockingReader | None = None,
        checks_ranges: bool = True,
    ) -> Self:
        """Load a bundle and check that it gives the same results here as where it was packed.

        If the device `may_offload` instances, the features of requests need sensors and must fit
        one message. Rows have the features `row_names`, by default the bundle's. If
        `block_functions` is None, rows have features that were computed elsewhere, and no block is
        run or tested. With `checks_ranges` the device compares values with the ranges of the
        training rows.

        Raises BundleError if the bundle cannot be read or run, and SelfTestError if it gives other
        results here. Raises InputError if sensors or rows do not match it, if `block_functions`
        lacks a block's function, or if a request would be too large.
        """
        # Load the models, and check the size of a request.
        if block_functions is not None:
            bundle = bundle.with_functions(block_functions)
        stages = load_stages(bundle, runner, provider)
        manifest = bundle.manifest
        request_inputs = manifest.cloud_inputs()
        request_dtype = manifest.request_dtype
        if may_offload and request_dtype.itemsize * len(request_inputs) > MAX_VALUE_BYTES:
            raise InputError(
                f"a request has {len(request_inputs)} values, which take more than the "
                f"{MAX_VALUE_BYTES} bytes of a message"
            )
        if runs_self_test:
            self_test(bundle, stages, with_blocks=block_functions is not None, provider=provider)
        # Bind the sensors that requests and the stages that an instance may reach need.
        reachable_stages = stages[: manifest.last_exit + 1]
        costs = manifest.feature_costs()
        source = None
        if sensors is not None:
            needed_features = {
                feature for stage in reachable_stages for feature in stage.input_list
            }
            needed_features |= set(request_inputs.tolist()) if may_offload else set()
            source = sensors.bind(costs, sorted(needed_features), manifest.encoder)
        # Collect what rows and requests need.
        value_names, feature_positions = _row_names_and_positions(bundle, row_names)
        feature_limits, channel_limits = (
            _plausible_limits(bundle) if checks_ranges else (None, None)
        )
        prices = manifest.cloud_prices()
        stages_take_nan = manifest.missing.stages == "allowed"
        return cls(
            bundle=bundle,
            manifest=manifest,
            stages=reachable_stages,
            n_stages=len(stages),
            has_cloud=manifest.last_exit >= len(stages),
            stages_take_nan=stages_take_nan,
            cloud_takes_nan=manifest.missing.cloud == "allowed",
            request_inputs=request_inputs,
            request_dtype=request_dtype,
            offload_price=prices.offload_price(len(request_inputs)),
            request_price=prices.request_price(len(request_inputs)),
            meter=Meter(costs, manifest.feature_column_names, feature_limits),
            source=source,
            columns=InputColumns(manifest.feature_names, manifest.encoder),
            row_names=value_names,
            feature_positions=feature_positions,
            row_shape=_row_shape(bundle, value_names),
            block_reader=block_reader,
            channel_limits=channel_limits,
        )

    def cast_for_request(self, values: NDArray[np.float32]) -> NDArray[Any]:
        """Cast values to the type of a request, unless that would change a value."""
        if self.request_dtype == values.dtype:
            return values
        with np.errstate(all="ignore"):
            cast_values = values.astype(self.request_dtype)
        return cast_values if np.array_equal(cast_values, values) else values

    @property
    def _n_row_values(self) -> int:
        """Number of values in a row of features."""
        has_names = self.manifest.encoder is None and self.row_names is not None
        return len((self.row_names or ()) if has_names else self.manifest.features)

    def _has_features(self, rows: object) -> bool:
        """Whether rows have features, not the raw columns of an encoder.

        Rows with `row_names` have raw columns, even if all values are numbers.
        """
        if self.manifest.encoder is None:
            return True
        has_floats = isinstance(rows, np.ndarray) and rows.dtype.kind == "f"
        return has_floats and self.row_names is None

    def as_checked_rows(self, rows: ArrayLike | Sequence[RawRow]) -> Sequence[Any] | NDArray[Any]:
        """Check the features or windows of all instances, and return them as an array.

        Raw rows are returned without a check, because the encoder checks each cell. Raises
        InputError if the instances do not match the bundle.
        """
        # Convert tables.
        instances: Any = rows
        for method_name in ("to_dicts", "to_pylist"):  # of polars and of Arrow
            if hasattr(instances, method_name):
                return self.as_checked_rows(getattr(instances, method_name)())
        if hasattr(instances, "to_dict"):  # a DataFrame of pandas
            has_names = any(isinstance(name, str) for name in instances.columns)
            instances = instances.to_dict("records") if has_names else instances.to_numpy()
        # Check windows, unless the instances already have the features of windows.
        signal = self.manifest.signal
        if signal is not None:
            is_array = isinstance(instances, np.ndarray) and instances.ndim
            first_instance = next(iter(instances), None) if is_array else None
            if not signal.holds_features(first_instance):
                return signal.as_checked_array(instances)
        # Leave raw rows as they are.
        if not self._has_features(instances):
            return instances  # type: ignore[no-any-return]
        if isinstance(instances, list | tuple):
            row_names = self.row_names or ()
            instances = [
                order_cells(instance, row_names) if isinstance(instance, Mapping) else instance
                for instance in map(unpack_series, instances)
            ]
        # Check features as one matrix.
        try:
            with np.errstate(over="ignore"):
                X = np.asarray(instances, np.float32)
        except (TypeError, ValueError) as error:
            raise InputError(f"the instances must be rows of numbers: {error}") from None
        instance_spec = self.manifest.instance
        if instance_spec is not None and X.shape[1:] == instance_spec.shape:
            X = X.reshape(len(X), math.prod(instance_spec.shape))
        if X.ndim != 2 or X.shape[1] != self._n_row_values:
            raise InputError(
                f"instances of shape {X.shape}; they must have {self._n_row_values} features"
            )
        return X

    def features_or_source(self, row: ArrayLike | RawRow | None) -> FeatureSource | Values:
        """Return the features of a row, or the source from which to read them.

        Without a row the source is the sensors. Raises InputError if the row does not match the
        bundle, or if there is neither a row nor a sensor.
        """
        instance: Any = row
        # Test the most frequent form first, because this runs for each instance.
        if isinstance(row, np.ndarray) and row.shape == self.row_shape and row.dtype == np.float32:
            return row if self.feature_positions is None else row[self.feature_positions]
        # Sensors, a row with fetched values, or a Series of pandas.
        if instance is None:
            if self.source is None:
                raise InputError("no instance: give a row, or give the device sensors")
            return self.source
        if isinstance(instance, FetchedRow):
            return CellSource(instance.cells, self.columns, instance.fetch)
        instance = unpack_series(instance)
        # Raw cells, a window, or features. A mapping has features only if it has no raw cells.
        encoder = self.manifest.encoder
        if encoder is not None and not self._has_features(instance):
            return CellSource(raw_cells(instance, encoder, self.row_names), self.columns)
        signal = self.manifest.signal
        instance_spec = self.manifest.instance
        if signal is not None and not signal.holds_features(instance):
            return WindowSource(instance, signal, self.block_reader, self.channel_limits)
        if isinstance(instance, Mapping):
            instance = order_cells(instance, self.row_names or ())
        if instance_spec is not None and np.shape(instance) == instance_spec.shape:
            instance = np.reshape(instance, -1)
        return row_values(instance, self._n_row_values, self.feature_positions)


def _plausible_limits(bundle: Bundle) -> tuple[tuple[Values, Values] | None, ChannelLimits | None]:
    """Read the plausible values of the features and of a window's channels; None if unknown."""
    ranges = bundle.ranges()
    if ranges is None:
        return None, None
    manifest = bundle.manifest
    n_features = len(manifest.features)
    lowest, highest = ranges.features.limits()
    if manifest.instance is not None:  # the values of an array have one common range
        lowest = np.full(n_features, lowest[0])
        highest = np.full(n_features, highest[0])
    signal = manifest.signal
    if signal is None or ranges.channels is None or ranges.is_varying is None:
        return (lowest, highest), None
    # Values of a raw window are checked with their channels.
    n_window_values = n_features - len(lowest)
    lowest = np.concatenate([lowest, np.full(n_window_values, -np.inf, np.float32)])
    highest = np.concatenate([highest, np.full(n_window_values, np.inf, np.float32)])
    channel_limits = ChannelLimits(signal.range_names, *ranges.channels.limits(), ranges.is_varying)
    return (lowest, highest), channel_limits


def _row_names_and_positions(
    bundle: Bundle, row_names: Sequence[str] | None
) -> tuple[tuple[str, ...] | None, NDArray[np.intp] | None]:
    """Return the names of the values in rows, and the positions of the bundle's features."""
    manifest = bundle.manifest
    if manifest.encoder is not None:
        raw_names = None if row_names is None else tuple(row_names)
        # call it only to refuse rows that lack a column; the encoder finds its columns by name
        _feature_positions(raw_names or manifest.encoder.names, manifest.encoder.names)
        return raw_names, None
    # A device computes the features of a window, so its rows cannot have other names.
    if row_names is None or manifest.signal is not None:
        return manifest.feature_names, None
    return tuple(row_names), _feature_positions(tuple(row_names), manifest.feature_names)


def _row_shape(bundle: Bundle, row_names: tuple[str, ...] | None) -> tuple[int, ...] | None:
    """Shape of a row of float32 features; None if such an array may be raw cells or a window."""
    manifest = bundle.manifest
    if manifest.encoder is not None:
        return None if row_names is not None else (len(manifest.features),)
    shape = (len(row_names or manifest.features),)
    return None if manifest.signal is not None and manifest.signal.shape == shape else shape


def _feature_positions(
    row_names: tuple[str, ...], feature_names: tuple[str, ...]
) -> NDArray[np.intp] | None:
    """Find the features among the names of a row; None if the names are the same."""
    if row_names == feature_names:
        return None
    missing_names = [name for name in feature_names if name not in row_names]
    if missing_names:
        raise InputError(f"the rows have no feature {missing_names[0]!r}, which the bundle needs")
    return np.array([row_names.index(name) for name in feature_names], np.intp)

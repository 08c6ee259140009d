"""The manifest of a bundle, with the values that follow from it.

:class:`Manifest` extends :class:`~.manifest_records.ManifestDocument`. It lists every value of an
array as a feature, its signal can compute features, and it gives the stages, inputs and costs of
the active operating point. :mod:`.manifest_reader` reads it from text.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TypeAlias, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from gatewise.acquisition import exit_costs, last_exit_within
from gatewise.costs import FeatureCosts
from gatewise.documents import encode_json
from gatewise.operating_point import ByClass, OperatingPoint
from gatewise.prices import CloudPrices
from gatewise_export.bundle.errors import ManifestError
from gatewise_export.bundle.manifest_records import (
    INSTANCE,
    CloudSpec,
    FeatureSpec,
    ManifestDocument,
    StageSpec,
)
from gatewise_signals.blocks.block import FunctionBlock
from gatewise_signals.document import make_signal_record
from gatewise_signals.signal_input import WINDOW, SignalInput

Mask: TypeAlias = NDArray[np.bool_]
ModelSpec = TypeVar("ModelSpec", StageSpec, CloudSpec)


class Manifest(ManifestDocument, frozen=True, kw_only=True, dict=True):
    """A manifest that lists every value of an array and can compute the signal's features.

    It has the attributes of :class:`~.manifest_records.ManifestDocument`.
    """

    signal: SignalInput | None = None  # type: ignore[assignment]

    def to_json(self) -> bytes:
        """Write the manifest as JSON; equal manifests give equal bytes."""
        document = msgspec.structs.replace(
            self,
            features=self._listed_features(),
            signal=None if self.signal is None else make_signal_record(self.signal),
            every_stage=tuple(self._with_listed_inputs(stage) for stage in self.every_stage),
            cloud=None if self.cloud is None else self._with_listed_inputs(self.cloud),
        )
        return encode_json(document, indent=1)

    # -- bundle ------------------------------------------------------------------------------

    @property
    def title(self) -> str:
        """Name and version in the form ``digits 8``, for messages."""
        return f"{self.name} {self.version}"

    @property
    def release(self) -> str:
        """Name and version in the form ``digits/8``."""
        return f"{self.name}/{self.version}"

    @property
    def total_bytes(self) -> int:
        """Total size of the listed files."""
        return sum([file.size for file in self.files.values()])

    @property
    def answers_values(self) -> bool:
        """Whether answers are values instead of classes, as in the tasks regress and rank."""
        return self.task != "classify"

    @property
    def n_classes(self) -> int:
        """Number of classes; 0 if answers are values."""
        return len(self.classes)

    # -- active operating point --------------------------------------------------------------

    @property
    def active_point(self) -> OperatingPoint:
        """The active operating point."""
        return self.operating_points[self.active]

    @property
    def stages(self) -> tuple[StageSpec, ...]:
        """Stages of the active point's chain, in order."""
        return tuple(
            self.every_stage[stage_index] for stage_index in self.chains[self.active_point.chain]
        )

    @property
    def last_exit(self) -> int:
        """Index of the last exit that an instance may take; the cloud is the exit after the stages.

        `max_instance_cost` can exclude later exits.
        """
        n_exits = len(self.stages) + (self.cloud is not None)
        if self.max_instance_cost is None:
            return n_exits - 1
        return min(n_exits - 1, last_exit_within(self.exit_costs(), self.max_instance_cost))

    def with_active(self, point_index: int) -> Manifest:
        """Return the manifest with the operating point at index `point_index` active."""
        if not 0 <= point_index < len(self.operating_points):
            raise ManifestError(
                "active", f"must be 0 to {len(self.operating_points) - 1}, not {point_index}"
            )
        return msgspec.structs.replace(self, active=point_index)

    def with_bounds(self, min_recall: ByClass, min_precision: ByClass) -> Manifest:
        """Return the manifest with other bounds.

        Parameters
        ----------
        min_recall, min_precision : sequence of float or None
            Bound of each class, in the order of `classes`; None for a class without a bound.
        """
        bounds = {"min_recall": min_recall, "min_precision": min_precision}
        stated_bounds = {
            name: bound if any(class_bound is not None for class_bound in bound) else None
            for name, bound in bounds.items()
        }
        return msgspec.structs.replace(self, **stated_bounds)

    # -- instance ----------------------------------------------------------------------------

    @cached_property
    def feature_names(self) -> tuple[str, ...]:
        """Names of an instance's columns."""
        return tuple([feature.name for feature in self.features])

    @property
    def column_names(self) -> tuple[str, ...]:
        """Column names in sensors and tables: raw columns with an encoder, else features."""
        return self.feature_names if self.encoder is None else self.encoder.names

    @cached_property
    def feature_column_names(self) -> tuple[str, ...]:
        """Name of each feature's raw column; without an encoder, the feature's own name."""
        if self.encoder is None:
            return self.feature_names
        return tuple(self.encoder.names[column] for column in self.encoder.column_of)

    @property
    def device_input_names(self) -> tuple[str, ...]:
        """Names of the inputs that a device must have: columns, or a window and functions."""
        if self.signal is None:
            return self.column_names
        function_blocks = [
            block for block in self.signal.graph.blocks if isinstance(block, FunctionBlock)
        ]
        shape_text = "x".join(map(str, self.signal.shape))
        return (f"window {shape_text}", *(f"function {block.name}" for block in function_blocks))

    @property
    def request_dtype(self) -> np.dtype[np.generic]:
        """Type of a request's values: the type of the array or raw window, else float32."""
        if self.instance is not None:
            return np.dtype(self.instance.dtype)
        if self.signal is not None and self.signal.has_window_values:
            return np.dtype(self.signal.dtype)
        return np.dtype("float32")

    def stage_inputs(self, stage_index: int) -> NDArray[np.intp]:
        """Columns that the stage at index `stage_index` reads, in the order of its inputs."""
        return self._indices(self.stages[stage_index].inputs)

    def cloud_inputs(self) -> NDArray[np.intp]:
        """Columns that the high-cost model reads, in the order of its inputs; empty without one."""
        return self._indices(() if self.cloud is None else self.cloud.inputs)

    def acquired_mask(self, stage_index: int, acquired_columns: Mask | None = None) -> Mask:
        """Features that stage `stage_index` acquires, bool (n_features,): all its inputs.

        If `acquired_columns`, bool (n, n_inputs), marks the inputs that n instances acquire, the
        result is bool (n, n_features).
        """
        inputs = self.stage_inputs(stage_index)
        shape = (
            (len(self.features),)
            if acquired_columns is None
            else (len(acquired_columns), len(self.features))
        )
        is_acquired = np.zeros(shape, np.bool_)
        is_acquired[..., inputs] = True if acquired_columns is None else acquired_columns
        return is_acquired

    # -- costs -------------------------------------------------------------------------------

    def feature_costs(self) -> FeatureCosts:
        """Prices of the features by name."""
        return self._feature_costs

    def cloud_prices(self) -> CloudPrices:
        """Prices of an offload in addition to its features."""
        prices = self.prices
        return CloudPrices(
            request=prices.request,
            byte=prices.byte,
            evaluation=prices.evaluation,
            item_size=self.request_dtype.itemsize,
        )

    def exit_costs(self, acquired: Sequence[Mask] | None = None) -> NDArray[np.float64]:
        """Cost of an instance at each exit, float64 (n_exits,) or (n_exits, n).

        `acquired` marks the features that each stage acquires, bool (n_features,) or
        (n, n_features). By default a stage acquires all its inputs, which is an upper bound for a
        lazy stage.
        """
        costs = self.feature_costs()
        if acquired is None:
            acquired = [self.acquired_mask(stage_index) for stage_index in range(len(self.stages))]
        if self.cloud is None:
            return exit_costs(costs, acquired)[:-1]
        request_columns = self.cloud_inputs()
        request_cost = self.cloud_prices().offload_price(len(request_columns))
        return exit_costs(costs, acquired, costs.mask(request_columns), request_price=request_cost)

    # -- parts -------------------------------------------------------------------------------

    @cached_property
    def _feature_costs(self) -> FeatureCosts:
        has_groups = bool(self.groups)
        return FeatureCosts(
            [feature.own for feature in self.features],
            group=[feature.group for feature in self.features] if has_groups else None,
            shared={group.name: group.shared for group in self.groups},
            requires={group.name: group.requires for group in self.groups if group.requires},
            names=self.feature_names,
        )

    @cached_property
    def _column_of_name(self) -> dict[str, int]:
        return {name: column for column, name in enumerate(self.feature_names)}

    def _indices(self, names: Sequence[str]) -> NDArray[np.intp]:
        column_of_name = self._column_of_name
        return np.array([column_of_name[name] for name in names], np.intp)

    @property
    def _arrays(self) -> dict[str, tuple[str, ...]]:
        """Names of the values of each array, by the name that stands for all of them."""
        # a raw window's values come after the features of blocks
        arrays = {} if self.instance is None else {INSTANCE: tuple(self.instance.names)}
        window_names = () if self.signal is None else self.signal.window_names
        return arrays | ({WINDOW: window_names} if window_names else {})

    def _listed_features(self) -> tuple[FeatureSpec, ...]:
        """Features as the document lists them: an array with equal prices is a single entry."""
        features = list(self.features)
        for array_name, names in self._arrays.items():
            array_features = features[-len(names) :]
            prices = {(feature.own, feature.group) for feature in array_features}
            if tuple(feature.name for feature in array_features) == names and len(prices) == 1:
                features = [
                    *features[: -len(names)],
                    msgspec.structs.replace(array_features[0], name=array_name),
                ]
        return tuple(features)

    def _with_listed_inputs(self, model: ModelSpec) -> ModelSpec:
        """Return the model with the array's name as its input, if it reads the whole array."""
        for array_name, names in self._arrays.items():
            if model.inputs == names:
                return msgspec.structs.replace(model, inputs=(array_name,))
        return model

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
from gatewise_signals.document import write_signal
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
        listed = msgspec.structs.replace(
            self,
            features=self._listed_features(),
            signal=None if self.signal is None else write_signal(self.signal),
            every_stage=tuple(self._with_listed_inputs(stage) for stage in self.every_stage),
            cloud=None if self.cloud is None else self._with_listed_inputs(self.cloud),
        )
        return encode_json(listed, indent=1)

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
        return tuple(self.every_stage[s] for s in self.chains[self.active_point.chain])

    @property
    def last_exit(self) -> int:
        """Index of the last exit that an instance may take; the cloud is the exit after the stages.

        `max_instance_cost` can exclude later exits.
        """
        n_exits = len(self.stages) + (self.cloud is not None)
        if self.max_instance_cost is None:
            return n_exits - 1
        return min(n_exits - 1, last_exit_within(self.exit_costs(), self.max_instance_cost))

    def with_active(self, point: int) -> Manifest:
        """Return the manifest with the operating point at index `point` active."""
        if not 0 <= point < len(self.operating_points):
            raise ManifestError(
                "active", f"must be 0 to {len(self.operating_points) - 1}, not {point}"
            )
        return msgspec.structs.replace(self, active=point)

    def with_bounds(self, min_recall: ByClass, min_precision: ByClass) -> Manifest:
        """Return the manifest with other bounds.

        Parameters
        ----------
        min_recall, min_precision : sequence of float or None
            Bound of each class, in the order of `classes`; None for a class without a bound.
        """
        bounds = {"min_recall": min_recall, "min_precision": min_precision}
        stated = {name: b if any(s is not None for s in b) else None for name, b in bounds.items()}
        return msgspec.structs.replace(self, **stated)

    # -- instance ----------------------------------------------------------------------------

    @cached_property
    def feature_names(self) -> tuple[str, ...]:
        """Names of an instance's columns."""
        return tuple([f.name for f in self.features])

    @property
    def column_names(self) -> tuple[str, ...]:
        """Column names in sensors and tables: raw columns with an encoder, else features."""
        return self.feature_names if self.encoder is None else self.encoder.names

    @cached_property
    def names_of_columns(self) -> tuple[str, ...]:
        """Name of each feature's raw column; without an encoder, the feature's own name."""
        if self.encoder is None:
            return self.feature_names
        return tuple(self.encoder.names[c] for c in self.encoder.column_of)

    @property
    def acquired_names(self) -> tuple[str, ...]:
        """Names of the inputs that a device must provide: columns, or a window and functions."""
        if self.signal is None:
            return self.column_names
        blocks = [b for b in self.signal.graph.blocks if isinstance(b, FunctionBlock)]
        size = "x".join(map(str, self.signal.shape))
        return (f"window {size}", *(f"function {block.name}" for block in blocks))

    @property
    def request_dtype(self) -> np.dtype[np.generic]:
        """Type of a request's values: the type of the array or raw window, else float32."""
        if self.instance is not None:
            return np.dtype(self.instance.dtype)
        if self.signal is not None and self.signal.raw:
            return np.dtype(self.signal.dtype)
        return np.dtype("float32")

    def stage_inputs(self, stage: int) -> NDArray[np.intp]:
        """Columns that the stage at index `stage` reads, in the order of its inputs."""
        return self._indices(self.stages[stage].inputs)

    def cloud_inputs(self) -> NDArray[np.intp]:
        """Columns that the high-cost model reads, in the order of its inputs; empty without one."""
        return self._indices(() if self.cloud is None else self.cloud.inputs)

    def acquired(self, stage: int, columns: Mask | None = None) -> Mask:
        """Features that the stage at index `stage` acquires: all its inputs, bool (n_features,).

        If `columns`, bool (n, n_inputs), marks the inputs that n instances acquire, the result is
        bool (n, n_features).
        """
        inputs = self.stage_inputs(stage)
        shape = (len(self.features),) if columns is None else (len(columns), len(self.features))
        acquired = np.zeros(shape, np.bool_)
        acquired[..., inputs] = True if columns is None else columns
        return acquired

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
            acquired = [self.acquired(s) for s in range(len(self.stages))]
        if self.cloud is None:
            return exit_costs(costs, acquired)[:-1]
        request_columns = self.cloud_inputs()
        request = self.cloud_prices().of_offload(len(request_columns))
        return exit_costs(costs, acquired, costs.mask(request_columns), request=request)

    # -- parts -------------------------------------------------------------------------------

    @cached_property
    def _feature_costs(self) -> FeatureCosts:
        has_groups = bool(self.groups)
        return FeatureCosts(
            [f.own for f in self.features],
            group=[f.group for f in self.features] if has_groups else None,
            shared={g.name: g.shared for g in self.groups},
            requires={g.name: g.requires for g in self.groups if g.requires},
            names=self.feature_names,
        )

    @cached_property
    def _columns(self) -> dict[str, int]:
        return {name: k for k, name in enumerate(self.feature_names)}

    def _indices(self, names: Sequence[str]) -> NDArray[np.intp]:
        columns = self._columns
        return np.array([columns[n] for n in names], np.intp)

    @property
    def _arrays(self) -> dict[str, tuple[str, ...]]:
        """Names of the values of each array, by the name that stands for all of them."""
        # a raw window's values come after the features of blocks
        arrays = {} if self.instance is None else {INSTANCE: tuple(self.instance.names)}
        window = () if self.signal is None else self.signal.window_names
        return arrays | ({WINDOW: window} if window else {})

    def _listed_features(self) -> tuple[FeatureSpec, ...]:
        """Features as the document lists them: an array with equal prices is a single entry."""
        features = list(self.features)
        for array, names in self._arrays.items():
            values = features[-len(names) :]
            prices = {(f.own, f.group) for f in values}
            if tuple(f.name for f in values) == names and len(prices) == 1:
                features = [
                    *features[: -len(names)],
                    msgspec.structs.replace(values[0], name=array),
                ]
        return tuple(features)

    def _with_listed_inputs(self, model: ModelSpec) -> ModelSpec:
        """Return the model with the array's name as its input, if it reads the whole array."""
        for array, names in self._arrays.items():
            if model.inputs == names:
                return msgspec.structs.replace(model, inputs=(array,))
        return model

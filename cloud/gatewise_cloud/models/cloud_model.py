"""High-cost model of a bundle, which a worker runs to compute labels and probabilities."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gatewise import decision
from gatewise.graph_loading import MAX_LOAD_LIMITS, GraphLoadError, LoadLimits, check_loads
from gatewise.imports import CPU, PROVIDER_TOLERANCE, check_provider
from gatewise.models.booster_files import Library
from gatewise.models.instances import find_unrepresentable
from gatewise_cloud.errors import ModelError, RefusedRows
from gatewise_cloud.models.backends import Backend, BoosterBackend, OnnxBackend, cloud_spec
from gatewise_edge.errors import SelfTestError
from gatewise_export.bundle.decisions import CloudAnswers

if TYPE_CHECKING:
    from gatewise_export.bundle.bundle import Bundle
    from gatewise_export.bundle.manifest import Manifest
    from gatewise_export.bundle.manifest_records import CloudSpec


class CloudModel:
    """High-cost model of a bundle.

    `backend` runs the model that `manifest` describes. Use :meth:`from_bundle` to make an instance
    that has been tested. Raises ModelError if the bundle has no high-cost model.

    Attributes
    ----------
    key : tuple of str
        Name and version of the model.
    n_classes, n_inputs : int
        Number of classes, and number of columns in a request.
    is_local : bool
        Whether the model runs in this process and never waits for another machine.
    """

    def __init__(self, manifest: Manifest, backend: Backend) -> None:
        cloud = cloud_spec(manifest)
        self.key = (manifest.name, manifest.version)
        self.manifest = manifest
        self.n_classes = manifest.n_classes
        self.n_inputs = len(manifest.cloud_inputs())
        self._allows_missing = manifest.missing.cloud == "allowed"
        self._backend = backend
        self.is_local = backend.is_local
        # a backend that names no kind gives the outputs that the manifest describes
        self._output_kind = backend.kind or cloud.kind
        self._link = cloud.link

    def __str__(self) -> str:
        return " ".join(self.key)

    @classmethod
    def from_bundle(
        cls,
        bundle: Bundle | str | Path,
        *,
        n_threads: int = 1,
        provider: str = CPU,
        backend: Backend | None = None,
        load_limits: LoadLimits = MAX_LOAD_LIMITS,
    ) -> CloudModel:
        """Load the high-cost model of `bundle`, and test it on the bundle's sample rows.

        Without a `backend`, onnxruntime or a booster's library runs the model with `n_threads`
        threads. A child process first checks that the model loads within the limits of the bundle
        and of `load_limits`. `provider` is onnxruntime's execution provider. With a provider other
        than the CPU, the probabilities of the sample may differ by :data:`.PROVIDER_TOLERANCE` from
        those in the bundle.

        Raises BundleError if the bundle cannot be read, or if a hash is wrong. Raises ModelError if
        the bundle has no high-cost model, if the model does not load, or if it takes too much
        memory or time. Raises SelfTestError if the label of a sample row differs from the label in
        the bundle.
        """
        bundle = open_bundle(bundle)
        if backend is not None:  # the operator's own code, without a limit of its memory
            return cls._make_tested(bundle, backend)
        check_provider(provider)
        model_bytes = _read_loadable_model(bundle, load_limits)
        backend = _make_backend(bundle.manifest, model_bytes, n_threads, provider)
        return cls._make_tested(bundle, backend, provider)

    @classmethod
    def _make_tested(cls, bundle: Bundle, backend: Backend, provider: str = CPU) -> CloudModel:
        """Make the model and test it; close the backend if either fails."""
        try:
            model = cls(bundle.manifest, backend)
            model._check_sample(bundle, provider)
        except BaseException:  # an interrupt as well, because a backend may hold a connection
            backend.close()
            raise
        return model

    @property
    def trouble(self) -> str | None:
        """Known reason why the backend cannot run now, or None."""
        return self._backend.trouble

    def check_instances(self, X: NDArray[np.floating[Any]]) -> None:
        """Check instances, `X` of shape (n, k), without running the model.

        Raises RefusedRows if k is not the number of inputs, or if a value is infinite or does not
        fit the manifest's type. NaN is refused unless the manifest allows missing values.
        """
        if X.ndim != 2 or X.shape[1] != self.n_inputs:
            raise RefusedRows(
                "shape", f"model {self} takes {self.n_inputs} columns, not rows of shape {X.shape}"
            )
        if not np.isfinite(X).all():  # one pass over most instances, which are finite
            if np.isinf(X).any():
                raise RefusedRows("infinite", "the instances hold an infinite value")
            if not self._allows_missing:
                raise RefusedRows("missing", f"model {self} does not allow missing values (NaN)")
        dtype = self.manifest.request_dtype
        unrepresentable_value = find_unrepresentable(X, dtype)
        if unrepresentable_value is not None:
            raise RefusedRows(
                "type", f"model {self} takes {dtype.name}, but a value is {unrepresentable_value:g}"
            )

    def answer(self, X: NDArray[np.float32]) -> CloudAnswers:
        """Classify instances, `X` float32 (n, k), with the columns :meth:`.Manifest.cloud_inputs`.

        Raises RefusedRows like :meth:`check_instances`, and ModelError if the model fails.
        """
        self.check_instances(X)
        if not len(X):  # some graphs fail if there are no rows
            return CloudAnswers(np.empty(0, np.int64), np.empty((0, self.n_classes), np.float32))
        return self.run(np.ascontiguousarray(X, np.float32))

    def close(self) -> None:
        """Close the backend."""
        self._backend.close()

    def run(self, X: NDArray[np.float32]) -> CloudAnswers:
        """Classify one or more instances `X`, float32 in C order; see :meth:`answer`.

        They must have passed :meth:`check_instances`, because this method does not check them.
        """
        outputs = self._backend.run(X)
        if self._output_kind == "margins":
            margins = outputs[0]
            labels = decision.labels(margins)
            probabilities = decision.probabilities(margins, self._link).astype(np.float32)
        else:
            labels = outputs[0].reshape(-1).astype(np.int64)  # some converters write a column
            probabilities = outputs[1].astype(np.float32, copy=False)
        if labels.shape != (len(X),) or probabilities.shape != (len(X), self.n_classes):
            shapes = f"{labels.shape} labels and {probabilities.shape} probabilities"
            raise ModelError(str(self), f"model {self} gave {shapes} for {len(X)} instances")
        return CloudAnswers(labels, probabilities)

    def _check_sample(self, bundle: Bundle, provider: str) -> None:
        """Compare the answers to the bundle's sample rows with those in the bundle.

        Labels must be equal: packing leaves out rows with two close largest probabilities.
        Probabilities are compared only for another provider, which may compute less precisely
        without changing a label of the sample.
        """
        sample = bundle.sample()
        expected_labels = sample["cloud_label"]
        answer = self.run(_sample_inputs(bundle))
        if provider != CPU:
            max_difference = np.abs(answer.probabilities - sample["cloud_probabilities"]).max()
            if not max_difference <= PROVIDER_TOLERANCE:  # also if it is NaN
                raise SelfTestError(
                    f"with the provider {provider!r} a probability of the high-cost model of "
                    f"bundle {self} is {max_difference:.2g} off on the sample, but only "
                    f"{PROVIDER_TOLERANCE:g} is allowed: leave out the provider",
                    {"cloud_probabilities": 1},
                )
        n_different = int(np.count_nonzero(answer.labels != expected_labels))
        if n_different:
            raise SelfTestError(
                f"the high-cost model of bundle {self} labels {n_different} of "
                f"{len(expected_labels)} sample rows differently than at packing: do not serve it",
                {"cloud_label": n_different},
            )


def _find_library(cloud: CloudSpec) -> Library | None:
    """Find the library that runs a model; None if the model is an ONNX graph."""
    # the other kinds are names of libraries; mypy does not narrow the type by `in`
    return None if cloud.kind == "margins" or cloud.kind == "classifier" else cloud.kind


def _read_loadable_model(bundle: Bundle, load_limits: LoadLimits) -> bytes:
    """Read the file of the high-cost model; ModelError if it is absent or breaks the limits."""
    manifest = bundle.manifest
    title = manifest.title
    cloud = cloud_spec(manifest)
    if cloud.backend is not None:
        raise ModelError(
            title,
            f"bundle {title} does not contain its high-cost model, because it was packed with "
            f"{cloud.backend}; name the model's code with --backend python:module:attribute",
        )
    model_bytes = bundle.read(cloud.file)
    try:
        check_loads(
            model_bytes,
            _sample_inputs(bundle),
            manifest.loading,
            load_limits,
            library=_find_library(cloud),
            n_classes=manifest.n_classes,
        )
    except GraphLoadError as error:
        raise ModelError(
            title, f"the high-cost model of bundle {title} does not load: {error}"
        ) from None
    return model_bytes


def _make_backend(
    manifest: Manifest, model_bytes: bytes, n_threads: int, provider: str
) -> OnnxBackend | BoosterBackend:
    """Make the backend for the kind of model that a manifest describes."""
    title = manifest.title
    cloud = cloud_spec(manifest)
    library = _find_library(cloud)
    if library is None:
        return OnnxBackend(
            model_bytes, kind=cloud.kind, model=title, n_threads=n_threads, provider=provider
        )
    if provider != CPU:
        raise ModelError(
            title,
            f"{library} runs the high-cost model of bundle {title} on the CPU: leave out the "
            f"provider {provider!r}",
        )
    return BoosterBackend(
        library, model_bytes, manifest.n_classes, model=title, n_threads=n_threads
    )


def _sample_inputs(bundle: Bundle) -> NDArray[np.float32]:
    """Select the inputs of the high-cost model from the rows of a bundle's sample."""
    X = bundle.sample()["X"][:, bundle.manifest.cloud_inputs()]
    return np.ascontiguousarray(X, np.float32)


def open_bundle(
    bundle: Bundle | str | Path, public_key: str | Path | bytes | None = None
) -> Bundle:
    """Open a bundle; with a `public_key`, require the signature of its owner.

    A bundle that is open already is returned unchanged, unless its signature must be checked.
    """
    from gatewise_export.bundle.bundle import Bundle
    from gatewise_export.bundle.signing import PublicKey

    if isinstance(bundle, Bundle):
        if public_key is None or bundle.signed_by == PublicKey(public_key).key_id:
            return bundle
        bundle = bundle.path
    return Bundle.open(bundle, public_key=public_key)

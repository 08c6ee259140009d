"""A device, which gives exactly one answer to each instance, before its deadline.

The stages run in order, and each acquires its features when it runs. If no stage stops, the
instance is offloaded to the cloud. If no usable response arrives in time, the device gives the last
stage's answer and marks it ``fallback``.

:meth:`Device.begin` runs the stages and sends a request if necessary, and :meth:`Device.advance`
retries or ends the request. :meth:`Device.answer` calls both and waits in real time between them.
Tests call them with a clock of their own.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self, get_args

from numpy.typing import ArrayLike, NDArray

from gatewise.columns.encoders import RawRow
from gatewise.errors import InputError
from gatewise.imports import CPU
from gatewise_edge.checks import check_positive
from gatewise_edge.device.answer import Answer, CustomPolicy, Observer, Policy, Route
from gatewise_edge.device.audit_sampler import AuditSampler
from gatewise_edge.device.auditor import Auditor
from gatewise_edge.device.flow import RowFlow
from gatewise_edge.device.installation import BlockFunction, Installation
from gatewise_edge.device.late_requests import LateRequests
from gatewise_edge.device.pending import PendingInstance
from gatewise_edge.device.stages import Runner
from gatewise_edge.device.unseen_cells import UnseenCategories
from gatewise_edge.link.link import Link
from gatewise_edge.link.messages import MAX_GROUP_ROWS, max_rows
from gatewise_edge.link.offload_rules import OffloadRules
from gatewise_edge.link.uplink import Uplink
from gatewise_edge.sensors.blocking_reader import BlockingReader
from gatewise_edge.sensors.feature_reader import Reading
from gatewise_edge.sensors.sensors import Sensors
from gatewise_export.bundle.bundle import Bundle

_LOG = logging.getLogger(__name__)

#: Time in seconds that is reserved before the deadline to write the answer. It is a few times the
#: delay that Python and the scheduler of a small device cause.
_RESERVED_SECONDS: Final = 0.005
#: Fraction of the deadline after which :meth:`Device.answer_many` begins no more rows before it
#: waits for their answers. The request needs the rest.
_MAX_BEGIN_FRACTION: Final = 0.25


class Device:
    """Classify instances with a bundle's stages, and offload the hard ones to the cloud.

    Parameters
    ----------
    bundle : Bundle or path
        Models, prices and thresholds.
    link : Link, optional
        Link to the cloud; the device opens and closes it. Without a link every hard instance gets a
        fallback.
    sensors : Sensors, optional
        Sensors that :meth:`answer` reads if it gets no row. The device closes them.
    blocks : mapping of str to callable, optional
        Python functions that compute blocks, by the name of the block, because a bundle holds no
        code. Each is called with windows of shape (1, ...) on another thread. If a function has not
        returned at the deadline, the last finished stage answers. An audit calls functions on a
        third thread, perhaps at the same time as the next instance.
    row_names : sequence of str, optional
        Names of the features in the rows for :meth:`answer`. They are matched with the names in
        each bundle, because an adopted bundle may have another order of features. By default rows
        are in the order of the active bundle.
    deadline_ms : float, default 500
        Longest time from the call to the answer, in milliseconds.
    policy : {"system", "edge-only", "cloud-only"} or callable, default "system"
        Policy that decides on instances. With ``edge-only`` the device never offloads, and the last
        stage always answers. With ``cloud-only`` it acquires the high-cost model's features and
        offloads every instance at once. Both are for measurements. A function is called with a
        :class:`.DecisionPoint` after each stage, and returns ``"stop"``, ``"continue"`` or
        ``"offload"``. The guarantee of the operating point does not hold for a function.
    offload_rules : OffloadRules, optional
        Rules for offloads: requests in flight, circuit breaker, bound on the rate, and implausible
        values.
    runner : {"auto", "onnxruntime", "numpy"}, default "auto"
        Runner of the stages' graphs; auto is onnxruntime if it can be imported, otherwise numpy.
        Both give the same bits. numpy takes less memory and, for large trees, more time.
    provider : str, default "cpu"
        Execution provider of onnxruntime, such as ``cuda``, for stages that are given graphs. On
        the bundle's sample they must give the same labels as on the CPU, and probabilities within
        :data:`gatewise.imports.PROVIDER_TOLERANCE`. Stages of flat models always run on the CPU.
    audit : float or AuditSampler, optional
        Share of the stages' answers, above 0 and up to 1, that the device also sends to the
        high-cost model, or a sampler that chooses the answers. Workers test how often the answers
        of both agree.
    late_requests : LateRequests, optional
        Stores the instances that could not be offloaded, and sends them later. The device closes
        it.
    observe : callable, optional
        Called once for each instance with its Answer or its error, on the caller's thread. Its
        exceptions are logged.
    clock : callable, default time.monotonic
        Returns the time in seconds; must never go backwards.

    Raises
    ------
    BundleError
        If the bundle cannot be read or run.
    SelfTestError
        If the bundle gives other results here than where it was packed.
    InputError
        If a setting is out of range, the sensors do not match the bundle, or `blocks` lacks a
        function.

    Examples
    --------
    >>> with Device("bundle/") as device:  # doctest: +SKIP
    ...     device.answer([0.1, 2.0, 3.5]).label
    """

    def __init__(
        self,
        bundle: Bundle | str | Path,
        *,
        link: Link | None = None,
        sensors: Sensors | None = None,
        blocks: Mapping[str, BlockFunction] | None = None,
        row_names: Sequence[str] | None = None,
        deadline_ms: float = 500.0,
        policy: Policy | CustomPolicy = "system",
        offload_rules: OffloadRules = OffloadRules(),  # noqa: B008 - frozen
        runner: Runner = "auto",
        provider: str = CPU,
        audit: float | AuditSampler | None = None,
        late_requests: LateRequests | None = None,
        observe: Observer | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.deadline_ms = check_positive("deadline_ms", deadline_ms)
        if not callable(policy) and policy not in get_args(Policy):
            policy_names = ", ".join(get_args(Policy))
            raise InputError(f"policy {policy!r}; choose one of {policy_names}, or give a function")
        if audit is not None and (policy != "system" or link is None):
            raise InputError("an audit needs a link and the policy system: give both, or no audit")
        # Store the settings, and create the counts.
        self.policy = policy
        self._checks_ranges = offload_rules.implausible != "ignore"
        self._observe = observe
        self._counts = dict.fromkeys((*get_args(Route), "errors", "implausible", "unseen"), 0)
        self._unseen_categories = UnseenCategories()
        self._count_lock = threading.Lock()
        self._sensors = sensors
        self._block_functions = dict(blocks or {})
        self._block_reader = BlockingReader()
        self._row_names = row_names
        self._may_offload = link is not None and policy != "edge-only"
        self._runner = runner
        self._provider = provider
        self._adopt_lock = threading.Lock()
        # Install the bundle, and open the link.
        first_bundle = (
            bundle if isinstance(bundle, Bundle) else Bundle.open(bundle, for_device=True)
        )
        self._installation = self._install(first_bundle)
        self._clock = clock
        # At most a tenth of the deadline.
        self._reserved_s = min(_RESERVED_SECONDS, self.deadline_ms / 1e4)
        self._uplink = Uplink(link, offload_rules, clock)
        self._flow = RowFlow(
            self._uplink,
            policy=policy,
            offloads_implausible=offload_rules.implausible == "offload",
            clock=clock,
        )
        self._auditor = None
        if audit is not None:
            sampler = audit if isinstance(audit, AuditSampler) else AuditSampler(audit)
            self._auditor = Auditor(sampler, self._uplink, clock, late_requests)
        parts = (self._uplink, self._auditor, late_requests)
        self._counting_parts = [part for part in parts if part is not None]
        self._uplink.open()
        self._late_requests = late_requests
        if late_requests is not None:
            late_requests.start(self._uplink, first_bundle.manifest)

    # -- the bundle, closing, and counts ---------------------------------------------------

    @property
    def bundle(self) -> Bundle:
        """The active bundle, which answers new instances."""
        return self._installation.bundle

    def adopt(self, bundle: Bundle) -> None:
        """Test another `bundle`, and make it the active one.

        Instances that have begun end with the former bundle. If the new bundle cannot be used,
        raises the errors of the constructor, and the former bundle stays active.
        """
        with self._adopt_lock:
            self._installation = self._install(bundle)
        _LOG.debug("%s is active", bundle.manifest.release)

    def _install(self, bundle: Bundle) -> Installation:
        """Load a bundle; raise InputError if it does not allow the policy."""
        if self.policy == "cloud-only" and bundle.manifest.cloud is None:
            raise InputError(
                "policy cloud-only: the bundle has no high-cost model; choose system or edge-only"
            )
        installation = Installation.load(
            bundle,
            sensors=self._sensors,
            may_offload=self._may_offload,
            runner=self._runner,
            provider=self._provider,
            row_names=self._row_names,
            block_functions=self._block_functions,
            block_reader=self._block_reader,
            checks_ranges=self._checks_ranges,
        )
        if self.policy == "cloud-only" and not installation.has_cloud:
            cap = bundle.manifest.max_instance_cost
            raise InputError(
                f"policy cloud-only: an offload may cost more than the bundle's cap of {cap:g} per "
                "instance; choose another policy"
            )
        return installation

    def close(self) -> None:
        """Close the link and the sensors. May be called twice."""
        parts = (*self._counting_parts, self._block_reader, self._sensors)
        for part in parts:
            if part is not None:
                part.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def counters(self) -> dict[str, int]:
        """Counts so far.

        ``edge``, ``cloud``, ``fallback`` and ``errors`` sum to the number of instances.
        ``implausible`` counts instances with a value far outside the training range, and ``unseen``
        instances with a category that was not in the training rows. ``bytes_up`` and ``bytes_down``
        are payload bytes. The others are the counts of
        :class:`gatewise_edge.link.offload.OffloadCounts`,
        :class:`gatewise_edge.link.breaker.BreakerCounts` and, if used, of :class:`.Auditor` and
        :class:`.LateRequests`.
        """
        with self._count_lock:
            counts = dict(self._counts)
        for part in self._counting_parts:
            counts |= part.counters
        return counts

    @property
    def gauges(self) -> dict[str, float]:
        """Current state.

        ``outstanding`` (requests in flight), ``round_trip_ms``, ``breaker_open`` (0 or 1),
        ``unseen_columns`` (columns with only unseen categories) and, if used, the gauges of
        :class:`.Auditor` and :class:`.LateRequests`.
        """
        with self._count_lock:
            gauges = {"unseen_columns": float(len(self._unseen_categories.columns))}
        for part in self._counting_parts:
            gauges |= part.gauges
        return gauges

    # -- answering -------------------------------------------------------------------------

    def answer(self, row: ArrayLike | RawRow | None = None) -> Answer:
        """Classify one instance.

        Parameters
        ----------
        row : array-like of shape (n_features,), or of an instance that is an array, optional
            All values in the order of `row_names`, by default of the manifest; or a mapping or
            Series by name, in which an absent feature is missing. Only features that the device
            uses are charged. If the bundle has encoders, the values are the cells of its raw
            columns, but without `row_names` an array of floats has features. Without a row the
            device reads the sensors.

        Raises
        ------
        SensorError
            If a value that the first stage needs cannot be acquired or is refused. No stage can
            then give a fallback.
        InputError
            If the row does not match the bundle, or there is neither a row nor a sensor.
        """
        return self.finish(self.begin(row))

    def answer_many(self, rows: ArrayLike | Sequence[RawRow]) -> list[Answer | Exception]:
        """Classify several instances; hard ones share requests.

        Parameters
        ----------
        rows : array-like of shape (n, n_features), or (n, ...) of instances that are arrays
            Instances in the forms of :meth:`answer`. The deadline of each counts from the time at
            which the device begins it.

        Returns
        -------
        list of Answer or Exception, length n
            The answers. If :meth:`answer` would raise an error for an instance, the list contains
            that error.

        Raises
        ------
        InputError
            If the rows do not match the bundle; then the device begins no instance.
        """
        checked_rows = self._installation.as_checked_rows(rows)
        answers: list[Answer | Exception] = []
        while len(answers) < len(checked_rows):
            answers += self._answer_group(
                checked_rows[len(answers) : len(answers) + MAX_GROUP_ROWS]
            )
        return answers

    def _answer_group(self, rows: Sequence[Any] | NDArray[Any]) -> list[Answer | Exception]:
        """Answer as many of the first rows as one request can have; return their answers."""
        # Begin rows until the request is full or _MAX_BEGIN_FRACTION of the deadline has passed.
        begin_until = time.monotonic() + _MAX_BEGIN_FRACTION * self.deadline_ms / 1000.0
        installation = self._installation
        max_group_rows = max_rows(
            len(installation.request_inputs), len(installation.manifest.classes)
        )
        group: list[PendingInstance] = []
        outcomes: list[Answer | PendingInstance | Exception] = []
        for row in rows:
            try:
                outcomes.append(self._begin_instance(row, installation, group))
            except Exception as error:  # it ends only this row
                outcomes.append(error)
            if len(group) == max_group_rows or time.monotonic() >= begin_until:
                break
        # Send the request, and wait for the answers.
        if group:
            self._flow.send_group(group)
        answers: list[Answer | Exception] = []
        for outcome in outcomes:
            try:
                answers.append(
                    self.finish(outcome) if isinstance(outcome, PendingInstance) else outcome
                )
            except Exception as error:
                answers.append(error)
        return answers

    def begin(self, row: ArrayLike | RawRow | None = None) -> Answer | PendingInstance:
        """Run the stages, and send the instance to the cloud if no stage stops.

        `row` and the errors are those of :meth:`answer`. Returns the answer or a pending instance.
        The caller passes the pending instance to :meth:`advance` at its ``wake_at``, and whenever
        the link has delivered a response.
        """
        return self._begin_instance(row, self._installation, None)

    def _begin_instance(
        self, row: Any, installation: Installation, group: list[PendingInstance] | None
    ) -> Answer | PendingInstance:
        """Begin an instance with its deadline; with a `group` it shares a request."""
        started_at = self._clock()
        try:
            source = installation.features_or_source(row)
        except InputError as error:
            self._count_error(error)
            raise
        clock = self._clock
        deadline = started_at + self.deadline_ms / 1000.0 - self._reserved_s
        reading = Reading(source, installation.meter, lambda: deadline - clock())
        instance = PendingInstance(installation, reading, started_at, deadline, [], group)
        return self._run_flow_step(instance, self._flow.start)

    def advance(self, instance: PendingInstance) -> Answer | PendingInstance:
        """Retry an instance's request or end it, whichever is due.

        Returns the answer, or `instance` while it has none. Raises SensorError as :meth:`answer`
        does.
        """
        return self._run_flow_step(instance, self._flow.proceed)

    def finish(self, outcome: Answer | PendingInstance) -> Answer:
        """Wait for the answer to an instance; `outcome` is the result of :meth:`begin`.

        Raises SensorError as :meth:`answer` does.
        """
        while isinstance(outcome, PendingInstance):
            if outcome.offload is not None:
                self._uplink.wait(outcome.offload)
            outcome = self.advance(outcome)
        return outcome

    def _run_flow_step(
        self,
        instance: PendingInstance,
        flow_step: Callable[[PendingInstance], Answer | PendingInstance],
    ) -> Answer | PendingInstance:
        """Call a method of the flow; count and report the instance if the method answers it."""
        try:
            outcome = flow_step(instance)
        except Exception as error:
            self._count_error(error)
            raise
        if isinstance(outcome, Answer):
            with self._count_lock:
                self._counts[outcome.route] += 1
                self._counts["implausible"] += bool(instance.reading.implausible)
                encoder = instance.installation.manifest.encoder
                if encoder is not None:
                    has_unseen = self._unseen_categories.count(encoder, instance.reading)
                    self._counts["unseen"] += has_unseen
            if self._late_requests is not None:
                _run_guarded(
                    "a late request", self._late_requests.store_fallback, instance, outcome
                )
            self._report(outcome)
            if self._auditor is not None:
                _run_guarded("an audit", self._auditor.audit, instance, outcome)
        return outcome

    def _count_error(self, error: Exception) -> None:
        with self._count_lock:
            self._counts["errors"] += 1
        self._report(error)

    def _report(self, outcome: Answer | Exception) -> None:
        if self._observe is not None:
            _run_guarded("an answer's observer", self._observe, outcome)


def _run_guarded(name: str, function: Callable[..., object], *arguments: object) -> None:
    """Call a function that must not end an answer, and log its error."""
    try:
        function(*arguments)
    except Exception:
        _LOG.exception("%s failed", name)

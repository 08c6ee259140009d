"""A device: exactly one answer to each instance, before its deadline.

The stages run one after the other and acquire their features as they come. An instance that no
stage stops for goes to the cloud; if no usable response is there in time, the last stage's
answer is given and marked ``fallback``.

Deciding is event-driven: :meth:`Device.begin` runs the stages and sends what must be sent,
:meth:`Device.advance` retries or ends a request. :meth:`Device.answer` is the two with real
waiting between; a simulator in virtual time calls them itself.
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
from gatewise_edge.device.answer import Answer, OwnPolicy, Policy, Route
from gatewise_edge.device.audit import AuditSampler
from gatewise_edge.device.auditor import Auditor
from gatewise_edge.device.flow import RowFlow
from gatewise_edge.device.installed import BlockFunction, InstalledBundle
from gatewise_edge.device.late_requests import LateRequests
from gatewise_edge.device.pending import Pending
from gatewise_edge.device.stages import Runner
from gatewise_edge.device.unseen_cells import UnseenCells
from gatewise_edge.link.link import Link
from gatewise_edge.link.messages import most_rows
from gatewise_edge.link.offload_rules import OffloadRules
from gatewise_edge.link.uplink import Uplink
from gatewise_edge.sensors.blocking_reader import BlockingReader
from gatewise_edge.sensors.feature_reader import Reading
from gatewise_edge.sensors.sensors import Sensors
from gatewise_export.bundle.bundle import Bundle

_LOG = logging.getLogger(__name__)

#: Seconds before the deadline at which waiting ends, so that the answer itself is in time.
_GUARD: Final = 0.005
#: Rows that :meth:`Device.answer_many` begins before it waits for the first, and the part of the
#: deadline that beginning them may take.
_MOST_BEGUN: Final = 256
_BEGINNING: Final = 0.25

Observe = Callable[[Answer | Exception], None]


class Device:
    """Classify instances with a bundle's stages and, for the hard ones, the cloud.

    Parameters
    ----------
    bundle : Bundle or path
        Models, prices and thresholds.
    link : Link, optional
        The way to the cloud; the device opens and closes it. Without one every hard instance
        is a fallback.
    sensors : Sensors, optional
        Sensors that :meth:`answer` reads without a row. The device closes them.
    blocks : mapping of str to callable, optional
        Functions of the blocks that are Python functions, by the block's name: a bundle names them
        and holds no code. Each gets windows of shape (1, ...) on its own thread; one that has not
        returned at the deadline is left, and the last finished stage answers. An audit calls them
        on another thread, perhaps at the same time as the next instance.
    row_names : sequence of str, optional
        Features of the rows given to :meth:`answer`, in their order. They are matched by name with
        each bundle, so that an adopted one may list them otherwise. By default rows are in the
        order of the active bundle.
    deadline_ms : float, default 500
        Milliseconds from the call within which an answer is given.
    policy : {"system", "edge-only", "cloud-only"} or callable, default "system"
        For measurements: ``edge-only`` never offloads, the last stage always answers;
        ``cloud-only`` acquires the cloud model's features and offloads every instance at once.
        A function gets a :class:`.DecisionPoint` after each stage and returns ``"stop"``,
        ``"continue"`` or ``"offload"``; the operating point's guarantee is then void.
    offloading : OffloadRules, optional
        When an instance may be offloaded: requests in flight, circuit breaker, bound over time,
        implausible values.
    runner : {"auto", "onnxruntime", "numpy"}, default "auto"
        What runs the stages' graphs; auto is onnxruntime where it can be imported, else numpy.
        Both give the same bits; numpy takes less memory and, for large trees, more time.
    provider : str, default "cpu"
        onnxruntime's execution provider, such as ``cuda``, for stages that are given graphs. On the
        sample they must give the same labels there, and probabilities within
        :data:`gatewise.imports.PROVIDER_TOLERANCE`. Stages of flat models always run on the CPU,
        where their bits are equal.
    audit : float or AuditSampler, optional
        Share of the stages' answers, above 0 and up to 1, that is sent to the high-cost model as
        well, so that workers can test how often they agree; or what chooses them.
    late : LateRequests, optional
        Keeps the instances that the cloud could not be asked about, and sends them later; the
        device closes it.
    observe : callable, optional
        Gets each Answer, and each error that took the place of one, once, on the caller's thread.
        What it raises is logged.
    clock : callable, default time.monotonic
        Seconds, steady.

    Raises
    ------
    BundleError
        If the bundle cannot be read or run.
    SelfTestError
        If it gives other results here than where it was packed.
    InputError
        If a setting is out of range, the sensors do not fit the bundle, or a block's function is
        not there.

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
        policy: Policy | OwnPolicy = "system",
        offloading: OffloadRules = OffloadRules(),  # noqa: B008 - frozen
        runner: Runner = "auto",
        provider: str = CPU,
        audit: float | AuditSampler | None = None,
        late: LateRequests | None = None,
        observe: Observe | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.deadline_ms = check_positive("deadline_ms", deadline_ms)
        if not callable(policy) and policy not in get_args(Policy):
            names = ", ".join(get_args(Policy))
            raise InputError(f"policy {policy!r}; choose one of {names}, or give a function")
        if audit is not None and (policy != "system" or link is None):
            raise InputError("an audit needs a link and policy system: there is nothing to audit")
        # settings and counts
        self.policy = policy
        self._check_ranges = offloading.implausible != "ignore"
        self._observe = observe
        self._counts = dict.fromkeys((*get_args(Route), "errors", "implausible", "unseen"), 0)
        self._unseen_cells = UnseenCells()
        self._counting = threading.Lock()
        self._sensors = sensors
        self._functions = dict(blocks or {})
        self._block_reader = BlockingReader()
        self._row_names = row_names
        self._may_offload = link is not None and policy != "edge-only"
        self._runner = runner
        self._provider = provider
        self._adopting = threading.Lock()
        # the bundle and the way to the cloud
        opened = bundle if isinstance(bundle, Bundle) else Bundle.open(bundle, for_device=True)
        self._installed = self._install(opened)
        self._clock = clock
        self._guard = min(_GUARD, self.deadline_ms / 1e4)
        self._uplink = Uplink(link, offloading, clock)
        self._flow = RowFlow(
            self._uplink,
            policy=policy,
            offload_implausible=offloading.implausible == "offload",
            clock=clock,
        )
        self._auditor = None
        if audit is not None:
            sampler = audit if isinstance(audit, AuditSampler) else AuditSampler(audit)
            self._auditor = Auditor(sampler, self._uplink, clock, late)
        self._uplink.open()
        self._late = late
        if late is not None:
            late.start(self._uplink, opened.manifest)

    # -- life ------------------------------------------------------------------------------

    @property
    def bundle(self) -> Bundle:
        """The bundle that new instances are answered with."""
        return self._installed.bundle

    def adopt(self, bundle: Bundle) -> None:
        """Replace the bundle: prove `bundle`, then answer all further instances with it.

        An instance under way ends with the bundle that it began with; each request names the
        version that it is meant for. It raises the errors of making a device; the active bundle
        then stays.
        """
        with self._adopting:
            self._installed = self._install(bundle)
        _LOG.debug("%s is active", bundle.manifest.release)

    def _install(self, bundle: Bundle) -> InstalledBundle:
        """Load a bundle's models and prices; InputError if it does not fit the policy."""
        if self.policy == "cloud-only" and bundle.manifest.cloud is None:
            raise InputError("policy cloud-only: the bundle has no cloud model")
        installed = InstalledBundle.load(
            bundle,
            sensors=self._sensors,
            offloads=self._may_offload,
            runner=self._runner,
            provider=self._provider,
            row_names=self._row_names,
            functions=self._functions,
            block_reader=self._block_reader,
            check_ranges=self._check_ranges,
        )
        if self.policy == "cloud-only" and not installed.has_cloud:
            cap = bundle.manifest.max_instance_cost
            raise InputError(
                f"policy cloud-only: an offload may cost more than the bundle's cap of {cap:g} per "
                "instance; choose another policy"
            )
        return installed

    def close(self) -> None:
        """Close the link and the sensors. May be called twice."""
        self._uplink.close()
        if self._auditor is not None:
            self._auditor.close()
        if self._late is not None:
            self._late.close()
        self._block_reader.close()
        if self._sensors is not None:
            self._sensors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def counters(self) -> dict[str, int]:
        """Counts so far.

        ``edge``, ``cloud``, ``fallback`` and ``errors`` sum to the instances, ``implausible`` are
        answers to instances with a value far outside of those in training, ``unseen`` with a
        category that training has not seen; ``bytes_up`` and
        ``bytes_down`` are payload bytes; the rest are the counts of
        :class:`gatewise_edge.link.offload.OffloadCounts` and
        :class:`gatewise_edge.link.breaker.BreakerCounts`, and those of :class:`.Auditor` and
        :class:`.LateRequests` where there are such.
        """
        with self._counting:
            counts = dict(self._counts)
        audits = {} if self._auditor is None else self._auditor.counters
        late = {} if self._late is None else self._late.counters
        return counts | self._uplink.counters | audits | late

    @property
    def gauges(self) -> dict[str, float]:
        """Current state.

        ``outstanding`` (requests), ``round_trip_ms``, ``breaker_open`` (0 or 1),
        ``unseen_columns`` (columns all of whose categories so far are unseen) and, with audits, the
        gauges of :class:`.Auditor`.
        """
        audits = {} if self._auditor is None else self._auditor.gauges
        with self._counting:
            unseen = {"unseen_columns": float(len(self._unseen_cells.columns))}
        late = {} if self._late is None else self._late.gauges
        return self._uplink.gauges | unseen | audits | late

    # -- answering -------------------------------------------------------------------------

    def answer(self, row: ArrayLike | RawRow | None = None) -> Answer:
        """Classify one instance.

        Parameters
        ----------
        row : array-like of shape (n_features,), or of an instance that is an array, optional
            All values, in the order of `row_names`, or else the manifest's, or a mapping (or
            Series) by name, in which an absent feature is missing; only needed features are
            read and paid. Without it the sensors are read. For a bundle with encoders, the cells of
            its raw columns; without `row_names` an array of floats holds features.

        Raises
        ------
        SensorError
            If a value that the first stage needs cannot be had or is refused: the one case
            with no local answer to fall back on.
        InputError
            If the row does not fit the bundle, or there are neither a row nor sensors.
        """
        return self.finish(self.begin(row))

    def answer_many(self, rows: ArrayLike | Sequence[RawRow]) -> list[Answer | Exception]:
        """Classify instances that are at hand; hard ones share requests.

        Parameters
        ----------
        rows : array-like of shape (n, n_features), or (n, ...) of instances that are arrays
            Each has the device's deadline, from when its turn comes. Raw ones as in
            :meth:`answer`.

        Returns
        -------
        list of Answer or Exception, length n
            The error of :meth:`answer` takes the place of an answer that cannot be given.

        Raises
        ------
        InputError
            If the rows together do not fit the bundle; none is begun then.
        """
        checked = self._installed.checked_rows(rows)
        answers: list[Answer | Exception] = []
        while len(answers) < len(checked):
            answers += self._answer_group(checked[len(answers) : len(answers) + _MOST_BEGUN])
        return answers

    def _answer_group(self, rows: Sequence[Any] | NDArray[Any]) -> list[Answer | Exception]:
        """Answer as many of the first rows as begin within a part of the time, in one request."""
        until = time.monotonic() + _BEGINNING * self.deadline_ms / 1000.0
        installed = self._installed
        n_rows_left = most_rows(len(installed.request_inputs), len(installed.manifest.classes))
        group: list[Pending] = []
        steps: list[Answer | Pending | Exception] = []
        for row in rows:
            try:
                steps.append(self._begin(row, installed, group))
            except Exception as error:  # it ends this row alone
                steps.append(error)
            if len(group) == n_rows_left or time.monotonic() >= until:
                break
        if group:
            self._flow.send_group(group)
        answers: list[Answer | Exception] = []
        for step in steps:
            try:
                answers.append(self.finish(step) if isinstance(step, Pending) else step)
            except Exception as error:
                answers.append(error)
        return answers

    def begin(self, row: ArrayLike | RawRow | None = None) -> Answer | Pending:
        """Run the stages; send the instance to the cloud if none stops. Errors as :meth:`answer`.

        `row` as for :meth:`answer`. Returns the answer, or what to :meth:`advance` at its
        ``wake_at``, or when the link has delivered.
        """
        return self._begin(row, self._installed, None)

    def _begin(
        self, row: Any, installed: InstalledBundle, group: list[Pending] | None
    ) -> Answer | Pending:
        started = self._clock()
        try:
            source = installed.source_of(row)
        except InputError as error:
            self._count_error(error)
            raise
        clock = self._clock
        deadline = started + self.deadline_ms / 1000.0 - self._guard
        reading = Reading(source, installed.meter, lambda: deadline - clock())
        pending = Pending(installed, reading, started, deadline, [], group)
        return self._counted(pending, self._flow.start)

    def advance(self, pending: Pending) -> Answer | Pending:
        """Retry an instance's request, end it, or leave it; SensorError as :meth:`answer`.

        Returns `pending` itself while the outcome is open.
        """
        return self._counted(pending, self._flow.proceed)

    def finish(self, step: Answer | Pending) -> Answer:
        """Wait for the answer after a `step` of :meth:`begin`; SensorError as :meth:`answer`."""
        while isinstance(step, Pending):
            if step.request is not None:
                self._uplink.wait(step.request)
            step = self.advance(step)
        return step

    def _counted(
        self, pending: Pending, step: Callable[[Pending], Answer | Pending]
    ) -> Answer | Pending:
        """Take a step towards an instance's answer, and count it once it is there."""
        try:
            result = step(pending)
        except Exception as error:
            self._count_error(error)
            raise
        if isinstance(result, Answer):
            with self._counting:
                self._counts[result.route] += 1
                self._counts["implausible"] += bool(pending.reading.implausible)
                encoder = pending.installed.manifest.encoder
                if encoder is not None:
                    has_unseen = self._unseen_cells.count(encoder, pending.reading)
                    self._counts["unseen"] += has_unseen
            if self._late is not None:
                self._late.keep_fallback(pending, result)
            self._report(result)
            if self._auditor is not None:
                self._auditor.audit(pending, result)
        return result

    def _count_error(self, error: Exception) -> None:
        with self._counting:
            self._counts["errors"] += 1
        self._report(error)

    def _report(self, end: Answer | Exception) -> None:
        if self._observe is not None:
            try:
                self._observe(end)
            except Exception:
                _LOG.exception("an answer's observer failed")

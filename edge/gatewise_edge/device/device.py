"""A device: exactly one answer to each instance, before its deadline.

The stages run one after the other and acquire their features as they come. An instance that no
stage stops for goes to the cloud; if no usable response is there in time, the last stage's
answer is given and marked ``fallback``.

Deciding is event-driven: :meth:`Device.begin` runs the stages and sends what must be sent,
:meth:`Device.advance` retries or ends a request. :meth:`Device.answer` is the two with real
waiting between; a simulator in virtual time calls them itself.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise.columns.encoders import RawRow
from gatewise.errors import InputError
from gatewise_edge.checks import check_positive
from gatewise_edge.device.answer import Answer, OwnPolicy, Policy
from gatewise_edge.device.auditor import Audit
from gatewise_edge.device.device_stats import DeviceStats, Observe
from gatewise_edge.device.installed import ActiveBundle, BlockFunction, Installed
from gatewise_edge.device.offload_flow import OffloadFlow
from gatewise_edge.device.pacer import Pacer, PacerFile
from gatewise_edge.device.pending import Pending
from gatewise_edge.device.stage_models import Runner
from gatewise_edge.link.breaker import Breaker
from gatewise_edge.link.link import Link, most_values
from gatewise_edge.link.uplink import Uplink
from gatewise_edge.sensors.blocking_reader import BlockingReader
from gatewise_edge.sensors.feature_reader import Reading
from gatewise_edge.sensors.sensors import Sensors
from gatewise_export.bundle.bundle import Bundle

#: Seconds before the deadline at which waiting ends, so that the answer itself is in time.
_GUARD: Final = 0.005
#: Of :meth:`Device.answer_many`: rows begun before the first is waited for, and the part of the
#: deadline that beginning them may take.
_MOST_BEGUN: Final = 256
_BEGINNING: Final = 0.25


class Device:
    """Classify instances with a bundle's stages and, for the hard ones, the cloud.

    Parameters
    ----------
    bundle : Bundle or path
        What to answer with.
    link : Link, optional
        The way to the cloud; the device opens and closes it. Without one every hard instance
        is a fallback.
    sensors : Sensors, optional
        For :meth:`answer` without a row. The device closes them, too.
    blocks : mapping of str to callable, optional
        Functions of the blocks that are Python functions, by the block's name: a bundle names them
        and holds no code. Each gets windows of shape (1, ...) on a thread of its own; one that is
        not done at the deadline is left, and the last finished stage answers. An audit calls them
        on another thread, perhaps beside the next instance's.
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
    outstanding : int, default 32
        Requests in flight at a time, at most (several threads may wait for answers).
    check : bool, default True
        Run the bundle's self-test first.
    runner : {"auto", "onnxruntime", "numpy"}, default "auto"
        What runs the stages' graphs; auto is onnxruntime where it can be imported, else numpy.
        Both give the same bits; numpy takes less memory and, for large trees, more time.
    breaker : Breaker or bool, default True
        Blocks requests, and the acquisition of their features, while the cloud does not reply.
        True: one with its defaults; False: none.
    coalesce_ms : float, default 0
        How long a request waits, in ms, for those of other threads to share a message.
    float16 : bool, default False
        Send halves: half the bytes and 11 significant bits
        (:func:`gatewise_edge.link.uplink.as_matrix`). Costs are those of float32.
    deflate : bool, default False
        Compress requests (zlib) where that makes them shorter, as with images of few colours. Costs
        are those of a request that is not.
    pacer : Pacer, optional
        Moves the gate's threshold to keep a budget over time; this voids a guarantee of the
        operating point, and answers are marked ``paced``.
    pacer_state : str or Path, optional
        JSON file that keeps the pacer's state over restarts.
    audit : Audit, optional
        Sends a share of the stages' answers to the high-cost model and tests that they agree as
        often as they should.
    seed : int, optional
        Of the choice of answers to audit; from the operating system by default.
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
        If it computes otherwise here than where it was packed.
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
        outstanding: int = 32,
        check: bool = True,
        runner: Runner = "auto",
        breaker: Breaker | bool = True,
        coalesce_ms: float = 0.0,
        float16: bool = False,
        deflate: bool = False,
        pacer: Pacer | None = None,
        pacer_state: str | Path | None = None,
        audit: Audit | None = None,
        seed: int | None = None,
        observe: Observe | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.deadline_ms = check_positive("deadline_ms", deadline_ms)
        if not callable(policy) and policy not in get_args(Policy):
            known = ", ".join(get_args(Policy))
            raise InputError(f"policy {policy!r}; choose one of {known}, or give a function")
        if outstanding < 1:
            raise InputError(f"outstanding is {outstanding}; at least 1 request must be allowed")
        if not 0 <= coalesce_ms < np.inf:
            raise InputError(f"coalesce_ms is {coalesce_ms!r}; give milliseconds, 0 for no wait")
        gated = policy == "system" or callable(policy)
        if pacer is not None and (not gated or link is None):
            raise InputError("a pacer needs a link and policy system: there is nothing to pace")
        if pacer_state is not None and pacer is None:
            raise InputError("pacer_state without a pacer")
        if audit is not None and (policy != "system" or link is None):
            raise InputError("an audit needs a link and policy system: there is nothing to audit")
        self.policy = policy
        file = None
        if pacer is not None and pacer_state is not None:
            file = PacerFile(pacer, pacer_state)
        self._stats = DeviceStats(observe, file)
        self._sensors = sensors
        self._functions = dict(blocks or {})
        self._block_reader = BlockingReader()
        self._row_names = row_names
        may_offload = link is not None and policy != "edge-only"
        self._most_bytes = most_values(link) if may_offload else None
        self._runner = runner
        self._active = ActiveBundle(
            bundle if isinstance(bundle, Bundle) else Bundle.open(bundle, for_device=True),
            self._load,
            check=check,
            policy="system" if callable(policy) else policy,
            pacer=pacer,
            audit=audit,
            rng=random.Random(seed),
            on_drift=self._stats.drifted,
        )
        self._clock = clock
        self._guard = min(_GUARD, self.deadline_ms / 1e4)
        self._uplink = Uplink(
            link,
            limit=outstanding,
            breaker=(Breaker() if breaker else None) if isinstance(breaker, bool) else breaker,
            coalesce=coalesce_ms / 1000.0,
            float16=float16,
            deflate=deflate,
            clock=clock,
        )
        self._flow = OffloadFlow(self._uplink, policy=policy, clock=clock)
        self._uplink.open()

    # -- life ------------------------------------------------------------------------------

    @property
    def bundle(self) -> Bundle:
        """The bundle that new instances are answered with."""
        return self._active.installed.bundle

    def adopt(self, bundle: Bundle) -> None:
        """Replace the bundle: prove `bundle`, then answer all further instances with it.

        An instance under way ends with the bundle that it began with; each request names the
        version that it is meant for. Errors are those of making a device; the active bundle then
        stays.
        """
        self._active.adopt(bundle)

    def _load(self, bundle: Bundle, *, check: bool) -> Installed:
        """Make what depends on the bundle alone: devices of one process may share it."""
        return Installed.load(
            bundle,
            sensors=self._sensors,
            most_bytes=self._most_bytes,
            check=check,
            runner=self._runner,
            row_names=self._row_names,
            functions=self._functions,
            block_reader=self._block_reader,
        )

    def close(self) -> None:
        """Close the link and the sensors. May be called twice."""
        self._uplink.close()
        self._flow.close()
        self._stats.close()
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

        ``edge``, ``cloud``, ``fallback`` and ``errors`` sum to the instances;
        ``paced`` of them were decided by a pacer; ``drift_alarms`` is how often the gate's offload
        rate left its band (:mod:`.drift`); ``bytes_up`` and
        ``bytes_down`` are payload bytes; the rest are those of
        :class:`gatewise_edge.link.offload.OffloadCounts` and
        :class:`gatewise_edge.link.breaker.BreakerCounts`.
        """
        auditor = self._active.installed.auditor
        audited = {} if auditor is None else auditor.counters
        return self._stats.counters | self._uplink.counters | audited

    @property
    def gauges(self) -> dict[str, float]:
        """Current state.

        ``outstanding`` (requests), ``round_trip_ms``, ``breaker_open`` (0 or 1), ``drift`` (-1, 0
        or 1: the gate offloads fewer, as many as, more instances than in validation) and, with a
        pacer, ``pacer_level`` (share of the instances at the gate that it offloads) and
        ``pacer_debt`` (in offloads).
        """
        installed = self._active.installed
        own = [part.gauges for part in (installed.gate, installed.auditor) if part is not None]
        return self._uplink.gauges | {name: value for part in own for name, value in part.items()}

    # -- answering -------------------------------------------------------------------------

    def answer(self, row: ArrayLike | RawRow | bytes | None = None) -> Answer:
        """Classify one instance.

        Parameters
        ----------
        row : array-like of shape (n_features,), or of an instance that is an array, optional
            All values, in the order of `row_names`, or else the manifest's, or a mapping (or
            Series) by name, in which what is not there is missing; only what is needed is read
            and paid. Without it the sensors are read. For a bundle with encoders, the cells of
            its raw columns; without `row_names` an array of floats holds features. Where the
            manifest's instance has ``encoding`` "jpeg", the bytes of a JPEG file, too.

        Raises
        ------
        SensorError
            If a value that the first stage needs cannot be had or is refused: the one case
            with no local answer to fall back on.
        InputError
            If the row does not fit the bundle, or there are neither a row nor sensors.
        """
        return self.finish(self.begin(row))

    def answer_many(
        self, rows: ArrayLike | Sequence[RawRow] | Sequence[bytes]
    ) -> list[Answer | Exception]:
        """Classify instances that are at hand; requests of hard ones share messages.

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
        checked = self._active.installed.checked_rows(rows)
        answers: list[Answer | Exception] = []
        while len(answers) < len(checked):
            answers += self._answer_some(checked[len(answers) : len(answers) + _MOST_BEGUN])
        return answers

    def _answer_some(self, X: Sequence[Any] | NDArray[Any]) -> list[Answer | Exception]:
        """Answer as many of the first rows as begin within a part of the time, and may be sent."""
        until = time.monotonic() + _BEGINNING * self.deadline_ms / 1000.0
        steps: list[Answer | Pending | Exception] = []
        for row in X:
            try:
                steps.append(self.begin(row, hold=True))
            except Exception as error:  # it ends this row alone
                steps.append(error)
            if self._uplink.full or time.monotonic() >= until:
                break
        self.flush()
        answers: list[Answer | Exception] = []
        for step in steps:
            try:
                answers.append(self.finish(step) if isinstance(step, Pending) else step)
            except Exception as error:
                answers.append(error)
        return answers

    def begin(
        self, row: ArrayLike | RawRow | bytes | None = None, *, hold: bool = False
    ) -> Answer | Pending:
        """Run the stages; send the instance to the cloud if none stops. Errors as :meth:`answer`.

        `row` as for :meth:`answer`. With `hold` its request may wait for those of the rows that
        follow, until :meth:`flush`.
        Returns the answer, or what to :meth:`advance` at its ``wake_at``, or when the link has
        delivered.
        """
        started = self._clock()
        installed = self._active.installed
        try:
            source = installed.source_of(row)
        except InputError as error:
            self._stats.failed(error)
            raise
        clock, deadline = self._clock, started + self.deadline_ms / 1000.0 - self._guard
        reading = Reading(source, installed.meter, lambda: deadline - clock())
        pending = Pending(installed, reading, started, deadline, hold)
        return self._counted(pending, self._flow.start)

    def flush(self) -> None:
        """Send the requests that wait for more rows."""
        self._uplink.flush()

    def advance(self, pending: Pending) -> Answer | Pending:
        """Retry an instance's request, end it, or leave it; SensorError as :meth:`answer`.

        Returns `pending` itself while the outcome is open.
        """
        return self._counted(pending, self._flow.proceed)

    def finish(self, step: Answer | Pending) -> Answer:
        """Wait for the answer after a `step` of :meth:`begin`; SensorError as :meth:`answer`."""
        while isinstance(step, Pending):
            assert step.request is not None
            self._uplink.wait(step.request, step.wake_at)
            step = self.advance(step)
        return step

    def _counted(
        self, pending: Pending, step: Callable[[Pending], Answer | Pending]
    ) -> Answer | Pending:
        """Take a step towards an instance's answer, and count it once it is there."""
        try:
            made = step(pending)
        except Exception as error:
            self._stats.failed(error)
            raise
        if isinstance(made, Answer):
            self._stats.answered(pending, made, self._clock)
            self._flow.audit(pending, made)
        return made

"""Tests of the conversion of termination signals into SystemExit."""

import os
import signal

import pytest

from gatewise_sim.signal_handling import exit_on_termination


@pytest.fixture
def default_action():
    """Fixture that sets the default action of a signal, which nohup may have ignored."""
    previous_handlers = {}

    def set_default(number):
        previous_handlers[number] = signal.signal(number, signal.SIG_DFL)

    yield set_default
    for number, handler in previous_handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signal_raises_system_exit_and_its_action_is_restored(number, default_action):
    default_action(number)
    closed = []

    @exit_on_termination()
    def work():
        try:
            os.kill(os.getpid(), number)
        finally:
            closed.append(True)

    with pytest.raises(SystemExit) as error:
        work()
    assert error.value.code == 128 + number
    assert closed
    assert signal.getsignal(number) is signal.SIG_DFL


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_error_during_the_exit_does_not_replace_the_signal(kind):
    @exit_on_termination()
    def work():
        try:
            raise kind
        finally:
            raise RuntimeError("cannot join thread before it is started")

    with pytest.raises(kind):
        work()


def test_other_errors_are_not_changed():
    @exit_on_termination()
    def work():
        try:
            raise KeyError("handled")
        except KeyError:
            raise ValueError("why") from None

    with pytest.raises(ValueError, match="why"):
        work()


def test_existing_signal_handler_is_kept():
    received = []
    previous = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    try:
        with exit_on_termination():
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert received == [signal.SIGTERM]

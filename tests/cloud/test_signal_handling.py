"""Tests of the conversion of termination signals into SystemExit."""

import os
import signal

import pytest

from gatewise_cloud.signal_handling import exit_on_termination


@pytest.fixture
def set_default_action():
    """Fixture that sets the default action of a signal that nohup may have set to be ignored."""
    previous_handlers = {}

    def set_action(signal_number):
        previous_handlers[signal_number] = signal.signal(signal_number, signal.SIG_DFL)

    yield set_action
    for signal_number, handler in previous_handlers.items():
        signal.signal(signal_number, handler)


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGHUP])
def test_signal_raises_system_exit_and_its_action_is_restored(signal_number, set_default_action):
    set_default_action(signal_number)
    clean_ups = []

    @exit_on_termination()
    def kill_own_process():
        try:
            os.kill(os.getpid(), signal_number)
        finally:
            clean_ups.append(True)

    with pytest.raises(SystemExit) as error_info:
        kill_own_process()
    assert error_info.value.code == 128 + signal_number  # as shells report the signal
    assert clean_ups
    assert signal.getsignal(signal_number) is signal.SIG_DFL


@pytest.mark.parametrize("exit_class", [SystemExit, KeyboardInterrupt])
def test_error_during_the_exit_does_not_replace_the_signal(exit_class):
    @exit_on_termination()
    def fail_during_exit():
        try:
            raise exit_class
        finally:
            raise RuntimeError("cannot join thread before it is started")

    with pytest.raises(exit_class):
        fail_during_exit()


def test_other_errors_are_not_changed():
    @exit_on_termination()
    def raise_other_error():
        try:
            raise KeyError("handled")
        except KeyError:
            raise ValueError("why") from None

    with pytest.raises(ValueError, match="why"):
        raise_other_error()


def test_existing_signal_handler_is_kept():
    received_signals = []
    previous_handler = signal.signal(
        signal.SIGTERM, lambda signal_number, _frame: received_signals.append(signal_number)
    )
    try:
        with exit_on_termination():
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, previous_handler)
    assert received_signals == [signal.SIGTERM]

import os
import signal

import pytest

from gatewise_sim.signal_handling import exit_on_termination


@pytest.fixture
def default_action():
    """Let a signal do what it does where nobody, such as nohup, has it ignored."""
    before = {}

    def give(number):
        before[number] = signal.signal(number, signal.SIG_DFL)

    yield give
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_unwinds_the_stack_and_then_does_what_it_did(number, default_action):
    default_action(number)
    closed = []

    @exit_on_termination()
    def work():
        try:
            os.kill(os.getpid(), number)
        finally:
            closed.append(True)

    with pytest.raises(SystemExit) as ended:
        work()
    assert ended.value.code == 128 + number
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


def test_an_error_stays_an_error():
    @exit_on_termination()
    def work():
        try:
            raise KeyError("that was seen to")
        except KeyError:
            raise ValueError("why") from None

    with pytest.raises(ValueError, match="why"):
        work()


def test_existing_signal_handler_is_kept():
    heard = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        with exit_on_termination():
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM]

"""Measuring in a thread of its own."""

import signal
import threading
import time

import pytest

from tf_convpar.planner.measure import in_own_thread


def test_what_nobody_waits_for_any_more_ends():
    """Ctrl-C reaches the caller, and the thread ends at its next report."""
    seconds, ended = 20.0, []

    def measure(report):
        begin = time.monotonic()
        while time.monotonic() - begin < seconds:
            try:
                report("more")
            except BaseException:
                ended.append(threading.current_thread())
                raise
            time.sleep(0.01)

    main = threading.main_thread().ident
    timer = threading.Timer(
        0.3, lambda: signal.pthread_kill(main, signal.SIGINT)
    )
    timer.start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        in_own_thread(measure, report=lambda name: None)
    assert time.monotonic() - begin < seconds / 2
    assert ended and ended[0] is not threading.main_thread()


def test_what_it_finds_and_what_it_raises():
    said = []

    def measure(a, b, report):
        report("sum")
        return a + b

    assert in_own_thread(measure, 1, 2, report=said.append) == 3
    assert said == ["sum"]
    with pytest.raises(ZeroDivisionError):
        in_own_thread(lambda report: 1 / 0, report=said.append)

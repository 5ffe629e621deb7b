"""Seconds that tests took on this machine, and tests for which time is up.

Every run adds its own to pytest's cache. `tools/check.py` chooses by them, and
sets the time at which no more tests begin, in seconds since 1970.
"""

import collections
import functools
import os
import time

import pytest

KEY = "tests/seconds"
UNTIL = "TF_CONVPAR_TESTS_UNTIL"
NO_TIME = "no time is left"
# `make check` runs none of these.
LEFT_OUT = {"slow", "alone"}

_took = collections.Counter()
_not_run = set()


@functools.cache
def known(config):
    """Seconds of each test, as they were measured last."""
    cache = getattr(config, "cache", None)  # -p no:cacheprovider
    return cache.get(KEY, {}) if cache else {}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    until = float(os.environ.get(UNTIL, "inf"))
    if time.time() + known(item.config).get(item.nodeid, 0) > until:
        pytest.skip(NO_TIME)


def pytest_runtest_logreport(report):
    if report.skipped and NO_TIME in str(report.longrepr):
        _not_run.add(report.nodeid)
    elif report.nodeid not in _not_run and not LEFT_OUT & set(report.keywords):
        _took[report.nodeid] += report.duration


def pytest_sessionfinish(session):
    cache = getattr(session.config, "cache", None)
    # With xdist, the process that starts the others hears of all tests.
    if cache and _took and not hasattr(session.config, "workerinput"):
        rounded = {test: round(took, 2) for test, took in _took.items()}
        cache.set(KEY, {**cache.get(KEY, {}), **rounded})


def pytest_terminal_summary(terminalreporter):
    if _not_run:
        counts = collections.Counter(n.partition("::")[0] for n in _not_run)
        files = ", ".join(f"{n} of {file}" for file, n in counts.items())
        terminalreporter.write_line(f"Not run, as the time was up: {files}")

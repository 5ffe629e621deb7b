"""Cases of which `make test` runs some, and `make test-all` all."""

import pytest


def but_slow(cases, chosen):
    """All cases, of which those that are not chosen are slow."""
    return [case if case in chosen else slow(case) for case in cases]


def slow(case):
    """A case, a tuple where it is several arguments, for `make test-all`."""
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.slow)

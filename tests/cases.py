"""Cases of which `make test` runs some, and `make test-all` all."""

import itertools

import pytest


def but_slow(cases, chosen):
    """All cases, of which those that are not chosen are slow."""
    return [case if case in chosen else slow(case) for case in cases]


def every_second(cases):
    """All cases, of which the second, the fourth and so on are slow."""
    return but_slow(cases, list(cases)[::2])


def by_turns(*values):
    """The product of some values; cases that have each of them once are quick.

    The first case has the first of each, the second the second, and so on;
    shorter lists begin again.
    """
    longest = max(map(len, values))
    chosen = [tuple(v[i % len(v)] for v in values) for i in range(longest)]
    return but_slow(itertools.product(*values), chosen)


def slow(case):
    """A case, a tuple where it is several arguments, for `make test-all`."""
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.slow)

"""Choices of algorithms, as if none had been made."""

from tf_convpar.algorithms import PASSES
from tf_convpar.algorithms import Geometry
from tf_convpar.algorithms import _choose
from tf_convpar.algorithms import cache
from tf_convpar.algorithms import candidates

GEOMETRY = Geometry((14, 14), 32, 64, window=(3, 3), padding="same", batch=3)


def forget():
    """What this process knows; files stay."""
    cache.forget()
    _choose._choices.clear()


def fresh(folder, monkeypatch):
    """No memory and no file, for the length of a fixture."""
    monkeypatch.setenv(cache.FOLDER, str(folder))
    monkeypatch.delenv(candidates.WORKSPACE, raising=False)
    forget()
    cache._warn_once.cache_clear()
    yield
    forget()


def races(monkeypatch):
    """A list, to which each pass is added that is really measured."""
    seen, screened = [], candidates.screened

    def count(algorithms, geometry, which, device):
        seen.append(which)
        return screened(algorithms, geometry, which, device)

    monkeypatch.setattr("tf_convpar.algorithms.candidates.screened", count)
    return seen


def names(choice):
    """The algorithms of all passes."""
    return [getattr(choice, which).name for which in PASSES]

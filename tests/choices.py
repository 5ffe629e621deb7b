"""Choices of algorithms, as if none had been made."""

from tf_convpar.algorithms import _cache
from tf_convpar.algorithms import _candidates
from tf_convpar.algorithms import _choose


def forget():
    """What this process knows; files stay."""
    _cache.forget()
    _choose._choices.clear()


def fresh(folder, monkeypatch):
    """No memory and no file, for the length of a fixture."""
    monkeypatch.setenv(_cache.FOLDER, str(folder))
    monkeypatch.delenv(_candidates.WORKSPACE, raising=False)
    forget()
    _cache._warn_once.cache_clear()
    yield
    forget()

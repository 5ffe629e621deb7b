"""What was measured, kept on disk and shared between processes."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import functools
import json
import os
import pathlib
import tempfile
import threading
import warnings
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

FOLDER = "TF_CONVPAR_CACHE"
# Of the file's form.
FORMAT = 1
# Of what is measured: raised when an algorithm's speed changes, or a race.
ALGORITHMS = 2


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One algorithm for one pass, and what was found out about it.

    Attributes:
        name: As users write it, `"winograd:4"`.
        multiplications: Predicted, transforms included.
        workspace_bytes: Beside arguments and result.
        error: Relative, against float64; None where not measured.
        time_ms: Median; None where not measured.
        spread_ms: Between the quartiles.
        ratio: Of its time to direct's in the same rounds, the median.
        dropped: Why it could not be chosen; None if it could.
    """

    name: str
    multiplications: int
    workspace_bytes: int
    error: float | None = None
    time_ms: float | None = None
    spread_ms: float | None = None
    ratio: float | None = None
    dropped: str | None = None


@dataclasses.dataclass(frozen=True)
class Record:
    """The choice for one pass of one convolution.

    Attributes:
        chosen: The candidate's name.
        candidates: All that were thought of, direct first; none where a rule
            decides.
        rule: The rule that decided without measuring, None if none did.
    """

    chosen: str
    candidates: tuple[Candidate, ...] = ()
    rule: str | None = None

    @property
    def direct(self) -> Candidate | None:
        """The candidate that the others are compared with."""
        return self.candidates[0] if self.candidates else None

    @property
    def winner(self) -> Candidate | None:
        """The chosen candidate."""
        found = [c for c in self.candidates if c.name == self.chosen]
        return found[0] if found else None


def path() -> pathlib.Path:
    """The file: in `$TF_CONVPAR_CACHE`, else the user's cache folder."""
    folder = os.environ.get(FOLDER)
    if folder:
        return pathlib.Path(folder).expanduser() / "algorithms.json"
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return pathlib.Path(caches).expanduser() / "tf_convpar/algorithms.json"


def find(key: str) -> Record | None:
    """What is known under a key, in this process or in the file."""
    file = path()
    with _lock:
        memo = _memo.setdefault(str(file), {})
        if key not in memo:
            # Another process may have measured it meanwhile.
            state = _state(file)
            if state != _seen.get(str(file)):
                _seen[str(file)] = state
                memo.update({**_read(file), **memo})
        return memo.get(key)


def keep(records: Mapping[str, Record]) -> None:
    """Adds records to this process' memory and to the file.

    The file is replaced as a whole under a lock, with what other processes
    have written meanwhile: a reader sees the old one or the new one. Where it
    cannot be written there is one warning, and each process measures anew.
    """
    file = path()
    with _lock:
        _memo.setdefault(str(file), {}).update(records)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with _locked(file):
                _replace(file, {**_read(file), **records})
        except OSError as error:
            _warn_once(
                f"Could not write {file}: {error.strerror or error}. "
                "Convolution algorithms will be measured again by the next "
                f"program. Set {FOLDER} to a folder that can be written."
            )


def forget() -> None:
    """Empties this process' memory; the file stays."""
    with _lock:
        _memo.clear()
        _seen.clear()


_lock = threading.RLock()
_memo: dict[str, dict[str, Record]] = {}
_seen: dict[str, tuple[int, ...]] = {}


def _state(file: pathlib.Path) -> tuple[int, ...]:
    """What differs when a file has been replaced."""
    try:
        found = file.stat()
    except OSError:
        return ()
    return (found.st_ino, found.st_mtime_ns, found.st_size)


@contextlib.contextmanager
def _locked(file: pathlib.Path) -> Iterator[None]:
    # Not the file itself: it is replaced while others wait for its lock.
    with open(file.with_suffix(".lock"), "a", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _replace(file: pathlib.Path, records: Mapping[str, Record]) -> None:
    content = {
        **_versions(),
        "records": {k: dataclasses.asdict(r) for k, r in records.items()},
    }
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=".algorithms-")
    try:
        with open(handle, "w", encoding="utf-8") as temporary:
            json.dump(content, temporary, indent=1)
        os.replace(name, file)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _read(file: pathlib.Path) -> dict[str, Record]:
    """What the file holds, {} if it is not there or of no use."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        found = {name: content.get(name) for name in _versions()}
        if found != _versions():
            _warn_once(
                f"{file} was written with {_described(found)}, and this "
                f"process runs {_described(_versions())}: convolution "
                "algorithms are measured again."
            )
            return {}
        return {k: _parsed(entry) for k, entry in content["records"].items()}
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        _warn_once(
            f"{file} cannot be used: {error!r}. Convolution algorithms are "
            "measured again."
        )
        return {}


def _parsed(entry: Mapping[str, Any]) -> Record:
    record = Record(
        chosen=entry["chosen"],
        candidates=tuple(Candidate(**c) for c in entry["candidates"]),
        rule=entry["rule"],
    )
    if record.rule is None and record.winner is None:
        raise ValueError(f"no candidate is named {record.chosen!r}")
    return record


def _versions() -> dict[str, Any]:
    return {
        "format": FORMAT,
        "tensorflow": tf.__version__,
        "algorithms": ALGORITHMS,
    }


def _described(versions: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in versions.items())


@functools.cache
def _warn_once(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=3)

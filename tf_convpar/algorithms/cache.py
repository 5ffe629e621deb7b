"""Records of measured algorithms, kept on disk and shared by processes."""

from __future__ import annotations

import dataclasses
import functools
import json
import pathlib
import threading
import warnings
from collections.abc import Mapping
from typing import Any

import filelock
import tensorflow as tf

from tf_convpar.files import CACHE_FOLDER as FOLDER
from tf_convpar.files import Checked
from tf_convpar.files import Name
from tf_convpar.files import Natural
from tf_convpar.files import Unexpected
from tf_convpar.files import atomic
from tf_convpar.files import cache_folder
from tf_convpar.files import checked
from tf_convpar.files import read_json

# Version of the file's form.
FORMAT = 1
# Version of the measurements. It is raised when the speed of an algorithm
# changes, or the way it is measured.
ALGORITHMS = 2


@dataclasses.dataclass(frozen=True)
class Candidate(Checked):
    """One algorithm for one pass, with its costs, error and times.

    Attributes:
        name: The name as users write it, `"winograd:4"`.
        multiplications: Predicted number of multiplications of the pass,
            transforms included.
        workspace_bytes: Memory needed beside arguments and result.
        error: Relative error against float64; None where not measured.
        time_ms: Median time of the pass; None where not measured.
        spread_ms: Distance between the quartiles of its times; None where not
            measured.
        ratio: Median ratio of its times to direct's in the same rounds; None
            where not measured.
        dropped: The reason why it could not be chosen; None if it could.
    """

    # `error` may be NaN.
    __pydantic_config__ = {**Checked.__pydantic_config__, "allow_inf_nan": True}

    name: Name
    multiplications: Natural
    workspace_bytes: Natural
    error: float | None = None
    time_ms: float | None = None
    spread_ms: float | None = None
    ratio: float | None = None
    dropped: str | None = None


@dataclasses.dataclass(frozen=True)
class Record(Checked):
    """The choice for one pass of one convolution.

    Attributes:
        chosen: Name of the algorithm chosen.
        candidates: All algorithms considered, direct first; empty where a rule
            decided.
        rule: The rule that decided without measuring; None if none did.
    """

    chosen: Name
    candidates: tuple[Candidate, ...] = ()
    rule: str | None = None

    def check(self) -> None:
        """A candidate was chosen, unless a rule decided."""
        if self.rule is None and self.winner is None:
            raise Unexpected("the name of a candidate", "chosen")

    @property
    def direct(self) -> Candidate | None:
        """The candidate that all others are compared with, if there is any."""
        return self.candidates[0] if self.candidates else None

    @property
    def winner(self) -> Candidate | None:
        """The candidate chosen; None where a rule decided."""
        chosen = [c for c in self.candidates if c.name == self.chosen]
        return chosen[0] if chosen else None


def path() -> pathlib.Path:
    """Path of the file, in `$TF_CONVPAR_CACHE` or the user's cache folder."""
    return cache_folder() / "algorithms.json"


def find(key: str) -> Record | None:
    """The record of a key, from this process' memory or the file, if any."""
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

    The file is replaced as a whole, under a lock, and keeps what other
    processes have written meanwhile: a reader sees either the old file or the
    new one. Where it cannot be written there is one warning, and each process
    measures anew.
    """
    file = path()
    with _lock:
        _memo.setdefault(str(file), {}).update(records)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            # Not the file itself: it is replaced while others wait.
            with filelock.FileLock(file.with_suffix(".lock")):
                _write(file, {**_read(file), **records})
        except (OSError, NotImplementedError) as error:
            why = getattr(error, "strerror", None) or error
            _warn_once(
                f"Could not write {file}: {why}. "
                "Convolution algorithms will be measured again by the next "
                f"program. Set {FOLDER} to a folder that can be written."
            )


def forget() -> None:
    """Empties this process' memory of records; the file stays."""
    with _lock:
        _memo.clear()
        _seen.clear()


_lock = threading.RLock()
_memo: dict[str, dict[str, Record]] = {}
_seen: dict[str, tuple[int, ...]] = {}


def _state(file: pathlib.Path) -> tuple[int, ...]:
    """Facts of a file that differ when it has been replaced."""
    try:
        status = file.stat()
    except OSError:
        return ()
    return (status.st_ino, status.st_mtime_ns, status.st_size)


def _write(file: pathlib.Path, records: Mapping[str, Record]) -> None:
    content = {
        **_versions(),
        "records": {k: dataclasses.asdict(r) for k, r in records.items()},
    }
    with atomic(file) as part:
        part.write_text(json.dumps(content, indent=1), encoding="utf-8")


def _read(file: pathlib.Path) -> dict[str, Record]:
    """The records in the file; {} if the file is missing or unusable."""
    try:
        content = read_json(file)
        fields = content if isinstance(content, dict) else {}
        versions = {name: fields.get(name) for name in _versions()}
        if versions != _versions():
            _warn_once(
                f"{file} was written with {_described(versions)}, and this "
                f"process runs {_described(_versions())}: convolution "
                "algorithms are measured again."
            )
            return {}
        return checked(dict[str, Record], fields.get("records"), str(file))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        _warn_once(
            f"{file} cannot be used. {error} Convolution algorithms are "
            "measured again."
        )
        return {}


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

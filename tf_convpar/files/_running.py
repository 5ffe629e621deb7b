"""Files by which running trainings tell other processes of their state.

There is one for each process, in the user's cache folder. `callbacks.Monitor`
writes it, and `convpar top` reads it. Each `convpar launch` also has an empty
file, in a temporary folder, whose time is that of the last step: so it knows
whether a program goes on when a worker has ended.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import json
import os
import pathlib
import re
import time
from collections.abc import Iterable
from typing import Any

import psutil

from tf_convpar.files._atomic import replace
from tf_convpar.files._cache_folder import cache_folder
from tf_convpar.files._cache_folder import temporary_folder
from tf_convpar.files._checked import Checked
from tf_convpar.files._checked import Natural
from tf_convpar.files._checked import checked
from tf_convpar.files._form import read_json

# Age in nanoseconds at which files of killed programs are removed: a day.
_OLD_NS = 86_400 * 10**9


class _Report(Checked):
    # Losses may be infinite or NaN.
    __pydantic_config__ = {**Checked.__pydantic_config__, "allow_inf_nan": True}


@dataclasses.dataclass(frozen=True)
class DeviceNow(_Report):
    """The recent load of one device.

    Attributes:
        name: Short name of the device.
        busy: Part of the time that its cores worked for the task; None for a
            GPU, or where its system does not tell.
        received: Bytes a second into its machine.
        sent: Bytes a second from its machine.
    """

    name: str
    busy: float | None = None
    received: float | None = None
    sent: float | None = None


@dataclasses.dataclass(frozen=True)
class Running(_Report):
    """A training that runs.

    Attributes:
        pid: Its process, on this machine.
        began_s: When it began, in seconds since 1970.
        written_s: When this was written.
        model: Name of the model.
        epoch: Number of the epoch, from 1.
        step: Number of steps since it began.
        step_s: Median seconds of the steps since the last look.
        logs: Losses and metrics, as Keras shows them.
        devices: The chief's devices first.
    """

    pid: Natural
    began_s: float
    written_s: float
    model: str
    epoch: int
    step: int
    step_s: float
    logs: dict[str, float]
    devices: tuple[DeviceNow, ...]

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return dataclasses.asdict(self)


def write_state(running: Running) -> None:
    """Writes the state of a training, in the place of the last one.

    Raises:
        OSError: The folder cannot be written.
    """
    path = _path(running.pid)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace(path, json.dumps(running.to_dict()).encode())


def remove_state(pid: int) -> None:
    """Removes the state of a training that has ended."""
    with contextlib.suppress(OSError):
        _path(pid).unlink()


def running_trainings(pids: Iterable[int] | None = None) -> list[Running]:
    """Trainings of this user that run on this machine, by their begin.

    Args:
        pids: Processes to look for; None for all.
    """
    trainings = []
    for path in _path(0).parent.glob("*.json"):
        try:
            training = checked(Running, read_json(path), str(path))
        except (OSError, ValueError):
            continue  # It has just ended, or another version wrote it.
        if path.name != _path(training.pid).name:
            continue
        if not _runs(training):
            # A process that was killed removes nothing.
            remove_state(training.pid)
        elif pids is None or training.pid in pids:
            trainings.append(training)
    return sorted(trainings, key=lambda training: training.began_s)


def note_step(launch: str) -> None:
    """Notes that a training of a launch has made a step.

    Raises:
        ValueError: `launch` is no id of a launch.
        OSError: The folder cannot be written.
    """
    path, now = _steps(launch), time.time_ns()
    try:
        os.utime(path, ns=(now, now))
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        for other in path.parent.glob("*.steps"):
            # Files of programs that were killed.
            if now - other.stat().st_mtime_ns > _OLD_NS:
                other.unlink(missing_ok=True)
        path.touch()
        atexit.register(path.unlink, missing_ok=True)


def last_step(launch: str) -> int | None:
    """Time of the last step of a launch's training in ns since 1970, if any.

    The training must run on this machine.
    """
    with contextlib.suppress(OSError, ValueError):
        return _steps(launch).stat().st_mtime_ns
    return None


def _steps(launch: str) -> pathlib.Path:
    if not re.fullmatch(r"[0-9a-f]{1,64}", launch):
        raise ValueError(f"Expected the id of a launch. Received: {launch!r}.")
    # Where cache folders cannot be written, programs recover all the same.
    return temporary_folder() / f"{launch}.steps"


def _runs(training: Running) -> bool:
    """Whether a training's process runs, and no other of the same number."""
    try:
        process = psutil.Process(training.pid)
        dead = process.status() == psutil.STATUS_ZOMBIE
        return not dead and process.create_time() <= training.began_s + 1
    except psutil.Error:
        return False


def _path(pid: int) -> pathlib.Path:
    return cache_folder() / "running" / f"{pid}.json"


def age_s(training: Running) -> float:
    """Seconds since a training has written its state."""
    return time.time() - training.written_s

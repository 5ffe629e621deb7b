"""The front door of the choice: by rule where one is sure, else by time.

Each pass of a convolution is chosen by itself, because the same algorithm may
win forward and lose in a gradient. The way there:

1. Rules that need no measurement; they all say direct.
2. Candidates, by predicted multiplications, workspace and error; both in
   `_candidates`.
3. A race of those that are left (`_measure`), and `decide`.
4. A second race, later, of direct and a winner by little.
5. The record, kept for later processes (`_cache`).
"""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
import platform
import threading
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_convpar import machines
from tf_convpar.algorithms import _cache
from tf_convpar.algorithms import _candidates
from tf_convpar.algorithms import _measure
from tf_convpar.algorithms import _workspace
from tf_convpar.algorithms._algorithm import PASSES
from tf_convpar.algorithms._algorithm import Algorithm
from tf_convpar.algorithms._algorithm import Geometry
from tf_convpar.algorithms._bilinear import instruction_set
from tf_convpar.algorithms._cache import Candidate
from tf_convpar.algorithms._cache import Record
from tf_convpar.algorithms._passes import Choice
from tf_convpar.algorithms._passes import named

DIRECT = "direct"
# What a candidate must save of direct's time.
MARGIN = 0.08
# A race favours who was lucky in it, and a second of another's noise may slow
# direct down by more than the others. Who took more than this share of
# direct's time, and that was up to twice what it takes, was found to be slower
# ten minutes later; so it must win again, after the races of other passes.
_CLEAR = 0.65
# Where a model is traced for any batch.
ASSUMED_BATCH = 32
# Of rounds, for the three passes of a convolution.
_BUDGET_S = 1.0


# Called while a graph is traced, AutoGraph would take it for a part of that.
@tf.autograph.experimental.do_not_convert
def choose(geometry: Geometry, device: str | None = None) -> Choice:
    """The algorithm for each pass, by measurement the first time.

    ```python
    geometry = Geometry((14, 14), 500, 1500, window=(5, 5), batch=64)
    choice = choose(geometry)  # about a second, or read from the cache
    choice.forward.name  # "winograd:5"
    ```

    May be called while a graph is traced, under tapes and in the scope of any
    strategy. A convolution of unknown batch is measured with 32 images.

    Args:
        geometry: The convolution.
        device: Where it runs; None for this process' CPU, or for its GPU if
            it has one.

    Returns:
        The choice. Direct unless another algorithm was measured to be at
        least 8 % faster on that device, within the workspace that
        `TF_CONVPAR_WORKSPACE_MIB` allows (2048 by default) and with a
        relative error against float64 of at most 1e-4.
    """
    # Eager layers come here at every step.
    found = _choices.get((geometry, device, _settings()))
    if found is None:
        records = consult(geometry, device)
        found = Choice(
            *(named(records[which].chosen, geometry) for which in PASSES)
        )
        _choices[geometry, device, _settings()] = found
    return found


@tf.autograph.experimental.do_not_convert
def consult(
    geometry: Geometry,
    device: str | None = None,
    passes: Sequence[str] = PASSES,
    *,
    refresh: bool = False,
    report: _measure.Report | None = None,
) -> dict[str, Record]:
    """What `choose` goes by, of the passes asked for.

    Args:
        geometry: As for `choose`.
        device: As for `choose`.
        passes: Those wanted.
        refresh: Whether to measure what is known already.
        report: Gets a few words now and then; None for a line on the
            terminal where it takes long.

    Returns:
        A record for each of `passes`.
    """
    geometry = dataclasses.replace(
        geometry, batch=geometry.batch or ASSUMED_BATCH
    )
    name = _device(device)
    rule = _candidates.rule(geometry, name)
    if name is None or rule is not None:
        return {which: Record(DIRECT, rule=rule) for which in passes}
    keys = {which: _key(geometry, which, name) for which in passes}
    with _lock:
        known = {which: _cache.find(key) for which, key in keys.items()}
        records = {w: r for w, r in known.items() if r and not refresh}
        missing = [which for which in passes if which not in records]
        if not missing:
            return records
        if refresh:
            _choices.clear()

        def measure(report: _measure.Report) -> None:
            for which in missing:
                records[which] = _chosen(geometry, which, name, report)
            for which in missing:
                records[which] = _confirmed(
                    records[which], geometry, which, name, report
                )

        if report is not None:
            measure(report)
        else:
            with _measure.StatusLine(describe(geometry)) as line:
                measure(line)
        measured = {keys[which]: records[which] for which in missing}
        # What a rule says costs nothing, and the rule may change.
        _cache.keep({k: r for k, r in measured.items() if r.rule is None})
    return {which: records[which] for which in passes}


def decide(times: Mapping[str, Sequence[float]], margin: float = MARGIN) -> str:
    """The fastest of those that are surely faster than direct, else direct.

    ```python
    decide({"direct": [9, 9, 9], "fft:10": [5, 5, 5]})  # "fft:10"
    decide({"direct": [9, 9, 9], "fft:10": [5, 9, 9]})  # "direct"
    ```

    Args:
        times: Of each algorithm in each round, seconds. Element i is from
            round i, so that times are compared with direct's next to them;
            who has fewer than three rounds was left behind.
        margin: What must be saved of direct's time, a share of it.

    Returns:
        A name. Not direct's only where the median ratio of times is at most
        1 - `margin`, and the upper quartile is below 1.
    """
    surely = {}
    for name, own in times.items():
        if name == DIRECT or len(own) < _measure.FEWEST_ROUNDS:
            continue
        ratio, quartile = _compared(own, times[DIRECT])
        if quartile < 1 and ratio <= 1 - margin:
            surely[name] = _measure.median(own)
    return min(surely, key=surely.__getitem__, default=DIRECT)


def settled(times: Sequence[Sequence[float]]) -> bool:
    """Whether none looks faster than direct, the first, without being sure.

    More rounds may then change what `decide` says.
    """
    direct, *others = times
    compared = [_compared(own, direct) for own in others if own]
    return not any(
        ratio <= 1 - MARGIN and quartile >= 1 for ratio, quartile in compared
    )


def _compared(
    own: Sequence[float], direct: Sequence[float]
) -> tuple[float, float]:
    """Median and upper quartile of the ratios of times."""
    ratios = sorted(paired(own, direct))
    return _measure.median(ratios), ratios[3 * len(ratios) // 4]


def paired(own: Sequence[float], direct: Sequence[float]) -> list[float]:
    """Ratios of times of the same rounds."""
    return [a / b for a, b in zip(own, direct, strict=False)]


def describe(geometry: Geometry) -> str:
    """A convolution in a few words: `"14x14x500 -> 1500, 5x5"`."""
    image = "x".join("?" if n is None else str(n) for n in geometry.image)
    text = f"{image}x{geometry.channels} -> {geometry.filters}, "
    text += "x".join(map(str, geometry.window))
    if geometry.padding == "same":
        text += " same"
    for word, values in (("/", geometry.strides), (" *", geometry.dilation)):
        if set(values) != {1}:
            text += f" {word}" + "x".join(map(str, values))
    return text


_choices: dict[Any, Choice] = {}
# Two threads that measure at once would measure each other.
_lock = threading.RLock()


def _settings() -> tuple[str | None, ...]:
    """What the user may change between two calls."""
    names = (_candidates.WORKSPACE, _cache.FOLDER, "XDG_CACHE_HOME")
    return tuple(os.environ.get(name) for name in names)


def _chosen(
    geometry: Geometry, which: str, device: str, report: _measure.Report
) -> Record:
    direct = named(DIRECT, geometry)
    algorithms = [direct, *_candidates.candidates(geometry, which)]
    if len(algorithms) == 1:
        return Record(DIRECT, rule="no algorithm takes less work")
    candidates = _candidates.screened(algorithms, geometry, which, device)
    racers = [
        algorithm
        for algorithm, candidate in zip(algorithms, candidates, strict=True)
        if candidate.dropped is None
    ]
    if len(racers) == 1:
        return Record(DIRECT, tuple(candidates))
    times = _raced(racers, geometry, which, device, report)
    return Record(decide(times), _with_times(candidates, times))


def _confirmed(
    record: Record,
    geometry: Geometry,
    which: str,
    device: str,
    report: _measure.Report,
) -> Record:
    """The record; one of direct if a winner by little does not win again."""
    shares = {c.name: c.ratio or 0.0 for c in record.candidates}
    if record.chosen == DIRECT or shares[record.chosen] <= _CLEAR:
        return record
    both = [named(name, geometry) for name in (DIRECT, record.chosen)]
    times = _raced(both, geometry, which, device, report)
    # It need not be as lucky as the first time.
    if decide(times, MARGIN / 2) != DIRECT:
        return record
    return Record(DIRECT, _with_times(record.candidates, times))


def _raced(
    algorithms: Sequence[Algorithm],
    geometry: Geometry,
    which: str,
    device: str,
    report: _measure.Report,
) -> dict[str, list[float]]:
    times = _measure.race(
        algorithms,
        geometry,
        which,
        device,
        _BUDGET_S / len(PASSES),
        report,
        settled,
    )
    names = (algorithm.name for algorithm in algorithms)
    return dict(zip(names, times, strict=True))


def _with_times(
    candidates: Sequence[Candidate], times: Mapping[str, Sequence[float]]
) -> tuple[Candidate, ...]:
    return tuple(
        _timed(c, times[c.name], times[DIRECT]) if c.name in times else c
        for c in candidates
    )


def _timed(
    candidate: Candidate, own: Sequence[float], direct: Sequence[float]
) -> Candidate:
    ordered = sorted(own)
    spread = ordered[3 * len(own) // 4] - ordered[len(own) // 4]
    return dataclasses.replace(
        candidate,
        time_ms=_measure.median(own) * 1e3,
        spread_ms=spread * 1e3,
        ratio=_measure.median(paired(own, direct)),
    )


def _device(device: str | None) -> str | None:
    """The full name of a CPU, None where a GPU computes."""
    own = tf.config.list_logical_devices("CPU")[0].name
    if device is None:
        return None if tf.config.list_logical_devices("GPU") else str(own)
    name = device if device.startswith("/") else f"/device:{device.upper()}"
    spec = tf.DeviceSpec.from_string(own).make_merged_spec(
        tf.DeviceSpec.from_string(name)
    )
    return spec.to_string() if spec.device_type == "CPU" else None


def _key(geometry: Geometry, which: str, device: str) -> str:
    """Everything that a measurement depends on, readable."""
    here = tf.DeviceSpec.from_string(
        tf.config.list_logical_devices("CPU")[0].name
    )
    spec = tf.DeviceSpec.from_string(device)
    if _task(spec) == _task(here):
        where = _processor()
        threads = f"{_workspace.threads()} threads"
        vectors = instruction_set() or "twin"
    else:
        # Not its name: another cluster calls another machine so.
        where, vectors, *others = machines.identity(device)
        threads = " ".join(others)
    return " | ".join(
        (
            describe(geometry),
            f"batch {geometry.batch}",
            geometry.dtype,
            which,
            where,
            threads,
            vectors,
            # Off, direct's gradients are three times slower.
            f"oneDNN {os.environ.get('TF_ENABLE_ONEDNN_OPTS', '1')}",
            f"workspace {_candidates.workspace_cap() // 2**20} MiB",
        )
    )


def _task(spec: tf.DeviceSpec) -> tuple[str, int]:
    # Without a cluster a device goes by its short name or by the full one.
    return spec.job or "localhost", spec.task or 0


@functools.cache
def _processor() -> str:
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        lines = ""
    for line in lines.splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()

"""Chooses the algorithm of each pass: by rule where one is sure, else by time.

Each pass of a convolution has a choice of its own, because the same algorithm
may win forward and lose in a gradient. The steps:

1. Rules that need no measurement, all of which say direct (`candidates`).
2. Candidates, by predicted multiplications, workspace and error
   (`candidates`).
3. A race of the remaining ones (`race`), and `decide` (`_decide`).
4. A second race, later, of direct and the winner, if it won by little.
5. The record, kept for later processes (`cache`).
"""

from __future__ import annotations

import bisect
import contextlib
import contextvars
import dataclasses
import os
import threading
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_convpar.algorithms import cache
from tf_convpar.algorithms import candidates
from tf_convpar.algorithms import processor
from tf_convpar.algorithms import race
from tf_convpar.algorithms._algorithm import PASSES
from tf_convpar.algorithms._algorithm import Algorithm
from tf_convpar.algorithms._algorithm import Geometry
from tf_convpar.algorithms._decide import CLEAR
from tf_convpar.algorithms._decide import DIRECT
from tf_convpar.algorithms._decide import MARGIN
from tf_convpar.algorithms._decide import budget_factor
from tf_convpar.algorithms._decide import decide
from tf_convpar.algorithms._decide import round_ratios
from tf_convpar.algorithms._names import Choice
from tf_convpar.algorithms._names import named
from tf_convpar.algorithms._workspace import Processor
from tf_convpar.algorithms.cache import Candidate
from tf_convpar.algorithms.cache import Record
from tf_convpar.units import MIB

# The batch that is assumed where a model is traced for any batch.
ASSUMED_BATCH = 32
# More images than a batch has.
_MOST_IMAGES = 1 << 20
# Seconds for the rounds of all three passes of a convolution.
_BUDGET_S = 0.36


# It may be called while a graph is traced: without this AutoGraph would take it
# for a part of that graph.
@tf.autograph.experimental.do_not_convert
def choose(geometry: Geometry, device: str | None = None) -> Choice:
    """The algorithm for each pass, by measurement the first time.

    ```python
    geometry = Geometry((14, 14), 500, 1500, window=(5, 5), batch=64)
    choice = choose(geometry)  # about a second, or read from the cache
    choice.forward.name  # "winograd:5"
    ```

    May be called while a graph is traced, under tapes and in the scope of any
    strategy. Only as many images of the batch are measured as tell which
    algorithm is fastest (`race_geometry`). An unknown batch counts as 32
    images.

    Args:
        geometry: Shape of the convolution.
        device: Name of the device that it runs on; None for this process' CPU,
            or for its GPU if it has one.

    Returns:
        The algorithm for each pass. It is direct unless another algorithm was
        measured to be at least 8 % faster on that device, within the workspace
        that `TF_CONVPAR_WORKSPACE_MIB` allows (2048 by default) and with a
        relative error against float64 of at most 1e-4.
    """
    # Eager layers come here at every step, so choices are remembered.
    filters = _filters.get() or geometry.filters
    key = geometry, filters, device, _settings()
    choice = _choices.get(key)
    if choice is None:
        layer = dataclasses.replace(geometry, filters=filters)
        records = consult(race_geometry(layer, device), device)
        on = _processor_of(device)
        choice = Choice(
            *(
                _within_memory(records[which], geometry, which, on)
                for which in PASSES
            )
        )
        _choices[key] = choice
    return choice


def largest_batch(
    algorithm: Algorithm, geometry: Geometry, which: str, device: str | None
) -> int | None:
    """The most images of which a pass keeps within the workspace allowed.

    ```python
    largest_batch(choice.forward, geometry, "forward", device)  # 277
    ```

    Args:
        algorithm: The algorithm of the pass.
        geometry: Shape of the convolution; its batch does not matter.
        which: Name of the pass.
        device: Name of the device that it runs on; see `choose`.

    Returns:
        A number of images; None where it keeps within it for any.
    """
    on = _processor_of(device)

    def is_over(batch: int) -> bool:
        return not _is_within_memory(algorithm, geometry, which, on, batch)

    if not is_over(_MOST_IMAGES):
        return None
    return bisect.bisect_left(range(1, _MOST_IMAGES), True, key=is_over)


@contextlib.contextmanager
def as_layer_of(filters: int | None) -> Iterator[None]:
    """A context in which `choose` goes by the race of a larger layer.

    ```python
    with as_layer_of(filters=512):
        choose(Geometry((14, 14), 512, 128, window=(3, 3), batch=8))
    ```

    It is for parts of a layer: the algorithms race once for the layer, and not
    for each part too.

    Args:
        filters: Filters of the layer; with None every convolution goes by its
            own race.
    """
    token = _filters.set(filters)
    try:
        yield
    finally:
        _filters.reset(token)


def race_geometry(geometry: Geometry, device: str | None = None) -> Geometry:
    """The smaller convolution by which algorithms race for this one.

    ```python
    large = Geometry((112, 112), 64, 64, window=(3, 3), batch=64)
    race_geometry(large).batch  # 1
    race_geometry(Geometry((14, 14), 416, 128, batch=64)).channels  # 384
    ```

    It has a part of the batch, and widths that others have too: layers whose
    channels grow little by little, as DenseNet's, share a race.

    Args:
        geometry: Shape of the convolution.
        device: Name of the device that it runs on; see `choose`.
    """
    batch = geometry.batch or ASSUMED_BATCH
    name = processor.cpu(device)
    if name is None or None in geometry.image:
        return geometry
    near_widths = dataclasses.replace(
        geometry,
        channels=candidates.width(geometry.channels),
        filters=candidates.width(geometry.filters),
    )
    images = candidates.images(near_widths, processor.threads(name))
    return dataclasses.replace(near_widths, batch=min(batch, images))


@tf.autograph.experimental.do_not_convert
def consult(
    geometry: Geometry,
    device: str | None = None,
    passes: Sequence[str] = PASSES,
    *,
    refresh: bool = False,
    report: race.Report | None = None,
) -> dict[str, Record]:
    """The records that `choose` goes by; measures those that are missing.

    Args:
        geometry: Shape of the convolution; all images of its batch race.
        device: Name of the device that it runs on; see `choose`.
        passes: Names of the passes wanted.
        refresh: Whether to measure anew where there are records already.
        report: Called with a few words now and then; None for a line on the
            terminal where measuring takes long.

    Returns:
        A record for each of `passes`.
    """
    geometry = dataclasses.replace(
        geometry, batch=geometry.batch or ASSUMED_BATCH
    )
    name = processor.cpu(device)
    rule = candidates.rule(geometry, name)
    if name is None or rule is not None:
        return {which: Record(DIRECT, rule=rule) for which in passes}
    facts = processor.facts(name)
    keys = {which: _key(geometry, which, facts) for which in passes}
    with _lock:
        cached = {which: cache.find(key) for which, key in keys.items()}
        records = {
            which: record
            for which, record in cached.items()
            if record and _is_usable(record, geometry, which) and not refresh
        }
        missing = [which for which in passes if which not in records]
        if not missing:
            return records
        if refresh:
            _choices.clear()

        def measure(report: race.Report) -> None:
            for which in missing:
                records[which] = _race_record(geometry, which, name, report)
            for which in missing:
                records[which] = _confirmed(
                    records[which], geometry, which, name, report
                )

        if report is not None:
            measure(report)
        else:
            with race.StatusLine(describe(geometry)) as line:
                measure(line)
        measured = {keys[which]: records[which] for which in missing}
        # A rule costs nothing, and may change.
        cache.keep({k: r for k, r in measured.items() if r.rule is None})
    return {which: records[which] for which in passes}


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
_filters: contextvars.ContextVar[int | None] = contextvars.ContextVar(
    "filters", default=None
)
# Two threads that measure at once would measure each other.
_lock = threading.RLock()


def _settings() -> tuple[str | None, ...]:
    """Environment variables that the user may change between two calls."""
    names = (candidates.WORKSPACE, cache.FOLDER, "XDG_CACHE_HOME")
    return tuple(os.environ.get(name) for name in names)


def _processor_of(device: str | None) -> Processor | None:
    name = processor.cpu(device)
    return None if name is None else processor.processor_of(name)


def _is_usable(record: Record, geometry: Geometry, which: str) -> bool:
    """Whether a record's algorithms exist, and the chosen one does this pass.

    The file may be edited, or of a version with other algorithms.
    """
    try:
        for candidate in record.candidates:
            named(candidate.name, geometry)
        chosen = named(record.chosen, geometry)
    except ValueError:
        return False
    return chosen.refuses(geometry, which) is None


def _race_record(
    geometry: Geometry, which: str, device: str, report: race.Report
) -> Record:
    direct = named(DIRECT, geometry)
    algorithms = [direct, *candidates.candidates(geometry, which)]
    if len(algorithms) == 1:
        return Record(DIRECT, rule="no algorithm takes less work")
    screened = candidates.screened(algorithms, geometry, which, device)
    racers = [
        algorithm
        for algorithm, candidate in zip(algorithms, screened, strict=True)
        if candidate.dropped is None
    ]
    if len(racers) == 1:
        return Record(DIRECT, tuple(screened))
    times = _race_times(racers, geometry, which, device, report)
    return Record(decide(times), _with_times(screened, times))


def _confirmed(
    record: Record,
    geometry: Geometry,
    which: str,
    device: str,
    report: race.Report,
) -> Record:
    """The record; one of direct if a narrow winner does not win again."""
    shares = {c.name: c.ratio or 0.0 for c in record.candidates}
    if record.chosen == DIRECT or shares[record.chosen] <= CLEAR:
        return record
    finalists = [named(name, geometry) for name in (DIRECT, record.chosen)]
    times = _race_times(finalists, geometry, which, device, report)
    # The winner need not be as lucky as the first time.
    if decide(times, MARGIN / 2) != DIRECT:
        return record
    return Record(DIRECT, _with_times(record.candidates, times))


def _race_times(
    algorithms: Sequence[Algorithm],
    geometry: Geometry,
    which: str,
    device: str,
    report: race.Report,
) -> dict[str, list[float]]:
    times = race.race(
        algorithms,
        geometry,
        which,
        device,
        _BUDGET_S / len(PASSES),
        report,
        budget_factor,
    )
    names = (algorithm.name for algorithm in algorithms)
    return dict(zip(names, times, strict=True))


def _with_times(
    screened: Sequence[Candidate], times: Mapping[str, Sequence[float]]
) -> tuple[Candidate, ...]:
    return tuple(
        _timed(c, times[c.name], times[DIRECT]) if c.name in times else c
        for c in screened
    )


def _within_memory(
    record: Record, geometry: Geometry, which: str, on: Processor | None
) -> Algorithm:
    """The algorithm chosen; direct if it needs too much memory for the batch.

    The race may have been with a part of the batch.
    """
    chosen = named(record.chosen, geometry)
    batch = geometry.batch or ASSUMED_BATCH
    if _is_within_memory(chosen, geometry, which, on, batch):
        return chosen
    return named(DIRECT, geometry)


def _is_within_memory(
    algorithm: Algorithm,
    geometry: Geometry,
    which: str,
    on: Processor | None,
    batch: int,
) -> bool:
    whole_batch = dataclasses.replace(geometry, batch=batch)
    workspace = algorithm.workspace(whole_batch, which, on)
    return workspace <= candidates.workspace_cap()


def _timed(
    candidate: Candidate, times: Sequence[float], direct: Sequence[float]
) -> Candidate:
    ordered = sorted(times)
    spread = ordered[3 * len(times) // 4] - ordered[len(times) // 4]
    return dataclasses.replace(
        candidate,
        time_ms=race.median(times) * 1e3,
        spread_ms=spread * 1e3,
        ratio=race.median(round_ratios(times, direct)),
    )


def _key(geometry: Geometry, which: str, facts: Sequence[str]) -> str:
    """A readable key with everything that a measurement depends on."""
    return " | ".join(
        (
            describe(geometry),
            f"batch {geometry.batch}",
            geometry.dtype,
            which,
            *facts,
            # Without oneDNN direct's gradients are three times slower.
            f"oneDNN {os.environ.get('TF_ENABLE_ONEDNN_OPTS', '1')}",
            f"workspace {candidates.workspace_cap() // MIB} MiB",
        )
    )

"""Cuts of the work: shares of samples and counts of filters that balance."""

from __future__ import annotations

import collections
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Sequence

from tf_convpar.planner import work_keys
from tf_convpar.planner._calibration import PASSES
from tf_convpar.planner._calibration import Calibration
from tf_convpar.planner._calibration import Work
from tf_convpar.planner._replica_times import weights_of
from tf_convpar.planner.call_ways import DEFAULTS
from tf_convpar.planner.call_ways import Cut
from tf_convpar.planner.call_ways import Settings
from tf_convpar.planner.call_ways import filters_of
from tf_convpar.sharding import Call
from tf_convpar.sharding import Graph

# Kernels that fill a vector: with fewer, some of its lanes are idle.
_QUANTUM = 8
# Parts into which things are cut at most, however many there are.
_PARTS = 4096


def cuts(
    graph: Graph,
    calibration: Calibration,
    settings: Settings = DEFAULTS,
) -> Iterator[Cut]:
    """Cuts to try: the fastest device alone, the two fastest, and so on.

    ```python
    next(cuts(graph, calibration)).shares  # (64, 0): one device alone
    ```

    Each cut balances its devices: by samples over all layers, and by filters
    over the layers with the same number of filters.
    """
    names = tuple(device.name for device in calibration.devices)
    seconds = alone(graph, calibration)
    order = sorted(range(len(names)), key=lambda d: seconds[names[d]])
    for number in range(1, len(names) + 1):
        chosen = set(order[:number])
        shares = _shares(graph, calibration, chosen)
        counts = _counts(graph, calibration, chosen)
        yield Cut(names, calibration.batch, shares, counts, settings)


def unsplit(
    graph: Graph, calibration: Calibration, settings: Settings = DEFAULTS
) -> Cut:
    """The cut that leaves all work on the chief."""
    names = tuple(device.name for device in calibration.devices)
    rest = (0,) * (len(names) - 1)
    numbers = {filters_of(graph, call) for call in graph.convolutions}
    return Cut(
        names,
        calibration.batch,
        (calibration.batch, *rest),
        {filters: (filters, *rest) for filters in numbers},
        settings,
    )


def alone(
    graph: Graph, calibration: Calibration, without: Collection[str] = ()
) -> dict[str, float]:
    """Seconds of a step on each device alone, by the device's name.

    Calls of the layers `without` are left out.
    """
    calls = [
        call
        for call in graph.calls
        if call.layer is not None and call.name not in without
    ]
    weights = sum(weights_of(calls))
    return {
        device.name: weights * device.update_s
        + sum(
            device.works[work_keys.key(graph, call)].at(
                which, calibration.batch, on_shards=False
            )
            for call in calls
            for which in PASSES
        )
        for device in calibration.devices
    }


def _shares(
    graph: Graph, calibration: Calibration, chosen: set[int]
) -> tuple[int, ...]:
    calls = [call for call in graph.calls if call.layer is not None]

    def seconds(d: int) -> Callable[[int], float]:
        works = _works_of(graph, calibration, d, calls)
        return lambda n: sum(
            work.at(which, n) for work in works for which in PASSES
        )

    return balanced(
        calibration.batch,
        [
            seconds(d) if d in chosen else None
            for d in range(len(calibration.devices))
        ],
    )


def _counts(
    graph: Graph, calibration: Calibration, chosen: set[int]
) -> dict[int, tuple[int, ...]]:
    by_filters: dict[int, list[Call]] = collections.defaultdict(list)
    for call in graph.calls:
        if call.splits:
            by_filters[filters_of(graph, call)].append(call)

    def seconds(
        d: int, calls: Sequence[Call], all_: int
    ) -> Callable[[int], float]:
        works = _works_of(graph, calibration, d, calls)
        return lambda n: sum(
            work.at(which, calibration.batch, n / all_)
            for work in works
            for which in PASSES
        )

    return {
        filters: balanced(
            filters,
            [
                seconds(d, calls, filters) if d in chosen else None
                for d in range(len(calibration.devices))
            ],
            quantum=_QUANTUM if filters >= 4 * _QUANTUM * len(chosen) else 1,
        )
        for filters, calls in by_filters.items()
    }


def _works_of(
    graph: Graph, calibration: Calibration, d: int, calls: Sequence[Call]
) -> list[Work]:
    works = calibration.devices[d].works
    return [works[work_keys.key(graph, call)] for call in calls]


def balanced(
    number: int,
    seconds: Sequence[Callable[[int], float] | None],
    quantum: int = 1,
) -> tuple[int, ...]:
    """Distributes items so that the last device finishes as soon as possible.

    ```python
    balanced(12, [lambda n: 1.0 * n, lambda n: 2.0 * n])  # (8, 4)
    ```

    Args:
        number: Number of things.
        seconds: For each device, its seconds for a number of things, which
            grow with that; None for a device that gets none.
        quantum: Number of things that stay together, except for a remainder;
            more where there are many.
    """
    quantum = max(quantum, number // _PARTS)
    units = -(-number // quantum)

    def things(count: int) -> int:
        return min(count * quantum, number)

    unit_counts = [0] * len(seconds)
    with_one_more = {
        d: time(things(1)) for d, time in enumerate(seconds) if time is not None
    }
    for _ in range(units):
        # One more goes to the device that finishes it first.
        first = min(with_one_more, key=with_one_more.__getitem__)
        unit_counts[first] += 1
        time = seconds[first]
        assert time is not None
        with_one_more[first] = time(things(unit_counts[first] + 1))
    counts = [count * quantum for count in unit_counts]
    largest = max(range(len(counts)), key=counts.__getitem__)
    counts[largest] -= sum(counts) - number
    return tuple(counts)

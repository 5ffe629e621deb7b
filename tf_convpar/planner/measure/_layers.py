"""Measures how long a device takes for the layers of a model."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tf_convpar.placement import device_type
from tf_convpar.planner import work_keys
from tf_convpar.planner._calibration import Work
from tf_convpar.planner.call_ways import has_filters
from tf_convpar.planner.measure._clocked_layers import VALUE
from tf_convpar.planner.measure._clocked_layers import ClockedLayers
from tf_convpar.planner.measure._clocked_layers import rule_of
from tf_convpar.planner.measure.clock import seconds_of
from tf_convpar.planner.measure.clock import settle
from tf_convpar.sharding import Call
from tf_convpar.sharding import Graph

# Fractions of a layer's filters that are measured, besides 1.
PARTS = (0.25, 0.5)
# Seconds that one run of all layers may take. A run is repeated for a quarter
# of the second number.
_RUN_S = 5.0
_RUNS_S = 4.0
# Numbers of samples from which the time of more is estimated.
_FIRST = (2, 4)
_MOST_RUNS = 7


class Works:
    """Measures the layers of a model on devices of one type.

    ```python
    Works(graph).on("/device:CPU:0", batch=32)
    ```

    Args:
        graph: Graph of the model.
        device: Name of one of the devices that will be measured.
        algorithm: Algorithm of all convolutions; None for their own.
    """

    def __init__(
        self,
        graph: Graph,
        device: str = "/device:CPU:0",
        algorithm: str | None = None,
    ) -> None:
        clocked = ClockedLayers(device, algorithm)
        self._calls: dict[str, Call] = {}
        for call in graph.calls:
            if call.layer is not None:
                self._calls.setdefault(work_keys.key(graph, call), call)
        self._cut = [k for k, c in self._calls.items() if has_filters(c)]
        self._whole = clocked.traced([(c, 1.0) for c in self._calls.values()])
        self._shard_keys = [
            k for k, c in self._calls.items() if rule_of(c) is not None
        ]
        self._on_shards = clocked.traced(
            [(self._calls[k], 1.0) for k in self._shard_keys], on_shards=True
        )
        self._parts = [
            clocked.traced([(self._calls[k], part) for k in self._cut])
            for part in PARTS
        ]

    def on(
        self,
        device: str,
        batch: int,
        report: Callable[[str], None] = lambda name: None,
        *,
        curves: bool = True,
    ) -> dict[str, Work]:
        """The times of all layers on a device, by their keys.

        Args:
            device: Name of the device.
            batch: Samples of a step; no more are measured.
            report: Function that is called with the name of what is measured
                next.
            curves: Whether to measure fewer samples, parts of the filters, and
                layers as on shards, besides whole layers and the most samples.
        """
        most = self._most(device, batch, report)
        points = [most]
        if curves:
            points = sorted({max(1, most // 4), max(1, most // 2), most})
        times = {}
        for n in points:
            report(f"{device}: all layers, {n} samples")
            times[n] = self._medians(self._whole, device, n)
        parts = []
        cut = self._cut if curves else []
        shard_keys = self._shard_keys if curves else []
        for part, function in zip(PARTS, self._parts, strict=True):
            if cut:
                report(f"{device}: {part:.0%} of the filters")
                parts.append(self._medians(function, device, most))
        if shard_keys:
            report(f"{device}: on shards")
            shard_rows = self._medians(self._on_shards, device, most)
        works = {}
        for i, key in enumerate(self._calls):
            rows = np.array([times[n][i] for n in points])
            rows = np.maximum(rows, 1e-7)
            work = Work(
                tuple(points),
                tuple(map(float, rows[:, 0])),
                tuple(map(float, rows[:, 1])),
            )
            if key in cut:
                place = cut.index(key)
                ratios = np.array([p[place] for p in parts]) / rows[-1]
                work = Work(
                    work.samples,
                    work.forward,
                    work.backward,
                    (*PARTS, 1.0),
                    (*map(float, ratios[:, 0]), 1.0),
                    (*map(float, ratios[:, 1]), 1.0),
                )
            if key in shard_keys:
                ratios = shard_rows[shard_keys.index(key)] / rows[-1]
                work = dataclasses.replace(
                    work, on_shards=tuple(map(float, ratios))
                )
            works[key] = work
        return works

    def _most(
        self, device: str, batch: int, report: Callable[[str], None]
    ) -> int:
        """Number of samples that take about `_RUN_S`, at most the batch."""
        few, more = (min(n, batch) for n in _FIRST)
        # The first run allocates memory, and makes what layers keep.
        report(f"{device}: all layers, {few} samples")
        self._run(self._whole, device, few)
        if device_type(device) != "CPU":
            settle(lambda: self._run(self._whole, device, few))
        less = seconds_of(lambda: self._run(self._whole, device, few))
        if more == few or less > _RUN_S:
            return few
        report(f"{device}: all layers, {more} samples")
        seconds = seconds_of(lambda: self._run(self._whole, device, more))
        each = max(seconds - less, 1e-6) / (more - few)
        return max(more, min(batch, int(more + (_RUN_S - seconds) / each)))

    def _medians(self, function: Any, device: str, samples: int) -> np.ndarray:
        """Seconds forward and backward, a row for each layer.

        They are medians, or the minimum if there is time for two runs only.
        """
        runs: list[np.ndarray] = []
        begin = time.perf_counter()
        while len(runs) < 2 or (
            len(runs) < _MOST_RUNS and time.perf_counter() - begin < _RUNS_S / 4
        ):
            runs.append(self._run(function, device, samples))
        if len(runs) == 2:
            return np.minimum(*runs)
        return np.median(runs, axis=0)

    def _run(self, function: Any, device: str, samples: int) -> np.ndarray:
        with tf.device(device):
            stamps, _ = function(tf.constant(samples), tf.constant(VALUE))
        stamps = stamps.numpy()
        return np.stack(
            [stamps[:, 1] - stamps[:, 0], stamps[:, 3] - stamps[:, 2]], axis=1
        )

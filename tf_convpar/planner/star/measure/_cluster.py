"""Measures all of a cluster, for some convolutions."""

from __future__ import annotations

import dataclasses
import datetime
import math
import os
import warnings
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_convpar import algorithms
from tf_convpar import machines
from tf_convpar.algorithms import PASSES
from tf_convpar.planner._link import Link
from tf_convpar.planner.measure import _links
from tf_convpar.planner.measure import _updates
from tf_convpar.planner.measure._clock import Clock
from tf_convpar.planner.star._calibration import StarCalibration
from tf_convpar.planner.star._calibration import StarDevice
from tf_convpar.planner.star._calibration import Times
from tf_convpar.planner.star._calibration import proportional
from tf_convpar.planner.star._network import Network
from tf_convpar.planner.star.measure import _convolutions
from tf_convpar.planner.star.measure._convolutions import ConvolutionWork

# Part of a device's free memory that convolutions may take: the rest of the
# network needs some.
_MEMORY_SHARE = 0.8


@dataclasses.dataclass(frozen=True)
class Subject:
    """What is measured.

    Attributes:
        network: Network, as the planner sees it.
        works: Convolutions of the network, as devices compute them.
        optimizer: Keras optimizer that updates the kernels.
        rest: Function that measures the seconds of the rest of a step, on the
            chief.
    """

    network: Network
    works: tuple[ConvolutionWork, ...]
    optimizer: Any
    rest: Callable[[Clock], float] = lambda clock: 0.0

    def key(self, devices: Sequence[str]) -> tuple[Any, ...]:
        """Everything that the subject's calibration depends on."""
        config: dict[str, Any] = getattr(self.optimizer, "get_config", dict)()
        return (
            self.network,
            [(work.geometry, work.algorithm) for work in self.works],
            type(self.optimizer).__name__,
            sorted((k, v) for k, v in config.items() if isinstance(v, bool)),
            [(device, machines.identity(device)) for device in devices],
            _addresses(),
            algorithms.threads(),
            _versions(),
        )


def _addresses() -> Any:
    """The cluster in scope, as two clusters may name their devices alike."""
    strategy = tf.distribute.get_strategy()
    return getattr(strategy, "cluster", None)


def measure_cluster(
    subject: Subject,
    devices: Sequence[str],
    *,
    quantum: int | None = None,
    rates: Sequence[float] | None = None,
    links: Sequence[Link] | None = None,
    report: Callable[[str], None] = lambda name: None,
) -> StarCalibration:
    """Measures the calibration of a subject.

    Args:
        subject: What is measured.
        devices: Names of the devices, the chief's first.
        quantum: Number of kernels that plans keep together; None to measure
            it.
        rates: Floating point operations per second of each device, in place
            of measured times.
        links: Links that are already known, in place of measured ones.
        report: Function that is called with the name of what is measured next.
    """
    clock = Clock(report=report)
    chief, *others = devices
    rest = subject.rest(clock)
    if rates is None:
        times, quantum = _measured(subject, devices, quantum, clock)
    else:
        times = [_given(subject, rate) for rate in rates]
    found = []
    for name, own in zip(devices, times, strict=True):
        memory = machines.memory_bytes(name)
        found.append(
            StarDevice(
                name,
                own,
                update_s=_updates.update_s(subject.optimizer, name, clock),
                memory_bytes=memory and int(_MEMORY_SHARE * memory),
            )
        )
    if links is None:
        links = [
            _links.measure_link(source, target, clock)
            for source in devices
            for target in devices
            if source != target
        ]
    rate = min((link.bytes_per_s for link in links), default=math.inf)
    calibration = StarCalibration(
        subject.network,
        tuple(found),
        tuple(links),
        rest_s=rest,
        join_s=_links.join_s(chief, clock) if others else 0.0,
        transfer_s=_links.transfer_s(chief, others, clock, rate),
        quantum=quantum or 1,
        facts=_facts(devices, clock),
    )
    _warn(clock)
    return calibration


def _measured(
    subject: Subject,
    devices: Sequence[str],
    quantum: int | None,
    clock: Clock,
) -> tuple[list[dict[str, Times]], int]:
    """The times on each device, and the quantum on the chief's."""
    times = []
    for name in devices:
        runs = len(PASSES) * _convolutions.WIDTHS * len(subject.works)
        on_device = _convolutions.Convolutions(name, clock, runs)
        if quantum is None:
            largest = max(
                subject.works, key=lambda work: work.geometry.multiplications
            )
            quantum = _convolutions.quantum_of(largest, on_device)
        times.append(
            {
                work.name: on_device.times(
                    work,
                    _convolutions.widths_of(work.geometry.filters, quantum),
                )
                for work in subject.works
            }
        )
    return times, quantum or 1


def _given(subject: Subject, rate: float) -> dict[str, Times]:
    network = subject.network
    return {
        convolution.name: proportional(convolution, network.batch, rate)
        for convolution in network
    }


def _warn(clock: Clock) -> None:
    if not clock.wide:
        return
    worst = max(clock.wide, key=clock.wide.__getitem__)
    warnings.warn(
        f"{len(clock.wide)} measurements stayed unsteady after three tries, "
        f"most of all '{worst}', whose quartiles are {clock.wide[worst]:.0%} "
        "apart: other programs seem to work on these machines. Calibrate "
        "again when they do not.",
        RuntimeWarning,
        stacklevel=4,
    )


def _facts(devices: Sequence[str], clock: Clock) -> dict[str, str]:
    now = datetime.datetime.now(datetime.timezone.utc)
    return {
        **_versions(),
        "processors": "; ".join(map(machines.model, devices)),
        "threads of the chief": str(algorithms.threads()),
        "measured": now.strftime("%F %T UTC"),
        "measured again": str(clock.again),
        "unsteady": ", ".join(clock.wide) or "none",
    }


def _versions() -> dict[str, str]:
    return {
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "oneDNN": os.environ.get("TF_ENABLE_ONEDNN_OPTS", "1"),
    }

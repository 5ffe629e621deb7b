"""Checks for common faults of machines and links, with their cures.

Workers are asked through their own server: it reads files of /proc for whoever
may run operations there. So nothing is installed for it, and workers of other
versions answer too.
"""

from __future__ import annotations

import dataclasses
import os
import re
import time
from collections.abc import Iterator
from collections.abc import Sequence

import tensorflow as tf

from tf_convpar import machines
from tf_convpar import ops
from tf_convpar.machines import short
from tf_convpar.planner.measure import Clock
from tf_convpar.planner.measure import measure_link

# A 1 Gbit/s link carries 118 MB/s, and 100 Mbit/s 12.
SLOW_BYTES_S = 50e6
# Within one network a message takes less than a millisecond.
SLOW_LATENCY_S = 5e-3
# Steps take some hundred milliseconds, and timelines compare several tasks.
CLOCKS_APART_S = 0.05
_ASKED = 8
_ONEDNN = "TF_ENABLE_ONEDNN_OPTS"
_THREADS = "TF_NUM_INTRAOP_THREADS"
_PACKAGES = ("tensorflow", "tensorflow_cpu", "keras", "tf_convpar")


@dataclasses.dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        where: The task, or the two of a link.
        check: Name of the check.
        well: Whether it is as it should be.
        says: What was found and, if it is not well, what to do.
    """

    where: str
    check: str
    well: bool
    says: str


def of_device(device: str, where: str) -> Iterator[Finding]:
    """Looks at the process of a device, here or on another task."""
    yield _onednn(device, where)
    yield _threads(device, where)


def of_ops(where: str) -> Finding:
    """Whether this process has the compiled operations."""
    report = ops.build_report()
    return Finding(where, "ops", report.in_use, report.verdict)


def of_worker(device: str, chief: str, where: str) -> Iterator[Finding]:
    """Looks at a worker, as its chief sees it."""
    yield from of_device(device, where)
    loaded = "_convpar_ops.so" in machines.maps(device)
    yield Finding(
        where,
        "ops",
        loaded,
        "The compiled ops are in use."
        if loaded
        else "The slower ops in pure TensorFlow serve there. Run `convpar "
        "check-build` on that machine, which says why.",
    )
    yield _versions(device, chief, where)
    yield _clock(device, where)


def of_link(source: str, target: str, clock: Clock) -> Finding:
    """Measures one direction of a link."""
    where = f"{short(source)} -> {short(target)}"
    link = measure_link(source, target, clock)
    rate, latency = link.bytes_per_s, link.latency_s
    text = f"{rate / 1e6:.0f} MB/s, {1e3 * latency:.2f} ms a message."
    slow = []
    if rate < SLOW_BYTES_S:
        slow.append(
            "A 1 Gbit/s link carries 118 MB/s: look at cable, switch and what "
            "`ethtool` says of the interface, or use wired instead of "
            'wireless; wire_dtype="bfloat16" halves the bytes'
        )
    if latency > SLOW_LATENCY_S:
        slow.append(
            "Within a network a message takes less than 1 ms: are the machines "
            "in one, without a tunnel?"
        )
    return Finding(where, "link", not slow, " ".join((text, *slow)))


def _onednn(device: str, where: str) -> Finding:
    off = machines.environment(device).get(_ONEDNN) == "0"
    return Finding(
        where,
        "onednn",
        not off,
        f"{_ONEDNN}=0 turns oneDNN off, without which the gradients of "
        "convolutions take several times as long: unset it there, and start "
        "the process again."
        if off
        else "oneDNN is on.",
    )


def _threads(device: str, where: str) -> Finding:
    cores = machines.cores(device)
    set_to = machines.environment(device).get(_THREADS, "")
    threads = int(set_to) if set_to.isdecimal() else 0
    threads = threads or machines.threads(device)
    if threads > 1 or cores < 2:
        says = f"{threads} thread{'s' * (threads > 1)} on {cores} cores."
        return Finding(where, "threads", True, says)
    cause = (
        f"{_THREADS}={set_to}" if set_to == "1" else "--threads 1 or `taskset`"
    )
    return Finding(
        where,
        "threads",
        False,
        f"1 thread on a machine of {cores} cores, by {cause}: leave that out "
        "to use them all, unless other tasks of the cluster run there too.",
    )


def _versions(device: str, chief: str, where: str) -> Finding:
    there, here = _installed(device), _installed(chief)
    differ = [
        f"{name} {there[name]}, and {here[name]} on the chief"
        for name in here
        if name in there and there[name] != here[name]
    ]
    if not there:
        return Finding(
            where, "versions", True, "Which packages it has is not known."
        )
    return Finding(
        where,
        "versions",
        not differ,
        f"It has {'; '.join(differ)}: install the same on both."
        if differ
        else ", ".join(f"{k} {v}" for k, v in there.items()) + ", as here.",
    )


def _installed(device: str) -> dict[str, str]:
    """Versions of packages beside the TensorFlow of a device's process."""
    match = re.search(
        r"(/\S+)/tensorflow/libtensorflow_\w+\.so", machines.maps(device)
    )
    if match is None:
        return {}
    with tf.device(device):
        files = tf.raw_ops.MatchingFiles(
            pattern=os.path.join(match[1], "*.dist-info")
        ).numpy()
    versions = {}
    for file in files:
        name = os.path.basename(file.decode())
        package, _, version = name.removesuffix(".dist-info").partition("-")
        if package in _PACKAGES:
            versions[package.removesuffix("_cpu")] = version
    return versions


def _clock(device: str, where: str) -> Finding:
    """Compares clocks by the fastest answer, which errs least."""
    best = (float("inf"), 0.0)
    for _ in range(_ASKED):
        begin = time.time()
        with tf.device(device):
            task_time = float(tf.timestamp().numpy())
        end = time.time()
        best = min(best, (end - begin, task_time - (begin + end) / 2))
    round_trip, offset = best
    if abs(offset) <= CLOCKS_APART_S + round_trip / 2:
        within_ms = 1e3 * (abs(offset) + round_trip / 2)
        says = f"Its clock is within {within_ms:.0f} ms."
        return Finding(where, "clock", True, says)
    return Finding(
        where,
        "clock",
        False,
        f"Its clock is {abs(offset):.2f} s "
        f"{'ahead' if offset > 0 else 'behind'}, so timelines of several "
        "tasks are wrong: let both machines keep time over the "
        "network (`timedatectl set-ntp true`, or chrony).",
    )


def by_task(devices: Sequence[str]) -> dict[tuple[str, int], str]:
    """One CPU of each task, by its job and number."""
    return {
        machines.task_of(name): name
        for name in reversed(devices)
        if machines.kind_of(name) == "CPU"
    }

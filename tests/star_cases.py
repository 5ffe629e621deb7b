"""Calibrations for tests of the star."""

import dataclasses
import itertools
import random

import numpy as np

from tf_convpar.planner import Link
from tf_convpar.planner import star
from tf_convpar.planner.star import Network
from tf_convpar.planner.star import StarCalibration
from tf_convpar.planner.star import StarConvolution
from tf_convpar.planner.star import StarDevice
from tf_convpar.planner.star import Times

CHIEF = "/job:chief/replica:0/task:0/device:CPU:0"


def device_name(index):
    """The chief's, and those of workers."""
    if index == 0:
        return CHIEF
    return f"/job:worker/replica:0/task:{index - 1}/device:CPU:0"


def network(kernels=(500, 1500), batch=64):
    """Two convolutions of 5x5 with poolings, as in the first paper."""
    first, second = kernels
    return Network(
        (
            StarConvolution(
                "conv2d",
                (32, 32),
                (28, 28),
                3,
                first,
                (5, 5),
                input_gradient=False,
            ),
            StarConvolution(
                "conv2d_1", (14, 14), (10, 10), first, second, (5, 5)
            ),
        ),
        batch,
    )


def star_links(devices, rate, latency=1e-4):
    """Equal links between the chief and the others."""
    others = [device.name for device in devices[1:]]
    chief = devices[0].name
    return tuple(
        Link(*ends, rate, latency)
        for other in others
        for ends in ((chief, other), (other, chief))
    )


def times_of(convolution, batch, flops, start=0.0, points=6):
    """Proportional to the work, and something before the first kernel."""
    widths = sorted(
        {
            max(1, round(convolution.filters * i / points))
            for i in range(1, points + 1)
        }
    )
    seconds = tuple(
        start + 2 * convolution.multiplications(batch, width) / flops
        for width in widths
    )
    return Times(tuple(widths), seconds, seconds, seconds)


def cluster(
    flops, *, rate=1.25e8, layers=None, start=0.0, points=6, **settings
):
    """A calibration of devices that compute at these rates."""
    layers = layers or network()
    devices = tuple(
        StarDevice(
            device_name(d),
            {
                c.name: times_of(c, layers.batch, speed, start, points)
                for c in layers
            },
            update_s=1e-10,
        )
        for d, speed in enumerate(flops)
    )
    settings = {"rest_s": 0.05, "join_s": 1e-10, "transfer_s": 2e-10} | settings
    return StarCalibration(
        layers, devices, star_links(devices, rate), **settings
    )


def random_calibration(seed, devices=None, layers=None, most_filters=12):
    """Anything that a calibration can be, for few kernels."""
    dice = random.Random(seed)
    count = devices or dice.randint(1, 4)
    convolutions = tuple(
        random_convolution(dice, f"layer{i}", most_filters)
        for i in range(layers or dice.randint(1, 3))
    )
    names = [device_name(d) for d in range(count)]
    found = [
        StarDevice(
            name,
            {c.name: random_times(dice, c.filters) for c in convolutions},
            update_s=dice.choice([0.0, 1e-6, 1e-3]),
        )
        for name in names
    ]
    rates = dice.choice([[1e4], [1e3, 1e5], [1.0, 1e4], [float("inf"), 1e4]])
    links = [
        Link(*ends, dice.choice(rates), dice.choice([0.0, 1e-3, 0.1]))
        for other in names[1:]
        for ends in ((names[0], other), (other, names[0]))
    ]
    if count > 2 and dice.random() < 0.6:  # Two that are equal, or nearly.
        found[2] = dataclasses.replace(
            found[1],
            name=names[2],
            update_s=found[1].update_s * dice.choice([1, 1, 0.5, 20]),
        )
        links[2:4] = [
            dataclasses.replace(
                link,
                latency_s=link.latency_s * dice.choice([1, 1, 1, 0, 30]),
                bytes_per_s=link.bytes_per_s * dice.choice([1, 1, 1, 0.1, 10]),
                **{end: names[2]},
            )
            for link, end in zip(links[:2], ("target", "source"), strict=True)
        ]
    return StarCalibration(
        Network(convolutions, dice.randint(1, 3), dice.choice([2, 4])),
        tuple(found),
        tuple(links),
        rest_s=dice.choice([0.0, 0.5]),
        join_s=dice.choice([0.0, 1e-5, 1e-3]),
        transfer_s=dice.choice([0.0, 1e-5, 1e-3]),
        quantum=dice.choice([1, 1, 2, 3, 4]),
    )


def random_convolution(dice, name, most_filters):
    return StarConvolution(
        name,
        (dice.randint(1, 4),),
        (dice.randint(1, 4),),
        dice.randint(1, 3),
        dice.randint(1, most_filters),
        (dice.randint(1, 3),),
        bias=dice.random() < 0.5,
        input_gradient=dice.random() < 0.7,
    )


def random_times(dice, filters):
    count = dice.randint(1, 5)
    widths = sorted(dice.sample(range(1, max(filters, count) + 3), count))
    speed = 10 ** dice.uniform(-2, 0)
    kind = dice.choice(["line", "noise", "stairs", "rising", "zero", "slow"])

    def one(width):
        noise = dice.uniform(0.3, 1.7)
        return {
            "line": speed * width,
            "noise": speed * filters * noise,
            "stairs": speed * (-(-width // 4)),
            "rising": speed * (width + 2),
            "zero": 0.0,
            "slow": 50 * speed * width * noise,
        }[kind]

    return Times(
        tuple(widths),
        *(tuple(one(width) for width in widths) for _ in range(3)),
    )


def possible(filters, devices, quantum):
    """All ways to give out units, the last one short of what is missing."""
    units = -(-filters // quantum)
    short = units * quantum - filters
    found = []
    for cuts in itertools.combinations_with_replacement(
        range(units + 1), devices - 1
    ):
        ends = (0, *cuts, units)
        counts = [quantum * (b - a) for a, b in itertools.pairwise(ends)]
        for d in range(devices if short else 1):
            if not short:
                found.append(tuple(counts))
            elif counts[d]:
                found.append(
                    tuple(n - short * (i == d) for i, n in enumerate(counts))
                )
    return found


def shortest(calibration, quantum=None):
    """The shortest step of all allocations that fit, None if none do."""
    quantum = quantum or calibration.quantum
    devices = len(calibration.devices)
    caps = np.array(
        [
            np.inf if d.memory_bytes is None else d.memory_bytes
            for d in calibration.devices
        ]
    )
    seconds, needed = np.zeros(1), np.zeros((1, devices))
    for c in calibration.network:
        alone = dataclasses.replace(
            calibration,
            network=dataclasses.replace(calibration.network, convolutions=(c,)),
            rest_s=0.0,
        )
        ways = possible(c.filters, devices, quantum)
        own = [star.predict(alone, {c.name: way}).step_s for way in ways]
        memory = np.array(
            [
                [star.memory_bytes(calibration, c, n) for n in way]
                for way in ways
            ]
        )
        if np.isinf(caps).all():  # Then each layer is alone.
            own, memory = [min(own)], np.zeros((1, devices))
        seconds = np.add.outer(seconds, own).ravel()
        needed = (needed[:, None] + memory[None]).reshape(-1, devices)
        fits = (needed <= caps).all(axis=1)
        seconds, needed = seconds[fits], needed[fits]
    if not len(seconds):
        return None
    return calibration.rest_s + float(seconds.min())

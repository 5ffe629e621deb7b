"""The time of a step, against one that was worked out by hand."""

import pytest
from star_cases import device_name

from tf_convpar.planner import Link
from tf_convpar.planner import star
from tf_convpar.planner.star import Network
from tf_convpar.planner.star import StarCalibration
from tf_convpar.planner.star import StarConvolution
from tf_convpar.planner.star import StarDevice
from tf_convpar.planner.star import Times

CHIEF, A, B = map(device_name, range(3))
# In numbers: inputs 24 and 36, feature maps of a kernel 6 and 4, parameters
# of a kernel 7 and 6.
ONE = StarConvolution("one", (4,), (3,), 3, 6, (2,), input_gradient=False)
TWO = StarConvolution("two", (3,), (2,), 6, 4, (2,), groups=2, bias=False)


def calibration():
    """No two numbers alike that could be taken for each other."""

    def device(name, forward, input_gradient, kernel_gradient, update):
        times = {
            layer.name: Times(
                (layer.filters,),
                (forward * layer.filters,),
                (input_gradient * layer.filters,),
                (kernel_gradient * layer.filters,),
            )
            for layer in (ONE, TWO)
        }
        return StarDevice(name, times, update)

    return StarCalibration(
        Network((ONE, TWO), batch=2, wire_bytes=2, slots=1),
        (
            device(CHIEF, 0.1, 0.2, 0.3, 0.01),
            device(A, 0.2, 0.3, 0.4, 0.02),
            device(B, 0.5, 0.6, 0.7, 0.03),
        ),
        (
            Link(CHIEF, A, 100.0, 0.1),
            Link(A, CHIEF, 50.0, 0.2),
            Link(CHIEF, B, 20.0, 0.3),
            Link(B, CHIEF, 200.0, 0.4),
        ),
        rest_s=1.0,
        join_s=0.001,
        transfer_s=0.002,
        quantum=2,
    )


TO_A, FROM_A = f"{CHIEF} -> {A}", f"{A} -> {CHIEF}"
TO_B, FROM_B = f"{CHIEF} -> {B}", f"{B} -> {CHIEF}"
# Who is busy and for how long; what is in one list comes one after the other.
# Kernels are computed two at a time: 3 in the time of 4, 1 in that of 2.
STEP = [
    (
        # 48 bytes to either, 24 and 12 back; all of them 96 and 36.
        ("one", "forward"),
        [(CHIEF, 4 * 0.1 + 0.002 * 132)],
        [(TO_A, 0.1 + 0.96), (A, 2 * 0.2), (FROM_A, 0.2 + 0.48)],
        [(TO_B, 0.3 + 2.4), (B, 2 * 0.5), (FROM_B, 0.4 + 0.18)],
        0.001 * 4 * 36,
    ),
    (
        # 72 bytes there, 24 back.
        ("two", "forward"),
        [(CHIEF, 2 * 0.1 + 0.002 * 96)],
        [],
        [(TO_B, 0.3 + 3.6), (B, 4 * 0.5), (FROM_B, 0.4 + 0.12)],
        0.001 * 4 * 16,
    ),
    (("", ""), [(CHIEF, 1.0)], [], [], 0.0),
    (
        # 24 bytes there, 72 back. Updates are of the kernels that there are.
        ("two", "backward"),
        [(CHIEF, 2 * 0.5 + 0.01 * 6 + 0.002 * 96)],
        [],
        [(TO_B, 0.3 + 1.2), (B, 4 * 1.3 + 0.03 * 18), (FROM_B, 0.4 + 0.36)],
        # The gradients of two devices are one sum.
        0.001 * 4 * (16 + 36),
    ),
    (
        # 24 and 12 bytes there; nobody needs the gradient of an image.
        ("one", "backward"),
        [(CHIEF, 4 * 0.3 + 0.01 * 21 + 0.002 * 36)],
        [(TO_A, 0.1 + 0.36), (A, 2 * 0.4 + 0.02 * 14)],
        [(TO_B, 0.3 + 0.6), (B, 2 * 0.7 + 0.03 * 7)],
        0.001 * 4 * 36,
    ),
]


def test_a_step_by_hand():
    found = star.predict(calibration(), {"one": (3, 2, 1), "two": (1, 0, 3)})
    expected, now = [], 0.0
    for about, *chains, join in STEP:
        ends = []
        for chain in chains:
            time = now
            for where, seconds in chain:
                expected.append((where, *about, time, time + seconds))
                time += seconds
            ends.append(time)
        now = max(ends)
        if join:
            expected.append((CHIEF, *about, now, now + join))
        now += join
    assert found.step_s == pytest.approx(now)
    assert len(found.spans) == len(expected)
    for span, (where, layer, phase, start, end) in zip(
        found.spans, expected, strict=True
    ):
        assert (span.where, span.layer, span.phase) == (where, layer, phase)
        assert (span.start, span.end) == pytest.approx((start, end))
    assert found.sent_bytes == {
        TO_A: 48 + 24,
        FROM_A: 24,
        TO_B: 48 + 72 + 24 + 12,
        FROM_B: 12 + 24 + 72,
    }
    busy = {where: 0.0 for where, *_ in expected}
    for where, _, _, start, end in expected:
        busy[where] += end - start
    assert found.busy() == pytest.approx(busy)


def test_a_step_on_one_device_waits_for_nobody():
    alone = {"one": (6, 0, 0), "two": (4, 0, 0)}
    found = star.predict(calibration(), alone)
    forward, backward = 10 * 0.1, 10 * 0.3 + 4 * 0.2
    update = 0.01 * (6 * 7 + 4 * 6)
    assert found.step_s == pytest.approx(1 + forward + backward + update)
    assert found.sent_bytes == {}


def test_memory_of_kernels_and_feature_maps():
    # Two kernels: parameters, gradients and a slot; input; maps twice.
    needed = 4 * (14 * 3 + 24 + 2 * 12)
    assert star.memory_bytes(calibration(), ONE, 2) == needed
    assert star.memory_bytes(calibration(), ONE, 0) == 0


def test_multiplications_of_groups():
    # Two images, two pixels; windows of two on half of the six channels.
    assert TWO.multiplications(2) == 2 * 2 * (2 * 3) * 4
    assert TWO.multiplications(2, 1) == 2 * 2 * (2 * 3)


@pytest.mark.parametrize(
    ("seconds", "filters", "expected"),
    [
        # Between two points, and above the last.
        ((3.0, 5.0), 6, 4.0),
        ((3.0, 5.0), 16, 10.0),
        # The line through both leaves 1 second at 0.
        ((3.0, 5.0), 2, 2.0),
        ((3.0, 5.0), 0, 0.0),
        # That line would be below the proportional share.
        ((3.0, 9.0), 2, 1.5),
        # Fewer kernels take no longer, whatever the line says.
        ((5.0, 3.0), 2, 5.0),
        ((5.0,), 2, 2.5),
    ],
)
def test_times_beside_measured_points(seconds, filters, expected):
    widths = (4, 8)[: len(seconds)]
    times = Times(widths, seconds, seconds, seconds)
    assert times.at("forward", filters) == pytest.approx(expected)

"""Times of convolutions, of a clock whose times are given."""

import collections
import re

import pytest

from tf_convpar.algorithms._algorithm import FORWARD
from tf_convpar.algorithms._algorithm import INPUT_GRADIENT
from tf_convpar.algorithms._algorithm import Geometry
from tf_convpar.planner.star.measure._convolutions import Convolutions
from tf_convpar.planner.star.measure._convolutions import ConvolutionWork

FIXED_S, IMAGE_S = 2e-3, 1e-3  # of one kernel, and of one kernel and image
BATCH = 64


class Given:
    """Runs nothing: a line over kernels and images."""

    def __init__(self):
        self.asked = []

    def time(self, run, name):
        found = re.search(r"(\d+) kernels, (\d+) images", name)
        if found is None:
            return 0.0
        kernels, images = map(int, found.groups())
        self.asked.append((kernels, images))
        return kernels * (FIXED_S + images * IMAGE_S)


@pytest.fixture
def clock():
    return Given()


@pytest.fixture
def times(clock):
    geometry = Geometry((6, 6), 2, 32, (3, 3), batch=BATCH)
    work = ConvolutionWork(
        "layer", geometry, None, bias=False, input_gradient=False
    )
    return Convolutions("/device:CPU:0", clock).times(work, (8, 16, 32))


def test_a_part_of_the_batch_tells_the_time_of_all(times):
    whole = [n * (FIXED_S + BATCH * IMAGE_S) for n in (8, 16, 32)]
    assert getattr(times, FORWARD) == pytest.approx(whole)
    assert getattr(times, INPUT_GRADIENT) == (0.0, 0.0, 0.0)


def test_what_is_spent_once_is_found_once(times, clock):
    asked = collections.Counter(kernels for kernels, _ in clock.asked)
    # Forward: all images, two parts of them, one. The kernel gradient, which
    # knows from it how slow the device is: two, one, one.
    assert asked == {8: 1 + 2, 16: 2 + 1, 32: 1 + 1}
    assert max(images for kernels, images in clock.asked if kernels == 32) < 8

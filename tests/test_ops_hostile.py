"""Attributes and shapes that no layer has: an error each, or the right result.

A graph may come from elsewhere. What it asks for must end neither the process
nor with what nobody has written.
"""

import os
import re

import forks
import numpy as np
import pytest
import tensorflow as tf
from processes import environment

from tf_convpar import ops

pytestmark = pytest.mark.skipif(not ops.load(), reason="no compiled ops")

MOST = 2**31 - 1
NONE = tf.TensorSpec([0])
# A program of one value, which stays as it is.
SAME = {"structure": [1, 1, 1, 1, 0, 1, 0], "values": [1.0]}


def spec(*shape):
    return tf.TensorSpec(shape)


def pool(zeros=(0, 0, 0, 0), image=(1, 1), **how):
    """An op's name, its inputs and its attributes."""
    how = {"window": [1, 1], "stride": 1, "padding": "VALID"} | how
    how |= {"zeros": list(zeros), "kind": "max"}
    return "pool", {"images": spec(2, *image, 2)}, how


def depthwise(zeros=(0, 0, 0, 0), window=(1, 1), **how):
    inputs = {"images": spec(1, 1, 1, 2), "kernel": spec(*window, 2)}
    how = {"stride": 1, "padding": "VALID", "zeros": list(zeros)} | how
    return "depthwise", inputs | {"bias": spec(2)}, how


def convolution(zeros=(0, 0, 0, 0), window=(1, 1), channels=2, **how):
    inputs = {
        "images": [spec(1, 1, 1, channels)],
        "kernel": spec(*window, channels, 4),
        **dict.fromkeys(("scale", "offset", "summand"), NONE),
        **dict.fromkeys(("image_scale", "image_offset"), NONE),
    }
    how = {"stride": 1, "padding": "VALID", "zeros": list(zeros)} | how
    return "convolution", inputs, how


def kernel_gradient(window, maps=(0, 0), channels=4, **how):
    inputs = {
        "images": spec(1, 1, 1, channels),
        "gradients": spec(1, *maps, channels),
    }
    how = {"window": window, "stride": 1, "padding": "VALID"} | how
    return "depthwise_kernel_gradient", inputs, how


def max_gradient(**how):
    maps = dict.fromkeys(("images", "maxima", "gradients"), spec(1, 1, 1, 2))
    how = {"window": [1, 1], "stride": 1, "padding": "VALID"} | how
    return "max_pool_gradient", maps, how


def programs():
    return {
        f"{name}_{part}": SAME[part]
        for name in ("image", "maps", "kernel")
        for part in SAME
    }


def bilinear(image, kernel, step, before, after):
    inputs = {"x": spec(*image), "kernel": spec(*kernel), "bias": NONE}
    tiles = {"step": step, "pad_before": before, "pad_after": after}
    return "bilinear_forward", inputs, tiles | programs()


def bilinear_gradient(window, channels=1, axes=None):
    axes = axes or len(window)
    inputs = dict.fromkeys(("x", "dy"), spec(1, *[1] * axes, channels))
    tiles = {"step": [1] * axes, "pad_before": [0] * axes}
    tiles |= {"pad_after": [0] * axes, "window": window}
    return "bilinear_kernel_gradient", inputs, tiles | programs()


def split(shape, sizes):
    return (
        "split_shards",
        {"value": spec(*shape)},
        {
            "U": [tf.float32] * len(sizes),
            "sizes": sizes,
        },
    )


def of_maps(name, *shape, **how):
    """A normalization, of maps that are the first of its inputs."""
    weights = dict.fromkeys(("gamma", "beta"), NONE)
    return name, {"maps": spec(*shape), **weights}, {"epsilon": 1e-3, **how}


STRIDE = "the stride to be an integer from 1 to 16777216. Received: "
ZEROS = "zeros around images to be 4 integers, each from 0 to 16777216"
WINDOW = "window to be 2 integers, each from 1 to 16777216. Received: "
LARGE = "Expected a result of less than 2^63 numbers. Received sizes: "
TILE = "each from 0 to 65536. Received: "
# Calls, and what is said of them, when a graph is built as well.
KNOWN = {
    "pool zeros": (pool([MOST] * 4), ZEROS),
    "pool negative zeros": (pool([-100] * 4, (8, 8)), ZEROS),
    "pool three zeros": (pool([0] * 3), ZEROS),
    "pool stride": (pool(stride=2**29), f"{STRIDE}{2**29}"),
    "pool stride of 0": (pool(stride=0), f"{STRIDE}0"),
    "pool stride of 2^40": (pool(stride=2**40), f"{STRIDE}{2**40}"),
    "pool window": (pool(window=[MOST, 1]), f"{WINDOW}{MOST}, 1"),
    "pool no window": (pool(window=[]), f"{WINDOW}none"),
    "pool window of 2^63": (pool(window=[1, 2**63 - 1]), WINDOW),
    "depthwise zeros": (depthwise([MOST] * 4), ZEROS),
    "depthwise negative zeros": (depthwise([-100] * 4), ZEROS),
    "depthwise stride": (depthwise(stride=-1), f"{STRIDE}-1"),
    "depthwise no pixels": (depthwise(window=(0, 0)), f"{WINDOW}0, 0"),
    "convolution zeros": (convolution([MOST] * 4), ZEROS),
    "convolution stride": (
        convolution(stride=2**29 - 1, window=(8, 8)),
        f"{STRIDE}{2**29 - 1}",
    ),
    "convolution no pixels": (convolution(window=(0, 2)), f"{WINDOW}0, 2"),
    "kernel gradient window": (
        kernel_gradient([MOST] * 2),
        f"{WINDOW}{MOST}, {MOST}",
    ),
    "kernel gradient negative": (
        kernel_gradient([-5, -1], padding="SAME"),
        f"{WINDOW}-5, -1",
    ),
    "kernel gradient stride": (
        kernel_gradient([1, 1], (1, 1), stride=0),
        f"{STRIDE}0",
    ),
    "maxima window": (max_gradient(window=[0, 1]), f"{WINDOW}0, 1"),
    "maxima stride": (max_gradient(stride=2**31), f"{STRIDE}{2**31}"),
    "bilinear pads": (
        bilinear((1, 1, 1), (1, 1, 1), [1], [2**62], [0]),
        f"pad_before to be an integer from 0 to 65536. Received: {2**62}",
    ),
    "bilinear step": (
        bilinear((1, 1, 1, 1), (1, 1, 1, 1), [1, 0], [0, 0], [0, 0]),
        "step to be 2 integers, each from 1 to 65536. Received: 1, 0",
    ),
    "bilinear four axes": (
        bilinear((1,) * 6, (1,) * 6, [1] * 4, [0] * 4, [0] * 4),
        "step to be 3 integers",
    ),
    "bilinear pads of fewer axes": (
        bilinear((1, 1, 1, 1), (1, 1, 1, 1), [1, 1], [0], [0, 0]),
        "pad_before to be 2 integers, each from 0 to 65536. Received: 0",
    ),
    "bilinear image smaller than window": (
        bilinear((1, 3, 3, 2), (10, 10, 2, 2), [1, 1], [0, 0], [0, 0]),
        "no smaller than the kernel, [10,10,2,2]. Received shape: [1,3,3,2]",
    ),
    "bilinear window": (
        bilinear_gradient([-3, 3]),
        "window to be 2 integers, each from 1 to 65536. Received: -3, 3",
    ),
    "bilinear windows of fewer axes": (
        bilinear_gradient([1], axes=2),
        "window to be 2 integers, each from 1 to 65536. Received: 1",
    ),
    "groups": (
        of_maps("group_normalization", 2, 3, 4, groups=2**31),
        f"the groups to be an integer from 1 to {2**24}. Received: {2**31}",
    ),
    "no groups": (
        of_maps("group_normalization", 2, 3, 4, groups=0),
        f"the groups to be an integer from 1 to {2**24}. Received: 0",
    ),
    "split": (
        split((2, 4), [1, 2**63 - 1, 2**63 - 1, 5]),
        f"shard 1 of shape [2,{2**63 - 1}] ends at {2**63}",
    ),
    "split of no rows": (
        split((0, 4), [1, 2**63 - 1, 2**63 - 1, 5]),
        f"shard 1 of shape [0,{2**63 - 1}] ends at {2**63}",
    ),
}
# What only the sizes together are too large for.
FOUND = {
    "moments": (
        ("channel_moments", {"maps": spec(0, 2**62)}, {}),
        f"{LARGE}2, {2**62}",
    ),
    "layer": (
        (
            "layer_normalization_gradient",
            dict.fromkeys(("gradients", "maps"), spec(0, 2**62))
            | {"gamma": NONE},
            {"epsilon": 1e-3},
        ),
        f"{LARGE}2, {2**62}",
    ),
    "groups of images": (
        of_maps("group_normalization", 2**44, 1, 0, groups=2**20),
        f"{LARGE}{2**44}, {2**20}",
    ),
    "kernel gradient": (
        kernel_gradient([2**20] * 2, (1, 1), 2**24, padding="SAME"),
        f"{LARGE}{2**20}, {2**20}, {2**24}",
    ),
    "bilinear": (
        bilinear(
            (128, 1, 1, 1, 1), (1, 1, 1, 1, 128), [1] * 3, *[[2**16] * 3] * 2
        ),
        f"{LARGE}128, 131073, 131073, 131073, 128",
    ),
    "bilinear gradient": (
        bilinear_gradient([2**16] * 3, 256),
        f"{LARGE}65536, 65536, 65536, 256, 256",
    ),
    "image": (
        ("pool", {"images": spec(0, 2**62, 1, 2)}, pool()[2]),
        f"sizes of images to be 2 integers, each from 0 to {2**40}",
    ),
    "concat": (
        (
            "concat_shards",
            {"shards": [spec(0, 2**62), spec(0, 2**62), spec(0, 5)]},
            {"U": tf.float32},
        ),
        f"sum of widths below 2^63. Received: {2**62} and {2**62} for shard 1",
    ),
    "functions": (
        (
            "release_functions",
            dict.fromkeys(("names", "own"), tf.TensorSpec([0], tf.string)),
            {},
        ),
        "Expected own to be one name. Received shape [0]",
    ),
}


# What is as large as it may be, or larger than it looks, and right.
TAKEN = {
    "layer of 2^40 channels": of_maps("layer_normalization", 0, 2**40),
    "group of 2^40 channels": of_maps(
        "group_normalization", 0, 2**40, groups=1
    ),
    "pool of far pixels": pool([2**20] * 4, stride=2**20),
    "depthwise of far pixels": depthwise([2**20] * 4, stride=2**20),
    "convolution of far pixels": convolution([2**20] * 4, stride=2**20),
    "a large window": max_gradient(window=[2**20] * 2, padding="SAME"),
    "shards of no width": (
        "concat_shards",
        {"shards": [spec(2, 0, 2**40, 2**40), spec(2, 0, 2**40, 2**40)]},
        {"U": tf.float16, "axis": 1},
    ),
}


def run(name, inputs, attributes):
    op = getattr(ops.module(), f"tf_convpar_{name}")
    return op(**inputs, **attributes)


def ones(given):
    """Tensors of these shapes and types."""
    return tf.nest.map_structure(
        lambda x: (
            tf.fill(x.shape, tf.cast(1, x.dtype))
            if x.dtype.is_floating
            else tf.fill(x.shape, "")
        ),
        given,
    )


@pytest.mark.parametrize("case", [*KNOWN, *FOUND])
def test_what_is_said_of(case):
    (name, inputs, attributes), words = (KNOWN | FOUND)[case]
    with pytest.raises(tf.errors.InvalidArgumentError) as found:
        run(name, ones(inputs), attributes)
    assert words in found.value.message
    assert re.search("Expected.*Received", found.value.message)


@pytest.mark.parametrize("case", KNOWN)
def test_what_is_said_of_it_in_a_graph(case):
    (name, inputs, attributes), words = KNOWN[case]
    graph = tf.function(lambda x: run(name, x, attributes), autograph=False)
    with pytest.raises(ValueError, match=re.escape(words)):
        graph.get_concrete_function(inputs)


@pytest.mark.parametrize("case", TAKEN)
def test_what_is_no_error(case):
    """Neither at once nor of shapes that are known only then."""
    name, inputs, attributes = TAKEN[case]
    given = ones(inputs)
    found = tf.nest.flatten(run(name, given, attributes))
    unknown = tf.nest.map_structure(
        lambda x: tf.TensorSpec([None] * x.shape.rank), inputs
    )
    graph = tf.function(lambda x: run(name, x, attributes), autograph=False)
    again = tf.nest.flatten(graph.get_concrete_function(unknown)(given))
    for x, y in zip(found, again, strict=True):
        assert x.shape == y.shape
        assert 0 in x.shape or np.array_equal(x, y)


@pytest.mark.parametrize("name", ["pool", "depthwise", "convolution"])
def test_pixels_far_apart(name):
    """Of the windows only the one in the middle sees the image."""
    name, inputs, attributes = TAKEN[f"{name} of far pixels"]
    y = run(name, ones(inputs), attributes)
    assert y.shape[1:3] == (3, 3)
    seen = {"pool": 1, "depthwise": 2, "convolution": 2}[name]
    around = {"pool": 0, "depthwise": 1, "convolution": 0}[name]
    expected = np.full(y.shape, around, "float32")
    expected[:, 1, 1] = seen
    np.testing.assert_array_equal(y, expected)


def test_no_memory_for_an_image_with_its_zeros():
    """More than any process can address, whatever a system promises."""
    name, inputs, attributes = convolution(
        [2**20] * 4, channels=33, stride=2**17 + 1
    )
    with pytest.raises(tf.errors.ResourceExhaustedError) as found:
        run(name, ones(inputs), attributes)
    assert re.search("Expected memory.*MiB.*none", found.value.message)


LITTLE = """
import resource

import numpy as np
import tensorflow as tf

from tf_convpar import ops
from tf_convpar.algorithms._algorithm import Geometry
from tf_convpar.algorithms._bilinear import Bilinear

kernels = [tf.ones([1, 1, 2048, 2048]), tf.ones([3, 3, 64, 64])]
images = [
    tf.ones([1, 1, 2, 2048]),  # a kernel that is streamed
    tf.ones([2, 30, 30, 64]),  # lines
    tf.ones([8, 7, 6, 64]),  # rows
    tf.ones([1, 9, 9, 64]),  # panels
]
x, k = images[1], kernels[1]
geometry = Geometry((30, 30), 64, 64, (3, 3), padding="same", batch=2)
winograd = Bilinear("winograd", (4, 4))
calls = [
    lambda n: ops.convolution(images[0][:n], kernels[0], padding="same"),
    lambda n: ops.convolution(images[1][:n], kernels[1], padding="same"),
    lambda n: ops.convolution(images[2][:n], kernels[1], padding="same"),
    lambda n: ops.convolution(images[3][:n], kernels[1], padding="same"),
    lambda n: winograd.forward(x[:n], k, geometry),
    lambda n: winograd.kernel_gradient(x[:n], x[:n], geometry),
]
# What TensorFlow itself needs it has then.
for call in calls:
    call(0)
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(
    resource.RLIMIT_AS, (pages * 4096 + 65536, resource.RLIM_INFINITY)
)
for call in calls:
    try:
        call(8)
    except tf.errors.ResourceExhaustedError as error:
        print("none" if "Expected memory" in error.message else error.message)
"""


def test_no_memory_for_workspaces():
    """In a process of its own, which has no more than it has."""
    if "asan" in os.environ.get("LD_PRELOAD", ""):
        pytest.skip("needs memory of its own for each call")
    done = forks.run(["-c", LITTLE], env=environment())
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["none"] * 6

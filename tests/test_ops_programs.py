"""Programs of bilinear convolutions, however they are factored.

A stage next to the images reads and writes tiles where they are, if it works
along one of their axes. Of any other the tiles are copied.
"""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from test_ops_channels import near
from test_ops_channels import numbers

from tf_convpar import ops
from tf_convpar.algorithms import Bilinear
from tf_convpar.algorithms import Geometry
from tf_convpar.algorithms import Program
from tf_convpar.algorithms import Stage

pytestmark = pytest.mark.skipif(not ops.load(), reason="no compiled ops")

# Tiles of 2x3 outputs by windows of 2x1, in images that hold two of them on
# each axis and more; points of the spectrum.
STEP, WINDOW, TILE, IMAGE, POINTS = (2, 3), (2, 1), (3, 3), (5, 7), 6
# Whether vectors of channels are whole, and so tiles may be read in place.
CHANNELS = [5, 64]


def factorings(size, tile):
    """Sizes before, along and after the axis of a stage of so many values."""
    rows, columns = tile
    return [
        (1, rows, columns),  # along the first axis
        (rows, columns, 1),  # along the last
        (1, size, 1),
        (size, 1, 1),
        (1, 1, size),
        (columns, rows, 1),
    ]


def program(inputs, outputs, first, last, seed=0):
    """From values to others, by a first and a last stage of such factors."""
    rng = np.random.default_rng(seed)

    def stage(sizes):
        outer, along, inner = sizes
        return Stage(rng.normal(size=(along, along)) / along, outer, inner)

    dense = Stage(rng.normal(size=(outputs, inputs)) / inputs)
    ends = [[stage(x)] if x else [] for x in (first, last)]
    return Program((*ends[0], dense, *ends[1]))


def attributes(image, maps, kernel):
    tiles = {"step": STEP, "pad_before": [0, 0], "pad_after": [0, 0]}
    named = {"image": image, "maps": maps, "kernel": kernel}
    for name, each in named.items():
        tiles[f"{name}_structure"] = each.structure()
        tiles[f"{name}_values"] = each.values()
    return tiles


def places(step, tile):
    """Where each tile of the feature maps, or of the image, begins and ends."""
    for i, j in itertools.product(range(2), range(2)):
        top, left = i * step[0], j * step[1]
        yield slice(top, top + tile[0]), slice(left, left + tile[1])


def spectra(x, matrix, step, tile):
    """Of all tiles, (tiles, points, channels)."""
    cut = [x[:, rows, columns] for rows, columns in places(step, tile)]
    flat = np.stack([part.reshape(-1, x.shape[-1]) for part in cut])
    return np.einsum("pv,tvc->tpc", matrix, flat)


@pytest.mark.parametrize("channels", CHANNELS)
@pytest.mark.parametrize("which", range(6))
def test_forward(which, channels):
    first = factorings(9, TILE)[which]
    last = factorings(6, STEP)[which]
    image = program(9, POINTS, first, None, 1)
    maps = program(POINTS, 6, None, last, 2)
    kernel = program(2, POINTS, (1, 2, 1), None, 3)
    x = numbers((1, *IMAGE, channels), 4)
    k = numbers((*WINDOW, channels, 64), 5)
    bias = numbers((64,), 6)
    y = ops.module().tf_convpar_bilinear_forward(
        x=x, kernel=k, bias=bias, **attributes(image, maps, kernel)
    )
    of_kernel = np.einsum("pw,wcf->pcf", kernel.matrix(), k[:, 0])
    products = np.einsum(
        "tpc,pcf->tpf", spectra(x, image.matrix(), STEP, TILE), of_kernel
    )
    tiles = np.einsum("vp,tpf->tvf", maps.matrix(), products) + bias
    expected = np.zeros((1, 4, 7, 64))
    assert y.shape == expected.shape
    # Of the third tile of a row there is one column: left out.
    for tile, (rows, columns) in zip(tiles, places(STEP, STEP), strict=True):
        expected[0, rows, columns] = tile.reshape(*STEP, 64)
    near(y[:, :, :6], expected[:, :, :6], 1e-5)


@pytest.mark.parametrize("channels", CHANNELS)
@pytest.mark.parametrize("which", range(6))
def test_kernel_gradient(which, channels):
    image = program(9, POINTS, factorings(9, TILE)[which], None, 1)
    maps = program(6, POINTS, factorings(6, STEP)[which], None, 2)
    kernel = program(POINTS, 2, None, (1, 2, 1), 3)
    x = numbers((1, 5, 6, channels), 4)
    dy = numbers((1, 4, 6, 64), 5)
    found = ops.module().tf_convpar_bilinear_kernel_gradient(
        x=x, dy=dy, window=WINDOW, **attributes(image, maps, kernel)
    )
    of_x = spectra(x, image.matrix(), STEP, TILE)
    of_dy = spectra(dy, maps.matrix(), STEP, STEP)
    of_k = np.einsum("tpc,tpf->pcf", of_x, of_dy)
    expected = np.einsum("wp,pcf->wcf", kernel.matrix(), of_k)
    near(found[:, 0], expected, 1e-5)


# Windows and tiles of one layer of an image, whose first stage is of the axis
# of one pixel.
FLAT = [
    ("winograd", (1, 3, 3), (1, 4, 4)),
    ("fft", (1, 3, 3), (1, 4, 4)),
    ("winograd", (1, 3, 1), (1, 4, 1)),
    ("winograd", (1, 1, 3), (1, 3, 4)),
    ("winograd", (3, 1, 3), (4, 1, 4)),
]


@pytest.mark.parametrize(("kind", "window", "tile"), FLAT)
@pytest.mark.parametrize("padding", ["valid", "same"])
def test_windows_of_one_layer(kind, window, tile, padding):
    geometry = Geometry((5, 9, 10), 64, 32, window, padding=padding, batch=2)
    algorithm = Bilinear(kind, tile)
    x = tf.constant(numbers((2, 5, 9, 10, 64), 1))
    k = tf.constant(numbers((*window, 64, 32), 2) / 24)
    given = [tf.cast(v, tf.float64) for v in (x, k)]
    with tf.GradientTape() as tape:
        tape.watch(given)
        expected = tf.nn.conv3d(
            *given, [1] * 5, padding.upper(), data_format="NDHWC"
        )
    dy = tf.constant(numbers(expected.shape, 3))
    by_x, by_k = tape.gradient(expected, given, tf.cast(dy, tf.float64))
    near(algorithm.forward(x, k, geometry), expected, 1e-4)
    near(algorithm.kernel_gradient(x, dy, geometry), by_k, 1e-4)
    near(algorithm.input_gradient(dy, k, geometry, x.shape), by_x, 1e-4)

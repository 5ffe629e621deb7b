"""Which convolutions of a model have a choice of algorithms."""

import keras

import tf_convpar as convpar
from tf_convpar.algorithms import Geometry
from tf_convpar.layers import convolutions


def test_convolutions_of_a_model():
    layers = keras.layers
    inner = keras.Sequential(
        [layers.Input((8, 8, 4)), layers.Conv2D(6, (3, 5), name="inside")]
    )
    model = keras.Sequential(
        [
            layers.Input((16, 16, 3)),
            convpar.ConvParallel2D(4, 3, 2, padding="same", name="first"),
            layers.Conv2D(4, 1, groups=2),
            layers.DepthwiseConv2D(3, padding="same"),
            inner,
        ]
    )
    assert convolutions(model, 7) == [
        (
            "first",
            Geometry((16, 16), 3, 4, (3, 3), (2, 2), "same", batch=7),
        ),
        ("inside", Geometry((8, 8), 4, 6, (3, 5), batch=7)),
    ]
    causal = layers.Conv1D(5, 3, padding="causal", dilation_rate=2, name="c")
    model = keras.Sequential([layers.Input((None, 2)), causal])
    assert convolutions(model) == [
        ("c", Geometry((None,), 2, 5, (3,), dilation=(2,)))
    ]

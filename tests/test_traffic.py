"""Bytes of a step by theory, beside sums made by hand."""

import keras
import pytest

import tf_convpar as convpar
from tf_convpar.sharding import step_traffic

L = keras.layers
FIRST, SECOND, THIRD = (6, 4, 2), (2, 1, 3), (0, 3, 3)
# One channel of two images of 8x8 pixels in float32.
UNIT = 2 * 8 * 8 * 4


def conv(filters=12, **kwargs):
    return L.Conv2D(filters, 3, padding="same", **kwargs)


def chain(*layers, shape=(8, 8, 3)):
    return keras.Sequential([keras.Input(shape), conv(), *layers])


def two_ends():
    """Two layers without a rule take the same feature maps."""
    x = keras.Input((8, 8, 3))
    y = conv()(x)
    ends = [L.Softmax()(y), L.Permute((2, 1, 3))(y)]
    return keras.Model(x, ends)


def within():
    inner = keras.Sequential([keras.Input((8, 8, 12)), conv(6, name="second")])
    return chain(inner)


def star():
    """Without `parallelize` all feature maps pass the chief."""

    def of(shards):
        return convpar.ConvParallel2D(
            sum(shards), 3, padding="same", shards=shards
        )

    return keras.Sequential(
        [keras.Input((8, 8, 3)), of(FIRST), L.ReLU(), of(SECOND)]
    )


# Links 0->1, 1->0, 0->2, 2->0, 1->2, 2->1 in units: the image has 3 channels,
# and its gradient is not asked for.
CASES = {
    "convolutions": (
        lambda: chain(L.ReLU(), conv(6, name="second")),
        (3 + 10 + 1, 10 + 1, 3 + 8 + 3, 8 + 3, 6, 6),
    ),
    "maps joined once for two layers": (two_ends, (3 + 4, 4, 3 + 2, 2, 0, 0)),
    "sums of a dense layer": (
        lambda: chain(L.GlobalMaxPooling2D(), L.Dense(2)),
        (3 + 1 / 32, 1 / 32, 3 + 1 / 32, 1 / 32, 0, 0),
    ),
    "features of a wide dense layer": (
        lambda: chain(L.GlobalMaxPooling2D(), L.Dense(3)),
        (3 + 4 / 64, 4 / 64, 3 + 2 / 64, 2 / 64, 0, 0),
    ),
    "depthwise": (
        lambda: chain(L.DepthwiseConv2D(3, padding="same", depth_multiplier=2)),
        (3 + 8, 8, 3 + 4, 4, 0, 0),
    ),
    "separable": (
        lambda: chain(
            L.SeparableConv2D(
                *(6, 3, 2, "same"), depth_multiplier=2, name="third"
            )
        ),
        # 12, 8 and 4 channels of a quarter of the pixels go to two devices.
        tuple(
            n / 4 for n in (12 + 12 + 3, 12 + 3, 12 + 12 + 3, 12 + 3, 12, 12)
        ),
    ),
    "a model within": (
        within,
        (3 + 4 + 12 + 1, 4 + 12 + 1, 3 + 2 + 12 + 3, 2 + 12 + 3, 0, 0),
    ),
    "star": (
        star,
        (3 + 4 + 12 + 1, 4 + 12 + 1, 3 + 2 + 12 + 3, 2 + 12 + 3, 0, 0),
    ),
}


def parallel(model, **kwargs):
    if any(hasattr(layer, "shards") for layer in model.layers):
        return model
    names = [layer.name for layer in model._flatten_layers()]
    plan = {"conv2d": FIRST, "second": SECOND, "third": THIRD}
    plan = {name: plan[name] for name in names if name in plan}
    return convpar.parallelize(model, plan, **kwargs)


def links(traffic, devices):
    pairs = ((0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1))
    return [
        traffic.links.get((devices[a], devices[b]), 0) / UNIT for a, b in pairs
    ]


@pytest.mark.parametrize("case", CASES)
def test_bytes_of_each_link(case, strategy):
    make, expected = CASES[case]
    with strategy.scope():
        model = parallel(make())
    traffic = step_traffic(model, 2)
    assert links(traffic, strategy.devices) == list(expected)
    assert traffic.sent == (expected[0] + expected[2]) * UNIT
    assert traffic.received == (expected[1] + expected[3]) * UNIT
    assert traffic.total == sum(expected) * UNIT
    assert step_traffic(model, 6).total == 3 * traffic.total


@pytest.mark.parametrize(
    ("frozen", "training", "expected"),
    [
        ([0], True, (3 + 6 + 1, 4 + 1, 3 + 6 + 3, 2 + 3, 4, 2)),
        ([0, 2], True, (3 + 6, 4 + 1, 3 + 6, 2 + 3, 4, 2)),
        ([], False, (3 + 6, 4 + 1, 3 + 6, 2 + 3, 4, 2)),
    ],
)
def test_gradients_return_to_what_learns(frozen, training, expected, strategy):
    with strategy.scope():
        model = parallel(CASES["convolutions"][0]())
    for i in frozen:
        model.layers[i].trainable = False
    traffic = step_traffic(model, 2, training)
    assert links(traffic, strategy.devices) == list(expected)


def test_a_narrow_wire_takes_half(strategy):
    make, expected = CASES["convolutions"]
    for policy, wire in (
        ("float32", "bfloat16"),
        ("mixed_bfloat16", "float32"),
    ):
        keras.utils.clear_session()
        keras.mixed_precision.set_dtype_policy(policy)
        with strategy.scope():
            model = parallel(make(), wire_dtype=wire)
        assert step_traffic(model, 2).total == sum(expected) * UNIT / 2


def test_channels_before_a_depthwise_layer_go_out_once_each(strategy):
    """Each device gets its own of the image, not all."""
    for data_format in ("channels_last", "channels_first"):
        last = data_format == "channels_last"
        with strategy.scope():
            model = keras.Sequential(
                [
                    keras.Input((8, 8, 12) if last else (12, 8, 8)),
                    convpar.SeparableConvParallel2D(
                        *(6, 3, 2, "same", data_format), shards=(3, 2, 1)
                    ),
                ]
            )
        traffic = step_traffic(model, 2)
        # Its middle has 6, 4 and 2 channels of 4x4 pixels.
        expected = (4 + 12 / 4, 12 / 4, 2 + 9 / 4, 9 / 4, 6 / 4, 6 / 4)
        assert links(traffic, strategy.devices) == list(expected)

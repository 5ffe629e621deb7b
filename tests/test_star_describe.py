"""Clusters from words, and networks for them."""

import math

import keras
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tf_convpar as convpar
from tf_convpar import units
from tf_convpar.papers.star_simulation import convolutions_s
from tf_convpar.papers.star_simulation import describe
from tf_convpar.planner.presets import EFFICIENCY
from tf_convpar.planner.presets import PRESETS
from tf_convpar.planner.star import PHASES
from tf_convpar.planner.star import compute_s
from tf_convpar.planner.star import network
from tf_convpar.planner.star import of_model
from tf_convpar.planner.star import predict

SMALL = network((4, 6), batch=2, image=(12, 12, 3), window=3)


def rate(calibration, device):
    """What a device does of the network's convolutions in a second."""
    passes = sum(
        (2 + c.input_gradient)
        * 2
        * c.multiplications(calibration.network.batch)
        for c in calibration.network
    )
    return passes / convolutions_s(calibration, device)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("cpu:100GFLOPS", [("cpu:0", 1e11, None)]),
        (
            "2xcpu:100GFLOPS,gpu:10TFLOPS",
            [
                ("cpu:0", 1e11, None),
                ("cpu:1", 1e11, None),
                ("gpu:0", 1e13, None),
            ],
        ),
        (
            " 2 x cpu : 1.5 GFLOPS @ 65 W , cpu:2e3MFLOPS@9.5",
            [("cpu:0", 1.5e9, 65), ("cpu:1", 1.5e9, 65), ("cpu:2", 2e9, 9.5)],
        ),
        ("2xeon:1TFLOP/s", [("eon:0", 1e12, None), ("eon:1", 1e12, None)]),
        ("xeon:1TFLOPS", [("xeon:0", 1e12, None)]),
        (
            "i7-6700k,GTX-1080@200W,a100:1TFLOPS",
            [
                ("i7-6700k:0", 0.8 * 512e9, 91),
                ("GTX-1080:0", 0.6 * 8872.96e9, 200),
                ("a100:0", 1e12, 400),
            ],
        ),
    ],
)
def test_devices(text, expected):
    calibration = describe(SMALL, text)
    assert [
        (d.name, pytest.approx(rate(calibration, d)), d.watts)
        for d in calibration.devices
    ] == expected
    names = {name for name, _, _ in expected[1:]}
    chief = expected[0][0]
    assert {(k.source, k.target) for k in calibration.links} == {
        ends for name in names for ends in ((chief, name), (name, chief))
    }


@pytest.mark.parametrize(
    "text, message",
    [
        ("", r"Expected devices as .* Received: ''"),
        ("cpu:1GFLOPS,", "Expected devices as .* Received: ''"),
        ("0xcpu:1GFLOPS", "at least one device. Received: '0xcpu:1GFLOPS'"),
        ("-1xcpu:1GFLOPS", "Expected devices as"),
        ("cpu", "Expected a rate, as in cpu:100GFLOPS, or one of jetson-tx1"),
        ("cpu:100", "Expected a rate above 0 .* Received: '100'"),
        ("cpu:0GFLOPS", "Expected a rate above 0"),
        ("cpu:fastGFLOPS", "Expected a rate above 0"),
        ("cpu:100GFLOPS@hot", "Expected watts, such as 15W. Received: 'hot'"),
        ("cpu:100GFLOPS@", "Expected devices as|Expected a rate"),
        ("4 cpu:1GFLOPS", "Expected devices as"),
    ],
)
def test_bad_devices(text, message):
    with pytest.raises(ValueError, match=message):
        describe(SMALL, text)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"link": "1G"}, "Expected the rate of a link .* Received: '1G'"),
        ({"link": "0Mbit"}, "Expected links that carry something"),
        ({"latency": "1"}, "Expected a time in s, ms, us or ns"),
        ({"latency": "1min"}, "Expected a time"),
        ({"conv_share": 0}, "Expected conv_share"),
        ({"conv_share": 1.1}, "Expected conv_share.* Received: 1.1"),
        ({"rest": -1.0}, "Expected rest in seconds"),
        ({"rest": math.nan}, "Expected rest in seconds"),
        ({"rest": 1.0, "conv_share": 0.5}, "Received both"),
        ({"idle": 1.5}, "Expected idle"),
    ],
)
def test_bad_rest_of_a_description(changes, message):
    with pytest.raises(ValueError, match=message):
        describe(SMALL, "2xcpu:1GFLOPS", **changes)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("100Mbit", 12.5e6),
        ("1Gbit/s", 125e6),
        ("1.2GB", 1.2e9),
        ("64kbit", 8e3),
        ("5 B/s", 5),
        ("inf", math.inf),
        ("0", 0),
    ],
)
def test_rates_of_links(text, expected):
    assert units.bytes_per_s(text) == pytest.approx(expected)


@given(st.floats(min_value=1e-3, max_value=1e12))
def test_words_of_a_link_read_back(value):
    assert units.bytes_per_s(units.link_words(value)) == pytest.approx(
        value, rel=1e-3
    )
    assert units.link_words(math.inf) == "inf"


def test_times():
    assert units.seconds("0.1ms") == pytest.approx(1e-4)
    assert units.seconds("50us") == pytest.approx(5e-5)
    assert units.seconds("2s") == 2
    assert units.seconds("0") == 0


@given(st.integers(0, 6), st.sampled_from(PHASES))
def test_times_are_proportional(kernels, phase):
    calibration = describe(SMALL, "cpu:3GFLOPS")
    for c in SMALL:
        passes = 1 if phase == "forward" else 1 + c.input_gradient
        kernels = min(kernels, c.filters)
        assert compute_s(
            calibration, calibration.chief, c, phase, kernels
        ) == pytest.approx(passes * 2 * c.multiplications(2, kernels) / 3e9)


def test_no_time_for_a_gradient_that_is_not_needed():
    times = describe(SMALL, "cpu:3GFLOPS").chief.times
    assert times["conv2d"].input_gradient == (0, 0)
    assert times["conv2d_1"].input_gradient == times["conv2d_1"].forward


def test_one_kernel():
    """Two points of a line are one where there is one kernel."""
    one = network((1,), batch=2, image=(5, 5, 3), window=3)
    calibration = describe(one, "cpu:1GFLOPS")
    expected = 2 * 2 * one.convolutions[0].multiplications(2) / 1e9
    assert convolutions_s(calibration, calibration.chief) == pytest.approx(
        expected
    )


@given(st.floats(min_value=0.01, max_value=1))
def test_share_of_convolutions(share):
    calibration = describe(SMALL, "cpu:1GFLOPS", conv_share=share)
    alone = predict(calibration, {c.name: (c.filters,) for c in SMALL}).step_s
    convolutions = convolutions_s(calibration, calibration.chief)
    assert convolutions / alone == pytest.approx(share)


def test_rest_and_facts():
    calibration = describe(SMALL, "cpu:1GFLOPS", "1Gbit", rest=0.25)
    assert calibration.rest_s == 0.25
    assert calibration.facts["source"] == "description"
    default = describe(SMALL, "cpu:1GFLOPS")
    assert default.rest_s == pytest.approx(
        convolutions_s(default, default.chief) / 9
    )


def test_published_figures():
    """GFLOPS and watts as their makers give them, to a percent."""
    for name, gflops, watts in (
        ("jetson-tx1", 512, 10),
        ("jetson-tx2", 573, 15),
        ("jetson-nano", 236, 10),
        ("jetson-xavier", 922, 30),
        ("gtx-1080", 8873, 180),
        ("rtx-3090", 35600, 350),
        ("a100", 19500, 400),
        ("v100", 15700, 300),
    ):
        preset = PRESETS[name]
        assert preset.peak_flops / 1e9 == pytest.approx(gflops, rel=0.01)
        assert preset.watts == watts
    for name, preset in PRESETS.items():
        calibration = describe(SMALL, name, idle=0.25)
        assert rate(calibration, calibration.chief) == pytest.approx(
            preset.peak_flops * EFFICIENCY[preset.kind]
        )
        assert calibration.chief.idle_watts == 0.25 * preset.watts


def test_the_networks_shapes():
    one, two = network()
    assert (one.image, one.output, one.channels) == ((32, 32), (28, 28), 3)
    assert (two.image, two.output, two.channels) == ((14, 14), (10, 10), 500)
    assert (one.filters, two.filters) == (500, 1500)
    assert (one.input_gradient, two.input_gradient) == (False, True)
    # 29.4 and 1875 million multiplications an image.
    assert one.multiplications(1) == 28 * 28 * 25 * 3 * 500
    assert two.multiplications(1) == 1_875_000_000


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"kernels": ()}, "at least 1"),
        ({"kernels": (0,)}, "at least 1"),
        ({"batch": 0}, "at least 1"),
        ({"kernels": (1, 1, 1, 1)}, "images of at least 5 pixels.*4 of 4"),
    ],
)
def test_impossible_networks(arguments, message):
    with pytest.raises(ValueError, match=message):
        network(**arguments)


def test_of_a_model_is_the_same_network():
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            layers.Conv2D(50, 5, name="conv2d"),
            layers.MaxPooling2D(),
            convpar.ConvParallel2D(500, 5, name="conv2d_1"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )
    assert of_model(model, 64) == network((50, 500))


def test_input_gradients_of_a_graph():
    """What stands behind nothing that learns needs none."""
    layers = keras.layers
    inputs = keras.Input((8, 8, 2))
    frozen = layers.Conv2D(2, 3, padding="same", name="frozen")
    x = frozen(layers.Rescaling(0.5)(inputs))
    frozen.trainable = False
    left = layers.Conv2D(2, 3, padding="same", name="left")(x)
    right = layers.Conv2D(2, 3, padding="same", use_bias=False, name="right")(x)
    inner = keras.Sequential(
        [
            keras.Input((8, 8, 2)),
            layers.Conv2D(2, 3, padding="same", name="inner"),
            layers.Conv2D(2, 3, padding="same", name="deep"),
        ]
    )
    y = layers.Add()([left, inner(right)])
    side = layers.Conv2D(2, 1, name="side")(layers.ReLU()(inputs))
    model = keras.Model(inputs, [y, side])
    found = {c.name: c for c in of_model(model, 4)}
    assert {name: c.input_gradient for name, c in found.items()} == {
        "frozen": False,
        "left": False,
        "right": False,
        "inner": True,
        "deep": True,
        "side": False,
    }
    assert {name: c.bias for name, c in found.items()}["right"] is False
    # The same layers at the start of a model.
    alone = {c.name: c.input_gradient for c in of_model(inner, 4)}
    assert alone == {"inner": False, "deep": True}


@pytest.mark.parametrize("step", [1, -1])
def test_a_layer_called_twice_needs_what_either_call_needs(step):
    layers = keras.layers
    shared = layers.Conv2D(2, 3, padding="same", name="shared")
    inputs = keras.Input((8, 8, 2))
    learnt = layers.Conv2D(2, 1, name="first")(inputs)
    # In which order the graph is walked must not matter.
    calls = [shared(inputs), shared(learnt)][::step]
    model = keras.Model(inputs, layers.Add()(calls))
    found = {c.name: c.input_gradient for c in of_model(model, 4)}
    assert found == {"first": False, "shared": True}


def test_models_without_a_graph_need_all():
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.conv = keras.layers.Conv2D(2, 3)

        def call(self, x):
            return self.conv(x)

    model = Model()
    model(keras.ops.zeros((1, 8, 8, 2)))
    assert [c.input_gradient for c in of_model(model, 4)] == [True]


def test_models_that_cannot_be_described():
    model = keras.Sequential(
        [keras.Input((None, None, 3)), keras.layers.Conv2D(2, 3, name="one")]
    )
    with pytest.raises(ValueError, match="known size. Received: layer 'one'"):
        of_model(model, 4)
    dense = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    with pytest.raises(ValueError, match="at least one convolution"):
        of_model(dense, 4)

"""Bytes of a step by theory, beside sums made by hand."""

import collections

import keras
import numpy as np
import pytest
import tensorflow as tf

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


# Of 6 images each device has so many; then of another layer.
IMAGES, OTHERS = (1, 2, 3), (3, 2, 1)
MINE = {"split": "samples", "shards": IMAGES}
THEIRS = {"split": "samples", "shards": OTHERS}
PAIRS = ((0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1))
# Numbers of one channel of an image.
PIXELS = 64


def by_links(of):
    """For each link what a function of its two ends says."""
    return np.array([of(a, b) for a, b in PAIRS])


def image_for(shares):
    """3 channels from the chief, whose gradient is not asked for."""
    return by_links(lambda a, b: (a == 0) * 3 * PIXELS * shares[b])


def kernel(numbers):
    """A third of it from each to each, and its gradients."""
    return by_links(lambda a, b: 2 * numbers // 3)


def joined(shares):
    """All that others have, to the chief; its gradients return."""
    return by_links(lambda a, b: (a == 0) * shares[b] + (b == 0) * shares[a])


def gathered(shares):
    """What each has, to all others; their gradients return."""
    return by_links(lambda a, b: shares[a] + shares[b])


FIRST_KERNEL = kernel(3 * 3 * 3 * 12 + 12)
SECOND_KERNEL = kernel(3 * 3 * 12 * 6 + 6)
ENDS = joined(np.multiply(6 * PIXELS, IMAGES))
ALL_IMAGES = image_for((6, 6, 6))


def pair(first, second, *between):
    def make():
        layers = [kind() for kind in between]
        model = chain(*layers, conv(6, name="second"))
        return model, {"conv2d": first, "second": second}

    return make


def fork(first, *ends):
    """Two layers take what one gives."""

    def make():
        x = keras.Input((8, 8, 3))
        y = conv()(x)
        outputs = [conv(6, name=f"end{i}")(y) for i in range(len(ends))]
        plan = {f"end{i}": end for i, end in enumerate(ends)}
        return keras.Model(x, outputs), {"conv2d": first} | plan

    return make


# Numbers over each link of `PAIRS`, in training.
BY_SAMPLES = {
    "one share": (
        pair(MINE, MINE, L.ReLU),
        image_for(IMAGES) + FIRST_KERNEL + SECOND_KERNEL + ENDS,
    ),
    "unlike shares": (
        pair(THEIRS, MINE),
        image_for(OTHERS)
        + FIRST_KERNEL
        # Images 1 and 2 are the first's and then the second's, 3 and 4 the
        # second's and then the third's.
        + 2 * 12 * PIXELS * np.array([1, 1, 0, 0, 1, 1])
        + SECOND_KERNEL
        + ENDS,
    ),
    "filters, samples": (
        pair(FIRST, MINE),
        ALL_IMAGES
        + PIXELS
        * by_links(lambda a, b: IMAGES[b] * FIRST[a] + IMAGES[a] * FIRST[b])
        + SECOND_KERNEL
        + ENDS,
    ),
    "samples, filters": (
        pair(MINE, SECOND),
        image_for(IMAGES)
        + FIRST_KERNEL
        + gathered(np.multiply(12 * PIXELS, IMAGES))
        + joined(np.multiply(6 * PIXELS, SECOND)),
    ),
    "samples, chief": (
        pair(MINE, None),
        image_for(IMAGES)
        + FIRST_KERNEL
        + joined(np.multiply(12 * PIXELS, IMAGES)),
    ),
    "normalized": (
        pair(MINE, MINE, L.BatchNormalization),
        image_for(IMAGES)
        + FIRST_KERNEL
        # Scale and offset, of which the chief knows the gradients.
        + 2 * 12 * by_links(lambda a, b: a == 0)
        # Means and variances, and sums of gradients.
        + gathered((24, 24, 24))
        + SECOND_KERNEL
        + ENDS,
    ),
    "two that need all": (
        fork(MINE, SECOND, SECOND),
        image_for(IMAGES)
        + FIRST_KERNEL
        + gathered(np.multiply(12 * PIXELS, IMAGES))
        + 2 * joined(np.multiply(6 * PIXELS, SECOND)),
    ),
    "two that need filters of all": (
        fork(FIRST, SECOND, SECOND),
        ALL_IMAGES
        + gathered(np.multiply(6 * PIXELS, FIRST))
        + 2 * joined(np.multiply(6 * PIXELS, SECOND)),
    ),
    "two that need other samples": (
        fork(THEIRS, MINE, MINE),
        image_for(OTHERS)
        + FIRST_KERNEL
        + 2 * 12 * PIXELS * np.array([1, 1, 0, 0, 1, 1])
        + 2 * SECOND_KERNEL
        + 2 * ENDS,
    ),
    "two on the chief": (
        fork(MINE, None, None),
        image_for(IMAGES)
        + FIRST_KERNEL
        + joined(np.multiply(12 * PIXELS, IMAGES)),
    ),
}


def crossing(model, strategy):
    """Numbers over each link in the graph of a step."""

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            outputs = keras.tree.flatten(model(x, training=True))
            loss = tf.add_n([tf.reduce_sum(tf.sin(y)) for y in outputs])
        gradients = tape.gradient(loss, model.trainable_variables)
        return loss, [tf.nest.flatten(g, True) for g in gradients]

    graph = step.get_concrete_function(tf.TensorSpec((6, 8, 8, 3))).graph
    places, seen = {}, {}
    for op in graph.get_operations():
        # Scalars are what the machinery of gradients is made of.
        given = [x for x in op.inputs if x.dtype.is_floating and x.shape.rank]
        # Sums of gradients have no device: they are where their terms are.
        begins = {places[x.op] for x in given} or {strategy.chief_device}
        place = begins.pop() if len(begins) == 1 else strategy.chief_device
        places[op] = op.device or place
        for x in given:
            if places[x.op] != places[op]:
                numbers = int(np.prod(x.shape))
                seen[x.name, places[op]] = places[x.op], numbers
    found = collections.Counter()
    for (_, end), (begin, numbers) in seen.items():
        found[begin, end] += numbers
    return [found[strategy.devices[a], strategy.devices[b]] for a, b in PAIRS]


@pytest.mark.parametrize("case", BY_SAMPLES)
def test_numbers_of_each_link_by_samples(case, strategy):
    """By hand, by theory, and those that cross in the graph of a step."""
    make, expected = BY_SAMPLES[case]
    model, plan = make()
    with strategy.scope():
        model = convpar.parallelize(model, plan)
    traffic = step_traffic(model, 6)
    assert traffic.total == 4 * sum(expected)
    devices = strategy.devices
    assert [
        traffic.links.get((devices[a], devices[b]), 0) for a, b in PAIRS
    ] == list(4 * expected)
    assert crossing(model, strategy) == list(expected)


def test_numbers_of_own_moments(strategy):
    make, expected = BY_SAMPLES["normalized"]
    model, plan = make()
    with strategy.scope():
        model = convpar.parallelize(model, plan, moments="own")
    # Gradients by scale and offset return; moments go to the chief alone.
    to_chief = by_links(lambda a, b: b == 0)
    expected = expected - gathered((24, 24, 24)) + (24 + 24) * to_chief
    devices = strategy.devices
    links = step_traffic(model, 6).links
    assert [links.get((devices[a], devices[b]), 0) for a, b in PAIRS] == list(
        4 * expected
    )
    assert crossing(model, strategy) == list(expected)


def test_nothing_returns_where_nothing_learns(strategy):
    make, expected = BY_SAMPLES["one share"]
    model, plan = make()
    with strategy.scope():
        model = convpar.parallelize(model, plan)
    # The image's gradient does not return anyway.
    once = (expected + image_for(IMAGES)) / 2
    there = by_links(lambda a, b: (a == 0) * 3 * PIXELS * IMAGES[b])
    maps = by_links(lambda a, b: (b == 0) * 6 * PIXELS * IMAGES[a])
    kernels = (FIRST_KERNEL + SECOND_KERNEL) // 2
    traffic = step_traffic(model, 6, training=False)
    assert traffic.total == 4 * sum(there + maps + kernels) == 4 * sum(once)
    model.layers[0].trainable = False
    frozen = step_traffic(model, 6)
    assert traffic.total < frozen.total
    assert frozen.total == 4 * sum(expected - FIRST_KERNEL // 2)


@pytest.mark.parametrize(
    ("policy", "wire", "widths"),
    [
        ("float32", "bfloat16", (2, 4)),
        ("mixed_float16", None, (2, 4)),
        ("float64", None, (8, 8)),
        ("float64", "float32", (4, 8)),
    ],
)
def test_moments_travel_wide(policy, wire, widths, strategy):
    keras.mixed_precision.set_dtype_policy(policy)
    make, expected = BY_SAMPLES["normalized"]
    model, plan = make()
    with strategy.scope():
        model = convpar.parallelize(model, plan, wire_dtype=wire)
    moments = 2 * 12 * by_links(lambda a, b: a == 0)
    moments += gathered((24, 24, 24))
    narrow, wide = widths
    assert step_traffic(model, 6).total == narrow * sum(
        expected - moments
    ) + wide * sum(moments)


def test_each_call_of_a_model_within_moves_its_own(strategy):
    """Also the maps that lie in shards between its layers."""
    inner = keras.Sequential([keras.Input((8, 8, 3)), conv(), conv(6)])
    totals = []
    for calls in (1, 2):
        inputs = [keras.Input((8, 8, 3)) for _ in range(calls)]
        model = keras.Model(inputs, [inner(x) for x in inputs])
        with strategy.scope():
            parallel = convpar.parallelize(model)
        totals.append(step_traffic(parallel, 6).total)
    assert totals[1] == 2 * totals[0]


def test_of_images_of_any_size_nothing_can_be_said(strategy):
    with strategy.scope():
        parallel = convpar.parallelize(chain(shape=(None, None, 3)))
    with pytest.raises(ValueError, match="inputs of known size"):
        step_traffic(parallel, 2)

"""Every parallel layer, split by samples, is its Keras twin."""

import collections

import by_samples
import families
import keras
import numpy as np
import pytest
import tensorflow as tf
from by_samples import same
from families import NAMES
from families import TWINS
from families import arguments
from families import inputs
from test_layer_family import moved_derivatives

import tf_convpar as convpar
from tf_convpar.layers import Split

L = keras.layers
BATCH = 7
UNEVEN = (2, 1, 4)
wide = pytest.mark.usefixtures("float64")


def pair(kind, x, strategy, shards=UNEVEN, **kwargs):
    """The layer, split by samples, and its twin, of the same weights."""
    own = {
        name: kwargs.pop(name)
        for name in ("wire_dtype", "algorithm")
        if name in kwargs
    }
    keras.utils.set_random_seed(5)
    plain = TWINS[kind](**kwargs)
    plain.build(x.shape)
    keras.utils.set_random_seed(5)
    with strategy.scope():
        layer = kind(**kwargs, **own, split="samples", shards=shards)
        layer.build(x.shape)
    return layer, plain


def images(kind, batch=BATCH, **kwargs):
    kwargs = {"size": 6} | kwargs
    return inputs(kind, batch=batch, **kwargs)


def derivatives(layer, x):
    """Feature maps, and gradients for the input and every weight."""
    x = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x)
        loss = tf.reduce_sum(tf.sin(tf.cast(y, layer.variable_dtype)))
    grads = tape.gradient(loss, [x, *layer.trainable_variables])
    return [np.asarray(tf.cast(g, "float64")) for g in (y, *grads)]


@wide
@pytest.mark.parametrize("name", NAMES)
def test_equals_its_twin(name, strategy):
    kind = NAMES[name]
    x = images(kind).astype("float64")
    kwargs = arguments(kind, padding="same", activation="softmax")
    layer, plain = pair(kind, x, strategy, **kwargs)
    # Kernels lie in equal shards all the same.
    assert layer.is_sharded
    assert layer._samples.shares == UNEVEN
    assert max(layer._layout.sizes) - min(layer._layout.sizes) <= 1
    for ours, theirs in zip(layer.weights, plain.weights, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    # Fewer samples than devices too.
    for batch in (7, 2, 1):
        ours, theirs = (derivatives(one, x[:batch]) for one in (layer, plain))
        same(ours, theirs, 1e-11)
    gradients = layer.trainable_variables
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(x))
    for variable, gradient in zip(
        gradients, tape.gradient(loss, gradients), strict=True
    ):
        shards = variable._value.sharded_value().shards
        assert [g.device for g in gradient.shards] == [
            shard.device for shard in shards
        ]


@wide
@pytest.mark.parametrize(
    "name",
    [
        *(n for n in NAMES if "2D" in n),
        *(pytest.param(n, marks=pytest.mark.slow) for n in NAMES if "1D" in n),
    ],
)
def test_of_unknown_batch(name, strategy):
    kind = NAMES[name]
    x = images(kind).astype("float64")
    kwargs = arguments(kind, strides=2, use_bias=False)
    layer, plain = pair(kind, x, strategy, **kwargs)

    @tf.function(
        input_signature=[tf.TensorSpec((None, *x.shape[1:]), "float64")]
    )
    def traced(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x)
            assert y.shape[0] is None
            loss = tf.reduce_sum(tf.sin(y))
        grads = tape.gradient(loss, [x, *layer.trainable_variables])
        return [tf.convert_to_tensor(g) for g in (y, *grads)]

    for batch in (7, 2):
        same(map(np.asarray, traced(x[:batch])), derivatives(plain, x[:batch]))


@wide
@pytest.mark.parametrize("name", NAMES)
def test_channels_first(name, strategy):
    kind = NAMES[name]
    x = images(kind, first=True).astype("float64")
    kwargs = arguments(kind, data_format="channels_first")
    layer, _ = pair(kind, x, strategy, **kwargs)
    # On a CPU the twin has no gradients then: one with channels last has.
    ours = families.derivatives(layer, x)
    same(ours, moved_derivatives(layer, kind, x, kwargs), 1e-10)


CASES = {
    "groups": ("Conv2D", {"groups": 4}),
    "groups of one": ("Conv1D", {"groups": 8, "filters": 16}),
    "dilated": ("Conv2D", {"dilation_rate": 2, "padding": "same"}),
    "causal": ("Conv1D", {"padding": "causal", "dilation_rate": 2}),
    "strides": ("Conv3D", {"strides": 2, "padding": "same"}),
    "multiplied": ("DepthwiseConv2D", {"depth_multiplier": 3}),
    "separable": ("SeparableConv2D", {"depth_multiplier": 2}),
    "padded output": (
        "Conv2DTranspose",
        {"strides": 2, "padding": "same", "output_padding": 1},
    ),
    "one filter": ("Conv2D", {"filters": 1}),
    "one filter of three": ("SeparableConv1D", {"filters": 1}),
}


@wide
@pytest.mark.parametrize("case", CASES)
def test_whatever_the_arguments(case, strategy):
    name, kwargs = CASES[case]
    kind = NAMES[name]
    x = images(kind, size=7).astype("float64")
    layer, plain = pair(kind, x, strategy, **arguments(kind, **kwargs))
    if "dilation_rate" in kwargs:
        # TensorFlow has no gradients of these on a CPU.
        same([np.asarray(layer(x))], [np.asarray(plain(x))], 1e-11)
        return
    for batch in (7, 1):
        ours, theirs = (derivatives(one, x[:batch]) for one in (layer, plain))
        same(ours, theirs, 1e-11)


SHARES = {
    "weights": ((0.5, 0.25, 1.25), (250, 125, 625)),
    "none for the chief": ((0, 3, 1), (3, 1)),
    "two numbers": ((1, 2), (1, 2)),
    "equal": (None, (1, 1, 1)),
    "one device": ((0, 5), (5,)),
}


@wide
@pytest.mark.parametrize("case", SHARES)
def test_shares(case, strategy):
    shards, expected = SHARES[case]
    kind = NAMES["Conv2D"]
    x = images(kind, size=5).astype("float64")
    layer, plain = pair(kind, x, strategy, shards, **arguments(kind))
    assert layer._samples.shares == expected
    same(derivatives(layer, x), derivatives(plain, x), 1e-11)
    text = f"shards={expected}"
    assert text in repr(layer)


def test_all_samples_on_the_chief(strategy):
    kind = NAMES["Conv2D"]
    x = images(kind)
    layer, plain = pair(kind, x, strategy, (4, 0, 0), **arguments(kind))
    assert not layer.is_spread
    np.testing.assert_array_equal(layer(x), plain(x))


def test_more_shares_than_devices(strategy):
    kind = NAMES["Conv2D"]
    x = images(kind)
    with pytest.warns(UserWarning, match="4 shards and this program 3"):
        layer, plain = pair(kind, x, strategy, (1, 2, 1, 3), **arguments(kind))
    same(derivatives(layer, x), derivatives(plain, x), 1e-5)


@pytest.mark.parametrize("algorithm", ["auto", "winograd", "fft", "gemm"])
def test_algorithms(algorithm, strategy):
    kind = NAMES["Conv2D"]
    x = images(kind, size=8)
    layer, plain = pair(
        kind, x, strategy, algorithm=algorithm, **arguments(kind)
    )
    for batch in (7, 1):
        ours, theirs = (derivatives(one, x[:batch]) for one in (layer, plain))
        same(ours, theirs, 1e-4)


ROUNDED = {
    "wire": ({"wire_dtype": "bfloat16"}, {}, 2**-7),
    "wire of 16 bits": ({"wire_dtype": "float16"}, {}, 2**-10),
    "mixed": ({}, {"dtype": "mixed_float16"}, 2**-8),
    "mixed, on a narrower wire": (
        {"wire_dtype": "bfloat16"},
        {"dtype": "mixed_float16"},
        2**-6,
    ),
    "mixed bfloat16": ({}, {"dtype": "mixed_bfloat16"}, 2**-5),
}


@pytest.mark.parametrize("case", ROUNDED)
@pytest.mark.parametrize("name", ["Conv2D", "SeparableConv2D"])
def test_within_rounding(name, case, strategy):
    """Of what travels; the chief's own samples keep every digit."""
    own, kwargs, tolerance = ROUNDED[case]
    kind = NAMES[name]
    x = images(kind)
    layer, plain = pair(kind, x, strategy, **own, **arguments(kind, **kwargs))
    assert layer(x).dtype == plain(x).dtype
    exact = TWINS[kind](**arguments(kind))
    exact.build(x.shape)
    exact.set_weights(plain.get_weights())
    true = derivatives(exact, x)
    ours, theirs = derivatives(layer, x), derivatives(plain, x)
    for a, b, c in zip(ours, theirs, true, strict=True):
        # Sums of many narrow numbers are far off in plain Keras too.
        limit = 2 * tolerance * np.abs(c).max() + 2 * np.abs(b - c).max()
        assert np.abs(a - c).max() < limit
    if "wire_dtype" in own and not kwargs:
        errors = np.abs(ours[0] - theirs[0]).reshape(BATCH, -1).max(1)
        assert (errors > 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_serializes_and_loads(name, strategy, tmp_path):
    """With other shards, in a plain layer, and merged."""
    kind = NAMES[name]
    x = images(kind, size=4)
    layer = kind(**arguments(kind), split="samples", shards=(2.5, 0, 1))
    config = layer.get_config()
    assert (config["split"], config["shards"]) == ("samples", (2.5, 0, 1))
    assert kind.from_config(config).get_config() == config
    with strategy.scope():
        model = keras.Sequential([keras.Input(x.shape[1:]), layer])
        model.save(tmp_path / "model.keras")
        loaded = keras.models.load_model(tmp_path / "model.keras")
        other = kind(**arguments(kind), shards=(0, 1, 1))
        others = keras.Sequential([keras.Input(x.shape[1:]), other])
        others.load_weights(tmp_path / "model.keras")
    assert type(loaded.layers[0]) is kind
    assert loaded.layers[0]._samples.shares == (714, 286)
    plain = convpar.merge(model)
    assert type(plain.layers[0]) is TWINS[kind]
    expected = np.asarray(plain(x))
    for one in (model, loaded, others):
        same([np.asarray(one(x))], [expected], 1e-6)
        for ours, theirs in zip(one.weights, plain.weights, strict=True):
            np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


def test_outside_a_strategy():
    """On this machine's devices."""
    layer = convpar.ConvParallel2D(4, 3, split="samples", shards=(1, 0, 2))
    plain = L.Conv2D(4, 3)
    x = images(NAMES["Conv2D"])
    plain.build(x.shape)
    layer.build(x.shape)
    layer.set_weights(plain.get_weights())
    same(derivatives(layer, x), derivatives(plain, x), 1e-5)


WRONG = {
    "split": (lambda: convpar.ConvParallel2D(4, 3, split="rows"), "'rows'"),
    "shards": (
        lambda: convpar.ConvParallel2D(4, 3, split="samples", shards=(1, -1)),
        r"\(1, -1\)",
    ),
    "no shards": (
        lambda: convpar.ConvParallel2D(4, 3, split="samples", shards=(0, 0)),
        r"\(0, 0\)",
    ),
    "a plan's split": (lambda: Split.of("batch"), "'batch'"),
    "a plan's words": (
        lambda: Split.of({"split": "samples", "share": 3}),
        "'share'",
    ),
    "a plan's shards": (
        lambda: Split.of({"split": "samples", "shards": (-1,)}),
        "-1",
    ),
    "a plan": (
        lambda: convpar.parallelize(
            keras.Sequential([keras.Input((4, 4, 1)), by_samples.conv()]),
            {".*": {"by": "samples"}},
        ),
        "'by'",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_refused(case):
    make, received = WRONG[case]
    with pytest.raises(ValueError, match=f"Expected .*Received: .*{received}"):
        make()


@pytest.mark.parametrize("split", ["samples", "filters", None])
def test_each_gradient_is_computed_once(split, strategy):
    """Also of a layer of two convolutions, whose parts wait for each other."""
    own = {"algorithm": "auto"} if split is None else {"split": split}
    # Two channels for each of four devices: of one it would be a convolution.
    layer = convpar.SeparableConvParallel2D(8, 3, **own)
    images_of = images(type(layer), size=9, channels=8)
    layer.build(images_of.shape)

    @tf.function(autograph=False)
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x)
        return y, tape.gradient(y, [x, *layer.trainable_variables])

    graph = step.get_concrete_function(tf.constant(images_of)).graph
    todo, needed = [x.op for x in graph.outputs], {}
    while todo:
        op = todo.pop()
        if op.name not in needed:
            needed[op.name] = op.type
            todo += [*op.control_inputs, *(x.op for x in op.inputs)]
    counts = collections.Counter(needed.values())
    for op in (
        *("Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter"),
        "DepthwiseConv2dNativeBackpropFilter",
    ):
        assert counts[op] == (1 if split is None else 4), (op, counts)

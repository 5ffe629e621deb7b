"""Layers on shards give what they give unsplit, and stay where shards are."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from by_samples import curvature

import tf_convpar as convpar
from tf_convpar.layers import within_region
from tf_convpar.placement import ShardedTensor
from tf_convpar.placement import ShardedVariable
from tf_convpar.sharding import OnShards

L = keras.layers


def conv(filters=12, **kwargs):
    return L.Conv2D(filters, 3, padding="same", **kwargs)


def chain(*layers, shape=(8, 8, 3)):
    """A convolution, the layers, and another convolution."""
    return keras.Sequential([keras.Input(shape), conv(), *layers, conv(6)])


def joined(pair):
    """By one layer after another."""
    y, z = pair
    y = L.Multiply()([L.Subtract()([L.Add()([y, z]), z]), z])
    return L.Minimum()([L.Maximum()([L.Average()([y, z]), z]), pair[0]])


def branches(join, first=12, second=12, shape=(8, 8, 3)):
    x = keras.Input(shape)
    y = conv(first)(x)
    z = L.ReLU()(conv(second)(y))
    return keras.Model(x, conv(6)(join([y, z])))


# Some layers at once: what each of them costs is the convolutions around it.
TOGETHER = {
    "activations": lambda: chain(
        L.ReLU(max_value=1.0, negative_slope=0.1),
        L.LeakyReLU(0.3),
        L.ELU(0.5),
        L.Activation("gelu"),
        L.Identity(),
        L.Rescaling(2.0, 0.1),
        L.PReLU("random_uniform"),
        L.PReLU("random_uniform", shared_axes=[1, 2]),
    ),
    "other sizes": lambda: chain(
        L.ZeroPadding2D(((1, 2), (0, 3))),
        L.MaxPooling2D(),
        L.UpSampling2D(2),
        L.Cropping2D(1),
        L.UpSampling2D(2, interpolation="bilinear"),
        L.AveragePooling2D(3, 2, padding="same"),
    ),
    "normalizations": lambda: chain(
        L.BatchNormalization(),
        L.BatchNormalization(scale=False),
        L.BatchNormalization(center=False),
    ),
    "dropouts": lambda: chain(
        L.Dropout(0.4, seed=3),
        L.Dropout(0.4, noise_shape=(None, 8, 1, 12), seed=4),
        L.SpatialDropout2D(0.4, seed=5),
    ),
    "joins": lambda: branches(joined),
}
RULES = {
    "max pooling": lambda: chain(L.MaxPooling2D()),
    "average pooling": lambda: chain(L.AveragePooling2D(3, 2, padding="same")),
    "zero padding": lambda: chain(L.ZeroPadding2D(((1, 2), (0, 3)))),
    "cropping": lambda: chain(L.Cropping2D(1)),
    "upsampling": lambda: chain(L.UpSampling2D(2)),
    "bilinear": lambda: chain(L.UpSampling2D(2, interpolation="bilinear")),
    "relu": lambda: chain(L.ReLU(max_value=1.0, negative_slope=0.1)),
    "leaky relu": lambda: chain(L.LeakyReLU(0.3)),
    "elu": lambda: chain(L.ELU(0.5)),
    "gelu": lambda: chain(L.Activation("gelu")),
    "identity": lambda: chain(L.Identity()),
    "rescaling": lambda: chain(L.Rescaling(2.0, 0.1)),
    "prelu": lambda: chain(L.PReLU("random_uniform")),
    "prelu, one slope for all pixels": lambda: chain(
        L.PReLU("random_uniform", shared_axes=[1, 2])
    ),
    "prelu, one slope for all channels": lambda: chain(
        L.PReLU("random_uniform", shared_axes=[1, 2, 3])
    ),
    "batch normalization": lambda: chain(L.BatchNormalization()),
    "without scale": lambda: chain(L.BatchNormalization(scale=False)),
    "without centre": lambda: chain(L.BatchNormalization(center=False)),
    "dropout": lambda: chain(L.Dropout(0.4, seed=3)),
    "dropout of rows": lambda: chain(
        L.Dropout(0.4, noise_shape=(None, 8, 1, 12), seed=3)
    ),
    "spatial dropout": lambda: chain(L.SpatialDropout2D(0.4, seed=3)),
    "depthwise": lambda: chain(L.DepthwiseConv2D(3, depth_multiplier=2)),
    "separable": lambda: chain(L.SeparableConv2D(10, 3)),
    "transposed": lambda: chain(L.Conv2DTranspose(10, 2, strides=2)),
    "add": lambda: branches(L.Add()),
    "subtract": lambda: branches(L.Subtract()),
    "multiply": lambda: branches(L.Multiply()),
    "average": lambda: branches(L.Average()),
    "maximum": lambda: branches(L.Maximum()),
    "minimum": lambda: branches(L.Minimum()),
    "concatenate": lambda: branches(L.Concatenate(), 12, 8),
}
ALONE = {
    "prelu, one slope for all channels",
    *("depthwise", "separable", "transposed", "concatenate"),
}
# These have no rule, or none that holds here: the chief runs them.
JOINED = {
    "softmax": lambda: chain(L.Activation("softmax")),
    "layer normalization": lambda: chain(L.LayerNormalization()),
    "normalization of rows": lambda: chain(L.BatchNormalization(axis=1)),
    "permute": lambda: chain(L.Permute((2, 1, 3))),
    "lambda": lambda: chain(L.Lambda(lambda x: x[..., ::-1])),
    "rescaling of each channel": lambda: chain(
        L.Rescaling(np.arange(12, dtype="float32"))
    ),
    "concatenated rows": lambda: branches(L.Concatenate(axis=1)),
    "unequal layouts": lambda: branches(L.Concatenate(axis=1)),
}


def learn(model, x, y, steps=2):
    """Losses and outputs of some steps of training."""
    keras.utils.set_random_seed(4)
    model.compile(keras.optimizers.SGD(0.05), "mse", jit_compile=False)
    losses = [model.train_on_batch(x, y) for _ in range(steps)]
    return [np.asarray(losses), np.asarray(model(x))] + [
        np.asarray(v) for v in model.variables if "seed" not in v.path
    ]


def compare(model, strategy, tolerance=3e-5, **kwargs):
    with strategy.scope():
        parallel = convpar.parallelize(model, **kwargs)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, *model.input_shape[1:])).astype("float32")
    y = rng.normal(size=(4, *model.output_shape[1:])).astype("float32")
    first = np.asarray(parallel(x))
    np.testing.assert_allclose(
        first, np.asarray(model(x)), rtol=tolerance, atol=tolerance
    )
    for ours, theirs in zip(
        learn(parallel, x, y), learn(model, x, y), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=tolerance)
    return parallel


def rule_of(layer):
    call = vars(layer).get("call")
    return call.rule if isinstance(call, OnShards) else None


@pytest.mark.parametrize(
    "case",
    [
        *TOGETHER,
        *(
            case
            if case in ALONE
            else pytest.param(case, marks=pytest.mark.slow)
            for case in RULES
        ),
    ],
)
def test_rules(case, strategy):
    parallel = compare((TOGETHER | RULES)[case](), strategy)
    for layer in parallel.layers:
        if hasattr(layer, "shards"):
            assert layer.is_sharded and layer._in_region
        elif not isinstance(layer, keras.layers.InputLayer):
            assert rule_of(layer) is not None, layer.name
    sharded = {
        v.path
        for v in parallel.variables
        if isinstance(v._value, ShardedVariable)
    }
    if case not in ("prelu, one slope for all channels",):
        assert sharded >= {v.path for v in parallel.trainable_variables}


@pytest.mark.parametrize("case", JOINED)
def test_what_has_no_rule_runs_on_the_chief(case, strategy):
    parallel = compare(JOINED[case](), strategy)
    layer = next(
        layer
        for layer in parallel.layers
        if not hasattr(layer, "shards")
        and not isinstance(layer, L.ReLU | L.InputLayer)
    )
    assert rule_of(layer) is None


@pytest.mark.parametrize("pooling", ["Average", "Max"])
@pytest.mark.parametrize("keepdims", [False, True])
def test_global_pooling_and_a_dense_layer(pooling, keepdims, strategy):
    layer = getattr(L, f"Global{pooling}Pooling2D")(keepdims=keepdims)
    model = keras.Sequential(
        [keras.Input((8, 8, 3)), conv(), layer, L.Flatten(), L.Dense(3)]
    )
    parallel = compare(model, strategy)
    assert rule_of(parallel.layers[-1]) is not None
    assert isinstance(parallel.layers[-1].kernel._value, ShardedVariable)


def test_a_dense_layer_after_flatten(strategy):
    model = keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            conv(activation="relu"),
            L.MaxPooling2D(),
            L.Flatten(),
            L.Dense(5, activation="softmax"),
        ]
    )
    parallel = compare(model, strategy, plan={"conv2d": (5, 3, 4)})
    kernel = parallel.layers[-1].kernel
    assert [s.shape[0] for s in kernel._value.shards] == [80, 48, 64]
    np.testing.assert_array_equal(kernel.numpy(), parallel.get_weights()[2])


def test_a_wide_dense_layer_gets_the_features(strategy):
    """Sums of 4000 units would be more numbers than 768 features."""
    model = keras.Sequential(
        [keras.Input((8, 8, 3)), conv(), L.Flatten(), L.Dense(400)]
    )
    parallel = compare(model, strategy)
    assert rule_of(parallel.layers[-1]) is None


def test_squeeze_and_excitation(strategy):
    x = keras.Input((8, 8, 3))
    y = conv(activation="swish")(x)
    s = L.Reshape((1, 1, 12))(L.GlobalAveragePooling2D()(y))
    s = L.Conv2D(4, 1, activation="relu")(s)
    s = L.Conv2D(12, 1, activation="sigmoid")(s)
    parallel = compare(keras.Model(x, conv(6)(L.Multiply()([y, s]))), strategy)
    assert all(
        rule_of(layer) is not None
        for layer in parallel.layers
        if type(layer) in (L.Reshape, L.GlobalAveragePooling2D, L.Multiply)
    )


def test_feature_maps_stay_on_their_devices(strategy):
    """In the graph of a step nothing but gathers and the end is the chief's."""
    with strategy.scope():
        parallel = convpar.parallelize(
            chain(L.ReLU(), L.BatchNormalization(), L.MaxPooling2D())
        )
    with within_region():
        maps = parallel.layers[0](np.ones((2, 8, 8, 3), "float32"))
        for layer in parallel.layers[1:-1]:
            maps = layer(maps)
            assert isinstance(maps, ShardedTensor)
            places = [shard.device[-5:] for shard in maps.shards]
            assert places == ["CPU:0", "CPU:1", "CPU:2"]

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(parallel(x, training=True))
        return tape.gradient(loss, parallel.trainable_variables)

    graph = step.get_concrete_function(tf.TensorSpec((2, 8, 8, 3))).graph
    places = {"FusedBatchNormV3": set(), "Relu": set(), "MaxPool": set()}
    for op in graph.get_operations():
        for kind in (
            "MaxPoolGrad",
            "ReluGrad",
            "Conv2DBackpropFilter",
            "MaxPool",
            "Relu",
        ):
            if op.type == kind:
                places.setdefault(kind, set()).add(op.device[-5:])
    for kind in ("MaxPoolGrad", "ReluGrad", "Conv2DBackpropFilter", "MaxPool"):
        assert places[kind] == {"CPU:0", "CPU:1", "CPU:2"}, kind


def test_a_plan_that_gives_a_device_nothing(strategy):
    parallel = compare(
        chain(L.BatchNormalization(), L.ReLU()),
        strategy,
        plan={"conv2d": (0, 9, 3), "conv2d_1": (1, 0, 5)},
    )
    assert parallel.layers[0]._layout.sizes == (9, 3)


def test_channels_first(strategy):
    """Beside a model with channels last: plain Keras has no other on a CPU."""

    def network(data_format):
        first = data_format == "channels_first"
        return keras.Sequential(
            [
                keras.Input((3, 8, 8) if first else (8, 8, 3)),
                conv(data_format=data_format),
                L.BatchNormalization(axis=1 if first else -1),
                L.ReLU(),
                L.UpSampling2D(data_format=data_format),
                conv(8, data_format=data_format),
                L.GlobalAveragePooling2D(data_format=data_format),
                L.Dense(2),
            ]
        )

    with strategy.scope():
        parallel = convpar.parallelize(network("channels_first"))
    assert all(rule_of(parallel.layers[i]) is not None for i in (1, 2, 3, 5, 6))
    plain = network("channels_last")
    plain.set_weights(parallel.get_weights())
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 8, 8, 3)).astype("float32")
    y = rng.normal(size=(4, 2)).astype("float32")
    ours = learn(parallel, np.moveaxis(x, -1, 1), y)
    for a, b in zip(ours, learn(plain, x, y), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=3e-5)


def test_eager_and_of_second_order(strategy, monkeypatch):
    def moments(x, axes, keepdims=False):
        mean = tf.reduce_mean(x, axes, keepdims=True)
        variance = tf.reduce_mean(tf.square(x - mean), axes, keepdims=keepdims)
        return mean if keepdims else tf.squeeze(mean, axes), variance

    # TensorFlow's own stop the mean's gradient: the first derivative is none
    # the worse, the second is.
    monkeypatch.setattr(tf.nn, "moments", moments)
    model = chain(
        L.BatchNormalization(), L.Activation("tanh"), L.MaxPooling2D()
    )
    with strategy.scope():
        parallel = convpar.parallelize(model)
    x = tf.constant(
        np.random.default_rng(0).normal(size=(2, 8, 8, 3)), tf.float32
    )

    for ours, theirs in zip(
        curvature(parallel, x), curvature(model, x), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)


def test_mixed_precision_and_a_narrow_wire(strategy):
    keras.mixed_precision.set_dtype_policy("mixed_bfloat16")
    model = chain(L.BatchNormalization(), L.ReLU())
    with strategy.scope():
        parallel = convpar.parallelize(model)
    x = np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype("float32")
    np.testing.assert_allclose(
        tf.cast(parallel(x), "float32"), tf.cast(model(x), "float32"), atol=0.1
    )
    keras.mixed_precision.set_dtype_policy("float32")
    model = chain(L.BatchNormalization(), L.ReLU())
    with strategy.scope():
        narrow = convpar.parallelize(model, wire_dtype="bfloat16")
    error = np.abs(np.asarray(narrow(x)) - np.asarray(model(x))).max()
    assert 0 < error < 0.05

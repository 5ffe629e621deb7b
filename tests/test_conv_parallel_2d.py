"""ConvParallel2D against keras.layers.Conv2D, argument by argument."""

import inspect
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import but_slow

import tf_convpar as convpar
from tf_convpar.plans import whole_shares

KERNELS = {
    "plain": {},
    "same": {"padding": "same"},
    "strides": {"strides": (2, 1)},
    "dilation": {"dilation_rate": 2, "padding": "same"},
    "groups": {"groups": 2},
    "many groups": {"groups": 4},
    "no bias": {"use_bias": False},
    "activation": {"activation": "softmax"},
    "initializers": {
        "kernel_initializer": "he_normal",
        "bias_initializer": keras.initializers.RandomUniform(seed=4),
    },
    "activity": {"activity_regularizer": "l2"},
}


def gradients(layer, x):
    x = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x)
        loss = tf.reduce_sum(tf.sin(y)) + sum(layer.losses)
    grads = tape.gradient(loss, [x, *layer.trainable_variables])
    return [np.asarray(y)] + [np.asarray(g) for g in grads]


SHARDS = [(4, 8, 4), (1, 15), (0, 16, 0), (8, 0, 8)]
# The others are among those that test_layer_family.py tries for every kind.
OWN = ("strides", "dilation", "groups", "many groups", "initializers")


@pytest.mark.parametrize(
    ("case", "shards"),
    but_slow(
        list(itertools.product(KERNELS, SHARDS)),
        [
            *((case, SHARDS[0]) for case in OWN),
            *(("groups", shards) for shards in SHARDS),
        ],
    ),
)
def test_equals_conv2d(case, shards, strategy):
    # Without oneDNN a CPU has no gradient of a dilated convolution.
    forward_only = case == "dilation"
    kwargs = KERNELS[case]
    x = np.random.default_rng(0).normal(size=(3, 11, 12, 8)).astype("float32")
    keras.utils.set_random_seed(7)
    plain = keras.layers.Conv2D(16, 3, **kwargs)
    plain.build(x.shape)
    keras.utils.set_random_seed(7)
    with strategy.scope():
        layer = convpar.ConvParallel2D(16, 3, shards=shards, **kwargs)
        layer.build(x.shape)
    np.testing.assert_array_equal(layer.kernel.numpy(), plain.kernel.numpy())
    if forward_only:
        ours, theirs = [layer(x)], [plain(x)]
    else:
        ours, theirs = gradients(layer, x), gradients(plain, x)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
def test_against_float64(data_format, strategy):
    """Neither form is nearer to the exact result than float32 allows."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 9, 9, 6))
    k = rng.normal(size=(3, 3, 6, 10))
    exact = tf.nn.conv2d(x, k, 2, "SAME").numpy()
    with strategy.scope():
        layer = convpar.ConvParallel2D(
            10,
            3,
            strides=2,
            padding="same",
            data_format=data_format,
            shards=(5, 3, 2),
        )
    first = data_format == "channels_first"
    inputs = np.moveaxis(x, -1, 1) if first else x
    layer.build(inputs.shape)
    layer.set_weights([k, np.zeros(10)])
    y = np.asarray(layer(inputs.astype("float32")))
    assert layer.compute_output_shape(inputs.shape) == y.shape
    y = np.moveaxis(y, 1, -1) if first else y
    assert np.max(np.abs(y - exact)) / np.max(np.abs(exact)) < 1e-6


def test_channels_first_gradients_equal_channels_last(strategy):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 9, 9, 6)).astype("float32")
    results = []
    for data_format in ("channels_last", "channels_first"):
        keras.utils.set_random_seed(3)
        with strategy.scope():
            layer = convpar.ConvParallel2D(
                10, 3, data_format=data_format, groups=2, shards=(5, 3, 2)
            )
        first = data_format == "channels_first"
        y, dx, dk, db = gradients(layer, np.moveaxis(x, -1, 1) if first else x)
        if first:
            y, dx = np.moveaxis(y, 1, -1), np.moveaxis(dx, 1, -1)
        results.append((y, dx, dk, db))
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_takes_the_arguments_of_conv2d_in_order():
    theirs = inspect.signature(keras.layers.Conv2D.__init__).parameters
    values = [12, (3, 2), (1, 2), "same", "channels_last", (1, 1), 2, "relu"]
    values += [False, "zeros", "ones", "l2", "l1", None, "non_neg", None]
    layer = convpar.ConvParallel2D(*values, name="c", shards=(2, 1))
    plain = keras.layers.Conv2D(*values, name="c")
    assert len(theirs) - 2 == len(values)  # without self and **kwargs
    config = layer.get_config()
    assert config.pop("shards") == (2, 1)
    assert config.pop("wire_dtype") is None
    assert config.pop("algorithm") is None
    assert config.pop("split") is None
    assert config == plain.get_config()


def test_second_order_gradient(strategy):
    x = tf.random.normal([2, 6, 6, 3], seed=1)
    results = []
    for parallel in (False, True):
        keras.utils.set_random_seed(3)
        with strategy.scope():
            layer = (
                convpar.ConvParallel2D(4, 3, shards=(2, 1, 1))
                if parallel
                else keras.layers.Conv2D(4, 3)
            )
            layer.build(x.shape)
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                loss = tf.reduce_sum(layer(x) ** 3)
            dx = inner.gradient(loss, x)
            penalty = tf.reduce_sum(dx**2)
        results.append(
            [
                np.asarray(g)
                for g in outer.gradient(penalty, [x, *layer.weights])
            ]
        )
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-3)


def test_persistent_tape(strategy):
    with strategy.scope():
        layer = convpar.ConvParallel2D(4, 3, shards=(2, 1, 1))
    x = tf.random.normal([2, 6, 6, 3], seed=1)
    with tf.GradientTape(persistent=True) as tape:
        loss = tf.reduce_sum(layer(x))
    first = np.asarray(tape.gradient(loss, layer.kernel))
    np.testing.assert_array_equal(first, tape.gradient(loss, layer.kernel))


def test_gradient_through_a_nested_function(strategy):
    """There the gradient comes from the graph, not from the tape."""
    with strategy.scope():
        layer = convpar.ConvParallel2D(4, 3, shards=(2, 1, 1))
    x = tf.random.normal([2, 6, 6, 3], seed=1)
    layer.build(x.shape)

    def gradient(fn):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(fn(x) ** 2)
        return np.asarray(tape.gradient(loss, layer.kernel))

    np.testing.assert_allclose(
        gradient(tf.function(layer)), gradient(layer), rtol=1e-5
    )


def test_no_part_of_the_step_leaves_its_device(strategy):
    """Ops of forward and backward pass, by device, in the traced graph."""
    with strategy.scope():
        layer = convpar.ConvParallel2D(8, 3, shards=(4, 2, 2))
        x = tf.random.normal([2, 6, 6, 3], seed=1)
        layer.build(x.shape)

    @tf.function
    def step(x):
        def run(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = layer(x)
            grads = tape.gradient(y, [x, layer.kernel])
            return [grads[0], *grads[1].shards]

        return strategy.run(run, args=(x,))

    graph = step.get_concrete_function(x).graph
    by_type = {}
    for op in graph.get_operations():
        by_type.setdefault(op.type, []).append(op.device)
    for kind in ("Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter"):
        assert set(by_type[kind]) == set(strategy.devices), kind
    join = [d for k, v in by_type.items() if "ConcatShards" in k for d in v]
    cut = [d for k, v in by_type.items() if "SplitShards" in k for d in v]
    assert join == [strategy.chief_device] == cut


def test_one_device_is_plain_keras(strategy):
    with strategy.scope():
        layer = convpar.ConvParallel2D(8, 3, shards=(8,))
        layer.build((None, 6, 6, 3))
    assert not layer.is_sharded
    outside = convpar.ConvParallel2D(8, 3)
    outside.build((None, 6, 6, 3))
    assert not outside.is_sharded


def test_without_shards_the_plan_then_equal_shards():
    strategy = convpar.ConvParallelStrategy(
        devices=["CPU:0", "CPU:1"], plan={"planned": (5, 3)}
    )
    with strategy.scope():
        planned = convpar.ConvParallel2D(8, 3, name="planned")
        equal = convpar.ConvParallel2D(8, 3)
        own = convpar.ConvParallel2D(8, 3, shards=(1, 7), name="planned")
        for layer in (planned, equal, own):
            layer.build((None, 6, 6, 3))
    sizes = [layer.kernel.layout.sizes for layer in (planned, equal, own)]
    assert sizes == [(5, 3), (4, 4), (1, 7)]


def test_more_shards_than_devices_share_them():
    strategy = convpar.ConvParallelStrategy(devices=["CPU:0", "CPU:1"])
    with strategy.scope():
        layer = convpar.ConvParallel2D(8, 3, shards=(4, 2, 2))
        with pytest.warns(UserWarning, match="3 shards .* 2 devices"):
            layer.build((None, 6, 6, 3))
    names = [shard.device[-5:] for shard in layer.kernel.shards]
    assert names == ["CPU:0", "CPU:1", "CPU:0"]


@pytest.mark.parametrize(
    ("shards", "filters", "devices", "counts"),
    [
        ((300, 200), 500, 2, (300, 200)),
        ((3, 1), 8, 2, (6, 2)),
        ((2.5, 1.0), 7, 2, (5, 2)),
        ((1.0, 1.0, 1.0), 10, 3, (4, 3, 3)),
        ((0, 5), 5, 2, (0, 5)),
        (None, 8, 3, (3, 3, 2)),
        ((1e-9, 1.0), 3, 2, (0, 3)),
        ((3, 1, 2), 11, 3, (5, 2, 4)),
        ((20, 12), 16, 2, (10, 6)),
    ],
)
def test_shards_are_counts_or_weights(shards, filters, devices, counts):
    assert whole_shares(shards, filters, devices) == counts


@pytest.mark.parametrize(
    ("shards", "message"),
    [
        ((-1, 17), "none negative.*Received"),
        ((0, 0), "not all 0"),
        ((), "one number per device"),
        ("16", "Received: shards='16'|one number per device"),
        ((float("nan"), 1.0), "one number per device"),
        ((True, 15), "one number per device"),
    ],
)
def test_bad_shards(shards, message):
    with pytest.raises(ValueError, match=message):
        convpar.ConvParallel2D(16, 3, shards=shards)


def test_bad_arguments_name_the_numbers(strategy):
    with pytest.raises(ValueError, match=r"groups=3.*\n?.*filters=16"):
        convpar.ConvParallel2D(16, 3, groups=3)
    with (
        strategy.scope(),
        pytest.raises(ValueError, match="groups=4.*6 channels"),
    ):
        convpar.ConvParallel2D(16, 3, groups=4).build((None, 8, 8, 6))
    with pytest.raises(ValueError, match="wire_dtype.*float32.*'int8'"):
        convpar.ConvParallel2D(16, 3, wire_dtype="int8")
    with pytest.raises(ValueError, match="wire_dtype.*'fp16'"):
        convpar.ConvParallelStrategy(wire_dtype="fp16")
    with pytest.raises(ValueError, match=r"Expected each.*CPU:3.*'CPU:7'"):
        convpar.ConvParallelStrategy(devices=["CPU:0", "CPU:7"])
    with pytest.raises(ValueError, match="device name such as.*'fast one'"):
        convpar.ConvParallelStrategy(devices=["fast one"])
    with pytest.raises(ValueError, match="each device once"):
        convpar.ConvParallelStrategy(devices=["CPU:0", "/cpu:0"])
    with pytest.raises(ValueError, match="list of at least one"):
        convpar.ConvParallelStrategy(devices=[])
    with pytest.raises(ValueError, match="plan"):
        convpar.ConvParallelStrategy(plan=[(3, 1)])


@pytest.mark.parametrize("wire", ["bfloat16", "float16"])
def test_wire_dtype(wire, strategy):
    """Local shards keep their precision; others are rounded to the wire's."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 8, 8, 4)).astype("float32")
    outputs = []
    for wire_dtype in (None, wire):
        keras.utils.set_random_seed(5)
        with strategy.scope():
            layer = convpar.ConvParallel2D(
                8, 3, shards=(4, 2, 2), wire_dtype=wire_dtype
            )
        outputs.append(gradients(layer, x))
    for exact, rounded in zip(*outputs, strict=True):
        assert rounded.dtype == np.float32
        error = np.max(np.abs(exact - rounded)) / np.max(np.abs(exact))
        assert 0 < error < (2e-2 if wire == "bfloat16" else 2e-3)
    y_exact, y = outputs[0][0], outputs[1][0]
    np.testing.assert_array_equal(y[..., :4], y_exact[..., :4])


def test_empty_batch(strategy):
    with strategy.scope():
        layer = convpar.ConvParallel2D(8, 3, shards=(4, 2, 2))
    assert layer(np.zeros([0, 8, 8, 3], "float32")).shape == (0, 6, 6, 8)


def test_symbolic_call_and_repr(strategy):
    with strategy.scope():
        layer = convpar.ConvParallel2D(8, 3, shards=(4, 2, 2))
        y = layer(keras.Input((8, 8, 3)))
    assert y.shape == (None, 6, 6, 8)
    assert "ConvParallel2D" in repr(layer)
    assert "(4, 2, 2)" in repr(layer)
    assert layer.count_params() == 8 * 3 * 9 + 8
    assert [w.shape for w in layer.get_weights()] == [(3, 3, 3, 8), (8,)]


def test_frozen_layer(strategy):
    with strategy.scope():
        layer = convpar.ConvParallel2D(8, 3, shards=(4, 2, 2))
        layer.build((None, 8, 8, 3))
    layer.trainable = False
    assert layer.trainable_variables == []
    assert len(layer.weights) == 2


def test_lora_trains_like_conv2d(strategy):
    x = np.random.default_rng(0).normal(size=(2, 8, 8, 4)).astype("float32")
    results = []
    for parallel in (False, True):
        keras.utils.set_random_seed(5)
        with strategy.scope():
            layer = (
                convpar.ConvParallel2D(8, 3, shards=(4, 2, 2), lora_rank=2)
                if parallel
                else keras.layers.Conv2D(8, 3, lora_rank=2)
            )
        results.append(gradients(layer, x))
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_stateless_call(strategy):
    with strategy.scope():
        layer = convpar.ConvParallel2D(8, 3, shards=(4, 2, 2))
        layer.build((None, 8, 8, 3))
    x = np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype("float32")
    values = [w * 2 for w in layer.get_weights()]
    y, _ = layer.stateless_call(values, [], x)
    np.testing.assert_allclose(y, layer(x) * 2, rtol=1e-5, atol=1e-5)


def test_wire_is_never_wider_than_the_computation(strategy):
    with strategy.scope():
        layer = convpar.ConvParallel2D(
            8,
            3,
            shards=(4, 2, 2),
            wire_dtype="float32",
            dtype="mixed_bfloat16",
        )
    y = tf.function(layer).get_concrete_function(
        tf.TensorSpec([2, 8, 8, 3], tf.float32)
    )
    assert y.output_dtypes == tf.bfloat16
    joins = [op for op in y.graph.get_operations() if "ConcatShards" in op.type]
    for join in joins:
        assert {t.dtype for t in join.inputs} == {tf.bfloat16}

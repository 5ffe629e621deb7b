"""Every parallel layer is its Keras twin, argument by argument."""

import inspect
import itertools

import families
import forks
import hypothesis
import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import but_slow
from families import NAMES
from families import PLANE
from families import TWINS
from families import arguments
from families import derivatives
from families import inputs
from families import pair
from families import same
from hypothesis import strategies as st
from processes import environment

import tf_convpar as convpar

CASES = {
    "plain": {},
    "same": {"padding": "same"},
    "strides": {"strides": 2},
    "strides, same": {"strides": 2, "padding": "same"},
    "no bias": {"use_bias": False},
    "activation": {"activation": "tanh"},
    "softmax": {"activation": "softmax"},
    "activity": {"activity_regularizer": "l2"},
    "channels first": {"data_format": "channels_first"},
}
SHARDS = [(4, 1, 3), (0, 8, 0), (1, 0, 7)]
CUT = [(case, SHARDS[0]) for case in CASES] + [("same", s) for s in SHARDS[1:]]
# Of a line and of a volume: where pixels are counted, and shards are empty.
ANY = [("strides, same", SHARDS[0]), ("channels first", SHARDS[0]), CUT[-1]]


@pytest.mark.parametrize(
    ("name", "case", "shards"),
    but_slow(
        [(name, *cut) for name in NAMES for cut in CUT],
        [
            (name, *cut)
            for name in NAMES
            for cut in (CUT if name in PLANE else ANY)
        ],
    ),
)
def test_equals_its_twin(name, case, shards, strategy):
    kind, kwargs = NAMES[name], arguments(NAMES[name], **CASES[case])
    first = kwargs.get("data_format") == "channels_first"
    x = inputs(kind, first=first)
    layer, plain = pair(kind, x, strategy, shards=shards, **kwargs)
    assert layer.is_sharded
    for ours, theirs in zip(layer.weights, plain.weights, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
        assert ours.path.split("/")[1:] == theirs.path.split("/")[1:]
    if not first:
        same(derivatives(layer, x), derivatives(plain, x))
    else:
        # On a CPU the twin has no gradients then: one with channels last has.
        same(derivatives(layer, x), moved_derivatives(layer, kind, x, kwargs))


def moved_derivatives(layer, kind, x, kwargs):
    """Of a twin with channels last, seen with channels first."""
    moved = np.moveaxis(x, 1, -1)
    plain = TWINS[kind](**{**kwargs, "data_format": "channels_last"})
    plain.build(moved.shape)
    plain.set_weights(layer.get_weights())
    found = derivatives(plain, moved)
    return [np.moveaxis(g, -1, 1) for g in found[:2]] + found[2:]


@pytest.mark.parametrize("name", but_slow(NAMES, PLANE))
def test_of_second_order(name, strategy):
    kind = NAMES[name]
    x = inputs(kind, size=5)
    layer, plain = pair(
        kind, x, strategy, shards=(5, 3), **arguments(kind, padding="same")
    )
    same(derivatives(layer, x, order=2), derivatives(plain, x, order=2), 2e-4)


@pytest.mark.parametrize(
    "name", but_slow([n for n in NAMES if "Transpose" not in n], PLANE)
)
def test_dilated_forward(name, strategy):
    kind = NAMES[name]
    x = inputs(kind)
    layer, plain = pair(
        kind, x, strategy, shards=(5, 3), **arguments(kind, dilation_rate=2)
    )
    same([np.asarray(layer(x))], [np.asarray(plain(x))])


@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
def test_causal(data_format, strategy):
    kind = NAMES["Conv1D"]
    x = inputs(kind, first=data_format == "channels_first")
    layer, plain = pair(
        kind,
        x,
        strategy,
        shards=(5, 3),
        **arguments(kind, padding="causal", data_format=data_format),
    )
    if data_format == "channels_last":
        same(derivatives(layer, x), derivatives(plain, x))
    else:
        kwargs = arguments(kind, padding="causal")
        same(derivatives(layer, x), moved_derivatives(layer, kind, x, kwargs))


def test_causal_and_dilated_forward(strategy):
    kind = NAMES["Conv1D"]
    x = inputs(kind)
    kwargs = arguments(kind, padding="causal", dilation_rate=3)
    layer, plain = pair(kind, x, strategy, shards=(5, 3), **kwargs)
    assert layer(x).shape == plain(x).shape
    same([np.asarray(layer(x))], [np.asarray(plain(x))])


@pytest.mark.parametrize(
    "name", but_slow(["Conv1D", "Conv2D", "Conv3D"], PLANE)
)
@pytest.mark.parametrize("groups", [2, 4])
def test_groups(name, groups, strategy):
    kind = NAMES[name]
    x = inputs(kind)
    layer, plain = pair(
        kind, x, strategy, shards=(5, 2, 1), **arguments(kind, groups=groups)
    )
    same([np.asarray(layer(x))], [np.asarray(plain(x))])


@pytest.mark.parametrize(
    ("name", "strides", "shards"),
    but_slow(
        list(
            itertools.product(
                ("Conv1D", "Conv2D"), (1, 2), ((10, 4, 2), (7, 5, 4))
            )
        ),
        [
            ("Conv1D", 1, (7, 5, 4)),
            ("Conv2D", 1, (10, 4, 2)),
            ("Conv2D", 2, (7, 5, 4)),
        ],
    ),
)
def test_groups_of_one_channel(name, strides, shards, strategy):
    """A depthwise convolution; shards may cut its pairs of filters."""
    kind = NAMES[name]
    x = inputs(kind)
    kwargs = arguments(kind, groups=8, filters=16, strides=strides)
    layer, plain = pair(kind, x, strategy, shards=shards, **kwargs)
    same([np.asarray(layer(x))], [np.asarray(plain(x))])
    twin = getattr(keras.layers, f"Depthwise{name}")(
        3, strides, depth_multiplier=2
    )
    twin.build(x.shape)
    kernel, bias = layer.get_weights()
    twin.set_weights([kernel.reshape(twin.kernel.shape), bias])
    found = derivatives(layer, x)
    expected = derivatives(twin, x)
    expected[2] = np.reshape(expected[2], kernel.shape)
    same(found, expected)


@pytest.mark.parametrize(
    "layer",
    [
        "DepthwiseConvParallel2D(1, use_bias=False, shards=(1, 1))",
        "ConvParallel2D(2, 1, groups=2, use_bias=False, shards=(1, 1))",
    ],
)
def test_a_shard_of_one_channel_leaves_convolutions_of_one_be(layer):
    """TensorFlow would take one for the other in the rest of the process."""
    program = f"""
import keras
import tensorflow as tf
import tf_convpar as convpar
cpu = tf.config.list_physical_devices("CPU")[0]
two = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(cpu, two)
strategy = convpar.ConvParallelStrategy(devices=["CPU:0", "CPU:1"])
with strategy.scope():
    layer = convpar.{layer}
tf.function(layer)(tf.ones([4, 7, 7, 2]))
print(tf.function(keras.layers.Conv2D(1, 1))(tf.ones([4, 7, 7, 1])).shape)
"""
    done = forks.run(["-c", program], env=environment())
    assert done.stdout.strip().endswith("(4, 7, 7, 1)"), done.stderr


@pytest.mark.parametrize("name", ["Conv1D", "Conv2D"])
def test_many_groups_are_one_operation(name, strategy):
    kind = NAMES[name]
    x = inputs(kind, channels=96)
    layer, _ = pair(
        kind,
        x,
        strategy,
        shards=(1, 1),
        **arguments(kind, groups=96, filters=96),
    )
    graph = tf.function(layer).get_concrete_function(x).graph
    assert len(graph.get_operations()) < 100


@pytest.mark.parametrize(
    "name", [n for n in NAMES if "Depth" in n or "Sep" in n]
)
def test_depth_multiplier(name, strategy):
    kind = NAMES[name]
    x = inputs(kind)
    layer, plain = pair(
        kind,
        x,
        strategy,
        shards=(5, 2, 1),
        **arguments(kind, depth_multiplier=3),
    )
    same(derivatives(layer, x), derivatives(plain, x))


@pytest.mark.parametrize("name", [n for n in NAMES if "Transpose" in n])
def test_output_padding(name, strategy):
    kind = NAMES[name]
    x = inputs(kind, size=4)
    layer, plain = pair(
        kind,
        x,
        strategy,
        shards=(5, 3),
        **arguments(kind, strides=2, output_padding=1),
    )
    # With "same" it would be what Keras takes anyway.
    assert x.shape[1] * 2 + 2 == plain(x).shape[1]
    assert layer(x).shape == plain(x).shape
    same(derivatives(layer, x), derivatives(plain, x))


@hypothesis.settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
@hypothesis.given(data=st.data())
def test_whatever_the_arguments(data, strategy):
    name = data.draw(st.sampled_from(sorted(NAMES)), label="layer")
    kind = NAMES[name]
    channels = data.draw(st.integers(1, 7), label="channels")
    filters = data.draw(st.integers(1, 9), label="filters")
    given_out = channels if families.is_depthwise(kind) else filters
    shards = data.draw(
        st.lists(st.floats(0, 5), min_size=1, max_size=4).filter(
            lambda shares: sum(shares) > 0.1
        ),
        label="shards",
    )
    kwargs = {
        "kernel_size": data.draw(st.integers(1, 4), label="window"),
        "strides": data.draw(st.integers(1, 3), label="strides"),
        "padding": data.draw(st.sampled_from(["valid", "same"])),
        "use_bias": data.draw(st.booleans(), label="bias"),
        "activation": data.draw(st.sampled_from([None, "relu", "softmax"])),
    }
    if families.is_depthwise(kind):
        kwargs["depth_multiplier"] = data.draw(st.integers(1, 3))
    else:
        kwargs["filters"] = filters
    hypothesis.assume("Transpose" not in name or kwargs["strides"] < 4)
    x = inputs(kind, channels=channels, size=data.draw(st.integers(4, 7)))
    layer, plain = pair(kind, x, strategy, shards=shards, **kwargs)
    counts = layer._layout.sizes if layer._layout else (given_out,)
    assert sum(counts) == given_out
    assert layer.compute_output_shape(x.shape) == plain.compute_output_shape(
        x.shape
    )
    same([np.asarray(layer(x))], [np.asarray(plain(x))])


@pytest.mark.parametrize("name", NAMES)
def test_signature_is_the_twins_and_three_more(name):
    kind = NAMES[name]
    theirs = inspect.signature(TWINS[kind].__init__)
    layer = kind(**arguments(kind))
    for parameter in list(theirs.parameters)[1:]:
        if parameter != "kwargs":
            assert hasattr(layer, parameter)
    assert (layer.shards, layer.wire_dtype, layer.algorithm) == (None,) * 3


@pytest.mark.parametrize("name", NAMES)
def test_serializes_and_loads(name, strategy, tmp_path):
    kind = NAMES[name]
    x = inputs(kind)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input(x.shape[1:]),
                kind(**arguments(kind), shards=(5, 3)),
            ]
        )
        model.save(tmp_path / "model.keras")
        loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.layers[0]) is kind
    assert loaded.layers[0].is_sharded
    np.testing.assert_array_equal(np.asarray(loaded(x)), np.asarray(model(x)))
    model.save_weights(tmp_path / "model.weights.h5")
    plain = keras.Sequential(
        [keras.Input(x.shape[1:]), TWINS[kind](**arguments(kind))]
    )
    plain.load_weights(tmp_path / "model.weights.h5")
    same([np.asarray(plain(x))], [np.asarray(model(x))])


@pytest.mark.parametrize("name", but_slow(NAMES, PLANE))
def test_in_mixed_precision_graphs_and_masks(name, strategy):
    kind = NAMES[name]
    x = inputs(kind)
    layer, plain = pair(
        kind,
        x,
        strategy,
        shards=(5, 3),
        **arguments(kind, dtype="mixed_bfloat16"),
    )
    assert layer(x).dtype == plain(x).dtype == tf.bfloat16
    assert layer.weights[0].dtype == "float32"
    traced = tf.function(layer)(tf.constant(x))
    np.testing.assert_allclose(
        tf.cast(traced, "float32"),
        tf.cast(plain(x), "float32"),
        rtol=0.05,
        atol=0.1,
    )


@pytest.mark.parametrize("name", but_slow(NAMES, PLANE))
def test_narrow_on_the_wire(name, strategy):
    kind = NAMES[name]
    x = inputs(kind)
    layer, plain = pair(
        kind,
        x,
        strategy,
        shards=(5, 3),
        wire_dtype="bfloat16",
        **arguments(kind),
    )
    ours, theirs = derivatives(layer, x), derivatives(plain, x)
    assert not all(
        np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True)
    )
    for a, b in zip(ours, theirs, strict=True):
        error = np.abs(a - b).max() / np.abs(b).max()
        assert error < 0.03


def test_maps_between_the_parts_of_a_separable_layer_are_narrow_too(strategy):
    with strategy.scope():
        layer = convpar.SeparableConvParallel2D(
            8, 3, shards=(5, 3), wire_dtype="bfloat16"
        )
        layer.build((2, 9, 9, 6))
    graph = (
        tf.function(layer).get_concrete_function(tf.ones((2, 9, 9, 6))).graph
    )
    narrow = {
        tuple(found.shape)
        for operation in graph.get_operations()
        for found in operation.outputs
        if found.dtype == tf.bfloat16
    }
    # Of the depthwise part: 4 and 2 of the 6 channels.
    assert narrow >= {(2, 7, 7, 4), (2, 7, 7, 2)}


@pytest.mark.parametrize("name", but_slow(NAMES, PLANE))
def test_stateless_calls(name, strategy):
    kind = NAMES[name]
    x = inputs(kind)
    layer, plain = pair(kind, x, strategy, shards=(5, 3), **arguments(kind))
    doubled = [2 * v.numpy() for v in layer.trainable_variables]
    ours, _ = layer.stateless_call(doubled, [], x)
    theirs, _ = plain.stateless_call(doubled, [], x)
    same([np.asarray(ours)], [np.asarray(theirs)])


def test_stateless_calls_with_losses(strategy):
    kind = NAMES["Conv2D"]
    x = inputs(kind)
    layer, plain = pair(
        *(kind, x, strategy),
        **{"shards": (5, 3), **arguments(kind), "kernel_regularizer": "l2"},
    )
    doubled = [2 * v.numpy() for v in layer.trainable_variables]
    losses = [
        [*map(float, one.stateless_call(doubled, [], x, return_losses=True)[2])]
        for one in (layer, plain)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert losses[0]


@pytest.mark.parametrize("name", but_slow(NAMES, PLANE))
def test_regularizers_and_constraints(name, strategy):
    kind = NAMES[name]
    names = [
        p
        for p in inspect.signature(TWINS[kind].__init__).parameters
        if p.endswith("_regularizer") and p != "activity_regularizer"
    ]
    kwargs = {n: "l2" for n in names}
    kwargs |= {
        n.replace("regularizer", "constraint"): "max_norm" for n in names
    }
    x = inputs(kind)
    layer, plain = pair(
        kind, x, strategy, shards=(5, 3), **arguments(kind, **kwargs)
    )
    np.testing.assert_allclose(
        [float(loss) for loss in layer.losses],
        [float(loss) for loss in plain.losses],
        rtol=1e-5,
    )
    for ours, theirs in zip(layer.weights, plain.weights, strict=True):
        large = np.random.default_rng(0).normal(size=theirs.shape) * 10
        ours.assign(large)
        theirs.assign(large)
        ours.assign(ours.constraint(ours))
        theirs.assign(theirs.constraint(theirs))
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-5)


def test_lora_works_and_quantization_is_refused(strategy):
    x = inputs(NAMES["Conv2D"])
    layer, plain = pair(
        NAMES["Conv2D"], x, strategy, shards=(5, 3), filters=8, kernel_size=3
    )
    keras.utils.set_random_seed(2)
    layer.enable_lora(2)
    keras.utils.set_random_seed(2)
    plain.enable_lora(2)
    same(derivatives(layer, x), derivatives(plain, x))
    with pytest.raises(NotImplementedError):
        layer.quantize("int8")


@pytest.mark.parametrize("name", [n for n in NAMES if "Depthwise" in n])
def test_shards_of_channels_are_rounded(name, strategy):
    kind = NAMES[name]
    with strategy.scope():
        layer = kind(3, shards=(4, 5))
        layer.build(inputs(kind).shape)
    assert layer.kernel.layout.sizes == (4, 4)

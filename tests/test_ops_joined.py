"""What is done to images right before a convolution of single pixels."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import slow
from test_fused import needed
from test_ops_channels import near
from test_ops_channels import numbers

import tf_convpar as convpar
from tf_convpar import ops
from tf_convpar.ops import Epilogue

L = keras.layers


@pytest.fixture(autouse=True)
def native():
    if not ops.load():
        pytest.skip(ops.build_report().verdict)


def joined(shape, parts, scale, offset, activation, epsilon=None):
    """Images in parts, and what a convolution by TensorFlow would be given."""
    images = [numbers((*shape, c), i) for i, c in enumerate(parts)]
    channels = sum(parts)
    scales = {"all": channels, "each": (shape[0], channels), None: 0}[scale]
    scales = numbers(scales, 7) if scale else None
    offsets = numbers(channels, 8) if offset else None
    exact = np.concatenate(images, -1).astype("float64")
    if epsilon is not None:
        variance = exact.var(-1, keepdims=True)
        exact = exact - exact.mean(-1, keepdims=True)
        exact = exact / np.sqrt(variance + epsilon)
    if scale:
        each = scale == "each"
        exact = exact * (scales[:, None, None] if each else scales)
    exact = exact + offsets if offset else exact
    exact = {
        "linear": lambda u: u,
        "relu": lambda u: np.maximum(u, 0),
        "silu": lambda u: u / (1 + np.exp(-u)),
    }[activation](exact)
    return ops.JoinedImages(images, scales, offsets, activation, epsilon), exact


# Pixels for one thread's panels, for bands of several threads, and of images
# whose ends are in the middle of a band; channels that fill no vector.
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 4, 5), (7, 9, 11)])
@pytest.mark.parametrize("parts", [[96], [3], [16, 8, 5]])
def test_values(shape, parts):
    kernel = numbers((1, 1, sum(parts), 40), 9)
    for change in itertools.product(
        ("all", "each", None),
        (True, False),
        ("linear", "relu", "silu"),
        (None, 1e-3),
    ):
        images, exact = joined(shape, parts, *change)
        expected = tf.nn.conv2d(exact, kernel.astype("float64"), 1, "VALID")
        for native in (True, False):
            y = ops.convolution(
                None, kernel, Epilogue(joined=images), native=native
            )
            near(y, expected.numpy(), 1e-5)


@pytest.mark.parametrize("scale", ["all", "each"])
def test_gradients(scale):
    images, _ = joined((2, 3, 3), [4, 3], scale, True, "silu", 0.5)
    kernel, summand = numbers((1, 1, 7, 5), 9), numbers((2, 3, 3, 5), 10)
    given = [*images.parts, images.scale, images.offset, kernel, summand]
    found = []
    for native in (True, False):
        values = [tf.constant(v) for v in given]
        with tf.GradientTape() as tape:
            tape.watch(values)
            *parts, scales, offsets, k, added = values
            y = ops.convolution(
                None,
                k,
                Epilogue(
                    added=added,
                    activation="relu",
                    joined=ops.JoinedImages(
                        parts, scales, offsets, "silu", 0.5
                    ),
                ),
                native=native,
            )
        found.append(tape.gradient(y, values, y))
    for a, b in zip(*found, strict=True):
        near(a, b.numpy(), 1e-4)


def test_refuses_what_does_not_fit():
    def multiply(given, kernel, **how):
        after = Epilogue(joined=given)
        return ops.convolution(None, kernel, after, native=True, **how)

    x, kernel = numbers((2, 4, 4, 3), 1), numbers((1, 1, 3, 5), 2)
    error = tf.errors.InvalidArgumentError
    for scale in (np.ones(4, "float32"), np.ones((3, 3), "float32")):
        with pytest.raises(error, match="Expected an image_scale"):
            multiply(ops.JoinedImages([x], scale), kernel)
    with pytest.raises(error, match="an image_offset"):
        given = ops.JoinedImages([x], None, np.ones(2, "float32"))
        multiply(given, kernel)
    for other in (x[:1], x[:, :2], x[0]):
        with pytest.raises(error, match="Expected images"):
            multiply(ops.JoinedImages([x, other]), kernel)
    with pytest.raises(error, match="Expected images"):
        multiply(ops.JoinedImages([x, x]), kernel)
    wide = numbers((3, 3, 3, 5), 2)
    for given in (
        ops.JoinedImages([x], np.ones(3, "float32")),
        ops.JoinedImages([x, x]),
    ):
        k = wide if len(given.parts) == 1 else np.concatenate([wide, wide], 2)
        with pytest.raises(error, match="windows of one pixel"):
            multiply(given, k, padding="same")
    with pytest.raises(error, match="strides of 1"):
        given = ops.JoinedImages([x], None, None, "relu")
        multiply(given, kernel, stride=2)


def model():
    """A dense block, a gate on channels, and uses of what they join."""
    keras.utils.set_random_seed(3)
    inputs = keras.Input((6, 6, 16))
    x = L.Conv2D(16, 3, padding="same")(inputs)
    for _ in range(3):
        new = L.ReLU()(L.BatchNormalization()(x))
        new = L.Conv2D(24, 1, use_bias=False)(new)
        new = L.ReLU()(L.BatchNormalization()(new))
        new = L.Conv2D(8, 3, padding="same", use_bias=False)(new)
        x = L.Concatenate()([x, new])
    x = L.Activation("silu")(L.BatchNormalization()(x))
    gate = L.GlobalAveragePooling2D(keepdims=True)(x)
    gate = L.Conv2D(40, 1, activation="sigmoid")(gate)
    x = L.Multiply()([gate, x])
    x = L.Conv2D(32, 1)(x)
    # Strides and windows take images as they are.
    y = L.ReLU()(L.BatchNormalization()(x))
    both = [
        L.Conv2D(16, 1, strides=2, activation="relu")(y),
        L.Conv2D(16, 3, strides=2, padding="same")(y),
        L.SeparableConv2D(16, 3, strides=2, padding="same")(y),
    ]
    x = L.Conv2D(12, 1, activation="tanh")(L.Concatenate()(both))
    made = keras.Model(inputs, L.GlobalAveragePooling2D()(x))
    for layer in made.layers:
        if isinstance(layer, L.BatchNormalization):
            shape = layer.moving_mean.shape
            layer.moving_mean.assign(numbers(shape, 5))
            layer.moving_variance.assign_add(np.abs(numbers(shape, 6)))
    return made


@pytest.mark.slow
def test_models_predict_as_those_of_keras_before_and_after_they_learn():
    plain = model()
    fast = convpar.parallelize(model(), algorithm="auto")
    x, y = numbers((3, 6, 6, 16), 1), numbers((3, 12), 2)
    for one in (plain, fast):
        one.compile("sgd", "mse")
    predict = tf.function(
        lambda x: fast(x, training=False), autograph=False
    ).get_concrete_function(tf.TensorSpec((3, 6, 6, 16)))
    kinds = needed(predict.graph)
    # The gate takes means of the block, and the last convolution what is as it
    # was joined. All else is done on the way.
    assert kinds.count("ConcatV2") == 2
    # One product is of vectors: a bias that is normalized.
    assert kinds.count("Mul") == 1
    assert kinds.count("TfConvpar>ScaleChannels") == 1
    for _ in range(2):
        near(fast.predict_on_batch(x), plain.predict(x, verbose=0), 1e-5)
        for one in (plain, fast):
            one.fit(x, y, batch_size=3, epochs=2, verbose=0)
    for a, b in zip(plain.get_weights(), fast.get_weights(), strict=True):
        near(b, a, 1e-5)


def test_layers_that_are_called_at_several_places():
    """Of which they fit one."""
    inputs = keras.Input((4, 5, 8))
    gate, join = L.Multiply(), L.Concatenate(axis=3)
    x = gate([inputs, L.GlobalAveragePooling2D(keepdims=True)(inputs)])
    x = L.Conv2D(8, 1)(gate([L.Conv2D(8, 1)(x), inputs]))
    x = L.Conv2D(6, 1)(L.ReLU()(L.BatchNormalization()(join([x, inputs]))))
    volumes = L.Reshape((4, 5, 2, 3))(x)
    volumes = join([volumes, L.Conv3D(3, 1)(volumes)])
    plain = keras.Model(inputs, [x, L.Conv3D(4, 1)(volumes)])
    fast = convpar.parallelize(plain, algorithm="auto")
    given = numbers((3, 4, 5, 8), 1)
    for a, b in zip(
        fast.predict_on_batch(given), plain.predict_on_batch(given), strict=True
    ):
        near(a, b, 1e-5)


def transformer(rank):
    """Pixels that are normalized and multiplied, and a head."""
    keras.utils.set_random_seed(4)
    inputs = keras.Input((*[5] * rank, 24))
    x = inputs
    if rank == 2:
        x = L.DepthwiseConv2D(7, padding="same")(x)
    y = L.LayerNormalization(epsilon=1e-6)(x)
    y = L.Activation("gelu")(L.Dense(72)(y))
    y = L.Dense(24, use_bias=False)(y)
    x = L.Add()([L.Conv2D(24, 1)(inputs), y] if rank == 2 else [inputs, y])
    y = L.LayerNormalization(center=False, scale=False)(x)
    x = L.Add()([y, L.Dense(24, activation="relu")(y)])
    x = L.Dense(8, activation="tanh")(L.LayerNormalization(scale=False)(x))
    x = L.Dense(10)(L.Flatten()(x))
    return keras.Model(inputs, x)


@pytest.mark.parametrize("rank", [1, 2])
def test_products_of_pixels_in_inference(rank):
    plain = transformer(rank)
    fast = convpar.parallelize(plain, algorithm="auto")
    x = numbers((3, *[5] * rank, 24), 1)
    predict = tf.function(
        lambda x: fast(x, training=False), autograph=False
    ).get_concrete_function(tf.TensorSpec(x.shape))
    kinds = needed(predict.graph)
    assert kinds.count("TfConvpar>Convolution") == 5 + (rank == 2)
    assert not {"MatMul", "BatchMatMulV2", "Erf", "Erfc"} & {*kinds}
    for _ in range(2):
        near(fast.predict_on_batch(x), plain.predict_on_batch(x), 1e-5)
        for weight in (*plain.weights, *fast.weights):
            weight.assign_add(0.1 * tf.ones_like(weight))


@pytest.mark.parametrize(
    ("kind", "graph"),
    [
        *((L.Concatenate, True), (L.ReLU, False)),
        *((L.BatchNormalization, True), (L.Dense, False)),
        *(slow((L.Concatenate, False)), slow((L.ReLU, True))),
        *(slow((L.BatchNormalization, False)), slow((L.Dense, True))),
        *(slow((L.Multiply, True)), slow((L.LayerNormalization, False))),
    ],
)
def test_programs_differentiate_by_what_is_joined(kind, graph):
    """What a program differentiates by is what convolutions take."""
    of_pixels = kind in (L.LayerNormalization, L.Dense)
    plain = transformer(2) if of_pixels else model()
    x = tf.constant(numbers((2, *plain.input_shape[1:]), 1))
    found = []
    for one in (plain, convpar.parallelize(plain, algorithm="auto")):
        layers = [layer for layer in one.layers if type(layer) is kind]
        at = [layer.output for layer in layers[:-1] or layers]
        both = keras.Model(one.inputs, [*at, one.outputs[0]])

        def slopes(x, both=both):
            with tf.GradientTape() as tape:
                *maps, outputs = both(x, training=False)
                score = tf.reduce_sum(outputs * outputs)
            return tape.gradient(score, maps)

        found.append(tf.function(slopes)(x) if graph else slopes(x))
    for expected, ours in zip(*found, strict=True):
        largest = np.abs(expected).max()
        assert largest > 0
        near(ours / largest, expected / largest, 1e-4)


def residual():
    """Sums of maps that are made before, and of what is made of them."""
    keras.utils.set_random_seed(5)
    inputs = keras.Input((6, 7, 12))
    x = L.Conv2D(24, 1)(inputs)
    for window in (1, 3):
        y = L.Conv2D(24, window, padding="same", use_bias=False)(x)
        x = L.ReLU()(L.Add()([L.BatchNormalization()(y), x]))
        y = L.DepthwiseConv2D(3, padding="same", use_bias=False)(x)
        x = L.Add()([L.ReLU()(L.BatchNormalization()(y)), x])
    return keras.Model(inputs, x)


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize(
    "make", [slow(model), residual, lambda: transformer(2)]
)
def test_gradients_of_models_in_inference(make, graph):
    """By inputs and by all weights: those of what is in one pass too."""
    plain = make()
    x = tf.constant(numbers((2, *plain.input_shape[1:]), 1))
    found = []
    for one in (plain, convpar.parallelize(plain, algorithm="auto")):

        def slopes(x, one=one):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = one(x, training=False)
            return tape.gradient(y, [x, *one.trainable_variables], y)

        found.append(tf.function(slopes)(x) if graph else slopes(x))
    for a, b in zip(*found, strict=True):
        expected = tf.convert_to_tensor(a).numpy()
        largest = np.abs(expected).max()
        near(b / largest, expected / largest, 1e-4)

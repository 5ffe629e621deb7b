"""What programs do with models beside training them, with what fuses on."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_convpar as convpar

L = keras.layers


def numbers(*shape):
    return np.random.default_rng(0).normal(size=shape).astype("float32")


def fused(model):
    return convpar.parallelize(model, algorithm="auto")


def shaken(model):
    """With statistics and weights that differ."""
    rng = np.random.default_rng(1)
    model.set_weights(
        [rng.uniform(0.5, 1.5, w.shape) for w in model.get_weights()]
    )
    return model


@pytest.mark.filterwarnings("ignore:.*nothing is split")
@pytest.mark.filterwarnings("ignore:.*no convolution")
def test_masks_of_what_leaves_a_model_and_is_used_in_it():
    x = keras.Input((4, 2))
    y = L.Dense(3)(L.Masking()(x))
    plain = keras.Model(x, [y, L.GlobalAveragePooling1D()(y)])
    images = numbers(2, 4, 2)
    images[:, 2:] = 0
    ours, theirs = fused(plain)(images), plain(images)
    np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-5)
    assert ours[0]._keras_mask is not None


def test_channels_first_before_a_normalization_of_columns():
    """Keras cannot run it on every processor: ours is beside itself."""
    model = keras.Sequential(
        [
            keras.Input((3, 8, 8)),
            L.Conv2D(8, 3, padding="same", data_format="channels_first"),
            L.BatchNormalization(),
            L.ReLU(),
        ]
    )
    model = fused(shaken(model))
    x = numbers(2, 3, 8, 8)
    np.testing.assert_allclose(
        model.predict(x, verbose=0), model(x, training=False), rtol=1e-4
    )


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_gradients_by_what_a_model_within_a_model_returns(graph, training):
    x = keras.Input((8, 8, 3))
    base = keras.Sequential(
        [keras.Input((8, 8, 3)), L.Conv2D(4, 3), L.BatchNormalization()]
    )
    maps = base(x)
    score = L.Dense(1)(L.GlobalAveragePooling2D()(L.ReLU()(maps)))
    plain = shaken(keras.Model(x, [maps, score]))

    def slope(model):
        def run(images):
            with tf.GradientTape() as tape:
                maps, score = model(images, training=training)
            return tape.gradient(score, maps)

        run = tf.function(run) if graph else run
        return run(tf.constant(numbers(2, 8, 8, 3)))

    np.testing.assert_allclose(
        slope(fused(plain)), slope(plain), rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("algorithm", ["winograd", "gemm"])
def test_tapes_around_functions_may_be_asked_twice(algorithm):
    layer = convpar.ConvParallel2D(
        8, 3, activation="relu", algorithm=algorithm, kernel_initializer="ones"
    )
    layer.build((None, 16, 16, 4))
    x = tf.constant(numbers(2, 16, 16, 4))
    function = tf.function(layer)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = function(x)
    kernel = layer.kernel.value
    with tf.GradientTape() as direct:
        direct.watch(x)
        expected = tf.nn.relu(tf.nn.conv2d(x, kernel, 1, "VALID"))
    expected = direct.gradient(expected, x)
    for _ in range(2):
        np.testing.assert_allclose(
            tape.gradient(y, x), expected, rtol=1e-3, atol=1e-3
        )


def test_a_mean_of_images_of_unknown_size():
    """Of layers that were made for a size, called for any."""
    plain = keras.Sequential(
        [keras.Input((16, 16, 3)), L.Conv2D(4, 3), L.GlobalAveragePooling2D()]
    )
    model = fused(plain)
    x = y = keras.Input((None, None, 3))
    for layer in model.layers:
        y = layer(y)
    anew = keras.Model(x, y)
    for size in (16, 24, 20):
        images = numbers(2, size, size, 3)
        convolution = plain.layers[0](images)
        np.testing.assert_allclose(
            anew.predict(images, verbose=0),
            tf.reduce_mean(convolution, [1, 2]),
            rtol=1e-3,
            atol=1e-5,
        )


@pytest.mark.filterwarnings("ignore:.*nothing is split")
@pytest.mark.filterwarnings("ignore:.*no convolution")
def test_xla_is_off_where_ops_of_this_package_run():
    model = keras.Sequential(
        [keras.Input((16,)), L.Dense(8), L.BatchNormalization(), L.ReLU()]
    )
    model.compile("sgd", "mse", jit_compile=True)
    ours = fused(model)
    assert not ours.jit_compile
    history = ours.fit(numbers(8, 16), numbers(8, 8), verbose=0).history
    assert np.isfinite(history["loss"]).all()
    assert convpar.merge(ours).jit_compile


@pytest.mark.filterwarnings("ignore:.*nothing is split")
@pytest.mark.filterwarnings("ignore:.*no convolution")
def test_sparse_inputs():
    x = keras.Input((50,), sparse=True)
    plain = keras.Model(x, L.Dense(2)(L.Dense(8, activation="relu")(x)))
    dense = numbers(4, 50) * (numbers(4, 50) > 1)
    sparse = tf.sparse.from_dense(dense)
    np.testing.assert_allclose(
        fused(plain).predict(sparse, verbose=0),
        plain.predict(sparse, verbose=0),
        rtol=1e-4,
        atol=1e-5,
    )


def test_a_momentum_that_callbacks_change():
    plain = keras.Sequential(
        [keras.Input((8, 8, 3)), L.Conv2D(4, 3), L.BatchNormalization()]
    )
    model = fused(plain)
    x, y = numbers(8, 8, 8, 3), numbers(8, 6, 6, 4)
    for one in (plain, model):
        one.layers[-1].momentum = tf.Variable(0.5)
        one.compile(keras.optimizers.SGD(0.0), "mse")
        one.fit(x, y, verbose=0)
    for a, b in zip(plain.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)

"""Layers and models over a GPU and a CPU, and over two logical GPUs.

They are skipped where TensorFlow finds no GPU; see gpus.py.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_convpar as convpar

L = keras.layers


def close(actual, expected, policy):
    # TensorFloat-32, TensorFlow's default on cards that have it, keeps ten
    # bits of each factor: 2 ** -11 of it is lost, and sums add these up.
    part = {
        "float32": 2e-3,
        "full_float32": 1e-4,
        "mixed_float16": 2e-2,
        "mixed_bfloat16": 5e-2,
    }
    expected = np.asarray(expected, np.float32)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(
        np.asarray(actual, np.float32), expected, atol=part[policy] * scale
    )


@pytest.mark.parametrize("policy", ["float32", "full_float32", "mixed_float16"])
@pytest.mark.parametrize("order", ["channels_last", "channels_first"])
@pytest.mark.parametrize("split", ["filters", "samples"])
def test_a_layer_is_conv2d(devices, split, order, policy, request):
    count = 6
    if policy == "full_float32":
        request.getfixturevalue(policy)
        # TensorFlow goes on with what it chose for a shape, TensorFloat-32 too.
        count = 8
    else:
        keras.mixed_precision.set_dtype_policy(policy)
    x = np.random.default_rng(0).normal(size=(count, 9, 9, 5)).astype("float32")
    x = x if order == "channels_last" else np.moveaxis(x, -1, 1)
    with convpar.ConvParallelStrategy(devices=devices).scope():
        layer = convpar.ConvParallel2D(
            7, 3, shards=(5, 2), split=split, data_format=order
        )
        image = tf.constant(x)
        with tf.GradientTape() as tape:
            tape.watch(image)
            y = layer(image)
            loss = tf.reduce_sum(tf.cast(y, "float32") ** 2)
        found = tape.gradient(loss, [image, layer.kernel])
    # The same in float32 by one device, channels last.
    last = tf.constant(x if order == "channels_last" else np.moveaxis(x, 1, -1))
    kernel = tf.constant(keras.ops.convert_to_numpy(layer.kernel))
    with tf.device("CPU:3"), tf.GradientTape() as tape:
        tape.watch([last, kernel])
        expected = tf.nn.conv2d(last, kernel, 1, "VALID")
        loss = tf.reduce_sum(expected**2)
    by_image, by_kernel = tape.gradient(loss, [last, kernel])
    if order == "channels_first":
        expected, by_image = (
            np.moveaxis(np.asarray(each), -1, 1)
            for each in (expected, by_image)
        )
    close(y, expected, policy)
    close(found[0], by_image, policy)
    close(found[1], by_kernel, policy)


def network():
    keras.utils.set_random_seed(1)
    x = keras.Input((16, 16, 1))
    y = L.Conv2D(12, 3, padding="same", use_bias=False)(x)
    y = L.ReLU()(L.BatchNormalization()(y))
    y = L.MaxPooling2D()(L.Conv2D(10, 3)(y))
    model = keras.Model(x, L.Dense(10)(L.Flatten()(y)))
    model.compile(
        keras.optimizers.SGD(0.05, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    return model


@pytest.mark.parametrize("algorithm", ["direct", "auto"])
def test_a_model_learns_what_it_learns_on_one_device(
    devices, images, algorithm, full_float32
):
    x, y = images[0][:64], images[1][:64]

    def losses(chosen, parallel):
        with convpar.ConvParallelStrategy(devices=chosen).scope():
            model = network()
            if parallel:
                model = convpar.parallelize(
                    model, plan="equal", algorithm=algorithm
                )
            return [float(model.train_on_batch(x, y)) for _ in range(4)]

    expected = losses([devices[0]], parallel=False)
    found = losses(devices, parallel=True)
    assert expected[-1] < 0.95 * expected[0]
    np.testing.assert_allclose(found, expected, rtol=1e-3)

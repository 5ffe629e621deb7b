"""Networks that were trained before: frozen, thawed, shortened, adapted."""

import keras
import numpy as np
import tensorflow as tf

from keras_programs._data import coloured_digits
from keras_programs._data import digits
from keras_programs._kit import program

layers = keras.layers


def train_head_then_all(kit, base_model, images, labels):
    """As Keras' guide to transfer learning has it."""
    dataset = tf.data.Dataset.from_tensor_slices((images, labels))
    train = dataset.shuffle(64, seed=3).batch(20).prefetch(2)

    base_model.trainable = False
    inputs = keras.Input(images.shape[1:])
    x = layers.RandomFlip("horizontal")(inputs)
    x = layers.Rescaling(scale=2.0, offset=-1)(x)
    # Its normalization stays as it is, also when it is trained.
    x = base_model(x, training=False)
    x = kit.Conv2D(12, 1, activation="relu")(x)
    x = layers.GlobalAveragePooling2D()(x)
    x = layers.Dropout(0.2)(x)
    outputs = layers.Dense(10)(x)
    model = kit.parallelize(keras.Model(inputs, outputs))

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    frozen = model.count_params(), len(model.trainable_weights)
    head = model.fit(train, epochs=2, verbose=0).history

    base_model.trainable = True
    model.compile(keras.optimizers.Adam(3e-4), loss, metrics=["accuracy"])
    thawed = model.count_params(), len(model.trainable_weights)
    tuned = model.fit(train, epochs=2, verbose=0).history
    return {
        "losses": head["loss"] + tuned["loss"],
        "predictions": [
            [float(n) for n in (*frozen, *thawed)],
            tuned["accuracy"],
            np.concatenate([w.ravel() for w in model.get_weights()]),
        ],
    }


@program()
def transfer_learning(kit):
    """A backbone of one's own, whose weights come from a file."""

    def backbone():
        inputs = keras.Input((16, 16, 3))
        x = kit.Conv2D(8, 3, strides=2, padding="same", use_bias=False)(inputs)
        x = layers.BatchNormalization()(x)
        x = layers.ReLU(6.0)(x)
        return keras.Model(inputs, x, name="backbone")

    images, labels = coloured_digits(78, 16)
    backbone().save_weights(kit.folder / "other.weights.h5")
    base_model = backbone()
    base_model.load_weights(kit.folder / "other.weights.h5")
    return train_head_then_all(kit, base_model, images, labels)


# Its weights are random: there is little to learn from.
@program(falls=False)
def transfer_learning_mobilenet(kit):
    """One of Keras' own; the first fifth of it."""
    images, labels = coloured_digits(88, 32)
    mobilenet = keras.applications.MobileNetV2(
        input_shape=(32, 32, 3), alpha=0.35, include_top=False, weights=None
    )
    base_model = keras.Model(
        mobilenet.input, mobilenet.get_layer("block_4_expand_relu").output
    )
    return train_head_then_all(kit, base_model, images, labels)


@program()
def frozen_layers(kit):
    """Some layers stay as they were, then one of them does not."""
    images, labels = digits(112)
    model = keras.Sequential(
        [
            keras.Input((16, 16, 1)),
            kit.Conv2D(8, 3, strides=2, name="one"),
            layers.BatchNormalization(name="normal"),
            layers.ReLU(),
            kit.Conv2D(12, 3, activation="relu", name="two"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(10, name="scores"),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.get_layer("one").trainable = False
    model.get_layer("normal").trainable = False
    model = kit.parallelize(model)
    kernel = model.get_layer("one").get_weights()[0]
    model.compile(keras.optimizers.Adam(0.01), loss)
    history = model.fit(images, labels, epochs=2, verbose=0).history["loss"]
    np.testing.assert_array_equal(
        kernel, model.get_layer("one").get_weights()[0]
    )

    for layer in model.layers[3:]:
        layer.trainable = False
    model.get_layer("one").trainable = True
    model.get_layer("scores").trainable = True
    model.compile(keras.optimizers.SGD(0.05), loss)
    history += model.fit(images, labels, epochs=2, verbose=0).history["loss"]
    assert np.any(kernel != model.get_layer("one").get_weights()[0])
    return {
        "losses": history,
        "predictions": [
            model.predict(images[:16], verbose=0),
            float(len(model.trainable_weights)),
        ],
    }


@program()
def popped_layers(kit):
    """The head of a trained Sequential comes off, another goes on."""
    images, labels = digits(112)
    model = keras.Sequential(
        [
            keras.Input((16, 16, 1)),
            kit.Conv2D(8, 3, strides=2, activation="relu"),
            kit.Conv2D(12, 3, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(16, activation="relu"),
            layers.Dense(10, name="digits"),
        ]
    )
    model = kit.parallelize(model)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss)
    history = model.fit(images, labels, epochs=2, verbose=0).history["loss"]

    model.pop()
    model.pop()
    for layer in model.layers:
        layer.trainable = False
    model.add(layers.Dense(8, activation="relu"))
    model.add(layers.Dense(2, name="even_or_odd"))
    model.compile(keras.optimizers.Adam(0.01), loss)
    odd = model.fit(images, labels % 2, epochs=2, verbose=0).history["loss"]
    return {
        "losses": odd,
        "predictions": [history, model.predict(images[:16], verbose=0)],
    }


# Keras keeps what LoRA adds in float32 whatever the policy: `enable_lora`.
@program(tolerance=1e-5)
def lora(kit):
    """Only what LoRA adds to kernels is trained."""
    images, labels = digits(112)
    inputs = keras.Input((16, 16, 1))
    x = kit.Conv2D(9, 3, strides=2, activation="relu", name="one")(inputs)
    x = kit.Conv2D(12, 3, activation="relu", name="two")(x)
    x = kit.Conv2D(12, 3, activation="relu", name="three")(x)
    x = layers.Flatten()(x)
    x = layers.Dense(16, activation="relu", name="dense")(x)
    model = keras.Model(inputs, layers.Dense(10, name="scores")(x))
    model = kit.parallelize(model)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss)
    model.fit(images[:64], labels[:64], epochs=1, verbose=0)

    for layer in model.layers:
        layer.trainable = False
    for name in ("two", "dense"):
        layer = model.get_layer(name)
        layer.trainable = True
        layer.enable_lora(2)
    model.compile(keras.optimizers.Adam(0.01), loss)
    history = model.fit(
        images, labels, epochs=3, batch_size=30, verbose=0
    ).history
    return {
        "losses": history["loss"],
        "predictions": [
            model.predict(images[:16], verbose=0),
            float(len(model.trainable_weights)),
            model.get_layer("two").kernel.numpy(),
        ],
    }


@program()
def quantization(kit):
    """Dense kernels in eight bits, to predict."""
    images, labels = digits(112)
    model = keras.Sequential(
        [
            keras.Input((16, 16, 1)),
            kit.Conv2D(8, 3, strides=2, activation="relu"),
            kit.Conv2D(12, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(24, activation="relu"),
            layers.Dense(10),
        ]
    )
    model = kit.parallelize(model)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    history = model.fit(images, labels, epochs=2, verbose=0).history
    before = model.predict(images[:32], verbose=0)
    model.quantize("int8")
    after = model.predict(images[:32], verbose=0)
    assert 0 < np.abs(after - before).max() < 0.1 * np.abs(before).max()
    return {"losses": history["loss"], "predictions": [before, after]}

"""From images to images: super-resolution, segmentation, denoising."""

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from keras_programs._data import blobs
from keras_programs._data import digits
from keras_programs._kit import program

layers = keras.layers


class DepthToSpace(layers.Layer):
    def __init__(self, block_size):
        super().__init__()
        self.block_size = block_size

    def call(self, x):
        _, height, width, depth = x.shape
        block = self.block_size
        depth //= block**2
        x = ops.reshape(x, (-1, height, width, block, block, depth))
        x = ops.transpose(x, (0, 1, 3, 2, 4, 5))
        return ops.reshape(x, (-1, height * block, width * block, depth))


class ESPCNCallback(keras.callbacks.Callback):
    """Signal to noise of each epoch, of its steps' losses."""

    def on_epoch_begin(self, epoch, logs=None):
        self.psnr = []

    def on_train_batch_end(self, batch, logs=None):
        self.psnr.append(10 * np.log10(1 / logs["loss"]))


@program()
def super_resolution(kit):
    """Sub-pixel convolution, between crops and their small versions."""

    def pair(image):
        return tf.image.resize(image, (8, 8), method="area"), image

    images, _ = digits(96)
    train = tf.data.Dataset.from_tensor_slices(images)
    train = train.shuffle(64, seed=3).map(pair).batch(20).prefetch(2)

    conv_args = {
        "activation": "relu",
        "kernel_initializer": "orthogonal",
        "padding": "same",
    }
    inputs = keras.Input((8, 8, 1))
    x = kit.Conv2D(16, 5, **conv_args)(inputs)
    x = kit.Conv2D(12, 3, **conv_args)(x)
    x = kit.Conv2D(4, 3, **conv_args)(x)
    outputs = DepthToSpace(2)(x)
    model = kit.parallelize(keras.Model(inputs, outputs))

    callback = ESPCNCallback()
    model.compile(
        optimizer=keras.optimizers.Adam(learning_rate=0.003),
        loss=keras.losses.MeanSquaredError(),
    )
    history = model.fit(
        train, epochs=4, callbacks=[callback], verbose=0
    ).history
    return {"losses": history["loss"], "predictions": callback.psnr}


@program()
def unet_segmentation(kit):
    """Down and up again, with sums across."""

    def upwards(x, filters):
        x = layers.Activation("relu")(x)
        x = kit.Conv2DTranspose(filters, 3, padding="same")(x)
        x = layers.BatchNormalization()(x)
        return layers.UpSampling2D(2)(x)

    images, masks = blobs(48)
    train = tf.data.Dataset.from_tensor_slices((images[:40], masks[:40]))
    train = train.shuffle(40, seed=3).batch(12).prefetch(tf.data.AUTOTUNE)

    inputs = keras.Input((16, 16, 3))
    x = kit.Conv2D(8, 3, strides=2, padding="same")(inputs)
    x = layers.BatchNormalization()(x)
    x = skip = layers.Activation("relu")(x)
    x = kit.SeparableConv2D(12, 3, padding="same")(x)
    x = layers.BatchNormalization()(x)
    x = layers.MaxPooling2D(3, strides=2, padding="same")(x)
    x = upwards(x, 12)
    x = layers.Concatenate()([x, skip])
    x = kit.Conv2DTranspose(8, 2, strides=2, activation="relu")(x)
    outputs = kit.Conv2D(3, 3, activation="softmax", padding="same")(x)
    model = kit.parallelize(keras.Model(inputs, outputs))

    model.compile(
        optimizer=keras.optimizers.Adam(0.01),
        loss="sparse_categorical_crossentropy",
        metrics=[keras.metrics.MeanIoU(3, sparse_y_pred=False)],
    )
    history = model.fit(
        train, epochs=3, validation_data=(images[40:], masks[40:]), verbose=0
    ).history
    return {
        "losses": history["loss"],
        "predictions": [
            history["val_loss"],
            model.predict(images[40:], verbose=0),
        ],
    }


@program()
def denoising_autoencoder(kit):
    """Trained to copy first, to clean up afterwards."""
    images, _ = digits(128)
    rng = np.random.default_rng(6)
    noisy = np.clip(images + rng.normal(0, 0.4, images.shape), 0, 1)

    inputs = keras.Input((16, 16, 1))
    x = kit.Conv2D(12, 3, activation="relu", padding="same")(inputs)
    x = layers.MaxPooling2D(2, padding="same")(x)
    x = kit.Conv2D(12, 3, activation="relu", padding="same")(x)
    x = layers.MaxPooling2D(2, padding="same")(x)
    x = kit.Conv2DTranspose(
        12, 3, strides=2, activation="relu", padding="same"
    )(x)
    x = kit.Conv2DTranspose(
        12, 3, strides=2, activation="relu", padding="same"
    )(x)
    x = kit.Conv2D(1, 3, activation="sigmoid", padding="same")(x)
    autoencoder = kit.parallelize(keras.Model(inputs, x))

    autoencoder.compile(optimizer="adam", loss="binary_crossentropy")
    copied = autoencoder.fit(
        x=images[:96],
        y=images[:96],
        epochs=2,
        batch_size=40,
        shuffle=True,
        validation_data=(images[96:], images[96:]),
        verbose=0,
    ).history
    cleaned = autoencoder.fit(
        x=noisy[:96],
        y=images[:96],
        epochs=2,
        batch_size=40,
        shuffle=True,
        validation_data=(noisy[96:], images[96:]),
        verbose=0,
    ).history
    return {
        "losses": copied["loss"] + cleaned["loss"],
        "predictions": [
            cleaned["val_loss"],
            autoencoder.predict(noisy[96:], verbose=0),
        ],
    }

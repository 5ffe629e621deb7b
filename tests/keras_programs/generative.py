"""Networks that make images: a variational autoencoder, a PixelCNN."""

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from keras_programs._data import digits
from keras_programs._kit import program

layers = keras.layers


class Sampling(layers.Layer):
    """Draws z from its mean and the logarithm of its variance."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seed_generator = keras.random.SeedGenerator(1337)

    def call(self, inputs):
        z_mean, z_log_var = inputs
        epsilon = keras.random.normal(
            ops.shape(z_mean), dtype=z_mean.dtype, seed=self.seed_generator
        )
        return z_mean + ops.exp(0.5 * z_log_var) * epsilon


class VAE(keras.Model):
    def __init__(self, encoder, decoder, **kwargs):
        super().__init__(**kwargs)
        self.encoder = encoder
        self.decoder = decoder
        self.total_loss_tracker = keras.metrics.Mean(name="total_loss")
        self.reconstruction_loss_tracker = keras.metrics.Mean(
            name="reconstruction_loss"
        )
        self.kl_loss_tracker = keras.metrics.Mean(name="kl_loss")

    @property
    def metrics(self):
        return [
            self.total_loss_tracker,
            self.reconstruction_loss_tracker,
            self.kl_loss_tracker,
        ]

    def train_step(self, data):
        with tf.GradientTape() as tape:
            z_mean, z_log_var, z = self.encoder(data)
            reconstruction = self.decoder(z)
            reconstruction_loss = ops.mean(
                ops.sum(
                    keras.losses.binary_crossentropy(data, reconstruction),
                    axis=(1, 2),
                )
            )
            kl_loss = -0.5 * (
                1 + z_log_var - ops.square(z_mean) - ops.exp(z_log_var)
            )
            kl_loss = ops.mean(ops.sum(kl_loss, axis=1))
            total_loss = reconstruction_loss + kl_loss
        grads = tape.gradient(total_loss, self.trainable_weights)
        self.optimizer.apply_gradients(
            zip(grads, self.trainable_weights, strict=True)
        )
        self.total_loss_tracker.update_state(total_loss)
        self.reconstruction_loss_tracker.update_state(reconstruction_loss)
        self.kl_loss_tracker.update_state(kl_loss)
        return {
            "loss": self.total_loss_tracker.result(),
            "reconstruction_loss": self.reconstruction_loss_tracker.result(),
            "kl_loss": self.kl_loss_tracker.result(),
        }


@program()
def vae(kit):
    """A step of its own and no `call`: nothing to build it by."""
    inputs = keras.Input((16, 16, 1))
    x = kit.Conv2D(9, 3, activation="relu", strides=2, padding="same")(inputs)
    x = layers.Dense(16, activation="relu")(layers.Flatten()(x))
    z_mean = layers.Dense(2, name="z_mean")(x)
    z_log_var = layers.Dense(2, name="z_log_var")(x)
    z = Sampling()([z_mean, z_log_var])
    encoder = keras.Model(inputs, [z_mean, z_log_var, z], name="encoder")
    encoder = kit.parallelize(encoder)

    latent = keras.Input((2,))
    x = layers.Dense(8 * 8 * 12, activation="relu")(latent)
    x = layers.Reshape((8, 8, 12))(x)
    x = kit.Conv2DTranspose(9, 3, activation="relu", strides=2, padding="same")(
        x
    )
    x = kit.Conv2DTranspose(1, 3, activation="sigmoid", padding="same")(x)
    decoder = kit.parallelize(keras.Model(latent, x, name="decoder"))

    images, _ = digits(120)
    model = VAE(encoder, decoder)
    model.compile(optimizer=keras.optimizers.Adam(0.01))
    history = model.fit(images, epochs=3, batch_size=32, verbose=0).history
    return {
        "losses": history["loss"],
        "predictions": [history["kl_loss"], history["reconstruction_loss"]],
    }


@program()
def pixelcnn(kit):
    """Masked convolutions: a layer that holds one, and clears its kernel."""

    class PixelConvLayer(layers.Layer):
        def __init__(self, mask_type, **kwargs):
            super().__init__()
            self.mask_type = mask_type
            self.conv = kit.Conv2D(**kwargs)

        def build(self, input_shape):
            self.conv.build(input_shape)
            kernel_shape = ops.shape(self.conv.kernel)
            self.mask = np.zeros(shape=kernel_shape)
            self.mask[: kernel_shape[0] // 2, ...] = 1.0
            middle = kernel_shape[0] // 2
            self.mask[middle, : kernel_shape[1] // 2, ...] = 1.0
            if self.mask_type == "B":
                self.mask[middle, kernel_shape[1] // 2, ...] = 1.0

        def call(self, inputs):
            self.conv.kernel.assign(self.conv.kernel * self.mask)
            return self.conv(inputs)

    class ResidualBlock(layers.Layer):
        def __init__(self, filters, **kwargs):
            super().__init__(**kwargs)
            self.conv1 = kit.Conv2D(filters, 1, activation="relu")
            self.pixel_conv = PixelConvLayer(
                mask_type="B",
                filters=filters // 2,
                kernel_size=3,
                activation="relu",
                padding="same",
            )
            self.conv2 = kit.Conv2D(filters, 1, activation="relu")

        def call(self, inputs):
            x = self.conv1(inputs)
            x = self.pixel_conv(x)
            x = self.conv2(x)
            return layers.add([inputs, x])

    images, _ = digits(96, 8)
    data = np.where(images < 0.33, 0, 1).astype("float64")

    inputs = keras.Input((8, 8, 1), batch_size=None)
    x = PixelConvLayer(
        mask_type="A",
        filters=12,
        kernel_size=5,
        activation="relu",
        padding="same",
    )(inputs)
    for _ in range(2):
        x = ResidualBlock(filters=12)(x)
    x = PixelConvLayer(
        mask_type="B",
        filters=12,
        kernel_size=1,
        activation="relu",
        padding="valid",
    )(x)
    out = kit.Conv2D(1, 1, activation="sigmoid")(x)
    pixel_cnn = kit.parallelize(keras.Model(inputs, out))

    pixel_cnn.compile(
        optimizer=keras.optimizers.RMSprop(learning_rate=0.002),
        loss="binary_crossentropy",
    )
    history = pixel_cnn.fit(
        x=data,
        y=data,
        batch_size=32,
        epochs=3,
        validation_split=0.25,
        verbose=0,
    ).history
    # Pixel after pixel, of numbers that are given.
    drawn = np.zeros((2, 8, 8, 1))
    chance = np.random.default_rng(7).uniform(size=drawn.shape)
    for row in range(3):
        for column in range(8):
            probs = pixel_cnn(drawn).numpy()[:, row, column]
            drawn[:, row, column] = chance[:, row, column] < probs
    return {
        "losses": history["loss"],
        "predictions": [history["val_loss"], probs, drawn],
    }

"""Two networks against each other, each with an optimizer."""

import keras
import tensorflow as tf
from keras import ops

from keras_programs._data import digits
from keras_programs._kit import program

layers = keras.layers


class GAN(keras.Model):
    def __init__(self, discriminator, generator, latent_dim):
        super().__init__()
        self.discriminator = discriminator
        self.generator = generator
        self.latent_dim = latent_dim
        self.seed_generator = keras.random.SeedGenerator(1337)

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer = d_optimizer
        self.g_optimizer = g_optimizer
        self.loss_fn = loss_fn
        self.d_loss_metric = keras.metrics.Mean(name="d_loss")
        self.g_loss_metric = keras.metrics.Mean(name="g_loss")

    @property
    def metrics(self):
        return [self.d_loss_metric, self.g_loss_metric]

    def draw(self, count):
        return keras.random.normal(
            (count, self.latent_dim), seed=self.seed_generator
        )

    def train_step(self, real_images):
        batch_size = ops.shape(real_images)[0]
        generated_images = self.generator(self.draw(batch_size))
        combined_images = ops.concatenate(
            [generated_images, real_images], axis=0
        )
        labels = ops.concatenate(
            [ops.ones((batch_size, 1)), ops.zeros((batch_size, 1))], axis=0
        )
        # A trick of the trade: labels with noise.
        labels += 0.05 * keras.random.uniform(
            ops.shape(labels), seed=self.seed_generator
        )

        with tf.GradientTape() as tape:
            predictions = self.discriminator(combined_images)
            d_loss = self.loss_fn(labels, predictions)
        grads = tape.gradient(d_loss, self.discriminator.trainable_weights)
        self.d_optimizer.apply_gradients(
            zip(grads, self.discriminator.trainable_weights, strict=True)
        )

        misleading_labels = ops.zeros((batch_size, 1))
        with tf.GradientTape() as tape:
            fake_images = self.generator(self.draw(batch_size))
            predictions = self.discriminator(fake_images)
            g_loss = self.loss_fn(misleading_labels, predictions)
        grads = tape.gradient(g_loss, self.generator.trainable_weights)
        self.g_optimizer.apply_gradients(
            zip(grads, self.generator.trainable_weights, strict=True)
        )

        self.d_loss_metric.update_state(d_loss)
        self.g_loss_metric.update_state(g_loss)
        return {
            "d_loss": self.d_loss_metric.result(),
            "g_loss": self.g_loss_metric.result(),
        }


class GANMonitor(keras.callbacks.Callback):
    """What the generator makes of the same numbers after each epoch."""

    def __init__(self, latent_dim):
        self.latent = keras.random.normal((2, latent_dim), seed=42)
        self.images = []

    def on_epoch_end(self, epoch, logs=None):
        self.images.append(self.model.generator(self.latent).numpy())


def small_generator(kit, latent_dim, normalized=True):
    model = keras.Sequential(name="generator")
    model.add(keras.Input((latent_dim,)))
    model.add(layers.Dense(4 * 4 * 8))
    model.add(layers.Reshape((4, 4, 8)))
    for filters in (12, 8):
        model.add(kit.Conv2DTranspose(filters, 4, strides=2, padding="same"))
        if normalized:
            model.add(layers.BatchNormalization())
        model.add(layers.LeakyReLU(negative_slope=0.2))
    model.add(kit.Conv2D(1, 5, padding="same", activation="sigmoid"))
    return model


def small_discriminator(kit, activation="sigmoid"):
    return keras.Sequential(
        [
            keras.Input((16, 16, 1)),
            kit.Conv2D(8, 4, strides=2, padding="same"),
            layers.LeakyReLU(negative_slope=0.2),
            kit.Conv2D(12, 4, strides=2, padding="same"),
            layers.LeakyReLU(negative_slope=0.2),
            layers.Flatten(),
            layers.Dropout(0.2),
            layers.Dense(1, activation=activation),
        ],
        name="discriminator",
    )


@program(falls=False)
def dcgan(kit):
    latent_dim = 16
    images, _ = digits(112)
    dataset = tf.data.Dataset.from_tensor_slices(images.astype("float64"))
    dataset = dataset.shuffle(buffer_size=64, seed=3).batch(32)

    gan = GAN(
        discriminator=kit.parallelize(small_discriminator(kit)),
        generator=kit.parallelize(small_generator(kit, latent_dim)),
        latent_dim=latent_dim,
    )
    gan.compile(
        d_optimizer=keras.optimizers.Adam(learning_rate=0.001),
        g_optimizer=keras.optimizers.Adam(learning_rate=0.001),
        loss_fn=keras.losses.BinaryCrossentropy(),
    )
    monitor = GANMonitor(latent_dim)
    history = gan.fit(dataset, epochs=3, callbacks=[monitor], verbose=0).history
    return {
        "losses": history["d_loss"] + history["g_loss"],
        "predictions": monitor.images,
    }


class WGAN(keras.Model):
    def __init__(self, discriminator, generator, latent_dim, d_steps=2):
        super().__init__()
        self.discriminator = discriminator
        self.generator = generator
        self.latent_dim = latent_dim
        self.d_steps = d_steps
        self.gp_weight = 10.0
        self.seed_generator = keras.random.SeedGenerator(7)

    def compile(self, d_optimizer, g_optimizer, d_loss_fn, g_loss_fn):
        super().compile()
        self.d_optimizer = d_optimizer
        self.g_optimizer = g_optimizer
        self.d_loss_fn = d_loss_fn
        self.g_loss_fn = g_loss_fn

    def gradient_penalty(self, batch_size, real_images, fake_images):
        """How far the critic's slope between images is from 1."""
        alpha = keras.random.uniform(
            (batch_size, 1, 1, 1), seed=self.seed_generator
        )
        interpolated = real_images + alpha * (fake_images - real_images)
        with tf.GradientTape() as gp_tape:
            gp_tape.watch(interpolated)
            pred = self.discriminator(interpolated, training=True)
        grads = gp_tape.gradient(pred, [interpolated])[0]
        norm = tf.sqrt(tf.reduce_sum(tf.square(grads), axis=[1, 2, 3]))
        return tf.reduce_mean((norm - 1.0) ** 2)

    def draw(self, count):
        return keras.random.normal(
            (count, self.latent_dim), seed=self.seed_generator
        )

    def train_step(self, real_images):
        if isinstance(real_images, tuple):
            real_images = real_images[0]
        batch_size = tf.shape(real_images)[0]
        for _ in range(self.d_steps):
            with tf.GradientTape() as tape:
                fake_images = self.generator(
                    self.draw(batch_size), training=True
                )
                fake = self.discriminator(fake_images, training=True)
                real = self.discriminator(real_images, training=True)
                d_cost = self.d_loss_fn(real_img=real, fake_img=fake)
                gp = self.gradient_penalty(batch_size, real_images, fake_images)
                d_loss = d_cost + gp * self.gp_weight
            d_gradient = tape.gradient(
                d_loss, self.discriminator.trainable_variables
            )
            self.d_optimizer.apply_gradients(
                zip(
                    d_gradient,
                    self.discriminator.trainable_variables,
                    strict=True,
                )
            )
        with tf.GradientTape() as tape:
            generated = self.generator(self.draw(batch_size), training=True)
            logits = self.discriminator(generated, training=True)
            g_loss = self.g_loss_fn(logits)
        gen_gradient = tape.gradient(g_loss, self.generator.trainable_variables)
        self.g_optimizer.apply_gradients(
            zip(gen_gradient, self.generator.trainable_variables, strict=True)
        )
        return {"d_loss": d_loss, "g_loss": g_loss}


def train_wgan(wgan, latent_dim):
    images, _ = digits(96)
    monitor = GANMonitor(latent_dim)
    wgan.compile(
        d_optimizer=keras.optimizers.Adam(0.001, beta_1=0.5, beta_2=0.9),
        g_optimizer=keras.optimizers.Adam(0.001, beta_1=0.5, beta_2=0.9),
        g_loss_fn=lambda fake_img: -tf.reduce_mean(fake_img),
        d_loss_fn=lambda real_img, fake_img: (
            tf.reduce_mean(fake_img) - tf.reduce_mean(real_img)
        ),
    )
    history = wgan.fit(
        images, batch_size=32, epochs=2, callbacks=[monitor], verbose=0
    ).history
    return {
        "losses": history["d_loss"] + history["g_loss"],
        "predictions": monitor.images,
    }


@program(falls=False)
def wgan_gp(kit):
    """The loss has a gradient in it: kernels get second derivatives."""
    critic = kit.parallelize(small_discriminator(kit, activation=None))
    generator = kit.parallelize(small_generator(kit, 8, normalized=False))
    return train_wgan(WGAN(critic, generator, latent_dim=8), 8)


@program(falls=False)
def wgan_gp_given_whole(kit):
    """The same, with the one line on the whole of it."""
    wgan = WGAN(
        small_discriminator(kit, activation=None),
        small_generator(kit, 8, normalized=False),
        latent_dim=8,
    )
    return train_wgan(kit.parallelize(wgan), 8)

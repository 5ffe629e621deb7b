"""Training loops written by hand."""

import keras
import numpy as np
import tensorflow as tf

from keras_programs._data import digits
from keras_programs._kit import program

layers = keras.layers


def network(kit):
    return keras.Sequential(
        [
            keras.Input((16, 16, 1)),
            kit.Conv2D(8, 3, strides=2, activation="relu"),
            layers.BatchNormalization(),
            kit.Conv2D(12, 3, activation="relu"),
            layers.Flatten(),
            layers.Dropout(0.2),
            layers.Dense(10),
        ]
    )


@program()
def loop_with_apply(kit):
    """Eager steps, then the same in a function; two optimizers."""
    images, labels = digits(72)
    dataset = tf.data.Dataset.from_tensor_slices((images, labels))
    dataset = dataset.shuffle(64, seed=3).batch(40)
    model = kit.parallelize(network(kit))
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    train_acc_metric = keras.metrics.SparseCategoricalAccuracy()
    losses, accuracies = [], []

    optimizer = keras.optimizers.Adam(learning_rate=1e-2)
    for x_batch, y_batch in dataset:
        with tf.GradientTape() as tape:
            logits = model(x_batch, training=True)
            loss_value = loss_fn(y_batch, logits)
        grads = tape.gradient(loss_value, model.trainable_weights)
        optimizer.apply(grads, model.trainable_weights)
        train_acc_metric.update_state(y_batch, logits)
        losses.append(float(loss_value))
    accuracies.append(float(train_acc_metric.result()))
    train_acc_metric.reset_state()

    optimizer = keras.optimizers.SGD(learning_rate=0.05, momentum=0.9)
    optimizer.build(model.trainable_variables)

    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            loss_value = loss_fn(y, logits)
        grads = tape.gradient(loss_value, model.trainable_weights)
        optimizer.apply_gradients(
            zip(grads, model.trainable_weights, strict=True)
        )
        train_acc_metric.update_state(y, logits)
        return loss_value

    for _ in range(2):
        for x_batch, y_batch in dataset:
            losses.append(float(train_step(x_batch, y_batch)))
        accuracies.append(float(train_acc_metric.result()))
        train_acc_metric.reset_state()
    return {
        "losses": losses,
        "predictions": [accuracies, optimizer.iterations.numpy()],
    }


@program()
def gradient_accumulation(kit):
    """Sums of gradients, kept by hand; clipped; then a step."""
    images, labels = digits(96)
    dataset = tf.data.Dataset.from_tensor_slices((images, labels))
    dataset = dataset.shuffle(96, seed=3).batch(8)
    model = kit.parallelize(network(kit))
    optimizer = keras.optimizers.AdamW(0.01)
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    weights = model.trainable_variables
    sums = [tf.Variable(tf.zeros(w.shape, w.dtype)) for w in weights]

    @tf.function
    def accumulate(x, y):
        with tf.GradientTape() as tape:
            loss = loss_fn(y, model(x, training=True))
        for total, gradient in zip(
            sums, tape.gradient(loss, weights), strict=True
        ):
            total.assign_add(gradient / 4)
        return loss

    losses, norms = [], []
    for _ in range(2):
        for number, (x, y) in enumerate(dataset, start=1):
            losses.append(float(accumulate(x, y)))
            if number % 4 == 0:
                clipped, norm = tf.clip_by_global_norm(sums, 0.5)
                optimizer.apply_gradients(zip(clipped, weights, strict=True))
                norms.append(float(norm))
                for total in sums:
                    total.assign(tf.zeros_like(total))
    return {
        "losses": [np.mean(losses[:12]), np.mean(losses[12:])],
        "predictions": [
            losses,
            norms,
            np.concatenate([w.numpy().ravel() for w in weights]),
        ],
    }


@program()
def clipping_in_a_loop(kit):
    """Gradients clipped as they come from the tape, with a regularizer."""
    images, labels = digits(96)
    inputs = keras.Input((16, 16, 1))
    x = kit.Conv2D(8, 3, strides=2, kernel_regularizer="l2")(inputs)
    x = layers.ReLU()(x)
    x = kit.Conv2D(12, 3, kernel_constraint=keras.constraints.MaxNorm(1))(x)
    x = layers.GlobalMaxPooling2D()(x)
    model = kit.parallelize(keras.Model(inputs, layers.Dense(10)(x)))
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    rate = tf.Variable(0.5, dtype="float64")

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_fn(y, model(x, training=True)) + sum(model.losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        gradients, norm = tf.clip_by_global_norm(gradients, 1.0)
        # Without an optimizer.
        for weight, gradient in zip(
            model.trainable_variables, gradients, strict=True
        ):
            weight.assign_sub(rate * gradient)
        return loss, norm

    @tf.function
    def epoch(dataset):
        total = tf.constant(0.0, "float64")
        for x, y in dataset:
            loss, _ = step(x, y)
            total += loss
        return total

    dataset = tf.data.Dataset.from_tensor_slices((images, labels)).batch(20)
    losses = [float(epoch(dataset)) for _ in range(3)]
    _, norm = step(images[:16], labels[:16])
    return {
        "losses": losses,
        "predictions": [float(norm), model.predict(images[:8], verbose=0)],
    }


@program()
def reptile(kit):
    """Learning to learn: weights taken out, moved, and put back."""
    images, labels = digits(128)
    rng = np.random.default_rng(9)

    def few_shots(shots=3, classes=3):
        chosen = rng.choice(10, classes, replace=False)
        x, y = [], []
        for number, label in enumerate(chosen):
            found = rng.choice(np.flatnonzero(labels == label), shots)
            x.append(images[found])
            y.extend([number] * shots)
        dataset = tf.data.Dataset.from_tensor_slices(
            (np.concatenate(x), np.array(y))
        )
        return dataset.shuffle(16, seed=3).batch(5).repeat(2)

    inputs = keras.Input((16, 16, 1))
    x = inputs
    for _ in range(2):
        x = kit.Conv2D(8, 3, strides=2, padding="same")(x)
        x = layers.BatchNormalization()(x)
        x = layers.ReLU()(x)
    x = layers.Flatten()(x)
    outputs = layers.Dense(3, activation="softmax")(x)
    model = kit.parallelize(keras.Model(inputs, outputs))
    model.compile()
    optimizer = keras.optimizers.SGD(learning_rate=0.1)

    losses = []
    for meta_iter in range(4):
        cur_meta_step_size = (1 - meta_iter / 4) * 0.25
        old_vars = model.get_weights()
        total = 0.0
        for x_batch, y_batch in few_shots():
            with tf.GradientTape() as tape:
                preds = model(x_batch, training=True)
                loss = keras.losses.sparse_categorical_crossentropy(
                    y_batch, preds
                )
            grads = tape.gradient(loss, model.trainable_weights)
            optimizer.apply_gradients(
                zip(grads, model.trainable_weights, strict=True)
            )
            total += float(tf.reduce_mean(loss))
        new_vars = model.get_weights()
        for var, old in enumerate(old_vars):
            new_vars[var] = old + (new_vars[var] - old) * cur_meta_step_size
        model.set_weights(new_vars)
        losses.append(total)
    return {
        "losses": losses,
        "predictions": [
            model.predict(images[:6], verbose=0),
            # All in one: a bias before normalization is nothing but rounding.
            np.concatenate([w.ravel() for w in model.get_weights()]),
        ],
    }

"""How training is run: callbacks, schedules, files, policies, many models."""

import importlib.util

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from keras_programs._data import coloured_digits
from keras_programs._data import digits
from keras_programs._kit import program

layers = keras.layers


def network(kit, filters=8, dropout=0.1):
    return keras.Sequential(
        [
            keras.Input((16, 16, 1)),
            kit.Conv2D(filters, 3, strides=2, padding="same", name="one"),
            layers.BatchNormalization(name="normal"),
            layers.ReLU(name="relu"),
            kit.Conv2D(12, 3, activation="relu", name="two"),
            layers.GlobalAveragePooling2D(name="average"),
            layers.Dropout(dropout, name="dropout"),
            layers.Dense(10, name="scores"),
        ]
    )


class WarmUp(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, base, warmup_steps):
        self.base = base
        self.warmup_steps = warmup_steps

    def __call__(self, step):
        step = ops.cast(step, "float64")
        return self.base * ops.minimum(1.0, (step + 1) / self.warmup_steps)


@program()
def callbacks_and_schedules(kit):
    """All callbacks that Keras has for a training of one machine."""
    images, labels = digits(128)
    train, held_out = (images[:96], labels[:96]), (images[96:], labels[96:])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model = kit.parallelize(network(kit))

    model.compile(
        keras.optimizers.Adam(WarmUp(0.01, 6)),
        loss,
        metrics=["accuracy"],
        jit_compile="auto",
    )
    warm = model.fit(*train, epochs=2, verbose=0).history

    model.compile(keras.optimizers.SGD(0.1), loss, jit_compile="auto")
    callbacks = [
        keras.callbacks.LearningRateScheduler(
            lambda epoch, rate: rate if epoch < 2 else rate * 0.5
        ),
        keras.callbacks.ReduceLROnPlateau(
            monitor="val_loss", factor=0.2, patience=0, min_delta=1.0
        ),
        keras.callbacks.EarlyStopping(
            monitor="val_loss", patience=2, restore_best_weights=True
        ),
        keras.callbacks.BackupAndRestore(str(kit.folder / "backup")),
        keras.callbacks.ModelCheckpoint(
            str(kit.folder / "{epoch:02d}.keras"), save_freq="epoch"
        ),
        keras.callbacks.CSVLogger(str(kit.folder / "log.csv")),
        keras.callbacks.TerminateOnNaN(),
    ]
    # Keras' callback writes with that package.
    if importlib.util.find_spec("tensorboard"):
        callbacks.append(
            keras.callbacks.TensorBoard(
                str(kit.folder / "board"), histogram_freq=1, update_freq=1
            )
        )
    history = model.fit(
        *train,
        epochs=4,
        validation_data=held_out,
        callbacks=callbacks,
        verbose=0,
    ).history
    rows = (kit.folder / "log.csv").read_text().splitlines()
    assert len(rows) == 1 + len(history["loss"])
    first = keras.models.load_model(kit.folder / "01.keras")
    return {
        "losses": warm["loss"] + history["loss"],
        "predictions": [
            history["val_loss"],
            history["learning_rate"],
            model.predict(held_out[0], verbose=0),
            first.predict(held_out[0], verbose=0),
        ],
    }


class Interrupted(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2:
            raise KeyboardInterrupt


@program()
def backup_and_restore(kit):
    """A training that is broken off, and taken up by another model."""
    images, labels = digits(96)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def train(callbacks):
        keras.utils.set_random_seed(2)
        # Keras does not keep what dropout has drawn so far.
        model = kit.parallelize(network(kit, dropout=0.0))
        model.compile(keras.optimizers.Adam(0.01), loss)
        history = model.fit(
            images,
            labels,
            epochs=4,
            shuffle=False,
            callbacks=callbacks,
            verbose=0,
        ).history
        return history["loss"]

    whole = train([])
    backup = keras.callbacks.BackupAndRestore(str(kit.folder / "backup"))
    try:
        train([backup, Interrupted()])
    except KeyboardInterrupt:
        backup = keras.callbacks.BackupAndRestore(str(kit.folder / "backup"))
    rest = train([backup])
    np.testing.assert_allclose(rest, whole[2:], rtol=1e-9)
    return {"losses": whole, "predictions": rest}


@program()
def save_in_mid_training(kit):
    """A file in the middle changes nothing of what comes after."""
    images, labels = digits(96)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def start():
        keras.utils.set_random_seed(2)
        # Keras does not keep what dropout has drawn so far.
        model = kit.parallelize(network(kit, dropout=0.0))
        model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
        return model

    def fit(model, epochs):
        return model.fit(
            images, labels, epochs=epochs, shuffle=False, verbose=0
        ).history["loss"]

    whole = fit(start(), 4)
    model = start()
    before = fit(model, 2)
    model.save(kit.folder / "model.keras")
    model.save_weights(kit.folder / "model.weights.h5")
    scores = model.predict(images[:16], verbose=0)

    loaded = keras.models.load_model(kit.folder / "model.keras")
    np.testing.assert_allclose(
        loaded.predict(images[:16], verbose=0), scores, rtol=1e-9
    )
    after = fit(loaded, 2)
    np.testing.assert_allclose(before + after, whole, rtol=1e-9)

    other = start()
    other.load_weights(kit.folder / "model.weights.h5")
    np.testing.assert_allclose(
        other.predict(images[:16], verbose=0), scores, rtol=1e-9
    )
    return {
        "losses": before + after,
        "predictions": [whole, scores, fit(other, 1)],
    }


# Feature maps in bfloat16 have eight bits, 0.4 %, and sums over shards are
# rounded to them once more. The losses fall by 40 % meanwhile.
@program(dtype="mixed_bfloat16", tolerance=0.01)
def mixed_precision(kit):
    images, labels = coloured_digits(128, 16)
    inputs = keras.Input((16, 16, 3))
    x = kit.Conv2D(12, 3, activation="relu")(inputs)
    x = layers.AveragePooling2D(2)(x)
    x = kit.SeparableConv2D(18, 3, activation="relu")(x)
    x = layers.Dense(10)(layers.Flatten()(x))
    outputs = layers.Activation("softmax", dtype="float32")(x)
    model = kit.parallelize(keras.Model(inputs, outputs))
    model.compile(
        keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy"
    )
    dataset = tf.data.Dataset.from_tensor_slices((images, labels))
    history = model.fit(
        dataset.shuffle(64, seed=3).batch(32), epochs=3, verbose=0
    ).history
    assert model.layers[1].compute_dtype == "bfloat16"
    assert model.layers[1].kernel.dtype == "float32"
    return {
        "losses": history["loss"],
        "predictions": model.evaluate(images, labels, verbose=0),
    }


@program()
def search_of_hyperparameters(kit):
    """Many models in one process, each after a clearing of the session."""
    images, labels = digits(96)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    trials = []
    for filters, rate in ((6, 0.02), (9, 0.02), (12, 0.005)):
        keras.utils.clear_session()
        keras.utils.set_random_seed(filters)
        model = kit.parallelize(network(kit, filters))
        model.compile(keras.optimizers.Adam(rate), loss, metrics=["accuracy"])
        history = model.fit(
            images[:72],
            labels[:72],
            epochs=2,
            batch_size=20,
            validation_data=(images[72:], labels[72:]),
            verbose=0,
        ).history
        assert model.layers[0].name == "one"
        trials.append((history["val_loss"][-1], filters, rate, history))
    best = min(trials, key=lambda trial: trial[0])
    return {
        "losses": [loss for trial in trials for loss in trial[3]["loss"]],
        "predictions": [[t[0] for t in trials], [float(n) for n in best[:3]]],
    }


@program()
def second_network(kit):
    """What is made after the first network starts as it would without it."""
    images, labels = digits(96)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    first = kit.parallelize(network(kit))
    drawn = [np.random.uniform(), float(tf.random.uniform([], dtype="float64"))]
    drawn.append(float(keras.random.uniform([])))
    second = network(kit)
    weights = [weight[..., :2] for weight in second.get_weights()]
    losses = []
    for model in (first, second):
        model.compile(keras.optimizers.Adam(0.01), loss)
        losses += model.fit(images, labels, epochs=2, verbose=0).history["loss"]
    return {"losses": losses, "predictions": [drawn, weights]}

"""What goes into a network: several inputs, preprocessing, weights, order."""

import keras
import numpy as np
import tensorflow as tf

from keras_programs._data import coloured_digits
from keras_programs._data import digits
from keras_programs._kit import program

layers = keras.layers


@program()
def many_inputs_and_outputs(kit):
    """Dictionaries of inputs, outputs, losses, weights and metrics."""
    images, labels = digits(112)
    rng = np.random.default_rng(10)
    data = {"image": images, "tags": rng.integers(0, 2, (112, 6))}
    targets = {"digit": labels, "ink": images.mean(axis=(1, 2))}

    image = keras.Input((16, 16, 1), name="image")
    tags = keras.Input((6,), name="tags")
    x = kit.Conv2D(8, 3, strides=2, activation="relu")(image)
    side = kit.Conv2D(8, 5, strides=2, padding="same", activation="tanh")(image)
    side = layers.Cropping2D(((0, 1), (0, 1)))(side)
    x = layers.concatenate([x, side])
    x = kit.Conv2D(12, 3, activation="relu")(x)
    x = layers.GlobalAveragePooling2D()(x)
    x = layers.concatenate([x, layers.Dense(4)(tags)])
    digit = layers.Dense(10, activation="softmax", name="digit")(x)
    ink = layers.Dense(1, name="ink")(x)
    model = keras.Model(
        inputs={"image": image, "tags": tags},
        outputs={"digit": digit, "ink": ink},
    )
    model = kit.parallelize(model)

    model.compile(
        optimizer=keras.optimizers.RMSprop(0.01),
        loss={"digit": "sparse_categorical_crossentropy", "ink": "mse"},
        loss_weights={"digit": 1.0, "ink": 0.2},
        metrics={"digit": ["accuracy"], "ink": ["mae"]},
    )
    first = model.fit(
        data, targets, epochs=2, batch_size=30, validation_split=0.2, verbose=0
    ).history
    dataset = tf.data.Dataset.from_tensor_slices((data, targets))
    second = model.fit(
        dataset.shuffle(64, seed=3).batch(30), epochs=2, verbose=0
    ).history
    predicted = model.predict(data, verbose=0)
    return {
        "losses": first["loss"] + second["loss"],
        "predictions": [
            first["val_digit_loss"],
            first["val_ink_mae"],
            predicted["digit"],
            predicted["ink"],
        ],
    }


@program()
def preprocessing_in_the_model(kit):
    """Layers that have learnt from data, or know words, before training."""
    images, labels = coloured_digits(112, 12)
    images = (images * 255).astype("uint8")
    writers = np.array(["ann", "bob", "cyd"])[labels % 3][:, None]
    rng = np.random.default_rng(11)
    ages = rng.normal(40, 12, (112, 2))

    normalization = layers.Normalization()
    normalization.adapt(images)
    lookup = layers.StringLookup(vocabulary=["ann", "bob"])
    aged = layers.Normalization(name="ages_normalized")
    aged.adapt(ages)

    image = keras.Input((12, 12, 3), name="image", dtype="uint8")
    writer = keras.Input((1,), name="writer", dtype="string")
    age = keras.Input((2,), name="age")
    x = layers.Resizing(16, 16)(image)
    x = normalization(x)
    x = kit.Conv2D(8, 3, strides=2, activation="relu")(x)
    x = layers.Rescaling(1 / 2.0)(x)
    x = kit.Conv2D(12, 3, activation="relu")(x)
    x = layers.GlobalAveragePooling2D()(x)
    who = layers.CategoryEncoding(num_tokens=3, output_mode="one_hot")(
        lookup(writer)
    )
    years = layers.Discretization(bin_boundaries=[-1.0, 0.0, 1.0])(aged(age))
    years = layers.Flatten()(layers.Embedding(4, 2)(years))
    x = layers.Concatenate()([x, who, years, aged(age)])
    model = keras.Model([image, writer, age], layers.Dense(10)(x))
    model = kit.parallelize(model)

    model.compile(
        keras.optimizers.Adam(0.02),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    dataset = tf.data.Dataset.from_tensor_slices(
        ((images, writers, ages), labels)
    )
    before = model.predict(dataset.batch(28), verbose=0)
    history = model.fit(
        dataset.shuffle(64, seed=3).batch(32), epochs=3, verbose=0
    ).history
    return {
        "losses": history["loss"],
        "predictions": [before, model.predict(dataset.batch(28), verbose=0)],
    }


@program()
def weights_of_samples_and_classes(kit):
    """Several steps at once, and a last batch that is smaller."""
    images, labels = digits(150)
    train, held_out = (images[:110], labels[:110]), (images[110:], labels[110:])
    rng = np.random.default_rng(12)
    sample_weight = rng.uniform(0.2, 2, 110)
    model = keras.Sequential(
        [
            keras.Input((16, 16, 1)),
            kit.Conv2D(8, 3, strides=2, activation="relu"),
            kit.Conv2D(12, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )
    model = kit.parallelize(model)
    model.compile(
        keras.optimizers.Adam(0.005),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        weighted_metrics=["accuracy"],
        steps_per_execution=2,
    )
    weighted = model.fit(
        *train,
        batch_size=24,
        epochs=2,
        sample_weight=sample_weight,
        validation_data=(*held_out, np.linspace(0.5, 1.5, 40)),
        verbose=0,
    ).history
    by_class = model.fit(
        *train,
        batch_size=24,
        epochs=2,
        class_weight={n: 1 + n / 10 for n in range(10)},
        validation_data=held_out,
        validation_batch_size=16,
        verbose=0,
    ).history
    return {
        "losses": weighted["loss"] + by_class["loss"],
        "predictions": [
            weighted["val_loss"],
            weighted["weighted_accuracy"],
            by_class["val_loss"],
            model.evaluate(*held_out, batch_size=24, verbose=0),
            model.predict(held_out[0], batch_size=24, verbose=0),
        ],
    }


class Shuffled(keras.utils.PyDataset):
    """Batches of an order that is drawn anew after each epoch."""

    def __init__(self, x, y, batch_size):
        super().__init__()
        self.x, self.y, self.batch_size = x, y, batch_size
        self.rng = np.random.default_rng(13)
        self.order = np.arange(len(x))

    def __len__(self):
        return -(-len(self.x) // self.batch_size)

    def __getitem__(self, index):
        start = index * self.batch_size
        chosen = self.order[start : start + self.batch_size]
        return self.x[chosen], self.y[chosen]

    def on_epoch_end(self):
        self.rng.shuffle(self.order)


@program()
def generators(kit):
    """Data from Python: finite, endless, and a PyDataset."""
    images, labels = digits(60)

    def batches(passes, size=24):
        for _ in range(passes):
            for start in range(0, 60, size):
                chosen = slice(start, start + size)
                yield images[chosen], labels[chosen]

    def endless():
        while True:
            yield from batches(1)

    model = keras.Sequential(
        [
            keras.Input((16, 16, 1)),
            kit.Conv2D(8, 3, strides=2, activation="relu"),
            kit.Conv2D(12, 3, activation="relu"),
            layers.GlobalMaxPooling2D(),
            layers.Dense(10),
        ]
    )
    model = kit.parallelize(model)
    model.compile(
        keras.optimizers.Adam(0.01),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    losses, seen = [], []

    def fit(data, **kwargs):
        steps = []
        count = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: steps.append(logs["loss"])
        )
        history = model.fit(data, callbacks=[count], verbose=0, **kwargs)
        losses.extend(history.history["loss"])
        seen.append(len(steps))

    fit(batches(1))
    fit(batches(2), epochs=2, steps_per_epoch=3)
    fit(endless(), epochs=2, steps_per_epoch=3)
    fit(Shuffled(images, labels, 24), epochs=2, shuffle=True)
    return {
        "losses": losses,
        "predictions": [
            [float(steps) for steps in seen],
            float(model.optimizer.iterations.numpy()),
        ],
    }


@program()
def generators_to_evaluate_and_predict(kit):
    """Nothing is trained on but arrays; all else is from Python."""
    images, labels = digits(60)

    def batches(size=16):
        for start in range(0, 60, size):
            chosen = slice(start, start + size)
            yield images[chosen], labels[chosen]

    inputs = keras.Input((16, 16, 1))
    x = kit.Conv2D(12, 5, strides=3, activation="relu")(inputs)
    x = layers.Flatten()(x)
    model = kit.parallelize(keras.Model(inputs, layers.Dense(10)(x)))
    model.compile(
        keras.optimizers.Adam(0.01),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    history = model.fit(
        images,
        labels,
        epochs=3,
        validation_data=Shuffled(images, labels, 25),
        verbose=0,
    ).history
    predicted = model.predict(((x,) for x, _ in batches()), verbose=0)
    return {
        "losses": history["loss"],
        "predictions": [
            history["val_loss"],
            model.evaluate(batches(), verbose=0),
            model.evaluate(batches(), steps=2, verbose=0),
            [*predicted.shape],
            predicted,
            model.predict(Shuffled(images, labels, 24), verbose=0),
        ],
    }

"""Image classification: from `tf.data`, in two and three dimensions."""

import keras
import tensorflow as tf

from keras_programs._data import coloured_digits
from keras_programs._data import digits
from keras_programs._data import volumes
from keras_programs._kit import program

layers = keras.layers


@program()
def image_classification(kit):
    """A small Xception; augmentation is part of the model."""
    images, labels = coloured_digits(160, 16)
    train = (
        tf.data.Dataset.from_tensor_slices((images[:120], labels[:120]))
        .shuffle(64, seed=3)
        .batch(32)
        .prefetch(tf.data.AUTOTUNE)
    )
    held_out = tf.data.Dataset.from_tensor_slices((images[120:], labels[120:]))
    held_out = held_out.batch(32)
    augmentation = keras.Sequential(
        [
            layers.RandomFlip("horizontal"),
            # Keras moves images in float32 only.
            layers.RandomTranslation(0.1, 0.1, dtype="float32"),
        ],
        name="augmentation",
    )

    inputs = keras.Input((16, 16, 3))
    x = augmentation(inputs)
    x = layers.Rescaling(2.0, offset=-1)(x)
    x = kit.Conv2D(12, 3, padding="same", use_bias=False)(x)
    x = layers.BatchNormalization()(x)
    x = previous = layers.Activation("relu")(x)
    for size in (16, 24):
        x = layers.Activation("relu")(x)
        x = kit.SeparableConv2D(size, 3, padding="same", use_bias=False)(x)
        x = layers.BatchNormalization()(x)
        x = layers.MaxPooling2D(3, strides=2, padding="same")(x)
        residual = kit.Conv2D(size, 1, strides=2, padding="same")(previous)
        x = previous = layers.add([x, residual])
    x = layers.GlobalAveragePooling2D()(x)
    x = layers.Dropout(0.25)(x)
    model = keras.Model(inputs, layers.Dense(10)(x))
    model = kit.parallelize(model)

    model.compile(
        keras.optimizers.Adam(1e-2),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    history = model.fit(
        train, epochs=3, validation_data=held_out, verbose=0
    ).history
    return {
        "losses": history["loss"],
        "predictions": [
            history["val_loss"],
            history["accuracy"],
            model.predict(images[120:], verbose=0),
        ],
    }


@program()
def convmixer(kit):
    """Patches, then depthwise and pointwise convolutions in turns."""

    def activation_block(x):
        x = layers.Activation("gelu")(x)
        return layers.BatchNormalization()(x)

    images, labels = digits(128)
    train = tf.data.Dataset.from_tensor_slices((images[:96], labels[:96]))
    train = train.shuffle(96, seed=3).batch(24).prefetch(tf.data.AUTOTUNE)
    held_out = tf.data.Dataset.from_tensor_slices((images[96:], labels[96:]))

    inputs = keras.Input((16, 16, 1))
    x = layers.Rescaling(2.0, -1.0)(inputs)
    x = activation_block(kit.Conv2D(18, 2, strides=2)(x))
    for _ in range(2):
        x0 = x
        x = kit.DepthwiseConv2D(3, padding="same")(x)
        x = layers.Add()([activation_block(x), x0])
        x = activation_block(kit.Conv2D(18, 1)(x))
    x = layers.GlobalAvgPool2D()(x)
    outputs = layers.Dense(10, activation="softmax")(x)
    model = kit.parallelize(keras.Model(inputs, outputs))

    model.compile(
        optimizer=keras.optimizers.AdamW(1e-2, weight_decay=1e-4),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    path = kit.folder / "best.weights.h5"
    checkpoint = keras.callbacks.ModelCheckpoint(
        str(path),
        monitor="val_loss",
        save_best_only=True,
        save_weights_only=True,
    )
    history = model.fit(
        train,
        validation_data=held_out.batch(24),
        epochs=3,
        callbacks=[checkpoint],
        verbose=0,
    ).history
    model.load_weights(path)
    scores = model.evaluate(held_out.batch(24), verbose=0)
    return {
        "losses": history["loss"],
        "predictions": [history["val_loss"], scores],
    }


@program()
def volume_classification(kit):
    """3-D convolutions of scans that are turned at random in the pipeline."""

    def turn(scan, label):
        turns = tf.random.uniform([], 0, 4, tf.int32, seed=5)
        scan = tf.transpose(scan[..., 0], [1, 2, 0])
        return tf.image.rot90(scan, turns)[..., tf.newaxis], label

    scans, labels = volumes(64)
    train = (
        tf.data.Dataset.from_tensor_slices((scans[:48], labels[:48]))
        .shuffle(48)  # Otherwise in each epoch; of the global seed.
        .map(turn)
        .batch(10)
        .prefetch(2)
    )
    held_out = tf.data.Dataset.from_tensor_slices((scans[48:], labels[48:]))

    inputs = keras.Input((8, 8, 8, 1))
    x = kit.Conv3D(8, 3, padding="same", activation="relu")(inputs)
    x = kit.Conv3D(8, 2, strides=2)(x)
    x = layers.BatchNormalization()(x)
    x = kit.Conv3D(12, 3, activation="relu")(x)
    x = layers.GlobalAveragePooling3D()(x)
    x = layers.Dense(16, activation="relu")(x)
    x = layers.Dropout(0.3)(x)
    outputs = layers.Dense(1, activation="sigmoid")(x)
    model = kit.parallelize(keras.Model(inputs, outputs, name="3dcnn"))

    model.compile(
        loss="binary_crossentropy",
        optimizer=keras.optimizers.Adam(
            keras.optimizers.schedules.ExponentialDecay(
                0.01, decay_steps=10, decay_rate=0.9, staircase=True
            )
        ),
        metrics=["acc"],
    )
    history = model.fit(
        train, validation_data=held_out.batch(10), epochs=4, verbose=0
    ).history
    return {
        "losses": history["loss"],
        "predictions": [
            history["val_loss"],
            model.predict(scans[48:], verbose=0),
        ],
    }


@program()
def mixup(kit):
    """Two shuffled datasets, zipped: the order of both matters."""

    def mix(one, two, alpha=0.2):
        images_one, labels_one = one
        images_two, labels_two = two
        count = tf.shape(images_one)[0]
        gamma = tf.random.gamma([2, count], alpha, dtype="float64", seed=7)
        share = gamma[0] / tf.reduce_sum(gamma, axis=0)
        x = tf.reshape(share, (count, 1, 1, 1))
        y = tf.reshape(share, (count, 1))
        return (
            images_one * x + images_two * (1 - x),
            labels_one * y + labels_two * (1 - y),
        )

    images, labels = digits(128)
    labels = keras.utils.to_categorical(labels, 10).astype("float64")
    train, held_out = (images[:96], labels[:96]), (images[96:], labels[96:])
    one = tf.data.Dataset.from_tensor_slices(train).shuffle(96).batch(20)
    two = tf.data.Dataset.from_tensor_slices(train).shuffle(96).batch(20)
    mixed = tf.data.Dataset.zip((one, two)).map(mix)

    model = keras.Sequential(
        [
            keras.Input((16, 16, 1)),
            kit.Conv2D(12, 5, strides=2, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Dropout(0.2),
            layers.GlobalAveragePooling2D(),
            layers.Dense(24, activation="relu"),
            layers.Dense(10, activation="softmax"),
        ]
    )
    model = kit.parallelize(model)
    model.compile(
        keras.optimizers.Adam(0.01),
        loss=keras.losses.CategoricalCrossentropy(label_smoothing=0.1),
        metrics=["accuracy"],
    )
    history = model.fit(
        mixed, validation_data=held_out, epochs=4, verbose=0
    ).history
    return {
        "losses": history["loss"],
        "predictions": [history["val_loss"], history["val_accuracy"]],
    }

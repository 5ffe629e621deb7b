"""Series, sentences and moving images."""

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from keras_programs._data import digits
from keras_programs._data import sentences
from keras_programs._data import waves
from keras_programs._kit import program

layers = keras.layers


@program()
def wavenet(kit):
    """Causal convolutions of growing dilation, with gates."""
    series, labels = waves(96)
    inputs = keras.Input((32, 1))
    x = kit.Conv1D(8, 2, padding="causal")(inputs)
    skips = []
    for rate in (1, 4):
        wave = kit.Conv1D(
            8, 2, padding="causal", dilation_rate=rate, activation="tanh"
        )(x)
        gate = kit.Conv1D(
            8, 2, padding="causal", dilation_rate=rate, activation="sigmoid"
        )(x)
        z = layers.Multiply()([wave, gate])
        skips.append(kit.Conv1D(8, 1)(z))
        x = layers.Add()([x, skips[-1]])
    x = layers.ReLU()(layers.Add()(skips))
    x = kit.Conv1D(12, 3, padding="same", use_bias=False)(x)
    x = layers.BatchNormalization()(x)
    x = layers.GlobalAveragePooling1D()(x)
    outputs = layers.Dense(3, activation="softmax")(x)
    model = kit.parallelize(keras.Model(inputs, outputs))

    model.compile(
        keras.optimizers.Nadam(0.01),
        "sparse_categorical_crossentropy",
        metrics=["sparse_categorical_accuracy"],
    )
    history = model.fit(
        series,
        labels,
        batch_size=20,
        epochs=3,
        validation_split=0.25,
        callbacks=[
            keras.callbacks.ModelCheckpoint(
                str(kit.folder / "best.keras"),
                save_best_only=True,
                monitor="val_loss",
            ),
            keras.callbacks.ReduceLROnPlateau(factor=0.5, patience=1),
        ],
        verbose=0,
    ).history
    best = keras.models.load_model(kit.folder / "best.keras")
    return {
        "losses": history["loss"],
        "predictions": [
            history["val_loss"],
            model.predict(series, verbose=0),
            best.evaluate(series[72:], labels[72:], verbose=0),
        ],
    }


@program()
def masks(kit):
    """Padding is left out of means and of what a LSTM reads."""
    tokens, labels = sentences(96)
    inputs = keras.Input((None,), dtype="int64")
    embedding = layers.Embedding(20, 8, mask_zero=True)
    embedded = embedding(inputs)
    mask = embedding.compute_mask(inputs)
    x = kit.Conv1D(9, 3, padding="same", activation="relu")(embedded)
    mean = layers.GlobalAveragePooling1D()(x, mask=mask)
    read = layers.LSTM(8)(x, mask=mask)
    # This one finds the mask by itself.
    other = layers.GlobalAveragePooling1D()(embedded)
    x = layers.concatenate([mean, read, other])
    outputs = layers.Dense(1, activation="sigmoid")(x)
    model = kit.parallelize(keras.Model(inputs, outputs))

    model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy")
    dataset = tf.data.Dataset.from_tensor_slices((tokens, labels))
    history = model.fit(
        dataset.shuffle(64, seed=3).batch(20), epochs=3, verbose=0
    ).history
    longer = np.pad(tokens, ((0, 0), (0, 3)))
    return {
        "losses": history["loss"],
        "predictions": [
            model.predict(tokens, verbose=0),
            model.predict(longer, verbose=0),
        ],
    }


class CTCLayer(layers.Layer):
    def __init__(self, name=None):
        super().__init__(name=name)
        self.loss_fn = ops.ctc_loss

    def call(self, y_true, y_pred):
        batch_len = ops.shape(y_true)[0]
        input_length = ops.shape(y_pred)[1] * ops.ones(batch_len, "int32")
        label_length = ops.shape(y_true)[1] * ops.ones(batch_len, "int32")
        loss = self.loss_fn(y_true, y_pred, label_length, input_length)
        self.add_loss(ops.mean(loss))
        # For whoever wants to predict.
        return y_pred


# Keras computes this loss in float32 whatever the policy: `ops.ctc_loss`.
@program(tolerance=1e-5)
def captcha_ocr(kit):
    """Two digits side by side, read from left to right."""
    images, digit = digits(128, 8)
    wide = np.concatenate([images[:64], images[64:]], axis=2)
    labels = np.stack([digit[:64], digit[64:]], axis=1) + 1  # 0 is blank.

    input_img = keras.Input((8, 16, 1), name="image", dtype="float64")
    label = keras.Input((None,), name="label", dtype="int32")
    x = layers.Permute((2, 1, 3))(input_img)
    x = kit.Conv2D(
        8,
        3,
        activation="relu",
        kernel_initializer="he_normal",
        padding="same",
        name="Conv1",
    )(x)
    x = layers.MaxPooling2D((1, 2), name="pool1")(x)
    x = kit.Conv2D(12, 3, activation="relu", padding="same", name="Conv2")(x)
    x = layers.MaxPooling2D((2, 2), name="pool2")(x)
    x = layers.Reshape((8, 2 * 12))(x)
    x = layers.Dense(16, activation="relu", name="dense1")(x)
    x = layers.Dropout(0.2)(x)
    x = layers.Bidirectional(
        layers.LSTM(8, return_sequences=True, dropout=0.25)
    )(x)
    x = layers.Dense(11, name="characters")(x)
    output = CTCLayer(name="ctc_loss")(label, x)
    model = keras.Model([input_img, label], output, name="ocr_model_v1")
    model = kit.parallelize(model)

    model.compile(optimizer=keras.optimizers.Adam(0.01))
    dataset = tf.data.Dataset.from_tensor_slices(
        {"image": wide, "label": labels}
    )
    history = model.fit(
        dataset.take(48).batch(10).prefetch(2),
        validation_data=dataset.skip(48).batch(10),
        epochs=3,
        callbacks=[
            keras.callbacks.EarlyStopping(
                monitor="val_loss", patience=2, restore_best_weights=True
            )
        ],
        verbose=0,
    ).history
    prediction_model = keras.Model(
        model.inputs[0], model.get_layer(name="characters").output
    )
    preds = prediction_model.predict(wide[:8], verbose=0)
    decoded, _ = ops.ctc_decode(preds, 8 * ops.ones(8, "int32"), mask_index=0)
    return {
        "losses": history["loss"],
        "predictions": [history["val_loss"], preds, decoded],
    }


def moving_digits(count=24, frames=4):
    images, _ = digits(count, 8)
    rows = [np.roll(images, shift, axis=1) for shift in range(frames + 1)]
    return np.stack(rows, axis=1)


@program()
def next_frame(kit):
    """Convolutions within a LSTM; what follows them is to be cut."""
    videos = moving_digits()
    x_train, y_train = videos[:, :-1], videos[:, 1:]
    inp = keras.Input((None, 8, 8, 1))
    x = layers.ConvLSTM2D(
        6, 3, padding="same", return_sequences=True, activation="relu"
    )(inp)
    x = layers.BatchNormalization()(x)
    x = kit.Conv3D(6, 3, padding="same", activation="relu")(x)
    x = kit.Conv3D(1, 3, activation="sigmoid", padding="same")(x)
    model = kit.parallelize(keras.Model(inp, x))

    model.compile(
        loss=keras.losses.BinaryCrossentropy(),
        optimizer=keras.optimizers.Adam(0.01),
    )
    history = model.fit(
        x_train[:18],
        y_train[:18],
        batch_size=5,
        epochs=3,
        validation_data=(x_train[18:], y_train[18:]),
        callbacks=[
            keras.callbacks.EarlyStopping(monitor="val_loss", patience=2),
            keras.callbacks.ReduceLROnPlateau(monitor="val_loss", patience=1),
        ],
        verbose=0,
    ).history
    return {
        "losses": history["loss"],
        "predictions": [
            history["val_loss"],
            model.predict(x_train[18:], verbose=0),
        ],
    }


@program()
def video_classification(kit):
    """One convolution for every frame, then a GRU."""
    videos = moving_digits(48)
    back = videos[24:, ::-1]
    videos = np.concatenate([videos[:24], back])
    labels = np.repeat([0, 1], 24)
    inputs = keras.Input((5, 8, 8, 1))
    x = layers.TimeDistributed(kit.Conv2D(6, 3, activation="relu"))(inputs)
    x = layers.TimeDistributed(layers.GlobalMaxPooling2D())(x)
    x = kit.Conv1D(9, 2, activation="relu")(x)
    x = layers.GRU(8)(x)
    outputs = layers.Dense(1, activation="sigmoid")(x)
    model = kit.parallelize(keras.Model(inputs, outputs))

    model.compile(keras.optimizers.Adam(0.02), "binary_crossentropy")
    dataset = tf.data.Dataset.from_tensor_slices((videos, labels))
    history = model.fit(
        dataset.shuffle(48, seed=3).batch(10), epochs=3, verbose=0
    ).history
    return {
        "losses": history["loss"],
        "predictions": model.predict(videos, verbose=0),
    }

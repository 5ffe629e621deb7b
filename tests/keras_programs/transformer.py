"""A compact transformer, with layers of one's own.

As people write them for one program: without `get_config`, and with just the
arguments that they need.
"""

import keras
import tensorflow as tf
from keras import ops

from keras_programs._data import coloured_digits
from keras_programs._kit import program

layers = keras.layers


class PositionEmbedding(layers.Layer):
    def __init__(self, length):
        super().__init__()
        self.length = length

    def build(self, input_shape):
        self.positions = self.add_weight(
            name="positions",
            shape=(self.length, input_shape[-1]),
            initializer="glorot_uniform",
        )

    def call(self, tokens):
        return tokens + self.positions


class SequencePooling(layers.Layer):
    def __init__(self):
        super().__init__()
        self.attention = layers.Dense(1)

    def call(self, x):
        weights = ops.softmax(self.attention(x), axis=1)
        weights = ops.transpose(weights, axes=(0, 2, 1))
        return ops.squeeze(ops.matmul(weights, x), axis=-2)


class StochasticDepth(layers.Layer):
    def __init__(self, drop_prop, **kwargs):
        super().__init__(**kwargs)
        self.drop_prob = drop_prop
        self.seed_generator = keras.random.SeedGenerator(1337)

    def call(self, x, training=None):
        if not training:
            return x
        keep_prob = 1 - self.drop_prob
        shape = (ops.shape(x)[0],) + (1,) * (len(x.shape) - 1)
        drawn = keras.random.uniform(
            shape, 0, 1, dtype=x.dtype, seed=self.seed_generator
        )
        return (x / keep_prob) * ops.floor(keep_prob + drawn)


def mlp(x, hidden_units, dropout_rate):
    for units in hidden_units:
        x = layers.Dense(units, activation=ops.gelu)(x)
        x = layers.Dropout(dropout_rate)(x)
    return x


@program()
def compact_convolutional_transformer(kit):
    class CCTTokenizer(layers.Layer):
        def __init__(self, output_channels=(12, 16)):
            super().__init__()
            self.conv_model = keras.Sequential()
            for channels in output_channels:
                self.conv_model.add(
                    kit.Conv2D(
                        channels,
                        3,
                        padding="same",
                        use_bias=False,
                        activation="relu",
                        kernel_initializer="he_normal",
                    )
                )
                self.conv_model.add(layers.MaxPooling2D(3, 2, "same"))

        def call(self, images):
            maps = self.conv_model(images)
            shape = ops.shape(maps)
            return ops.reshape(maps, (-1, shape[1] * shape[2], shape[-1]))

    images, labels = coloured_digits(128, 16)
    labels = keras.utils.to_categorical(labels, 10)

    inputs = keras.Input((16, 16, 3))
    augmented = keras.Sequential(
        [layers.RandomTranslation(0.1, 0.1, dtype="float32")],
        name="augmentation",
    )(inputs)
    # The stem is in plain sight; the tokenizer holds its own.
    stem = kit.Conv2D(9, 3, padding="same", name="stem")(augmented)
    tokens = CCTTokenizer()(stem)
    tokens = PositionEmbedding(16)(tokens)
    x1 = layers.LayerNormalization(epsilon=1e-5)(tokens)
    attention = layers.MultiHeadAttention(2, 8, dropout=0.1)(x1, x1)
    attention = StochasticDepth(0.1)(attention)
    x2 = layers.Add()([attention, tokens])
    x3 = layers.LayerNormalization(epsilon=1e-5)(x2)
    x3 = StochasticDepth(0.2)(mlp(x3, (16, 16), 0.1))
    tokens = layers.Add()([x3, x2])
    tokens = layers.LayerNormalization(epsilon=1e-5)(tokens)
    logits = layers.Dense(10)(SequencePooling()(tokens))
    model = kit.parallelize(keras.Model(inputs, logits))

    model.compile(
        optimizer=keras.optimizers.AdamW(0.01, weight_decay=1e-4),
        loss=keras.losses.CategoricalCrossentropy(
            from_logits=True, label_smoothing=0.1
        ),
        metrics=[keras.metrics.CategoricalAccuracy(name="accuracy")],
    )
    train = tf.data.Dataset.from_tensor_slices((images[:96], labels[:96]))
    history = model.fit(
        train.shuffle(64, seed=3).batch(32),
        epochs=3,
        validation_data=(images[96:], labels[96:]),
        verbose=0,
    ).history
    return {
        "losses": history["loss"],
        "predictions": [
            history["val_loss"],
            history["accuracy"],
            model.predict(images[96:], verbose=0),
        ],
    }

"""Batches with fewer images than devices, in all that runs models.

As users run them: in float32, with whatever TensorFlow computes by.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_convpar as convpar

L = keras.layers
CLASSES = 5


def stack():
    return keras.Sequential(
        [
            keras.Input((12, 12, 3)),
            L.Rescaling(2.0),
            L.Conv2D(8, 3, activation="relu"),
            L.MaxPooling2D(),
            L.BatchNormalization(),
            L.Dropout(0.3, seed=1),
            L.Conv2D(9, 3, padding="same"),
            L.GlobalAveragePooling2D(),
            L.Dense(CLASSES, activation="softmax"),
        ]
    )


def residual():
    x = keras.Input((12, 12, 3))
    y = L.Conv2D(8, 3, padding="same", use_bias=False)(x)
    z = L.ReLU()(L.BatchNormalization()(y))
    z = L.DepthwiseConv2D(3, padding="same")(z)
    z = L.SeparableConv2D(8, 3, padding="same")(L.LayerNormalization()(z))
    y = L.Add()([L.BatchNormalization()(z), y])
    gate = keras.ops.sigmoid(keras.ops.mean(y, (1, 2), keepdims=True))
    y = y * gate / keras.ops.max(y)
    y = L.Concatenate()([y, L.Conv2DTranspose(4, 3, padding="same")(y)])
    y = L.GlobalMaxPooling2D()(L.Conv2D(7, 3, strides=2)(y))
    return keras.Model(x, L.Dense(CLASSES, activation="softmax")(y))


def sequences():
    x = keras.Input((12, 6))
    y = L.Conv1D(8, 3, padding="causal", activation="relu")(x)
    y = L.LSTM(6, return_sequences=True)(L.Conv1D(6, 3)(y))
    y = L.Dense(CLASSES, activation="softmax")(L.Conv1D(4, 3)(y)[:, 0])
    return keras.Model(x, y)


def volumes():
    x = keras.Input((8, 8, 8, 2))
    y = L.ZeroPadding3D()(L.Conv3D(6, 3, activation="relu")(x))
    y = L.Conv3D(5, 3)(L.AveragePooling3D(2)(L.UpSampling3D()(y)))
    y = L.Flatten()(L.MaxPooling3D(2)(y))
    return keras.Model(x, L.Dense(CLASSES, activation="softmax")(y))


@keras.saving.register_keras_serializable("last_batches")
class Written(keras.Model):
    """A model that is a class of somebody's."""

    def __init__(self):
        super().__init__()
        self.first = L.Conv2D(8, 3, activation="relu")
        self.second = L.Conv2D(6, 3)
        self.scores = L.Dense(CLASSES, activation="softmax")

    def call(self, x):
        y = self.second(self.first(x))
        return self.scores(tf.reduce_max(y, [1, 2]))


def written():
    model = Written()
    model.build((None, 12, 12, 3))
    return model


MODELS = [stack, residual, sequences, volumes, written]
SAMPLES = {"split": "samples", "shards": (2, 1, 3)}
PLANS = {
    "filters": "equal",
    "samples": {".*": SAMPLES},
    # The last convolutions of each model are called otherwise.
    "samples, then filters": {"(?!.*_[1-9]).*": SAMPLES},
    "filters, then samples": {".*_[1-9]": SAMPLES},
}


def data(model, count):
    rng = np.random.default_rng(count)
    own = isinstance(model, Written)
    shape = (count, *((12, 12, 3) if own else model.input_shape[1:]))
    x = rng.uniform(size=shape).astype("float32")
    return x, rng.integers(0, CLASSES, count)


def compiled(make):
    keras.utils.set_random_seed(5)
    keras.utils.clear_session(free_memory=False)
    model = make()
    model.compile(
        keras.optimizers.SGD(0.05, momentum=0.9),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def everything(model):
    """Losses, scores and predictions of batches whose last one is small."""
    found = {}
    x, y = data(model, 9)
    found["predictions"] = model.predict(x, batch_size=4, verbose=0)
    found["of two"] = model.predict(x[:2], batch_size=4, verbose=0)
    history = model.fit(
        x, y, batch_size=4, epochs=2, shuffle=False, verbose=0
    ).history
    found["losses"] = history["loss"]
    found["loss"] = model.evaluate(x, y, batch_size=4, verbose=0)[0]
    optimizer = keras.optimizers.SGD(0.01)
    optimizer.build(model.trainable_variables)

    @tf.function(input_signature=[tf.TensorSpec([None, *x.shape[1:]])])
    def own(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True)))
        weights = model.trainable_weights
        gradients = tape.gradient(loss, weights)
        optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return loss

    found["own loop"] = [float(own(tf.constant(x[:n]))) for n in (4, 1, 2)]
    found["called"] = np.asarray(model(x[:1]))
    found["weights"] = [
        np.asarray(v) for v in model.variables if "seed" not in v.path
    ]
    return found


def alike(found, expected):
    """Float32 keeps 24 bits; four steps of training lose some of them."""
    for name, value in expected.items():
        for ours, theirs in zip(
            keras.tree.flatten(found[name]),
            keras.tree.flatten(value),
            strict=True,
        ):
            scale = max(1e-3, float(np.abs(theirs).max()))
            np.testing.assert_allclose(
                ours, theirs, rtol=0, atol=1e-4 * scale, err_msg=name
            )


@pytest.fixture(scope="module")
def expected():
    """What plain Keras does, once for each model."""
    known = {}

    def of(make):
        if make not in known:
            known[make] = everything(compiled(make))
        return known[make]

    return of


QUICK = [
    (stack, "filters, then samples", None),
    (written, "samples", "auto"),
]
REST = [
    pytest.param(make, plan, algorithm, marks=pytest.mark.slow)
    for make in MODELS
    for plan in PLANS
    for algorithm in (None, "auto")
    if (make, plan, algorithm) not in QUICK
]


@pytest.mark.parametrize(("make", "plan", "algorithm"), [*QUICK, *REST])
def test_a_last_batch_of_fewer_images_than_devices(
    make, plan, algorithm, strategy, expected
):
    wanted = expected(make)
    with strategy.scope():
        model = convpar.parallelize(
            compiled(make), PLANS[plan], algorithm=algorithm, verbose=False
        )
        alike(everything(model), wanted)

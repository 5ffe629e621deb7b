"""`predict` of a model on one device: weights are looked at, not worked on."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import but_slow

import tf_convpar as convpar
from tf_convpar.sharding import HoistedFunction


def network(size=16, dropout=None):
    inputs = keras.Input((size, size, 3))
    x = keras.layers.Rescaling(1 / 2)(inputs)
    x = keras.layers.Conv2D(8, 3, padding="same", use_bias=False)(x)
    x = keras.layers.BatchNormalization()(x)
    x = keras.layers.ReLU()(x)
    x = keras.layers.DepthwiseConv2D(3, use_bias=False)(x)
    x = keras.layers.BatchNormalization()(x)
    if dropout:
        x = dropout(x)
    x = keras.layers.Conv2D(4, 1, activation="relu")(x)
    x = keras.layers.GlobalAveragePooling2D()(x)
    model = keras.Model(inputs, keras.layers.Dense(5)(x))
    rng = np.random.default_rng(1)
    model.set_weights([rng.uniform(0.5, 1.5, w.shape) for w in model.weights])
    model.compile("sgd", "mse")
    return model


def images(count, size=16):
    rng = np.random.default_rng(count)
    return rng.normal(size=(count, size, size, 3)).astype("float32")


def parallel(model):
    return convpar.parallelize(model, algorithm="auto", verbose=False)


def divided_of(model):
    """The functions in two parts that a model has made."""
    return {
        id(x): x for x in model.predict_function._by_inputs.values()
    }.values()


def check(model, plain, x):
    """Predictions of a model, in all ways, beside those of another."""
    expected = plain.predict_on_batch(x)
    options = {"rtol": 1e-5, "atol": 1e-5}
    np.testing.assert_allclose(model.predict_on_batch(x), expected, **options)
    found = model.predict(x, batch_size=4, verbose=0)
    np.testing.assert_allclose(found, expected, **options)


def test_ops_on_weights_are_not_in_a_step():
    plain = network()
    model = parallel(plain)
    check(model, plain, images(6))
    (first, second) = divided_of(model)
    for divided in (first, second):
        types = [op.type for op in divided._rest.graph.get_operations()]
        assert "ReadVariableOp" not in types
        assert "TfConvpar>Affine" not in types
        assert types.count("TfConvpar>Convolution") == 3
        before = divided._packs
        model.predict_on_batch(images(6))
        assert divided._packs is before


@pytest.mark.parametrize("count", [1, 3, 5])
def test_any_number_of_images(count):
    """Two functions serve all: of the first number, and of any."""
    plain = network()
    model = parallel(plain)
    for n in (2, 4, count, 7):
        check(model, plain, images(n))
    assert len(divided_of(model)) == 2


def test_training_changes_predictions():
    plain = network()
    model = parallel(plain)
    x, y = images(8), np.ones((8, 5), "float32")
    for _ in range(3):
        check(model, plain, x)
        for one in (plain, model):
            one.fit(x, y, batch_size=4, epochs=2, verbose=0, shuffle=False)
    check(model, plain, x)


def test_other_weights_change_predictions():
    plain = network()
    model = parallel(plain)
    check(model, plain, images(2))
    for one in (plain, model):
        one.set_weights([w + 0.25 for w in one.get_weights()])
    check(model, plain, images(2))
    # Of a normalization, which is in two parts of a step.
    for one in (plain, model):
        one.layers[3].moving_variance.assign(np.full(8, 2.0))
    check(model, plain, images(2))


@keras.saving.register_keras_serializable("test_predict")
class Counted(keras.layers.Layer):
    """A layer with an effect."""

    def build(self, shape):
        self.calls = self.add_weight(shape=(), initializer="zeros")

    def call(self, x):
        self.calls.assign_add(1.0)
        return x * self.calls


def test_a_layer_with_effects():
    plain = network(dropout=Counted())
    model = parallel(plain)
    (counter,) = [w for w in model.weights if w.name == "variable"]
    before = float(counter.numpy())
    for n in range(1, 4):
        model.predict_on_batch(images(2))
        assert counter.numpy() == pytest.approx(before + n)
    assert list(divided_of(model)) == [None]


@keras.saving.register_keras_serializable("test_predict")
class AlwaysDropped(keras.layers.Dropout):
    def call(self, x, training=None):
        return super().call(x, training=True)


def test_what_is_random_stays_so():
    model = parallel(network(dropout=AlwaysDropped(0.5)))
    first, second = (model.predict_on_batch(images(2)) for _ in range(2))
    assert np.abs(first - second).max() > 1e-3


def test_data_of_other_kinds():
    plain = network()
    model = parallel(plain)
    x = images(4)
    expected = plain.predict_on_batch(x)
    y = np.ones((4, 5), "float32")
    sets = [
        tf.data.Dataset.from_tensor_slices(x).batch(4),
        tf.data.Dataset.from_tensor_slices((x, y)).batch(4),
        tf.data.Dataset.from_tensors((x,)),
    ]
    for data in sets:
        found = model.predict(data, verbose=0)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


class Own(keras.Model):
    """With steps of its own, which are told what Keras would tell them."""

    def __init__(self):
        super().__init__()
        self.inner = network(8)

    def call(self, x, training=False):
        return self.inner(x, training=training)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"own": loss}

    def test_step(self, data):
        x, y = data
        return {"own": tf.reduce_max(abs(self(x) - y))}


class OfImages(Own):
    def predict_step(self, data):
        found = keras.ops.softmax(self(data[:, ::-1]))
        return {"softmax": found, "images": data}


class OfPairs(Own):
    def predict_step(self, data):
        x, y = data
        return [self(x), y]


class OfNames(Own):
    def predict_step(self, data):
        return self(data["images"])


class OwnFunction(Own):
    """Makes the function of a step in a way of its own."""

    def make_predict_function(self, force=False):
        self.predict_function = lambda data: self.predict_step(data[0]) * 2
        return self.predict_function


X, Y = images(6, 8), np.arange(30.0, dtype="float32").reshape(6, 5)
STEPS = {
    Own: X,
    OfImages: X,
    OfPairs: tf.data.Dataset.from_tensor_slices((X, Y)).batch(4),
    OfNames: {"images": X},
    OwnFunction: X,
}


@pytest.mark.parametrize("kind", but_slow(STEPS, [Own, OfPairs]))
def test_steps_of_the_models_own(kind):
    def make():
        keras.utils.set_random_seed(1)
        model = kind()
        model(X)
        model.compile(keras.optimizers.SGD(0.01), "mse")
        return model

    plain, model = make(), parallel(make())
    given = STEPS[kind]
    options = {"verbose": 0}
    if not isinstance(given, tf.data.Dataset):
        options["batch_size"] = 4
    for _ in range(2):
        expected = keras.tree.flatten(plain.predict(given, **options))
        found = keras.tree.flatten(model.predict(given, **options))
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
        histories = []
        for one in (plain, model):
            fit = one.fit(X, Y, epochs=2, verbose=0, shuffle=False).history
            tested = one.evaluate(X, Y, verbose=0, return_dict=True)
            histories.append([*fit["own"], tested["own"]])
        assert histories[0][0] != histories[0][1]
        np.testing.assert_allclose(*histories, rtol=1e-4)


def test_a_function_of_one_object_alone():
    plain = network(8)

    def make(force=False):
        plain.predict_function = lambda data: plain(data[0]) * 0 + 7

    plain.make_predict_function = make
    model = parallel(plain)
    np.testing.assert_array_equal(model.predict(X, verbose=0), Y * 0 + 7)


def test_several_inputs_and_outputs():
    left, right = keras.Input((8, 8, 3), name="a"), keras.Input((2,), name="b")
    x = keras.layers.Conv2D(4, 3, activation="relu")(left)
    x = keras.layers.GlobalAveragePooling2D()(x)
    both = keras.layers.Concatenate()([x, right])
    outputs = {"sum": keras.layers.Dense(1)(both), "maps": x}
    plain = keras.Model({"a": left, "b": right}, outputs)
    plain.compile("sgd", "mse")
    model = parallel(plain)
    given = {"a": images(3, 8), "b": np.ones((3, 2), "float32")}
    found = model.predict(given, verbose=0)
    expected = plain.predict(given, verbose=0)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "options", [{"run_eagerly": True}, {"steps_per_execution": 2}]
)
def test_as_it_was_compiled(options):
    plain = network()
    plain.compile("sgd", "mse", **options)
    check(parallel(plain), plain, images(6))


def test_a_saved_model_after_predict(tmp_path):
    plain = network()
    model = parallel(plain)
    check(model, plain, images(2))
    path = tmp_path / "model.keras"
    model.save(path)
    check(keras.models.load_model(path), plain, images(2))
    model.export(tmp_path / "exported", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "exported")
    served = loaded.serve(images(2))
    expected = plain.predict_on_batch(images(2))
    np.testing.assert_allclose(served, expected, rtol=1e-5, atol=1e-5)
    check(convpar.merge(model), plain, images(2))


def function_of(python, *specs):
    return tf.function(python).get_concrete_function(*specs)


def test_which_functions_stay_whole():
    variable, spec = tf.Variable(2.0), tf.TensorSpec([2], tf.float32)
    other, constant = tf.Variable(3.0), tf.constant(5.0)

    def effect(x):
        other.assign_add(1.0)
        return x * variable

    def idle(x):
        tf.identity(variable)
        return x * constant

    def within(x):
        return tf.cond(x[0] > 0, lambda: x * variable, lambda: x)

    whole = {
        "an effect": function_of(effect, spec),
        "within a function": function_of(within, spec),
        "of no variable": function_of(lambda x: x * 2, spec),
        "of a constant": function_of(lambda x: x * constant, spec),
        "of an idle variable": function_of(idle, spec),
        "of weights alone": function_of(lambda x: [x, variable + 1.0], spec),
    }
    for why, function in whole.items():
        assert HoistedFunction.of(function) is None, why
    divided = HoistedFunction.of(
        function_of(lambda x: x * (variable + 1.0), spec)
    )
    np.testing.assert_array_equal(divided(tf.constant([1.0, 2.0])), [3.0, 6.0])
    variable.assign(4.0)
    np.testing.assert_array_equal(divided(tf.constant([1.0, 2.0])), [5.0, 10.0])

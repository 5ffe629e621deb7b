"""Tensors of graphs that a model keeps are those of its copy's graph."""

import keras
import numpy as np
import pytest
from cases import by_turns

import tf_convpar as convpar

L = keras.layers
X = np.random.default_rng(0).normal(size=(6, 16, 16, 3)).astype("float32")


class Backbone(keras.Model):
    """As those of keras-hub: with what detectors are made of."""

    def __init__(self):
        inputs = keras.Input((16, 16, 3))
        x = L.Conv2D(8, 3, activation="relu", name="first")(inputs)
        y = L.Conv2D(6, 3, strides=2, name="second")(L.BatchNormalization()(x))
        super().__init__(inputs, y)
        self.pyramid_outputs = {"P1": x, "P2": y}
        self.both = (x, [y])
        # It leads to none of the outputs.
        self.side = L.ReLU()(L.Conv2D(4, 1, name="side")(x))


class Detector(keras.Model):
    """Made of the graph of another model, which it keeps."""

    def __init__(self, backbone):
        heads = [
            L.GlobalAveragePooling2D()(L.Conv2D(4, 1)(level))
            for level in backbone.pyramid_outputs.values()
        ]
        outputs = L.Dense(3)(L.Concatenate()(heads))
        super().__init__(backbone.inputs, outputs)
        self.backbone = backbone
        self.heads = heads


class Keeps(L.Layer):
    """Keeps what it returned last, which is of its own call."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.conv = L.Conv2D(4, 3)

    def call(self, x):
        return self.conv(x)

    def __call__(self, x, **kwargs):
        self.last = super().__call__(x, **kwargs)
        return self.last


class Subclassed(keras.Model):
    """Runs graphs of its own, one that is no model among them."""

    def __init__(self, backbone):
        super().__init__()
        self.pyramid = keras.Model(backbone.inputs, backbone.pyramid_outputs)
        self.side = keras.Function(backbone.inputs, backbone.side)
        self.inner = keras.Model(backbone.inputs, backbone.outputs)

    def call(self, x):
        levels = self.pyramid(x)
        levels["side"] = self.side([x])
        return {k: keras.ops.mean(v, (1, 2)) for k, v in levels.items()}


def made_by_keeping():
    inputs = keras.Input((16, 16, 3))
    outputs = Keeps(name="b")(Keeps(name="a")(inputs))
    return keras.Model(inputs, outputs)


def made_of_layers():
    model = keras.Sequential(
        [keras.Input((16, 16, 3)), L.Conv2D(4, 3), L.Conv2D(5, 3), L.Flatten()]
    )
    model.kept = model.layers[0].output
    return model


def subclassed():
    model = Subclassed(Backbone())
    model(X)
    return model


# Models, and tensors that other models are made of.
KEPT = {
    "pyramid": (Backbone, lambda m: m.pyramid_outputs),
    "of any structure": (Backbone, lambda m: m.both),
    "leading nowhere": (Backbone, lambda m: [m.side, m.output]),
    "outputs of layers": (
        Backbone,
        lambda m: [m.get_layer(n).output for n in ("first", "second")],
    ),
    "of a part": (
        lambda: Detector(Backbone()),
        lambda m: [m.heads, m.backbone.pyramid_outputs, m.outputs],
    ),
    "layers of a part": (
        lambda: Detector(Backbone()),
        lambda m: [m.backbone.get_layer("first").output, m.outputs],
    ),
    "of a layer": (
        made_by_keeping,
        lambda m: [m.get_layer("a").last, m.get_layer("b").last],
    ),
    "of a sequence": (made_of_layers, lambda m: [m.kept, m.outputs]),
}


def copies(make, plan, strategy):
    """A model, its parallel form, and that merged again."""
    keras.utils.set_random_seed(1)
    model = make()
    if plan == "auto":
        parallel = convpar.parallelize(model, algorithm="auto", verbose=False)
    else:
        plan = plan if plan == "equal" else {".*": plan}
        with strategy.scope():
            parallel = convpar.parallelize(model, plan, verbose=False)
    return model, parallel, convpar.merge(parallel)


def predictions(model):
    found = keras.tree.flatten(model.predict(X, verbose=0))
    return [np.asarray(x) for x in found]


@pytest.mark.parametrize(
    ("name", "plan"), by_turns([*KEPT], ["auto", "equal", "samples"])
)
def test_models_of_what_a_model_keeps(name, plan, strategy):
    make, kept = KEPT[name]
    model, *others = copies(make, plan, strategy)
    expected = predictions(keras.Model(model.inputs, kept(model)))
    for other in others:
        found = predictions(keras.Model(other.inputs, kept(other)))
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("plan", ["auto", "equal", "samples"])
def test_graphs_within_a_model(plan, strategy):
    model, *others = copies(subclassed, plan, strategy)
    expected = predictions(model)
    for other in others:
        for ours, theirs in zip(predictions(other), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
        assert other.side is not model.side
        assert len(other.weights) == len(model.weights)


def test_what_was_one_tensor_is_one(strategy):
    for other in copies(Backbone, "equal", strategy):
        assert other.pyramid_outputs["P2"] is other.both[1][0] is other.output
        assert other.both[0] is other.get_layer("first").output
    for other in copies(lambda: Detector(Backbone()), "equal", strategy):
        assert other.backbone.inputs[0] is other.inputs[0]
        assert other.backbone.pyramid_outputs["P1"] is (
            other.get_layer("first").output
        )


@pytest.mark.parametrize("plan", ["auto", "equal"])
def test_weights_that_operations_of_a_graph_are_given(plan, strategy):
    """A kernel is used once more, as that of a decoder."""

    def make():
        inputs = keras.Input((16, 16, 3))
        x = L.Conv2D(4, 3, name="first")(inputs)
        dense = L.Dense(5)
        x = dense(L.GlobalAveragePooling2D()(x))
        x = keras.ops.einsum("nj,ij->ni", x, dense.kernel)
        model = keras.Model(inputs, x)
        model.compile(keras.optimizers.SGD(0.1), "mse")
        return model

    plain, *others = copies(make, plan, strategy)
    expected = plain.fit(X, X[:, 0, 0, :1], epochs=3, verbose=0).history
    for other in others:
        found = other.fit(X, X[:, 0, 0, :1], epochs=3, verbose=0).history
        np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-5)
        for ours, theirs in zip(other.weights, plain.weights, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_a_tensor_of_another_graph(strategy):
    """It is copied with what it comes from, and the original stays whole."""
    inputs = keras.Input((16, 16, 3), name="other")
    layer = L.Conv2D(3, 3, name="alone")
    model = made_of_layers()
    model.kept = layer(inputs)
    with strategy.scope():
        parallel = convpar.parallelize(model, "equal", verbose=False)
    copied = parallel.kept._keras_history.operation
    assert copied is not layer
    assert len(copied.kernel.shards) == 3
    np.testing.assert_array_equal(copied.kernel.numpy(), layer.kernel.numpy())
    # A tensor that is of no graph describes something, and is shared.
    model.kept = keras.KerasTensor((None, 3))
    assert convpar.merge(model).kept is model.kept

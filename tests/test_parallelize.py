"""parallelize and merge: any Keras CNN there and back."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_convpar as convpar
from tf_convpar.layers import ConvParallel
from tf_convpar.placement import Layout
from tf_convpar.placement import ShardedVariable
from tf_convpar.sharding._summary import _places

L = keras.layers


def residual(training_state=True):
    """Convolutions, normalization, a shared layer, a model within it."""
    keras.utils.set_random_seed(3)
    inner = keras.Sequential(
        [keras.Input((8, 8, 12)), L.Conv2D(12, 3, padding="same"), L.ReLU()],
        name="inner",
    )
    shared = L.Conv2D(12, 1, name="shared")
    x = keras.Input((8, 8, 3))
    y = L.Conv2D(12, 3, padding="same", name="stem")(x)
    y = L.BatchNormalization()(y)
    y = L.Add()([inner(y), shared(y)])
    y = L.Add()([y, shared(L.ReLU()(y))])
    y = L.GlobalAveragePooling2D()(y)
    outputs = L.Dense(3, activation="softmax", name="scores")(y)
    model = keras.Model(x, outputs, name="residual")
    if training_state:
        model.compile(
            keras.optimizers.Adam(0.01),
            "sparse_categorical_crossentropy",
            metrics=[
                "accuracy",
                keras.metrics.SparseTopKCategoricalAccuracy(2),
            ],
            jit_compile=False,
        )
        model.fit(*data(), epochs=2, verbose=0)
    return model


@pytest.fixture(scope="module")
def trained():
    """One that has been trained; to look at, not to change."""
    keras.utils.clear_session()
    return residual()


def data(count=32):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, 8, 8, 3)).astype("float32")
    return x, rng.integers(0, 3, count)


def values(model):
    return [np.asarray(v) for v in model.variables]


def test_there_and_back_bit_for_bit(strategy, trained):
    model = trained
    before = values(model)
    with strategy.scope():
        parallel = convpar.parallelize(model)
    merged = convpar.merge(parallel)
    for other in (parallel, merged):
        assert [v.path for v in other.variables] == [
            v.path for v in model.variables
        ]
        for a, b in zip(values(other), before, strict=True):
            np.testing.assert_array_equal(a, b)
        for a, b in zip(
            other.optimizer.variables, model.optimizer.variables, strict=True
        ):
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
    assert not any(
        isinstance(layer, ConvParallel)
        for layer in merged._flatten_layers(include_self=False)
    )
    assert [type(a) for a in merged.layers] == [type(a) for a in model.layers]
    x, _ = data()
    np.testing.assert_array_equal(
        merged.predict(x, verbose=0), model.predict(x, verbose=0)
    )


def test_training_goes_on_as_it_would_have(strategy):
    model = residual()
    with strategy.scope():
        parallel = convpar.parallelize(model)
    x, y = data()
    ours = parallel.fit(x, y, epochs=2, shuffle=False, verbose=0).history
    theirs = model.fit(x, y, epochs=2, shuffle=False, verbose=0).history
    assert list(ours) == list(theirs)
    for name in theirs:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-3)


def test_slots_are_beside_their_shards(strategy, trained):
    with strategy.scope():
        parallel = convpar.parallelize(trained)
    stem = parallel.get_layer("stem").kernel
    slots = [
        v
        for v in parallel.optimizer.variables
        if "stem_kernel" in v.path and v.shape == stem.shape
    ]
    assert len(slots) == 2
    for slot in slots:
        assert [s.device for s in slot._value.shards] == [
            s.device for s in stem._value.shards
        ]


def test_the_model_itself_stays_as_it_is(strategy, trained):
    model = trained
    before = values(model)
    x, y = data()
    with strategy.scope():
        parallel = convpar.parallelize(model)
    parallel.fit(x, y, verbose=0)
    for a, b in zip(values(model), before, strict=True):
        np.testing.assert_array_equal(a, b)
    assert model.compiled and type(model.get_layer("stem")) is L.Conv2D


def test_shared_and_inner_layers_are_one(strategy):
    with strategy.scope():
        parallel = convpar.parallelize(residual(False))
    shared = parallel.get_layer("shared")
    assert isinstance(shared, ConvParallel) and len(shared._inbound_nodes) == 2
    inner = parallel.get_layer("inner")
    assert isinstance(inner.layers[0], ConvParallel)
    assert inner.layers[0].is_sharded


def test_plans_by_regular_expressions(strategy):
    with strategy.scope():
        parallel = convpar.parallelize(
            residual(False), plan={"s.*": (1, 0, 3), "conv2d": None}
        )
    assert parallel.get_layer("stem")._layout.sizes == (3, 9)
    assert parallel.get_layer("shared")._layout.sizes == (3, 9)
    whole = parallel.get_layer("inner").layers[0]
    assert whole.split == "chief" and not whole.is_spread


@pytest.mark.parametrize("chief", ["chief", None])
def test_what_a_plan_leaves_to_the_chief_has_its_algorithm(strategy, chief):
    """All that makes one device faster is done there too."""
    model = residual(False)
    with strategy.scope():
        left = convpar.parallelize(model, {".*": chief}, algorithm="auto")
        again = convpar.parallelize(left, {".*": chief})
    for one in (left, again):
        kinds = [x for x in one._flatten_layers() if "conv" in x.name]
        assert kinds and {x.algorithm for x in kinds} == {"auto"}
        assert not any(x.is_spread for x in kinds)
    x, y = data(8)
    for one in (model, left):
        one.compile(
            keras.optimizers.SGD(0.1, 0.9),
            "sparse_categorical_crossentropy",
            jit_compile=False,
        )
        one.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0)
    for ours, theirs in zip(left.weights, model.weights, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)


def test_a_name_goes_before_patterns(strategy):
    plan = {"s.*": (1, 0, 3), "stem": (6, 4, 2)}
    with strategy.scope():
        parallel = convpar.parallelize(residual(False), plan)
    assert parallel.get_layer("stem")._layout.sizes == (6, 4, 2)
    assert parallel.get_layer("shared")._layout.sizes == (3, 9)


def test_the_strategys_plan(strategy):
    strategy.plan = {"stem": (6, 4, 2)}
    with strategy.scope():
        parallel = convpar.parallelize(residual(False))
    assert parallel.get_layer("stem")._layout.sizes == (6, 4, 2)
    assert parallel.get_layer("shared")._layout.sizes == (4, 4, 4)


def test_wire_dtype_and_algorithm_by_layer(strategy):
    with strategy.scope():
        parallel = convpar.parallelize(
            residual(False),
            wire_dtype={"shared": "bfloat16"},
            algorithm="winograd",
        )
    assert parallel.get_layer("shared").wire_dtype == "bfloat16"
    assert parallel.get_layer("stem").wire_dtype is None
    assert parallel.get_layer("stem").algorithm == "winograd"
    merged = convpar.merge(parallel)
    assert "algorithm" not in merged.get_layer("stem").get_config()


def test_again_with_another_plan(strategy, trained):
    model = trained
    with strategy.scope():
        parallel = convpar.parallelize(
            convpar.parallelize(model), plan={".*": (1, 1, 2)}
        )
    assert parallel.get_layer("stem")._layout.sizes == (3, 3, 6)
    x, _ = data()
    np.testing.assert_allclose(
        parallel.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-4
    )


def test_again_without_arguments_is_as_before(strategy):
    with strategy.scope():
        parallel = convpar.parallelize(
            residual(False),
            {".*": (1, 1, 2)},
            algorithm="winograd",
            wire_dtype="bfloat16",
        )
        again = convpar.parallelize(parallel).get_layer("stem")
    assert again._layout.sizes == (3, 3, 6)
    assert (again.algorithm, again.wire_dtype) == ("winograd", "bfloat16")


@pytest.mark.parametrize("asked", [True, False])
def test_xla_comes_back_with_the_merged_model(asked, strategy):
    model = residual(False)
    model.compile("sgd", "mse", jit_compile=asked)
    with strategy.scope():
        parallel = convpar.parallelize(convpar.parallelize(model))
    assert not parallel.jit_compile
    assert convpar.merge(parallel).jit_compile == asked


@pytest.mark.slow
def test_what_is_on_one_device_is_compiled_by_xla_as_asked(images):
    """The same losses as Keras' own model, compiled or not."""
    x, y = images[0][:32], images[1][:32]

    def losses(parallel, jit):
        keras.utils.set_random_seed(1)
        model = keras.Sequential(
            [
                keras.Input((16, 16, 1)),
                keras.layers.Conv2D(8, 3, activation="relu"),
                keras.layers.BatchNormalization(),
                keras.layers.DepthwiseConv2D(3),
                keras.layers.GlobalAveragePooling2D(),
                keras.layers.Dense(10, activation="softmax"),
            ]
        )
        model.compile(
            "adam", "sparse_categorical_crossentropy", jit_compile=jit
        )
        if parallel:
            model = convpar.parallelize(model, verbose=False)
        assert model.jit_compile == jit
        return model.fit(x, y, epochs=3, verbose=0).history["loss"]

    expected = losses(parallel=False, jit=False)
    with convpar.ConvParallelStrategy(devices=["CPU:0"]).scope():
        np.testing.assert_allclose(losses(True, True), expected, rtol=1e-4)
        np.testing.assert_allclose(losses(True, False), expected, rtol=1e-4)


def test_xla_is_chosen_under_a_strategy_as_without_one(monkeypatch):
    """On a machine with a card, of which TensorFlow is only told here."""
    real = tf.config.list_physical_devices
    card = real("CPU")[0]._replace(device_type="GPU")
    monkeypatch.setattr(
        tf.config,
        "list_physical_devices",
        lambda kind=None: [*real("CPU"), card],
    )

    def chosen(devices, plan=None):
        with convpar.ConvParallelStrategy(devices=devices).scope():
            model = residual(False)
            model.compile("sgd", "mse")
            assert model.jit_compile
            assert isinstance(
                model.distribute_strategy, convpar.ConvParallelStrategy
            )
            return convpar.parallelize(model, plan).jit_compile

    assert chosen(["CPU:0"])
    assert not chosen(["CPU:0", "CPU:1"])
    assert chosen(["CPU:0", "CPU:1"], {".*": None})


def test_a_file_of_a_parallel_model(strategy, trained, tmp_path):
    with strategy.scope():
        parallel = convpar.parallelize(trained)
        parallel.save(tmp_path / "model.keras")
        loaded = keras.models.load_model(tmp_path / "model.keras")
        again = convpar.parallelize(loaded)
    x, _ = data()
    expected = parallel.predict(x, verbose=0)
    for model in (loaded, again):
        np.testing.assert_allclose(
            model.predict(x, verbose=0), expected, rtol=1e-4, atol=1e-6
        )
    assert any(
        isinstance(v._value, ShardedVariable) for v in again.layers[2].variables
    )


def test_weights_go_both_ways(strategy, tmp_path):
    model = residual()
    with strategy.scope():
        parallel = convpar.parallelize(model)
    parallel.fit(*data(), verbose=0)
    parallel.save_weights(tmp_path / "w.weights.h5")
    model.load_weights(tmp_path / "w.weights.h5")
    for a, b in zip(values(model), values(parallel), strict=True):
        if a.dtype != np.uint32:
            np.testing.assert_array_equal(a, b)


def test_export_and_checkpoint(strategy, trained, tmp_path):
    with strategy.scope():
        parallel = convpar.parallelize(trained)
    x, _ = data()
    expected = parallel.predict(x, verbose=0)
    convpar.export(parallel, tmp_path / "served")
    served = tf.saved_model.load(tmp_path / "served")
    np.testing.assert_allclose(served.serve(x), expected, rtol=1e-4, atol=1e-6)
    parallel.export(tmp_path / "by_keras", verbose=False)
    served = tf.saved_model.load(tmp_path / "by_keras")
    np.testing.assert_allclose(served.serve(x), expected, rtol=1e-4, atol=1e-6)


def test_a_feature_extractor_of_a_parallel_model(strategy):
    with strategy.scope():
        parallel = convpar.parallelize(residual(False))
        inner = keras.Model(parallel.input, parallel.get_layer("stem").output)
    x, _ = data(4)
    maps = np.asarray(inner(x))
    np.testing.assert_allclose(
        maps, inner.predict(x, verbose=0), rtol=1e-4, atol=1e-5
    )


def test_summary_shows_shards_and_devices(strategy, capsys):
    with strategy.scope():
        parallel = convpar.parallelize(
            residual(False), plan={"stem": (6, 4, 2), "shared": None}
        )
    lines = []
    parallel.summary(print_fn=lambda line, **kw: lines.append(line))
    text = "\n".join(lines)
    assert "stem" in text and "6 on CPU:0" in text and "2 on CPU:2" in text
    parallel.summary()
    assert "4 on CPU:1" in capsys.readouterr().out


def test_summary_names_tasks_of_a_cluster():
    devices = ("/job:chief/replica:0/task:0/device:CPU:0",)
    devices += ("/job:worker/replica:0/task:1/device:GPU:0",)
    layout = Layout(owner=devices[0], devices=devices, sizes=(6, 2))
    assert _places(layout) == "6 on chief 0 CPU:0, 2 on worker 1 GPU:0"


class Subclassed(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.conv = L.Conv2D(4, 3)

    def call(self, x):
        return self.conv(x)


class OwnLoss:
    """Without a config, as losses of users are."""

    def __call__(self, y_true, y_pred, sample_weight=None):
        return tf.reduce_mean(tf.square(tf.cast(y_true, y_pred.dtype) - y_pred))


def test_a_loss_without_a_name(strategy):
    model = residual(training_state=False)
    own = OwnLoss()
    model.compile("sgd", loss=lambda a, b: own(a[:, None], b))
    x, y = data()
    with strategy.scope():
        parallel = convpar.parallelize(model)
    parallel.fit(x, y, verbose=0)
    assert convpar.merge(parallel).compiled


@pytest.mark.parametrize("function", [convpar.parallelize, convpar.merge])
def test_what_is_no_model(function, strategy):
    with (
        strategy.scope(),
        pytest.raises(ValueError, match="Expected a keras.Model"),
    ):
        function(L.Conv2D(3, 3))


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({"plan": {"nowhere": (1, 1)}}, "nowhere.*stand for none"),
        ({"plan": {"ste": (1, 1)}}, "ste.*stand for none"),
        ({"wire_dtype": {"nowhere": "bfloat16"}}, "wire_dtype.*stand for none"),
        ({"plan": {"stem": (1, 1), "s(": (1, 1)}}, "regular expression"),
        ({"plan": {"s.*": (1, 1), ".*m": (1, 1)}}, "stem.*all of which"),
        ({"plan": {"stem": (1, -1)}}, "none negative"),
        ({"plan": 3}, "Expected `plan`"),
        ({"plan": "nowhere.json"}, "nowhere.json"),
        ({"algorithm": "slow"}, "algorithm"),
        ({"wire_dtype": "int8"}, "wire_dtype"),
        ({"wire_dtype": {"stem": "int8"}}, "wire_dtype"),
    ],
)
def test_bad_arguments(kwargs, match, strategy):
    model = residual(training_state=False)
    with strategy.scope(), pytest.raises((ValueError, OSError), match=match):
        convpar.parallelize(model, **kwargs)

"""`plan="auto"`: whole models are measured and planned when they are made."""

import json
from pathlib import Path

import forks
import keras
import numpy as np
import pytest
import tensorflow as tf
from plans_of_graphs import any_split
from plans_of_graphs import calibration_of

import tf_convpar as convpar
from tf_convpar import planner
from tf_convpar import plans
from tf_convpar.planner import work_keys
from tf_convpar.planner.call_ways import Settings
from tf_convpar.planner.measure import _calibrate
from tf_convpar.planner.measure import cache
from tf_convpar.sharding import calls_of

L = keras.layers
PROGRAM = Path(__file__).parent / "programs" / "planned.py"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TF_CONVPAR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "calibrations"


def network():
    x = keras.Input((16, 16, 3))
    y = L.Conv2D(16, 3, padding="same", name="first")(x)
    y = L.ReLU()(L.BatchNormalization()(y))
    z = L.Conv2D(16, 3, padding="same", name="second")(y)
    y = L.GlobalAveragePooling2D()(L.Add()([y, z]))
    model = keras.Model(x, L.Dense(4)(y), name="network")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, jit_compile=False)
    return model


def two():
    return convpar.ConvParallelStrategy(devices=["CPU:0", "CPU:1"])


def test_a_model_is_planned_when_it_is_parallelized(
    folder, little_time, capsys, monkeypatch
):
    strategy = two()
    with strategy.scope():
        model = convpar.parallelize(network(), plan="auto", batch_size=8)
    (file,) = folder.iterdir()
    measured = planner.load(file)
    assert measured.batch == 8
    assert [d.name for d in measured.devices] == list(strategy.devices)
    assert all(
        seconds > 0
        for device in measured.devices
        for work in device.works.values()
        for seconds in (*work.forward, *work.backward)
    )
    # Whatever is predicted to be ahead.
    graph = calls_of(network())
    plan = planner.plan_graph(graph, measured, worth=0.0)
    # The clock may have said otherwise.
    now = strategy.planner().plan_now(network())
    assert dict(now) == dict(plan) or not any_split(now)
    assert f"network: {now.reason}" in capsys.readouterr().out
    for layer in model.layers:
        if layer.name in now:
            split = now.splits[layer.name] == "samples"
            assert (layer._samples is not None) == split
    # What is kept is neither measured nor planned again.
    (kept,) = (folder.parent / "plans").iterdir()
    assert dict(plans.load(kept)) == dict(plan)
    assert plans.load(kept).reason == plan.reason
    monkeypatch.setattr("tf_convpar.planner.measure._calibrate._measured", None)
    asked = []
    monkeypatch.setattr(
        "tf_convpar.planner._plan.plan_graph",
        lambda *args: asked.append(args[2]) or plan,
    )
    with two().scope():
        again = convpar.parallelize(network(), plan="auto", batch_size=8)
        assert asked == []
        convpar.parallelize(
            network(), plan="auto", batch_size=8, wire_dtype="bfloat16"
        )
    assert asked == [Settings("bfloat16")]
    for before, after in zip(model.layers, again.layers, strict=True):
        for name in ("_layout", "_samples"):
            assert getattr(before, name, None) == getattr(after, name, None)


def test_the_cache_knows_what_a_calibration_depends_on(folder, monkeypatch):
    """Batch, layers, optimizer, algorithm: each is measured by itself."""
    measured = []

    def measure(graph, devices, optimizer, batch, *others):
        measured.append((graph, optimizer, batch))
        return calibration_of(small(), devices, batch)

    monkeypatch.setattr(
        "tf_convpar.planner.measure._calibrate._measured", measure
    )

    def small(optimizer="sgd"):
        x = keras.Input((8, 8, 3))
        model = keras.Model(x, L.Conv2D(4, 3)(x), name="small")
        model.compile(optimizer, "mse", jit_compile=False)
        return model

    model, other = small(), small("adam")
    planner.calibrate(model, two(), 4)
    planner.calibrate(model, two(), 8)
    planner.calibrate(other, two(), 4)
    planner.calibrate(model, two(), 4, algorithm="gemm")
    # Of Adam's settings, and another rule.
    planner.calibrate(small("adamw"), two(), 4)
    assert len(list(folder.iterdir())) == len(measured) == 5
    planner.calibrate(small(), two(), 4)
    assert len(list(folder.iterdir())) == len(measured) == 5
    # A later version of this package measures otherwise.
    monkeypatch.setattr(
        "tf_convpar.planner.measure.cache._METHOD", cache._METHOD + 1
    )
    planner.calibrate(small(), two(), 4)
    assert len(list(folder.iterdir())) == len(measured) == 6


@pytest.mark.slow
def test_a_plan_that_says_so_trains_as_the_model_does(little_time):
    """A device that is said to be as fast as its like gets its half."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 16, 16, 3)).astype("float32")
    y = rng.integers(0, 4, 8)
    strategy = two()
    keras.utils.set_random_seed(1)
    with strategy.scope():
        plain = network()
        measured = planner.calibrate(plain, strategy, 8)
        # Links as within a machine, devices that share no cores.
        plan = planner.plan(plain, measured)
        model = convpar.parallelize(plain, plan)
    losses = [model.train_on_batch(x, y) for _ in range(3)]
    expected = [plain.train_on_batch(x, y) for _ in range(3)]
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


def test_a_plan_for_other_devices_is_refused():
    strategy = two()
    model = network()
    plan = planner.plan(model, calibration_of(model, strategy.devices, 4))
    others = convpar.ConvParallelStrategy(devices=["CPU:0", "CPU:2"])
    refused = pytest.raises(ValueError, match="devices of the strategy")
    with others.scope(), refused:
        convpar.parallelize(model, plan)


def test_auto_wants_a_strategy():
    with pytest.raises(ValueError, match="scope of a ConvParallelStrategy"):
        convpar.parallelize(network(), plan="auto")


def test_a_model_without_a_graph_is_split_if_nobody_asked(capsys):
    class Own(keras.Model):
        def __init__(self):
            super().__init__(name="own")
            self.conv = L.Conv2D(8, 3)

        def call(self, x):
            return self.conv(x)

    model = Own()
    model(np.zeros((1, 8, 8, 3), "float32"))
    strategy = convpar.ConvParallelStrategy(
        devices=["CPU:0", "CPU:1"], plan="auto"
    )
    strategy.plan["conv2d"] = (6, 2)
    with strategy.scope():
        parallel = convpar.parallelize(model)
        said = capsys.readouterr().out
        with pytest.raises(ValueError, match="Sequential or functional"):
            convpar.parallelize(model, plan="auto")
    assert "own: not planned. Expected" in said
    assert parallel.conv._layout.sizes == (6, 2)


def test_layers_that_take_no_numbers_are_measured_too(little_time):
    words = keras.Input((4,), dtype="string")
    x = L.StringLookup(vocabulary=["a", "b"])(words)
    x = L.Conv1D(4, 3)(L.Embedding(3, 8)(x))
    model = keras.Model(words, L.GlobalMaxPooling1D()(x))
    measured = planner.calibrate(model, two(), 4, keep=False)
    graph = calls_of(model)
    assert len(measured.devices[0].works) == len(graph.calls) == 4


@pytest.mark.slow
def test_layers_that_say_how_they_are_split_stay_so(little_time):
    with two().scope():
        x = keras.Input((16, 16, 3))
        y = convpar.ConvParallel2D(12, 3, shards=(3, 1), name="own")(x)
        model = keras.Model(x, L.Conv2D(8, 3, name="other")(y))
        parallel = convpar.parallelize(model, plan="auto", batch_size=4)
    assert parallel.get_layer("own")._layout.sizes == (9, 3)


@pytest.mark.alone
def test_times_of_layers_are_those_of_the_layers():
    """Twice the filters of a heavy layer take longer, and so do its images."""
    x = keras.Input((32, 32, 64))
    y = L.Conv2D(64, 3, padding="same", name="light")(x)
    y = L.Conv2D(256, 3, padding="same", name="heavy")(y)
    model = keras.Model(x, y)
    measured = planner.calibrate(model, two(), 8, keep=False)
    graph = calls_of(model)
    works = measured.devices[0].works
    light, heavy = (works[work_keys.key(graph, call)] for call in graph.calls)
    for which in ("forward", "backward"):
        assert heavy.at(which, 8) > 1.5 * light.at(which, 8)
        assert heavy.at(which, 8) > 1.5 * heavy.at(which, 2)
        assert heavy.at(which, 8, 0.5) < 0.8 * heavy.at(which, 8)
    # No layer before it learns: one gradient instead of two.
    with tf.device("/device:CPU:0"):
        assert light.at("backward", 8) < 2 * light.at("forward", 8) * 1.6


@pytest.mark.timeout(300)
def test_a_cluster_plans_by_itself(cluster, tmp_path):
    """Real worker processes: what is planned, moved and learned."""
    done = forks.run(
        [PROGRAM],
        env=cluster.env() | {"TF_CONVPAR_CACHE": str(tmp_path)},
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    *_, line, last = done.stdout.splitlines()
    found = json.loads(last)
    assert found["line"] == line.partition(": ")[2]
    # A plan may be the chief alone: then tasks hear pings of gRPC only.
    moved = pytest.approx(found["theory"], rel=0.03, abs=1024)
    assert found["measured"] == moved
    assert found["planned"] == found["theory"]
    np.testing.assert_allclose(found["losses"], found["plain"], rtol=1e-4)


class Holds(L.Layer):
    """Has a convolution that no plan names."""

    def __init__(self):
        super().__init__()
        self.convolution = L.Conv2D(8, 3)

    def call(self, x):
        return self.convolution(x)


@pytest.mark.timeout(200)
def test_a_convolution_within_a_layer_of_the_users(little_time):
    """It is measured while the whole model's steps are: nobody waits."""
    strategy = convpar.ConvParallelStrategy(
        devices=["CPU:0", "CPU:1"], plan="auto"
    )
    x = keras.Input((16, 16, 3))
    model = keras.Model(x, Holds()(L.Conv2D(8, 3)(x)))
    with strategy.scope():
        parallel = convpar.parallelize(model)
    ones = tf.ones((2, 16, 16, 3))
    np.testing.assert_allclose(
        parallel(ones), model(ones), rtol=1e-4, atol=1e-5
    )


class WarmUp(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule that Keras cannot write."""

    def __call__(self, step):
        return 0.1 * keras.ops.minimum(1.0, keras.ops.cast(step, "float32") / 9)


class Known(WarmUp):
    """One that it can write, and not read."""

    def get_config(self):
        return {}


class Averages(L.Layer):
    """Without a `get_config` for what it is given."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def call(self, x):
        return self.function(x)


@pytest.mark.slow
def test_what_cannot_be_read_is_measured_or_said(little_time, capsys):
    strategy = convpar.ConvParallelStrategy(
        devices=["CPU:0", "CPU:1"], plan="auto"
    )
    said = {}
    for schedule in (WarmUp(), Known()):
        x = keras.Input((16, 16, 3))
        y = Averages(lambda x: x + 1.0)(L.Conv2D(8, 3)(x))
        model = keras.Model(x, L.Conv2D(8, 3)(y), name="network")
        model.compile(keras.optimizers.SGD(schedule), "mse")
        with strategy.scope():
            convpar.parallelize(model)
        said[type(schedule)] = capsys.readouterr().out
    assert "network: not planned." in said[WarmUp]
    assert "not planned" not in said[Known]


def test_optimizers_within_others_are_measurements_of_their_own():
    graph = calls_of(network())
    strategy = two()
    keys = {
        repr(
            _calibrate._key(
                *(graph, strategy, strategy.devices),
                keras.optimizers.LossScaleOptimizer(inner),
                *(8, None),
            )
        )
        for inner in (
            keras.optimizers.SGD(0.1),
            keras.optimizers.SGD(0.2),
            keras.optimizers.Adam(0.1),
        )
    }
    assert len(keys) == 2


def test_what_is_measured_changes_no_layer(little_time):
    """Not its variables that Keras does not know of, either."""

    class Drifts(L.Layer):
        def __init__(self):
            super().__init__()
            self.mean = tf.Variable(0.5)
            self.draws = tf.random.Generator.from_seed(1)

        def call(self, x):
            self.mean.assign(0.9 * self.mean + 0.1 * tf.reduce_mean(x))
            return x + self.mean + 0.0 * self.draws.normal(())

    x = keras.Input((8, 8, 3))
    layer = Drifts()
    model = keras.Model(x, L.Conv2D(4, 3)(layer(L.Conv2D(4, 3)(x))))
    before = [float(layer.mean), *map(int, layer.draws.state)]
    planner.calibrate(model, two(), 4, keep=False)
    assert [float(layer.mean), *map(int, layer.draws.state)] == before

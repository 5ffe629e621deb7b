"""Memory of a training step, by hand."""

import sys

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from processes import run

import tf_convpar as convpar
from tf_convpar.papers.estimate.memory import OTHER
from tf_convpar.papers.estimate.memory import Step

layers = keras.layers


def plain(parallel=False, **kwargs):
    """Two convolutions, pooling, and a dense layer."""
    conv = convpar.ConvParallel2D if parallel else layers.Conv2D
    return keras.Sequential(
        [
            layers.Input((20, 20, 3)),
            conv(8, 3, activation="relu", name="first", **kwargs),
            conv(6, 3, activation="relu", name="second", **kwargs),
            layers.MaxPooling2D(name="pool"),
            layers.Flatten(name="flat"),
            layers.Dense(10, name="dense"),
        ]
    )


def training_memory(model, batch, optimizer=None, algorithm=None):
    return Step(model, optimizer).memory(batch, algorithm)


def rows_of(memory):
    return {row.layer: row for row in memory.rows}


def test_feature_maps_by_hand():
    rows = rows_of(training_memory(plain(), 5))
    # 20 -> 18 -> 16 -> 8 pixels. A ReLU keeps its result only, which is the
    # input of what comes next; pooling notes a byte for each of its own.
    assert rows["first"].feature_maps == 5 * 18 * 18 * 8 * 4
    assert rows["second"].feature_maps == 5 * 16 * 16 * 6 * 4
    assert rows["pool"].feature_maps == 5 * 8 * 8 * 6 * (4 + 1)
    assert "flat" not in rows
    # The gradient of the loss reads how much the result differs from the
    # target, and not the result.
    assert rows["dense"].feature_maps == 0
    assert 0 <= rows[OTHER].feature_maps - 5 * 10 * 4 <= 16


@pytest.mark.parametrize(
    ("optimizer", "slots"),
    [
        ("sgd", 0),
        (keras.optimizers.SGD(0.1, momentum=0.9), 1),
        ("adam", 2),
        (keras.optimizers.Adam(amsgrad=True), 3),
    ],
    ids=["sgd", "momentum", "adam", "amsgrad"],
)
def test_weights_gradients_and_slots(optimizer, slots):
    model = plain()
    model.get_layer("second").trainable = False
    memory = training_memory(model, 5, optimizer)
    rows = rows_of(memory)
    parameters = {"first": 9 * 3 * 8 + 8, "dense": 8 * 8 * 6 * 10 + 10}
    for name, count in parameters.items():
        row = rows[name]
        assert (row.weights, row.gradients) == (4 * count, 4 * count)
        assert row.slots == slots * 4 * count
    frozen = rows["second"]
    assert frozen.weights == 4 * (9 * 8 * 6 + 6)
    assert frozen.gradients == frozen.slots == 0
    assert memory.totals["weights"] == memory.peak["weights"]
    assert memory.totals["slots"] == memory.peak["slots"]


def test_what_layers_keep():
    image = keras.Input((16, 16, 4))
    y = layers.Conv2D(4, 3, padding="same", name="conv")(image)
    y = layers.BatchNormalization(name="norm")(y)
    y = layers.ReLU(name="relu")(y)
    y = layers.Conv2D(4, 3, padding="same", name="before")(y)
    y = layers.Add(name="add")([y, image])
    y = layers.Dropout(0.5, name="drop")(y)
    y = layers.GlobalAveragePooling2D(name="mean")(y)
    model = keras.Model(image, layers.Dense(3, name="dense")(y))
    rows = rows_of(training_memory(model, 7))
    one_map = 7 * 16 * 16 * 4 * 4
    # The input of the normalization; its statistics are small.
    assert rows["conv"].feature_maps == one_map
    assert one_map > rows["norm"].feature_maps
    assert rows["relu"].feature_maps == one_map
    # Neither a sum nor its parts; of a dropout what it has dropped.
    assert "add" not in rows
    assert rows["before"].feature_maps == 0
    assert 0 < rows["drop"].feature_maps <= one_map + 64


def test_narrow_feature_maps():
    wide = rows_of(training_memory(plain(), 4))
    keras.mixed_precision.set_dtype_policy("mixed_bfloat16")
    narrow = rows_of(training_memory(plain(), 4))
    for name in ("first", "second"):
        # Kernels are kept in the dtype that they are convolved in, too.
        kernels = narrow[name].weights // 2
        maps = wide[name].feature_maps // 2
        assert maps <= narrow[name].feature_maps <= maps + kernels
        assert narrow[name].weights == wide[name].weights


@pytest.fixture(scope="module")
def step():
    return Step(plain(), "adam")


@settings(max_examples=50, deadline=None)
@given(batch=st.integers(1, 5000))
def test_what_grows_with_the_batch(step, batch):
    one, many = step.memory(1), step.memory(batch)
    for row, same in zip(many.rows, one.rows, strict=True):
        # The loss keeps how many numbers it is the mean of, too.
        beside = 16 if row.layer == OTHER else 0
        grown = batch * same.feature_maps
        assert grown - batch * beside <= row.feature_maps <= grown
    for same in ("weights", "gradients", "slots"):
        assert many.totals[same] == one.totals[same]
    # An image, and its target.
    assert many.peak["input"] == batch * (20 * 20 * 3 + 10) * 4
    assert many.peak_bytes == sum(many.peak.values())
    assert many.peak_bytes == step.peak_bytes(batch)
    # At least all that is kept; the largest map and its gradient.
    assert many.peak_bytes >= many.totals["weights"] + many.totals["slots"]
    largest = batch * 18 * 18 * 8 * 4
    assert many.peak_bytes >= 2 * largest
    assert step.memory(batch + 1).peak_bytes > many.peak_bytes


@pytest.mark.parametrize(
    ("depth", "optimizer", "kernels"),
    [
        # The gradient, in whose memory it is multiplied by the rate.
        (1, "sgd", 1),
        # While the gradient of the layer before is still to be computed, the
        # kernel that it needs is not written over.
        (2, "sgd", 2),
        # The gradient's square beside it; then the root of the velocity.
        (1, "adam", 2),
        # One kernel is updated after the other.
        (4, "adam", 2),
    ],
)
def test_gradients_at_the_peak(depth, optimizer, kernels):
    model = keras.Sequential([layers.Input((400,))])
    for _ in range(depth):
        model.add(layers.Dense(400))
    memory = training_memory(model, 2, optimizer)
    kernel = 4 * 400 * 400
    assert (
        kernels * kernel <= memory.peak["gradients"] < (kernels + 0.1) * kernel
    )


def chain(activation):
    """Four convolutions, whose results are as large as the input."""
    same = {"padding": "same", "activation": activation}
    convs = [layers.Conv2D(8, 3, **same) for _ in range(4)]
    return [layers.Input((32, 32, 8)), *convs]


# Of 50 images.
ONE_MAP = 50 * 32 * 32 * 8 * 4


@pytest.mark.parametrize(
    ("end", "maps", "fed"),
    [
        # Neither bias nor ReLU nor what they make of gradients takes more:
        # all four, and the gradient that comes in. When another one goes out,
        # the fourth is no longer needed.
        ([layers.GlobalAveragePooling2D], 5, 1),
        # All four, how much the last differs from its target, and the square
        # of that, whose memory its gradient takes later.
        ([], 6, 2),
    ],
    ids=["class", "image"],
)
def test_the_peak_of_a_chain_of_layers(end, maps, fed):
    model = keras.Sequential([*chain("relu"), *(layer() for layer in end)])
    memory = training_memory(model, 50)
    found = memory.peak["feature maps"] + memory.peak["gradients"]
    assert found == pytest.approx(maps * ONE_MAP, rel=0.01)
    assert memory.peak["input"] == pytest.approx(fed * ONE_MAP, rel=0.01)


def test_a_factor_of_one_is_left_out():
    model = keras.Sequential([*chain("silu"), layers.GlobalAveragePooling2D()])
    memory = training_memory(model, 50)
    # What goes into each, and what goes on to the next.
    assert memory.totals["feature_maps"] == pytest.approx(7 * ONE_MAP, rel=0.01)
    # Three more in the last; six, if inputs' multiples by 1 took memory.
    found = memory.peak["feature maps"] + memory.peak["gradients"]
    assert found == pytest.approx(10 * ONE_MAP, rel=0.01)


def test_what_the_allocator_adds(step):
    memory = step.memory(100, "gemm")
    beyond = memory.peak["allocator"]
    # A tenth, and the largest tensor.
    largest = 100 * 18 * 18 * 8 * 4
    assert beyond == pytest.approx(memory.asked_bytes / 10 + largest, abs=1)
    workspace = memory.peak["workspace"]
    assert memory.peak_bytes == memory.asked_bytes + beyond + workspace
    assert step.peak_bytes(100) == memory.peak_bytes - workspace


def test_nothing_is_changed():
    model = plain()
    optimizer = keras.optimizers.Adam()
    model.compile(optimizer, "mse")
    before = [np.array(weight) for weight in model.weights]
    training_memory(model, 3)
    assert not optimizer.built
    for weight, value in zip(model.weights, before, strict=True):
        assert np.array_equal(weight, value)
    assert all("call" not in vars(layer) for layer in model.layers)
    x, y = np.ones((3, 20, 20, 3), "float32"), np.ones((3, 10), "float32")
    model.train_on_batch(x, y)
    assert optimizer.built


def test_the_compiled_optimizer():
    model = plain()
    model.compile("adam", "mse")
    assert training_memory(model, 3) == training_memory(plain(), 3, "adam")


def test_workspaces():
    unfolded = {
        "first": 5 * 18 * 18 * 9 * 3 * 4,
        "second": 5 * 16 * 16 * 9 * 8 * 4,
    }
    rows = rows_of(training_memory(plain(), 5, algorithm="gemm"))
    for name, size in unfolded.items():
        assert rows[name].workspace >= size
    parallel = plain(parallel=True, shards=(1,), algorithm="gemm")
    assert rows_of(training_memory(parallel, 5))["first"].workspace == (
        rows["first"].workspace
    )
    assert parallel.get_layer("first").algorithm == "gemm"
    memory = training_memory(plain(), 5, algorithm="gemm")
    assert memory.peak["workspace"] == max(r.workspace for r in memory.rows)
    direct = training_memory(plain(), 5, algorithm="direct")
    assert direct.peak["workspace"] == 0


def test_models_in_models():
    inner = plain()
    model = keras.Sequential([layers.Input((20, 20, 3)), inner])
    assert rows_of(training_memory(model, 5)) == rows_of(
        training_memory(inner, 5)
    )


def test_several_inputs_and_a_layer_that_is_used_twice():
    images = [keras.Input((20, 20, 3)) for _ in range(2)]
    conv = layers.Conv2D(8, 3, activation="relu", name="conv")
    y = layers.Concatenate(name="join")([conv(image) for image in images])
    model = keras.Model(images, layers.Dense(1)(layers.Flatten()(y)))
    memory = training_memory(model, 5)
    rows = rows_of(memory)
    assert memory.peak["input"] == 5 * (2 * 20 * 20 * 3 + 1) * 4
    assert rows["conv"].weights == 4 * (9 * 3 * 8 + 8)
    assert rows["conv"].feature_maps == 2 * 5 * 18 * 18 * 8 * 4
    assert rows["join"].feature_maps == 2 * 5 * 18 * 18 * 8 * 4


def test_nothing_is_measured_for_it(tmp_path, monkeypatch):
    monkeypatch.setenv("TF_CONVPAR_CACHE", str(tmp_path))
    model = plain(parallel=True, shards=(1,), algorithm="auto")
    assert Step(model).peak_bytes(5) == Step(plain()).peak_bytes(5)
    assert not list(tmp_path.iterdir())


def test_slots_of_names_that_begin_alike():
    model = keras.Sequential(
        [
            layers.Input((5,)),
            layers.Dense(3, use_bias=False, name="dense"),
            layers.Dense(7, use_bias=False, name="dense_kernel"),
        ]
    )
    rows = rows_of(training_memory(model, 2, "adam"))
    assert rows["dense"].slots == 2 * 4 * 5 * 3
    assert rows["dense_kernel"].slots == 2 * 4 * 3 * 7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch": 0}, "`batch` .*Received: 0"),
        ({"batch": 1.5}, "`batch` .*Received: 1.5"),
        ({"batch": 3, "algorithm": "best"}, "Received: 'best'"),
    ],
)
def test_what_is_refused(arguments, message):
    with pytest.raises(ValueError, match=f"Expected .*{message}"):
        training_memory(plain(), **arguments)


def test_models_without_sizes():
    model = keras.Sequential([layers.Input((None, None, 3))])
    model.add(layers.Conv2D(4, 3))
    with pytest.raises(ValueError, match=r"Received .* \(None, None, None, 3"):
        training_memory(model, 3)
    with pytest.raises(ValueError, match="model that is built"):
        training_memory(keras.Sequential([layers.Dense(3)]), 3)


WITHOUT_BOOKS = """
import keras
from tf_convpar.papers.estimate.memory import _allocator

model = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Conv2D(4, 3)])
model.compile("sgd", "mse")
try:
    _allocator.measured_memory(model, 3)
except RuntimeError as error:
    print("refused:", error)
"""


@pytest.mark.slow
def test_an_allocator_without_books():
    """It writes none where oneDNN is off."""
    code, output = run(
        [sys.executable, "-c", WITHOUT_BOOKS], TF_ENABLE_ONEDNN_OPTS="0"
    )
    assert code == 0, output
    assert "refused: Expected TensorFlow's allocator" in output

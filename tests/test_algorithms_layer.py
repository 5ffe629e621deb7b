"""Algorithms where they are used: under tapes, in functions, in layers."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import but_slow
from cases import by_turns
from models import largest_difference
from models import small_cnn
from models import train

import tf_convpar as convpar
from tf_convpar import algorithms
from tf_convpar import ops
from tf_convpar.algorithms import PASSES
from tf_convpar.algorithms import Choice
from tf_convpar.algorithms import Geometry
from tf_convpar.algorithms import Windows
from tf_convpar.algorithms import _choose
from tf_convpar.algorithms import convolve
from tf_convpar.ops import Epilogue

NAMES = ("gemm", "winograd", "fft")
TOLERANCE = {"gemm": 1e-5, "winograd": 2e-3, "fft": 1e-4}


def values(dtype="float32"):
    """x, kernel and bias."""
    rng = np.random.default_rng(0)
    shapes = (2, 7, 9, 5), (3, 3, 5, 6), (6,)
    return [tf.constant(rng.normal(size=s), dtype) for s in shapes]


def derivatives(algorithm, x, kernel, bias, activation="linear"):
    """The result, its gradients, and the gradients of their squares."""
    operands = [x, kernel, bias]
    with tf.GradientTape() as outer:
        outer.watch(operands)
        with tf.GradientTape() as inner:
            inner.watch(operands)
            y = convolve(
                x,
                kernel,
                Windows(padding="same"),
                Epilogue(bias=bias, activation=activation),
                algorithm=algorithm,
            )
            loss = tf.reduce_sum(tf.sin(y))
        first = inner.gradient(loss, operands)
        squares = tf.add_n([tf.reduce_sum(g**2) for g in first])
    return [y, *first, *outer.gradient(squares, operands)]


def assert_close(ours, exact, tolerance):
    for a, b in zip(ours, exact, strict=True):
        a, b = np.asarray(tf.cast(a, tf.float64)), np.asarray(b)
        assert np.linalg.norm(a - b) <= tolerance * np.linalg.norm(b)


@pytest.mark.parametrize("groups", [1, 3, 6])
@pytest.mark.parametrize("remember", [False, True])
@pytest.mark.parametrize("algorithm", ["direct", "winograd", "gemm", "auto"])
def test_what_follows_is_the_same_by_any_algorithm(algorithm, remember, groups):
    rng = np.random.default_rng(1)
    maps = 2, 7, 9, 6
    shapes = maps, (3, 3, 6 // groups, 6), (6,), (6,), maps
    values = [rng.normal(size=shape) for shape in shapes]
    x, kernel, factor, bias, added = values
    exact = np.concatenate(
        [
            tf.nn.conv2d(*parts, 1, "SAME")
            for parts in zip(
                np.split(x, groups, -1),
                np.split(kernel, groups, -1),
                strict=True,
            )
        ],
        -1,
    )
    u = factor * exact + bias + added
    x, kernel, *after = [tf.constant(v, tf.float32) for v in values]
    for activation, value in [("silu", u / (1 + np.exp(-u))), ("linear", u)]:
        y = convolve(
            x,
            kernel,
            Windows(padding="same", groups=groups),
            Epilogue(*after, activation, remember=remember),
            algorithm=algorithm,
        )
        assert_close([y], [value], 1e-5)


def test_what_follows_where_channels_are_first():
    x, factor, bias, added = (
        tf.random.stateless_normal(shape, [i, 1], dtype="float64")
        for i, shape in enumerate([(2, 3, 5, 4), (4,), (4,), (2, 3, 5, 4)])
    )
    turned = [0, 3, 1, 2]
    first = Epilogue(factor, bias, tf.transpose(added, turned), "relu")
    y = first.applied(tf.transpose(x, turned), channels_last=False)
    expected = np.maximum(factor * x + bias + added, 0)
    np.testing.assert_allclose(y, np.transpose(expected, turned), 1e-12)
    assert 0 < np.count_nonzero(expected) < expected.size


@pytest.mark.parametrize(
    ("name", "in_function", "activation"),
    but_slow(
        itertools.product(NAMES, (False, True), ("linear", "relu")),
        [
            ("gemm", True, "relu"),
            ("winograd", False, "linear"),
            ("winograd", True, "relu"),
            ("fft", True, "linear"),
            ("fft", False, "relu"),
        ],
    ),
)
def test_first_and_second_order(name, in_function, activation):
    exact = derivatives("direct", *values("float64"), activation)

    def compute(*operands):
        return derivatives(name, *operands, activation)

    if in_function:
        compute = tf.function(compute, autograph=False)
    assert_close(compute(*values()), exact, TOLERANCE[name])
    assert_close(compute(*values("float64")), exact, 1e-10)


def test_relu_and_bias_have_one_gradient():
    """Though the gradient of the input is asked for before the others."""
    if not ops.load():
        pytest.skip(ops.build_report().verdict)
    layer = convpar.ConvParallel2D(
        6, 3, activation="relu", algorithm="winograd"
    )
    layer.build((None, 9, 9, 5))

    @tf.function(autograph=False)
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x)
        return tape.gradient(y, [x, layer.kernel.value, layer.bias.value])

    spec = tf.TensorSpec((2, 9, 9, 5))
    graph = step.get_concrete_function(spec).graph
    kinds = [op.type for op in graph.get_operations()]
    assert kinds.count("TfConvpar>BiasedGradient") == 1
    assert not {"Relu", "ReluGrad", "BiasAdd", "BiasAddGrad"} & {*kinds}


@pytest.mark.parametrize("activation", ["linear", "relu"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", NAMES)
def test_narrow_floats(name, dtype, activation):
    operands = values(dtype)
    wide = [tf.cast(operand, "float64") for operand in operands]
    exact = derivatives("direct", *wide, activation)
    ours = derivatives(name, *operands, activation)
    assert {result.dtype.name for result in ours} == {dtype}
    # What direct loses too, in what it takes and gives.
    assert_close(ours[:4], exact[:4], 0.02 if dtype == "float16" else 0.1)


@pytest.mark.parametrize("name", NAMES)
def test_batch_and_image_unknown_when_traced(name):
    x, kernel, bias = values()

    @tf.function(
        input_signature=[tf.TensorSpec([None, None, None, 5])], autograph=False
    )
    def compute(x):
        return derivatives(name, x, kernel, bias, "relu")

    for images in (x, x[:1, 2:], x[:0], tf.repeat(x, 3, 2)):
        ours = compute(images)
        exact = derivatives(
            "direct",
            *[tf.cast(t, tf.float64) for t in (images, kernel, bias)],
            "relu",
        )
        assert [t.shape for t in ours] == [t.shape for t in exact]
        assert_close(ours, exact, TOLERANCE[name])


def test_dilated_windows_in_images_of_unknown_size(images):
    """With a bias, whose gradient is this package's."""
    keras.utils.set_random_seed(0)
    plain = keras.Sequential(
        [
            keras.Input((None, None, 3)),
            keras.layers.Conv2D(8, 3, dilation_rate=2, padding="same"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(2),
        ]
    )
    plain.compile(keras.optimizers.SGD(0.1), "mse")
    model = convpar.parallelize(plain, algorithm="auto")
    x = np.random.default_rng(0).normal(size=(8, 9, 7, 3)).astype("float32")
    data = tf.data.Dataset.from_generator(
        lambda: ((x[i : i + 3], x[i : i + 3, 0, 0, :2]) for i in (0, 3, 6)),
        output_signature=(
            tf.TensorSpec((None, None, None, 3)),
            tf.TensorSpec((None, 2)),
        ),
    )
    losses = [
        one.fit(data, epochs=2, verbose=0).history["loss"]
        for one in (model, plain)
    ]
    np.testing.assert_allclose(*losses, rtol=1e-4)


@pytest.mark.parametrize("algorithm", ["winograd", "fft", "auto"])
def test_a_window_that_fits_into_no_image(algorithm):
    x, kernel = tf.ones((1, 2, 2, 3)), tf.ones((3, 3, 3, 4))
    with tf.GradientTape() as tape:
        tape.watch([x, kernel])
        y = convolve(x, kernel, algorithm=algorithm)
    assert y.shape == (1, 0, 0, 4)
    for source, slope in zip(
        (x, kernel), tape.gradient(y, [x, kernel]), strict=True
    ):
        np.testing.assert_array_equal(slope, np.zeros(source.shape))


def test_auto_branches_on_a_batch_unknown_when_traced(monkeypatch):
    names = {1: "direct", 8: "winograd:2", 32: "gemm"}

    def choose(geometry, device=None):
        best = algorithms.named(names[geometry.batch], geometry)
        direct = algorithms.named("direct", geometry)
        return Choice(best, direct, best)

    monkeypatch.setattr("tf_convpar.algorithms._choose.choose", choose)
    x, kernel, bias = values()

    @tf.function(
        input_signature=[tf.TensorSpec([None, 7, 9, 5])], autograph=False
    )
    def compute(x):
        return derivatives("auto", x, kernel, bias)

    for batch in (1, 3, 4, 15, 16, 20):
        images = tf.repeat(x, 10, 0)[:batch]
        exact = derivatives(
            "direct",
            *[tf.cast(t, tf.float64) for t in (images, kernel, bias)],
        )
        assert_close(compute(images), exact, 1e-5)
    graph = compute.get_concrete_function().graph
    kinds = {op.type for op in graph.get_operations()}
    assert kinds & {"Case", "StatelessCase"}


def test_auto_makes_no_branch_where_all_agree(monkeypatch):
    direct = algorithms.named("direct", Geometry((7, 9), 5, 6, (3, 3)))
    monkeypatch.setattr(
        "tf_convpar.algorithms._choose.choose",
        lambda geometry, device=None: Choice(*[direct] * 3),
    )
    _, kernel, _ = values()

    @tf.function(input_signature=[tf.TensorSpec([None, 7, 9, 5])])
    def compute(x):
        return convolve(x, kernel, algorithm="auto")

    graph = compute.get_concrete_function().graph
    kinds = [op.type for op in graph.get_operations()]
    # Nothing around TensorFlow's own: it cannot be slower.
    assert "Conv2D" in kinds
    assert not {"IdentityN", "StatelessCase", "Case"} & set(kinds)


@pytest.mark.parametrize("name", NAMES)
def test_trains_like_conv2d(name, images):
    plain = train(small_cnn(False), images, epochs=1)
    ours = train(small_cnn(True, algorithm=name), images, epochs=1)
    assert largest_difference(plain, ours) < TOLERANCE[name]


def gradients(layer, x):
    x = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x)
        loss = tf.reduce_sum(tf.sin(y))
    return [y, *tape.gradient(loss, [x, *layer.trainable_variables])]


CASES = {
    "plain": {},
    "same": {"padding": "same"},
    "no bias": {"use_bias": False, "activation": "tanh"},
    "groups": {"groups": 2},
    "channels first": {"data_format": "channels_first"},
    "strides": {"strides": 2},
}


@pytest.mark.parametrize(("case", "cut"), by_turns([*CASES], [False, True]))
def test_layer_equals_conv2d_in_float64(case, cut, strategy):
    kwargs = {"dtype": "float64", **CASES[case]}
    x = np.random.default_rng(0).normal(size=(3, 8, 9, 8))
    if "data_format" in kwargs:
        x = np.moveaxis(x, -1, 1)
        kwargs["data_format"] = "channels_last"
        keras.utils.set_random_seed(7)
        plain = keras.layers.Conv2D(10, 3, **kwargs)
        expected = gradients(plain, np.moveaxis(x, 1, -1))
        expected[:2] = [tf.transpose(t, [0, 3, 1, 2]) for t in expected[:2]]
        kwargs["data_format"] = "channels_first"
    else:
        keras.utils.set_random_seed(7)
        expected = gradients(keras.layers.Conv2D(10, 3, **kwargs), x)
    keras.utils.set_random_seed(7)
    if cut:
        with strategy.scope():
            layer = convpar.ConvParallel2D(
                10, 3, shards=(5, 3, 2), algorithm="winograd:2", **kwargs
            )
            layer.build(x.shape)
    else:
        layer = convpar.ConvParallel2D(10, 3, algorithm="winograd:2", **kwargs)
    for a, b in zip(gradients(layer, x), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


def test_three_devices_equal_one(strategy):
    x = np.random.default_rng(0).normal(size=(3, 9, 9, 8)).astype("float32")
    results = []
    for shards in (None, (5, 3, 2)):
        keras.utils.set_random_seed(7)
        with strategy.scope() if shards else keras.name_scope("one"):
            layer = convpar.ConvParallel2D(
                10, 3, shards=shards, algorithm="winograd"
            )
            layer.build(x.shape)
        assert layer.is_sharded == bool(shards)
        results.append(gradients(layer, x))
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_mixed_precision(name):
    keras.mixed_precision.set_dtype_policy("mixed_bfloat16")
    x = np.random.default_rng(0).normal(size=(3, 9, 9, 8)).astype("float32")
    results = []
    for make in (
        keras.layers.Conv2D,
        lambda *args: convpar.ConvParallel2D(*args, algorithm=name),
    ):
        keras.utils.set_random_seed(7)
        layer = make(10, 3)
        results.append(gradients(layer, x))
        assert layer.kernel.dtype == "float32"
    assert [a.dtype for a in results[0]] == [b.dtype for b in results[1]]
    assert_close(results[1], [tf.cast(a, tf.float64) for a in results[0]], 0.1)


def model_with(algorithm, strategy=None):
    layer = {"padding": "same", "algorithm": algorithm}
    if strategy is None:
        return keras.Sequential(
            [
                keras.Input((9, 9, 3)),
                convpar.ConvParallel2D(6, 3, **layer),
                keras.layers.GlobalAveragePooling2D(),
            ]
        )
    with strategy.scope():
        return model_with(algorithm)


@pytest.mark.parametrize("cut", [False, True], ids=["whole", "three devices"])
def test_exports_are_plain(cut, strategy, tmp_path):
    model = model_with("winograd", strategy if cut else None)
    x = np.random.default_rng(0).normal(size=(2, 9, 9, 3)).astype("float32")
    expected = model.predict(x, verbose=0)
    for i, write in enumerate((convpar.export, keras.Model.export)):
        path = tmp_path / str(i)
        write(model, path)
        assert b"TfConvpar" not in (path / "saved_model.pb").read_bytes()
        served = tf.saved_model.load(path)
        np.testing.assert_allclose(served.serve(x), expected, 1e-4, 1e-4)


def test_config_and_file(tmp_path):
    model = model_with("fft:6")
    path = tmp_path / "model.keras"
    model.save(path)
    loaded = keras.models.load_model(path)
    assert loaded.layers[0].algorithm == "fft:6"
    x = np.ones((2, 9, 9, 3), "float32")
    np.testing.assert_array_equal(loaded(x), model(x))
    layer = convpar.ConvParallel2D(6, 3)
    assert layer.get_config()["algorithm"] is None


@pytest.mark.parametrize("algorithm", ["strassen", "", "direct:4", 3])
def test_unknown_algorithm(algorithm):
    with pytest.raises(ValueError, match="Expected `algorithm`.*Received"):
        convpar.ConvParallel2D(6, 3, algorithm=algorithm)


@pytest.mark.skipif(not ops.load(), reason="no compiled ops")
@pytest.mark.parametrize("cut", [False, True], ids=["whole", "three devices"])
def test_inference_remembers_and_training_does_not(cut, strategy):
    model = model_with("winograd", strategy if cut else None)
    for training in (False, True):

        @tf.function
        def call(x, training=training):
            return model(x, training=training)

        graph = call.get_concrete_function(tf.TensorSpec([2, 9, 9, 3])).graph
        found = [
            op.get_attr("remember")
            for op in graph.get_operations()
            if op.type == "TfConvpar>BilinearForward"
        ]
        assert found == [not training] * (3 if cut else 1)


def test_predict_follows_the_weights():
    model = model_with("winograd")
    x = np.random.default_rng(0).normal(size=(2, 9, 9, 3)).astype("float32")
    first = model.predict(x, verbose=0)
    kernel, bias = model.get_weights()
    model.set_weights([2 * kernel, bias])
    np.testing.assert_allclose(
        model.predict(x, verbose=0), 2 * first, rtol=1e-4, atol=1e-5
    )


def test_lora_and_stateless_calls_are_plain():
    model = model_with("winograd")
    x = np.random.default_rng(0).normal(size=(2, 9, 9, 3)).astype("float32")
    layer = model.layers[0]
    expected = layer(x)
    stateless, _ = layer.stateless_call(
        layer.trainable_variables, layer.non_trainable_variables, x
    )
    np.testing.assert_allclose(stateless, expected, rtol=1e-4, atol=1e-5)
    layer.enable_lora(2)
    np.testing.assert_allclose(layer(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not ops.load(), reason="no compiled ops")
def test_a_layer_has_one_race_whatever_its_shards(
    tmp_path, monkeypatch, strategy
):
    monkeypatch.setenv("TF_CONVPAR_CACHE", str(tmp_path))
    raced, chosen = [], _choose._race_record

    def race(geometry, which, *others):
        raced.append((geometry.filters, which))
        return chosen(geometry, which, *others)

    monkeypatch.setattr("tf_convpar.algorithms._choose._race_record", race)
    monkeypatch.setattr("tf_convpar.algorithms._choose._BUDGET_S", 0.01)
    with strategy.scope():
        layer = convpar.ConvParallel2D(
            64, 3, shards=(32, 20, 12), algorithm="auto"
        )
    layer(tf.ones((4, 14, 14, 32)))
    assert sorted(raced) == [(64, which) for which in sorted(PASSES)]

"""Whatever a layer holds its parts in, its copy holds copies of them."""

import collections
import dataclasses
import functools
import types
import typing
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_convpar as convpar

L = keras.layers
X = np.random.default_rng(0).normal(size=(8, 8, 8, 3)).astype("float32")
Y = np.random.default_rng(1).normal(size=(8, 3)).astype("float32")

Named = collections.namedtuple("Named", "conv pool")


class Typed(typing.NamedTuple):
    conv: typing.Any
    pool: typing.Any = None


class Odd(tuple):
    """Made otherwise than tuples are."""

    def __new__(cls, conv, pool):
        return super().__new__(cls, [conv, pool])


@dataclasses.dataclass(frozen=True, slots=True)
class Slots:
    conv: typing.Any
    pool: typing.Any


class Plain:
    def __init__(self, conv):
        self.conv = conv


class Deep(Exception):
    """Of a class in C."""


def deep(conv):
    found = Deep("deep")
    found.conv = conv
    return found


def with_attribute(conv):
    def run(x):
        return run.conv(x)

    run.conv = conv
    return run


def wrapped(conv):
    @functools.wraps(conv.__call__)
    def run(*args):
        return conv(*args)

    return run


def keyword(conv):
    def run(x, *, conv=conv):
        return conv(x)

    return run


# What a layer may have made of its convolution, by which it calls it.
OF_A_LAYER = {
    "remat": keras.remat,
    "recompute_grad": tf.recompute_grad,
    "partial": lambda conv: functools.partial(conv, training=False),
    "method": lambda conv: conv.__call__,
    "closure": lambda conv: lambda x: conv(x),
    "default": lambda conv: lambda x, conv=conv: conv(x),
    "keyword": keyword,
    "attribute of a function": with_attribute,
    "wrapped": wrapped,
    "method of a closure": lambda conv: types.MethodType(
        lambda self, x: conv(x), Plain(conv)
    ),
    "weak": weakref.ref,
    "weak method": lambda conv: weakref.WeakMethod(conv.__call__),
    "get of a dict": lambda conv: {"conv": conv}.get,
    "tf.function": tf.function,
    "not converted": tf.autograph.experimental.do_not_convert,
    "lambda layer": lambda conv: L.Lambda(lambda x: conv(x)),
    "named tuple": lambda conv: Named(conv, None),
    "typed tuple": Typed,
    "odd tuple": lambda conv: Plain(Odd(conv, None)),
    "frozen set": lambda conv: frozenset([conv]),
    "deque": lambda conv: collections.deque([None, conv], maxlen=1),
    "ordered": lambda conv: collections.OrderedDict(conv=conv),
    "counted": lambda conv: collections.Counter({conv: 1}),
    "slots": lambda conv: Slots(conv, None),
    "namespace": lambda conv: types.SimpleNamespace(conv=conv),
    "exception": deep,
    "cached": lambda conv: functools.cache(lambda: conv),
    "user's dict": lambda conv: collections.UserDict(conv=conv),
    "two deep": lambda conv: (Named([Slots({"conv": conv}, 1)], 2),),
}


def called(held, x):
    """Calls whatever convolution there is, in whatever holds it."""
    if isinstance(held, weakref.ref | type(functools.cache(len))):
        return held()(x)
    if isinstance(held, types.BuiltinMethodType):
        return held("conv")(x)
    if isinstance(held, dict | collections.UserDict):
        return called(next(iter(held.get("conv") and held.values() or held)), x)
    if isinstance(held, list | tuple | frozenset | collections.deque):
        return called(next(iter(held)), x)
    if hasattr(held, "conv"):
        return called(held.conv, x)
    return held(x)


def built():
    """A convolution that a `tf.function` may have been traced with."""
    conv = L.Conv2D(3, 3)
    conv.build((None, 8, 8, 3))
    return conv


class Holder(L.Layer):
    """Holds a convolution, and its own methods, in one way each."""

    def __init__(self, way):
        super().__init__()
        self.conv = built()
        self.held = way(self.conv)

    def call(self, x):
        return called(self.held, x)


class ByItself(L.Layer):
    """Holds something of its own method."""

    def __init__(self, way):
        super().__init__()
        self.conv = built()
        self.run = way(self)

    def inner(self, x):
        return self.conv(x)

    @tf.function
    def traced(self, x):
        return self.conv(x)

    @tf.custom_gradient
    def decorated(self, x):
        return with_gradient(self, x)

    def call(self, x):
        return self.run(x)


def with_gradient(layer, x):
    """Twice the true gradient, so that another one is told from it."""
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = layer.conv(x)

    def gradient(upstream, variables=None):
        of_x = tape.gradient(y, x, 2 * upstream)
        return of_x, tape.gradient(y, variables, 2 * upstream)

    return y, gradient


OF_A_METHOD = {
    "remat": lambda layer: keras.remat(layer.inner),
    "recompute_grad": lambda layer: tf.recompute_grad(layer.inner),
    "custom_gradient": lambda layer: tf.custom_gradient(
        lambda x: with_gradient(layer, x)
    ),
    "decorated": lambda layer: layer.decorated,
    "tf.function": lambda layer: tf.function(layer.inner),
    "traced": lambda layer: layer.traced,
    "remat of tf.function": lambda layer: keras.remat(tf.function(layer.inner)),
    "partial": lambda layer: functools.partial(layer.inner),
    "lambda": lambda layer: lambda x: layer.inner(x),
    "not converted": lambda layer: tf.autograph.experimental.do_not_convert(
        layer.inner
    ),
    "twice": lambda layer: keras.remat(keras.remat(layer.inner)),
}


def network(layer):
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.Input((8, 8, 3)), layer(), L.GlobalAveragePooling2D()]
    )
    model.compile(keras.optimizers.SGD(0.5), "mse")
    return model


def check(layer, strategy):
    """What the copies learn, and that the original learns nothing of it."""
    plain, original = network(layer), network(layer)
    before = original.get_weights()
    with strategy.scope():
        parallel = convpar.parallelize(original, "equal", verbose=False)
    assert len(parallel.layers[0].conv.kernel.shards) == 3
    merged = convpar.merge(parallel)
    expected = plain.fit(X, Y, epochs=2, verbose=0).history["loss"]
    assert expected[1] < expected[0]
    for copied in (parallel, merged):
        losses = copied.fit(X, Y, epochs=2, verbose=0).history["loss"]
        np.testing.assert_allclose(losses, expected, rtol=1e-5)
        for ours, theirs in zip(
            copied.get_weights(), plain.get_weights(), strict=True
        ):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
        assert copied.layers[0].conv is not original.layers[0].conv
    for now, then in zip(original.get_weights(), before, strict=True):
        np.testing.assert_array_equal(now, then)
    return merged


# These need nothing that is not needed by others.
ALIKE = (
    "partial, method, closure, keyword, attribute of a function, wrapped, "
    "method of a closure, weak method, lambda layer, typed tuple, odd tuple, "
    "deque, ordered, counted, exception, user's dict, tf.function, lambda, "
    "not converted, recompute_grad, twice"
).split(", ")


def quick_and_slow(names):
    slow = pytest.mark.slow
    return [pytest.param(n, marks=slow) if n in ALIKE else n for n in names]


@pytest.mark.parametrize("name", quick_and_slow(OF_A_LAYER))
def test_layers_are_held_in_any_way(name, strategy):
    merged = check(lambda: Holder(OF_A_LAYER[name]), strategy)
    held = merged.layers[0].held
    if name in ("named tuple", "typed tuple", "deque", "slots"):
        kind = type(OF_A_LAYER[name](None))
        assert isinstance(getattr(held, "__wrapped__", held), kind)


@pytest.mark.parametrize("name", quick_and_slow(OF_A_METHOD))
def test_methods_are_held_in_any_way(name, strategy):
    check(lambda: ByItself(OF_A_METHOD[name]), strategy)


class Traced(L.Layer):
    """What is traced while a model is copied runs with the weights it has."""

    def __init__(self):
        super().__init__()
        self.conv = built()

    @tf.function
    def call(self, x):
        return self.conv(x)


@pytest.mark.parametrize("way", [Traced, lambda: Holder(tf.function)])
def test_what_was_traced_knows_the_shards(way, strategy):
    with strategy.scope():
        parallel = convpar.parallelize(network(way), "equal", verbose=False)
        parallel.layers[0].conv.bias.assign(np.arange(3.0))
        found = parallel(X)
    expected = network(way)
    expected.layers[0].conv.bias.assign(np.arange(3.0))
    np.testing.assert_allclose(found, expected(X), rtol=1e-5, atol=1e-5)


class Noisy(L.Layer):
    def __init__(self):
        super().__init__()
        self.conv = built()
        self.random = tf.random.Generator.from_seed(3)

    def call(self, x):
        return self.conv(x) * self.random.uniform([])


def test_generators_go_on_by_themselves(strategy):
    original, plain = network(Noisy), network(Noisy)
    for model in (original, plain):
        model(X)
    with strategy.scope():
        parallel = convpar.parallelize(original, "equal", verbose=False)
    merged = convpar.merge(parallel)
    expected = [plain(X) for _ in range(3)]
    assert np.abs(expected[0] - expected[1]).max() > 1e-3
    for model in (merged, parallel, original):
        for y in expected:
            np.testing.assert_allclose(model(X), y, rtol=1e-5, atol=1e-5)

"""What `parallelize` and the strategy say: how much is split, what is wrong."""

import contextlib
import re
import warnings
import weakref

import keras
import numpy as np
import pytest

import tf_convpar as convpar
from tf_convpar.planner.measure import progress
from tf_convpar.strategy import strategy as strategy_lib

L = keras.layers


class Own(L.Conv2D):
    """A class of a user's."""


class Block(L.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.mine = Own(4, 1, name="mine")
        self.good = L.Conv2D(4, 1, name="good")

    def call(self, x):
        return self.good(self.mine(x))


def network():
    return keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            L.Conv2D(6, 3, name="stem"),
            Block(name="block"),
            L.GlobalMaxPooling2D(),
            L.Dense(2),
        ],
        name="network",
    )


@pytest.fixture(autouse=True)
def only_these(monkeypatch):
    """No strategy of another test is one of this program."""
    monkeypatch.setattr(strategy_lib, "alive", weakref.WeakSet())


@contextlib.contextmanager
def silent():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_a_line_says_how_much_is_split_and_what_is_not(strategy, capsys):
    with strategy.scope(), silent():
        convpar.parallelize(network())
        said = capsys.readouterr().out
        assert said == (
            "network: 2 of 3 convolutions on 3 devices; not: 'mine', inside "
            "'block' (`summary()` says why).\n"
        )
        convpar.parallelize(network(), {"stem": None, "good": "samples"})
        said = capsys.readouterr().out
        assert said.startswith(
            "network: 1 of 3 convolutions on 3 devices; not: 'stem' and 'mine'"
        )
        convpar.parallelize(network(), {"stem": (3, 0, 3), "good": None})
        assert "1 of 3 convolutions on 2 devices" in capsys.readouterr().out
        convpar.parallelize(network(), verbose=False)
        assert capsys.readouterr().out == ""


def test_layers_without_a_shape_yet_count_as_what_they_become(strategy, capsys):
    with strategy.scope():
        model = keras.Sequential([L.Conv2D(6, 3), L.Conv2D(4, 3)], name="late")
        parallel = convpar.parallelize(model)
        said = capsys.readouterr().out
        assert said == "late: 2 of 2 convolutions on 3 devices.\n"
        parallel(np.zeros((1, 8, 8, 3), "float32"))
    assert all(layer.is_spread for layer in parallel.layers)


def test_one_device_is_said_and_not_warned_of(capsys):
    alone = convpar.ConvParallelStrategy(devices=["CPU:0"])
    with alone.scope(), silent():
        convpar.parallelize(network())
    said = capsys.readouterr().out
    assert said == "network: 3 convolutions on one device, CPU:0.\n"


def test_outside_of_the_scope_is_warned_of(strategy):
    with pytest.warns(UserWarning, match="outside of the scope") as caught:
        convpar.parallelize(network())
    assert caught[0].filename == __file__
    assert "3 devices (CPU:0, CPU:1, CPU:2)" in str(caught[0].message)


def test_no_strategy_at_all_is_warned_of(monkeypatch):
    with pytest.warns(UserWarning, match="has no ConvParallelStrategy"):
        convpar.parallelize(network())
    # On one device this is what it is for.
    with silent():
        convpar.parallelize(network(), algorithm="auto")
    monkeypatch.setenv("TF_CONFIG", "{}")
    with pytest.warns(UserWarning, match="TF_CONFIG is set, and"):
        convpar.parallelize(network(), algorithm="auto")


def test_no_convolution_is_warned_of(strategy):
    dense = keras.Sequential([keras.Input((8,)), L.Dense(2)])
    own = keras.Sequential([keras.Input((8, 8, 3)), Own(4, 1, name="mine")])
    with strategy.scope():
        with pytest.warns(UserWarning, match="has no convolution that"):
            convpar.parallelize(dense)
        with pytest.warns(UserWarning, match="none of 1 .*'mine' Own is a cla"):
            convpar.parallelize(own)


def with_plan(plan, **kwargs):
    return convpar.ConvParallelStrategy(
        devices=["CPU:0", "CPU:1", "CPU:2"], plan=plan, **kwargs
    )


def test_a_strategy_s_plan_has_patterns_as_that_of_parallelize_has():
    strategy = with_plan({"st.*": (4, 1, 1), "go+d": None})
    with strategy.scope(), silent():
        model = convpar.parallelize(network())
    assert model.get_layer("stem").kernel.layout.sizes == (4, 1, 1)
    assert not model.get_layer("block").good.is_spread


def test_a_key_for_no_layer_is_said_in_the_same_words(strategy):
    with strategy.scope(), pytest.raises(ValueError) as raised:
        convpar.parallelize(network(), {"stemm": (4, 1, 1)})
    other = with_plan({"stemm": (4, 1, 1), "good": (2, 1, 1)})
    with other.scope(), pytest.warns(UserWarning) as caught:
        convpar.parallelize(network())
        convpar.parallelize(network())
    (warning,) = caught  # Once of each key.
    assert warning.filename == __file__
    words = "Expected each key of `plan` to stand for a convolution of"
    ends = "['stemm'], which stand for none."
    for text in (str(raised.value), str(warning.message)):
        assert text.startswith(words) and ends in text
    with pytest.raises(ValueError, match="or regular expressions"):
        with_plan({"st(": (1, 1, 1)})


def test_a_key_for_no_layer_is_said_of_layers_of_one_s_own_too():
    strategy = with_plan({"missing": (1, 1, 1), "here": (2, 1, 1)})
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((8, 8, 3)),
                convpar.ConvParallel2D(4, 3, name="here"),
                L.GlobalMaxPooling2D(),
            ]
        )
        model.compile("sgd", "mse")
    with pytest.warns(UserWarning, match=r"\['missing'\], which stand for"):
        model.fit(np.zeros((4, 8, 8, 3)), np.zeros((4, 4)), verbose=0)


@pytest.mark.parametrize(
    ("shares", "sizes"),
    [
        ((3, 2, 1), [(3, 2, 1), (2, 1, 1)]),
        ((8, 1, 1), [(4, 1, 1), (2, 1, 1)]),
        ((1, 0, 1), [(3, 3), (2, 2)]),
        ((0.5, 0.3, 0.2), [(3, 2, 1), (2, 1, 1)]),
    ],
)
def test_a_strategy_s_shares_are_those_of_all_layers(shares, sizes):
    strategy = with_plan(None, shares=shares)
    with strategy.scope():
        model = convpar.parallelize(network())
        samples = convpar.parallelize(network(), {"stem": "samples"})
    layers = (model.get_layer("stem"), model.get_layer("block").good)
    assert [layer.kernel.layout.sizes for layer in layers] == sizes
    got = samples.get_layer("stem")._samples.shares
    given = [share for share in shares if share]
    np.testing.assert_allclose(
        np.divide(got, sum(got)), np.divide(given, sum(given))
    )


def test_what_is_said_of_a_layer_goes_before_shares():
    strategy = with_plan({"stem": (1, 1, 4)}, shares=(3, 2, 1))
    with strategy.scope():
        model = convpar.parallelize(network(), {"good": (0, 0, 4)})
        own = convpar.ConvParallel2D(6, 3, shards=(1, 4, 1))
        own.build((None, 8, 8, 3))
    assert model.get_layer("stem").kernel.layout.sizes == (1, 1, 4)
    assert model.get_layer("block").good.kernel.layout.sizes == (4,)
    assert own.kernel.layout.sizes == (1, 4, 1)


def test_shares_stay_with_their_devices():
    strategy = with_plan(None, shares=(3, 2, 1))
    strategy.change_devices(["CPU:0", "CPU:2"])
    assert strategy.shares == (3, 1)
    strategy.change_devices(["CPU:0", "CPU:3", "CPU:1"])
    assert strategy.shares == (3, 2, 2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"shares": (3, 2)}, "for each of 3 devices.*Received 2"),
        ({"shares": (3, -1, 2)}, "none negative"),
        ({"shares": (1, 1, 1), "plan": "auto"}, "Received both"),
    ],
)
def test_wrong_shares(arguments, words):
    with pytest.raises(ValueError, match=words):
        with_plan(**({"plan": None} | arguments))


def test_repr_says_what_it_computes_on():
    strategy = with_plan({"a": (1, 1, 1)}, shares=(3, 2, 1))
    assert repr(strategy) == (
        "<ConvParallelStrategy devices=[CPU:0, CPU:1, CPU:2], chief=CPU:0, "
        "shares=(3, 2, 1), plan=1 named>"
    )


def test_measuring_is_seen_without_a_terminal(monkeypatch):
    said = []
    monkeypatch.setattr("tf_convpar.planner.measure._progress._EVERY_S", 0.0)
    with progress("vgg16: measuring", said.append) as report:
        assert said == []
        report("reading the model")
        report("CPU:0: all layers")
    first, second = said
    assert first == "vgg16: measuring ..."
    assert re.fullmatch(r"vgg16: measuring, \d+ s: CPU:0: all layers", second)

"""What this package uses of Keras and TensorFlow, and they do not promise."""

import ast
import importlib
import inspect
import os
import pathlib
import re
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from compat_cases import missing
from compat_cases import parameters
from processes import ROOT
from tensorflow.python.eager.polymorphic_function import concrete_function

import tf_convpar
from tf_convpar._compat import keras as of_keras
from tf_convpar._compat import keras_private
from tf_convpar._compat import tensorflow as of_tensorflow
from tf_convpar._compat._private import Private

PACKAGE = pathlib.Path(tf_convpar.__file__).parent
COMPAT = PACKAGE / "_compat"
NAMES = [
    *keras_private.NAMES.values(),
    *keras_private.OPERATIONS.values(),
    *of_tensorflow.NAMES.values(),
]
MEMBERS = keras_private.MEMBERS | of_tensorflow.MEMBERS


@pytest.mark.parametrize("use", NAMES, ids=lambda use: use.name)
def test_names_are_there(use):
    try:
        use.found()
    except ImportError:
        pytest.fail(missing(use.name, use.reason), pytrace=False)


class Watched(keras.callbacks.Callback):
    """What a model has while it is trained and evaluated."""

    names = ()

    def on_epoch_end(self, epoch, logs=None):
        self.names = dir(self.model)


@pytest.fixture(scope="module")
def members():
    """Of an object of each kind, the names of its members."""
    inputs = keras.Input((3,))
    outputs = keras.layers.Dense(2)(inputs)
    graph = keras.Model(inputs, outputs)
    sequential = keras.Sequential([inputs, keras.layers.Dense(2)])
    sequential.compile("sgd", "mse")
    x, y = np.ones((4, 3)), np.ones((4, 2))
    watched = Watched()
    sequential.fit(x, y, validation_data=(x, y), verbose=0, callbacks=[watched])
    layer = graph.layers[-1]
    adam = keras.optimizers.Adam()
    adam.build(graph.trainable_variables)
    archive = keras.export.ExportArchive()
    archive.add_endpoint("serve", graph.call, [tf.TensorSpec((None, 3))])
    archive._filter_and_track_resources()
    (node,) = of_keras.inbound_nodes(layer)
    extended = "tensorflow.python.distribute.one_device_strategy"
    gradient = "tensorflow.python.framework.composite_tensor_gradient"
    function = "tensorflow.python.eager.polymorphic_function.concrete_function"
    found = {
        "keras.layers.Layer": layer,
        "keras.export.ExportArchive": archive._tf_trackable,
        "keras.optimizers.Adam": adam,
        "keras.Sequential": sequential,
        "keras.src.models.functional.Functional": graph,
        "keras.src.ops.node.Node": node,
        "keras.src.ops.symbolic_arguments.SymbolicArguments": node.arguments,
        "keras.KerasTensor": outputs,
        "keras.Variable": layer.kernel,
        "keras.optimizers.Optimizer": sequential.optimizer,
        "keras.src.utils.tracking.Tracker": of_keras.Tracker({}),
        "tensorflow.Variable": tf.Variable(1.0),
        "tensorflow.TensorSpec": tf.TensorSpec(()),
        "tensorflow.TypeSpec": tf.TensorSpec(()),
        "tensorflow.RaggedTensor": tf.ragged.constant([[1], []]),
        f"{gradient}.CompositeTensorGradient": (
            of_tensorflow.CompositeTensorGradient
        ),
        f"{extended}.OneDeviceExtended": (
            tf.distribute.OneDeviceStrategy("CPU:0").extended
        ),
        "tensorflow.RegisterGradient": tf.RegisterGradient("Op"),
        f"{function}.ConcreteFunctionGarbageCollector": (
            concrete_function.ConcreteFunctionGarbageCollector(None)
        ),
        "tensorflow.Graph": tf.Graph(),
        "tensorflow.function": tf.function(lambda x: x),
        "tensorflow.python.framework.registry.Registry": (
            of_tensorflow.gradient_registry
        ),
    }
    names = {owner: dir(one) for owner, one in found.items()}
    # It does not list what it has.
    owner, graph = "tensorflow.__internal__.FuncGraph", of_tensorflow.FuncGraph
    names[owner] = [n for n in MEMBERS[owner] if hasattr(graph("x"), n)]
    return names | {"keras.Model": watched.names}


@pytest.mark.parametrize(
    ("owner", "member"),
    [(owner, member) for owner, found in MEMBERS.items() for member in found],
)
def test_members_are_there(owner, member, members):
    if member not in members[owner]:
        reason = MEMBERS[owner][member]
        pytest.fail(missing(f"{owner}.{member}", reason), pytrace=False)


def test_what_is_missing_is_told_by_its_name(members, monkeypatch):
    gone = Private("keras.src.ops.numpy:Gone", "a test")
    expected = (
        "Expected keras to have keras.src.ops.numpy.Gone, needed for a test. "
        f"Received: keras {keras.__version__}, which has none."
    )
    with pytest.raises(ImportError, match=re.escape(expected)):
        gone.found()
    with pytest.raises(ImportError, match="keras.src.no.such.place.Thing"):
        Private("keras.src.no.such.place:Thing", "a test").found()
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = of_keras.Nothing
    monkeypatch.setitem(MEMBERS["tensorflow.Variable"], "_no", "a test")
    with pytest.raises(pytest.fail.Exception, match="tensorflow.Variable._no"):
        test_members_are_there("tensorflow.Variable", "_no", members)


def test_an_older_prefix_of_modules_is_known():
    """By which a `CompileLoss` is told from what the user has made."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(np.ones((2, 2)), np.ones((2, 1)), verbose=0)
    loss = of_keras.CompileLoss("mse")
    assert of_keras.is_of_compile(loss)
    assert any(
        of_keras.is_of_compile(value) and isinstance(value, type(loss))
        for value in vars(model).values()
    )
    assert not of_keras.is_of_compile(keras.losses.MeanSquaredError())


def test_layers_are_told_of_training():
    told = []

    class Listening(keras.layers.Layer):
        def call(self, x, training=None):
            told.append(of_keras.training_of_call())
            return x

    model = keras.Sequential([keras.Input((2,)), Listening()])
    model.add(keras.layers.Dense(1))
    model.compile("sgd", "mse")
    told.clear()
    model.predict(np.ones((2, 2)), verbose=0)
    assert set(told) == {False}
    told.clear()
    model.fit(np.ones((2, 2)), np.ones((2, 1)), verbose=0)
    assert set(told) == {True}
    assert of_keras.training_of_call() is None


def test_checkpoints_note_what_copies_leave_out():
    module = tf.Module()
    module.own = tf.Variable(1.0)
    notes = [n for n in vars(module) if of_tensorflow.is_note_of_checkpoints(n)]
    assert notes and "own" not in notes


# Outside of `_compat`.


def trees():
    """Of all modules outside of `_compat`."""
    for file in sorted(PACKAGE.rglob("*.py")):
        if COMPAT not in file.parents:
            where = str(file.relative_to(PACKAGE.parent))
            yield where, ast.parse(file.read_text())


def private_imports(tree):
    """What is imported of the private packages, in functions too."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            found.append(ast.unparse(node))
    # `tf.__internal__` is TensorFlow's for Keras.
    pattern = r"(keras\.src|tensorflow\.python|(tf|tensorflow)\.__internal__)\b"
    return [name for name in found if re.match(pattern, name)]


@pytest.mark.parametrize(
    "line",
    [
        "from keras.src.ops import numpy",
        "from keras import src",
        "import tensorflow.python.eager.record",
        "def f():\n    from tensorflow import python as p",
        "x = tf.__internal__.FuncGraph('x')",
        "x = keras.src.ops",
    ],
)
def test_imports_are_found(line):
    assert private_imports(ast.parse(line))


def test_nothing_else_imports_what_is_private():
    found = {where: private_imports(tree) for where, tree in trees()}
    assert len(found) > 100
    wrong = {where: names for where, names in found.items() if names}
    assert not wrong


def named_here(tree):
    """Names beginning with an underscore that a module gives something."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(
            node.ctx, ast.Store
        ):
            if ast.unparse(node.value) == "self":
                yield node.attr
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).rpartition(".")[2]


def private_reads(tree):
    """Private members, and whether they are those of `self`, where."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            name, of = node.attr, ast.unparse(node.value)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            name, of = node.value, ""  # As for `getattr`.
        else:
            continue
        if re.fullmatch(r"_[a-z]\w*", name):
            own = of in ("self", "cls", "super()")
            yield name, of, own, node.lineno


def test_nothing_else_reads_what_is_private(members):
    """What inherited members of Keras and TensorFlow are used is listed."""
    files = dict(trees())
    ours = {n for tree in files.values() for n in named_here(tree)}
    ours |= {file.stem for file in PACKAGE.rglob("*.py")}
    theirs = {name for found in MEMBERS.values() for name in found}
    # Python's own; and what this package notes on objects of Keras.
    ours |= {"_exit", "_asked_jit_compile", "_parallel_copies"}
    ours |= {"_convpar_sent"}
    # But for `_layout`, which parallel layers have, and variables of Keras.
    known = {name for names in members.values() for name in names}
    known -= {"_layout"}
    wrong = []
    inherited = set()
    for where, tree in files.items():
        for name, of, own, line in private_reads(tree):
            if own and name in theirs:
                inherited.add(name)
                continue
            foreign = name not in ours and (of or name in theirs)
            if foreign or (of and not own and name in known):
                wrong.append(f"{where}:{line}: {of}.{name}")
    assert not wrong, "\n".join(wrong)
    assert {"_container_strategy", "_track_variable"} <= inherited


def classes():
    """All of this package."""
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
        if "_compat" in parts or "__main__" in parts:
            continue
        name = ".".join(part for part in parts if part != "__init__")
        for kind in vars(importlib.import_module(name)).values():
            if isinstance(kind, type) and kind.__module__ == name:
                yield kind


def overridden():
    """Private methods of theirs that classes of this package redefine."""
    for kind in classes():
        for name, method in vars(kind).items():
            if not re.fullmatch(r"_[a-z]\w*", name):
                continue
            for base in kind.__mro__[1:]:
                library = base.__module__.partition(".")[0]
                if library in ("keras", "tensorflow") and name in vars(base):
                    yield kind, name, method, vars(base)[name]
                    break


def test_private_methods_that_are_overridden_are_listed():
    listed = {name for found in MEMBERS.values() for name in found}
    # What Keras and `abc` note on every class.
    listed |= {"_abc_impl", "_api_export_path", "_api_export_symbol_id"}
    found = {name: kind for kind, name, _, _ in overridden()}
    assert {"_update", "_create_variable", "_initialize"} <= set(found)
    assert not {n: k.__name__ for n, k in found.items() if n not in listed}


def test_private_methods_that_are_overridden_take_what_they_did():
    for kind, name, method, theirs in overridden():
        if inspect.isfunction(method) and inspect.isfunction(theirs):
            told = f"{kind.__name__}.{name}"
            assert parameters(method) == parameters(theirs), told


# What is replaced.


PROGRAM = """
import keras
import tensorflow as tf
import numpy as np
from keras.src.ops import numpy

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration()] * 2,
)
keras.utils.set_random_seed(1)
x = inputs = keras.Input((8, 8, 3))
x = keras.layers.Conv2D(6, 3, padding="same")(x)
x = x + keras.layers.Conv2D(6, 3, padding="same")(x)
plain = keras.Model(inputs, keras.layers.Conv2D(4, 3)(x))
kind = numpy.Add
if {renamed}:
    kind.__name__ = "Plus"
    numpy.Plus = kind
    del numpy.Add

import tf_convpar as convpar
from tf_convpar.sharding import _attach

with convpar.ConvParallelStrategy(devices=["CPU:0", "CPU:1"]).scope():
    model = convpar.parallelize(plain, verbose=False)
image = np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype("float32")
np.testing.assert_allclose(model(image), plain(image), rtol=1e-4, atol=1e-5)
(added,) = [one for one in model.operations if type(one) is kind]
print("shards" if _attach.works_on_shards(added) else "whole")
print(sum(getattr(layer, "is_sharded", False) for layer in model.layers))
"""


@pytest.mark.parametrize(
    "renamed", [pytest.param(False, marks=pytest.mark.slow), True]
)
def test_an_operation_that_is_renamed_runs_whole(renamed):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(renamed=renamed)],
        # First of all this package; Keras as it is found here.
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    expected = ["whole" if renamed else "shards", "3"]
    assert done.stdout.split() == expected, done.stderr

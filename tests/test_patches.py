"""The table of what is put in the place of Keras' and TensorFlow's own."""

import inspect
import json
import os
import subprocess
import sys

import keras
import pytest
from compat_cases import missing
from processes import ROOT

from tf_convpar._compat import patches


@pytest.mark.parametrize("target", patches.PATCHES)
def test_what_is_replaced_is_there(target):
    patch = patches.PATCHES[target]
    try:
        owner, name = patch.owner()
    except ImportError:
        name = target.replace(":", ".")
        pytest.fail(missing(name, patch.why), pytrace=False)
    assert hasattr(owner, name)
    assert patch.why and patch.models and patch.undone_by


TAKES = {t: patch.takes for t, patch in patches.PATCHES.items() if patch.takes}


@pytest.mark.parametrize(("target", "takes"), TAKES.items())
def test_replacements_take_what_they_did(target, takes):
    """By order, or by the names that the table gives."""
    owner, name = patches.PATCHES[target].owner()
    now = getattr(owner, name)
    assert list(inspect.signature(now).parameters) == takes.split()
    if target in patches.replaced():
        outermost = inspect.signature(now, follow_wrapped=False)
        assert inspect.unwrap(now) is not now
        assert len(outermost.parameters) == len(takes.split())


def test_only_rows_are_replaced_and_once(monkeypatch):
    target = "keras:Model.summary"
    summary = keras.Model.summary
    with pytest.raises(ValueError, match="which has been replaced"):
        patches.replace(target, by=lambda before: None)
    with pytest.raises(ValueError, match="which has no row"):
        patches.replace("keras:Model.compile", by=lambda before: None)
    gone = patches.Patch("keras:Model.no_such", "a test", "none", "nothing")
    monkeypatch.setitem(patches.PATCHES, gone.target, gone)
    with pytest.raises(ImportError, match="keras.Model.no_such, needed for a"):
        patches.replace(gone.target, by=lambda before: None)
    assert keras.Model.summary is summary


# All that differs in Keras and TensorFlow once this package is used.
CHANGES = """
import importlib
import json
import pkgutil
import sys

import keras
import numpy as np
import tensorflow as tf


def theirs(name):
    return name.partition(".")[0] in ("keras", "tensorflow")


def places():
    for path, module in list(sys.modules.items()):
        if theirs(path):
            yield module
            for one in list(vars(module).values()):
                if isinstance(one, type) and theirs(one.__module__):
                    yield one


def made():
    inputs = keras.Input((8, 8, 3))
    return keras.Model(inputs, keras.layers.Conv2D(4, 3)(inputs))


def used(model):
    model.compile("sgd", "mse")
    data = np.ones((4, 8, 8, 3)), np.ones((4, 6, 6, 4))
    model.fit(*data, verbose=0)
    model.evaluate(*data, verbose=0)
    model.predict(data[0], verbose=0)
    model.summary(print_fn=str)


def changed():
    found = set()
    for place, names in before.values():
        kind = isinstance(place, type)
        where = f"{place.__module__}." if kind else ""
        for name, one in list(vars(place).items()):
            # Modules load others when they are asked for them.
            new = kind and name not in names
            if new or names.get(name, one) is not one:
                found.add((where + place.__name__, name))
    return sorted(found)


tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration()] * 2,
)
used(made())
before = {id(place): (place, dict(vars(place))) for place in places()}

import tf_convpar as convpar

for module in pkgutil.walk_packages(convpar.__path__, "tf_convpar."):
    if not module.name.endswith(("__main__", "_convpar_ops")):
        importlib.import_module(module.name)
from tf_convpar._compat import patches
from tf_convpar.cluster import error_hints

error_hints.of_clusters()
with convpar.ConvParallelStrategy(devices=["CPU:0", "CPU:1"]).scope():
    used(convpar.parallelize(made(), verbose=False))
now = patches.replaced()
found = changed()
for target in now:
    patches.undo(target)
print(json.dumps([sorted(now), found, changed()]))
"""


def test_the_table_has_all_that_is_replaced():
    """And all of it can be undone."""
    done = subprocess.run(
        [sys.executable, "-c", CHANGES],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
        },
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    replaced, found, left = json.loads(done.stdout.splitlines()[-1])
    assert replaced == sorted(patches.PATCHES)
    rows, everywhere = set(), set()
    for patch in patches.PATCHES.values():
        owner, name = patch.owner()
        kind = isinstance(owner, type)
        where = f"{owner.__module__}." if kind else ""
        rows.add((where + owner.__name__, name))
        everywhere |= {name} if patch.everywhere else set()
    found = set(map(tuple, found))
    assert rows <= found
    assert {name for _, name in found - rows} <= everywhere
    assert not left


# A Keras that calls an operation otherwise.

"""The raw ops: bad arguments, and memory."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
import tensorflow as tf

from tf_convpar import ops
from tf_convpar.algorithms._algorithm import Geometry
from tf_convpar.algorithms._bilinear import Bilinear
from tf_convpar.algorithms._bilinear import instruction_set
from tf_convpar.ops import _library

pytestmark = pytest.mark.skipif(not ops.load(), reason="no compiled ops")


def native_arguments():
    """A good call of the forward op."""
    programs = Bilinear("winograd", (4, 4)).transforms(
        Geometry((9, 9), 3, 4, (3, 3))
    )
    arguments = {
        "x": tf.ones((1, 9, 9, 3)),
        "kernel": tf.ones((3, 3, 3, 4)),
        "bias": [],
        "step": [4, 4],
        "pad_before": [0, 0],
        "pad_after": [0, 0],
    }
    for name in ("image", "maps", "kernel"):
        program = getattr(programs, name)
        arguments[f"{name}_structure"] = program.structure()
        arguments[f"{name}_values"] = program.values()
    return arguments


BAD = {
    "rank of x": {"x": tf.ones((9, 9, 3))},
    "scalar x": {"x": tf.constant(1.0)},
    "rank of kernel": {"kernel": tf.ones((3, 3, 4))},
    "channels": {"x": tf.ones((1, 9, 9, 2))},
    "bias": {"bias": tf.ones(3)},
    "image smaller than window": {"x": tf.ones((1, 1, 9, 3))},
    "window": {"kernel": tf.ones((5, 3, 3, 4))},
    "steps": {"step": [4]},
    "no steps": {"step": [], "pad_before": [], "pad_after": []},
    "four axes": {"step": [4] * 4},
    "step of 0": {"step": [0, 4]},
    "negative step": {"step": [-4, 4]},
    "huge step": {"step": [2**40, 4]},
    "negative pad": {"pad_before": [-1, 0]},
    "pads": {"pad_after": [0, 0, 0]},
    "adjoint channels": {"adjoint": True},
    "no program": {"image_structure": [], "image_values": []},
    "cut off": {"image_structure": [6, 6]},
    "no values": {"maps_values": []},
    "negative size": {"kernel_structure": [-1, 3, 1, 1, 0]},
    "sizes that overflow": {"image_structure": [1, 1, 2**30, 2**30, 0, 1, 0]},
    "column out of range": {
        "image_structure": [1, 36, 1, 1, 0, 1, 36],
        "image_values": [1.0],
    },
    "negative column": {
        "image_structure": [1, 36, 1, 1, 0, 1, -1],
        "image_values": [1.0],
    },
    "rows that do not begin at 0": {
        "image_structure": [1, 36, 1, 1, 1, 1],
        "image_values": [],
    },
    "other points": {
        "maps_structure": [1, 2, 1, 1, 0, 1, 0],
        "maps_values": [1.0],
    },
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments_of_the_op(case):
    forward = _library.module().TfConvpar_BilinearForward
    good = native_arguments()
    assert forward(**good).shape == (1, 7, 7, 4)
    # Where a graph is built they are a ValueError.
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError)):
        forward(**{**good, **BAD[case]})


def gradient_arguments():
    """A good call of the kernel gradient."""
    arguments = native_arguments()
    del arguments["kernel"], arguments["bias"]
    programs = Bilinear("winograd", (4, 4)).transforms(
        Geometry((9, 9), 3, 4, (3, 3))
    )
    for name in ("maps", "kernel"):
        transposed = getattr(programs, name).transposed
        arguments[f"{name}_structure"] = transposed.structure()
        arguments[f"{name}_values"] = transposed.values()
    return arguments | {"dy": tf.ones((1, 7, 7, 4)), "window": [3, 3]}


@pytest.mark.parametrize(
    "bad",
    [
        {"dy": tf.ones((1, 6, 7, 4))},
        {"dy": tf.ones((2, 7, 7, 4))},
        {"dy": tf.constant(1.0)},
        {"x": tf.constant(1.0)},
        {"window": [3]},
        {"window": [0, 3]},
        {"step": [3, 4]},
    ],
)
def test_bad_arguments_of_the_kernel_gradient(bad):
    good = gradient_arguments()
    gradient = _library.module().TfConvpar_BilinearKernelGradient
    assert gradient(**good).shape == (3, 3, 3, 4)
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError)):
        gradient(**{**good, **bad})


MEMORY = """
import json
import tensorflow as tf
from tf_convpar.algorithms._algorithm import PASSES, Geometry
from tf_convpar.algorithms._passes import named
from tf_convpar.ops import _library

tf.config.threading.set_intra_op_parallelism_threads(2)
small = Geometry((30, 30), 64, 64, (3, 3), batch=4)
wide = Geometry((14, 14), 300, 500, (3, 3), batch=2)
large = Geometry((14, 14), 200, 500, (5, 5), batch=2)
panels = Geometry((14, 14), 20, 500, (5, 5), batch=64)
runs = []
for name, g in (
    ("winograd:4", small),
    ("winograd:4", wide),
    ("fft:10", large),
    ("winograd:5", panels),
):
    algorithm = named(name, g)
    x = tf.ones((g.batch, *g.image, g.channels))
    k = tf.ones((*g.window, g.channels, g.filters))
    dy = tf.ones((g.batch, *g.output, g.filters))
    calls = (
        lambda a=algorithm, x=x, k=k, g=g: a.forward(x, k, g),
        lambda a=algorithm, x=x, k=k, dy=dy, g=g: a.input_gradient(
            dy, k, g, x.shape
        ),
        lambda a=algorithm, x=x, dy=dy, g=g: a.kernel_gradient(x, dy, g),
    )
    for which, call in zip(PASSES, calls):
        runs.append((algorithm.workspace(g, which), call))
# Each needs more than the one before, and so replaces it.
for predicted, call in sorted(runs, key=lambda run: run[0]):
    call()
    measured = _library.module().TfConvpar_WorkspaceBytes().numpy().tolist()
    print(json.dumps([predicted, *measured]))
"""

OVERFLOWS = """
import sys

sys.path.insert(0, sys.argv[1])
from test_algorithms_ops import _library, gradient_arguments, native_arguments

ops = _library.module()
forward = ops.TfConvpar_BilinearForward
gradient = ops.TfConvpar_BilinearKernelGradient
for op, good, bad in (
    (forward, native_arguments(), {"pad_after": [2**62, 2**62]}),
    (forward, native_arguments(), {"pad_after": [2**40, 2**40]}),
    (gradient, gradient_arguments(), {"window": [-3, 3]}),
    (gradient, gradient_arguments(), {"window": [2**40, 2**40]}),
):
    try:
        op(**{**good, **bad})
    except tf.errors.InvalidArgumentError:
        print("refused", bad)
"""


@pytest.fixture(scope="module")
def lines():
    """What both print; a process of its own may crash."""
    script = MEMORY + OVERFLOWS
    done = subprocess.run(
        [sys.executable, "-c", script, str(pathlib.Path(__file__).parent)],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_sizes_that_overflow(lines):
    assert len([line for line in lines if line.startswith("refused")]) == 4


ISA = "TF_CONVPAR_WIDEST_ISA"


def in_a_process_with(isa, *arguments):
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, ISA: isa},
        cwd=pathlib.Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=300,
    )


NARROWER = """
import sys

sys.path.insert(0, sys.argv[1])
import test_algorithms_numerics as numerics
from test_algorithms_ops import instruction_set

for geometry in numerics.GEOMETRIES[:: -int(sys.argv[2])]:
    numerics.test_error_of_each_pass(geometry)
print(instruction_set())
"""


@pytest.mark.parametrize(
    ("isa", "every"),
    [
        ("base", 2),  # Every second geometry: one of each kind.
        pytest.param("base", 1, marks=pytest.mark.slow),
        pytest.param("avx2", 1, marks=pytest.mark.slow),
    ],
)
def test_narrower_instruction_sets(isa, every):
    if isa not in ("base", instruction_set()) and instruction_set() != "avx512":
        pytest.skip("this processor does not have it")
    done = in_a_process_with(
        isa, "-c", NARROWER, pathlib.Path(__file__).parent, str(every)
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [isa]


def test_instruction_set_that_is_none():
    program = (
        "from tf_convpar.algorithms import _bilinear; "
        "_bilinear.instruction_set()"
    )
    done = in_a_process_with("avx9", "-c", program)
    assert done.returncode == 1
    assert "Expected the environment variable" in done.stderr
    assert "Received: avx9" in done.stderr


def test_workspace_is_what_the_allocator_gives(lines):
    runs = [json.loads(line) for line in lines if line.startswith("[")]
    assert len(runs) == 12
    # Formulas are for the widest instruction set: narrower ones need less.
    widest = instruction_set() == "avx512"
    for predicted, in_use, held, most in runs:
        assert in_use == 0
        assert most == held
        spare = 0.25 * held + 4 * 2**20
        assert held - predicted <= spare
        assert predicted - held <= (spare if widest else 2 * spare)

"""The raw ops: bad arguments, and memory."""

import functools
import json
import operator
import os
import pathlib

import forks
import narrower
import pytest
import tensorflow as tf

from tf_convpar import ops
from tf_convpar.algorithms import FORWARD
from tf_convpar.algorithms import PASSES
from tf_convpar.algorithms import Bilinear
from tf_convpar.algorithms import Geometry
from tf_convpar.algorithms import Processor
from tf_convpar.algorithms import instruction_set
from tf_convpar.algorithms import named

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
    forward = ops.module().TfConvpar_BilinearForward
    good = native_arguments()
    assert forward(**good).shape == (1, 7, 7, 4)
    # Where a graph is built they are a ValueError.
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError)):
        forward(**{**good, **BAD[case]})


def test_no_activation_of_a_gradient():
    forward = ops.module().TfConvpar_BilinearForward
    bad = {"relu": True, "adjoint": True}
    with pytest.raises(tf.errors.InvalidArgumentError, match="no `relu`"):
        forward(**native_arguments() | bad)


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
    gradient = ops.module().TfConvpar_BilinearKernelGradient
    assert gradient(**good).shape == (3, 3, 3, 4)
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError)):
        gradient(**{**good, **bad})


# Of each way that a pass can go.
SIZES = (
    ("winograd:4", Geometry((30, 30), 64, 64, (3, 3), batch=4)),
    ("winograd:4", Geometry((14, 14), 300, 500, (3, 3), batch=2)),
    ("winograd:4", Geometry((14, 14), 300, 500, (3, 3), batch=40)),
    ("fft:10", Geometry((14, 14), 200, 500, (5, 5), batch=2)),
    ("winograd:5", Geometry((14, 14), 20, 500, (5, 5), batch=64)),
)


def runs(on=None):
    """What each pass is said to need, and the pass, the least first."""
    found = []
    for name, g in SIZES:
        algorithm = named(name, g)
        x = tf.ones((g.batch, *g.image, g.channels))
        k = tf.ones((*g.window, g.channels, g.filters))
        dy = tf.ones((g.batch, *g.output, g.filters))
        calls = (
            functools.partial(algorithm.forward, x, k, g),
            functools.partial(algorithm.input_gradient, dy, k, g, x.shape),
            functools.partial(algorithm.kernel_gradient, x, dy, g),
        )
        for which, call in zip(PASSES, calls, strict=True):
            found.append((algorithm.workspace(g, which, on), call))
    return sorted(found, key=operator.itemgetter(0))


MEMORY = """
import json
import sys

import tensorflow as tf

sys.path.insert(0, sys.argv[1])
tf.config.threading.set_intra_op_parallelism_threads(2)
from test_algorithms_ops import ops, runs

# None fits what the one before has left, unless it needs as much.
for predicted, call in runs():
    call()
    measured = ops.module().TfConvpar_WorkspaceBytes().numpy().tolist()
    print(json.dumps([predicted, *measured]))
"""

OVERFLOWS = """
from test_algorithms_ops import gradient_arguments, native_arguments
from tf_convpar import ops as convpar_ops

ops = convpar_ops.module()
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


ISA = "TF_CONVPAR_WIDEST_ISA"
FOLDER = pathlib.Path(__file__).parent


def in_a_process_with(isa, *arguments):
    return forks.run(
        arguments,
        env={**os.environ, ISA: isa},
        timeout=300,
    )


NARROWER = """
import test_algorithms_numerics as numerics

for geometry in reversed(numerics.GEOMETRIES):
    numerics.test_error_of_each_pass(geometry)
"""


@pytest.mark.slow
@pytest.mark.parametrize("isa", ["base", "avx2"])
def test_narrower_instruction_sets(isa):
    narrower.check(isa, NARROWER)


def test_instruction_set_that_is_none():
    program = (
        "from tf_convpar.algorithms import instruction_set; instruction_set()"
    )
    done = in_a_process_with("avx9", "-c", program)
    assert done.returncode == 1
    assert "Expected the environment variable" in done.stderr
    assert "Received: avx9" in done.stderr


@pytest.fixture(scope="module", params=[pytest.param("", id="widest"), "base"])
def printed(request):
    """An instruction set, and what both print; their process may crash."""
    done = in_a_process_with(request.param, "-c", MEMORY + OVERFLOWS, FOLDER)
    assert done.returncode == 0, done.stderr
    return request.param or instruction_set(), done.stdout.splitlines()


def test_sizes_that_overflow(printed):
    _, lines = printed
    assert len([line for line in lines if line.startswith("refused")]) == 4


def test_workspace_is_what_the_allocator_gives(printed):
    vectors, lines = printed
    measured = [json.loads(line) for line in lines if line.startswith("[")]
    assert len(measured) == len(PASSES) * len(SIZES)
    for predicted, in_use, held, most in measured:
        assert in_use == 0
        assert most == held == predicted
    # A process with other vectors knows it too.
    said = runs(Processor(threads=2, vectors=vectors))
    assert [size for size, _ in said] == [line[0] for line in measured]


def test_workspace_for_another_processor():
    """More threads and wider vectors need more."""
    name, geometry = SIZES[0]
    algorithm = named(name, geometry)
    sizes = [
        algorithm.workspace(geometry, FORWARD, Processor(threads, vectors))
        for threads in (8, 64)
        for vectors in ("base", "avx512")
    ]
    assert sizes == sorted(set(sizes))
    with pytest.raises(ValueError, match=r"avx512, avx2 or base.*sse"):
        algorithm.workspace(geometry, FORWARD, Processor(2, "sse"))

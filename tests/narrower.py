"""Programs in processes whose ops run on fewer instructions than there are."""

import os

import forks
import pytest
from processes import environment

from tf_convpar.algorithms import instruction_set

_PROGRAM = """
import sys

sys.path.insert(0, sys.argv[1])
{program}
from narrower import instruction_set

print(instruction_set())
"""


def check(isa, program, *arguments):
    """Runs a program, which may import tests, on one set of instructions.

    Its further arguments begin at `sys.argv[2]`. The test is skipped on a
    processor without that set.
    """
    if isa not in ("base", instruction_set()) and instruction_set() != "avx512":
        pytest.skip("this processor does not have it")
    done = forks.run(
        [
            *("-c", _PROGRAM.format(program=program)),
            *(os.path.dirname(__file__), *arguments),
        ],
        env=environment(TF_CONVPAR_WIDEST_ISA=isa),
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [isa]

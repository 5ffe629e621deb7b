"""Mixed-integer linear programs, written as they are on paper.

```python
program = LinearProgram()
x = program.variable(upper=4, integer=True)
y = program.variable()
program.at_least(y - 2 * x, 1)
program.minimise(y - 3 * x)
values = program.solve(time_limit_s=10)
x.of(values)  # 4.0
```
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import threading
from collections.abc import Iterable
from collections.abc import Iterator

import numpy as np
from scipy import optimize
from scipy import sparse

_stdout = threading.Lock()


class NoSolution(Exception):
    """No values of the variables satisfy all constraints."""


class NoProof(RuntimeError):
    """The best values were not found, or not proven, within the time."""


class Linear:
    """A linear expression: a sum of variables with factors, and a number."""

    def __init__(
        self, terms: dict[int, float] | None = None, constant: float = 0.0
    ) -> None:
        self.terms = terms or {}
        self.constant = constant

    def __add__(self, other: Linear | float) -> Linear:
        if not isinstance(other, Linear):
            return Linear(self.terms, self.constant + other)
        terms = dict(self.terms)
        for index, factor in other.terms.items():
            terms[index] = terms.get(index, 0.0) + factor
        return Linear(terms, self.constant + other.constant)

    __radd__ = __add__

    def __mul__(self, factor: float) -> Linear:
        if not factor:
            return Linear()
        terms = {i: factor * f for i, f in self.terms.items()}
        return Linear(terms, factor * self.constant)

    __rmul__ = __mul__

    def __sub__(self, other: Linear | float) -> Linear:
        return self + -1 * other

    def __rsub__(self, other: float) -> Linear:
        return -1 * self + other

    def of(self, values: np.ndarray) -> float:
        """The value of the expression for these values of the variables."""
        return self.constant + math.fsum(
            factor * values[index] for index, factor in self.terms.items()
        )


def total(parts: Iterable[Linear]) -> Linear:
    """The sum of linear expressions."""
    result = Linear()
    for part in parts:
        for index, factor in part.terms.items():
            result.terms[index] = result.terms.get(index, 0.0) + factor
        result.constant += part.constant
    return result


class LinearProgram:
    """Variables, constraints, and an expression to minimise."""

    def __init__(self) -> None:
        self._upper: list[float] = []
        self._integer: list[bool] = []
        self._rows: list[tuple[Linear, float, float]] = []
        self._cost = Linear()

    def variable(
        self, upper: float = math.inf, *, integer: bool = False
    ) -> Linear:
        """Adds a variable that is at least 0, and at most `upper`."""
        self._upper.append(upper)
        self._integer.append(integer)
        return Linear({len(self._upper) - 1: 1.0})

    def binary(self) -> Linear:
        """Adds a variable that is 0 or 1."""
        return self.variable(1, integer=True)

    def at_least(self, expression: Linear, bound: float = 0.0) -> None:
        """Demands that an expression is at least `bound`."""
        self._rows.append((expression, bound, math.inf))

    def equal(self, expression: Linear, value: float = 0.0) -> None:
        """Demands that an expression equals `value`."""
        self._rows.append((expression, value, value))

    def minimise(self, expression: Linear) -> None:
        """Sets the expression to minimise."""
        self._cost = expression

    def solve(self, time_limit_s: float) -> np.ndarray:
        """Values of the variables for which the cost is least.

        Raises:
            NoSolution: No values satisfy all constraints.
            NoProof: There is no proof within the time.
        """
        count = len(self._upper)
        cost = np.zeros(count)
        for index, factor in self._cost.terms.items():
            cost[index] = factor
        with _messages_to_stderr():
            result = optimize.milp(
                cost,
                integrality=np.array(self._integer, int),
                bounds=optimize.Bounds(np.zeros(count), np.array(self._upper)),
                constraints=self._constraints(count),
                options={
                    "time_limit": max(time_limit_s, 0.1),
                    "mip_rel_gap": 0.0,
                },
            )
        if result.status == 2:
            raise NoSolution
        if result.status != 0:
            gap = "no solution at all"
            if result.x is not None and result.mip_gap is not None:
                gap = f"a solution within {result.mip_gap:.2%} of the bound"
            raise NoProof(
                f"Expected a proven allocation within {time_limit_s:.0f} s. "
                f"Received {gap} ({result.message}). Fewer devices make it "
                "easier, and so does a larger quantum of kernels, where there "
                "is one."
            )
        return np.asarray(result.x)

    def _constraints(self, count: int) -> optimize.LinearConstraint:
        # The entries of all rows, one row after the other.
        lengths = [len(row.terms) for row, _, _ in self._rows]
        matrix = sparse.csr_array(
            (
                [f for row, _, _ in self._rows for f in row.terms.values()],
                [i for row, _, _ in self._rows for i in row.terms],
                np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
            ),
            shape=(len(self._rows), count),
        )
        lower = [bound - row.constant for row, bound, _ in self._rows]
        upper = [bound - row.constant for row, _, bound in self._rows]
        return optimize.LinearConstraint(matrix, lower, upper)


@contextlib.contextmanager
def _messages_to_stderr() -> Iterator[None]:
    """Keeps HiGHS off stdout, where it prints a line now and then.

    It prints with C's printf, even if it is asked to be silent. Such a line
    would break JSON that another program reads.
    """
    with _stdout, contextlib.ExitStack() as stack:
        # Without C's printf, or without a stdout, there is nothing to break.
        with contextlib.suppress(OSError, AttributeError):
            flush = ctypes.CDLL(None).fflush
            flush(None)
            kept = os.dup(1)
            stack.callback(os.close, kept)
            os.dup2(2, 1)
            stack.callback(os.dup2, kept, 1)
            stack.callback(flush, None)
        yield

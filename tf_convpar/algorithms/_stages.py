"""Linear maps of small tiles as chains of sparse matrices."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class Stage:
    """A matrix that acts on the middle axis of `(outer, columns, inner)`.

    Attributes:
        matrix: The matrix, (rows, columns).
        outer: Size of all axes before, taken as one.
        inner: Size of all axes after, taken as one.
    """

    matrix: np.ndarray
    outer: int = 1
    inner: int = 1

    @property
    def transposed(self) -> Stage:
        """The stage that carries gradients back."""
        return dataclasses.replace(self, matrix=self.matrix.T)

    @property
    def multiplications(self) -> int:
        """Number of multiplications of one application."""
        return int(np.count_nonzero(self.matrix)) * self.outer * self.inner


@dataclasses.dataclass(frozen=True)
class Program:
    """A linear map as a chain of stages, first to last.

    The compiled ops take it as its `structure` and its `values`.
    """

    stages: tuple[Stage, ...]

    @property
    def transposed(self) -> Program:
        """The transpose of the whole map."""
        return Program(tuple(s.transposed for s in reversed(self.stages)))

    @property
    def multiplications(self) -> int:
        """Number of multiplications of one application."""
        return sum(stage.multiplications for stage in self.stages)

    @property
    def inputs(self) -> int:
        """Number of values that it takes."""
        first = self.stages[0]
        return first.outer * first.matrix.shape[1] * first.inner

    @property
    def outputs(self) -> int:
        """Number of values that it gives."""
        last = self.stages[-1]
        return last.outer * last.matrix.shape[0] * last.inner

    def matrix(self) -> np.ndarray:
        """The whole map as one dense matrix."""
        dense = np.eye(self.inputs)
        for stage in self.stages:
            shape = (stage.outer, stage.matrix.shape[1], stage.inner, -1)
            dense = np.einsum(
                "rc,ocix->orix", stage.matrix, dense.reshape(shape)
            )
        return dense.reshape(self.outputs, self.inputs)

    def structure(self) -> list[int]:
        """Sizes of the stages and places of their values, stage after stage."""
        numbers: list[int] = []
        for stage in self.stages:
            rows, columns = stage.matrix.shape
            numbers += [rows, columns, stage.outer, stage.inner]
            used = [np.flatnonzero(row) for row in stage.matrix]
            numbers += [0, *np.cumsum([len(row) for row in used]).tolist()]
            numbers += np.concatenate(used).tolist()
        return numbers

    def values(self) -> list[float]:
        """The values that are not zero, stage after stage, row after row."""
        return [
            float(value)
            for stage in self.stages
            for row in stage.matrix
            for value in row[row != 0]
        ]


def along_axes(matrices: Sequence[np.ndarray]) -> list[Stage]:
    """Stages that apply one matrix to each axis of a tile.

    Matrices with repeated structure are first factored by `factor`.
    """
    sizes = [matrix.shape[1] for matrix in matrices]
    stages = []
    for axis, matrix in enumerate(matrices):
        outer = int(np.prod(sizes[:axis]))
        inner = int(np.prod(sizes[axis + 1 :]))
        for part in factor(matrix):
            stages.append(Stage(part, outer, inner))
        sizes[axis] = matrix.shape[0]
    return stages


def factor(matrix: np.ndarray) -> list[np.ndarray]:
    """Factors of `matrix`: last times ... times first is `matrix`.

    ```python
    first, last = factor(np.array([[1, 2], [1, -2]]))  # sums and differences
    ```

    Some pairs of rows have entries that agree up to sign, such as the rows of
    the points a and -a of a Winograd transform, or of the frequencies u and
    N/2 - u of a Fourier transform. They are the sum and the difference of their
    common part and their opposite part, which halves the multiplications. The
    same holds for columns. Repeated, this finds the butterflies of the fast
    Fourier transform.
    """
    best = [matrix]
    for of_columns in (False, True):
        split = _split_pairs(matrix.T if of_columns else matrix)
        if split is None:
            continue
        butterfly, remainder = split
        parts = (
            [butterfly.T, *factor(remainder.T)]
            if of_columns
            else [*factor(remainder), butterfly]
        )
        if _cost(parts) < _cost(best):
            best = parts
    return best


def _cost(parts: Sequence[np.ndarray]) -> float:
    """Multiplications, and the cost of loading and storing each value."""
    return float(
        sum(int(np.count_nonzero(part)) + 2 * len(part) for part in parts)
    )


def _split_pairs(m: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """`(butterfly, rest)` with `m = butterfly @ rest`; None without pairs."""
    magnitude = np.abs(m)
    scale = max(float(magnitude.max()), 1e-300)
    butterfly, remainder = np.eye(len(m)), m.copy()
    free = set(range(len(m)))
    has_pairs = False
    for i in range(len(m)):
        for j in range(i + 1, len(m)):
            if i not in free or j not in free:
                continue
            if np.abs(magnitude[i] - magnitude[j]).max() > 1e-12 * scale:
                continue
            equal = np.abs(m[i] - m[j]) <= 1e-12 * scale
            used = magnitude[i] > 1e-12 * scale
            if not (equal & used).any() or not (~equal & used).any():
                continue
            remainder[i] = np.where(equal, m[i], 0)
            remainder[j] = np.where(equal, 0, m[i])
            butterfly[i, j], butterfly[j, i], butterfly[j, j] = 1, 1, -1
            free -= {i, j}
            has_pairs = True
    return (butterfly, remainder) if has_pairs else None


@dataclasses.dataclass(frozen=True)
class Transforms:
    """`B`, `G` and `A` of a bilinear algorithm, for tiles of some size.

    Attributes:
        image: `B`, from a tile of the input to its spectrum's points.
        kernel: `G`, from a kernel to its spectrum's points.
        maps: `A`, from products to a tile of the feature maps.
    """

    image: Program
    kernel: Program
    maps: Program

    @property
    def points(self) -> int:
        """Number of products of one channel and one filter in each tile."""
        return self.image.outputs

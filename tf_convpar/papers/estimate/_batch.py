"""The largest mini-batch, and the best one: paper 2's procedure.

Zou et al. (2017) choose a mini-batch together with the algorithms of its
convolutions. For each candidate they find the memory that is left beside
feature maps and parameters, and within that the algorithms that take the least
time. Then they take the mini-batch that trains fastest. The procedure and its
integer program are theirs, as far as the abstract, the claims of a related
patent (US 11,144,828) and citations tell. The text of the paper was not at
hand, and the formulas here are ours.

For passes `k` with algorithms `l` that take `T_kl` seconds and a workspace of
`M_kl` bytes, and binary `x_kl` (pass `k` uses algorithm `l`):

    minimise    sum_kl x_kl T_kl
    subject to  sum_l x_kl = 1                for each k
    and either  sum_kl x_kl M_kl <= budget    each pass has a workspace
    or          max_kl x_kl M_kl <= budget    all passes share one

The first form is the paper's, a multiple-choice knapsack. This package needs
the second: its passes run one after the other and use the same workspace again.
In that form every `x_kl` with `M_kl > budget` is 0, and no other constraint
binds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np

from tf_convpar._compat.keras import layers_of
from tf_convpar.papers.estimate.memory import Step
from tf_convpar.papers.estimate.memory import check_batch

# The scale of the objective: the solver HiGHS stops 1e-6 from the optimum.
_SCALE = 1e4
# The largest batch that is searched for.
_MOST = 1 << 20
# The candidates of `best_batch`, by default.
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclasses.dataclass(frozen=True)
class Option:
    """One algorithm for one pass.

    Attributes:
        name: Name of the algorithm, such as `"winograd:4"`.
        time_s: Seconds of the pass.
        workspace_bytes: Bytes that it needs beside arguments and result.
    """

    name: str
    time_s: float
    workspace_bytes: int


@dataclasses.dataclass(frozen=True)
class BatchRow:
    """Memory and time of a training step with a batch.

    Attributes:
        batch: Number of images.
        memory_bytes: Memory at the peak, without workspaces.
        left_bytes: Memory that is left for workspaces; negative where the
            batch does not fit.
        step_s: Seconds of the whole step where that was measured, else of the
            convolutions that have a choice; None where the batch does not
            fit.
        choices: For each layer, by name, the algorithm of each pass that has a
            choice.
        workspace_bytes: Workspace of those algorithms: the largest where passes
            share it, else the sum.
    """

    batch: int
    memory_bytes: int
    left_bytes: int
    step_s: float | None
    choices: Mapping[str, Mapping[str, str]]
    workspace_bytes: int

    @property
    def image_s(self) -> float | None:
        """Seconds for one image; None where the batch does not fit."""
        return None if self.step_s is None else self.step_s / self.batch

    def to_dict(self) -> dict[str, Any]:
        """The row as plain data, for JSON."""
        return {**dataclasses.asdict(self), "image_s": self.image_s}


def choose_algorithms(
    candidates: Sequence[Sequence[Option]],
    budget_bytes: int,
    shared: bool = True,
) -> list[Option]:
    """One option for each pass, which take the least time within a budget.

    ```python
    direct = Option("direct", 2e-3, 0)
    fft = Option("fft:10", 1e-3, 40 << 20)
    choose_algorithms([[direct, fft], [direct, fft]], 64 << 20)  # fft twice
    choose_algorithms(  # fft and direct
        [[direct, fft], [direct, fft]], 64 << 20, shared=False
    )
    ```

    Args:
        candidates: The options of each pass.
        budget_bytes: Memory for workspaces.
        shared: Whether all passes use one workspace, so that the largest
            counts. Otherwise their sum counts, as in the paper.

    Returns:
        One option for each pass, in the order of `candidates`.

    Raises:
        ValueError: Not even the smallest workspaces fit.
        RuntimeError: The solver gave up.
    """
    _check(candidates, budget_bytes, shared)
    if not candidates:
        return []
    from scipy import optimize

    passes = [k for k, options in enumerate(candidates) for _ in options]
    options = [option for each in candidates for option in each]
    times = np.array([option.time_s for option in options])
    sizes = np.array([option.workspace_bytes for option in options], float)
    one_each = np.zeros((len(candidates), len(options)))
    one_each[passes, range(len(options))] = 1
    rules = [optimize.LinearConstraint(one_each, 1, 1)]
    if shared:
        allowed = (sizes <= budget_bytes).astype(float)
    else:
        allowed = np.ones(len(options))
        unit = max(budget_bytes, 1)
        rules.append(
            optimize.LinearConstraint(
                sizes[None] / unit, -np.inf, budget_bytes / unit
            )
        )
    scale = _SCALE / (times.max() or 1.0)
    while True:
        solution = optimize.milp(
            times * scale,
            integrality=np.ones(len(options)),
            bounds=optimize.Bounds(0, allowed),
            constraints=rules,
            options={"mip_rel_gap": 0},
        )
        if solution.x is None:
            raise RuntimeError(
                "Expected scipy.optimize.milp to choose among "
                f"{len(options)} algorithms. Received: {solution.message}"
            )
        taken = [i for i, x in enumerate(solution.x) if x > 0.5]
        total = sum(options[i].workspace_bytes for i in taken)
        if shared or total <= budget_bytes:
            return [options[i] for i in taken]
        # This is within the solver's tolerance, but not within the budget.
        row = np.zeros((1, len(options)))
        row[0, taken] = 1
        rules.append(
            optimize.LinearConstraint(row, -np.inf, len(candidates) - 1)
        )


def _check(
    candidates: Sequence[Sequence[Option]], budget: int, shared: bool
) -> None:
    for k, options in enumerate(candidates):
        if not options:
            raise ValueError(
                "Expected at least one algorithm for each pass. Received none "
                f"for pass {k}."
            )
        for option in options:
            good = np.isfinite(option.time_s) and option.time_s >= 0
            if not good or option.workspace_bytes < 0:
                raise ValueError(
                    "Expected times and workspaces that are finite and not "
                    f"negative. Received for pass {k}: {option}."
                )
    least = [
        min(option.workspace_bytes for option in options)
        for options in candidates
    ]
    needed = max(least, default=0) if shared else sum(least)
    if needed > budget:
        raise ValueError(
            f"Expected a budget of at least {needed} bytes, of the smallest "
            f"workspaces. Received: {budget}."
        )


def largest_batch(
    step: Step, memory_bytes: int, algorithm: str | None = None
) -> int:
    """The most images whose training step fits into memory.

    ```python
    step = Step(keras.applications.VGG16(weights=None), "adam")
    largest_batch(step, memory_bytes=8 << 30)
    ```

    It is found by bisection: memory only grows with the batch.

    Args:
        step: The training step of a model.
        memory_bytes: Memory that the step may take.
        algorithm: Name of the algorithm of all convolutions, see
            `Step.workspaces`; but not `"auto"`, which would measure each batch
            of the search. `best_batch` measures, for a few batches.

    Returns:
        Number of images; at most about a million.

    Raises:
        ValueError: Not even one image fits, and the message says what one would
            take; or an algorithm is `"auto"`.
    """
    _check_memory(memory_bytes)
    choosing = [
        layer.name
        for layer in layers_of(step.model)
        if (algorithm or getattr(layer, "algorithm", None)) == "auto"
    ]
    if choosing:
        raise ValueError(
            "Expected algorithms that are known without measuring each batch. "
            f"Received: 'auto' for layer '{choosing[0]}'. Ask for one by name "
            "here, or for the best batch among a few."
        )

    def size(batch: int) -> int:
        workspaces = step.workspaces(batch, algorithm).values()
        return step.peak_bytes(batch) + max(workspaces, default=0)

    if size(1) > memory_bytes:
        raise ValueError(
            f"Expected memory of at least {size(1)} bytes, for a batch of one "
            f"image. Received: {memory_bytes}."
        )
    fits, beyond = 1, 2
    while beyond <= _MOST and size(beyond) <= memory_bytes:
        fits, beyond = beyond, 2 * beyond
    if beyond > _MOST:
        return fits
    while beyond - fits > 1:
        middle = (fits + beyond) // 2
        if size(middle) <= memory_bytes:
            fits = middle
        else:
            beyond = middle
    return fits


def best_batch(
    step: Step,
    memory_bytes: int,
    batches: Sequence[int] = BATCHES,
    shared: bool = True,
    direct_step_s: Callable[[int], float] | None = None,
) -> list[BatchRow]:
    """Batches ordered by the seconds for an image, with algorithms that fit.

    ```python
    rows = best_batch(Step(model), 8 << 30, batches=(16, 32, 64))
    rows[0].batch, rows[0].choices["conv2d"]["forward"]  # 32, "winograd:4"
    ```

    The algorithms that each pass may have are those that `algorithm="auto"`
    measures, on this machine and only once; see `convpar algorithms`. Time says
    what an image costs, not what it teaches: how many epochs a batch takes to
    learn as much is another matter.

    Args:
        step: The training step of a model. The algorithms of its layers do not
            count.
        memory_bytes: Memory that the step may take.
        batches: Numbers of images to compare.
        shared: Whether all passes use one workspace; see `choose_algorithms`.
        direct_step_s: Takes a batch and returns the measured seconds of a whole
            step with TensorFlow's own convolutions; what the choice saves is
            subtracted. None compares by the convolutions with a choice alone.

    Returns:
        A row for each batch, the best first. Batches that do not fit are last.

    Raises:
        ValueError: No batch fits, and the message says what the smallest would
            take.
    """
    _check_memory(memory_bytes)
    rows = [
        _row(step, batch, memory_bytes, shared, direct_step_s)
        for batch in sorted({check_batch(batch) for batch in batches})
    ]
    if all(row.step_s is None for row in rows):
        needed = min((row.memory_bytes for row in rows), default=0)
        raise ValueError(
            f"Expected memory of at least {needed} bytes, for the smallest of "
            f"the batches {sorted(set(batches))}. Received: {memory_bytes}."
        )
    return sorted(
        rows, key=lambda row: np.inf if row.image_s is None else row.image_s
    )


def _row(
    step: Step,
    batch: int,
    memory_bytes: int,
    shared: bool,
    direct_step_s: Callable[[int], float] | None,
) -> BatchRow:
    peak = step.peak_bytes(batch)
    left = memory_bytes - peak
    if left < 0:
        return BatchRow(batch, peak, left, None, {}, 0)
    passes = _options(step.model, batch)
    chosen = choose_algorithms(list(passes.values()), left, shared)
    seconds = sum(option.time_s for option in chosen)
    if direct_step_s is not None:
        direct = sum(options[0].time_s for options in passes.values())
        seconds += max(0.0, direct_step_s(batch) - direct)
    choices: dict[str, dict[str, str]] = {}
    for (layer, which), option in zip(passes, chosen, strict=True):
        choices.setdefault(layer, {})[which] = option.name
    sizes = [option.workspace_bytes for option in chosen]
    workspace = max(sizes, default=0) if shared else sum(sizes)
    return BatchRow(batch, peak, left, seconds, choices, workspace)


def _options(model: Any, batch: int) -> dict[tuple[str, str], list[Option]]:
    """Options of each layer and pass with a choice; direct is the first."""
    from tf_convpar.algorithms import consult
    from tf_convpar.layers import convolutions

    options = {}
    for name, geometry in convolutions(model, batch):
        for which, record in consult(geometry).items():
            timed = [
                Option(c.name, c.time_ms / 1e3, c.workspace_bytes)
                for c in record.candidates
                if c.time_ms is not None and c.dropped is None
            ]
            # Where direct ran alone it has no time, and there is no choice.
            if len(timed) > 1:
                options[name, which] = timed
    return options


def _check_memory(memory_bytes: Any) -> None:
    if (
        isinstance(memory_bytes, bool)
        or not isinstance(memory_bytes, int)
        or memory_bytes < 1
    ):
        raise ValueError(
            "Expected `memory_bytes` to be a whole number of at least 1. "
            f"Received: {memory_bytes!r}."
        )

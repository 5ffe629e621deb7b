"""Chooses the ways of all convolutions for the shortest step, with a proof.

The choice is a mixed-integer program with two or three binary variables for
each convolution. Where all other calls run, and what is sent, follows from them
by linear constraints. The program minimises the function in `step`.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

from tf_convpar.planner._costs import Costs
from tf_convpar.planner._costs import Sent
from tf_convpar.planner.call_ways import CHIEF
from tf_convpar.planner.call_ways import FILTERS
from tf_convpar.planner.call_ways import SAMPLES
from tf_convpar.planner.call_ways import STATES
from tf_convpar.planner.linear_program import Linear
from tf_convpar.planner.linear_program import LinearProgram
from tf_convpar.planner.linear_program import total

_TIME_LIMIT_S = 30.0


def choose(costs: Costs, below: float | None = None) -> dict[str, str]:
    """The way of each convolution, by its layer's name.

    ```python
    choose(costs)  # {"conv1": "samples", "conv2": "filters", "conv3": "chief"}
    ```

    Args:
        costs: Costs of all ways, for one cut of the work.
        below: Seconds of a step that is known to be possible: only a shorter
            one is looked for. To prove that there is none takes far less time
            than to find the best.

    Raises:
        NoSolution: No step fits the memory of devices, or is shorter than
            `below`.
        RuntimeError: There is no proof within half a minute.
    """
    return _Program(costs).solve(below)


@dataclasses.dataclass
class _Needed:
    """A tensor that may have to move to where it is needed."""

    # Seconds of the move, by the tensor's state.
    sent: dict[str, Sent] = dataclasses.field(default_factory=dict)
    # Whether it moves, 1 or 0, by the tensor's state.
    moves: dict[str, Linear] = dataclasses.field(default_factory=dict)
    # Seconds of computing behind which its gradient travels, by call and way.
    hidden: dict[tuple[int, str], Linear] = dataclasses.field(
        default_factory=dict
    )


class _Program:
    """The mixed-integer program of one cut, and what its variables mean."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._program = LinearProgram()
        self._binaries: dict[str, dict[str, Linear]] = {}
        self._states: dict[int, dict[str, Linear]] = {}
        self._ways: list[dict[str, Linear]] = []
        self._needed: dict[Any, _Needed] = collections.defaultdict(_Needed)
        calls = costs.graph.calls
        for call, possible in zip(calls, costs.ways.of, strict=True):
            if call.splits:
                self._convolution(call.name, list(possible))
        for i in range(len(calls)):
            self._call(i)
        for x in costs.graph.outputs:
            for state, is_in in self._state(x).items():
                move = costs.ways.joined(x, state)
                if move is not None:
                    self._need(x, state, is_in, move)

    def solve(self, below: float | None) -> dict[str, str]:
        self._fits()
        seconds = self._seconds()
        self._program.minimise(seconds)
        if below is not None:
            self._program.at_least(-1 * seconds, -below)
        values = self._program.solve(_TIME_LIMIT_S)
        return {
            layer: max(ways, key=lambda name: ways[name].of(values))
            for layer, ways in self._binaries.items()
        }

    def _fits(self) -> None:
        """Demands that no device needs more memory than it has."""
        for d, device in enumerate(self._costs.calibration.devices):
            if device.memory_bytes is not None:
                needed = total(
                    cost.memory[d] / device.memory_bytes * way
                    for costs, ways in zip(
                        self._costs.of, self._ways, strict=True
                    )
                    for name, way in ways.items()
                    if (cost := costs[name]).memory
                )
                self._program.at_least(1 - needed, 0)

    def _state(self, tensor: int) -> dict[str, Linear]:
        """Whether a tensor is in each state; the model's inputs are whole."""
        return self._states.get(tensor) or {CHIEF: Linear({}, 1.0)}

    def _call(self, index: int) -> None:
        call = self._costs.graph.calls[index]
        possible = self._costs.ways.of[index]
        if call.splits:
            ways = self._binaries[call.name]
        elif call.leads_to:
            ways = self._leads(call.leads_to)
        else:
            ways = self._follows(call.inputs, possible)
        self._ways.append(ways)
        for y in call.outputs:
            self._states[y] = {
                state: total(
                    ways[name]
                    for name, way in possible.items()
                    if way.gives == state
                )
                for state in STATES
                if any(way.gives == state for way in possible.values())
            }
        for name, way in possible.items():
            for x, takes in zip(call.inputs, way.takes, strict=True):
                for state, is_in in self._state(x).items():
                    move = takes.get(state)
                    if move is None or not any(move.numbers().values()):
                        continue
                    both = is_in + ways[name] - 1
                    self._need(x, state, both, move, ways[name], index, name)

    def _convolution(self, layer: str, names: list[str]) -> None:
        """Adds a layer's variables: it goes one way, whoever calls it."""
        if layer in self._binaries:
            return
        program = self._program
        ways = {name: program.binary() for name in names}
        program.equal(total(ways.values()), 1)
        self._binaries[layer] = ways

    def _leads(self, layer: str) -> dict[str, Linear]:
        """The ways of a call that leads to a convolution, as `_step.follow`.

        It is on samples if the convolution is.
        """
        on_samples = self._binaries.get(layer, {}).get(SAMPLES, Linear())
        return {SAMPLES: on_samples, CHIEF: 1 - on_samples}

    def _follows(self, inputs: Any, possible: Any) -> dict[str, Linear]:
        """The ways of any other call, as `_step._follows`.

        Samples come first, then shards of channels.
        """
        program = self._program
        ways: dict[str, Linear] = {}
        nothing = Linear()
        states = [self._state(x) for x in inputs]
        if SAMPLES in possible:
            in_state = [s.get(SAMPLES, nothing) for s in states]
            if len(in_state) == 1:
                ways[SAMPLES] = in_state[0]
            else:
                ways[SAMPLES] = program.variable(upper=1)
                for is_in in in_state:
                    program.at_least(ways[SAMPLES] - is_in, 0)
                program.at_least(total(in_state) - ways[SAMPLES], 0)
        if FILTERS in possible:
            in_state = [s.get(FILTERS, nothing) for s in states]
            if len(in_state) == 1:
                ways[FILTERS] = in_state[0]
            else:
                ways[FILTERS] = program.variable(upper=1)
                for is_in in in_state:
                    program.at_least(is_in - ways[FILTERS], 0)
                program.at_least(
                    ways[FILTERS] - total(in_state) + (len(in_state) - 1), 0
                )
        ways[CHIEF] = 1 - total(ways.values())
        return ways

    def _need(
        self,
        tensor: int,
        state: str,
        is_needed: Linear,
        move: Any,
        way: Linear | None = None,
        index: int | None = None,
        name: str = "",
    ) -> None:
        """Notes that a tensor in `state` moves if `is_needed` is 1."""
        needed = self._needed[tensor, move.wanted, move.width]
        if state not in needed.sent:
            needed.sent[state] = self._costs.sent(move)
            needed.moves[state] = self._program.variable(upper=1)
        self._program.at_least(needed.moves[state] - is_needed, 0)
        if way is not None and index is not None:
            hides = self._costs.of[index][name].hides
            if hides:
                needed.hidden[index, name] = hides * way

    def _seconds(self) -> Linear:
        """The seconds of the step."""
        parts = []
        for needed in self._needed.values():
            back = Linear()
            for state, sent in needed.sent.items():
                parts.append(sent.forward * needed.moves[state])
                back = back + sent.backward * needed.moves[state]
            if needed.hidden:
                left = self._program.variable()
                self._program.at_least(
                    left - back + total(needed.hidden.values()), 0
                )
                back = left
            parts.append(back)
        waited = [self._program.variable() for _ in range(2)]
        computed = [self._sum(Linear()) for _ in range(2)]
        travelled = [self._sum(Linear()) for _ in range(2)]
        for i, ways in enumerate(self._ways):
            costs = self._costs.of[i]
            for k, (compute, transfer) in enumerate(
                (("forward", "early"), ("backward", "late"))
            ):
                transfer_s = total(
                    getattr(costs[name], transfer) * way
                    for name, way in ways.items()
                    if getattr(costs[name], transfer)
                )
                if transfer_s.terms:
                    travelled[k] = self._sum(travelled[k] + transfer_s)
                    self._program.at_least(
                        waited[k] + computed[k] - travelled[k], 0
                    )
                busy = total(
                    max(getattr(costs[name], compute)) * way
                    for name, way in ways.items()
                )
                parts.append(busy)
                computed[k] = self._sum(computed[k] + busy)
            parts.extend(
                (costs[name].sends + costs[name].returns) * way
                for name, way in ways.items()
            )
        return total([*parts, *waited])

    def _sum(self, value: Linear) -> Linear:
        """Adds a variable for a long sum, so that constraints stay short."""
        variable = self._program.variable()
        self._program.equal(variable - value, 0)
        return variable

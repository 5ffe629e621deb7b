"""How long a step takes in which each convolution goes one way.

Calls run one after the other, on all devices that share one, and what they
need is sent before:

    step  =  sum over calls of (sent + max over devices of computed), forward
          +  the same backward, where the gradient of what was sent returns
          +  what is left of transfers that hide behind computing.

Three kinds hide. Kernels that travel to samples are there from the start of
the step: before call `k` those of all calls up to `k` must have arrived, while
the calls before it computed; the rest is waited for. Their gradients return
until the step ends, in the same manner. And the gradient of a convolution's
input travels while that of its kernel is computed.

`_choose` minimises this very function.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

from tf_convpar.placement import Move
from tf_convpar.planner._costs import Costs
from tf_convpar.planner._graph import Call
from tf_convpar.planner._ways import CHIEF
from tf_convpar.planner._ways import FILTERS
from tf_convpar.planner._ways import SAMPLES
from tf_convpar.plans._prediction import BACKWARD
from tf_convpar.plans._prediction import FORWARD
from tf_convpar.plans._prediction import Prediction
from tf_convpar.plans._prediction import Span

# The way of each convolution, by its layer's name.
Choice = Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class Sending:
    """A tensor that is made to lie elsewhere, once, for all who need it so.

    Attributes:
        tensor: Its number.
        move: What moves.
        calls: Who needs it.
    """

    tensor: int
    move: Move
    calls: list[int]


def follow(costs: Costs, choice: Choice) -> tuple[list[str], list[str]]:
    """The way of each call, and the state of each tensor."""
    graph = costs.graph
    states = [CHIEF] * len(graph.tensors)
    names = []
    for i, call in enumerate(graph.calls):
        ways = costs.ways.of[i]
        name = (
            choice[call.name] if call.splits else _follows(ways, call, states)
        )
        names.append(name)
        for y in call.outputs:
            states[y] = ways[name].gives
    return names, states


def _follows(ways: Mapping[str, Any], call: Call, states: list[str]) -> str:
    """The way of a call that is no convolution, as execution has it."""
    given = [states[x] for x in call.inputs]
    if SAMPLES in given:
        return SAMPLES if SAMPLES in ways else CHIEF
    if FILTERS in ways and set(given) == {FILTERS}:
        return FILTERS
    return CHIEF


def sendings(
    costs: Costs, names: list[str], states: list[str]
) -> list[Sending]:
    """What moves between calls, in their order."""
    found: dict[Any, Sending] = {}
    for i, call in enumerate(costs.graph.calls):
        way = costs.ways.of[i][names[i]]
        for x, takes in zip(call.inputs, way.takes, strict=True):
            move = takes[states[x]]
            if move is not None and any(move.numbers().values()):
                key = x, move.wanted, move.width
                found.setdefault(key, Sending(x, move, [])).calls.append(i)
    for x in costs.graph.outputs:
        move = costs.ways.joined(x, states[x])
        if move is not None:
            key = x, move.wanted, move.width
            found.setdefault(key, Sending(x, move, []))
    return list(found.values())


def step_s(costs: Costs, choice: Choice) -> float:
    """Seconds of a step."""
    return predict(costs, choice).step_s


def predict(costs: Costs, choice: Choice) -> Prediction:
    """The step, with who is busy when."""
    return _Clock(costs, choice).run()


class _Clock:
    """Goes through a step, and notes who is busy."""

    def __init__(self, costs: Costs, choice: Choice) -> None:
        self._costs = costs
        self._names, states = follow(costs, choice)
        self._sendings = sendings(costs, self._names, states)
        self._now = 0.0
        self._spans: list[Span] = []
        self._first: dict[int, list[Sending]] = collections.defaultdict(list)
        self._last: dict[int, list[Sending]] = collections.defaultdict(list)
        for sending in self._sendings:
            calls = sending.calls or [len(costs.graph.calls)]
            self._first[calls[0]].append(sending)
            # Gradients of all who need it are added, then they return.
            self._last[calls[0]].append(sending)

    def run(self) -> Prediction:
        """The prediction."""
        calls = self._costs.graph.calls
        computed = early = 0.0
        for i, call in enumerate(calls):
            cost = self._costs.of[i][self._names[i]]
            for sending in self._first[i]:
                self._send(sending.move, call, FORWARD)
            early += cost.early
            waited = max(0.0, early - computed)
            self._wait(waited, call, FORWARD)
            computed += waited  # Once waited for, it is there.
            self._wait(cost.sends, call, FORWARD)
            self._compute(cost.forward, call, FORWARD)
            computed += max(cost.forward)
        for sending in self._first[len(calls)]:
            self._send(sending.move, None, FORWARD)
            self._send(sending.move, None, BACKWARD)
        late = 0.0
        for i in reversed(range(len(calls))):
            call, cost = calls[i], self._costs.of[i][self._names[i]]
            # Gradients wait for the wire; computing goes on.
            late = max(0.0, late - max(cost.backward))
            self._compute(cost.backward, call, BACKWARD)
            late += cost.late
            self._wait(cost.returns, call, BACKWARD)
            for sending in self._last[i]:
                hidden = sum(
                    self._costs.of[k][self._names[k]].hides
                    for k in sending.calls
                )
                self._send(sending.move, call, BACKWARD, hidden)
        self._wait(late, None, BACKWARD)
        return Prediction(self._now, tuple(self._spans), self._sent())

    def _compute(
        self, seconds: tuple[float, ...], call: Call, phase: str
    ) -> None:
        what = "compute" if call.splits else "rest"
        for device, own in zip(
            self._costs.calibration.devices, seconds, strict=True
        ):
            self._note(device.name, what, call.name, phase, own)
        self._now += max(seconds)

    def _wait(self, seconds: float, call: Call | None, phase: str) -> None:
        self._now += seconds

    def _send(
        self, move: Move, call: Call | None, phase: str, hidden: float = 0.0
    ) -> None:
        sent = self._costs.sent(move)
        seconds = sent.forward if phase == FORWARD else sent.backward
        name = call.name if call is not None else ""
        seconds = max(0.0, seconds - hidden)
        for (a, b), n in move.numbers().items():
            if n and seconds:
                where = (a, b) if phase == FORWARD else (b, a)
                self._note(" -> ".join(where), "send", name, phase, seconds)
        self._now += seconds

    def _note(
        self, where: str, what: str, layer: str, phase: str, seconds: float
    ) -> None:
        if seconds > 0:
            self._spans.append(
                Span(where, what, layer, phase, self._now, self._now + seconds)
            )

    def _sent(self) -> dict[str, int]:
        found: collections.Counter[str] = collections.Counter()
        for move in self._moves():
            for (a, b), n in move.links().items():
                if n:
                    found[f"{a} -> {b}"] += n
        return dict(found)

    def _moves(self) -> Iterator[Move]:
        for sending in self._sendings:
            yield sending.move
        for i, name in enumerate(self._names):
            way = self._costs.ways.of[i][name]
            yield from way.during
            yield from way.ahead

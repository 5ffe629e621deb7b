"""Predicts a step, given the way of each convolution.

Calls run one after the other, each on all devices that share it. What a call
needs is sent before it runs:

    step  =  sum over calls of (sent + max over devices of computed), forward
          +  the same backward, where the gradient of what was sent returns
          +  what is left of transfers that hide behind computing.

Three kinds of transfers hide behind computing:

- Kernels that travel to samples can leave when the step starts. Before call
  `k` those of all calls up to `k` must have arrived. They travel while the
  calls before `k` compute, and the rest is waited for.
- The gradients of these kernels return in the same manner, until the step
  ends.
- The gradient of a convolution's input travels while that of its kernel is
  computed.

`_solver.choose` minimises this function.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from tf_convpar.placement import Move
from tf_convpar.planner._costs import Costs
from tf_convpar.planner.call_ways import CHIEF
from tf_convpar.planner.call_ways import FILTERS
from tf_convpar.planner.call_ways import SAMPLES
from tf_convpar.plans import BACKWARD
from tf_convpar.plans import FORWARD
from tf_convpar.plans import PredictedSpan
from tf_convpar.plans import Prediction
from tf_convpar.sharding import Call

# The way of each convolution, by its layer's name.
Choice = Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class Sending:
    """A tensor that moves once, for all calls that need it in one place.

    Attributes:
        tensor: Number of the tensor.
        move: Where it lies, and where it is needed.
        calls: Indices of the calls that need it; empty if only the model's
            outputs do.
    """

    tensor: int
    move: Move
    calls: list[int]


def follow(costs: Costs, choice: Choice) -> tuple[list[str], list[str]]:
    """The way of each call and the state of each tensor, for a choice."""
    graph = costs.graph
    states = [CHIEF] * len(graph.tensors)
    names = []
    for i, call in enumerate(graph.calls):
        ways = costs.ways.of[i]
        if call.splits:
            name = choice[call.name]
        elif call.leads_to:
            goes = choice.get(call.leads_to)
            name = SAMPLES if goes == SAMPLES else CHIEF
        else:
            name = _follows(ways, call, states)
        names.append(name)
        for y in call.outputs:
            states[y] = ways[name].gives
    return names, states


def _follows(ways: Mapping[str, Any], call: Call, states: list[str]) -> str:
    """The way that execution takes for a call that is no convolution."""
    input_states = [states[x] for x in call.inputs]
    if SAMPLES in input_states:
        return SAMPLES if SAMPLES in ways else CHIEF
    if FILTERS in ways and set(input_states) == {FILTERS}:
        return FILTERS
    return CHIEF


def sendings(
    costs: Costs, names: list[str], states: list[str]
) -> list[Sending]:
    """The tensors that move between calls, in the order of the calls."""
    by_key: dict[Any, Sending] = {}
    for i, call in enumerate(costs.graph.calls):
        way = costs.ways.of[i][names[i]]
        for x, takes in zip(call.inputs, way.takes, strict=True):
            move = takes[states[x]]
            if move is not None and any(move.numbers().values()):
                key = x, move.wanted, move.width
                by_key.setdefault(key, Sending(x, move, [])).calls.append(i)
    for x in costs.graph.outputs:
        move = costs.ways.joined(x, states[x])
        if move is not None:
            key = x, move.wanted, move.width
            by_key.setdefault(key, Sending(x, move, []))
    return list(by_key.values())


def memory_bytes(costs: Costs, choice: Choice) -> list[float]:
    """Bytes that each device needs for a step."""
    names, _ = follow(costs, choice)
    used = [
        ways[name].memory for ways, name in zip(costs.of, names, strict=True)
    ]
    return [
        sum(part[d] for part in used if part)
        for d in range(len(costs.calibration.devices))
    ]


def step_s(costs: Costs, choice: Choice) -> float:
    """Predicted seconds of a step."""
    return predict(costs, choice).step_s


def predict(costs: Costs, choice: Choice) -> Prediction:
    """Predicts a step, and when each device and each link is busy."""
    return _Clock(costs, choice).run()


@dataclasses.dataclass(frozen=True)
class _Late:
    """Gradients of a call's kernels, which travel when there is time.

    Attributes:
        index: Index of the call.
        seconds: Seconds for which they still have to travel.
    """

    index: int
    seconds: float


class _Clock:
    """Goes through a step, and notes when devices and links are busy."""

    def __init__(self, costs: Costs, choice: Choice) -> None:
        self._costs = costs
        self._names, states = follow(costs, choice)
        self._sendings = sendings(costs, self._names, states)
        self._now = 0.0
        self._spans: list[PredictedSpan] = []
        # Index in `_spans` of the last span of each device and link.
        self._recent: dict[str, int] = {}
        # Intervals (start, end) that are free for kernels to travel.
        self._free: collections.deque[tuple[float, float]] = collections.deque()
        # Gradients of kernels that have not yet arrived.
        self._late: collections.deque[_Late] = collections.deque()
        # By the first call of each: it waits forward for what is sent, and
        # backward the gradients of all calls are added before they return.
        self._first: dict[int, list[Sending]] = collections.defaultdict(list)
        for sending in self._sendings:
            calls = sending.calls or [len(costs.graph.calls)]
            self._first[calls[0]].append(sending)

    def run(self) -> Prediction:
        """Goes through the step, and returns the prediction."""
        calls = self._costs.graph.calls
        computed = early = 0.0
        for i, call in enumerate(calls):
            cost = self._costs.of[i][self._names[i]]
            for sending in self._first[i]:
                self._send(sending.move, call, FORWARD)
            early += cost.early
            waited = max(0.0, early - computed)
            self._free.append((self._now, self._now + waited))
            self._now += waited
            self._early(i, cost.early)
            computed += waited  # Once waited for, it is there.
            self._during(i, cost.sends, FORWARD)
            self._free.append((self._now, self._now + max(cost.forward)))
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
            self._arrive(self._now + max(cost.backward))
            self._compute(cost.backward, call, BACKWARD)
            late += cost.late
            self._late.append(_Late(i, cost.late))
            self._during(i, cost.returns, BACKWARD)
            for sending in self._first[i]:
                hidden = sum(
                    self._costs.of[k][self._names[k]].hides
                    for k in sending.calls
                )
                self._send(sending.move, call, BACKWARD, hidden)
        self._arrive(self._now + late)
        self._now += late
        return Prediction(self._now, tuple(self._spans), self._sent())

    def _compute(
        self, seconds: tuple[float, ...], call: Call, phase: str
    ) -> None:
        what = "compute" if call.splits else "rest"
        for device, device_s in zip(
            self._costs.calibration.devices, seconds, strict=True
        ):
            self._note(device.name, what, call.name, phase, device_s)
        self._now += max(seconds)

    def _early(self, index: int, seconds: float) -> None:
        """Notes when a call's kernels travelled, in the free intervals."""
        moves = self._costs.ways.of[index][self._names[index]].ahead
        while seconds > 0 and self._free:
            start, end = self._free.popleft()
            used = min(seconds, end - start)
            if start + used < end:
                self._free.appendleft((start + used, end))
            self._travel(index, moves, FORWARD, start, used)
            seconds -= used

    def _arrive(self, end: float) -> None:
        """Notes when gradients of kernels travel, from now until `end`."""
        now = self._now
        while self._late and now < end:
            late = self._late.popleft()
            used = min(late.seconds, end - now)
            moves = self._costs.ways.of[late.index][self._names[late.index]]
            self._travel(late.index, moves.ahead, BACKWARD, now, used)
            now += used
            if used < late.seconds:
                self._late.appendleft(
                    dataclasses.replace(late, seconds=late.seconds - used)
                )

    def _during(self, index: int, seconds: float, phase: str) -> None:
        moves = self._costs.ways.of[index][self._names[index]].during
        self._travel(index, moves, phase, self._now, seconds)
        self._now += seconds

    def _travel(
        self,
        index: int,
        moves: Sequence[Move],
        phase: str,
        start: float,
        seconds: float,
    ) -> None:
        """Notes that the links of these moves are busy."""
        links = {
            pair if phase == FORWARD else pair[::-1]
            for move in moves
            if phase == FORWARD or move.returns
            for pair, n in move.numbers().items()
            if n
        }
        name = self._costs.graph.calls[index].name
        for where in sorted(links):
            self._note(" -> ".join(where), "send", name, phase, seconds, start)

    def _send(
        self, move: Move, call: Call | None, phase: str, hidden: float = 0.0
    ) -> None:
        sent = self._costs.sent(move)
        seconds = sent.forward if phase == FORWARD else sent.backward
        name = call.name if call is not None else ""
        hidden = min(seconds, hidden)
        for (a, b), n in move.numbers().items():
            if n and seconds:
                where = (a, b) if phase == FORWARD else (b, a)
                begin = self._now - hidden
                self._note(
                    " -> ".join(where), "send", name, phase, seconds, begin
                )
        self._now += seconds - hidden

    def _note(
        self,
        where: str,
        what: str,
        layer: str,
        phase: str,
        seconds: float,
        start: float | None = None,
    ) -> None:
        if start is None:
            start = self._now
        if seconds <= 0:
            return
        span = PredictedSpan(where, what, layer, phase, start, start + seconds)
        recent = self._recent.get(where)
        if recent is not None:
            before = self._spans[recent]
            goes_on = dataclasses.replace(
                span, start=before.start, end=before.end
            )
            if goes_on == before and abs(before.end - start) < 1e-12:
                self._spans[recent] = dataclasses.replace(before, end=span.end)
                return
        self._recent[where] = len(self._spans)
        self._spans.append(span)

    def _sent(self) -> dict[str, int]:
        totals: collections.Counter[str] = collections.Counter()
        for move in self._moves():
            for (a, b), n in move.links().items():
                if n:
                    totals[f"{a} -> {b}"] += n
        return dict(totals)

    def _moves(self) -> Iterator[Move]:
        for sending in self._sendings:
            yield sending.move
        for i, name in enumerate(self._names):
            way = self._costs.ways.of[i][name]
            yield from way.during
            yield from way.ahead

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
from collections.abc import Sequence
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


@dataclasses.dataclass(frozen=True)
class _Late:
    """Gradients of kernels that travel when there is time.

    Attributes:
        index: Of the call.
        seconds: For which they are still on their way.
    """

    index: int
    seconds: float


class _Clock:
    """Goes through a step, and notes who is busy."""

    def __init__(self, costs: Costs, choice: Choice) -> None:
        self._costs = costs
        self._names, states = follow(costs, choice)
        self._sendings = sendings(costs, self._names, states)
        self._now = 0.0
        self._spans: list[Span] = []
        # The last of each device and link, by its number.
        self._recent: dict[str, int] = {}
        # When kernels may travel that have not yet begun to.
        self._free: collections.deque[tuple[float, float]] = collections.deque()
        # Gradients of kernels that have not yet arrived.
        self._late: collections.deque[_Late] = collections.deque()
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
            for sending in self._last[i]:
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
        for device, own in zip(
            self._costs.calibration.devices, seconds, strict=True
        ):
            self._note(device.name, what, call.name, phase, own)
        self._now += max(seconds)

    def _early(self, index: int, seconds: float) -> None:
        """Notes when kernels travelled: in turn, while others computed."""
        moves = self._costs.ways.of[index][self._names[index]].ahead
        while seconds > 0 and self._free:
            start, end = self._free.popleft()
            used = min(seconds, end - start)
            if start + used < end:
                self._free.appendleft((start + used, end))
            self._travel(index, moves, FORWARD, start, used)
            seconds -= used

    def _arrive(self, end: float) -> None:
        """Notes when gradients of kernels travel, until then."""
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
        """Notes that these are on their links."""
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
        span = Span(where, what, layer, phase, start, start + seconds)
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

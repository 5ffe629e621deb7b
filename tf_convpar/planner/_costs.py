"""Costs of each way of each call: the constants of the plan's program.

Every number is for one cut of the work (`Cut`). What is left to decide is the
way of each convolution.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from tf_convpar.placement import PACK_BYTES
from tf_convpar.placement import Move
from tf_convpar.planner import work_keys
from tf_convpar.planner._calibration import Calibration
from tf_convpar.planner._interfaces import Interfaces
from tf_convpar.planner._replica_times import WIDTH
from tf_convpar.planner._replica_times import weights_of
from tf_convpar.planner.call_ways import FILTERS
from tf_convpar.planner.call_ways import SAMPLES
from tf_convpar.planner.call_ways import CallWays
from tf_convpar.planner.call_ways import Cut
from tf_convpar.planner.call_ways import has_filters
from tf_convpar.sharding import Call
from tf_convpar.sharding import Graph

# The kernel's gradient takes about half the time of a convolution's two
# gradients. It is computed last, while the input's gradient travels.
_KERNELS_PART = 0.5
# Devices that wait for one another at every layer never end at the same moment:
# steps of several devices took 3 to 10 % longer than the sum of their parts
# (`benchmarks/cluster`).
_WAITING = 0.05


@dataclasses.dataclass(frozen=True)
class Cost:
    """Costs of one way of a call; times are seconds.

    Attributes:
        forward: Time that each device computes in the forward pass, with the
            delay by weights that travel meanwhile.
        backward: Time that each device computes in the backward pass, with
            the same delay and the update of weights.
        hides: Time of computing behind which the gradient of a convolution's
            input can travel; 0 for other calls.
        sends: Time of transfers in the forward pass while no device computes.
        returns: Time of transfers in the backward pass while no device
            computes.
        early: Time on the busiest interface of weights that may travel before
            the forward pass needs them.
        late: Time on the busiest interface of gradients that may travel from
            the backward pass until the step ends.
        memory: Bytes on each device: weights, slots and gradients where they
            are stored; copies of weights that are gathered; and feature maps,
            which are kept for the backward pass.
    """

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    hides: float = 0.0
    sends: float = 0.0
    returns: float = 0.0
    early: float = 0.0
    late: float = 0.0
    memory: tuple[float, ...] = ()


@dataclasses.dataclass(frozen=True)
class Sent:
    """Times of the move of a tensor.

    Attributes:
        forward: Seconds of the tensor in the forward pass.
        backward: Seconds of its gradient, which returns in the backward pass.
    """

    forward: float
    backward: float


class Costs:
    """The costs of all ways of all calls.

    ```python
    costs = Costs(graph, calibration, cut)
    costs.of[3]["samples"].forward
    ```

    Attributes:
        graph: Graph of the model.
        calibration: Measurements of its layers and of the devices.
        cut: How the work is cut.
        ways: Ways of each call.
        of: For each call, the cost of each of its ways, by the way's name.
    """

    def __init__(
        self, graph: Graph, calibration: Calibration, cut: Cut
    ) -> None:
        self.graph = graph
        self.calibration = calibration
        self.cut = cut
        self.ways = CallWays(graph, cut)
        self._interfaces = Interfaces(calibration.links)
        # Where a layer is called first: its weights are stored and updated
        # once, however often it is called.
        indices = reversed(list(enumerate(graph.calls)))
        self._first_calls = {id(call.layer): i for i, call in indices}
        self.of = [
            {name: self._cost(i, call, name) for name in self.ways.of[i]}
            for i, call in enumerate(graph.calls)
        ]

    def sent(self, move: Move) -> Sent:
        """Seconds of a move while nothing else happens."""
        there, back = _both(move)
        seconds = self._interfaces.seconds
        return Sent(seconds(there), seconds(back))

    def _cost(self, index: int, call: Call, name: str) -> Cost:
        way = self.ways.of[index][name]
        cuts = (self.cut.shares, *self.cut.counts.values())
        several = any(sum(n > 0 for n in numbers) > 1 for numbers in cuts)
        wait = 1 + _WAITING * several
        forward, backward = (
            tuple(wait * s for s in self._computed(call, name, which))
            for which in ("forward", "backward")
        )
        if call.layer is None:
            return Cost(forward, backward)
        learns = call.before and call.splits
        hides = _KERNELS_PART * min((s for s in backward if s), default=0.0)
        during = [_both(move) for move in way.during]
        ahead = [_both(move) for move in way.ahead]
        messages = [_messages(move) for move in way.ahead]
        there, back = ([move[k] for move in ahead] for k in range(2))
        early, late = _added(there), _added(back)
        is_first = self._first_calls[id(call.layer)] == index
        weights = sum(weights_of([call])) if is_first else 0
        stored = way.stored or (1.0,) + (0.0,) * (len(forward) - 1)
        updates = [
            part * weights * device.update_s
            for part, device in zip(
                stored, self.calibration.devices, strict=True
            )
        ]
        return Cost(
            self._beside(forward, there, messages),
            self._beside(
                [a + b for a, b in zip(backward, updates, strict=True)],
                back,
                messages,
            ),
            hides=hides if learns else 0.0,
            sends=sum(self._interfaces.seconds(there) for there, _ in during),
            returns=sum(self._interfaces.seconds(back) for _, back in during),
            early=self._interfaces.busy(early),
            late=self._interfaces.busy(late),
            memory=self._memory(call, name, stored, weights),
        )

    def _memory(
        self, call: Call, name: str, stored: tuple[float, ...], weights: int
    ) -> tuple[float, ...]:
        tensors = self.graph.tensors
        maps = sum(
            math.prod(tensors[y].batch_shape(self.cut.batch)) * tensors[y].width
            for y in call.outputs
        )
        copies = 2 * WIDTH * weights
        parts = self._parts_of(call, name)
        return tuple(
            part * maps
            + WIDTH * (2 + self.calibration.slots) * stored_part * weights
            + (copies if name == SAMPLES and part else 0)
            for part, stored_part in zip(parts, stored, strict=True)
        )

    def _parts_of(self, call: Call, name: str) -> Sequence[float]:
        """Fraction of the call's feature maps that each device has."""
        if name == SAMPLES:
            return [n / self.cut.batch for n in self.cut.shares]
        if name == FILTERS:
            return self._parts(call)
        return [float(d == 0) for d in range(len(self.cut.shares))]

    def _computed(self, call: Call, name: str, which: str) -> tuple[float, ...]:
        cut, devices = self.cut, self.calibration.devices
        if call.layer is None:
            return (0.0,) * len(devices)
        key = work_keys.key(self.graph, call)
        works = [device.works[key] for device in devices]
        if name == SAMPLES:
            return tuple(
                work.at(which, n)
                for work, n in zip(works, cut.shares, strict=True)
            )
        if name == FILTERS:
            parts = self._parts(call)
            if has_filters(call):
                return tuple(
                    work.at(which, cut.batch, part)
                    for work, part in zip(works, parts, strict=True)
                )
            return tuple(
                work.at(which, cut.batch * part)
                for work, part in zip(works, parts, strict=True)
            )
        chief_s = works[0].at(which, cut.batch, on_shards=False)
        return (chief_s,) + (0.0,) * (len(devices) - 1)

    def _parts(self, call: Call) -> list[float]:
        """Fraction of the channels that each device works on."""
        # A layer whose output is on the chief has shards in its input only.
        layout = next(
            layout
            for tensor in (*call.outputs, *call.inputs)
            if (layout := self.ways.by_channels(tensor)) is not None
        )
        parts = dict.fromkeys(self.cut.devices, 0.0)
        for device, n in zip(layout.devices, layout.sizes, strict=True):
            parts[device] += n / sum(layout.sizes)
        return list(parts.values())

    def _beside(
        self,
        seconds: Iterable[float],
        moves: Sequence[Mapping[tuple[str, str], int]],
        messages: Sequence[float],
    ) -> tuple[float, ...]:
        """Time of computing, with the delay by what travels meanwhile.

        Args:
            seconds: Time of computing alone, on each device.
            moves: Bytes over each link, for each thing that travels.
            messages: Number of messages of each of these.
        """
        delayed = list(seconds)
        for bytes_, count in zip(moves, messages, strict=True):
            for pair, n in bytes_.items():
                for d, device in enumerate(self.calibration.devices):
                    if n and device.name in pair:
                        delayed[d] += (
                            device.byte_s * n + device.message_s * count
                        )
        return tuple(delayed)


def _both(
    move: Move,
) -> tuple[dict[tuple[str, str], int], dict[tuple[str, str], int]]:
    """Bytes of a move over each link, and of its gradient's return."""
    there = {k: move.width * n for k, n in move.numbers().items()}
    if not move.returns:
        return there, {}
    return there, {(b, a): n for (a, b), n in there.items()}


def _messages(move: Move) -> float:
    """Number of messages of a move ahead of time; weights travel in packs."""
    if not move.packed:
        return 1.0
    return move.width * math.prod(move.shape) / PACK_BYTES


def _added(
    parts: Iterable[Mapping[tuple[str, str], int]],
) -> dict[tuple[str, str], int]:
    totals: collections.Counter[tuple[str, str]] = collections.Counter()
    for part in parts:
        totals.update(part)
    return dict(totals)

"""DiLoCo against NumPy: rounds, fragments, wires, unequal replicas."""

import threading

import keras
import numpy as np
import pytest
import replica_cases
import tensorflow as tf
from cases import by_turns
from cases import slow
from replica_cases import DEVICES
from replica_cases import data
from replica_cases import network
from replica_cases import rounded

from tf_convpar import replicas
from tf_convpar.placement import BLOCK
from tf_convpar.replicas.data import Source
from tf_convpar.replicas.epochs import Epochs
from tf_convpar.replicas.local_steps import StepsRun
from tf_convpar.replicas.wire import wire_of

# As float32 has it, since rates travel so.
ETA, OUTER, MOMENTUM = float(np.float32(0.05)), float(np.float32(0.7)), 0.9
SIZE = 1000


def quadratic():
    # In float64, so that only what a wire rounds is rounded.
    return replica_cases.quadratic(SIZE, ETA, "float64")


class Recorded(Source):
    """Batches that are known to the test: of each replica, in order."""

    samples = None

    def __init__(self, sizes):
        self.sizes = sizes
        self.rngs = [np.random.default_rng(i) for i in range(len(sizes))]
        self.means = [[] for _ in sizes]

    def sample(self):
        return np.zeros((1, SIZE)), np.zeros((1, SIZE))

    def place(self, replicas, seed):
        for replica, size in zip(replicas, self.sizes, strict=True):
            replica.batch = size

    def batch(self, replica):
        i = replica.index
        x = self.rngs[i].normal(size=(self.sizes[i], SIZE))
        self.means[i].append(x.mean(axis=0))
        return tf.constant(x), tf.zeros_like(x)

    def example(self, replica):
        zeros = tf.zeros([self.sizes[replica.index], SIZE], tf.float64)
        return zeros, zeros


class Reference:
    """Algorithm 2 of Streaming DiLoCo; with one fragment, DiLoCo itself."""

    def __init__(self, count, fragments, wire):
        self.length = -(-SIZE // (fragments * BLOCK)) * BLOCK
        size = self.length * fragments
        self.wire, self.count = wire, count
        self.common = np.zeros(size)
        self.common[:SIZE] = 1
        self.own = np.repeat(self.common[None], count, axis=0)
        self.velocity = np.zeros(size)
        self.errors = np.zeros((count, size), "float32")
        self.error = np.zeros(size, "float32")

    def step(self, i, mean):
        own = self.own[i, :SIZE]
        self.own[i, :SIZE] = own - ETA * (own - mean)

    def send(self, fragment, samples):
        part = slice(fragment * self.length, (fragment + 1) * self.length)
        weights = (np.asarray(samples) / sum(samples)).astype("float32")
        total = np.zeros(self.length, "float32")
        for i in range(self.count):
            difference = self.common[part] - self.own[i, part]
            exact = difference.astype("float32") + self.errors[i, part]
            sent = rounded(exact, self.wire)
            self.errors[i, part] = exact - sent
            total += weights[i] * sent
        exact = total + self.error[part]
        mean = rounded(exact, self.wire)
        self.error[part] = exact - mean
        return part, mean

    def receive(self, part, mean, kept):
        velocity = MOMENTUM * self.velocity[part] - OUTER * mean
        self.velocity[part] = velocity
        self.common[part] += MOMENTUM * velocity - OUTER * mean
        own = self.own[:, part]
        self.own[:, part] = kept * own + (1 - kept) * self.common[part]


def run(steps, sizes=(2, 2, 2), **options):
    source = Recorded(sizes)
    method = replicas.DiLoCo(
        quadratic(), devices=DEVICES, shares=[1, 1, 1], **options
    )
    method._prepare(source, 2)
    made = [count for count, _ in method._steps(steps, source)]
    return method, source, made


def close(method, reference):
    np.testing.assert_allclose(
        method.centre.value().numpy(),
        reference.common[:SIZE],
        rtol=1e-6,
        atol=1e-6,
    )
    for own, replica in zip(reference.own, method.replicas, strict=True):
        np.testing.assert_allclose(
            replica.weights.numpy(), own[:SIZE], rtol=1e-6, atol=1e-6
        )


@pytest.mark.parametrize(
    "wire", ["float32", slow("bfloat16"), slow("int8"), "int4"]
)
def test_diloco(wire):
    method, source, made = run(12, (1, 2, 3), every=4, wire=wire)
    assert made == [4, 4, 4]
    reference = Reference(3, 1, wire)
    for first in range(0, 12, 4):
        for i in range(3):
            for mean in source.means[i][first : first + 4]:
                reference.step(i, mean)
        reference.receive(*reference.send(0, (1, 2, 3)), kept=0)
    close(method, reference)
    assert np.abs(reference.common[:SIZE] - 1).max() > 0.5


@pytest.mark.parametrize(
    ("delay", "wire"), by_turns([0, 1, 3], ["float32", "int4"])
)
def test_streaming_diloco(wire, delay):
    """Two epochs: the first ends while a fragment travels."""
    samples = (1, 2, 4)
    method, source, made = run(
        13, samples, every=6, fragments=2, delay=delay, kept=0.5, wire=wire
    )
    made += [count for count, _ in method._steps(11, source)]
    assert sum(made) == 24
    reference, sent, arrives = Reference(3, 2, wire), None, -1
    for step in range(1, 25):
        for i in range(3):
            reference.step(i, source.means[i][step - 1])
        if step == arrives:
            reference.receive(*sent, kept=0.5)
        if step % 3 == 0:
            fragment = (step // 3 - 1) % 2
            sent, arrives = reference.send(fragment, samples), step + delay
            if not delay:
                reference.receive(*sent, kept=0)
    close(method, reference)


def test_the_default_of_several_fragments_hides_them():
    method = replicas.DiLoCo(quadratic(), devices=DEVICES, every=6, fragments=2)
    assert (method.schedule.delay, method.kept) == (3, 0.5)
    assert replicas.DiLoCo(quadratic(), devices=DEVICES).schedule.delay == 0


def test_what_travels_does_so_while_replicas_learn():
    method, source, _ = run(2, every=4, fragments=2)
    order, both = [], threading.Event()
    travel, learn = method._rounds.travel, source.batch

    def slow(sent):
        order.append("travels")
        assert both.wait(20), "replicas wait for the exchange"
        travel(sent)

    def batch(replica):
        if order:
            both.set()
        return learn(replica)

    method._rounds.travel, source.batch = slow, batch
    list(method._steps(2, source))
    assert order == ["travels"]


def test_faster_replicas_make_more_steps():
    source = Recorded((2, 2, 2))
    method = replicas.DiLoCo(
        quadratic(),
        devices=DEVICES,
        shares=[4, 1, 1],
        unequal="steps",
        every=10,
    )
    method._prepare(source, 2)
    assert [r.batch for r in method.replicas] == [2, 2, 2]
    list(method._steps(10, source))
    assert [len(own) for own in source.means] == [20, 5, 5]
    reference = Reference(3, 1, "float32")
    for i in range(3):
        for mean in source.means[i]:
            reference.step(i, mean)
    reference.receive(*reference.send(0, (40, 10, 10)), kept=0)
    close(method, reference)
    report = method.report()
    assert [part.samples for part in report] == [40, 10, 10]
    shares = [part.share for part in report]
    np.testing.assert_allclose(shares, [4 / 6, 1 / 6, 1 / 6])


def test_the_first_step_says_how_fast_each_is(monkeypatch):
    """Nothing is timed, or traced, before."""
    monkeypatch.delattr("tf_convpar.replicas.sample_shares.balanced")
    x, y = data(192)
    options = {"devices": DEVICES, "shares": "auto", "unequal": "steps"}
    method = replicas.DiLoCo(network(), every=12, **options)
    steps = []
    taught = method._learn
    monkeypatch.setattr(
        method, "_learn", lambda n, *of: steps.append(n) or taught(n, *of)
    )
    method.fit(x, y, batch_size=8, epochs=1, steps_per_epoch=24, verbose=0)
    assert steps == [1, 11, 12]
    assert len(method.replicas) == len(DEVICES)
    assert sum(method.shares) == pytest.approx(1)
    paces = [member.pace for member in method._members.values()]
    by_pace = [(1 / pace) / sum(1 / p for p in paces) for pace in paces]
    np.testing.assert_allclose(method.shares, by_pace, rtol=1e-6)


def test_a_step_by_itself_hardly_counts_beside_those_of_a_round():
    method, _, _ = run(8, every=4)
    member = next(iter(method._members.values()))
    member.pace, member.paced_steps = None, 0
    for steps, pace, known in ((1, 10, 10), (49, 1, 1.18), (1, 2, 1.59)):
        member.note(StepsRun(steps, steps * pace, 0))
        assert member.pace == pytest.approx(known)


@pytest.mark.parametrize("wire", ["float32", "int8"])
def test_what_a_replica_does_by_itself_stays_when_another_is_lost(wire):
    method, source, _ = run(8, every=4, wire=wire)
    left = method.replicas[:2]
    boxes = [method._members[replica].mailbox for replica in left]
    source.sizes = source.sizes[:2]
    method._set_replicas(method.groups[:2], [1.0, 1.0], left)
    method._make_anew()
    list(method._steps(4, source))
    assert [method._members[replica].mailbox for replica in left] == boxes
    for box in boxes:
        for function in (box._fill, box._use):
            assert function.experimental_get_tracing_count() == 1


# Of one that has just come back nobody knows how fast it is.
@pytest.mark.parametrize("is_known", [True, False])
def test_who_is_slow_ends_its_steps_and_counts_by_what_it_made(is_known):
    source = Recorded((2, 2, 2))
    method = replicas.DiLoCo(
        quadratic(),
        devices=DEVICES,
        shares=[1, 1, 1],
        every=20,
        patience=1.0,
    )
    method._prepare(source, 2)
    list(method._steps(20, source))
    members = list(method._members.values())
    assert [len(own) for own in source.means] == [20, 20, 20]
    batch, round_s = source.batch, 20 * max(m.pace for m in members)
    if not is_known:
        members[1].pace = None

    def slow(replica):
        if replica.index == 1:
            threading.Event().wait(round_s)
        return batch(replica)

    source.batch = slow
    list(method._steps(20, source))
    counts = [len(own) - 20 for own in source.means]
    assert counts[0] == counts[2] == 20
    assert 1 <= counts[1] <= 10
    reference = Reference(3, 1, "float32")
    for first, last in ((0, 20), (20, 40)):
        for i in range(3):
            for mean in source.means[i][first:last]:
                reference.step(i, mean)
        made = [len(own[first:last]) for own in source.means]
        reference.receive(*reference.send(0, made), kept=0)
    close(method, reference)


@pytest.mark.parametrize("hung", [0, 1])
def test_who_hangs_is_left_out_of_rounds_until_its_steps_end(hung, monkeypatch):
    monkeypatch.setattr("tf_convpar.replicas.steps_under_way._LEAST_S", 0.5)
    source = Recorded((2, 2, 2))
    method = replicas.DiLoCo(
        quadratic(), devices=DEVICES, shares=[1, 1, 1], every=4, patience=0.25
    )
    method._prepare(source, 2)
    Epochs(method, source, 4, None, None)._begin()
    batch, goes_on = source.batch, threading.Event()

    def hangs(replica):
        if replica.index == hung:
            assert goes_on.wait(30)
        return batch(replica)

    reference = Reference(3, 1, "float32")
    for number in range(4):
        source.batch = hangs if number == 1 else batch
        if number == 3:
            goes_on.set()
            method._steps_under_way.wait()
        before = [len(means) for means in source.means]
        list(method._steps(4, source))
        left = {0, 1, 2} - ({hung} if number in (1, 2) else set())
        assert {replica.index for replica in method._present} == left
        # What it made after all is lost.
        for i in left:
            for mean in source.means[i][before[i] :]:
                reference.step(i, mean)
        # Of a round of four, who is held up by other programs makes fewer.
        made = [
            (i in left) * (len(means) - before[i])
            for i, means in enumerate(source.means)
        ]
        reference.receive(*reference.send(0, made), kept=0)
        np.testing.assert_allclose(
            method.centre.value().numpy(), reference.common[:SIZE], atol=1e-6
        )
    close(method, reference)
    passed = method._members[method.replicas[hung]].passed
    assert passed == len(source.means[hung])


def test_the_loop_on_a_device_ends_in_time():
    x, y = data(192)
    method = replicas.DiLoCo(network(), devices=DEVICES)
    method.fit(x, y, batch_size=8, epochs=1, verbose=0)
    member = method._members[method.replicas[0]]
    assert isinstance(member.replica.data, tf.data.Iterator)

    def run(steps, seconds):
        return member.local.run(steps, seconds, 0.01, lambda own: own.data)

    assert run(7, 60.0).steps == 7
    made = run(1_000_000, 0.3)
    assert 1 < made.steps < 1_000_000
    assert 0.3 <= made.seconds < 5
    # At least one, however late it is; none, if none is asked for.
    assert run(5, 0.0).steps == 1
    assert run(0, 60.0).steps == 0


@pytest.mark.parametrize("kind", [replicas.DiLoCo, replicas.SyncSGD])
def test_a_model_is_traced_once_for_all_replicas(kind):
    """Not once for each: one more machine takes no longer to begin with."""
    traced = []

    class Counted(keras.layers.Layer):
        def call(self, x):
            traced.append(x.shape[0])
            return x

    method = kind(network(extra=[Counted()]), devices=DEVICES)
    method.fit(*data(), batch_size=8, epochs=1, verbose=0)
    assert traced.count(8) == 1


@pytest.mark.parametrize("wire", ["int8", "int4"])
def test_a_wire_of_few_bits(wire):
    vector = np.random.default_rng(0).normal(size=4 * BLOCK)
    vector = vector.astype("float32")
    vector[BLOCK] = 1e6  # takes no precision from other blocks
    vector[2 * BLOCK : 3 * BLOCK] = 0
    form = wire_of(wire)
    message = form.encode(tf.constant(vector))
    np.testing.assert_allclose(
        form.decode(message, len(vector)).numpy(),
        rounded(vector, wire),
        rtol=1e-6,
    )
    assert len(message) == form.nbytes(len(vector))
    ratio = {"int8": 3.9, "int4": 7.7}[wire]
    assert 4 * len(vector) > ratio * len(message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 5, "fragments": 2}, "multiple of `fragments`.*every=5"),
        ({"every": 4, "delay": 5}, "delay of 0 up to.*4.*delay=5"),
        ({"kept": 1}, "0 <= kept < 1.*kept=1"),
        ({"wire": "int2"}, 'wire to be "float32".*int2'),
        ({"unequal": "layers"}, 'unequal to be "batches".*layers'),
        ({"patience": -1}, "at least 0.*-1"),
    ],
)
def test_what_is_wrong_is_said(options, message):
    with pytest.raises(ValueError, match=message):
        replicas.DiLoCo(quadratic(), devices=DEVICES, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"every": 4},
        {"every": 8, "fragments": 2, "wire": "int8", "unequal": "steps"},
        {"every": 1000, "wire": "int4"},
    ],
)
def test_fit_learns_and_shares_all_of_it(options):
    x, y = data(192)
    model = network(keras.optimizers.Adam(0.01))
    # Without momentum nothing of old weights is left where new ones are loaded.
    outer = keras.optimizers.SGD(1.0)
    method = replicas.DiLoCo(model, devices=DEVICES, outer=outer, **options)
    history = method.fit(x, y, batch_size=8, epochs=8, verbose=0)
    assert len(history.history["loss"]) == 8
    assert model.evaluate(x, y, verbose=0)[1] > 0.9
    for replica in method.replicas:
        np.testing.assert_array_equal(
            replica.weights.numpy(), method.centre.value().numpy()
        )
    # What a callback or the user loads is where all go on from.
    weights = [np.full_like(w, 0.01) for w in model.get_weights()]
    model.set_weights(weights)
    method.fit(x, y, batch_size=8, epochs=1, steps_per_epoch=1, verbose=0)
    moved = method.centre.value().numpy() - 0.01
    assert 0 < np.abs(moved).max() < 0.1

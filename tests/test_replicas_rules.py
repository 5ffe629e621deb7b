"""Update rules against NumPy, on a quadratic, in the order of arrivals."""

import numpy as np
import pytest
import replica_cases
import tensorflow as tf

from tf_convpar import replicas
from tf_convpar.replicas.centre import Centre
from tf_convpar.replicas.data import Source

DEVICES = ["CPU:0", "CPU:1", "CPU:2"]
ETA = 0.05
SIZE = 4


def quadratic():
    return replica_cases.quadratic(SIZE, ETA)


class Recorded(Source):
    """Batches that are known to the test, and who got them."""

    samples = None

    def __init__(self, sizes=(2, 2, 2)):
        self.rng = np.random.default_rng(0)
        self.sizes = sizes
        self.given = []

    def sample(self):
        return np.zeros((1, SIZE), "float32"), np.zeros((1, SIZE), "float32")

    def place(self, replicas, seed):
        pass

    def batch(self, replica):
        size = self.sizes[replica.index], SIZE
        x = self.rng.normal(size=size).astype("float32")
        self.given.append((replica.index, x.mean(axis=0).astype("float64")))
        return tf.constant(x), tf.zeros(size)

    def example(self, replica):
        size = self.sizes[replica.index], SIZE
        return tf.zeros(size), tf.zeros(size)


def trained(method, steps, source):
    """Runs steps without `fit`, whose data would be shuffled."""
    method._prepare(source, 2)
    return [state for _, state in method._steps(steps, source)]


def centre(method):
    return np.asarray(method.centre.value(), "float64")


def close(ours, exact):
    np.testing.assert_allclose(ours, exact, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("variant", [1, 2, 3])
def test_sync_easgd(variant):
    source = Recorded()
    method = replicas.SyncEASGD(
        quadratic(), rho=4.0, variant=variant, devices=DEVICES
    )
    trained(method, 5, source)
    w, c = np.ones((3, SIZE)), np.ones(SIZE)
    means = [x for _, x in source.given]
    for step in range(5):
        old = w.copy()
        for i in range(3):
            gradient = old[i] - means[3 * step + i]
            w[i] = old[i] - ETA * (gradient + 4.0 * (old[i] - c))
        c = c + ETA * 4.0 * (old - c).sum(axis=0)
    close(centre(method), c)
    close([r.weights.numpy() for r in method.replicas], w)
    assert np.abs(c - 1).max() > 0.1


def test_sync_sgd_counts_samples():
    source = Recorded(sizes=(1, 2, 3))
    method = replicas.SyncSGD(quadratic(), devices=DEVICES)
    trained(method, 4, source)
    w = np.ones(SIZE)
    means = [x for _, x in source.given]
    for step in range(4):
        parts = means[3 * step : 3 * step + 3]
        mean = sum(b * x for b, x in zip((1, 2, 3), parts, strict=True)) / 6
        w = w - ETA * (w - mean)
    close(centre(method), w)
    for replica in method.replicas:
        close(replica.weights.numpy(), w)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("AsyncEASGD", {}),
        ("AsyncMEASGD", {"momentum": 0.5}),
        ("HogwildEASGD", {}),
        ("RoundRobinEASGD", {}),
        ("RoundRobinEASGD", {"packed": False}),
    ],
)
def test_elastic_arrivals(kind, options):
    """Asynchronous methods, one at a time, in an order that is no rank's."""
    source = Recorded()
    method = getattr(replicas, kind)(
        quadratic(), rho=4.0, devices=DEVICES, **options
    )
    order = arrivals(method, source)
    mu, alpha = options.get("momentum", 0.0), ETA * 4.0
    w, v, c = np.ones((3, SIZE)), np.zeros((3, SIZE)), np.ones(SIZE)
    answers = [c.copy() for _ in range(3)]
    for i, x in order:
        old = w[i].copy()
        v[i] = mu * v[i] - ETA * (old - x)
        w[i] = old + v[i] - alpha * (old - answers[i])
        answers[i] = c.copy()
        c = c + alpha * (w[i] - c)
    close(centre(method), c)
    close([r.weights.numpy() for r in method.replicas], w)


@pytest.mark.parametrize(
    ("kind", "mu"),
    [("SyncEASGD", 0), ("AsyncEASGD", 0), ("AsyncMEASGD", 0.5)],
)
def test_an_elastic_replica_alone_is_its_optimizer(kind, mu):
    """Unless it is given a force; a pull would halve the rate."""
    source = Recorded()
    options = {"momentum": mu} if mu else {}
    method = getattr(replicas, kind)(quadratic(), devices=["CPU:1"], **options)
    method._prepare(source, 2)
    (replica,) = method.replicas
    if kind == "SyncEASGD":
        list(method._steps(5, source))
    else:
        method._trace(source)
        for _ in range(5):
            method._engine.one(0, ETA, lambda _: source.batch(replica))
    w, v = np.ones(SIZE), np.zeros(SIZE)
    for _, x in source.given:
        v = mu * v - ETA * (w - x)
        w = w + v
    assert len(source.given) == 5
    close(centre(method), w)
    close(replica.weights.numpy(), w)
    assert method._alpha(ETA) is None
    forced = getattr(replicas, kind)(quadratic(), rho=4.0, devices=["CPU:1"])
    assert forced._alpha(ETA) == ETA * 4.0


def arrivals(method, source):
    """Steps in an order that is recorded; the batches they got."""
    method._prepare(source, 2)
    method._trace(source)
    order = [0, 2, 2, 1, 0, 1, 2, 0, 0, 1]
    if isinstance(method, replicas.RoundRobinEASGD):
        list(method._steps(10, source))
        assert [i for i, _ in source.given] == [0, 1, 2] * 3 + [0]
        return source.given
    for i in order:
        method._engine.one(i, ETA, lambda i: source.batch(method.replicas[i]))
    assert [i for i, _ in source.given] == order
    return source.given


@pytest.mark.parametrize("kind", ["AsyncSGD", "AsyncMSGD", "HogwildSGD"])
def test_parameter_servers(kind):
    source = Recorded()
    options = {"momentum": 0.5} if kind == "AsyncMSGD" else {}
    method = getattr(replicas, kind)(quadratic(), devices=DEVICES, **options)
    mu = options.get("momentum", 0.0)
    c, v = np.ones(SIZE), np.zeros(SIZE)
    answers = [c.copy() for _ in range(3)]
    for i, x in arrivals(method, source):
        v = mu * v - ETA * (answers[i] - x)
        c = c + v
        answers[i] = c.copy()
    close(centre(method), c)


def test_downpour():
    source = Recorded()
    method = replicas.DownpourSGD(
        quadratic(), n_fetch=4, n_push=2, devices=DEVICES
    )
    method._prepare(source, 2)
    method._trace(source)
    order = [0, 1, 1, 0, 2, 1, 0]
    for i in order:
        method._engine.one(i, ETA, lambda i: source.batch(method.replicas[i]))
    batches = iter(source.given)
    c, accumulator = np.ones(SIZE), np.full(SIZE, 0.1)
    answers, w = [c.copy() for _ in range(3)], np.ones((3, SIZE))
    counts = [0, 0, 0]
    for i in order:
        total = np.zeros(SIZE)
        for _ in range(2):
            who, x = next(batches)
            assert who == i
            if counts[i] % 4 == 0:
                w[i] = answers[i]
            counts[i] += 1
            gradient = w[i] - x
            total += gradient
            w[i] = w[i] - ETA * gradient
        accumulator = accumulator + total**2
        c = c - ETA * total / np.sqrt(accumulator + 1e-7)
        answers[i] = c.copy()
    close(centre(method), c)


def test_parallel_sgd_averages_at_the_end():
    source = Recorded()
    method = replicas.ParallelSGD(quadratic(), devices=DEVICES)
    trained(method, 6, source)
    close(centre(method), np.ones(SIZE))
    method._finish(last=True)
    w = np.ones((3, SIZE))
    for i, x in source.given:
        w[i] = w[i] - ETA * (w[i] - x)
    close(centre(method), w.mean(axis=0))


def test_staleness_is_counted():
    source = Recorded()
    method = replicas.AsyncSGD(quadratic(), devices=DEVICES)
    method._prepare(source, 2)
    method._trace(source)
    stale = [
        method._engine.one(
            i, ETA, lambda i: source.batch(method.replicas[i])
        ).staleness
        for i in (0, 1, 2, 0, 0, 1)
    ]
    assert stale == [0, 1, 2, 2, 0, 3]


def test_a_centre_keeps_slots_of_whoever_is_left():
    """A piece that is lost begins anew; the others' momentum goes on."""
    method = replicas.AsyncMSGD(quadratic(), momentum=0.5, devices=DEVICES)
    source = Recorded()
    trained(method, 1, source)
    form, optimizer = method.centre.form, method._centre_optimizer()
    first = Centre(form, method.devices[:2], optimizer)
    for j in range(2):
        first.descend(tf.constant([1.0 + j, 3.0 + j]), tf.constant(0.1), j)
    first.devices[0] = "/job:worker/replica:0/task:7/device:CPU:0"
    second = Centre(form, method.devices, optimizer)
    second.take_slots(first, {("worker", 7)})
    steps, _, velocity = zip(
        *[o.variables for o in second.optimizers], strict=True
    )
    assert [int(v) for v in steps] == [1, 1, 1]
    found = np.concatenate([v.numpy() for v in velocity])
    np.testing.assert_allclose(found, [0, 0, -0.2, -0.4])


def test_a_norm_of_all_weights_is_of_one_piece():
    model = quadratic()
    model.optimizer.global_clipnorm = 0.1
    clipped = replicas.SyncSGD(model, devices=DEVICES)
    trained(clipped, 1, Recorded())
    moved = np.linalg.norm(centre(clipped) - 1)
    assert moved == pytest.approx(0.1 * ETA, rel=1e-4)
    assert len(clipped.centre.pieces) == 1
    whole = replicas.SyncSGD(quadratic(), devices=DEVICES)
    trained(whole, 1, Recorded())
    assert [len(p.numpy()) for p in whole.centre.pieces] == [1, 1, 2][::-1]

"""Replicas of different speed: who gets how many samples, and who did what."""

import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from graphs_that_ran import nodes_by_device
from replica_cases import DEVICES
from replica_cases import data
from replica_cases import network

from tf_convpar import replicas
from tf_convpar.plans import even_shares
from tf_convpar.plans import evened
from tf_convpar.plans import sizes_to_time
from tf_convpar.replicas import sample_shares
from tf_convpar.replicas.replica import OnOneDevice
from tf_convpar.replicas.replica import PackedState
from tf_convpar.replicas.wire import Cast
from tf_convpar.strategy.devices import check


@pytest.mark.alone
def test_shares_make_steps_equally_long():
    """One takes three times as long a sample, and something for each step."""
    steps = [
        lambda batch: time.sleep(0.009 * batch + 0.06),
        lambda batch: time.sleep(0.003 * batch),
    ]
    slow, fast = sample_shares.of_steps(steps, 60)
    seconds = 0.009 * 60 * slow + 0.06, 0.003 * 60 * fast
    # 1.24 after a single round; others' tests may delay a step by some ms.
    assert max(seconds) < 1.2 * min(seconds)


@pytest.mark.alone
def test_what_a_step_costs_at_all_is_not_slowness():
    """A small network: nearly all of its step is calls, equal for all."""
    steps = [lambda batch: time.sleep(0.02 + 0.0002 * batch)] * 3
    shares = sample_shares.of_steps(steps, 96)
    assert min(shares) > 0.8 * max(shares)


@pytest.mark.parametrize(
    ("costs", "expected"),
    [
        ([(0, 1), (0, 3)], [0.75, 0.25]),
        ([(4, 1), (0, 1)], [0.4, 0.6]),
        ([(0, 1), (0, 1), (30, 1)], [0.5, 0.5, 0]),
        # It would have half a sample in the time of all.
        ([(0, 1), (0, 1), (9.5, 1)], [0.5, 0.5, 0]),
        ([(0, 1), (0, 1), (21, 1)], [0.5, 0.5, 0]),
        ([(0, 1), (0, 1), (8, 1)], [0.467, 0.467, 0.067]),
        # More than a tenth of a third, and less than a tenth of a half.
        ([(0, 1), (18.4, 1), (100, 1)], [1, 0, 0]),
    ],
)
def test_all_end_at_once(costs, expected):
    assert evened(costs, 20) == expected


@pytest.mark.parametrize(
    ("speeds", "expected"),
    [
        # A step is 7 % longer with equal shares; and 14 %.
        ((1.0, 1.15), [0.5, 0.5]),
        ((1.0, 1.3), [0.565, 0.435]),
    ],
)
def test_shares_are_equal_where_others_gain_little(speeds, expected):
    few, many = sizes_to_time(96, 2)
    short, long = ([[s * n] for s in speeds] for n in (few, many))
    assert even_shares(short, long, 96) == expected


def test_a_handful_of_samples_is_not_worth_waiting_for():
    """Two whose calls cost what the third needs for all samples."""
    short, long = [[1.6e-3], [1.6e-3], [0.3e-3]], [[2.1e-3], [2.1e-3], [0.8e-3]]
    assert even_shares(short, long, 96) == [0, 0, 1]


def test_steps_that_say_how_long_they_took():
    """A call takes one of them ten times as long, and that is no part of it."""

    def step(call_s):
        def made(batch):
            time.sleep(call_s)
            return 1e-6 * batch

        return made

    begin = time.perf_counter()
    shares = sample_shares.of_steps([step(0.001), step(0.01)], 64)
    assert shares == [0.5, 0.5]
    # However short they are by their own clock.
    assert time.perf_counter() - begin < 20


@pytest.mark.alone
def test_alike_devices_get_as_many():
    steps = [lambda batch: time.sleep(0.02 * batch)] * 3
    assert sample_shares.of_steps(steps, 30) == [1 / 3] * 3


@pytest.mark.alone
def test_who_is_done_goes_on_while_others_are_timed():
    """Else the last would have the cores of a machine for itself."""
    calls = []

    def fast(batch):
        calls.append(time.perf_counter())
        time.sleep(0.01)

    slow, _ = sample_shares._at_once(
        [lambda batch: time.sleep(0.1), fast], [1, 1]
    )
    assert min(slow) == pytest.approx(0.1, rel=0.2)
    # For all of the other's three steps.
    assert len(calls) > 15


def test_an_error_of_a_step_ends_the_measurement():
    def fails(batch):
        raise ValueError("no such batch")

    with pytest.raises(ValueError, match="no such batch"):
        sample_shares.of_steps([lambda batch: time.sleep(0.01), fails], 8)


def test_steps_are_timed_as_they_will_be_made(monkeypatch):
    """With numbers of samples that are known when they are traced."""
    traced = []
    gradient = OnOneDevice.gradient

    def watched(self, data, part=1.0):
        traced.append(data[0].shape[0])
        return gradient(self, data, part)

    monkeypatch.setattr(OnOneDevice, "gradient", watched)
    method = replicas.SyncSGD(network(), devices=DEVICES[:2], shares="auto")
    method.fit(*data(64), batch_size=8, verbose=0)
    # Half of an equal share and twice it, for each of both; then their own.
    assert traced[:4] == [4, 16] * 2
    assert None not in traced and len(traced) <= 6


def test_steps_of_one_call_read_nothing_of_the_chief():
    """Else each waits for a message: 2 ms, ten times a small step."""
    form = PackedState(network(), "float32")
    probe = OnOneDevice(form, check(DEVICES[:2])[1], 1, None)
    seconds = sample_shares._step(probe, data(1), (4, 16), None, True)
    nodes = nodes_by_device(lambda: seconds(4))
    (here,) = (of for name, of in nodes.items() if name.endswith("CPU:1"))
    assert any(node.op == "Enter" for node in here)
    # TensorFlow's name of a loop on who takes part in another's.
    loops = [n.name for of in nodes.values() for n in of if "_cloop" in n.name]
    assert not loops


class SlowOnSecond(Cast):
    """The exchange takes one device a tenth of a second longer than others."""

    def encode(self, vector, left=None, *, less=None):
        message = super().encode(vector, left, less=less)
        # Late with gradients alone.
        if less is not None or not vector.device.endswith("CPU:1"):
            return message

        def late(values):
            time.sleep(0.1)
            return values

        return tf.ensure_shape(
            tf.numpy_function(late, [message], message.dtype), message.shape
        )


def test_who_is_slow_at_the_exchange_gets_fewer(monkeypatch):
    def slow(number):
        time.sleep(0.01 * len(number))
        return number

    # A sample takes each of them 10 ms.
    gradient = OnOneDevice.gradient

    def longer(self, data, part=1.0):
        x, y = data
        x = tf.ensure_shape(tf.numpy_function(slow, [x], x.dtype), x.shape)
        return gradient(self, (x, y), part)

    monkeypatch.setattr(OnOneDevice, "gradient", longer)
    form = PackedState(network(), "float32")
    probes = [
        OnOneDevice(form, full, i, None)
        for i, full in enumerate(check(DEVICES[:2]))
    ]
    sample = data(1)
    alike = sample_shares.balanced(probes, sample, 32, Cast("float32"))
    assert min(alike) > 0.8 * max(alike)
    wire = SlowOnSecond("float32")
    first, second = sample_shares.balanced(probes, sample, 32, wire)
    # Ten samples' time: 21 and 11 of 32.
    assert 0.57 < first < 0.75
    assert second == pytest.approx(1 - first, abs=0.01)
    assert 0 < np.abs(probes[0].weights.value).max() < 2


def test_measured_shares_are_kept_and_repeat_the_training():
    x, y = data()
    model = network(extra=[keras.layers.BatchNormalization()])
    method = replicas.SyncSGD(model, devices=DEVICES, shares="auto")
    method.fit(x, y, batch_size=8, epochs=1, verbose=0)
    # On a busy machine some of them may be left out.
    assert len(method.shares) == len(method.devices)
    assert sum(method.shares) == pytest.approx(1, abs=0.01)
    batches = [r.batch for r in method.replicas]
    assert sum(batches) == 8 * len(method.devices)
    # What measures has no part in training.
    again = network(extra=[keras.layers.BatchNormalization()])
    replicas.SyncSGD(again, devices=method.devices, shares=method.shares).fit(
        x, y, batch_size=8, epochs=1, verbose=0
    )
    for a, b in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_who_cannot_pay_is_left_out(monkeypatch, capsys):
    x, y = data()
    monkeypatch.setattr(
        "tf_convpar.replicas.sample_shares.balanced",
        lambda *_: [0.0, 0.75, 0.25],
    )
    model = network()
    method = replicas.SyncSGD(model, devices=DEVICES, shares="auto")
    for _ in range(2):
        method.fit(x, y, batch_size=8, epochs=2, verbose=0)
        assert [r.device[-5:] for r in method.replicas] == DEVICES[1:]
    assert method.shares == [0.75, 0.25]
    assert method.centre.device == method.devices[0]
    said = capsys.readouterr().out
    assert set(method.centre.devices) == set(method.devices)
    # Eight of each who takes part, on average.
    assert "samples of a step: CPU:1 12, CPU:2 4." in said
    assert [r.batch for r in method.replicas] == [12, 4]
    assert "without CPU:0: less than a tenth of an equal share" in said


def test_the_mean_counts_samples():
    x, y = data()
    model = network()
    method = replicas.ParallelSGD(model, devices=DEVICES, shares=[6, 1, 1])
    method.fit(x, y, batch_size=8, epochs=1, verbose=0)
    own = [r.weights.numpy() for r in method.replicas]
    expected = 0.75 * own[0] + 0.125 * own[1] + 0.125 * own[2]
    np.testing.assert_allclose(method.centre.value(), expected, atol=1e-6)
    assert np.abs(own[0] - own[1]).max() > 1e-3


def test_a_cluster_that_nobody_joined_is_told(monkeypatch, capsys):
    monkeypatch.setattr(
        "tf_convpar.replicas._replicated.default_devices", lambda: ["CPU:0"]
    )
    monkeypatch.setenv("TF_CONFIG", "{}")
    replicas.SyncSGD(network())
    said = capsys.readouterr().out
    assert "one replica" in said
    assert "ConvParallelStrategy" in said
    monkeypatch.delenv("TF_CONFIG")
    replicas.SyncSGD(network())
    assert not capsys.readouterr().out


def test_devices_of_one_machine_share_equally_unless_asked():
    x, y = data()
    method = replicas.SyncSGD(network(), devices=DEVICES)
    method.fit(x, y, batch_size=8, epochs=1, verbose=0)
    assert [r.batch for r in method.replicas] == [8, 8, 8]


def test_a_report_of_who_did_what(tmp_path):
    x, y = data()
    method = replicas.AsyncEASGD(network(), devices=DEVICES)
    method.fit(x, y, batch_size=8, epochs=3, verbose=0)
    report = method.report()
    assert [own.device for own in report] == method.devices
    assert sum(own.messages for own in report) == len(method.arrivals)
    # Three epochs of 24 steps, and who was under way when each ended.
    assert 72 <= len(method.arrivals) <= 72 + 3 * 2 * len(DEVICES)
    assert sum(own.share for own in report) == pytest.approx(1)
    for own in report:
        assert own.samples == 8 * own.messages
    for i, own in enumerate(report):
        ages = [a.staleness for a in method.arrivals if a.replica == i]
        assert own.mean_staleness == pytest.approx(np.mean(ages))
        assert f"{own.messages} messages" in str(report)
    report.draw(tmp_path / "report.png")
    assert (tmp_path / "report.png").read_bytes()[1:4] == b"PNG"
    with pytest.raises(ValueError, match="supported formats"):
        report.draw(tmp_path / "report.txt")
    assert [p.name for p in tmp_path.iterdir()] == ["report.png"]


def test_one_after_another_is_never_stale_by_more_than_the_others():
    x, y = data()
    method = replicas.RoundRobinEASGD(network(), devices=DEVICES)
    method.fit(x, y, batch_size=8, epochs=1, verbose=0)
    for own in method.report():
        assert own.share == pytest.approx(1 / 3, abs=0.05)
        assert set(own.staleness) <= {0, 1, 2}

"""What is measured whatever is planned: links, updates, machines."""

import fcntl
import inspect
import os
import threading

import keras
import numpy as np
import pytest

from tf_convpar import machines
from tf_convpar import ops
from tf_convpar.planner import Work
from tf_convpar.planner import measure
from tf_convpar.planner import work_keys
from tf_convpar.planner.measure import Works
from tf_convpar.planner.measure import _calibrate
from tf_convpar.planner.measure import cache
from tf_convpar.planner.measure import links
from tf_convpar.planner.measure.clock import Clock
from tf_convpar.sharding import calls_of

CHIEF = "/job:localhost/replica:0/task:0/device:CPU:0"


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("TF_CONVPAR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_one_process_at_a_time(folder):
    folder.mkdir()
    with (folder / "measuring.lock").open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        said = []
        entered = threading.Event()

        def wait():
            with cache.alone(said.append):
                entered.set()

        waiter = threading.Thread(target=wait)
        waiter.start()
        assert not entered.wait(0.2)
        assert said == ["waiting for another process that measures"]
        fcntl.flock(other, fcntl.LOCK_UN)
        assert entered.wait(5)
        waiter.join()


def test_the_lock_is_ones_own(folder):
    """No other user can hold it, and no link leads elsewhere."""
    folder.mkdir()
    elsewhere = folder.parent / "elsewhere"
    elsewhere.touch(0o600)
    with cache.alone(print):
        (lock,) = folder.iterdir()
        assert lock.stat().st_mode & 0o777 == 0o600
    lock.unlink(missing_ok=True)
    lock.symlink_to(elsewhere)
    with cache.alone(print):
        pass
    assert elsewhere.stat().st_mode & 0o777 == 0o600
    assert elsewhere.read_bytes() == b""


def test_a_lock_that_cannot_be_had_is_not_waited_for(folder):
    folder.touch()
    said = []
    with cache.alone(said.append):
        assert not said


def test_slots():
    optimizers = keras.optimizers
    assert measure.slots_of(optimizers.SGD()) == 0
    assert measure.slots_of(optimizers.SGD(momentum=0.9)) == 1
    assert measure.slots_of(optimizers.Adam()) == 2


def test_machine_speaks_for_itself():
    with open("/proc/cpuinfo") as file:
        assert machines.processor(CHIEF) in file.read()
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < machines.memory_bytes(CHIEF) <= total


@pytest.mark.parametrize(
    ("sending", "expected"), [(0.3, 0.2 / (16 << 20)), (0.09, 0.0)]
)
def test_what_a_byte_that_travels_costs_the_chief(sending, expected):
    """Eight MiB there and back; never less than nothing."""

    class Given:
        def time(self, run, name):
            assert np.isfinite(run())
            return sending if name.endswith("computes and sends") else 0.1

    found = links.transfer_s("CPU:0", ["CPU:1"], Given())
    assert found == pytest.approx(expected)
    assert links.transfer_s("CPU:0", [], Given()) == 0


def test_a_slow_link_is_sent_no_more_than_it_takes_meanwhile():
    """Or waiting for it would count as work: 0.1 s of 1 MB/s, a quarter."""
    sizes = []

    class Given:
        def time(self, run, name):
            x = inspect.getclosurevars(run).nonlocals["x"]
            sizes.append(4 * x.shape[0])
            return 0.1

    links.transfer_s("CPU:0", ["CPU:1"], Given(), bytes_per_s=1e6)
    assert sizes[1:] == [25000, 25000]


def test_latency_is_of_messages_and_not_of_calls():
    """Of 20 exchanges, less one, in each of which both wait for a message."""

    class Given(Clock):
        def time(self, run, name):
            run()
            times = {"1 hops": 0.010, "20 hops": 0.029}
            return times.get(" ".join(name.split()[-2:]), 0.2)

    found = links.measure_link("CPU:0", "CPU:1", Given())
    assert found.latency_s == pytest.approx(0.001)


def test_a_message_costs_both_ends():
    class Given:
        def time(self, run, name):
            assert np.isfinite(run())
            return 0.2 if "100 messages" in name else 0.002

    found = links.message_s("CPU:0", ["CPU:1"], Given())
    assert found == pytest.approx(0.001)
    assert links.message_s("CPU:0", [], Given()) == 0


def test_devices_that_share_cores_are_told_apart(strategy):
    """Those of one process do; its process says on which cores it may run."""
    devices = list(strategy.devices)
    assert machines.sharing_cores(devices) == [devices]
    processor, _, cores, *_ = machines.identity(CHIEF)
    assert processor == machines.processor(CHIEF)
    first, _, last = cores.rpartition("-")
    assert int(last) in machines.usable_cores(), (first, cores)


def test_devices_on_cores_of_their_own_are_measured_side_by_side(monkeypatch):
    answers = {
        "a": {"boot_id": "1", "cores": "0-1,4"},
        "b": {"boot_id": "1", "cores": "2-3"},
        "c": {"boot_id": "1", "cores": "4-5"},
        "d": {"boot_id": "2", "cores": "0-63"},
    }

    def read(device, name):
        if name == "self/status":
            return f"Cpus_allowed_list:\t{answers[device]['cores']}\n"
        return answers[device]["boot_id"] + "\n"

    monkeypatch.setattr("tf_convpar.machines._machine._read", read)
    monkeypatch.setattr(
        "tf_convpar.machines._machine.kind_of", lambda device: "CPU"
    )
    assert machines.sharing_cores(list("abcd")) == [["b"], ["a", "c"], ["d"]]


def test_what_is_computed_otherwise_on_shards_is_measured(strategy):
    """Batch normalization goes over its maps less often there."""
    x = keras.Input((32, 32, 3))
    y = keras.layers.Conv2D(64, 3, padding="same", name="conv")(x)
    y = keras.layers.BatchNormalization(name="bn")(y)
    y = keras.layers.ReLU(name="relu")(y)
    graph = calls_of(keras.Model(x, y))
    works = Works(graph).on("/device:CPU:0", batch=16)
    by_name = {
        call.name: works[work_keys.key(graph, call)]
        for call in graph.calls
        if call.layer is not None
    }
    assert by_name["conv"].on_shards == by_name["relu"].on_shards == (1, 1)
    own = by_name["bn"]
    assert own.on_shards != (1, 1)
    assert own.at("forward", 16) == pytest.approx(
        own.on_shards[0] * own.at("forward", 16, on_shards=False)
    )
    if ops.load():
        # Far less than half, but other programs may work here as well.
        assert max(own.on_shards) < 1


@pytest.mark.skipif(not ops.load(), reason="no compiled ops")
@pytest.mark.parametrize("algorithm", ["auto", None])
def test_normalization_is_measured_as_it_is_computed(algorithm):
    """By this package's ops, with `auto` also on the chief alone."""
    x = keras.Input((8, 8, 3))
    y = keras.layers.BatchNormalization(name="bn")(x)
    graph = calls_of(keras.Model(x, keras.layers.ReLU()(y)))
    whole = Works(graph, algorithm=algorithm)._whole.graph
    kinds = {op.type for op in whole.get_operations()}
    assert ("TfConvpar>ChannelMoments" in kinds) == (algorithm == "auto")


@pytest.mark.parametrize("algorithm", ["auto", None])
def test_what_is_traced_once_names_no_device(algorithm):
    """It runs on all devices of a kind, on the other tasks of a cluster too."""
    x = keras.Input((8, 8, 3))
    y = keras.layers.Conv2D(8, 3)(x)
    y = keras.layers.ReLU()(keras.layers.BatchNormalization()(y))
    works = Works(calls_of(keras.Model(x, y)), CHIEF, algorithm)
    for function in (works._whole, works._on_shards, *works._parts):
        operations = function.graph.get_operations()
        assert len(operations) > 10
        assert {operation.device for operation in operations} == {""}


def test_an_equal_processor_has_the_curves_of_the_first():
    fast = Work((2, 4, 8), (1, 2, 5), (2, 4, 8), (0.5, 1), (0.6, 1), (0.7, 1))
    slow = Work((8,), (10,), (24,)).along(fast)
    assert slow.samples == fast.samples and slow.filters == fast.filters
    assert slow.forward == (2, 4, 10) and slow.backward == (6, 12, 24)
    assert slow.at("forward", 8, 0.5) == pytest.approx(0.6 * 10)
    # Of fewer samples, as they are all that there was time for.
    fewer = Work((3,), (3,), (3,)).along(fast)
    assert fewer.at("forward", 3) == fewer.at("backward", 3) == 3
    # A line that falls, as noise may make it, does not lead below nothing.
    falling = Work((1, 2), (4, 1), (4, 1))
    assert Work((8,), (3,), (3,)).along(falling).forward == (12, 3)


def test_curves_are_measured_once_for_equal_processors(little_time):
    """And both devices know what parts of the filters take."""
    x = keras.Input((8, 8, 3))
    y = keras.layers.Conv2D(8, 3, name="conv")(x)
    graph = calls_of(keras.Model(x, y))
    devices = [
        f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in (0, 1)
    ]
    said = []
    found = _calibrate._works_on(graph, devices, 8, None, said.append)
    parts = [text for text in said if "of the filters" in text]
    assert parts and all(text.startswith(devices[0]) for text in parts)
    for key, work in found[devices[0]].items():
        other = found[devices[1]][key]
        assert other.forward_of == work.forward_of != (1.0,)
        assert other.samples == work.samples == (2, 4, 8)
        ratio = other.forward[-1] / work.forward[-1]
        assert other.forward[0] == pytest.approx(ratio * work.forward[0])
    slower = _calibrate._slower(devices[1], devices[0], found)
    own, there = (
        sum(w.forward[-1] + w.backward[-1] for w in found[d].values())
        for d in reversed(devices)
    )
    assert slower == pytest.approx(own / there)

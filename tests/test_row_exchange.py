"""Rows of statistics that processes exchange by connections of their own."""

import socket
import struct

import forks
import numpy as np
import psutil
import pytest
import tensorflow as tf
from processes import ROOT
from processes import environment

from tf_convpar import ops
from tf_convpar.cluster.local_cluster import local_workers
from tf_convpar.placement import row_ports
from tf_convpar.placement import rows_of_all


@pytest.fixture(scope="module")
def found():
    """What a chief and two workers find; one of these is killed at the end."""
    with local_workers(2) as cluster:
        program = ROOT / "tests/programs/rows.py"
        yield forks.found([program], {**environment(), **cluster.env()})


def test_rows_and_derivatives_are_those_of_tensorflow(found):
    assert found["float32"] < 1e-5
    assert found["float64"] < 1e-13
    # Each device has an op of each exchange, and of its gradients.
    exchanges, sums = found["ops"]
    assert exchanges % 3 == sums % 3 == 0
    assert min(exchanges, sums) >= 3


def test_weights_of_unequal_lengths(found):
    assert found["weights"] < 1e-13
    assert found["none of one"] < 1e-13


def test_a_function_that_is_called_several_times_in_a_step(found):
    assert found["twice"] < 1e-13
    assert found["outside"] < 1e-13
    assert found["many"] < 1e-13


def test_a_model_learns_as_plain_keras(found):
    assert found["losses"] == pytest.approx(found["plain"], rel=1e-5)
    assert len(set(found["plain"])) == 3


def test_gradients_by_one_weight_where_a_device_has_no_samples(found):
    assert max(found["gradients"]) < 1e-4


def test_rows_take_no_message_of_grpc(found):
    by_grpc, by_rows = found["bytes"]
    # Three devices send two others a row, with 24 bytes before it. The chief
    # has sent two of them theirs, as any tensor.
    assert by_rows == pytest.approx(20 * 6 * (found["row"] + 24), rel=0.01)
    assert by_grpc < 20 * 2 * found["row"] * 1.2


def test_a_device_that_fails_ends_the_step_for_all(found):
    error, seconds = found["failed"]
    assert error == "InvalidArgumentError"
    assert seconds < 30


def test_a_worker_that_dies_ends_the_step(found):
    error, seconds = found["lost"]
    assert error in ("UnavailableError", "AbortedError")
    assert seconds < 30


def test_devices_of_one_process_need_no_connection(strategy):
    assert row_ports(strategy.devices) == []
    rows = [tf.fill((2, 3), float(n)) for n in range(3)]

    @tf.function
    def exchanged(rows):
        return rows_of_all(rows, strategy.devices)

    for here in exchanged(rows):
        np.testing.assert_array_equal(here, rows)
    graph = exchanged.get_concrete_function(rows).graph
    assert not [
        op for op in graph.get_operations() if op.type.endswith("ExchangeRows")
    ]


def test_strangers_are_turned_away():
    # An address that no machine has, of a block for examples (RFC 5737).
    assert ops.listen("192.0.2.1") is None
    identity, port = ops.listen("127.0.0.1")
    assert ops.listen("127.0.0.1") == (identity, port)
    (listens,) = [
        each.laddr
        for each in psutil.Process().net_connections()
        if each.status == psutil.CONN_LISTEN and each.laddr.port == port
    ]
    assert listens.ip == "127.0.0.1"
    for sent in (
        b"GET / HTTP/1.1\r\n\r\n      ",
        struct.pack("<qqq", 0x7466637670726F77, 1, identity + 1),
    ):
        with socket.create_connection(("127.0.0.1", port), 10) as stranger:
            stranger.sendall(sent)
            assert stranger.recv(100) == b""
    assert not ops.connect((identity + 1, port), "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = (identity + 1, silent.getsockname()[1])
        assert not ops.connect(address, "127.0.0.1")
    assert not ops.connect(address, "127.0.0.1")

"""Who hangs, and who is only busy."""

import concurrent.futures
import socket
import threading
import time

import grpc
import pytest

from tf_convpar.cluster import health
from tf_convpar.cluster.spec import Task


class Busy(grpc.GenericRpcHandler):
    """A server whose threads come to no call, as TensorFlow's may be."""

    def __init__(self):
        self.over = threading.Event()

    def service(self, handler_call_details):
        return grpc.unary_unary_rpc_method_handler(self.answer)

    def answer(self, request, context):
        self.over.wait()
        return b""


@pytest.fixture
def busy():
    """The address of one."""
    handler = Busy()
    pool = concurrent.futures.ThreadPoolExecutor(1)
    server = grpc.server(pool, handlers=[handler])
    port = server.add_insecure_port("localhost:0")
    server.start()
    yield f"localhost:{port}"
    handler.over.set()
    server.stop(None).wait()


@pytest.fixture
def stopped():
    """The address of one whose kernel accepts connections, and nobody else."""
    with socket.create_server(("localhost", 0)) as listener:
        yield f"localhost:{listener.getsockname()[1]}"


def given_up(monkeypatch, address, seconds):
    """Seconds until a task is given up; None if it is not within them."""
    monkeypatch.setattr(health, "_EVERY_S", 0.1)
    monkeypatch.setattr(health, "_LEAST_S", 3.0)
    hangs = threading.Event()
    start = time.monotonic()
    with health.Watch(
        lambda: {Task("worker", 0, address): 1}, lambda task, why: hangs.set()
    ):
        if not hangs.wait(seconds):
            return None
        return time.monotonic() - start


def test_who_accepts_a_connection_is_busy(monkeypatch, busy):
    assert given_up(monkeypatch, busy, 8.0) is None


def test_who_is_busy_for_very_long_hangs(monkeypatch, busy):
    monkeypatch.setattr(health, "_BUSY_TIMES", 2.0)
    assert given_up(monkeypatch, busy, 60.0) >= 6.0


def test_who_accepts_none_hangs(monkeypatch, stopped):
    monkeypatch.setattr(health, "_BUSY_TIMES", 100.0)
    assert given_up(monkeypatch, stopped, 60.0) >= 3.0

"""Tasks that answer the chief, and do not reach one another."""

import concurrent.futures
import contextlib
import signal
import threading
import time

import grpc
import pytest
from parted import parted_workers

from tf_convpar.cluster import health
from tf_convpar.cluster import members as members_module
from tf_convpar.cluster.health import Steps
from tf_convpar.cluster.members import Members
from tf_convpar.cluster.reach import Reach
from tf_convpar.cluster.reach import cut_off_pairs
from tf_convpar.cluster.reach import vertex_cover
from tf_convpar.cluster.spec import Task
from tf_convpar.cluster.status import DeviceStatus
from tf_convpar.cluster.status import ask

CHIEF = Task("chief", 0, "a:2222")
A, B, C, D = (Task("worker", i, f"{'bcde'[i]}:2222") for i in range(4))
# Seconds in which these workers answer.
ANSWER_S = 2.0


@contextlib.contextmanager
def answering(task):
    """A server that answers as TensorFlow's does, without any devices."""

    class Status(grpc.GenericRpcHandler):
        def service(self, details):
            if details.method.endswith("GetStatus"):
                return grpc.unary_unary_rpc_method_handler(lambda *_: b"")
            return None

    pool = concurrent.futures.ThreadPoolExecutor(4)
    server = grpc.server(pool, [Status()])
    assert server.add_insecure_port(f"localhost:{task.port}") == task.port
    server.start()
    yield
    server.stop(None).wait()


def test_few_leave_and_the_later_of_two():
    everyone = [A, B, C, D]
    assert vertex_cover([], everyone) == []
    assert vertex_cover([(A, B)], everyone) == [B]
    # One in most pairs, whichever it is.
    assert vertex_cover([(A, B), (A, C), (A, D)], everyone) == [A]
    assert vertex_cover([(A, B), (C, D)], everyone) == [D, B]
    # The chief stays.
    assert vertex_cover([(CHIEF, A), (A, B)], everyone) == [A]
    assert vertex_cover([(CHIEF, A), (CHIEF, C)], everyone) == [C, A]


def test_workers_that_do_not_reach_each_other(monkeypatch, caplog):
    """And come back when they do; who hangs or dies is something else."""
    monkeypatch.setattr(members_module, "_ANSWER_S", ANSWER_S)
    monkeypatch.setattr(Members, "_change", lambda self: None)
    with parted_workers() as local:
        chief, others = local.cluster.chief, local.cluster.others
        with answering(chief):
            found = ask(others, 10.0)
            members = Members(chief, found)
            assert cut_off_pairs(chief, others, 10.0) == []
            assert members.lost() == []
            local.part((1, 0))
            # Both answer this process.
            assert ask(others, ANSWER_S, patient=False) == found
            assert members.lost() == [others[1]]
            assert "worker 0 and worker 1 do not reach one an" in caplog.text
            members.leave([others[1]])
            assert cut_off_pairs(chief, others[:1], ANSWER_S) == []
            assert members.returned() == []
            local.mend()
            until = time.monotonic() + 10.0
            while not (back := members.returned()):
                assert time.monotonic() < until
            assert back == [others[1]]
            members.join(back)
            # A question that was open is answered once it can be.
            local.part((0, 1))
            with Reach([others, others[::-1]]) as reach:
                assert reach.answers(1.0) == {
                    others: None,
                    others[::-1]: True,
                }
                local.mend()
                assert all(reach.answers(10.0).values())
            # Who is silent is not reached by the other one either.
            local.workers[0].signal(signal.SIGSTOP)
            assert cut_off_pairs(chief, others, 1.0) == []
            local.workers[0].signal(signal.SIGCONT)
        # There is no chief any more.
        pairs = cut_off_pairs(chief, others, ANSWER_S)
        assert pairs == [(chief, other) for other in others]


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 100.0

        def monotonic(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(health, "time", clock)
    return clock


def test_a_step_that_stands_still(clock):
    """As long as it runs, and for longer than others did."""
    steps = Steps()
    for took in (2.0, 3.0, 4.0, 3.0):
        with steps.one():
            clock.now += took
            assert not steps.stand_still()
    assert steps.got_on_until() == clock.now == 112.0
    with steps.one():
        # Usually 3 s; the spread is half a second.
        clock.now += 7.9
        assert not steps.stand_still()
        clock.now += 0.2
        assert steps.stand_still()
        assert steps.got_on_until() == 112.0
    clock.now += 50.0
    assert not steps.stand_still()
    # Others go on, and prove nothing.
    with steps.one():
        for _ in range(20):
            with steps.one():
                clock.now += 1.0
        assert steps.got_on_until() == 112.0 + 7.9 + 0.2 + 50.0
        assert steps.stand_still()
    # One that failed is no measure.
    took = list(steps._durations)
    with contextlib.suppress(ValueError), steps.one():
        clock.now += 50.0
        raise ValueError
    assert list(steps._durations) == took
    # The first of all, of which nothing is known, is looked into as soon.
    first = Steps()
    assert steps.are_known and not first.are_known
    with first.one():
        clock.now += 4.9
        assert not first.stand_still()
        clock.now += 0.2
        assert first.stand_still()


@pytest.mark.parametrize("known", [True, False])
def test_a_first_step_may_only_be_tracing(monkeypatch, known):
    """One late answer parts nobody then; two do, and one once steps end."""
    answers = [[(A, B)], [], [(A, B)], [(A, B)]]
    monkeypatch.setattr(
        members_module, "cut_off_pairs", lambda *_: answers.pop(0)
    )
    device = DeviceStatus("/device:CPU:0", "CPU", 1 << 28, "")
    members = Members(CHIEF, {A: (device,), B: (device,)})
    if known:
        with members.steps.one():
            pass
    over = threading.Event()
    members._separate(over)
    assert members._hanging == ({B} if known else set())
    if not known:
        members._separate(over)
        assert members._hanging == {B} and not answers

"""Timelines: real traces of a cluster, and what is made of them."""

import itertools
import json
import socket
import time

import forks
import pytest
from PIL import Image
from processes import environment

from tf_convpar import timeline
from tf_convpar.cluster.local_cluster import local_workers
from tf_convpar.cluster.spec import Task
from tf_convpar.timeline import Span
from tf_convpar.timeline import from_traces
from tf_convpar.timeline import kind_of
from tf_convpar.timeline import rows_of

CHIEF = """
import concurrent.futures, dataclasses, json, sys, time
import keras, numpy as np
import tf_convpar as convpar
from tf_convpar import timeline

strategy = convpar.ConvParallelStrategy()
with strategy.scope():
    model = keras.Sequential([
        keras.Input((16, 16, 3)),
        convpar.ConvParallel2D(12, 3, shards=(5, 4, 3)),
        convpar.ConvParallel2D(12, 3, shards=(5, 4, 3)),
        keras.layers.Flatten(),
        keras.layers.Dense(10),
    ])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(True))
x, y = np.ones((32, 16, 16, 3), "float32"), np.arange(32) % 10
model.train_on_batch(x, y)
with concurrent.futures.ThreadPoolExecutor(2) as pool:
    begin = time.time()
    first = pool.submit(timeline.record, strategy.cluster.tasks, 1.0)
    time.sleep(0.3)
    second = pool.submit(timeline.record, strategy.cluster.tasks[:1], 0.1)
    while not (first.done() and second.done()):
        model.train_on_batch(x, y)
print("SPANS " + json.dumps({
    "spans": [dataclasses.astuple(s) for s in first.result().spans],
    "began": first.result().began_s - begin,
    "second": str(second.exception()),
}))
"""


@pytest.fixture(scope="module")
def trace():
    with local_workers(2, threads=1) as cluster:
        done = forks.run(
            ["-c", CHIEF],
            env=environment(TF_CONFIG=cluster.tf_config()),
            timeout=120,
        )
    assert done.returncode == 0, done.stderr
    (line,) = (s for s in done.stdout.splitlines() if s.startswith("SPANS "))
    found = json.loads(line[len("SPANS ") :])
    return [Span(*values) for values in found["spans"]], found


@pytest.mark.alone  # It records for a second: steps must not last.
def test_every_task_convolves(trace):
    spans, _ = trace
    tasks = ["/job:chief/task:0", "/job:worker/task:0", "/job:worker/task:1"]
    assert {span.task for span in spans} == set(tasks)
    for task in tasks:
        kinds = [span.kind for span in spans if span.task == task]
        # Of two layers; only the second one's inputs need a gradient.
        forward = kinds.count("forward convolution")
        assert forward > 4
        assert abs(kinds.count("kernel gradient") - forward) <= 4
        assert abs(kinds.count("input gradient") - forward / 2) <= 4
    joins = {span.task for span in spans if span.kind == "join and cut"}
    assert joins == {"/job:chief/task:0"}
    assert {s.kind for s in spans} <= {*timeline.KINDS, "step"}


@pytest.mark.alone  # It records for a second: steps must not last.
def test_times_of_all_tasks_agree(trace):
    spans, found = trace
    assert all(0 <= s.start_s <= s.end_s < 1.5 for s in spans)
    assert [s.start_s for s in spans] == sorted(s.start_s for s in spans)
    steps = [s for s in spans if s.kind == "step"]
    assert len(steps) > 2
    # By the chief's clock: it was asked to record then.
    assert 0 <= found["began"] < 0.5
    # A step on the chief holds the workers' convolutions of that step: two
    # forward ones each. One clock off by a step's time would break this.
    for step in steps[1:-1]:
        inside = [
            s.task
            for s in spans
            if s.kind == "forward convolution"
            and step.start_s < s.start_s
            and s.end_s < step.end_s
        ]
        assert inside.count("/job:worker/task:0") == 2
        assert inside.count("/job:worker/task:1") == 2


@pytest.mark.alone  # With those above: there is one trace for all.
def test_one_recording_at_a_time(trace):
    _, found = trace
    assert found["second"].startswith(
        "Expected /job:chief/task:0 at localhost:"
    )


def test_record_names_the_task_that_does_not_answer():
    with socket.socket() as closed:
        closed.bind(("localhost", 0))
        task = Task("worker", 3, f"localhost:{closed.getsockname()[1]}")
        with pytest.raises(RuntimeError, match="/job:worker/task:3.*UNAVAIL"):
            timeline.record([task], 0.1)


@pytest.mark.alone  # With those above: there is one trace for all.
def test_chrome_trace(trace, tmp_path):
    spans, _ = trace
    timeline.to_chrome(spans, tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    assert list(names.values()) == [
        "chief, CPU",
        "worker 0, CPU",
        "worker 1, CPU",
    ]
    drawn = [e for e in events if e["ph"] == "X"]
    assert len(drawn) == sum(span.kind != "step" for span in spans)
    assert {e["pid"] for e in drawn} == set(names)
    longest = max(
        (s for s in spans if s.kind != "step"),
        key=lambda s: s.end_s - s.start_s,
    )
    event = max(drawn, key=lambda e: e["dur"])
    assert event["ts"] == pytest.approx(longest.start_s * 1e6)
    assert event["args"]["operation"] == longest.name


@pytest.mark.alone  # With those above: there is one trace for all.
def test_picture_of_a_trace(trace, tmp_path):
    spans, _ = trace
    timeline.draw(spans, tmp_path / "trace.png")
    picture = Image.open(tmp_path / "trace.png").convert("RGB")
    assert min(picture.size) > 300
    colours = {c for _, c in picture.getcolors(2**24)}
    assert {(0x00, 0x72, 0xB2), (0xE6, 0x9F, 0x00)} < colours


def test_nothing_to_draw(tmp_path):
    with pytest.raises(ValueError, match="did anything train"):
        timeline.draw([], tmp_path / "trace.png")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("m/conv/add:_MklNativeFusedConv2D", "forward convolution"),
        ("m/conv/Conv3D:Conv3D", "forward convolution"),
        ("m/t/conv2d_transpose:Conv2DBackpropInput", "forward convolution"),
        ("gradient_tape/m/t/Conv2D:Conv2D", "input gradient"),
        (
            "P/gradient_tape/m/c/Conv2DBackpropInput:"
            "_MklNativeConv2DBackpropInput",
            "input gradient",
        ),
        (
            "gradient_tape/m/c/B:DepthwiseConv2dNativeBackpropFilter",
            "kernel gradient",
        ),
        ("m/c/B:TfConvpar>BilinearForward", "forward convolution"),
        ("gradient_tape/m/B:TfConvpar>BilinearForward", "input gradient"),
        (
            "gradient_tape/m/B:TfConvpar>BilinearKernelGradient",
            "kernel gradient",
        ),
        ("m/c/T:TfConvpar>ConcatShards", "join and cut"),
        ("gradient_tape/m/c/T:TfConvpar>SplitShards", "join and cut"),
        ("m/c/concat:_MklConcatV2", "join and cut"),
        ("m/c/IdentityN/_58:_Send", "send"),
        ("m/c/Relu:Relu", "rest"),
        ("ExecutorState::Process", None),
        ("EagerLocalExecute: OptionalHasValue", None),
        ("EagerLocalExecute: __inference_one_step_on_data_12", "step"),
        ("EagerLocalExecuteAsync: __inference_one_step_12", None),
    ],
)
def test_kinds(name, kind):
    assert kind_of(name) == kind


def space(begin_ns, plane_name, events, stat=None):
    """A task's trace: events are (name, offset in ps, duration in ps)."""
    found = timeline.Space()
    environment = found.planes.add(name="Task Environment")
    entry = environment.stat_metadata.add(key=7)
    entry.value.name = "profile_start_time"
    environment.stats.add(metadata_id=7, uint64_value=begin_ns)
    plane = found.planes.add(name=plane_name)
    line = plane.lines.add(timestamp_ns=1000)
    plane.stat_metadata.add(key=1).value.name = "tf_op"
    for number, (name, offset, duration) in enumerate(events, start=1):
        plane.event_metadata.add(key=number).value.name = name
        event = line.events.add(
            metadata_id=number, offset_ps=offset, duration_ps=duration
        )
        if stat:
            event.stats.add(metadata_id=1, str_value=stat)
    return found


def test_clocks_and_gpus():
    found = from_traces(
        {
            "/job:worker/task:0": space(
                5_000_000_000,
                "/device:GPU:1",
                [("volta_sgemm", 0, 10**12)],
                stat="m/c/Conv2D:Conv2D",
            ),
            "/job:chief/task:0": space(
                3_000_000_000, "/host:CPU", [("m/Relu:Relu", 10**6, 10**12)]
            ),
        }
    )
    chief, worker = found.spans
    assert found.began_s == 3.0
    assert chief.start_s == pytest.approx(2e-6)
    assert (worker.device, worker.kind) == ("GPU:1", "forward convolution")
    assert worker.start_s == pytest.approx(2 + 1e-6)
    assert worker.end_s == pytest.approx(3 + 1e-6)


def test_a_trace_must_say_when_it_began():
    broken = timeline.Space()
    with pytest.raises(ValueError, match="profile_start_time"):
        from_traces({"/job:chief/task:0": broken})


def op(start, end, task="/job:chief/task:0", kind="rest"):
    return Span(task, "CPU", "m/Relu:Relu", kind, start, end)


def course():
    """A `fit` of eight steps that began before its trace, with changes."""
    steps = [timeline.Steps(i - 4, i - 3.1, 1, 0.9) for i in range(8)]
    events = [
        timeline.Event("lost worker 1", -2.0, -2.0),
        timeline.Event("copy of the model", -1.5, 1.5, timeline.COPIES),
        timeline.Event("moved shares", 0.92, 0.98),
    ]
    return timeline.Course(steps, events)


def test_chrome_trace_has_the_whole_fit(tmp_path):
    file = tmp_path / "trace.json"
    timeline.to_chrome([op(0.2, 0.4), op(1.2, 1.4)], file, course())
    events = json.loads(file.read_text())["traceEvents"]
    assert min(e["ts"] for e in events if "ts" in e) == 0
    begins = {
        kind: [e["ts"] / 1e6 for e in events if e.get("cat") == kind]
        for kind in ("rest", "step", timeline.CHANGES, timeline.COPIES)
    }
    # 4 s later than before, all of them.
    assert begins == {
        "rest": pytest.approx([4.2, 5.2]),
        "step": pytest.approx(list(range(8))),
        timeline.CHANGES: pytest.approx([2.0, 4.92]),
        timeline.COPIES: pytest.approx([2.5]),
    }
    (moved,) = (e for e in events if e["name"] == "moved shares")
    assert moved["dur"] == pytest.approx(0.06e6)
    curve = [e["args"]["ms"] for e in events if e["ph"] == "C"]
    assert curve == pytest.approx([900.0] * 8)
    threads = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert threads == {"steps", timeline.CHANGES, timeline.COPIES}


def test_picture_has_what_happened_in_the_fit(tmp_path):
    spans = [op(0, 1, kind="step"), op(0.2, 0.4)]
    calm = timeline.Course(course().steps, course().events[1:2])
    many = timeline.Course(course().steps, course().events * 20)
    heights, marked = [], []
    for number, one in enumerate((None, calm, course(), many)):
        file = tmp_path / f"{number}.png"
        timeline.draw(spans, file, course=one)
        picture = Image.open(file).convert("RGB")
        heights.append(picture.height)
        colours = {c for _, c in picture.getcolors(2**24)}
        marked.append((0xD5, 0x5E, 0x00) in colours)
    assert marked == [False, False, True, True]
    none, copies, two, forty = heights
    assert none == copies < two < forty < 2 * two


def test_steps_of_a_long_fit_are_counted_together():
    counted = timeline.Counted()
    for i in range(9001):
        counted.add(i, i + (0.5 if i < 4096 else 0.25))
    entries = counted.entries
    assert 1000 <= len(entries) <= 2000
    assert sum(e.count for e in entries) == 9001
    assert {e.count for e in entries[:-1]} == {8}
    assert (entries[0].start_s, entries[-1].end_s) == (0, 9000.25)
    assert [entries[i].each_s for i in (0, 511, 512)] == [0.5, 0.5, 0.25]
    for one, other in itertools.pairwise(entries):
        assert one.end_s < other.start_s


def test_what_is_noted():
    before = time.time()
    timeline.note("first")
    for _ in range(3000):
        timeline.note("copy", before, timeline.COPIES)
    between = time.time()
    timeline.note("later", between)
    found = timeline.noted(before)
    # Many copies push nothing else out.
    own = [e.text for e in found if e.row == timeline.CHANGES]
    assert own == ["first", "later"]
    assert len(found) < 1100
    assert [e.start_s for e in found] == sorted(e.start_s for e in found)
    assert [e.text for e in timeline.noted(found[-1].end_s)] == ["later"]
    assert found[-1].start_s == between <= found[-1].end_s


def test_last_steps():
    steps = [op(i, i + 0.9, kind="step") for i in range(4)]
    work = [op(i + 0.2, i + 0.4) for i in range(4)]
    shown, window = timeline.last_steps([*work, *steps], 2)
    assert window == (2, 3.9)
    assert shown == [*work[2:], *steps[2:]]
    shown, window = timeline.last_steps(work, 2)
    assert (shown, window) == (work, (0.2, 3.4))
    assert timeline.last_steps([], 2) == ([], (0, 0))


def test_rows_and_lanes():
    workers = [op(0, 1, f"/job:worker/task:{i}") for i in (10, 2)]
    a, b, c = op(0, 2), op(1, 3), op(2, 3)
    rows = rows_of([*workers, b, c, a, op(0, 9, kind="step")])
    assert [row.label for row in rows] == [
        "chief, CPU",
        "worker 2, CPU",
        "worker 10, CPU",
    ]
    assert rows[0].lanes == ((a, c), (b,))

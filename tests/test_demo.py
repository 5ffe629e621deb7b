"""`convpar demo`, from beginning to end, and its parts."""

import dataclasses
import io
import json
import time
import uuid

import forks
import numpy as np
import psutil
import pytest
import tensorflow as tf
from cases import slow
from click.testing import CliRunner
from PIL import Image
from processes import CONVPAR
from processes import environment
from processes import kill_tree
from processes import start
from rich.console import Console

from tf_convpar import machines
from tf_convpar import plans
from tf_convpar.cli.main import main
from tf_convpar.demo import data
from tf_convpar.demo import report as report_lib
from tf_convpar.demo import table
from tf_convpar.demo.settings import Settings

STEPS, BATCH = 12, 32
MARK = "TF_CONVPAR_TEST_MARK"


def marked(mark):
    """Processes that have this mark in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark:
                found.append(process)
        except psutil.Error:
            pass
    return found


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """Report, stderr and files of one demo, with oneDNN as users have it."""
    output = tmp_path_factory.mktemp("demo") / "new" / "output"
    mark = uuid.uuid4().hex
    env = environment(TF_ENABLE_ONEDNN_OPTS="1", **{MARK: mark})
    del env["TF_CPP_MIN_LOG_LEVEL"]
    done = forks.run(
        [*CONVPAR[1:], "demo", "--star", "--json", f"--steps={STEPS}"]
        + [f"--batch-size={BATCH}", f"--output={output}"],
        env=env,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
    assert marked(mark) == []
    return json.loads(done.stdout), done.stderr, output


def test_both_trainings_are_alike(demo):
    report, _, _ = demo
    plain, split = report["trainings"]
    one, other = (np.array(t["losses"]) for t in (plain, split))
    assert one.shape == other.shape == (STEPS,)
    np.testing.assert_allclose(other, one, rtol=1e-4)
    assert split["differs"] == pytest.approx(
        np.max(np.abs(one - other) / np.maximum(one, other))
    )
    # On some processors no bit differs.
    assert split["differs"] < 1e-4
    # Losses of steps, of different batches, of a network that learns.
    assert len(set(one)) == STEPS
    assert np.mean(one[-3:]) < np.mean(one[:3])
    for name in ("held_out_loss", "held_out_accuracy"):
        assert plain[name] == pytest.approx(split[name], rel=1e-2)
    assert 0.1 < plain["held_out_accuracy"] <= 1
    assert 0 < plain["held_out_loss"] < one[0]


def test_it_was_split(demo):
    report, _, _ = demo
    assert [t["devices"] for t in report["trainings"]] == [1, 3]
    assert len(report["devices"]) == 3
    for name, filters in (("conv_50", 50), ("conv_500", 500)):
        sizes = report["kernels"][name]
        assert len(sizes) == 3
        assert sum(sizes) == filters
        assert min(sizes) > 0
        assert len(set(sizes)) > 1


def test_bytes_are_what_theory_says(demo):
    report, _, _ = demo
    first, second = report["kernels"].values()
    expected = 0
    for device in (1, 2):
        maps = 28 * 28 * first[device]
        expected += 32 * 32 * 3 + 2 * maps
        expected += 2 * (14 * 14 * 50 + 10 * 10 * second[device])
    assert report["theory_bytes"] == 4 * BATCH * expected
    # Only so does nobody else's traffic count.
    assert report["counted_on"] == "sockets"
    assert report["bytes_ratio"] == pytest.approx(1, abs=0.03)
    assert report["bytes_ratio"] == pytest.approx(
        report["measured_bytes"] / report["theory_bytes"]
    )


def test_times(demo):
    report, _, _ = demo
    plain, split = report["trainings"]
    assert 1e-3 < plain["step_s"] < 10
    assert 1e-3 < split["step_s"] < 10
    faster = plain["step_s"] / split["step_s"]
    assert split["adds"] == split["faster"] == pytest.approx(faster)
    cores = len(machines.usable_cores())
    assert report["cores"] == cores
    assert report["bound"] == pytest.approx(min(cores, 3))


def test_screen(demo):
    _, stderr, _ = demo
    for part in ("plain Keras, one device", "split by filters, 3 devices"):
        assert f"Training {part}" in stderr
    assert "oneDNN" not in stderr  # TensorFlow's chatter.


def test_pictures(demo):
    _, _, output = demo
    for name, wanted in (
        ("losses.png", {"#F5B800", "#0B3C7D"}),
        ("timeline.png", {"#0072B2", "#E69F00", "#009E73", "#CC79A7"}),
    ):
        picture = Image.open(output / name).convert("RGB")
        assert min(picture.size) > 400
        pixels = picture.width * picture.height
        count = {
            f"#{r:02X}{g:02X}{b:02X}": n
            for n, (r, g, b) in picture.getcolors(pixels)
        }
        for colour in wanted:
            assert count.get(colour, 0) > 100, (name, colour)


def test_timeline_has_every_task_at_work(demo):
    _, _, output = demo
    events = json.loads((output / "timeline.json").read_text())["traceEvents"]
    names = {
        e["args"]["name"]: e["pid"]
        for e in events
        if e["name"] == "process_name"
    }
    assert set(names) == {"fit", "chief, CPU", "worker 0, CPU", "worker 1, CPU"}
    del names["fit"]
    for pid in names.values():
        kinds = {e.get("cat") for e in events if e["pid"] == pid}
        assert {"forward convolution", "kernel gradient"} < kinds


def test_export(demo):
    report, _, output = demo
    assert 0 <= report["export_difference"] < 1e-4
    served = tf.saved_model.load(str(output / "model"))
    images = data.load("digits")
    scores = served.serve(images.held_out_x).numpy()
    # It learned: the classes are ten, and it is no guess.
    right = np.argmax(scores, axis=-1) == images.held_out_y
    assert np.mean(right) > 0.15


def printed(report, settings):
    console = Console(file=io.StringIO(), width=80)
    table.print_report(report, settings, console)
    text = console.file.getvalue()
    assert max(map(len, text.splitlines()[:-1])) <= 80
    return text


def test_table(demo):
    values, _, output = demo
    report = report_lib.Report.from_dict(values)
    assert json.loads(json.dumps(report.to_dict())) == values
    settings = Settings("digits", [1], None, STEPS, BATCH, 1, output, 2)
    report = dataclasses.replace(report, cores=2, parts=(0.5, 1.0, 0.5))
    text = printed(report, settings)
    assert f"{report.plain.step_s * 1e3:.0f} ms" in text
    assert f"{report.adds(report.split):.2f}" in text
    assert f"{report.measured_bytes / 1e6:.2f} MB" in text
    assert "bytes a step, on sockets" in text
    assert f"{report.theory_bytes / 1e6:.2f} MB" in text
    assert f"{report.bytes_ratio:.4f}" in text
    assert f"{report.split.held_out_accuracy:.1%}" in text
    text = " ".join(text.split())
    first, *_ = report.kernels.values()
    assert f"50 = {' + '.join(map(str, first))}; 500 = " in text
    assert "chief 0 50%, worker 0 100%, worker 1 50%" in text
    assert "can gain 2x" in text
    assert "The plan" not in text
    assert "Sums in another order" in text
    report = dataclasses.replace(report, wire_dtype="bfloat16")
    assert "rounded to bfloat16" in printed(report, settings)


def test_what_a_plan_leaves_out_is_told(demo):
    values, _, output = demo
    settings = Settings("digits", [1], None, STEPS, BATCH, 1, output, 2)
    report = report_lib.Report.from_dict(values)
    used = report.devices[:2]
    fewer = dataclasses.replace(report, used=used, predicted_s=0.123)
    text = " ".join(printed(fewer, settings).split())
    assert "The plan leaves worker 1 CPU:0 out" in text
    assert "step time, by the plan │ │ 123 ms" in text
    whole = dataclasses.replace(report, used=used[:1], reason="Too slow.")
    assert "The plan splits nothing. Too slow." in printed(whole, settings)


def test_scores_of_guesses_are_not_shown(demo):
    values, _, output = demo
    settings = Settings("digits", [1], None, STEPS, BATCH, 1, output, 2)
    report = report_lib.Report.from_dict(values)
    assert "held-out accuracy" in printed(report, settings)
    few = [
        dataclasses.replace(training, losses=training.losses[:8])
        for training in report.trainings
    ]
    report = dataclasses.replace(report, trainings=tuple(few))
    assert "held-out" not in printed(report, settings)


def test_a_split_that_is_slower_is_told_so(demo):
    values, _, output = demo
    settings = Settings("digits", [1], None, STEPS, BATCH, 1, output, 2)
    for step_s, told in ((9.0, True), (1e-9, False)):
        report = report_lib.Report.from_dict(values)
        plain, split = report.trainings
        split = dataclasses.replace(split, step_s=step_s)
        report = dataclasses.replace(report, trainings=(plain, split))
        assert ("slower than one device" in printed(report, settings)) == told


@pytest.mark.parametrize(
    ("shards", "problem"),
    [
        ("1,2", "Error: Expected --shards to be 3 numbers"),
        ("1,a,2", "Error: Expected --shards to be 3 numbers"),
        slow(
            ("3,-1,3", "Error: Expected `shards` to be one number per device")
        ),
    ],
)
def test_bad_shards(shards, problem, tmp_path):
    arguments = [f"--shards={shards}", f"--output={tmp_path / 'o'}"]
    result = CliRunner().invoke(main, ["demo", "--star", *arguments])
    assert result.exit_code in (1, 2)
    assert isinstance(result.exception, SystemExit)
    assert problem in result.output
    assert not (tmp_path / "o").exists()


def test_a_worker_that_dies_ends_it(tmp_path):
    mark = uuid.uuid4().hex
    demo = start([*CONVPAR, "demo", "--output", tmp_path / "o"], **{MARK: mark})
    try:
        deadline = time.monotonic() + 60
        workers = []
        while not workers and time.monotonic() < deadline:
            workers = [p for p in marked(mark) if "worker" in p.cmdline()]
        # While it runs, and not when all is over.
        assert demo.stdout.readline() == "0:00  Starting\n"
        workers[0].kill()
        output, _ = demo.communicate(timeout=60)
    finally:
        kill_tree(demo)
    assert demo.returncode == 1
    assert "ended with signal SIGKILL" in output
    assert "Traceback" not in output
    assert marked(mark) == []


@pytest.mark.slow  # It takes a minute and a half.
def test_plain_keras_beside_a_plan(tmp_path):
    done = forks.run(
        [*CONVPAR[1:], "demo", "--json", f"--output={tmp_path}"],
        env=environment(TF_ENABLE_ONEDNN_OPTS="1"),
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    report = report_lib.Report.from_dict(json.loads(done.stdout))
    plan = plans.load(tmp_path / "plan.json")
    assert len(report.devices) == 3 and len(plan) == 8
    assert report.parts == (1.0, 0.6, 0.4)
    assert [t.devices for t in report.trainings] == [1, 1, 3, 3]
    assert report.kernels == plan.allocation
    for training in report.trainings[1:]:
        assert training.losses[-1] < training.losses[0]
        assert training.losses != report.plain.losses
        assert training.replicas or report.differs(training) < 1e-2
    (replicas,) = (t for t in report.trainings if t.replicas)
    assert report.one.step_s / replicas.step_s == report.adds(replicas) > 0.5
    assert replicas.held_out_loss < 2 * report.plain.held_out_loss
    # Losses of steps, none of which is that of the step before.
    assert len(set(report.plain.losses)) == 8
    assert report.faster(report.trainings[1]) > 1
    if report.is_split:
        assert report.bytes_ratio == pytest.approx(1, rel=0.03)
    assert 0 <= report.export_difference < 1e-3
    names = {path.name for path in tmp_path.iterdir()}
    assert {"losses.png", "plan.png", "timeline.png", "model"} < names
    settings = Settings("digits", None, None, 8, 48, 1, tmp_path, 2)
    text = printed(report, settings)
    assert f"{report.faster(report.trainings[1]):.2f}" in text
    for training in report.trainings[2:]:
        assert f"{report.adds(training):.2f}" in text
    # The plan's reason may name it as well.
    assert text.count("SyncSGD") in (2, 3)
    assert "stage3_residual_2" in text
    assert "The plan splits nothing" in text or report.is_split

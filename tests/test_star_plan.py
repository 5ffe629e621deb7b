"""Plans: what they say, their files, tables and pictures."""

import dataclasses
import io
import json

import pytest
from rich.console import Console
from star_cases import cluster
from star_cases import device_name
from star_cases import network
from star_cases import random_calibration

import tf_convpar as convpar
from tf_convpar import plans
from tf_convpar.planner import star
from tf_convpar.planner.star import fingerprint

SPLIT = {"rate": 1.25e9}
ALONE = {"rate": 1e6}


def with_memory(calibration, *limits):
    devices = tuple(
        dataclasses.replace(device, memory_bytes=limit)
        for device, limit in zip(calibration.devices, limits, strict=True)
    )
    return dataclasses.replace(calibration, devices=devices)


def show(plan):
    console = Console(width=120, file=io.StringIO())
    console.print(plans.table(plan))
    return console.file.getvalue()


def test_a_split():
    calibration = cluster([1.2e11, 6e10, 1e8], **SPLIT)
    plan = star.plan(calibration)
    assert plan.devices == tuple(device_name(d) for d in range(3))
    assert plan["conv2d"] == (500, 0, 0)
    assert sum(plan["conv2d_1"]) == 1500
    assert plan["conv2d_1"][2] == 0
    assert plan.used == plan.devices[:2]
    assert plan.prediction == star.predict(calibration, plan.allocation)
    for d, name in enumerate(plan.devices):
        one = {
            c.name: tuple(c.filters * (i == d) for i in range(3))
            for c in calibration.network
        }
        assert plan.single_s[name] == star.predict(calibration, one).step_s
    assert plan.best_single == (device_name(0), plan.single_s[device_name(0)])
    equal = {"conv2d": (167, 167, 166), "conv2d_1": (500, 500, 500)}
    assert plan.equal_s == star.predict(calibration, equal).step_s
    gain = plan.best_single[1] / plan.prediction.step_s
    assert plan.reason.startswith("2 devices take ")
    assert f"{gain:.2f} times as fast as chief 0 CPU:0 alone" in plan.reason
    assert "worker 1 CPU:0 would not make it shorter" in plan.reason


def test_no_split():
    calibration = cluster([1e11, 1e11], **ALONE)
    plan = star.plan(calibration)
    assert plan.used == (device_name(0),)
    assert plan.reason.startswith(
        "One device is fastest: chief 0 CPU:0 alone takes "
        f"{plan.prediction.step_s:.2f} s a step, the best split over several "
        "devices "
    )
    assert "link chief 0 CPU:0 -> worker 0 CPU:0 is busy for" in plan.reason


def test_the_split_that_it_is_compared_with_is_of_whole_units():
    calibration = cluster([1e11, 1e11, 1e10], **ALONE)
    reason = star.plan(calibration, 1000).reason
    split = {"conv2d": (500, 0, 0), "conv2d_1": (1000, 500, 0)}
    step_s = star.predict(calibration, split).step_s
    assert f"over several devices {step_s:.2f} s" in reason


def test_one_device():
    plan = star.plan(cluster([1e11]))
    assert plan.reason == "There is one device only."
    assert plan.equal_s == plan.prediction.step_s == plan.best_single[1]


def test_one_kernel_cannot_be_split():
    calibration = cluster([1e11, 1e10], layers=network((1, 1)))
    assert "no layer's kernels can be shared" in star.plan(calibration).reason


def test_where_no_device_holds_everything():
    calibration = cluster([1e11, 1e11], **SPLIT)
    needed = sum(
        star.memory_bytes(calibration, c, c.filters)
        for c in calibration.network
    )
    limits = int(needed * 0.7)
    plan = star.plan(with_memory(calibration, limits, limits))
    assert plan.best_single is None
    assert "no device has the memory for all kernels" in plan.reason
    assert "none has the memory" in show(plan)


def test_where_equal_shares_do_not_fit():
    calibration = cluster([1e11, 1e11], **SPLIT)
    plan = star.plan(with_memory(calibration, None, 10**8))
    assert plan.equal_s is None
    assert list(plan.single_s) == [device_name(0)]
    assert "needs more memory than there is" in show(plan)


def test_strategy_takes_it():
    plan = star.plan(cluster([1e11, 1e11], **SPLIT))
    strategy = convpar.ConvParallelStrategy(devices=["CPU:0"], plan=plan)
    assert strategy.plan == plan.allocation


def test_given_counts():
    calibration = cluster([1e11, 1e11], **SPLIT)
    counts = {"conv2d": (500, 0), "conv2d_1": [100, 1400]}
    plan = star.plan_of(calibration, counts)
    assert plan["conv2d_1"] == (100, 1400)
    assert plan.prediction == star.predict(calibration, counts)
    assert plan.reason.startswith("As given: 2 devices take ")
    gain = plan.best_single[1] / plan.prediction.step_s
    assert f"{gain:.2f} times as fast" in plan.reason


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"conv2d": (400, 0)}, "which sum to 400"),
        ({"conv2d": (500,)}, "2 numbers of kernels"),
        ({"conv2d": (250.0, 250.0)}, r"Received: \(250.0, 250.0\)\."),
        ({"conv2d": (501, -1)}, "sum to the 500 filters"),
        ({"conv2d_2": (1, 1)}, r"Received: \['conv2d_2'\] besides"),
    ],
)
def test_given_counts_that_cannot_be(changes, message):
    counts = {"conv2d": (500, 0), "conv2d_1": (1500, 0)} | changes
    with pytest.raises(ValueError, match=message):
        star.plan_of(cluster([1e11, 1e11]), counts)


def test_given_counts_that_do_not_fit():
    calibration = with_memory(cluster([1e11, 1e11]), None, 10**8)
    with pytest.raises(ValueError, match=r"worker.* has 100000000 bytes"):
        star.plan_of(calibration, {"conv2d": (0, 500), "conv2d_1": (0, 1500)})


@pytest.mark.parametrize("case", range(25))
def test_file_round_trip(tmp_path, case):
    calibration = random_calibration(case)
    calibration = dataclasses.replace(
        calibration,
        links=tuple(
            dataclasses.replace(link, bytes_per_s=min(link.bytes_per_s, 1e9))
            for link in calibration.links
        ),
    )
    plan = star.plan(calibration)
    plan.save(tmp_path / "plan.json")
    assert plans.load(tmp_path / "plan.json") == plan
    assert star.load_plan(tmp_path / "plan.json", calibration) == plan


@pytest.fixture
def saved(tmp_path):
    """A calibration, its plan's file, and what changes the file."""
    calibration = with_memory(cluster([1e11, 1e11], **SPLIT), 10**9, 3 * 10**8)
    file = tmp_path / "plan.json"
    star.plan(calibration).save(file)

    def edit(change):
        content = json.loads(file.read_text())
        change(content)
        file.write_text(json.dumps(content))

    return calibration, file, edit


def test_edited_counts(saved):
    calibration, file, edit = saved
    before = plans.load(file)
    edit(lambda c: c["layers"][1].update(shards=[700, 800]))
    plan = plans.load(file)
    assert plan["conv2d_1"] == (700, 800)
    assert plan.prediction is None
    assert plan.reason.startswith("Changed by hand")
    assert plan.single_s == before.single_s
    with pytest.raises(ValueError, match="with a prediction"):
        plans.draw(plan, file.parent / "plan.png")
    assert "the counts were changed by hand" in show(plan)
    # Once saved like this it stays like this.
    plan.save(file)
    assert plans.load(file) == plan

    plan = star.load_plan(file, calibration)
    assert plan == star.plan_of(calibration, plan.allocation)
    assert plan.prediction.step_s > before.prediction.step_s


def test_another_calibration_gives_another_prediction(saved):
    _, file, _ = saved
    slower = cluster([5e10, 1e11], **SPLIT)
    plan = star.load_plan(file, slower)
    assert plan == star.plan_of(slower, plans.load(file).allocation)


EDITS = [
    (
        lambda c: c["layers"][1].update(shards=[700, 700]),
        r"that sum to 1500, at layers\[1\].shards of .*plan.json. "
        r"Received: \[700, 700\], which sum to 1400",
    ),
    (lambda c: c["layers"][0].update(shards=[500]), "2 numbers of kernels"),
    (lambda c: c["layers"][0].update(shards=[501, -1]), r"shards\[1\]"),
    (lambda c: c["layers"][0].update(shards=[250.0, 250]), r"shards\[0\]"),
    (
        lambda c: [
            layer.update(shards=[0, layer["of"]]) for layer in c["layers"]
        ],
        r"kernels that fit the memory of devices at layers of .*worker.* has "
        r"300000000 bytes, and would need \d+",
    ),
    (lambda c: c["layers"][1].update(name="conv2d"), "distinct names of lay"),
    (lambda c: c["devices"].pop(), "1 numbers of kernels"),
    (lambda c: c.update(kind="calibration"), "Expected a plan: a file"),
    (lambda c: c.update(format=1), "Plan again"),
    (lambda c: c.pop("reason"), "no 'reason'"),
    (lambda c: c["prediction"].update(step_s=-1), "at prediction.step_s"),
    (lambda c: c["prediction"]["spans"][0].update(end=-1), r"spans\[0\].end"),
]


@pytest.mark.parametrize(("change", "message"), EDITS)
def test_edits_that_are_refused(saved, change, message):
    _, file, edit = saved
    edit(change)
    with pytest.raises(ValueError, match=message):
        plans.load(file)


def test_calibration_of_something_else(saved):
    _, file, edit = saved
    other = cluster([1e11, 1e11], layers=network((500, 1400)))
    with pytest.raises(ValueError, match="at fingerprint of .*plan.json"):
        star.load_plan(file, other)
    with pytest.raises(ValueError, match="Expected the calibration's devices"):
        star.load_plan(file, cluster([1e11] * 3))
    # The batch is no part of the plan.
    batch = cluster([1e11, 1e11], layers=network(batch=32))
    assert star.load_plan(file, batch).prediction is not None
    # A layer's filters changed along with its kernels.
    edit(lambda c: c["layers"][1].update(shards=[700, 700], of=1400))
    with pytest.raises(ValueError, match="sum to the 1500 filters"):
        star.load_plan(file, cluster([1e11, 1e11]))


def test_table():
    plan = star.plan(cluster([1.2e11, 6e10, 1e8], **SPLIT))
    text = show(plan)
    assert "worker 1" not in text  # It has no kernels.
    first, second = plan["conv2d_1"][:2]
    row = next(line for line in text.splitlines() if "conv2d_1" in line)
    cells = [cell.strip() for cell in row.split("│")[1:-1]]
    assert cells == ["conv2d_1", "filters", "1500", str(first), str(second)]
    busy = plan.prediction.busy()[device_name(0)] / plan.prediction.step_s
    for line in (
        f"Predicted step      {plan.prediction.step_s:.2f} s",
        f"Busiest device      chief 0 CPU:0, {busy:.0%} of it",
        "Busiest link        chief 0 CPU:0 -> worker 0 CPU:0,",
        f"Best single device  {plan.best_single[1]:.2f} s, chief 0 CPU:0",
        f"Equal split         {plan.equal_s:.2f} s",
    ):
        assert line in text


def test_table_of_many_devices():
    text = show(star.plan(cluster([1e11] * 12, **SPLIT)))
    assert "8 more" in text


@pytest.mark.parametrize("name", ["plan.png", "plan", "plan.svg"])
def test_picture(tmp_path, name):
    plan = star.plan(cluster([1.2e11, 6e10], **SPLIT))
    plans.draw(plan, tmp_path / name)
    content = (tmp_path / name).read_bytes()
    if name.endswith(".svg"):
        assert b"<svg" in content
    else:
        assert content.startswith(b"\x89PNG")
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_picture_of_an_unknown_format(tmp_path):
    plan = star.plan(cluster([1e11]))
    with pytest.raises(ValueError, match="[Ff]ormat"):
        plans.draw(plan, tmp_path / "plan.doc")
    assert not list(tmp_path.iterdir())


def test_fingerprint():
    same = fingerprint(network())
    assert same == fingerprint(network(batch=1))
    assert same != fingerprint(network((500, 1501)))

"""`convpar simulate`."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from collections.abc import Sequence
from typing import TYPE_CHECKING
from typing import Any

import click

from tf_convpar.cli import _method
from tf_convpar.cli import _models
from tf_convpar.cli import _plans
from tf_convpar.cli import _presets
from tf_convpar.cli import _simulate_star
from tf_convpar.cli import _simulate_ways
from tf_convpar.cli._shared import OutputFile
from tf_convpar.cli._shared import as_json
from tf_convpar.cli._shared import messages_only
from tf_convpar.cli._shared import print_json

if TYPE_CHECKING:
    from rich.status import Status

    from tf_convpar.planner import Calibration
    from tf_convpar.planner import Simulation

# The sweeps of the star, as its `SWEEPS` names them; whole models have the
# first three. To import that would make `--help` wait for TensorFlow.
SWEEPS = ("devices", "bandwidth", "batch", "kernels", "heterogeneity")
# Options that describe the star's cluster, which a file describes as well.
_DESCRIPTION = (
    "devices",
    "link",
    "latency",
    "kernels",
    "batch",
    "conv_share",
    "rest",
    "idle",
)
_STAR_OPTIONS = (
    "kernels",
    "conv_share",
    "rest",
    "idle",
    "quantum",
    "watts",
)
_MODEL_OPTIONS = (
    "model",
    "image",
    "modules",
    "wire_dtype",
    "moments",
    "output",
    *_simulate_ways.NAMES,
)
# Images in a step, if nothing else is said.
_BATCH = {_method.MODEL: 32, _method.STAR: 64}


@click.command(name="simulate")
@click.argument(
    "calibration",
    required=False,
    type=click.Path(exists=True, dir_okay=False, path_type=pathlib.Path),
)
@click.option(
    "--model",
    type=_models.Model(),
    metavar="MODEL",
    help="A .keras file, or a model of keras.applications by name, such as "
    "ResNet50.",
)
@click.option(
    "--devices",
    metavar="LIST",
    help="[N x]NAME[:RATE][@WATTS], separated by commas, the chief first, such "
    "as 4xcpu:100GFLOPS,2xgpu:2TFLOPS@180W; or names without a rate, as "
    "--presets lists them. Only the star's table knows of power.",
)
@click.option(
    "--link",
    default="1Gbit",
    show_default=True,
    help="Rate of each device's interface and direction: 100Mbit, 1.2GB (a "
    "second), inf.",
)
@click.option("--latency", default="0.1ms", show_default=True)
@click.option(
    "--batch",
    type=click.IntRange(min=1),
    help="Images in a step; by default 32, and 64 for the star.",
)
@_models.image
@_models.imported
@_models.wire_dtype
@_models.moments
@_simulate_ways.options
@_simulate_star.options
@click.option(
    "--sweep",
    type=click.Choice(SWEEPS),
    help="Plan for some values of this, a row each, instead of one cluster. "
    "For the star devices by default; kernels and heterogeneity are for the "
    "star only.",
)
@click.option(
    "--values",
    metavar="V,V,...",
    help="Values of the sweep: 1,2,4 or 100Mbit,1Gbit or 50:500,500:1500.",
)
@_plans.output
@click.option(
    "--csv",
    "csv_file",
    type=OutputFile(),
    help="Write the rows of a sweep to this file.",
)
@click.option(
    "--png",
    type=OutputFile(),
    help="Draw here who is busy when in the step; for the star, and for "
    "--ways, the rows.",
)
@_method.option
@_presets.option
@as_json
@click.pass_context
def command(
    context: click.Context,
    calibration: pathlib.Path | None,
    sweep: str | None,
    values: str | None,
    csv_file: pathlib.Path | None,
    png: pathlib.Path | None,
    method: str,
    presets: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Plan a model for devices that nobody has.

    \b
      convpar simulate --model VGG16 --image 64 --devices 2xcpu:100GFLOPS
      convpar simulate --model VGG16 --devices 4xcpu:100GFLOPS --sweep devices
      convpar simulate --model VGG16 --devices 4xcpu:100GFLOPS \
          --sweep bandwidth --ways all
      convpar simulate calibration.json --speeds 1,0.6,0.4 --sweep bandwidth
      convpar simulate --method star --devices 4xcpu:100GFLOPS,gpu:2TFLOPS

    The time of a convolution on a device is in proportion to its
    multiplications, that of another layer to the bytes that it reads and
    writes. How each convolution is split, and how long a step takes, is what
    `convpar plan` would say for such devices. With a sweep, --ways compares
    splitting with the methods of convpar.replicas instead.

    CALIBRATION is a file of `convpar calibrate`: times are those that were
    measured, on other links, and with --speeds on other machines.

    With --method star, these are steps of paper 1's star. Without a
    CALIBRATION of `convpar calibrate --method star`, --devices describes
    the cluster, and the network is two convolutions of 5x5 on images of
    32x32x3, each followed by pooling.
    """  # noqa: D301 (click keeps the lines after a backspace as they are)
    if presets:
        _presets.show(as_json)
        return
    _method.check(context, method, star=_STAR_OPTIONS, model=_MODEL_OPTIONS)
    of_star = method == _method.STAR
    options["batch"] = options["batch"] or _BATCH[method]
    if of_star:
        _check_star(context, calibration, options["devices"])
    else:
        if calibration is None:
            _check_model(options)
        else:
            _check_measured(context, options)
        draws = options["ways"] is None and calibration is None
        writes = options["output"] or (png if draws else None)
        _check_sweep(sweep, values, csv_file, writes)
    from rich.console import Console

    if of_star and sweep is None:
        sweep = "devices"
    status = Console(stderr=True).status("Planning")

    def report(label: str) -> None:
        status.update(f"Planning for {sweep} {label}")

    wanted = None
    if values is not None:
        with messages_only():
            wanted = [_value(sweep, v.strip()) for v in values.split(",")]
    if sweep is None:
        _one_plan(calibration, options, png, as_json, status)
        return
    simulation: Simulation[Any]
    if of_star:
        simulation = _sweep_star(
            calibration, sweep, wanted, options, status, report
        )
    elif options["ways"] is not None or calibration is not None:
        simulation = _sweep_ways(
            calibration, sweep, wanted, options, status, report
        )
    else:
        simulation = _sweep_model(sweep, wanted, options, status, report)
    with messages_only():
        if csv_file is not None:
            simulation.csv(csv_file)
        if png is not None:
            from tf_convpar import planner
            from tf_convpar.papers import star_simulation

            draw: Any = star_simulation.draw if of_star else planner.draw_ways
            draw(simulation, png)
    if as_json:
        print_json(simulation.to_dict())
    else:
        Console().print(simulation.table(), highlight=False)


def _check_star(
    context: click.Context,
    calibration: pathlib.Path | None,
    devices: str | None,
) -> None:
    if calibration is None and devices is None:
        raise click.UsageError(
            "Expected a calibration file or --devices, such as --devices "
            "4xcpu:100GFLOPS. Received neither."
        )
    described = _method.given_of(context, _DESCRIPTION)
    if calibration is not None and described:
        raise click.UsageError(
            f"Expected {described[0]} without a file, which says that for "
            f"itself. Received it with {calibration}."
        )


def _check_measured(context: click.Context, options: dict[str, Any]) -> None:
    refused = ["devices", "batch", "image"]
    if options["speeds"] is None:
        refused += ["link", "latency"]
    described = _method.given_of(context, (*refused,))
    if described:
        raise click.UsageError(
            f"Expected {described[0]} without a calibration, which says that "
            "for itself; --link and --latency go with --speeds. Received both."
        )


def _check_model(options: dict[str, Any]) -> None:
    if options["speeds"] is not None:
        raise click.UsageError(
            "Expected --speeds with a calibration file. Received none: "
            "--devices says how fast described devices are."
        )
    if options["model"] is None or options["devices"] is None:
        raise click.UsageError(
            "Expected --model and --devices, such as --model ResNet50 "
            "--devices 4xcpu:100GFLOPS,2xgpu:2TFLOPS; or --method star, which "
            "has other options. Received no "
            f"{'--model' if options['model'] is None else '--devices'}."
        )


def _check_sweep(
    sweep: str | None,
    values: str | None,
    csv_file: pathlib.Path | None,
    plan_output: pathlib.Path | None,
) -> None:
    if sweep is None and values is not None:
        raise click.UsageError("Expected --values with --sweep.")
    if sweep is None and csv_file is not None:
        raise click.UsageError("Expected --csv with --sweep.")
    if sweep is not None and plan_output is not None:
        raise click.UsageError(
            "Expected --sweep, which makes a plan for each value, or --output "
            "and --png, which write one. Received both."
        )


def _sweep_star(
    calibration: pathlib.Path | None,
    sweep: str,
    values: Sequence[Any] | None,
    options: dict[str, Any],
    status: Status,
    report: Callable[[str], None],
) -> Simulation[Any]:
    from tf_convpar.papers import star_simulation

    words = {name: options[name] for name in _DESCRIPTION}
    with messages_only(), status:
        cluster = _simulate_star.cluster(calibration, options["watts"], **words)
        quantum = options["quantum"]
        return star_simulation.simulate(cluster, sweep, values, quantum, report)


def _sweep_model(
    sweep: str,
    values: Sequence[Any] | None,
    options: dict[str, Any],
    status: Status,
    report: Callable[[str], None],
) -> Simulation[Any]:
    model = _loaded(options)
    from tf_convpar import planner

    words = _cluster(options) | _settings(options)
    about = _about(options)
    with messages_only(), status:
        return planner.sweep(
            model, sweep, values, about=about, report=report, **words
        )


def _about(options: dict[str, Any]) -> str:
    return (
        f"{pathlib.Path(options['model']).stem}, batch {options['batch']}: "
        f"{options['devices']}, {options['link']}"
    )


def _sweep_ways(
    calibration: pathlib.Path | None,
    sweep: str,
    values: Sequence[Any] | None,
    options: dict[str, Any],
    status: Status,
    report: Callable[[str], None],
) -> Simulation[Any]:
    model, cluster, about = _machines(calibration, options)
    from tf_convpar import planner

    if sweep == "bandwidth":
        about = about.removesuffix(f", {options['link']}")
    words = _settings(options) | _simulate_ways.arguments(options)
    with messages_only(), status:
        return planner.sweep_ways(
            model, cluster, sweep, values, about=about, report=report, **words
        )


def _machines(
    calibration: pathlib.Path | None, options: dict[str, Any]
) -> tuple[Any, Calibration, str]:
    """The model, its calibration, measured or described, and a description."""
    if calibration is not None:
        with messages_only():
            return _simulate_ways.measured(calibration, options)
    model = _loaded(options)
    from tf_convpar import planner

    with messages_only():
        return (
            model,
            planner.described(model, **_cluster(options)),
            _about(options),
        )


def _one_plan(
    calibration: pathlib.Path | None,
    options: dict[str, Any],
    png: pathlib.Path | None,
    as_json: bool,
    status: Status,
) -> None:
    model, cluster, _ = _machines(calibration, options)
    from tf_convpar import planner

    settings = _settings(options)
    with messages_only(), status:
        plan = planner.plan(model, cluster, **settings)
        words = settings | _simulate_ways.arguments(options)
        ways = planner.compare(model, cluster, plan=plan, **words)
    _plans.show(plan, options["output"], png, as_json, ways)


def _cluster(options: dict[str, Any]) -> dict[str, Any]:
    words = {name: options[name] for name in ("devices", "link", "latency")}
    return words | {"batch_size": options["batch"]}


def _settings(options: dict[str, Any]) -> dict[str, Any]:
    moments = options["moments"] or "all"
    return {"wire_dtype": options["wire_dtype"], "moments": moments}


def _loaded(options: dict[str, Any]) -> Any:
    """Loads the model, after the description of the cluster was checked."""
    from tf_convpar.planner import descriptions

    with messages_only():
        # Mistakes in these are told before TensorFlow is waited for.
        descriptions.devices(options["devices"])
        descriptions.link(options["link"], options["latency"])
    return _models.load(options["model"], options["image"])


def _value(sweep: str | None, text: str) -> Any:
    """Reads a value of a sweep."""
    from tf_convpar import units

    if sweep == "kernels":
        return _simulate_star.kernels_of(text)
    if sweep == "bandwidth":
        return units.bytes_per_s(text)
    try:
        return float(text) if sweep == "heterogeneity" else int(text)
    except ValueError as error:
        what = "numbers" if sweep == "heterogeneity" else "whole numbers"
        raise ValueError(
            f"Expected {what} for a sweep over {sweep}, separated by commas. "
            f"Received: {text!r}."
        ) from error

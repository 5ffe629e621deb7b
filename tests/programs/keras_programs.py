"""Run as the chief of a cluster: whole Keras programs, plain and parallel.

    convpar launch -n 3 tests/programs/keras_programs.py vae dcgan
    convpar launch -n 3 tests/programs/keras_programs.py --table

Arguments: names of programs; none for all, `-` to read them from stdin, one a
line. `--modes` lists what to run besides plain Keras. Prints one JSON object a
line for each program, as soon as it has run; with `--table`, a table instead.
"""

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

# Before TensorFlow is imported: digits are compared.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
sys.path.insert(0, str(Path(__file__).parents[1]))

import keras

import tf_convpar as convpar


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--modes", default="exchanged,parallelize")
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    modes = [mode for mode in given.modes.split(",") if mode]
    # Before any variable. Plain Keras alone needs no cluster.
    strategy = convpar.ConvParallelStrategy() if modes else None

    from keras_programs import PROGRAMS

    names = given.names or list(PROGRAMS)
    if names == ["-"]:
        names = (line.strip() for line in sys.stdin)
    reports = []
    for name in names:
        # What programs print is not for whoever reads the JSON.
        with contextlib.redirect_stdout(sys.stderr):
            report = compared(PROGRAMS[name], modes, strategy)
        reports.append(report)
        print(
            json.dumps(report),
            flush=True,
            file=sys.stderr if given.table else sys.stdout,
        )
    if given.table:
        print(table(reports, modes))


def compared(program, modes, strategy):
    """What a program gives, by mode, beside what it gives plain.

    An error of one mode is that mode's result: whoever reads the report says
    whether it matters.
    """
    from keras_programs._compare import difference

    theirs, plain = run(program, "plain", contextlib.nullcontext())
    report = {"program": program.name, "plain": plain}
    for mode in modes:
        ours, report[mode] = run(program, mode, strategy.scope())
        if ours and theirs:
            for kind in ("losses", "predictions"):
                report[mode][f"difference of {kind}"] = difference(
                    ours[kind], theirs[kind]
                )
    return report


def run(program, mode, scope):
    """Runs a program once; its arrays, or None, and a report."""
    from keras_programs._compare import arrays
    from keras_programs._kit import Kit

    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    wide = "float64" if program.dtype == "float64" else "float32"
    keras.config.set_floatx(wide)
    keras.config.set_dtype_policy(program.dtype)
    begun = time.process_time()
    try:
        with tempfile.TemporaryDirectory() as folder, scope:
            kit = Kit(mode, folder)
            given = program.run(kit)
            numbers = {kind: arrays(given[kind]) for kind in given}
            devices = kit.devices()
    # KeyboardInterrupt and SystemExit end the runner; a program may raise
    # anything else.
    except Exception as error:
        return None, {"ok": False, **described(error)}
    return numbers, {
        "ok": True,
        "devices": devices,
        "losses": [float(a[0]) for a in numbers["losses"]],
        "predictions": [a[:4].tolist() for a in numbers["predictions"]][:4],
        "cpu_seconds": round(time.process_time() - begun, 1),
    }


def described(error):
    """The error's type and first lines, and where it was raised."""
    lines = str(error).strip().splitlines()
    frames = traceback.extract_tb(error.__traceback__)
    return {
        "error": "\n".join([type(error).__name__, *lines[:8]]),
        "trace": [
            f"{Path(f.filename).name}:{f.lineno} {f.name}: {f.line}"
            for f in frames[-12:]
        ],
    }


def table(reports, modes):
    """The reports as Markdown."""
    rows = [
        "| program | runs as it is | changes needed | largest relative "
        f"difference of losses: {', '.join(modes)} |",
        "|---|---|---|---|",
    ]
    for report in reports:
        failed = [mode for mode in ("plain", *modes) if not report[mode]["ok"]]
        figures = [
            f"{report[mode].get('difference of losses', float('nan')):.0e}"
            for mode in modes
        ]
        as_it_is = f"no: {', '.join(failed)}" if failed else "yes"
        rows.append(
            f"| {report['program']} | {as_it_is} | "
            f"{'?' if failed else 'none'} | {', '.join(figures)} |"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    main()

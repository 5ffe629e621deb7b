"""Runs the tests that are nearest to what has changed, for two minutes.

    python tools/check.py                # since the branch left main
    python tools/check.py HEAD~3         # since that commit
    python tools/check.py --tell         # only says what it would run
    python tools/check.py --minutes 5

Nearest are tests that have changed, then those of the changed package, then
those of the packages above it, in the layers of the import contract; `uses.py`
says who uses what. It is no proof that all is well: `make test` is.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

from uses import CONFTEST
from uses import PACKAGE
from uses import TESTS
from uses import Uses

BIN = pathlib.Path(sys.executable).parent
# As `make test`; in turns, so that what is nearest begins first.
BESIDE = "-n logical --maxprocesses 4 --dist load --disable-warnings".split()
WORKERS = min(4, os.cpu_count() or 1)
NOT_HERE = "not slow and not alone"
# What starts and collects, before the first test, and ends.
AROUND_S = 25
# Before the time is up, no test begins any more: what runs by then shall end.
ENDS_S = 15
# A file of tests that nobody has timed here, where no other was either.
USUAL_S = 10
# As tests/seconds.py writes them.
SECONDS = ".pytest_cache/v/tests/seconds"
UNTIL = "TF_CONVPAR_TESTS_UNTIL"
PAGE = re.compile(r"(docs/.*|benchmarks/[^/]*/README|[^/]*)\.md")
DOCS = f"{TESTS}/test_docs.py"
NATIVE = "custom_ops/"
# Loads what is compiled of them.
LOADS_OPS = f"{PACKAGE}/ops/_library.py"
SHOWN = 8


def main() -> int:
    """Tells, lints and tests; returns 1 where something fails."""
    begin = time.time()
    options = arguments()
    root = pathlib.Path(git("rev-parse", "--show-toplevel")[0])
    os.chdir(root)
    base, why = since(options.since)
    changed = sorted(
        {
            *git("diff", "--name-only", "--no-renames", base),
            *git("ls-files", "--others", "--exclude-standard"),
        }
    )
    print(f"{count(changed, 'file')} changed since {base[:9]}, {why}.")
    if not changed:
        return 0
    tracked = git("ls-files", "--cached", "--others", "--exclude-standard")
    uses = Uses(root, {*tracked, *changed})
    for file in changed:
        print(f"  {file}: {consequence(uses, file)}")

    runs = lint(changed)
    pages = [file for file in changed if PAGE.fullmatch(file)]
    if pages:
        words = " or ".join(pages)
        runs.append(["pytest", DOCS, "-m", NOT_HERE, "-k", words])
    seconds = known_seconds(root)
    chosen, left_out = choose(
        uses, changed, seconds, (options.minutes * 60 - AROUND_S) * WORKERS
    )
    tell_tests(uses, chosen, left_out, seconds, options.minutes)
    if chosen:
        runs.append(["pytest", *BESIDE, "-m", NOT_HERE, *chosen])
    if options.tell:
        return 0
    until = str(begin + 60 * options.minutes - ENDS_S)
    failed = [run for run in runs if not passes(run, until)]
    print(f"\n{time.time() - begin:.0f} s. `make test` runs all.")
    for run in failed:
        print(f"Failed: {' '.join(run[:4])}{' ...' * (len(run) > 4)}")
    return bool(failed)


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("since", nargs="?", help="a commit, not main's")
    parser.add_argument("--minutes", type=float, default=2)
    parser.add_argument("--tell", action="store_true", help="runs nothing")
    return parser.parse_args()


def git(*words: str) -> list[str]:
    """The lines of a command of git's."""
    done = subprocess.run(
        ["git", "-c", "core.quotePath=off", *words],
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        sys.exit(f"git {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout.splitlines()


def since(commit: str | None) -> tuple[str, str]:
    """What is compared with, and why that."""
    if commit:
        return git("rev-parse", "--verify", f"{commit}^{{commit}}")[0], commit
    refs = git("for-each-ref", "--format=%(refname)")
    for name in ("heads/main", "remotes/origin/main"):
        if f"refs/{name}" in refs:
            # Without `git`: there may be none.
            done = subprocess.run(
                ["git", "merge-base", "HEAD", f"refs/{name}"],
                capture_output=True,
                text=True,
            )
            if done.returncode == 0:
                where = name.partition("/")[2]
                return done.stdout.strip(), f"where this branch left {where}"
    return git("rev-parse", "HEAD")[0], "the last commit"


def consequence(uses: Uses, file: str) -> str:
    """What is done about a file that has changed."""
    if not pathlib.Path(file).exists():
        return "is gone; who still uses it, is tested"
    if PAGE.fullmatch(file):
        return "its code and links are tested"
    if file in uses.tests():
        return "runs"
    tests = uses.nearest(starts([file]))
    if file.startswith(NATIVE):
        return (
            f"C++: run `make asan` and `make test` as well; "
            f"{count(tests, 'file')} of tests use the ops"
        )
    if not tests:
        return "no test is known to use it; `make test` runs all"
    if file == CONFTEST:
        return f"all {count(tests, 'file')} of tests use it"
    above = len(tests) - sum(layers == 0 for layers, _ in tests.values())
    told = f"{count(tests, 'file')} of tests use it"
    return f"{told}, {above} of them from layers above" if above else told


def starts(changed: list[str]) -> list[str]:
    """The files where uses begin: of C++, what loads it."""
    native = any(file.startswith(NATIVE) for file in changed)
    return [*changed, LOADS_OPS] if native else changed


def lint(changed: list[str]) -> list[list[str]]:
    """What looks at changed files without running them."""
    there = [file for file in changed if pathlib.Path(file).exists()]
    python = [f for f in there if f.endswith((".py", ".ipynb"))]
    native = [f for f in there if f.endswith((".cc", ".cu", ".h"))]
    runs = []
    if python:
        runs.append(["ruff", "check", *python])
        runs.append(["ruff", "format", "--check", *python])
    if any(f.startswith(PACKAGE) for f in changed) or "pyproject.toml" in there:
        runs += [["mypy"], ["lint-imports"]]
    if native:
        runs.append(["clang-format", "--dry-run", "--Werror", *native])
    return runs


def known_seconds(root: pathlib.Path) -> dict[str, float]:
    """Seconds of files of tests, where these tests ran on this machine."""
    file, found = root / SECONDS, {}
    if not file.exists():
        return {}
    for test, took in json.loads(file.read_text()).items():
        path, _, name = test.partition("::")
        source = root / path
        # Tests may have another name by now.
        if source.exists() and f"def {name.partition('[')[0]}(" in (
            source.read_text()
        ):
            found[path] = found.get(path, 0.0) + took
    return found


def choose(
    uses: Uses, changed: list[str], seconds: dict[str, float], most_s: float
) -> tuple[list[str], list[str]]:
    """Test files that fit into so many seconds, nearest first; the others."""
    pages = {file for file in changed if PAGE.fullmatch(file)}
    by_code = uses.nearest(starts({*changed} - pages))
    # The last call, of which `uses.way` tells.
    far = uses.nearest(starts(changed))
    if DOCS in far and DOCS not in by_code:
        # The changed pages run by themselves.
        del far[DOCS]
    words = set().union(*map(words_of, changed))

    def order(test: str) -> tuple[float, ...]:
        layers, steps = far[test]
        named_for = len(words & words_of(test)) if steps else 99
        return layers, -named_for, steps, expected(seconds, test)

    chosen, left_out, total = [], [], 0.0
    for test in sorted(far, key=order):
        took = expected(seconds, test)
        if not chosen or total + took <= most_s:
            chosen.append(test)
            total += took
        else:
            left_out.append(test)
    return chosen, left_out


def words_of(file: str) -> set[str]:
    """`test_cli_tunnel` is named for `cli/_tunnel`."""
    path = file.removeprefix(f"{PACKAGE}/").removeprefix(f"{TESTS}/")
    words = re.findall(r"[a-z]+", path.rpartition(".")[0].lower())
    return {word.removesuffix("s") for word in words} - {"test", "init"}


def expected(seconds: dict[str, float], test: str) -> float:
    """Of a file that nobody has timed here, the mean of the others."""
    if test in seconds:
        return seconds[test]
    return statistics.mean(seconds.values()) if seconds else USUAL_S


def tell_tests(
    uses: Uses,
    chosen: list[str],
    left_out: list[str],
    seconds: dict[str, float],
    minutes: float,
) -> None:
    """Says what runs, and why, and what does not."""

    def took(test: str) -> str:
        sign = "" if test in seconds else "~"
        return f"{sign}{expected(seconds, test):.0f} s"

    def short(file: str) -> str:
        return file.removeprefix(f"{PACKAGE}/").removeprefix(f"{TESTS}/")

    print(
        f"{count(chosen, 'file')} of tests in {minutes:g} minutes, nearest "
        f"first. Seconds are those of the last run here; ~ where none was."
    )
    for test in chosen:
        steps = [short(file) for file in uses.way(test)[1:]]
        why = "by " + " > ".join(steps) if steps else "has changed"
        print(f"  {took(test):>6}  {short(test)}  {why}")
    if left_out:
        names = ", ".join(f"{short(t)} ({took(t)})" for t in left_out[:SHOWN])
        more = len(left_out) - SHOWN
        print(
            f"Left out for lack of time: {count(left_out, 'file')} of tests: "
            f"{names}{f' and {more} more' if more > 0 else ''}."
        )
    print("Tests that are marked slow or alone are left out.")


def passes(command: list[str], until: str) -> bool:
    """Runs a tool of this environment; whether it says that all is well."""
    tool, *words = command
    print(f"\n{' '.join(command)}", flush=True)
    run = [sys.executable, "-m", tool] if tool == "pytest" else [BIN / tool]
    done = subprocess.run([*run, *words], env={**os.environ, UNTIL: until})
    # 5: all tests of these files are marked slow or alone.
    return done.returncode == 0 or (tool, done.returncode) == ("pytest", 5)


def count(items: object, noun: str) -> str:
    """`1 file`, `2 files`."""
    n = len(items)
    return f"{n} {noun}{'s' * (n != 1)}"


if __name__ == "__main__":
    sys.exit(main())

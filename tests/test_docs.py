"""Code in README.md and docs/ runs as written, and links lead somewhere.

The blocks of a page run one after the other, in one namespace and an empty
folder. HTML comments in a page say what a reader need not see: what blocks
stand on, and which ones are left out, and why (https://sybil.readthedocs.io).
"""

import inspect
import itertools
import json
import os
import pathlib
import re
import sys
import unittest

import forks
import keras
import numpy as np
import pytest
import tensorflow as tf
from click.testing import CliRunner
from processes import ROOT
from processes import environment
from processes import kill_tree
from processes import start
from sybil import Document
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import CodeBlockParser
from sybil.parsers.markdown import SkipParser

import tf_convpar as convpar
from tf_convpar import planner
from tf_convpar import plans
from tf_convpar.cli.main import main
from tf_convpar.planner import star

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BENCHMARKS = sorted((ROOT / "benchmarks").glob("*/README.md"))
OTHERS = [ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
# They are about the inside of the package.
FOR_CONTRIBUTORS = ("reading-tour.md", "building-the-op.md")
# It installs and compiles: test_bazel_build.py and `make setup` do.
BUILDS = ("building-the-op.md",)
LANGUAGES = {"python", "sh", "json", "text", "mermaid", ""}

# Importing TensorFlow takes as long as most of these: they run here.
HERE = ("check-build", "devices", "doctor", "env", "estimate", "simulate")
SHELL = f"""
convpar() {{
    case " {" ".join(HERE)} " in
        *" $1 "*) printf '%s\\0' "$#" "$@" >>"$CALLS" ;;
        *) python -m tf_convpar "$@" ;;
    esac
}}
"""
READERS = {
    "plan": plans.load,
    "calibration": planner.load,
    "star calibration": star.load,
}
NUMBER = re.compile(r"\d+(?:\.\d+)?")


class Python(PythonEvaluator):
    """And remembers the source, for `save_block`."""

    def __call__(self, example):
        super().__call__(example)
        example.namespace["block"] = str(example.parsed)


def calls_of(file):
    """The words of each command that bash has written down."""
    words = iter(file.read_text().split("\0")[:-1] if file.exists() else [])
    for count in words:
        yield list(itertools.islice(words, int(count)))


def shell(example):
    """Bash runs the block, but for commands that can run here."""
    file = pathlib.Path("calls")
    file.unlink(missing_ok=True)
    folder = pathlib.Path(sys.executable).parent
    process = start(
        ["bash", "-euo", "pipefail", "-c", SHELL + example.parsed],
        CALLS=str(file.absolute()),
        PATH=f"{folder}:{os.environ['PATH']}",
    )
    try:
        output, _ = process.communicate(timeout=600)
    finally:
        kill_tree(process)
    assert process.returncode == 0, output
    for words in calls_of(file):
        done = CliRunner().invoke(main, words)
        # It says by its code whether all is well on this machine.
        codes = (0, 1) if words[0] == "doctor" else (0,)
        assert done.exit_code in codes, f"{words}: {done.output}"
        output += done.stdout
    example.namespace["output"] = output


def printed(example):
    """Words are those that were printed last; numbers may be a tenth off."""
    found = example.namespace["output"]
    words = NUMBER.sub("#", example.parsed).split()
    assert NUMBER.sub("#", found).split()[: len(words)] == words, found
    numbers = list(map(float, NUMBER.findall(example.parsed)))
    others = list(map(float, NUMBER.findall(found)))[: len(numbers)]
    assert others == pytest.approx(numbers, rel=0.1), found


def file_of(example):
    """What the package writes as JSON, it reads."""
    path = pathlib.Path("block.json")
    path.write_text(example.parsed)
    assert READERS[json.loads(example.parsed)["kind"]](path)


def parse(page):
    """The examples of a page."""
    return Document.parse(
        str(page),
        CodeBlockParser("python", Python()),
        CodeBlockParser("sh", shell),
        CodeBlockParser("text", printed),
        CodeBlockParser("json", file_of),
        SkipParser(),
    )


def run(page, fast):
    """Runs a page; returns how many blocks did, and why others did not."""
    document = parse(page)
    space = document.namespace

    def save_block(name):
        pathlib.Path(name).write_text(space["block"])

    space |= {"fast": fast, "save_block": save_block}
    count, left_out = 0, []
    for example in document:
        try:
            example.evaluate()
        except unittest.SkipTest as reason:
            left_out.append(str(reason))
        else:
            # What says to skip is no block.
            count += isinstance(example.parsed, str)
    return count, left_out


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """An empty folder, and a cache that nobody else has written."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TF_CONVPAR_CACHE", str(tmp_path / "cache"))
    # `convpar devices` sets it.
    monkeypatch.setenv("TF_FORCE_GPU_ALLOW_GROWTH", "true")


def has_code(page):
    return re.search(r"^```(python|sh|json)$", page.read_text(), re.M)


def name_of(page):
    return str(page.relative_to(ROOT))


RUN = [p for p in PAGES if has_code(p) and p.name not in BUILDS]
# What tests of the star, and of the launcher, run as well.
LONG = {
    *("cluster.md", "planning.md", "regions.md", "reproducing-the-papers.md"),
    *("my-model.md", "slow-link.md"),
    # Its blocks are those of README.
    "index.md",
}
SLOW = [page for page in RUN if "if(fast" in page.read_text()]


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.slow if page.name in LONG else [])
        for page in RUN
    ],
    ids=name_of,
)
def test_page_runs(page):
    count, left_out = run(page, fast=True)
    assert count or left_out


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", SLOW, ids=name_of)
def test_all_of_a_page_runs(page):
    _, left_out = run(page, fast=False)
    of_time = re.findall(r'if\(fast, reason="(.+)"\)', page.read_text())
    assert not set(left_out) & set(of_time)


def broken(text, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(text)
    return page


@pytest.mark.parametrize(
    "text",
    [
        "```python\nimport tf_convpar\ntf_convpar.nothing\n```\n",
        "```sh\nconvpar simulate --nothing\n```\n",
        "```sh\nfalse\ntrue\n```\n",
        '```json\n{"kind": "plan", "format": 0}\n```\n',
        "```sh\necho 1.00 s\n```\n\n```text\n1.00 ms\n```\n",
        "```sh\necho 1.00 s\n```\n\n```text\n1.20 s\n```\n",
    ],
    ids=["name", "option", "command", "file", "words", "numbers"],
)
def test_a_page_that_is_wrong_fails(text, tmp_path):
    with pytest.raises((AssertionError, AttributeError, ValueError)):
        run(broken(text, tmp_path), fast=True)


def test_what_is_left_out_has_a_reason(tmp_path):
    text = '<!-- skip: next "no machine" -->\n\n```python\n1 / 0\n```\n'
    assert run(broken(text, tmp_path), fast=True) == (0, ["no machine"])
    for page in RUN:
        for skip in re.findall(r"<!-- skip: (?!end).*", page.read_text()):
            assert re.search(r'(next|start) ("|if\(fast, reason=").+"', skip)


def fences(text):
    """The languages of a page's blocks, and the text outside of them."""
    parts = re.split(r"^```(.*)\n(?:.*\n)*?```$", text, flags=re.M)
    return set(parts[1::2]), "\n".join(parts[::2])


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_is_of_a_kind_that_is_run(page):
    languages, _ = fences(page.read_text())
    assert languages <= LANGUAGES


# A process joins one cluster in its life.
JOINS = "local_workers"
MEASURES = ("calibrate", "choose", "compare", "plan")


# The words that docstrings of public names use.
def words_of_docstrings():
    model = keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            keras.layers.Conv2D(8, 3),
            keras.layers.GlobalMaxPooling2D(),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    x = np.random.default_rng(1).random((8, 8, 8, 3), "float32")
    return {
        **{name: getattr(convpar, name) for name in convpar.__all__},
        **{"convpar": convpar, "planner": convpar, "keras": keras, "tf": tf},
        **{"strategy": convpar.ConvParallelStrategy(), "model": model},
        **{"x": x, "images": x, "y": np.zeros(8)},
        "loss": keras.losses.SparseCategoricalCrossentropy(),
        "calibration": None,
    }


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name in MEASURES))
        for name in convpar.__all__
        if name != JOINS
    ],
)
def test_docstring_of_a_public_name_runs(name, monkeypatch):
    space = words_of_docstrings()
    # Weights would be downloaded.
    made = space["model"]
    monkeypatch.setattr(keras.applications, "ResNet50", lambda **kwargs: made)
    for block in blocks_of_docstring(name):
        exec(block, space)


def blocks_of_docstring(name):
    text = inspect.getdoc(getattr(convpar, name))
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    assert blocks
    return blocks


@pytest.mark.slow  # test_notebook.py and test_docs_site.py, too.
def test_docstring_of_what_joins_a_cluster_runs():
    """In a process of its own: it would make the tests a chief."""
    for block in blocks_of_docstring(JOINS):
        code = f"import tf_convpar as convpar\n{block}"
        done = forks.run(["-c", code], env=environment())
        assert "worker/replica:0/task:1" in done.stdout, done.stderr


@pytest.mark.parametrize(
    "page", [p for p in PAGES if p.name not in FOR_CONTRIBUTORS], ids=name_of
)
def test_pages_for_users_name_public_things_only(page):
    # Where the reference finds what it shows: test_docs_site.py.
    text = re.sub(r"^::: .*$", "", page.read_text(), flags=re.M)
    used = set(re.findall(r"(?<!\w)(?:tf_)?convpar\.(\w+)", text))
    assert used <= set(convpar.__all__)
    assert not re.findall(r"from tf_convpar|import tf_convpar\.", text)


def anchors(page):
    """As GitHub makes them of headings."""
    _, text = fences(page.read_text())
    for title in re.findall(r"^#+ (.*)$", text, re.M):
        yield re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", [*PAGES, *BENCHMARKS, *OTHERS], ids=name_of)
def test_links_lead_somewhere(page):
    _, text = fences(page.read_text())
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


def test_the_index_of_documentation_is_whole():
    links = re.findall(r"\]\(([^)\s]+)\)", PAGES[0].read_text())
    wanted = {name_of(page) for page in (*PAGES[1:], *BENCHMARKS, *OTHERS)}
    # The site's home is this page, shorter.
    assert wanted - {"docs/index.md"} <= set(links)

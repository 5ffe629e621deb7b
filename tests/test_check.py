"""`make check`: which tests a change runs, in real repositories of git's."""

import json
import math
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
TOOL = ROOT / "tools" / "check.py"
sys.path.insert(0, str(TOOL.parent))
import check as tool  # noqa: E402
import uses  # noqa: E402

PYPROJECT = """
[tool.importlinter]
root_package = "tf_convpar"
[[tool.importlinter.contracts]]
name = "down"
type = "layers"
containers = ["tf_convpar"]
layers = [
    "cli",
    "high | other",
    "low",
]

[tool.mypy]
packages = ["tf_convpar"]

[tool.pytest.ini_options]
pythonpath = ["."]
markers = ["slow", "alone"]
"""
# The package hands names on, as ours does; `cli` is found by words alone.
FILES = {
    "pyproject.toml": PYPROJECT,
    "tf_convpar/__init__.py": (
        "def __getattr__(name):\n"
        "    from tf_convpar.high import top\n"
        "    from tf_convpar.low import first\n"
        "    return {'top': top, 'first': first}[name]\n"
    ),
    "tf_convpar/low/__init__.py": (
        "from ._first import first as first\n"
        "from ._second import second as second\n"
    ),
    "tf_convpar/low/_first.py": "def first():\n    return 1\n",
    "tf_convpar/low/_second.py": "def second():\n    return 2\n",
    "tf_convpar/high/__init__.py": (
        "from tf_convpar.high._top import top as top\n"
        '_LATER = {"late": "_late"}\n'
    ),
    "tf_convpar/high/_top.py": (
        "from tf_convpar.low import first\n\n\n"
        "def top():\n    return first() + 1\n"
    ),
    "tf_convpar/high/_late.py": "def late():\n    return 3\n",
    "tf_convpar/other/__init__.py": "",
    "tf_convpar/cli/__init__.py": "",
    "tf_convpar/cli/main.py": "def main(*words):\n    return words\n",
    "tf_convpar/cli/tell_all.py": "from tf_convpar.high import top as top\n",
    "tests/conftest.py": (
        "import pytest\n"
        "from seconds import pytest_runtest_logreport  # noqa: F401\n"
        "from seconds import pytest_runtest_setup  # noqa: F401\n"
        "from seconds import pytest_sessionfinish  # noqa: F401\n"
        "from seconds import pytest_terminal_summary  # noqa: F401\n\n"
        "import tf_convpar\n\n\n"
        "@pytest.fixture\ndef made():\n    return tf_convpar.first()\n"
    ),
    "tests/helpers.py": (
        "from tf_convpar.low import second\n\n\n"
        "def plain():\n    return 0\n\n\n"
        "def twice():\n    return second() * 2\n"
    ),
    "tests/programs/one.py": "import tf_convpar\n\ntf_convpar.top()\n",
    "tests/test_first.py": (
        "from tf_convpar import low\n\n\n"
        "def test_it():\n    assert low.first() == 1\n"
    ),
    "tests/test_fixture.py": "def test_it(made):\n    assert made == 1\n",
    "tests/test_helped.py": (
        "import helpers\n\n\ndef test_it():\n    assert helpers.twice() == 4\n"
    ),
    "tests/test_plain.py": (
        "from helpers import plain\n\n\n"
        "def test_it():\n    assert plain() == 0\n"
    ),
    "tests/test_public.py": (
        "import tf_convpar as convpar\n\n\n"
        "def test_it():\n    assert convpar.top() == 2\n"
    ),
    "tests/test_text.py": (
        'PROGRAM = "from tf_convpar.high import late"\n\n\n'
        "def test_it():\n    assert PROGRAM\n"
    ),
    "tests/test_program.py": (
        'import pathlib\n\nHERE = pathlib.Path(__file__).parent / "programs"\n'
        '\n\ndef test_it():\n    assert (HERE / "one.py").exists()\n'
    ),
    "tests/test_command.py": (
        "from tf_convpar.cli.main import main\n\n\n"
        'def test_it():\n    assert main("tell-all")\n'
    ),
    "docs/page.md": "# A page\n",
    "notes.txt": "nobody reads it\n",
    "custom_ops/op.cc": "int one() { return 1; }\n",
    ".gitignore": "__pycache__/\n.*_cache/\n",
}


def git(folder, *words):
    subprocess.run(
        ["git", "-c", "user.name=x", "-c", "user.email=x@x", *words],
        cwd=folder,
        check=True,
        capture_output=True,
    )


def write(folder, **texts):
    for name, text in texts.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    folder = tmp_path_factory.mktemp("template")
    write(folder, **FILES)
    shutil.copy(ROOT / "tests/seconds.py", folder / "tests")
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "first")
    return folder


@pytest.fixture
def folder(template, tmp_path):
    shutil.copytree(template, tmp_path / "repository")
    return tmp_path / "repository"


def check(folder, *words):
    done = subprocess.run(
        [sys.executable, TOOL, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout + done.stderr


def told(folder, *words):
    code, said = check(folder, "--tell", *words)
    assert code == 0, said
    return said


def listed(said):
    """The test files that are to run, in their order."""
    lines = said.partition("of tests in")[2].partition("Tests that are")[0]
    words = [line.split() for line in lines.splitlines()]
    return [w[2] for w in words if w[1:2] == ["s"]]


def add_line(folder, name, text="\n\nX = 1\n"):
    with (folder / name).open("a") as file:
        file.write(text)


def test_the_layer_that_has_changed_and_then_those_above(folder):
    assert told(folder).startswith("0 files changed")
    add_line(folder, "tf_convpar/low/_first.py")
    said = told(folder)
    assert listed(said) == [
        "test_first.py",
        "test_fixture.py",
        "test_public.py",
        "test_program.py",
        "test_command.py",
    ]
    why = "by cli/tell_all.py > high/_top.py > low/_first.py"
    assert f"test_command.py  {why}" in said
    assert "5 files of tests use it, 3 of them from layers above" in said


@pytest.mark.parametrize(
    "changed, tests",
    [
        # Who needs one helper, does not need what the others do.
        ("tf_convpar/low/_second.py", ["test_helped.py"]),
        ("tf_convpar/high/_late.py", ["test_text.py"]),
        ("tests/programs/one.py", ["test_program.py"]),
        ("tests/helpers.py", ["test_helped.py", "test_plain.py"]),
        ("tests/test_text.py", ["test_text.py"]),
        ("notes.txt", []),
    ],
)
def test_what_uses_a_file(folder, changed, tests):
    add_line(folder, changed)
    said = told(folder)
    assert sorted(listed(said)) == tests
    assert ("no test is known" in said) == (not tests)


def test_what_all_tests_use(folder):
    add_line(folder, "tests/conftest.py")
    add_line(folder, "tests/test_text.py")
    said = told(folder)
    assert "conftest.py: all 8 files of tests use it" in said
    assert len(listed(said)) == 8
    assert listed(said)[0] == "test_text.py"


def test_what_has_changed_since_the_branch_left_main(folder):
    git(folder, "checkout", "-qb", "work")
    add_line(folder, "tf_convpar/low/_second.py")
    git(folder, "commit", "-qam", "of this branch")
    git(folder, "checkout", "-q", "main")
    add_line(folder, "tf_convpar/high/_late.py")
    git(folder, "commit", "-qam", "of another")
    git(folder, "checkout", "-q", "work")
    add_line(folder, "notes.txt")
    (folder / "tests/test_ñ.py").write_text("def test_it():\n    pass\n")
    (folder / "tests/programs/one.py").unlink()
    said = told(folder)
    assert said.startswith("4 files changed since")
    assert "where this branch left main" in said
    for name in ("low/_second.py", "notes.txt", "test_ñ.py"):
        assert f"{name}: " in said
    assert "one.py: is gone" in said
    assert "_late" not in said
    listed_again = listed(told(folder, "HEAD"))
    assert listed_again == ["test_ñ.py", "test_program.py"]
    code, said = check(folder, "nothing")
    assert code != 0 and "nothing" in said and "Traceback" not in said


def test_pages_and_ops_have_their_own(folder):
    add_line(folder, "docs/page.md", "More.\n")
    add_line(folder, "custom_ops/op.cc", "// more\n")
    (folder / "tf_convpar/ops").mkdir()
    (folder / "tf_convpar/ops/_library.py").touch()
    add_line(
        folder, "tests/test_text.py", "from tf_convpar.ops import _library"
    )
    git(folder, "add", "-A")
    said = told(folder)
    assert "docs/page.md: its code and links are tested" in said
    assert "C++: run `make asan` and `make test` as well; 1 file" in said


SECONDS = ".pytest_cache/v/tests/seconds"


def test_what_does_not_fit_is_left_out(folder):
    add_line(folder, "tf_convpar/low/_first.py")
    known = {
        "tests/test_first.py::test_it": 20,
        "tests/test_first.py::test_of_another_name": 9000,
        "tests/test_fixture.py::test_it[a]": 5000,
        "tests/test_fixture.py::test_it[b]": 4000,
        "tests/test_public.py::test_it": 10,
        "tests/test_gone.py::test_it": 1,
    }
    write(folder, **{SECONDS: json.dumps(known)})
    workers = min(4, os.cpu_count())
    said = told(folder, "--minutes", str((8000 / workers + 25) / 60))
    assert "    20 s  test_first.py" in said
    # Nobody has timed it: the mean of three.
    assert " ~3010 s  test_program.py" in said
    assert "1 file of tests: test_fixture.py (9000 s)." in said
    # The nearest runs, however long it takes.
    assert listed(told(folder, "--minutes", "0.1")) == ["test_first.py"]


@pytest.mark.slow
def test_it_fails_where_a_test_or_a_tool_does(folder):
    left_out = "".join(
        f"\n\n@pytest.mark.{mark}\ndef test_{mark}():\n    raise OSError\n"
        for mark in ("slow", "alone")
    )
    first = folder / "tests/test_first.py"
    first.write_text(f"import pytest\n\n{first.read_text()}{left_out}")
    code, said = check(folder)
    assert code == 0, said
    assert "1 passed" in said
    assert "`make test` runs all" in said
    known = json.loads((folder / SECONDS).read_text())
    assert list(known) == ["tests/test_first.py::test_it"]

    add_line(folder, "tests/test_first.py", "import os\n")
    code, said = check(folder)
    assert code == 1
    assert "Failed: ruff check" in said and "1 passed" in said

    git(folder, "checkout", "tests")
    broken = "def first() -> int:\n    return 7\n"
    write(folder, **{"tf_convpar/low/_first.py": broken})
    code, said = check(folder)
    assert code == 1
    assert "3 failed" in said and "2 passed" in said
    assert "Failed: pytest" in said and "Failed: ruff" not in said
    assert "2 kept" not in said and "1 kept, 0 broken" in said


@pytest.mark.slow
def test_no_test_begins_when_the_time_is_up(folder):
    add_line(folder, "tests/test_first.py")
    known = {"tests/test_first.py::test_it": 500.0}
    write(folder, **{SECONDS: json.dumps(known)})
    code, said = check(folder, "--minutes", "1")
    assert code == 0, said
    assert "1 skipped" in said
    assert "as the time was up: 1 of tests/test_first.py" in said
    assert json.loads((folder / SECONDS).read_text()) == known


@pytest.fixture(scope="module")
def ours():
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    files = subprocess.check_output(words, cwd=ROOT, text=True).splitlines()
    return uses.Uses(ROOT, files)


@pytest.mark.parametrize(
    "test, used",
    [
        ("callbacks_elastic", "tests/programs/elastic.py"),
        ("callbacks_elastic", "tf_convpar/callbacks/_elastic.py"),
        ("callbacks_elastic_files", "tf_convpar/cli/launch.py"),
        ("regions", "tf_convpar/sharding/_regions.py"),
        # Nobody names it: its import changes how graphs are run.
        ("regions", "tf_convpar/sharding/_graph_execution.py"),
        ("export_formats", "tf_convpar/ops/_native.py"),
        ("star_calibrate", "tf_convpar/planner/star/_calibrate.py"),
        ("offline", "tools/fatbin.py"),
        ("keras_programs", "tests/keras_programs/_kit.py"),
    ],
)
def test_what_tests_of_this_repository_use(ours, test, used):
    assert f"tests/test_{test}.py" in ours.nearest([used])


def test_layers_are_names_of_a_list(ours):
    """In `tf_convpar/__init__.py`, which is above all layers itself."""
    tests = ours.nearest(["tf_convpar/layers/_depthwise.py"])
    assert tests["tests/test_layer_family.py"][0] == 0


def test_not_all_tests_use_all(ours):
    assert len(ours.levels) > 20
    for file, most in (
        ("cli/_tunnel.py", 0.15),
        ("planner/_sweep.py", 0.2),
        ("replicas/_diloco.py", 0.2),
    ):
        share = len(ours.nearest([f"tf_convpar/{file}"])) / len(ours.tests())
        assert 0 < share < most, (file, share)


def test_the_way_of_each_test_that_a_page_changes_is_known(ours):
    """Pages run by themselves; other tests read them too."""
    chosen, _ = tool.choose(ours, ["README.md"], {}, math.inf)
    assert "tests/test_docs_site.py" in chosen
    for test in chosen:
        assert ours.way(test) == [test, "README.md"]

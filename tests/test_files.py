"""Files that are checked when they are read, and written whole."""

import concurrent.futures
import dataclasses
import json
import os
import pathlib
import re

import pytest
import star_cases
from processes import CONVPAR
from processes import run

from tf_convpar import files
from tf_convpar.files import Checked
from tf_convpar.files import Quantity
from tf_convpar.files import Unexpected


@dataclasses.dataclass(frozen=True)
class Span(Checked):
    start: Quantity
    end: Quantity = 1.0
    names: tuple[str, ...] = ()

    def check(self):
        if self.end < self.start:
            raise Unexpected("an end after the start", "end")


SPAN = {"start": 0.5, "end": 1, "names": ["a"]}


def read(content):
    return files.checked(dict[str, Span], content, "spans.json")


def test_plain_data_becomes_what_it_stands_for():
    assert read({"a b": SPAN}) == {"a b": Span(0.5, 1.0, ("a",))}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"start": True}, 'a number at ["a b"].start of spans.json. '
         "Received: true."),
        ({"start": "1"}, 'a number at ["a b"].start of spans.json. '
         'Received: "1".'),
        ({"names": "a"}, 'an array at ["a b"].names of spans.json. '
         'Received: "a".'),
        ({"names": ["a", None]}, 'a string at ["a b"].names[1] of spans.json. '
         "Received: null."),
        ({"start": 2}, 'an end after the start at ["a b"].end of spans.json. '
         "Received: 1."),
        ({"more": 1, "others": 2}, "every field of its format, and no other, "
         'at ["a b"] of spans.json. '
         "Received: an unknown 'more', an unknown 'others'."),
    ],
)  # fmt: skip
def test_one_sentence_says_what_is_wrong_where(changes, message):
    with pytest.raises(ValueError) as caught:
        read({"a b": SPAN | changes})
    assert str(caught.value) == f"Expected {message}"


def test_a_file_has_no_defaults():
    """Nor for one who wrote a name wrong."""
    with pytest.raises(ValueError, match="no 'end', an unknown 'ends'"):
        read({"a": {"start": 0, "ends": 1, "names": []}})
    # A program has them.
    assert Span(0.5).end == 1.0


def test_long_values_are_cut_short():
    with pytest.raises(ValueError, match=r'Received: "aaa.{53}\.\.\.\.$'):
        read({"a": SPAN | {"start": "a" * 10**6}})


def test_numbers_are_read_bit_for_bit():
    for number in (5e-324, 0.1, 1 / 3, 1.7976931348623157e308):
        found = read({"a": SPAN | {"start": 0.0, "end": number}})["a"]
        assert found.end == number


@pytest.mark.parametrize("reads", [False, True])
def test_a_command_waits_for_pydantic_only_if_it_reads(reads, tmp_path):
    file = tmp_path / "cluster.json"
    devices = ("--devices=2xcpu:1GFLOPS", "--values=1")
    args = ["simulate", "--method=star", *devices]
    if reads:
        star_cases.cluster([1e11, 5e10]).save(file)
        args = ["plan", file]
    python, *convpar = CONVPAR
    code, output = run([python, "-X", "importtime", *convpar, *args])
    assert code == 0, output
    imported = set(re.findall(r"\| +(\w+)$", output, re.MULTILINE))
    assert ("pydantic" in imported) == reads
    assert "numpy" in imported
    assert "tensorflow" not in imported


def test_whole_or_not_at_all(tmp_path):
    file = tmp_path / "file"
    with pytest.raises(ZeroDivisionError), files.atomic(file) as part:
        part.write_text("half")
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())
    for text in ("one", "two"):
        with files.atomic(file) as part:
            part.write_text(text)
            assert part.parent == tmp_path
            assert not file.exists() or file.read_text() == "one"
        assert file.read_text() == text
    assert list(tmp_path.iterdir()) == [file]


def test_a_link_stays_and_what_it_leads_to_is_written(tmp_path):
    (tmp_path / "shared").mkdir()
    link, file = tmp_path / "plan.json", tmp_path / "shared/plan.json"
    link.symlink_to("shared/plan.json")
    for text in (b"one", b"two"):
        files.replace(link, text)
        assert link.is_symlink() and file.read_bytes() == text
    assert list(file.parent.iterdir()) == [file]


def test_a_pipe_is_written_into(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        read = pool.submit(pipe.read_bytes)
        files.replace(pipe, b"text")
        assert read.result(timeout=10) == b"text"
    assert list(tmp_path.iterdir()) == [pipe] and pipe.is_fifo()


def test_who_reads_meanwhile_reads_one_file_whole(tmp_path):
    file = tmp_path / "file"
    files.replace(file, b"old")
    with file.open() as before:
        files.replace(file, b"anew")
        assert before.read() == "old"
    assert file.read_bytes() == b"anew"


def test_a_file_may_be_read_by_those_who_the_mask_says(tmp_path):
    before = os.umask(0o027)
    try:
        files.replace(tmp_path / "file", b"")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


def test_threads_that_write_one_file_each_write_it_whole(tmp_path):
    file = tmp_path / "file"
    texts = [str(i).encode() * 10**5 for i in range(10)]
    with concurrent.futures.ThreadPoolExecutor(10) as threads:
        for _ in range(10):
            list(threads.map(lambda text: files.replace(file, text), texts))
            assert file.read_bytes() in texts
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("given", "xdg", "expected"),
    [
        ("/a", "/b", "/a"),
        ("~/a", "/b", "/home/me/a"),
        ("", "/b", "/b/tf_convpar"),
        ("", "", "/home/me/.cache/tf_convpar"),
    ],
)
def test_cache_folder(given, xdg, expected, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv(files.CACHE_FOLDER, given)
    monkeypatch.setenv("XDG_CACHE_HOME", xdg)
    assert str(files.cache_folder()) == expected


@pytest.fixture
def homeless(monkeypatch, tmp_path):
    """As in a container, under a number that nobody has."""
    for name in ("HOME", "XDG_CACHE_HOME", files.CACHE_FOLDER):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path / f"tf_convpar-{os.getuid()}"


def test_a_user_without_a_home_has_a_cache_folder(homeless):
    for _ in range(2):
        assert files.cache_folder() == homeless
        assert homeless.stat().st_mode & 0o777 == 0o700


def make_shared(folder):
    folder.mkdir()
    folder.chmod(0o777)


def make_anothers(folder):
    folder.mkdir(mode=0o700)
    try:
        os.chown(folder, os.getuid() + 1, -1)
    except PermissionError:
        pytest.skip("only root gives folders away")


def make_link(folder):
    target = folder.with_name("target")
    target.mkdir(mode=0o700)
    folder.symlink_to(target)


@pytest.mark.parametrize(
    "make", [make_shared, make_anothers, make_link, pathlib.Path.touch]
)
def test_a_cache_folder_that_others_have_made_is_not_used(make, homeless):
    """Everybody can make one of any name where temporary files are."""
    make(homeless)
    with pytest.warns(RuntimeWarning, match="that this user alone can write"):
        folder = files.cache_folder()
    # Warned once; and for as long as the process runs it is one folder.
    assert files.cache_folder() == folder
    assert folder.is_dir() and folder.stat().st_mode & 0o777 == 0o700
    assert folder != homeless and not folder.is_relative_to(homeless)
    if homeless.is_dir():
        assert not list(homeless.iterdir())


@pytest.mark.parametrize("depth", [101, 250, 990, 10**5])
@pytest.mark.parametrize("field", ["kind", "start", "more"])
def test_what_is_nested_too_deep_is_said_in_a_line(depth, field, tmp_path):
    """Python's reader ends at a thousand, its writer and Pydantic before."""
    form = files.Form(Span, "span", 1, "Measure again")
    content = json.dumps(form.to_json(Span(0.5)) | {field: "here"})
    file = tmp_path / "span.json"
    for inner in (
        "[" * depth + "]" * depth,
        '{"a":' * depth + "1" + "}" * depth,
    ):
        file.write_text(content.replace('"here"', inner))
        for load in (form.load, files.kind_of):
            with pytest.raises(ValueError, match="Expected .*span.json. Rec"):
                load(file)
    deep = []
    for _ in range(min(depth, 990)):
        deep = [deep]
    with pytest.raises(ValueError, match="at most 100 arrays.*spans.json"):
        read({"a": SPAN | {"start": deep}})


def test_nested_less_deep_is_what_it_is(tmp_path):
    file = tmp_path / "span.json"
    file.write_text('{"kind": ' + "[" * 99 + "]" * 99 + "}")
    assert files.kind_of(file)


def test_half_a_character(tmp_path):
    with pytest.raises(ValueError, match="Expected whole characters, and no"):
        read({"a": SPAN | {"names": ["\ud800"]}})


def test_kind_of_a_file(tmp_path):
    file = pathlib.Path(tmp_path, "file")
    for content, kind in (({"kind": "plan"}, "plan"), ({}, None), ([], None)):
        file.write_text(json.dumps(content))
        assert files.kind_of(file) == kind

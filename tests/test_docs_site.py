"""The site: whole, of what the repository says, and without a network.

`make docs` builds it. What is tested here needs none of its tools.
"""

import importlib
import operator
import re

import nbformat
import pytest
import yaml
from processes import ROOT

import tf_convpar as convpar
from docs_site import check
from docs_site import notebooks
from docs_site import pages
from tf_convpar.cli.main import main

DOCS = ROOT / "docs"
NOTEBOOKS = sorted(DOCS.rglob("*.ipynb"))


def in_nav(entries):
    for entry in entries:
        for where in entry.values():
            yield from [where] if isinstance(where, str) else in_nav(where)


def test_every_page_is_in_the_navigation_once():
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    wanted = map(pages.address, [*pages.in_docs(), *pages.PAGES])
    assert sorted(in_nav(config["nav"])) == sorted(wanted)


def written(path):
    if not path.endswith(".ipynb"):
        return pages.text_of(path)
    cells = nbformat.read(ROOT / path, as_version=4).cells
    return "\n\n".join(c.source for c in cells if c.cell_type == "markdown")


@pytest.mark.parametrize("path", [*pages.in_docs(), *pages.PAGES])
def test_links_to_files_lead_to_pages_of_the_site(path):
    text = pages.with_links_of_the_site(written(path), path)
    known = {pages.address(p) for p in [*pages.in_docs(), *pages.PAGES]}
    folder = ROOT / "docs" / pages.address(path)
    for link in re.findall(r"(?<=\]\()[^)\s:#]+(?=[)#])", text):
        target = (folder.parent / link).resolve().relative_to(DOCS)
        name = target.as_posix()
        is_code = name.startswith("source/")
        assert is_code or name in known or (DOCS / name).is_file(), link


@pytest.mark.parametrize(
    ("link", "path", "there"),
    [
        ("regions.md#rules", "docs/files.md", "regions.md#rules"),
        ("../cluster.md", "docs/how-to/my-model.md", "../cluster.md"),
        ("../README.md#plans", "docs/faq.md", "overview.md#plans"),
        ("docs/faq.md", "README.md", "faq.md"),
        (
            "../../docs/images/curves.png",
            "benchmarks/algorithms/README.md",
            "../images/curves.png",
        ),
        (
            "../benchmarks/cluster/README.md#result",
            "docs/choosing.md",
            "benchmarks/cluster.md#result",
        ),
        (
            "../tf_convpar/ops",
            "docs/reading-tour.md",
            "source/tf_convpar/ops/index.md",
        ),
        ("getting-started.ipynb", "docs/index.md", "getting-started.md"),
        ("#measured", "docs/faq.md", "#measured"),
        ("https://keras.io/api/", "docs/faq.md", "https://keras.io/api/"),
        ("nothing.md", "docs/faq.md", "nothing.md"),
    ],
)
def test_a_link_of_the_repository_is_one_of_the_site(link, path, there):
    text = f"[a]({link})\n\n```text\n[a]({link})\n```\n"
    expected = f"[a]({there})\n\n```text\n[a]({link})\n```\n"
    assert pages.with_links_of_the_site(text, path) == expected


def test_comments_for_tests_are_not_shown():
    text = '<!-- skip: next "x" -->\n\n```sh\n# <!-- stays -->\n```\n'
    assert pages.without_comments(text) == "```sh\n# <!-- stays -->\n```\n"


def test_code_is_shown_whole_and_folders_list_their_files():
    code = (ROOT / "tf_convpar/ops/_twin.py").read_text()
    assert code in pages.text_of("tf_convpar/ops/_twin.py")
    listed = pages.text_of("tf_convpar/ops")
    assert "[`_twin.py`](ops/_twin.py): " in listed
    assert "__pycache__" not in listed


def reference():
    """Names as users write them, and where the reference finds them."""
    for page in sorted((DOCS / "reference").glob("*.md")):
        yield from re.findall(
            r"^::: (\S+)\n    options:\n      heading: convpar\.(\S+)$",
            page.read_text(),
            re.M,
        )


def test_the_reference_has_every_public_name_once():
    rooms = ("callbacks", "replicas")
    wanted = [name for name in convpar.__all__ if name not in rooms]
    for room in rooms:
        names = vars(getattr(convpar, room))
        wanted += [f"{room}.{name}" for name in names if name[0].isupper()]
    assert sorted(name for _, name in reference()) == sorted(wanted)


@pytest.mark.parametrize(("place", "name"), list(reference()))
def test_the_reference_shows_the_object_of_that_name(place, name):
    module, _, attribute = place.rpartition(".")
    shown = getattr(importlib.import_module(module), attribute)
    assert shown is operator.attrgetter(name)(convpar)


def test_the_reference_has_every_command():
    text = (DOCS / "reference/command-line.md").read_text()
    named = re.findall(r"^\| `convpar (\S+)` \|", text, re.M)
    assert sorted(named) == sorted(main.list_commands(None))


def test_figures_of_the_home_page_are_those_of_the_readme():
    rows = [
        re.findall(r"\d[\d.]* m?s|[\d.]+x(?= )", row)
        for row in (DOCS / "index.md").read_text().splitlines()
        if re.match(r"\| .* m?s \| ", row)
    ]
    assert len(rows) > 3
    readme = (ROOT / "README.md").read_text().replace("**", "").splitlines()
    for row in rows:
        assert any(
            all(f"| {cell} |" in line for cell in row) for line in readme
        )


PAGE = '<h1 id="top">A</h1><p style="{}">{}</p>'


@pytest.fixture
def site(tmp_path):
    """A sound one of two pages."""
    (tmp_path / "b").mkdir()
    (tmp_path / "style.css").write_text("p { background: url(a.png) }")
    (tmp_path / "a.png").write_bytes(b"")
    style = '<link rel="stylesheet" href="../style.css">'
    (tmp_path / "b/index.html").write_text(style + PAGE.format("", ""))
    text = '<a href="b/#top">b</a><a href="https://keras.io">k</a>'
    (tmp_path / "index.html").write_text(PAGE.format("", text))
    return tmp_path


def test_a_sound_site_has_no_faults(site, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["docs_site/check.py", str(site)])
    assert check.main() == 0
    (site / "a.png").unlink()
    assert check.main() == 1
    assert "style.css: is not there: a.png" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('<script src="https://unpkg.com/x.js"></script>', "elsewhere"),
        ('<script src="//unpkg.com/x.js"></script>', "elsewhere"),
        ('<link href="https://fonts.googleapis.com/css">', "elsewhere"),
        ('<img src="https://keras.io/logo.png">', "elsewhere"),
        ("<style>@import 'https://keras.io/x.css'</style>", "elsewhere"),
        ("<i style=\"background: url('//keras.io/x.png')\">", "elsewhere"),
        ('<pre class="mermaid">graph</pre>', "elsewhere"),
        ('<img src="none.png">', "is not there"),
        ('<a href="none.html">x</a>', "leads nowhere"),
        ('<a href="b/index.html#none">x</a>', "no part of that page"),
    ],
)
def test_a_fault_of_a_page_is_found(site, text, fault):
    (site / "index.html").write_text(PAGE.format("", text))
    (found,) = check.faults(site)
    assert fault in found


def test_a_font_from_elsewhere_is_found(site):
    (site / "style.css").write_text('src: url("https://keras.io/x.woff2")')
    (fault,) = check.faults(site)
    assert "style.css: is fetched from elsewhere" in fault


def test_a_site_without_pages_is_a_fault(tmp_path):
    assert len(list(check.faults(tmp_path))) == 1


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebooks_are_kept_without_outputs(path):
    # What they print is of the day and the machine of the build.
    for cell in nbformat.read(path, as_version=4).cells:
        assert not cell.get("outputs")
        assert not cell.get("execution_count")


@pytest.fixture
def as_for_users(tmp_path, monkeypatch):
    """In a kernel: nothing is measured yet."""
    monkeypatch.setenv("TF_CONVPAR_CACHE", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def shown(cell):
    """What the reader of an executed cell sees below it."""
    return "".join(
        output.get("text", "") + output.get("data", {}).get("text/plain", "")
        for output in cell.get("outputs", [])
        if output.get("name") != "stderr"
    )


@pytest.mark.slow
def test_getting_started_shows_what_it_says(as_for_users):
    cells = notebooks.run(DOCS / "getting-started.ipynb").cells
    text = "".join(map(shown, cells))
    losses = [float(x) for x in re.findall(r" loss: (\S+) - val", text)]
    first, second = losses[::2], losses[1::2]
    assert len(second) == 3
    assert max(second) < 0.9 * min(first)
    apart = dict(re.findall(r"^(faster|split): +(\S+)$", text, re.M))
    assert float(apart["split"]) < 1e-4
    # An algorithm may be chosen that is 1e-4 off in each pass, and Adam divides
    # small gradients by their own size. It was 1.2e-3 where it was most.
    assert float(apart["faster"]) < 5e-3
    assert re.search(r"16 on chief.* 8 on worker 0.* 8 on worker 1", text)
    assert "<Figure size" in text
    # Merged weights are the same, bit for bit.
    assert [shown(cell) for cell in cells if "merge(" in cell.source] == [
        "keras.src.layers.convolutional.conv2d\nTrue"
    ]

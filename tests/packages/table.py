"""Results of `test_packages.py`, and the table of docs/packages.md of them.

    python tests/packages/table.py

writes the page anew, from the results that the tests have left.
"""

import collections
import importlib.metadata
import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Kept with the tests: all of them take hours, and some are run at a time.
RESULTS = Path(__file__).parent / "results.json"
PAGE = ROOT / "docs/packages.md"
WAYS = "filters", "samples", "auto", "samples, auto"
PART = re.compile(
    r"(?<=<!-- from tests/packages/table.py -->\n).*(?=<!-- to here -->)", re.S
)


def write(entry, way, result):
    """Adds what a model gave when split in a way to the results."""
    known = read()
    row = known.setdefault(f"{entry.package}: {entry.name}", {})
    row["package"], row["model"] = entry.package, entry.name
    row["version"] = version(entry.package)
    row["dtype"] = entry.dtype
    row[way] = result
    text = json.dumps(known, indent=1, sort_keys=True)
    RESULTS.write_text(f"{text}\n")


def read():
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def markdown(results):
    rows = [
        "| package | model | kernels off by 1e-6 | by filters | by samples | "
        "`auto` on one device | `auto`, by samples | stays whole |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in results.values():
        first = row.get("filters", {})
        why = row.get("installed") or row.get("plain")
        cells = [figures(row.get(way)) for way in WAYS]
        if why:
            which = "plain Keras" if "plain" in row else "not installed"
            cells = ["" for _ in WAYS]
            said = f"{which}: `{why['error']}`"
        else:
            said = whole(first)
        name = f"{row['package']} {row['version'] or ''}".strip()
        if row["dtype"] == "float64":
            row["model"] += ", float64"
        off = figures({"differences": first.get("of errors in kernels")})
        cells = [name, row["model"], off, *cells, said]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def figures(result):
    """Largest difference of what goes forward, and of gradients."""
    found = (result or {}).get("differences")
    if (result or {}).get("error") or not found:
        return "fails" if result and result.get("error") else ""
    forward = max(v for kind, v in found.items() if kind != "gradients")
    return f"{forward:.0e}, {found['gradients']:.0e}"


def whole(result):
    """How many convolutions are not split by filters, and why."""
    reasons = collections.Counter(
        re.sub(": `plan=.*", "", reason) for reason in result.get("whole", ())
    )
    if not reasons:
        return "nothing"
    of = result["convolutions"]
    return "; ".join(
        f"{count} of {of} convolutions: {reason}"
        for reason, count in reasons.items()
    )


if __name__ == "__main__":
    page = PAGE.read_text()
    PAGE.write_text(PART.sub(lambda _: "\n" + markdown(read()) + "\n", page))

"""What was measured, side by side, and how far it can be trusted."""

import statistics

import rich.table


def compared(rows):
    """Adds how many times as fast each row is as one node, and the drift.

    `nodes_add` is beside this package on one node, with the same algorithms:
    what other nodes are worth. `speedup` is beside plain Keras on one node.
    """
    drift = {}
    for system, name in (("one", "nodes_add"), ("alone", "speedup")):
        times = [
            r["step_s"] for r in rows if r["system"] == system and "step_s" in r
        ]
        if len(times) > 1:
            drift[system] = times[-1] / times[0] - 1
        for row in rows:
            if times and "step_s" in row:
                row[name] = statistics.mean(times) / row["step_s"]
    for row in rows:
        row["drift"] = drift


def in_words(row):
    """A row in a line of text."""
    what = row.get("error") or f"{row['step_s'] * 1e3:.0f} ms"
    plan = f" ({row['reason']})" if row.get("reason") else ""
    return f"{row['case']}: {row['system']}: {what}{plan}"


def table_of(rows):
    table = rich.table.Table(
        "case", "system", "step", "quartiles", "beside one", "beside alone"
    )
    table.add_column("MB in, out")
    table.add_column("by theory")
    table.add_column("predicted")
    table.add_column("first losses")
    before = None
    for row in rows:
        case = "" if row["case"] == before else row["case"]
        before = row["case"]
        if "error" in row:
            # The reason was printed when it happened.
            table.add_row(case, row["system"], "failed")
            continue
        low, high = row["quartiles_s"]
        table.add_row(
            case,
            row["system"],
            f"{row['step_s'] * 1e3:.0f} ms",
            f"{(high - low) / row['step_s']:.1%} apart",
            factor(row, "nodes_add"),
            factor(row, "speedup"),
            pair(row, "received_mb", "sent_mb"),
            pair(row, "received_theory_mb", "sent_theory_mb"),
            f"{row['predicted_s'] * 1e3:.0f} ms"
            if row.get("predicted_s")
            else "",
            " ".join(f"{loss:.4f}" for loss in row["losses"]),
        )
    return table


def factor(row, name):
    return f"{row[name]:.2f}x" if name in row else ""


def pair(row, first, second):
    if first not in row:
        return ""
    return f"{row[first]:.1f}, {row[second]:.1f}"


def remarks(found):
    """Prints how far the figures can be trusted."""
    busiest = max(row["others"] for row in found)
    if busiest > 0.1:
        print(
            "These are no measurements: something else had up to "
            f"{busiest:.0%} of the cores before one began."
        )
    for case, drift in {r["case"]: r["drift"] for r in found}.items():
        for system, change in drift.items():
            print(f"{case}: {system} took {change:+.1%} the second time")

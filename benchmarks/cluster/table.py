"""What was measured, side by side, and how far it can be trusted."""

import rich.table


def compared(rows):
    """Adds the speed-up over plain Keras to a case's rows, and its drift."""
    times = [
        r["step_s"] for r in rows if r["system"] == "alone" and "step_s" in r
    ]
    if not times:
        return
    base = sum(times) / len(times)
    for row in rows:
        row["drift"] = times[-1] / times[0] - 1 if len(times) > 1 else None
        if "step_s" in row:
            row["speedup"] = base / row["step_s"]


def in_words(row):
    """A row in a line of text."""
    what = row.get("error") or f"{row['step_s'] * 1e3:.0f} ms"
    return f"{row['case']}: {row['system']}: {what}"


def table_of(rows):
    table = rich.table.Table(
        "case", "system", "step", "quartiles", "beside alone"
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
            f"{row['speedup']:.2f}x" if "speedup" in row else "",
            pair(row, "received_mb", "sent_mb"),
            pair(row, "received_theory_mb", "sent_theory_mb"),
            f"{row['predicted_s'] * 1e3:.0f} ms"
            if row.get("predicted_s")
            else "",
            " ".join(f"{loss:.4f}" for loss in row["losses"]),
        )
    return table


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
    for case, drift in {r["case"]: r.get("drift") for r in found}.items():
        if drift is not None:
            print(
                f"{case}: plain Keras alone took {drift:+.1%} the second time"
            )

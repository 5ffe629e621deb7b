"""What faults cost, of the rounds that `replicas.py` has noted."""

import itertools
import json
import statistics

import numpy as np

KINDS = ("killed", "stopped", "cut off")


def effects(rounds, faults, rate):
    """Seconds until all took part again, and of full throughput, by fault."""
    most = max(row["replicas"] for row in rounds)
    made = list(itertools.accumulate(row["samples"] for row in rounds[1:]))
    times = [row["at"] for row in rounds]
    ends = [row["at"] for row in faults[1:]] + times[-1:]
    for fault, end in zip(faults, ends, strict=True):
        if end <= fault["at"]:
            continue  # No round has ended since.
        back = [
            row["at"] - fault["at"]
            for row in rounds
            if row["begun"] > fault["at"] and row["replicas"] == most
        ]
        begin = fault["at"]
        done = np.diff(np.interp([begin, end], times, [0, *made]))[0]
        yield fault | {
            "back_s": round(back[0], 1) if back else None,
            "lost_s": round(end - begin - done / rate, 1),
        }


def rate_of(rounds):
    """Samples of a second, since the first round."""
    samples = sum(row["samples"] for row in rounds[1:])
    return samples / (rounds[-1]["at"] - rounds[0]["at"])


def table(rows):
    """Markdown: what each kind of fault costs, and what is kept."""
    calm = [r for r in rows if "round" in r and not r["every"]]
    rounds = [r for r in rows if "round" in r and r["every"]]
    faults = [r for r in rows if "fault" in r]
    rate = rate_of(calm)
    lines = ["| fault | of | times | all back after | lost |", "|---" * 5 + "|"]
    found = list(effects(rounds, faults, rate))
    for kind, chief in itertools.product(KINDS, (False, True)):
        own = [
            r
            for r in found
            if r["fault"] == kind and (r["whom"] == "chief") == chief
        ]
        back = [r["back_s"] for r in own if r["back_s"] is not None]
        if own:
            lost = statistics.mean(r["lost_s"] for r in own)
            after = f"{statistics.median(back):.0f} s" if back else ""
            who = "the chief" if chief else "a worker"
            lines.append(
                f"| {kind} | {who} | {len(own)} | {after} | {lost:.1f} s |"
            )
    last = {False: calm[-1]["round"], True: rounds[-1]["round"]}
    same = min(last.values())
    accuracies = [
        statistics.mean(
            r["accuracy"]
            for r in own
            if "accuracy" in r and 0.7 * same <= r["round"] <= same
        )
        for own in (calm, rounds)
    ]
    lines += [
        "",
        f"{rate_of(rounds) / rate:.1%} of {rate:.0f} samples/s kept, over "
        f"{rounds[-1]['at'] / 60:.1f} minutes and {len(faults)} faults. "
        f"Accuracy, mean up to round {same}: {accuracies[0]:.4f} undisturbed, "
        f"{accuracies[1]:.4f} disturbed; in the end {calm[-1]['round']} and "
        f"{rounds[-1]['round']} rounds.",
    ]
    return "\n".join(lines + [json.dumps(row) for row in found])

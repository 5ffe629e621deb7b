"""Weak scaling on paper: SyncEASGD by the alpha-beta model, to 4352 cores.

    python benchmarks/replicas/alpha_beta.py

A message of n bytes takes `alpha + beta n`. A round of P nodes has a sum and a
copy along a tree, `2 log2(P)` messages one after another, of all weights
packed. Without overlap they come after computing:

    T(P) = T(1) + 2 log2(P) (alpha + beta n)

and with it (variant 3) they take time only where they are longer than
computing. Assumed: every node computes for as long as the first alone, no
message meets another one, and adding and reading data take no time. Rates are
those of You, Buluc and Demmel (SC17), table 2, for Mellanox FDR InfiniBand;
seconds and efficiencies of 68 to 4352 cores those of its table 4.
"""

import math

ALPHA, BETA = 0.7e-6, 0.2e-9
NODES = (1, 2, 4, 8, 16, 32, 64)
CORES = 68
# Parameters, iterations, and the seconds that the paper has for each of NODES.
PAPER = {
    "GoogLeNet": (
        *(6.8e6, 300),
        (1533, 1590, 1608, 1641, 1630, 1662, 1674),
    ),
    "VGG": (138e6, 80, (1318, 1440, 1482, 1524, 1634, 1679, 1642)),
}


def exchange_s(nodes, bytes_, alpha=ALPHA, beta=BETA):
    """Seconds of a sum and a copy along a tree."""
    return 2 * math.ceil(math.log2(nodes)) * (alpha + beta * bytes_)


def main():
    print("| | cores | no overlap | overlap | paper |")
    print("|---|---|---|---|---|")
    for name, (parameters, iterations, seconds) in PAPER.items():
        alone = seconds[0] / iterations
        for nodes, found in zip(NODES, seconds, strict=True):
            sent = exchange_s(nodes, 4 * parameters)
            print(
                f"| {name} | {CORES * nodes} | {alone / (alone + sent):.1%} "
                f"| {alone / max(alone, sent):.1%} | {seconds[0] / found:.1%} |"
            )


if __name__ == "__main__":
    main()

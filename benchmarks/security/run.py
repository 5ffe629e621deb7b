"""Trains by each way of docs/security.md, and tries to look on and get in.

    sudo python benchmarks/security/run.py [--ways vpn tunnel]

Three machines and a stranger are on one network that nobody trusts
(`lab.py`). Each way trains with a worker on two of them, while packets are
captured; then the stranger tries every port.
"""

import argparse
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

import lab

PORTS = (2222, 2223, 2224)
# The names of a cluster's tasks are in many of its messages, and that of a
# layer in the chief's functions.
TEXTS = ("/job:worker", "StatefulPartitionedCall", "SSH-2.0")
LIMIT_S = 240
CHILD = lab.HERE / "child.py"
CONVPAR = (sys.executable, "-m", "tf_convpar_cli")


class Way:
    """One way to run a cluster; its context is the time in which it is up.

    Args:
        members: The machines, the chief's first.
        folder: Where `bin/ssh` is.
    """

    def __init__(self, members, folder):
        self.members, self.folder = members, folder
        self.hosts = [m.address for m in members]
        self.listen = None

    @contextlib.contextmanager
    def chief(self, go):
        """Starts the tasks; yields the chief's process."""
        with contextlib.ExitStack() as stack:
            for i in (1, 2):
                process = self._task(i, "task.log", *CONVPAR, "worker")
                stack.callback(process.wait)
                stack.callback(process.kill)
            yield self._task(0, "chief.log", sys.executable, CHILD, go)

    def _task(self, i, log, *command):
        addresses = [f"{h}:{p}" for h, p in zip(self.hosts, PORTS, strict=True)]
        kind, index = ("worker", i - 1) if i else ("chief", 0)
        config = {
            "cluster": {"chief": addresses[:1], "worker": addresses[1:]},
            "task": {"type": kind, "index": index},
        }
        more = {"CONVPAR_LISTEN": self.listen[i]} if self.listen else {}
        return self.members[i].start(
            log, *command, TF_CONFIG=json.dumps(config), **more
        )


class Vpn(Way):
    """Tasks at addresses of a VPN, where alone they listen."""

    @contextlib.contextmanager
    def chief(self, go):
        """As in Way."""
        with lab.vpn(self.members) as self.hosts:
            self.listen = self.hosts
            with super().chief(go) as process:
                yield process


class Forwards(Way):
    """Tasks at localhost, and one ssh between each two machines."""

    @contextlib.contextmanager
    def chief(self, go):
        """As in Way."""
        self.hosts = ["localhost"] * 3
        with contextlib.ExitStack() as stack:
            for i, j in ((0, 1), (0, 2), (1, 2)):
                there, here = (f"localhost:{PORTS[k]}" for k in (j, i))
                process = self.members[i].start(
                    f"forward{j}.log",
                    *(self.folder / "bin" / "ssh", "-N"),
                    *("-o", "ExitOnForwardFailure=yes"),
                    *("-L", f"{there}:{there}", "-R", f"{here}:{here}"),
                    self.members[j].name,
                )
                stack.callback(process.wait)
                stack.callback(process.kill)
            yield stack.enter_context(super().chief(go))


class Tunnel(Way):
    """`convpar launch --tunnel`, on the chief's machine."""

    @contextlib.contextmanager
    def chief(self, go):
        """As in Way."""
        hosts = ",".join(
            f"{m.name}:{p}" for m, p in zip(self.members, PORTS, strict=True)
        )
        process = self.members[0].start(
            "chief.log",
            *(*CONVPAR, "launch", "--hosts", hosts, "--ssh", "--tunnel"),
            *("--python", sys.executable, "--cwd", lab.ROOT, CHILD, go),
            PATH=f"{self.folder / 'bin'}:{os.environ['PATH']}",
        )
        try:
            yield process
        finally:
            # It removes what it has made; killed, it could not.
            process.terminate()
            process.wait()


WAYS = {"plain": Way, "vpn": Vpn, "forwards": Forwards, "tunnel": Tunnel}


def run(way):
    """What was seen: losses, rates, ports, packets."""
    with (
        tempfile.TemporaryDirectory(prefix="convpar-") as name,
        lab.machines(4, pathlib.Path(name)) as (*members, stranger),
    ):
        folder = pathlib.Path(name)
        go, chief = folder / "go", members[0]
        made = WAYS[way](members, folder)

        def passed(text):
            if process.poll() is None and text not in chief.said("chief.log"):
                return False
            if text in chief.said("chief.log"):
                return True
            raise OSError(
                "Expected the chief's program to go on. Received:\n"
                + "\n".join(
                    log.read_text()[-3000:]
                    for log in sorted(folder.glob("node*/*.log"))
                )
            )

        # The second machine's cable: a worker's, whom all others call.
        with contextlib.ExitStack() as stack:
            with lab.captured(members[1]) as packets:
                process = stack.enter_context(made.chief(go))
                lab._wait(lambda: passed("trained"), LIMIT_S)
            ports = _tried(members, stranger)
            go.touch()
            lab._wait(lambda: passed('{"losses"'), LIMIT_S)
            process.wait(LIMIT_S)
        said = chief.said("chief.log")
        found = json.loads(said[said.index('{"losses"') :].splitlines()[0])
        return {
            "way": way,
            **found,
            "ports": ports,
            "captured_mb": packets.stat().st_size / 1e6,
            "texts": lab.count(packets, TEXTS),
        }


def _tried(members, stranger):
    """What the stranger gets from all tasks, at every address they have."""
    found = {}
    for i, machine in enumerate(members):
        inner = f"{lab.VPN}.{i + 1}"
        # Linux takes packets for any of its addresses from any cable. So a
        # neighbour need not be in the VPN to send some to an address there.
        lab.nodes._run(
            f"ip -n {stranger.space} route add {inner} via {machine.address}"
        )
        ends = [(machine.address, PORTS[i]), (inner, PORTS[i])]
        ends.append((machine.address, lab.SSH_PORT))
        names = ("address", "vpn address", "ssh")
        got = dict(zip(names, stranger.reaches(ends), strict=True))
        found[machine.name] = got
    return found


def alone():
    """Losses of plain Keras in one process."""
    env = {k: v for k, v in os.environ.items() if k != "TF_CONFIG"}
    done = subprocess.run(
        [sys.executable, CHILD], env=env, capture_output=True, text=True
    )
    return json.loads(done.stdout.splitlines()[-1])["losses"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    given = parser.parse_args()
    # So that namespaces and processes end with this one.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    expected = alone()
    for way in given.ways:
        found = run(way)
        losses = found.pop("losses")
        found["apart"] = max(
            abs(a / b - 1) for a, b in zip(losses, expected, strict=True)
        )
        found["first_last"] = losses[0], losses[-1]
        print(json.dumps(found, indent=1), flush=True)


if __name__ == "__main__":
    main()

"""Machines that only a network that nobody trusts joins: its namespaces.

Each has its own sshd and, on demand, an end of a VPN. Whatever runs in them
ends with them. Needs root, and sshd, wg, wireguard-go and tcpdump.
"""

import contextlib
import dataclasses
import json
import mmap
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import uuid

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent / "cluster"))

import nodes  # noqa: E402

TOOLS = ("ip", "ssh", "ssh-keygen", "sshd", "tcpdump", "wg", "wireguard-go")
VPN, VPN_PORT, SSH_PORT = "10.99.0", 51820, 22022
PROBE = """
import json, socket, sys
found = []
for host, port in json.loads(sys.argv[1]):
    try:
        socket.create_connection((host, port), timeout=1.0).close()
        found.append("open")
    except TimeoutError:
        found.append("silent")
    except ConnectionRefusedError:
        found.append("refused")
print(json.dumps(found))
"""


@dataclasses.dataclass(frozen=True)
class Machine:
    """One machine.

    Attributes:
        name: Name for ssh.
        space: Name of its network namespace.
        address: Address in the network that nobody trusts.
        folder: Files of its own.
    """

    name: str
    space: str
    address: str
    folder: pathlib.Path

    def inside(self, *command):
        """The command, in this machine."""
        return ["ip", "netns", "exec", self.space, *map(str, command)]

    def start(self, log, *command, **env):
        """Starts a program; what it prints goes to a file of this machine."""
        with open(self.folder / log, "wb") as file:
            return subprocess.Popen(
                self.inside(*command),
                env={**os.environ, "PYTHONPATH": str(ROOT), **env},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    def said(self, log):
        """What a program has printed."""
        return (self.folder / log).read_text(errors="replace")

    def reaches(self, ends):
        """`open`, `refused` or `silent`, for each host and port."""
        return json.loads(
            _output(self.inside(sys.executable, "-c", PROBE, json.dumps(ends)))
        )


@contextlib.contextmanager
def machines(count, folder):
    """Yields machines that reach one another by ssh, by their names."""
    missing = [tool for tool in TOOLS if not shutil.which(tool, path=_path())]
    if missing or os.geteuid():
        raise SystemExit(
            f"Expected root, and {', '.join(TOOLS)}: on Debian, of iproute2, "
            "openssh-client, openssh-server, tcpdump, wireguard-tools and "
            "wireguard-go. Received "
            f"{'no ' + ', '.join(missing) if missing else 'another user'}."
        )
    name = f"convpar-{uuid.uuid4().hex[:6]}"
    with contextlib.ExitStack() as stack:
        switch = stack.enter_context(nodes._namespace(f"{name}-switch"))
        nodes._run(f"ip -n {switch} link add name switch type bridge")
        nodes._run(f"ip -n {switch} link set switch up")
        made = []
        for i in range(count):
            space = stack.enter_context(nodes._namespace(f"{name}-{i}"))
            stack.callback(_end, space)
            address = f"{nodes.NETWORK}.{i + 1}"
            nodes._join(space, address, switch, f"port{i}", None)
            own = folder / f"node{i}"
            own.mkdir()
            made.append(Machine(f"node{i}", space, address, own))
        stack.enter_context(_sshd(made, folder))
        yield made


@contextlib.contextmanager
def vpn(members):
    """Joins machines by WireGuard; yields their addresses in there."""
    keys, inner = [], []
    for i, machine in enumerate(members):
        private = machine.folder / "wireguard.key"
        private.touch(mode=0o600)
        private.write_text(_output(["wg", "genkey"]))
        keys.append(_output(["wg", "pubkey"], private.read_text()).strip())
        inner.append(f"{VPN}.{i + 1}")
    running = []
    for i, machine in enumerate(members):
        # The sockets that configure them lie in one folder, whatever the
        # namespace: so each has a name of its own.
        device = f"convpar{i}"
        running.append(machine.start("vpn.log", "wireguard-go", "-f", device))
        _wait(
            lambda d=device: pathlib.Path(f"/run/wireguard/{d}.sock").exists()
        )
        peers = []
        for j, other in enumerate(members):
            if j != i:
                peers += ["peer", keys[j], "allowed-ips", f"{inner[j]}/32"]
                peers += ["endpoint", f"{other.address}:{VPN_PORT}"]
        private = machine.folder / "wireguard.key"
        own = ["private-key", private, "listen-port", VPN_PORT]
        _output(machine.inside("wg", "set", device, *own, *peers))
        nodes._run(f"ip -n {machine.space} addr add {inner[i]}/24 dev {device}")
        nodes._run(f"ip -n {machine.space} link set {device} up")
    try:
        yield inner
    finally:
        for process in running:
            process.terminate()
            process.wait()


@contextlib.contextmanager
def captured(machine):
    """Writes down what crosses a machine's cable; yields the file."""
    file = machine.folder / "packets"
    log = "tcpdump.log"
    # Root, as another user could not write there.
    command = ["tcpdump", "-i", "eth0", "-B", 65536, "-Z", "root", "-w", file]
    process = machine.start(log, *command)
    try:
        _wait(lambda: "listening on" in machine.said(log))
        yield file
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def count(file, texts):
    """How often each text is in a file."""
    with (
        open(file, "rb") as opened,
        mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        found = {}
        for text in texts:
            at, found[text] = data.find(text.encode()), 0
            while at >= 0:
                found[text] += 1
                at = data.find(text.encode(), at + 1)
    return found


@contextlib.contextmanager
def _sshd(members, folder):
    """One on each machine; `ssh` in `folder/bin` knows all, by their names."""
    for name in ("user", "host"):
        quiet = ["ssh-keygen", "-q", "-t", "ed25519", "-N", ""]
        _output([*quiet, "-f", str(folder / name)])
    # sshd wants this folder, which a system's own start makes.
    needed = pathlib.Path("/run/sshd")
    made = not needed.exists()
    needed.mkdir(mode=0o755, exist_ok=True)
    lines, known = [], []
    key = " ".join((folder / "host.pub").read_text().split()[:2])
    try:
        for machine in members:
            config = machine.folder / "sshd_config"
            config.write_text(
                f"ListenAddress {machine.address}:{SSH_PORT}\n"
                f"HostKey {folder}/host\n"
                f"AuthorizedKeysFile {folder}/user.pub\n"
                "PasswordAuthentication no\nUsePAM no\nStrictModes no\n"
                f"PidFile none\nSetEnv PYTHONPATH={ROOT}\n"
            )
            sshd = shutil.which("sshd", path=_path())
            machine.start("sshd.log", sshd, "-D", "-e", "-f", config)
            lines.append(
                f"Host {machine.name}\n  HostName {machine.address}\n"
                f"  Port {SSH_PORT}\n  IdentityFile {folder}/user\n"
                f"  UserKnownHostsFile {folder}/known\n"
                "  StrictHostKeyChecking yes\n"
            )
            known.append(f"[{machine.address}]:{SSH_PORT} {key}\n")
        (folder / "known").write_text("".join(known))
        (folder / "ssh_config").write_text("".join(lines))
        own = folder / "bin" / "ssh"
        own.parent.mkdir()
        real = shutil.which("ssh")
        own.write_text(f'#!/bin/sh\nexec {real} -F {folder}/ssh_config "$@"\n')
        own.chmod(0o755)
        for machine in members:
            _wait(lambda m=machine: "listening on" in m.said("sshd.log"))
        yield
    finally:
        for machine in members:
            _end(machine.space)
        if made:
            needed.rmdir()


def _path():
    """Where programs are, those of administrators among them."""
    return f"{os.environ['PATH']}:/usr/sbin:/sbin"


def _end(space):
    """Ends whatever runs in a namespace; it is gone on return."""
    stop = time.monotonic() + 10
    while time.monotonic() < stop:
        pids = _output(["ip", "netns", "pids", space]).split()
        if not pids:
            return
        for pid in map(int, pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _wait(condition, limit_s=30.0):
    stop = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > stop:
            raise TimeoutError(f"Expected it within {limit_s:g} s.")
        time.sleep(0.1)


def _output(command, given=None):
    done = subprocess.run(command, input=given, capture_output=True, text=True)
    if done.returncode:
        raise OSError(
            f"Expected {' '.join(map(str, command))!r} to succeed. Received: "
            f"{done.stderr.strip()!r}."
        )
    return done.stdout

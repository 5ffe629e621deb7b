"""A network whose messages take time: every packet is held for a while.

    python wire.py --rate 1e9 --latency 1e-3 SPACE=ADDRESS SPACE=ADDRESS ...

Kernels without `netem` have no such delay. So each namespace gets a TUN device
as its `eth0`, and this program is the cable: it reads a packet from one and
writes it to the one it is for, after its turn at the sender, the latency, and
its turn at the receiver. It prints a line when all devices are up, and ends
with its standard input.
"""

import argparse
import collections
import fcntl
import heapq
import itertools
import os
import select
import socket
import struct
import subprocess
import sys
import time

# Of linux/if_tun.h: TUNSETIFF, IFF_TUN and IFF_NO_PI.
SET, TUN, BARE = 0x400454CA, 0x0001, 0x1000
# Few packets, so that Python keeps up with Gigabit Ethernet.
MTU = 16_000


def device(space, address, number):
    """Opens a TUN device, and moves its other end into a namespace."""
    name = f"wire{os.getpid()}-{number}"[:15]
    opened = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(opened, SET, struct.pack("16sH", name.encode(), TUN | BARE))
    for command in (
        f"ip link set {name} netns {space} name eth0",
        f"ip -n {space} addr add {address}/24 dev eth0",
        f"ip -n {space} link set eth0 mtu {MTU} up",
    ):
        subprocess.run(command.split(), check=True)
    return opened


def carry(devices, rate, latency):
    """Forwards until standard input is closed. Rates are bits per second."""
    source = {opened: address for address, opened in devices.items()}
    poll = select.epoll()
    for opened in (*source, sys.stdin.fileno()):
        poll.register(opened, select.EPOLLIN)
    out, into = collections.Counter(), collections.Counter()
    waiting, number = [], itertools.count()
    while True:
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, _, opened, packet = heapq.heappop(waiting)
            os.write(opened, packet)
        left = max(0.0, waiting[0][0] - now) if waiting else -1
        for opened, _ in poll.poll(left):
            if opened not in source:
                return
            packet = os.read(opened, MTU + 100)
            target = socket.inet_ntoa(packet[16:20])
            if packet[0] >> 4 != 4 or target not in devices:
                continue
            takes = 8 * len(packet) / rate
            sent = max(time.monotonic(), out[opened]) + takes
            out[opened] = sent
            # Both ends of the link are busy at once, but for the latency.
            arrives = max(sent + latency, into[target] + takes)
            into[target] = arrives
            heapq.heappush(
                waiting, (arrives, next(number), devices[target], packet)
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=float, required=True, help="bit/s")
    parser.add_argument("--latency", type=float, required=True, help="s")
    parser.add_argument("ends", nargs="+", metavar="SPACE=ADDRESS")
    options = parser.parse_args()
    devices = {}
    for i, end in enumerate(options.ends):
        space, _, address = end.partition("=")
        devices[address] = device(space, address, i)
    print("up", flush=True)
    carry(devices, options.rate, options.latency)


if __name__ == "__main__":
    main()

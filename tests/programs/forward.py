"""Run with pairs of ports: passes what comes to the first on to the second.

A line `cut PORT PID` on standard input makes it hold what that process sends to
that port and what it should get from there, as a firewall would that drops
packets. `mend` lets everything pass again; `break` does too, and ends the
connections that were held. Each line is repeated when done.
"""

import collections
import contextlib
import socket
import sys
import threading

import psutil

held = set()
# The ends of all connections, by port and process.
ends_of = collections.defaultdict(list)
changed = threading.Condition()


def process_at(port):
    """The process that has a connection from this port of its own."""
    for found in psutil.net_connections("tcp"):
        if found.laddr.port == port and found.pid and found.raddr:
            return found.pid
    return None


def pump(source, target, port, pid):
    try:
        while data := source.recv(65536):
            with changed:
                changed.wait_for(lambda: (port, pid) not in held)
            target.sendall(data)
    except OSError:
        pass
    for end in (source, target):
        end.close()


def serve(port, target):
    listener = socket.create_server(("localhost", port), backlog=64)
    while True:
        near, peer = listener.accept()
        pid = process_at(peer[1])
        try:
            far = socket.create_connection(("localhost", target))
        except OSError:
            near.close()
            continue
        ends_of[port, pid] += [near, far]
        for ends in ((near, far), (far, near)):
            threading.Thread(
                target=pump, args=(*ends, port, pid), daemon=True
            ).start()


def main(*pairs):
    for pair in pairs:
        ports = map(int, pair.split(":"))
        threading.Thread(target=serve, args=ports, daemon=True).start()
    print("forwarding", flush=True)
    for line in sys.stdin:
        what, *numbers = line.split()
        with changed:
            if what == "cut":
                held.add(tuple(map(int, numbers)))
            else:
                for end in sum((ends_of[key] for key in held), []):
                    with contextlib.suppress(OSError):
                        if what == "break":
                            end.shutdown(socket.SHUT_RDWR)
                held.clear()
            changed.notify_all()
        print(line, end="", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

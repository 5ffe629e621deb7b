#!/bin/bash
# A real Slurm of two nodes on this machine, for as long as a command runs:
#
#   sudo examples/clusters/slurm_lab.sh "srun -N2 python train.py"
#
# Each node has a network, a host name and files in /etc of its own. Needs root,
# and Slurm and munge (Debian: apt install slurm-wlm munge; no service of theirs
# has to run).
set -euo pipefail

LAB=$(mktemp -d /tmp/convpar-slurm-XXXXXX)
chmod 755 "$LAB"
ID=${LAB##*-}
NODES=(node1 node2)

finish() {
    set +e
    for node in "${NODES[@]}"; do
        for pid in $(ip netns pids "$ID-$node" 2>/dev/null); do
            kill -9 "$pid"
        done
        # The switch is in the first one's network, and goes with it.
        ip netns del "$ID-$node"
    done
    rm -rf "$LAB"
} 2>/dev/null
trap finish EXIT

inside() {
    local node=$1
    shift
    # Not `ip netns exec`: it hides /sys/fs/cgroup, which slurmd wants.
    nsenter --net="/run/netns/$ID-$node" unshare --uts --mount bash -c '
        hostname "$0"
        mount --bind "$1/hosts" /etc/hosts
        export SLURM_CONF="$1/slurm.conf"
        shift
        exec "$@"' "$node" "$LAB" "$@"
}

mkdir "$LAB/state"
echo "127.0.0.1 localhost" >"$LAB/hosts"
for i in 1 2; do
    node=${NODES[i - 1]}
    ip netns add "$ID-$node"
    ip -n "$ID-$node" link set lo up
    echo "10.97.0.$i $node" >>"$LAB/hosts"
done
ip -n "$ID-node1" link add eth0 type veth peer name eth0 netns "$ID-node2"
for i in 1 2; do
    ip -n "$ID-node$i" address add "10.97.0.$i/24" dev eth0
    ip -n "$ID-node$i" link set eth0 up
done
cat >"$LAB/slurm.conf" <<END
ClusterName=lab
SlurmctldHost=node1
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$LAB/munge.socket
MpiParams=ports=12000-12100
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
StateSaveLocation=$LAB/state
SlurmdSpoolDir=$LAB/spool-%n
SlurmctldPidFile=$LAB/slurmctld.pid
SlurmdPidFile=$LAB/slurmd-%n.pid
SlurmctldLogFile=$LAB/slurmctld.log
SlurmdLogFile=$LAB/slurmd-%n.log
NodeName=node[1-2] CPUs=2 RealMemory=1000 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP OverSubscribe=FORCE
END
head -c 1024 /dev/urandom >"$LAB/munge.key"
chmod 600 "$LAB/munge.key"
inside node1 munged --force --key-file="$LAB/munge.key" \
    --socket="$LAB/munge.socket" --pid-file="$LAB/munged.pid" \
    --log-file="$LAB/munged.log" --seed-file="$LAB/munged.seed"
inside node1 slurmctld -c
for node in "${NODES[@]}"; do
    inside "$node" slurmd
done
for _ in {1..100}; do
    [[ $(inside node1 sinfo --noheader --format=%D --states=idle) == 2 ]] && break
    sleep 0.1
done
inside node1 bash -c "$1"

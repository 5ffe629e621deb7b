#!/bin/bash
# One training as a job of Slurm, a task on each of three nodes:
#
#   sbatch slurm.sh
#
# All tasks run train.py. The first is the chief; in the others
# ConvParallelStrategy() serves, and does not return.
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=01:00:00

source .venv/bin/activate
# srun does not take over --cpus-per-task by itself. The other option ends the
# workers too if the chief fails before its strategy is made.
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1 \
    python train.py

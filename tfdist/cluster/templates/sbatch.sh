#!/bin/bash
#SBATCH --job-name=$name
#SBATCH --nodes=$nodes
#SBATCH --ntasks-per-node=$slots
#SBATCH --cpus-per-task=$cpus
${gpus}${nodelist}#SBATCH --output=%x-%j.log

${port}# `srun` does not take --cpus-per-task from above.
srun --cpus-per-task="$$SLURM_CPUS_PER_TASK" --distribution=block --label \
    --kill-on-bad-exit=1 $command

#!/bin/bash
#SBATCH --job-name=$name
#SBATCH --nodelist=$nodes
#SBATCH --nodes=$node_count
#SBATCH --ntasks-per-node=$slots

export TFDIST_PORT_BASE=$port
srun --distribution=block $command

#!/bin/bash
#PBS -N $name
#PBS -l select=$select
#PBS -l place=scatter:excl
#PBS -j oe
#PBS -V

cd "$$PBS_O_WORKDIR" || exit
# The processes that $$PBS_NODEFILE lists, by ssh.
tfdist run $command

#!/bin/bash
#BSUB -J $name
#BSUB -n $cores
#BSUB -R "span[ptile=$on_each]"
${gpus}${hosts}#BSUB -o $name-%J.log

# The processes that $$LSB_DJOB_HOSTFILE lists, by ssh.
tfdist run ${hostfile}$command

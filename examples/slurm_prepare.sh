#!/bin/bash
# Prepare a corpus on a Slurm cluster: 64 array tasks do a share each, then one job joins them.
# CORPUS, TOKENIZER and OUT are on a file system that all nodes see (OUT may also be s3://bucket/run).
#
#   sbatch slurm_prepare.sh                     the array; note the job number that it prints
#   sbatch --dependency=afterok:JOB --array=0 slurm_prepare.sh       joins when all parts have succeeded
#
# A part that failed or was preempted is started again with the same number and goes on where it was:
#   sbatch --array=17 slurm_prepare.sh
#SBATCH --job-name=piecemill-prepare
#SBATCH --array=1-64
#SBATCH --cpus-per-task=8
#SBATCH --mem=6G
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --output=prepare-%A-%a.log
set -euo pipefail

PARTS=64                                 # as in --array=1-64
CORPUS=${CORPUS:-corpus/}
TOKENIZER=${TOKENIZER:-tok/}
OUT=${OUT:-shards/}

if [[ ${SLURM_ARRAY_TASK_ID} == 0 ]]; then
  SHARE=(--join)
else
  SHARE=(--part "${SLURM_ARRAY_TASK_ID}/${PARTS}")
fi

# The same options in all parts and in the join: they are one run.
piecemill prepare "$CORPUS" --tokenizer "$TOKENIZER" --out "$OUT" \
  --splits train=85,val=10,test=5 --dedup exact --memory 4GiB --quiet "${SHARE[@]}"

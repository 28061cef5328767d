#!/bin/bash
# Runs as `nonroot` with COMPETITION_ID set; words given in config.yaml (kwargs) arrive as name=value.
set -e
eval "$(conda shell.bash hook)"
conda activate agent
set -u  # not before: what packages do on activation may name variables that are not set
model=sonnet
for word in "$@"; do
    case "$word" in model=*) model="${word#model=}" ;; esac
done
# Some minutes are left for starting and handing in.
limit=$((${TIME_LIMIT_SECS:-86400} - 600))
mle-star mlebench /home/data --home /home --model "$model" --time-limit "${limit}s" 2>&1 | tee /home/logs/agent.log
exit "${PIPESTATUS[0]}"

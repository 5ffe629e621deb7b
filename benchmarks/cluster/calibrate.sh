#!/bin/sh
# Measures a model's layers on two cores at once, a task pinned to each, for
# choose.py: calibrate.sh MODEL.keras BATCH OUTPUT.json
set -eu
first=$((20000 + $$ % 20000))
config="{\"cluster\": {\"chief\": [\"localhost:$first\"],
    \"worker\": [\"localhost:$((first + 1))\"]}, \"task\": "
TF_CONFIG="$config{\"type\": \"worker\", \"index\": 0}}" \
    taskset -c 1 python -m tf_convpar worker --threads 1 &
worker=$!
trap 'kill $worker' EXIT
TF_CONFIG="$config{\"type\": \"chief\", \"index\": 0}}" \
    taskset -c 0 python -m tf_convpar calibrate "$1" --batch "$2" \
    --algorithm auto --fresh --threads 1 --output "$3"

#!/usr/bin/env bash
# The experiments of Breaking BERT (Brahma, Zablotskaia and Mimno 2022) on one task: graphs of each text by layers;
# BigBird's degrees as a grid; learned degrees and masks drawn from them, compared with the grid and with DAM_s
# (Shi et al. 2021); the last layers without attention, and without the layers themselves.
#
# Run:    examples/brahma2022_sparse_attention.sh mrpc train.txt test.txt
# Short texts have little to mask (special tokens stay): MIN_WORDS=22 leaves them out.
# Try:    SEEDS=1 LIMIT=40 examples/brahma2022_sparse_attention.sh mrpc train.txt test.txt
# To resume an interrupted step: headlens masks --resume runs/mrpc-graphs
set -euo pipefail

task="$1" train="$2" dev="$3"
model="${MODEL:-demo}" out="${OUT:-runs}"
training=(--task "$task" --data "$train" --dev-data "$dev" --data-args min-words="${MIN_WORDS:-0}" --limit "${LIMIT:-100000}" --epochs "${EPOCHS:-1}"
  --learning-rate "${RATE:-1e-4}" --batch-tokens 1024 --training-args precision="${PRECISION:-bf16}")
study=("${training[@]}" --no-controls --seeds "${SEEDS:-3}")

headlens masks "$model" "${study[@]}" --graph syntax --graph lexical --graph neighbour --graph random \
  --parser "${PARSER:-spacy:en_core_web_sm}" --layers all --layers first:3 --layers last:3 \
  --drop-attention last:3 --drop-layers last:3 --out "$out/$task-graphs"

headlens train-dam "$model" "${training[@]}" --lambdas "${LAMBDAS:-0.0001,0.001,0.01}" --data-args longest="${LONGEST:-128}" \
  --out "$out/$task-dam"
masks=()
for file in "$out/$task-dam"/masks/*/mask.safetensors; do masks+=(--mask "$file"); done
headlens masks "$model" "${study[@]}" --data-args longest="${LONGEST:-128}" --length "${LONGEST:-128}" \
  --grid "${GRID:-global=0,1 random=0,2 neighbour=1,3,6}" --learn-degrees "${STRENGTHS:-0.1,0.3,1,3}" --law draws="${DRAWS:-5}" \
  "${masks[@]}" --out "$out/$task-degrees"

headlens report "$out/$task-graphs" "$out/$task-dam" "$out/$task-degrees" --out "$out/$task-report"

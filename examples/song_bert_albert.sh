#!/usr/bin/env bash
# A BERT and an ALBERT of the same small size side by side, after Song's study of the two: pre-trained on books,
# fine-tuned on SST-2, confidence of every head with and without [SEP], every head ablated, heads pruned.
#
# Needs: books.txt, one sentence or paragraph per line; SST-2 in GLUE's layout as train.tsv and dev.tsv.
# Run:    examples/song_bert_albert.sh (about four hours on one CPU core in total)
# Try:    STEPS=2 SIZE=tiny SHALLOW=1 DEEP=2 examples/song_bert_albert.sh
# To resume an interrupted step: headlens train --resume runs/bert-16
set -euo pipefail

out="${OUT:-runs}"
size="${SIZE:-small}"
common=(--corpus books.txt --training-args precision="${PRECISION:-bf16}")
# Blocks of 16 tokens with a quarter of them masked: on long blocks, a small model learns nothing but word frequencies
# for tens of thousands of updates.
short=("${common[@]}" --batch-tokens 1024 --data-args longest=16 --training-args mask-share=0.25 --learning-rate 1e-3 --training-args schedule=constant
  --training-args evaluate-every=2000,log-every=100 --seed 1)
long=("${common[@]}" --batch-tokens 2048 --data-args longest=64 --learning-rate 5e-4 --training-args warmup=100 --steps "${STEPS:-3000}"
  --training-args evaluate-every=1000,log-every=100 --seed 2)
layers() {
  python - "$1/config.json" "$2" <<'PYTHON'
import json, pathlib, sys
path = pathlib.Path(sys.argv[1])
path.write_text(json.dumps(json.loads(path.read_text()) | {"num_hidden_layers": int(sys.argv[2])}, indent=2))
PYTHON
}

headlens train "new:bert-$size" "${short[@]}" --model-args vocabulary="${VOCABULARY:-4000}" --training-args warmup=300 \
  --steps "${STEPS:-10000}" --out "$out/bert-16"
headlens train "$out/bert-16/model" "${long[@]}" --out "$out/bert-64"

# With six layers that share their weights, this phase of mere word frequencies lasts even longer; with two it does not:
# the model is trained with two layers and then extended to six.
headlens train "new:albert-$size" "${short[@]}" --model-args vocabulary="${VOCABULARY:-4000}" --training-args warmup=300 \
  --steps "${STEPS:-3100}" --out "$out/albert-16"
layers "$out/albert-16/model" "${SHALLOW:-2}"
headlens train "$out/albert-16/model" "${short[@]}" --training-args warmup=100 --steps "${STEPS:-3000}" --out "$out/albert-16-shallow"
layers "$out/albert-16-shallow/model" "${DEEP:-6}"
headlens train "$out/albert-16-shallow/model" "${long[@]}" --out "$out/albert-64"

for name in bert albert; do
  headlens train "$out/$name-64/model" --task sst2 --data train.tsv --dev-data dev.tsv --limit "${EXAMPLES:-40000}" \
    --epochs 2 --learning-rate 2e-4 --training-args precision="${PRECISION:-bf16}" --training-args log-every=50,evaluate-every=250 --seed 1 \
    --out "$out/$name-sst2"
done

headlens classify "$out/bert-64/model" "$out/albert-64/model" --corpus "${TREEBANK:-demo}" --out "$out/song-classify"
headlens ablate "$out/bert-sst2/model" "$out/albert-sst2/model" --task sst2 --data dev.tsv --dtype "${DTYPE:-bfloat16}" \
  --prune "${PRUNE:-3,10,20,30}" --strategies ranked,importance,greedy,random --strategy-args rank-split=0.3 --out "$out/song-ablate"
headlens report "$out/song-classify" "$out/song-ablate" --out "$out/song-report"

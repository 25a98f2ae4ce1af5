#!/usr/bin/env bash
# The setting of Voita et al. 2019: a Transformer of 6+6 layers with 8 heads, WMT English-Russian (2.5 million pairs),
# whose encoder heads are pruned by gates while the decoder is frozen; then the same for all heads.
#
# Needs: tokenized text, one sentence per line, in train.en train.ru dev.en dev.ru (newstest2017 or the like).
# Run:    examples/voita2019_wmt_en_ru.sh
#         on four GPUs with LAUNCH="torchrun --nproc-per-node 4 -m headlens_cli" ACCUMULATE=1
# Try:    STEPS=2 MODEL=new:marian-tiny examples/voita2019_wmt_en_ru.sh
# To resume an interrupted step: headlens train --resume runs/wmt-base, headlens prune --resume runs/wmt-encoder
set -euo pipefail

launch=(${LAUNCH:-headlens})
out="${OUT:-runs}"
data=(--task translation --corpus train.en --target train.ru --dev dev.en --data-args dev-target=dev.ru
  --data-args longest="${LONGEST:-256}")
# 16,384 tokens of the longer side per update; with several GPUs divide ACCUMULATE by their number.
batch=(--batch-tokens 4096 --training-args "accumulate=${ACCUMULATE:-4}" --training-args precision="${PRECISION:-bf16}")
# 4 / sqrt(512) / sqrt(16000), reached after 16,000 updates: the authors' schedule with a multiplier of 4.
rate=(--learning-rate 1.4e-3 --training-args warmup=16000,schedule=inverse-sqrt)

"${launch[@]}" train "${MODEL:-new:marian-base}" "${data[@]}" "${batch[@]}" "${rate[@]}" \
  --model-args vocabulary="${VOCABULARY:-32000}" --steps "${STEPS:-300000}" \
  --training-args evaluate-every=2000,log-every=100,bleu=3000 --out "$out/wmt-base"

# Starts from the converged model and repeats the warm-up. λ multiplies the number of open gates, averaged over
# attention modules. Gates use the same learning rate as everything else; the authors initialise log α at random between
# about -0.6 and 0.6, here it starts at 0.
gates=(--law gate-start=0,gate-learning-rate=1.4e-3 --lambdas "${LAMBDAS:-0.01,0.03,0.05,0.1}")
"${launch[@]}" prune "$out/wmt-base/model" "${data[@]}" "${batch[@]}" "${rate[@]}" \
  --law gates=encoder --training-args freeze=decoder "${gates[@]}" --steps "${PRUNE_STEPS:-${STEPS:-100000}}" \
  --from-scratch --training-args scratch-steps="${STEPS:-300000}" --training-args scratch-learning-rate=1.4e-3 --frequency wordfreq:en \
  --roles-corpus "${ROLES:-demo}" --out "$out/wmt-encoder"

"${launch[@]}" prune "$out/wmt-base/model" "${data[@]}" "${batch[@]}" "${rate[@]}" \
  "${gates[@]}" --steps "${PRUNE_STEPS:-${STEPS:-100000}}" \
  --from-scratch --training-args scratch-steps="${STEPS:-300000}" --training-args scratch-learning-rate=1.4e-3 --out "$out/wmt-all"

headlens report "$out/wmt-encoder" "$out/wmt-all" --out "$out/wmt-report"

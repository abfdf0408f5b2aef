#!/usr/bin/env bash
# What there is to measure on a machine with a GPU, in one go and under 8 minutes, without a network:
#   bash tests/benchmarks/gpu.sh [PYTHON]       bash tests/benchmarks/gpu.sh --dry [PYTHON]
# --dry tries every part on a processor, with tiny sizes and Triton's interpreter: no figures.
# Writes what it prints to $OUT/gpu.txt where $OUT is set. Ends with the first thing that fails.
set -euo pipefail
cd "$(dirname "$0")/../.."
if [ "${1:-}" = --dry ]; then dry=1; shift; fi
python=${1:-.venv/bin/python}
[ -x "$(command -v "$python")" ] || { echo "no $python here: name one, bash tests/benchmarks/gpu.sh PYTHON" >&2; exit 2; }
if [ -n "${OUT:-}" ]; then exec > >(tee "$OUT/gpu.txt") 2>&1; fi

export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
if [ -n "${dry:-}" ]; then exec "$python" -W ignore -m tests.benchmarks.gpu --dry ${BENCH_ARGS:-}; fi

echo "== device"
nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader || echo "nvidia-smi says nothing"
"$python" - <<'EOF'
import torch
print("torch", torch.__version__, "built for CUDA", torch.version.cuda)
if not torch.cuda.is_available():
    raise SystemExit("torch sees no CUDA device: nothing below would be about a GPU")
print(torch.cuda.get_device_name(), torch.cuda.get_device_capability())
EOF

echo "== kernels on the device equal their twins"
"$python" -W ignore -m pytest -q -rs -m "not slow" -p no:cacheprovider tests/kernels

echo "== speed"
"$python" -W ignore -m tests.benchmarks.gpu ${BENCH_ARGS:-} || status=$?
case "${status:-0}" in
  0) echo "all aims reached" ;;
  1) echo "measured; an aim was missed" ;;
  *) echo "not all of it could be measured on this device, see above" ;;
esac

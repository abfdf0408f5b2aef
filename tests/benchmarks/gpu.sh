#!/usr/bin/env bash
# What there is to measure on a machine with a GPU, in one go: bash tests/benchmarks/gpu.sh [PYTHON]
# Writes what it prints to $OUT/gpu.txt where $OUT is set. Ends with the first thing that fails.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${1:-.venv/bin/python}
[ -x "$(command -v "$python")" ] || { echo "no $python here: name one, bash tests/benchmarks/gpu.sh PYTHON" >&2; exit 2; }
if [ -n "${OUT:-}" ]; then exec > >(tee "$OUT/gpu.txt") 2>&1; fi

echo "== device"
nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader || echo "nvidia-smi says nothing"
"$python" - <<'EOF'
import torch
print("torch", torch.__version__, "built for CUDA", torch.version.cuda)
if not torch.cuda.is_available():
    raise SystemExit("torch sees no CUDA device: nothing below would be about a GPU")
print(torch.cuda.get_device_name(), torch.cuda.get_device_capability())
EOF

echo "== engine on the device"
"$python" - <<'EOF'
from evalsvc.engine.engine import Engine
from evalsvc.errors import CapabilityError

try:
    Engine.load("nothing", plan="w=bf16,kv=bf16", device="cuda")
except CapabilityError as error:
    print("not served:", error)
except Exception as error:  # it went on to look for the model, so the device is served
    print("served:", error)
EOF

echo "== kernels: forms that ran, and their tests"
"$python" -m pytest -q -rs tests/kernels

echo "== measurements (a part that the device does not serve says so and is not measured on the processor instead)"
"$python" -W ignore -m tests.benchmarks.engine --device cuda --only mc,gen,arms,decode ${BENCH_ARGS:-} || status=$?
case "${status:-0}" in
  0) echo "all targets reached" ;;
  1) echo "measured; a target was missed" ;;
  *) echo "not all of it could be measured on this device, see above" ;;
esac

#!/usr/bin/env bash
# What there is to measure on a machine with a GPU, in one go and under 8 minutes, without a network:
#   bash tests/benchmarks/gpu.sh [PYTHON]       bash tests/benchmarks/gpu.sh --dry [PYTHON]
# --dry tries every part on a processor, with tiny sizes and Triton's interpreter: no figures.
# Each part is a process with a limit of its own: one that fails, hangs or breaks the device takes no other with it.
# Estimated in seconds on an H200 with 16 cores, not measured, imports and kernels' compilation with them: kernels 130,
# replays 30, attention 25, linear 50, latent 50, steps 45, integrity 30, plans 80: 440.
# BENCH_SECONDS (460) for all and BENCH_PART_SECONDS (90; 150 for the plans) for one are other limits. Writes what it prints
# to $OUT/gpu.txt where $OUT is set. Exit code 0: all measured, all aims reached; 1: an aim was missed; 2: a part failed
# or was not measured (named in the last lines), kernels or replays gave other numbers than they have to, or there is no
# device. PYTHON needs torch, triton, transformers and what the tests import; evalsvc itself need not be installed there.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 2
dry=
if [ "${1:-}" = --dry ]; then dry=--dry; shift; fi
python=${1:-.venv/bin/python}
[ -x "$(command -v "$python")" ] || { echo "no $python here: name one, bash tests/benchmarks/gpu.sh PYTHON" >&2; exit 2; }
if [ -n "${OUT:-}" ]; then
  exec > >(tee "$OUT/gpu.txt") 2>&1
  tee=$!
  trap 'exec >&- 2>&-; wait "$tee"' EXIT # nothing is cut off
fi

# TEARDOWN_CUPTI: torch's profiler may crash beside CUDA graphs if it lets go of the device in between.
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false PYTHONUNBUFFERED=1 TEARDOWN_CUPTI=0
if ! "$python" -c "import evalsvc.engine" 2> /dev/null; then # not installed: a linked copy in the package's shape
  rm -rf build/gpu
  mkdir -p build/gpu
  cp -rs "$PWD/evalsvc" build/gpu/evalsvc
  for room in engine kernels dashboards; do cp -rs "$PWD/$room" "build/gpu/evalsvc/$room"; done
  export PYTHONSAFEPATH=1 PYTHONPATH="$PWD/build/gpu:$PWD${PYTHONPATH:+:$PYTHONPATH}"
fi
seconds=${BENCH_SECONDS:-460} # of all parts together
[ -z "$dry" ] || seconds=1800
missed=() failed=()

# part NAME LIMIT COMMAND...: exit code 1 of a measurement says that an aim was missed; of what is in `wrong`, what that is.
declare -A wrong=([kernels]="not all equal their twins" [replays]="logits are not those of eager steps")
part() {
  local name=$1 limit=$2 left=$((seconds - SECONDS)) status=0
  shift 2
  if ((left < 15)); then failed+=("$name: not begun, the time is over"); return; fi
  if ((limit > left)) || [ -n "$dry" ]; then limit=$left; fi
  timeout --kill-after=5 "$limit" "$@" || status=$?
  case $status in
    0) ;;
    124 | 137) failed+=("$name: stopped after $limit s") ;;
    1) if [ -n "${wrong[$name]:-}" ]; then failed+=("$name: ${wrong[$name]}"); else missed+=("$name"); fi ;;
    *) failed+=("$name: exit code $status") ;;
  esac
}

if [ -z "$dry" ]; then
  echo "== device"
  nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader || echo "nvidia-smi says nothing"
  "$python" - <<'EOF' || exit 2
import torch
import transformers
import triton
print("torch", torch.__version__, "built for CUDA", torch.version.cuda, end="; ")
print("triton", triton.__version__, "transformers", transformers.__version__)
if not torch.cuda.is_available():
    raise SystemExit("torch sees no CUDA device: nothing below would be about a GPU")
print(torch.cuda.get_device_name(), torch.cuda.get_device_capability())
EOF
  echo "== kernels on the device equal their twins"
  mapfile -t files < <(grep -lw DEVICE tests/kernels/test_*.py tests/engine/test_*.py) # those that run on it where it is
  part kernels 200 "$python" -m tests.benchmarks.gpu_tests --seconds 180 "${files[@]}"
fi

echo "== replays, and speed"
for name in replays attention linear latent steps integrity plans; do
  longest=90
  [ "$name" != plans ] || longest=150
  # shellcheck disable=SC2086 # the dry flag and the arguments may be none or several
  part "$name" "${BENCH_PART_SECONDS:-$longest}" "$python" -W ignore -m tests.benchmarks.gpu --only "$name" $dry ${BENCH_ARGS:-}
done

echo "== in short, after $SECONDS s"
for name in "${missed[@]}"; do echo "$name: measured, an aim was missed"; done
for name in "${failed[@]}"; do echo "$name"; done
if ((${#failed[@]})); then exit 2; fi
if ((${#missed[@]})); then exit 1; fi
echo "everything ran${dry:+ (dry: no figures)}"

"""One process interprets a kernel, then compiles it, then interprets it again."""

import subprocess
import sys

import pytest
import torch

from evalsvc.errors import CapabilityError
from evalsvc.kernels import jit as jitting
from evalsvc.kernels.jit import constexpr, dot, jit, tl, to_bf16

triton = pytest.importorskip("triton")
pytest.importorskip("triton.runtime.interpreter")  # its import alone adds a name to the library

HALF = constexpr(0.5)


@jit
def _halved(x):
    return x * HALF


@jit
def _rows(x, y, z, N: constexpr):
    """y = half of the sums of the rows of x x', x rounded to bf16; z = the largest of each row of x."""
    at = tl.arange(0, N)
    value = tl.load(x + at[:, None] * N + at[None, :])
    tl.store(z + at, tl.max(value, 1))
    value = to_bf16(value)
    product = dot(value, tl.trans(value), tl.zeros((N, N), tl.float32))
    tl.store(y + at, _halved(tl.sum(product, 1)))


def interpreted(n: int = 16) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x = torch.randn(n, n, generator=torch.Generator().manual_seed(0))
    y, z = torch.empty(2, n)
    _rows[(1,)](x, y, z, n)
    return x, y, z


def compiled() -> bytes:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    source = ASTSource(_rows.compiled, {"x": "*fp32", "y": "*fp32", "z": "*fp32", "N": "constexpr"}, {"N": 16})
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"enable_fp_fusion": True}).asm["cubin"]


def test_interpreting_does_not_stand_in_the_way_of_compiling(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    before = dict(vars(tl))
    for _ in range(2):
        x, y, z = interpreted()
        rounded = x.bfloat16().float()
        assert torch.equal(z, x.amax(1))
        torch.testing.assert_close(y, (rounded @ rounded.T).sum(1) / 2, rtol=1e-5, atol=1e-5)
        monkeypatch.delenv("TRITON_INTERPRET")
        assert compiled()[:4] == b"\x7fELF"
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert vars(tl) == before


@jit
def _round(x, y, N: constexpr):
    at = tl.arange(0, N)
    tl.store(y + at, to_bf16(tl.load(x + at)))


def test_bf16_is_rounded_as_torch_rounds_it(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    ties = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 1 + 2**-8 + 2**-20, 3.4e38, torch.inf, torch.nan])
    x = torch.cat([ties, torch.randn(249, generator=torch.Generator().manual_seed(1))])
    y = torch.empty(256, dtype=torch.bfloat16)
    _round[(1,)](x, y, 256)
    assert torch.equal(y.nan_to_num(5.0), x.bfloat16().nan_to_num(5.0))


def test_an_error_inside_a_kernel_leaves_the_library_as_it_was(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(triton.runtime.errors.InterpreterError):
        interpreted(12)  # a tile's sides are powers of two
    monkeypatch.delenv("TRITON_INTERPRET")
    assert compiled()


def test_without_triton_a_launch_is_refused_and_an_import_is_not(monkeypatch):
    monkeypatch.setattr(jitting, "triton", None)

    @jit
    def lonely(x):
        return x

    with pytest.raises(CapabilityError, match="kernel lonely: triton is not installed"):
        lonely[(1,)](1)


def test_the_engine_is_imported_where_triton_is_not_installed():
    code = "import sys; sys.modules['triton'] = None; import evalsvc.engine.engine"
    subprocess.run([sys.executable, "-c", code], check=True)

"""Which form runs, and what is said when it cannot."""

from collections import Counter

import pytest

from evalsvc.errors import CapabilityError, ConfigError
from evalsvc.kernels import jit
from evalsvc.kernels.dispatch import counting, described, form, ran


@pytest.fixture(autouse=True)
def nothing_is_asked(monkeypatch):
    for name in ("EVALSVC_KERNELS", "TRITON_INTERPRET"):
        monkeypatch.delenv(name, raising=False)


def test_the_device_decides_unless_a_form_is_forced(monkeypatch):
    assert (form("cpu"), form("cuda")) == ("torch", "triton")
    monkeypatch.setenv("EVALSVC_KERNELS", "torch")
    assert form("cuda") == described("cuda") == "torch"


def test_triton_on_a_cpu_is_refused_unless_it_is_interpreted(monkeypatch):
    monkeypatch.setenv("EVALSVC_KERNELS", "triton")
    with pytest.raises(CapabilityError, match="TRITON_INTERPRET=1"):
        form("cpu")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert form("cpu") == "triton" and described("cpu") == "triton:interpreted"


def test_another_word_is_refused(monkeypatch):
    monkeypatch.setenv("EVALSVC_KERNELS", "Triton")
    with pytest.raises(ConfigError, match=r"EVALSVC_KERNELS is 'Triton'; it must be triton, torch, or not set"):
        form("cpu")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_missing_triton_is_refused_and_named(monkeypatch, device):
    monkeypatch.setattr(jit, "triton", None)
    assert form("cpu") == "torch"
    monkeypatch.setenv("EVALSVC_KERNELS", "triton")
    with pytest.raises(CapabilityError, match=r"triton is not installed.*EVALSVC_KERNELS=torch"):
        form(device)


def test_a_run_counts_where_somebody_counts():
    counter: Counter[str] = Counter()
    ran("nobody.torch")
    with counting(counter):
        ran("some.torch")
    ran("nobody.torch")
    assert counter == {"some.torch": 1}

"""What the card here can do at most: its own entry or none, and never one that the card contradicts."""

import msgspec
import pytest
from standins import pynvml as fake_nvml

from gpuworkshop.machine import specs
from gpuworkshop.machine.device import Card, Seen
from gpuworkshop.machine.nvml import Nvml
from gpuworkshop.machine.rated import rated

GIB = 2**30


def live(spec: specs.Spec, **changes) -> tuple[Card, Seen]:
    """A card as one of this kind reports itself."""
    memory = int(sum(spec.memory) / 2 * GIB)
    facts = {
        "multiprocessors": spec.multiprocessors,
        "clock_khz": int(spec.clock * 1000),
        "memory_clock_khz": int(sum(spec.memory_clock) / 2 * 1000),
        "bus_bits": spec.bus,
        "memory_bytes": memory,
    } | changes
    name = f"NVIDIA {spec.names[0]}"
    return Card(name, "GPU-1", facts["memory_bytes"]), Seen(0, name, **facts)


@pytest.fixture
def nvml(monkeypatch):
    """``nvml(power_default=…)``: a session with one card that says this of itself."""

    def make(**facts) -> Nvml:
        fake_nvml.install({"devices": [{"uuid": "GPU-1"} | facts]}, monkeypatch)
        return Nvml()

    return make


@pytest.mark.parametrize("spec", specs.known(), ids=lambda spec: spec.id)
def test_every_card_of_the_table_finds_its_entry_and_agrees(nvml, spec) -> None:
    found = rated(nvml(power_default=int(spec.power * 1000)), *live(spec))
    assert (found.spec, found.why, found.disagreements) == (spec, "", ())
    assert found.peak is spec


def test_the_default_power_limit_tells_cards_of_one_name_apart(nvml) -> None:
    """In watts as delivered, where PyTorch says nothing else."""
    names = [name for spec in specs.known() for name in spec.names]
    twins = [spec for spec in specs.known() if any(names.count(name) > 1 for name in spec.names)]
    assert twins
    told = 0
    for spec in twins:
        name = next(name for name in spec.names if names.count(name) > 1)
        found = rated(nvml(power_default=int(spec.power * 1000)), Card(name, "GPU-1")).spec
        assert found in (None, spec)
        told += found is spec
    assert told
    assert rated(nvml(), Card(name, "GPU-1")).why == "not in the table"


def test_a_card_that_contradicts_its_entry_has_no_peak_and_says_where(nvml) -> None:
    spec = next(spec for spec in specs.known() if spec.id.startswith("h200"))
    found = rated(nvml(), *live(spec, multiprocessors=spec.multiprocessors // 2))
    assert found.spec is spec and found.peak is None
    assert len(found.disagreements) == 1 and "SMs" in found.disagreements[0]


def test_a_slice_a_virtual_gpu_and_an_unknown_card_have_no_peak(nvml) -> None:
    card, seen = live(next(spec for spec in specs.known() if spec.id.startswith("h200")))
    replace = msgspec.structs.replace
    assert rated(nvml(), replace(card, mig=True), seen).why == "MIG slice"
    assert rated(nvml(), replace(card, name="NVIDIA A40-48C"), seen).why == "virtual GPU"
    assert rated(nvml(virtualization=2), card, seen).why == "virtual GPU"
    assert rated(nvml(virtualization=1), card, seen).spec is not None  # passed through whole
    assert rated(nvml(), replace(card, name="NVIDIA H900"), seen).why == "not in the table"
    assert rated(nvml(), replace(card, name="NVIDIA H900"), seen).peak is None


def test_without_pytorch_less_is_checked(nvml) -> None:
    card, _ = live(next(spec for spec in specs.known() if spec.id == "b200"))
    assert rated(nvml(), card).peak is not None
    assert "memory" in rated(nvml(), msgspec.structs.replace(card, memory_bytes=100 * GIB)).disagreements[0]

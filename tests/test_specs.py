"""The table of cards: figures that agree with each other, names that never find another card, and the live check."""

import itertools
import tomllib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuworkshop.machine import specs
from gpuworkshop.machine.specs import GIB, computed_bandwidth, computed_peak, disagreements, find, known

TEXT = Path(specs.__file__).with_suffix(".toml").read_text()
FILE = tomllib.loads(TEXT)
BY_ID = {spec.id: spec for spec in known()}
every_card = pytest.mark.parametrize("spec", known(), ids=lambda spec: spec.id)

CLOCK_IS_NOT_THE_PEAKS = {"h200-nvl", "h100-nvl"}  # printed at 1545 MHz on cards rated at 1785


def facts(spec: specs.Spec, **changed: float) -> dict[str, float]:
    """What a card of this kind reports about itself."""
    healthy = {
        "multiprocessors": spec.multiprocessors,
        "clock_khz": spec.clock * 1e3,
        "memory_clock_khz": sum(spec.memory_clock) / 2 * 1e3,
        "bus_bits": spec.bus,
        "memory_bytes": int(sum(spec.memory) / 2 * GIB),
    }
    return healthy | changed


# ---------------------------------------------------------------- the table


def test_every_asked_card_is_there_once() -> None:
    assert len(BY_ID) == len(known()) >= 25
    assert sum(spec.id.startswith("rtx-pro-6000-") for spec in known()) == 3


@every_card
def test_fewer_bits_are_never_slower(spec) -> None:
    peaks = msgspec.structs.asdict(spec.peaks)
    there = [peaks[name] for name in ("fp32", "tf32", "fp16", "fp8") if peaks[name] is not None]
    assert there == sorted(there) and there[0] > 0
    assert spec.peaks.bf16 in (None, spec.peaks.fp16)


@every_card
def test_peaks_are_dense_and_of_one_kind(spec) -> None:
    """TF32 is half of 16 bits and FP8 twice; a figure with sparsity or another accumulate would be off by two."""
    for peak, ratio in ((spec.peaks.tf32, 0.5), (spec.peaks.fp8, 2)):
        assert peak is None or peak / spec.peaks.fp16 == pytest.approx(ratio, rel=0.02)


@every_card
def test_what_the_card_reports_makes_its_peak(spec) -> None:
    at_its_clock = spec.multiprocessors * (spec.peak_clock or spec.clock) * spec.flop_per_clock / 1e6
    assert at_its_clock == pytest.approx(spec.peaks.fp16, rel=0.02)
    assert computed_peak(spec, spec.multiprocessors, spec.clock * 1e3) == pytest.approx(spec.peaks.fp16, rel=0.02)
    at_rated_clock = spec.multiprocessors * spec.clock * spec.flop_per_clock / 1e6
    assert (at_rated_clock == pytest.approx(spec.peaks.fp16, rel=0.1)) is (spec.id not in CLOCK_IS_NOT_THE_PEAKS)


@every_card
def test_fp32_is_a_whole_number_of_units(spec) -> None:
    """64 or 128 FP32 units per SM, two FLOP each, at the rated clock."""
    per_clock = spec.peaks.fp32 * 1e6 / (spec.multiprocessors * spec.clock)
    assert any(per_clock == pytest.approx(units * 2, rel=0.03) for units in (64, 128))


@every_card
def test_what_the_card_reports_makes_its_bandwidth(spec) -> None:
    low, high = spec.memory_clock
    assert high / low < 1.05
    for clock in spec.memory_clock:
        assert computed_bandwidth(spec.bus, clock * 1e3) == pytest.approx(spec.bandwidth, rel=0.03)


@every_card
def test_the_rest_is_plausible(spec) -> None:
    assert 0.8 * spec.memory[1] < spec.memory[0] < spec.memory[1]
    assert 70 <= spec.power <= 1000
    assert spec.title and spec.names


@every_card
def test_every_figure_has_a_source_and_derived_ones_say_how(spec) -> None:
    assert all(words for group in msgspec.structs.astuple(spec.sources) for words in (group, *group))
    assert all(spec.derived.values())
    assert set(spec.derived) <= set(spec.__struct_fields__) | set(spec.peaks.__struct_fields__)


@every_card
def test_a_peak_clock_is_printed_or_said_to_be_derived(spec) -> None:
    printed = any("boost clock for tensor work" in words for words in spec.sources.hardware)
    assert spec.peak_clock is None or printed or "peak_clock" in spec.derived


def test_the_server_edition_has_no_printed_tensor_peak() -> None:
    assert {"tf32", "bf16", "fp16", "fp8"} <= set(BY_ID["rtx-pro-6000-server"].derived)


def test_every_document_is_used() -> None:
    used = {key for card in FILE["card"] for keys in card["sources"].values() for key in keys}
    assert used == set(FILE["documents"])


def test_the_file_says_none_in_words_and_the_types_say_none() -> None:
    assert any("none" in card["peaks"].values() for card in FILE["card"])
    assert (BY_ID["t4"].peaks.bf16, BY_ID["v100-sxm2-16"].peaks.tf32, BY_ID["a100-sxm-80"].peaks.fp8) == (None,) * 3


@pytest.mark.parametrize(
    ("right", "wrong", "error"),
    [
        ("fp8 = 4500.0", 'fp8 = "nine"', msgspec.ValidationError),
        ("clock = 1965", "clok = 1965", msgspec.ValidationError),
        ('peaks = ["b200-sheet"', 'peaks = ["hearsay"', KeyError),
    ],
    ids=["not a number", "unknown field", "unknown document"],
)
def test_a_broken_file_is_an_error(monkeypatch, tmp_path, right, wrong, error) -> None:
    assert right in TEXT
    (tmp_path / "specs.toml").write_text(TEXT.replace(right, wrong))
    monkeypatch.setattr(specs, "__file__", str(tmp_path / "specs.py"))
    with pytest.raises(error):
        known.__wrapped__()


# ---------------------------------------------------------------- names

NAMES = {
    "NVIDIA B200": "b200",
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": "rtx-pro-6000-workstation",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "rtx-pro-6000-server",
    "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition": "rtx-pro-6000-max-q",
    "NVIDIA H200": "h200-sxm",
    "NVIDIA H200 NVL": "h200-nvl",
    "NVIDIA H100 80GB HBM3": "h100-sxm",
    "NVIDIA H100 PCIe": "h100-pcie",
    "NVIDIA H100 NVL": "h100-nvl",
    "NVIDIA A100-SXM4-80GB": "a100-sxm-80",
    "NVIDIA A100-SXM4-40GB": "a100-sxm-40",
    "NVIDIA A100 80GB PCIe": "a100-pcie-80",
    "NVIDIA A100-PCIE-40GB": "a100-pcie-40",
    "NVIDIA L40S": "l40s",
    "NVIDIA L4": "l4",
    "NVIDIA A10": "a10",
    "Tesla T4": "t4",
    "Tesla V100-SXM2-32GB": "v100-sxm2-32",
    "Tesla V100-SXM2-16GB": "v100-sxm2-16",
    "Tesla V100-PCIE-32GB": "v100-pcie-32",
    "Tesla V100-PCIE-16GB": "v100-pcie-16",
    "Tesla V100S-PCIE-32GB": "v100s-pcie-32",
    "NVIDIA GeForce RTX 3090": "rtx-3090",
    "NVIDIA GeForce RTX 4090": "rtx-4090",
    "NVIDIA GeForce RTX 5090": "rtx-5090",
}


def test_the_names_below_cover_the_table() -> None:
    assert set(NAMES.values()) == set(BY_ID)


@pytest.mark.parametrize("spell", [str, str.upper, str.lower, lambda name: f"  {name.replace(' ', '  ')} "])
@pytest.mark.parametrize("strip", ["", "NVIDIA ", "Tesla "])
@pytest.mark.parametrize(("name", "id"), NAMES.items())
def test_a_card_is_found_by_the_name_that_its_driver_prints(name, id, strip, spell) -> None:
    assert find(spell(name.removeprefix(strip))) is BY_ID[id]
    assert find(f"NVIDIA {name.removeprefix('NVIDIA ')}") is BY_ID[id]


NOT_IN_THE_TABLE = [
    "",
    "NVIDIA",
    "NVIDIA Graphics Device",
    "NVIDIA GH200 480GB",
    "NVIDIA GH200 144G HBM3e",
    "NVIDIA GB200",
    "NVIDIA B300 SXM6 AC",
    "NVIDIA B100",
    "NVIDIA H20",
    "NVIDIA H800",
    "NVIDIA H100",
    "NVIDIA A100",
    "NVIDIA A100-SXM-64GB",
    "NVIDIA A800-SXM4-80GB",
    "NVIDIA L40",
    "NVIDIA L4S",
    "NVIDIA L20",
    "NVIDIA A10G",
    "NVIDIA A10M",
    "NVIDIA A16",
    "Tesla T40",
    "NVIDIA T400",
    "Tesla V100-SXM3-32GB",
    "Tesla V100-FHHL-16GB",
    "Tesla PG503-216",
    "NVIDIA RTX 6000 Ada Generation",
    "NVIDIA RTX A6000",
    "Quadro RTX 6000",
    "NVIDIA RTX PRO 5000 Blackwell",
    "NVIDIA RTX 6000D",
    "NVIDIA GeForce RTX 3090 Ti",
    "NVIDIA GeForce RTX 4090 D",
    "NVIDIA GeForce RTX 4090 Laptop GPU",
    "NVIDIA GeForce RTX 5090 D",
    "NVIDIA GeForce RTX 5080",
    "AMD Instinct MI300X",
    "GRID T4-16Q",
    "GRID A100-10C",
    "NVIDIA A10-24Q",
    "GeForce",
]


@pytest.mark.parametrize("name", NOT_IN_THE_TABLE)
def test_an_unknown_card_has_no_spec_whatever_it_reports(name) -> None:
    assert find(name) is None
    assert find(name, memory_bytes=140 * GIB, multiprocessors=132, memory_clock_khz=3_201_000, clock_khz=1) is None


SLICES = [
    "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
    "NVIDIA A100 80GB PCIe MIG 1g.10gb",
    "NVIDIA H100 80GB HBM3 MIG 1g.10gb+me",
    "NVIDIA H200 MIG 3g.71gb",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition MIG 1g.24gb",
]


@pytest.mark.parametrize("name", SLICES)
def test_a_slice_does_not_get_the_peak_of_its_card(name) -> None:
    assert find(name.split(" MIG")[0]) is not None
    assert find(name) is None


@given(name=st.sampled_from(sorted(NAMES)), more=st.text("0123456789GSTXDi -.", min_size=1), front=st.booleans())
def test_a_longer_name_finds_only_the_card_of_that_name(name, more, front) -> None:
    longer = more + name if front else name + more
    spelled = {" ".join(other.lower().split()): id for other, id in NAMES.items()}
    found = find(longer)
    assert (found and found.id) == spelled.get(" ".join(longer.lower().split()))


# ---------------------------------------------------------------- one name, three cards

EDITIONS = [spec for spec in known() if spec.id.startswith("rtx-pro-6000-")]
BARE = ("NVIDIA RTX PRO 6000", "NVIDIA RTX PRO 6000 Blackwell")


@pytest.mark.parametrize("name", BARE)
def test_a_name_without_edition_is_no_card_by_itself(name) -> None:
    assert find(name) is None
    assert find(name, multiprocessors=188, memory_bytes=95 * GIB) is None, "all three report this"


@pytest.mark.parametrize("name", BARE)
def test_the_memory_clock_tells_the_server_edition(name) -> None:
    assert find(name, memory_clock_khz=12_481_000) is BY_ID["rtx-pro-6000-server"]
    assert find(name, memory_clock_khz=14_001_000) is None, "two cards report this"


@pytest.mark.parametrize("spec", EDITIONS, ids=lambda spec: spec.id)
def test_clock_and_power_tell_the_other_two(spec) -> None:
    clocks = {"memory_clock_khz": sum(spec.memory_clock) / 2 * 1e3}
    assert find(BARE[0], clock_khz=spec.clock * 1e3) is spec
    assert find(BARE[0], power_limit=spec.power, **clocks) is spec


@pytest.mark.parametrize(
    "fact",
    [{"memory_bytes": 24 * GIB}, {"multiprocessors": 170}, {"memory_clock_khz": 9_001_000}, {"power_limit": 450}],
    ids=lambda fact: next(iter(fact)),
)
def test_a_fact_that_no_edition_reports_leaves_none(fact) -> None:
    told = {"clock_khz": 2_617_000, "memory_clock_khz": 14_001_000}
    assert find(BARE[0], **told) is BY_ID["rtx-pro-6000-workstation"]
    assert find(BARE[0], **(told | fact)) is None


def test_facts_that_are_zero_or_none_are_not_known() -> None:
    unknown = dict.fromkeys(("memory_bytes", "multiprocessors", "clock_khz", "power_limit"), 0)
    assert find(BARE[0], memory_clock_khz=12_481_000, **unknown) is BY_ID["rtx-pro-6000-server"]


def test_a_full_name_counts_more_than_what_the_card_reports() -> None:
    """The facts of a card known by name are for ``disagreements``, which says what is wrong."""
    assert find("NVIDIA H200", multiprocessors=16, memory_bytes=16 * GIB) is BY_ID["h200-sxm"]


# ---------------------------------------------------------------- the live check

REPORTED = {  # SMs, kHz, memory kHz, bits, MiB (by CUDA, by NVML), as owners of these cards printed them
    "b200": (148, 1_965_000, 3_996_000, 7680, 182_642, 183_359),
    "rtx-pro-6000-workstation": (188, 2_617_000, 14_001_000, 512, 97_887),
    "rtx-pro-6000-server": (188, 2_430_000, 12_481_000, 512, 97_249, 97_887),
    "h200-sxm": (132, 1_980_000, 3_201_000, 6016, 143_156, 143_771),
    "h200-nvl": (132, 1_785_000, 3_201_000, 6016, 143_771),
    "h100-sxm": (132, 1_980_000, 2_619_000, 5120, 81_079, 81_559),
    "h100-pcie": (114, 1_755_000, 1_593_000, 5120, 81_559),
    "h100-nvl": (132, 1_785_000, 2_619_000, 6016, 94_850, 95_830),
    "a100-sxm-80": (108, 1_410_000, 1_593_000, 5120, 81_158, 81_920),
    "a100-sxm-40": (108, 1_410_000, 1_215_000, 5120, 40_339, 40_960),
    "a100-pcie-80": (108, 1_410_000, 1_512_000, 5120, 81_038, 81_920),
    "a100-pcie-40": (108, 1_410_000, 1_215_000, 5120, 40_339, 40_536),
    "l40s": (142, 2_520_000, 9_001_000, 384, 45_373, 49_140),
    "l4": (58, 2_040_000, 6_251_000, 192, 22_518, 23_034),
    "a10": (72, 1_695_000, 6_251_000, 384, 22_516, 23_028),
    "t4": (40, 1_590_000, 5_001_000, 256, 15_095, 15_360),
    "v100-sxm2-16": (80, 1_530_000, 877_000, 4096, 16_128, 16_384),
    "v100-pcie-16": (80, 1_380_000, 877_000, 4096, 16_152, 16_384),
    "v100-pcie-32": (80, 1_380_000, 877_000, 4096, 32_480, 32_768),
    "v100s-pcie-32": (80, 1_597_000, 1_107_000, 4096, 32_501, 32_768),
    "rtx-3090": (82, 1_740_000, 9_751_000, 384, 24_115, 24_576),
    "rtx-4090": (128, 2_535_000, 10_501_000, 384, 24_081, 23_028),
    "rtx-5090": (170, 2_407_000, 14_001_000, 512, 32_101, 32_607),
}


@pytest.mark.parametrize("id", REPORTED)
def test_real_cards_agree_with_their_spec(id) -> None:
    sms, clock, memory_clock, bus, *totals = REPORTED[id]
    for mib in totals:
        card = {"multiprocessors": sms, "clock_khz": clock, "memory_clock_khz": memory_clock, "bus_bits": bus}
        assert disagreements(BY_ID[id], memory_bytes=mib << 20, **card) == ()
        low, high = BY_ID[id].memory_clock
        assert low <= memory_clock / 1e3 <= high


@every_card
def test_ten_percent_are_allowed_and_not_more(spec) -> None:
    assert disagreements(spec, **facts(spec)) == ()
    for fact, line in (("clock_khz", "16-bit peak: "), ("memory_clock_khz", "bandwidth: ")):
        for factor, side in ((0.85, "below"), (1.15, "above")):
            (told,) = disagreements(spec, **facts(spec, **{fact: facts(spec)[fact] * factor}))
            assert told.startswith(line) and f"% {side} the table's" in told
        for factor in (0.93, 1.07):
            assert disagreements(spec, **facts(spec, **{fact: facts(spec)[fact] * factor})) == ()


@every_card
def test_memory_outside_its_range_is_said(spec) -> None:
    for gib in (spec.memory[0] * 0.98, spec.memory[1] * 1.02):
        (told,) = disagreements(spec, **facts(spec, memory_bytes=int(gib * GIB)))
        assert told.startswith(f"memory: {gib:.1f} GiB") and spec.title in told


@every_card
def test_what_is_not_known_is_not_judged(spec) -> None:
    assert disagreements(spec) == disagreements(spec, **dict.fromkeys(facts(spec), 0)) == ()
    for fact in facts(spec):
        assert disagreements(spec, **facts(spec, **{fact: None})) == ()


def test_a_wrong_card_is_noticed() -> None:
    """The cards of one name differ in what this check sees, and a slice is far from its parent's spec."""
    h100, pcie = BY_ID["h100-sxm"], facts(BY_ID["h100-pcie"])
    assert disagreements(h100, **pcie) == (
        "16-bit peak: 114 SMs at 1755 MHz make 757 TFLOP/s, 23% below the table's 989.4",
        "bandwidth: 5120 bits at 1592 MHz make 2038 GB/s, 39% below the table's 3350",
    )
    server, workstation = BY_ID["rtx-pro-6000-server"], BY_ID["rtx-pro-6000-workstation"]
    assert [line.split(":")[0] for line in disagreements(workstation, **facts(server))] == ["bandwidth"]
    slice_of_a100 = facts(BY_ID["a100-pcie-80"], multiprocessors=14, bus_bits=640, memory_bytes=9728 << 20)
    assert len(disagreements(BY_ID["a100-pcie-80"], **slice_of_a100)) == 3


def test_cards_of_one_name_can_be_told_apart() -> None:
    for one, other in itertools.combinations(known(), 2):
        if set(one.names) & set(other.names):
            clocks = abs(one.clock / other.clock - 1) > 0.06
            apart = one.memory_clock[1] < other.memory_clock[0] or other.memory_clock[1] < one.memory_clock[0]
            assert clocks and (apart or one.power != other.power), (one.id, other.id)

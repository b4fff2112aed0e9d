"""The cards of a process on the machines that people reported: slices, lost cards, other orders, no NVML."""

import pytest
from standins import fake_cuda
from standins import pynvml as fake_nvml

from gpuworkshop.machine import gpus
from gpuworkshop.machine.nvml import Nvml

GIB = 2**30
SLICE_1, SLICE_2 = (f"MIG-77aa0000-bbbb-5ccc-8ddd-00000000000{n}" for n in (1, 2))


def uuid(number: int) -> str:
    return f"GPU-2b7e0d41-0000-4000-8000-{number:012d}"


def card(number: int, name: str = "NVIDIA A100-SXM4-80GB", gib: float = 80, **facts) -> dict:
    total = int(gib * GIB)
    memory = {"total": total, "used": 600 * 2**20, "free": total - 600 * 2**20}
    return {"name": name, "uuid": uuid(number), "bus_id": f"00000000:{number:02X}:00.0", "memory": memory} | facts


def split(*slices: str) -> dict:
    """A card in MIG mode; its second slice is nearly full, and somebody else's."""
    name = "NVIDIA A100-SXM4-80GB MIG 1g.10gb"
    parts = [
        {"uuid": one, "name": name, "memory": {"total": int(9.75 * GIB), "used": (n * 9 * GIB) or 2**20, "free": GIB}}
        for n, one in enumerate(slices)
    ]
    return card(1, mig={"enabled": True, "devices": parts})


def seen(
    number: int, name: str = "NVIDIA A100-SXM4-80GB", gib: float = 79.2, uuid: str = "", bus: str = ""
) -> gpus.Seen:
    return gpus.Seen(number, name, uuid, bus, int(gib * GIB), 108, (8, 0))


@pytest.fixture
def asked(monkeypatch):
    """``asked(devices, "0,1", seen=…)``: the cards on a node with these devices and this variable."""

    def ask(devices: list[dict], variable: str | None = None, seen=None, node: dict | None = None, **env: str):
        fake_nvml.install({"devices": devices} | (node or {}), monkeypatch)
        return gpus.cards(env | ({} if variable is None else {"CUDA_VISIBLE_DEVICES": variable}), seen, Nvml())

    return ask


SLICE_SEEN = seen(0, "NVIDIA A100-SXM4-80GB MIG 1g.10gb", 9.75)


@pytest.mark.parametrize("torch", [None, [SLICE_SEEN], "own", "parent"])
def test_v01_one_slice_is_named_as_a_slice_and_the_other_is_not_ours(asked, torch) -> None:
    """pytorch/pytorch#95784, pytorch/pytorch#92315, XuehaiPan/nvitop#5. PyTorch may give the parent's UUID, or none."""
    if isinstance(torch, str):
        known = SLICE_1.removeprefix("MIG-") if torch == "own" else uuid(1).removeprefix("GPU-")
        torch = [seen(0, SLICE_SEEN.name, 9.75, known)]
    found = asked([split(SLICE_1, SLICE_2)], SLICE_1, torch)
    (mine,) = found.mine
    assert (mine.uuid, mine.mig, mine.parent, mine.cuda) == (SLICE_1, True, uuid(1), 0)
    assert mine.memory_bytes == int(9.75 * GIB)
    assert (found.unknown, found.others, found.split_without_slice) == ((), 1, ())


def test_v02_of_two_slices_cuda_gives_the_first(asked) -> None:
    """pytorch/pytorch#102715, pytorch/pytorch#92315."""
    for torch in (None, [SLICE_SEEN]):
        found = asked([split(SLICE_1, SLICE_2)], f"{SLICE_1},{SLICE_2}", torch)
        assert [mine.uuid for mine in found.mine] == [SLICE_1]
        assert found.visible.ignored == (SLICE_2,) and "one MIG slice" in found.visible.why


@pytest.mark.parametrize("variable", ["0", None, uuid(1)])
@pytest.mark.parametrize("torch", [None, [], [gpus.Seen(0, "?")]])
def test_v03_a_split_card_without_a_slice_is_said_to_be_one(asked, variable, torch) -> None:
    """pytorch/pytorch#131667. PyTorch may count a device that it cannot use."""
    found = asked([split()], variable, torch)
    assert [one.uuid for one in found.split_without_slice] == [uuid(1)]
    assert not any(mine.uuid for mine in found.mine)


def test_a_slice_by_the_name_that_older_drivers_gave_it(asked) -> None:
    """MIG-GPU-UUID/GI/CI."""
    found = asked([split(SLICE_1, SLICE_2)], f"MIG-{uuid(1)}/1/0")
    assert [mine.uuid for mine in found.mine] == [SLICE_2]


def test_two_slices_and_no_variable_is_not_guessed(asked) -> None:
    found = asked([split(SLICE_1, SLICE_2)], None)
    assert (found.mine, found.unknown) == ((), ("one of 2 MIG slices",))
    found = asked([split(SLICE_1, SLICE_2)], None, [SLICE_SEEN])
    assert (found.mine[0].uuid, found.unknown) == ("", ("cuda:0",))


@pytest.mark.parametrize("torch", [None, [seen(0), seen(1)]])
def test_v04_uuids_are_looked_up_in_the_order_of_the_variable(asked, torch) -> None:
    """pytorch/pytorch#90543, vllm-project/vllm#13815, rapidsai/dask-cuda#435."""
    found = asked([card(n) for n in (1, 2, 3, 4)], f"{uuid(3)},{uuid(1)}", torch)
    assert [(mine.uuid, mine.physical, mine.cuda) for mine in found.mine] == [(uuid(3), 2, 0), (uuid(1), 0, 1)]
    assert (found.unknown, found.others) == ((), 2)


@pytest.mark.parametrize(
    ("variable", "kind"), [(None, "unset"), ("", "hidden"), ("-1", "hidden"), ("NoDevFiles", "hidden")]
)
def test_v07_unset_is_everything_and_the_others_hide_it(asked, variable, kind) -> None:
    """ray-project/ray#7014, XuehaiPan/nvitop#26, pytorch/pytorch#40618."""
    found = asked([card(1)], variable)
    assert (found.visible.kind, found.visible.raw) == (kind, variable)
    assert len(found.mine) == (1 if kind == "unset" else 0)
    assert ("no GPU" in found.visible.why) is (variable == "NoDevFiles")


@pytest.mark.parametrize("known", ["uuid", "bus", "neither"])
def test_v08_cards_are_paired_by_what_they_are_and_not_by_number(asked, known) -> None:
    """ModelCloud/Device-SMI#40, anderskm/gputil#18, gpuopenanalytics/pynvml#28, pytorch/pytorch#80876."""
    small, big = card(1, "Quadro P1000", 8, cc=[6, 1]), card(2, "NVIDIA RTX A6000", 48, cc=[8, 6])
    torch = [
        gpus.Seen(
            number,
            one["name"],
            one["uuid"] if known == "uuid" else "",
            one["bus_id"] if known == "bus" else "",
            one["memory"]["total"],
        )
        for number, one in enumerate((big, small))
    ]
    found = asked([small, big], None, torch)
    assert [(mine.name, mine.uuid, mine.physical) for mine in found.mine] == [
        ("NVIDIA RTX A6000", uuid(2), 1),
        ("Quadro P1000", uuid(1), 0),
    ]
    assert found.another_order and not found.unknown
    assert asked([small, big], "1").unknown == ("1",)
    assert asked([small, big], "1", CUDA_DEVICE_ORDER="PCI_BUS_ID").mine[0].uuid == uuid(2)


@pytest.mark.parametrize(("count", "variable", "uuids"), [(2, "0,1", (1, 2)), (8, "5,6", (6, 7))])
@pytest.mark.parametrize("torch", [None, [seen(0), seen(1)]])
def test_v09_slurms_numbers_are_never_an_index(asked, count, variable, uuids, torch) -> None:
    """ollama/ollama#11356, NatLabRockies/HPC#660, NVIDIA/deepops#1102: inside a cgroup, and without one."""
    found = asked([card(n) for n in range(1, count + 1)], variable, torch, SLURM_JOB_GPUS="5,6")
    assert [mine.uuid for mine in found.mine] == [uuid(n) for n in uuids]
    assert (found.unknown, found.others) == ((), count - 2)


def test_a_card_that_may_not_be_opened_is_another_jobs_and_not_lost(asked) -> None:
    found = asked([{"handle_error": "NoPermission"}, card(2)], "0")
    assert [mine.uuid for mine in found.mine] == [uuid(2)]
    assert (found.lost, found.others) == ((), 1)


def test_v19_one_lost_card_leaves_three(asked) -> None:
    """rossumai/nvgpu#6, XuehaiPan/nvitop#139, LSSI-ETH/plmfit#40. All buses are the same here, so they say nothing."""
    same = {"bus_id": "00000000:31:00.0"}
    node = [card(1, **same), card(2, **same), {"uuid": uuid(3), "handle_error": "GpuIsLost"}, card(4, **same)]
    found = asked(node)
    assert [mine.uuid for mine in found.mine] == [uuid(1), uuid(2), uuid(4)]
    assert [(one.physical, one.words) for one in found.lost] == [(2, "GpuIsLost")]
    found = asked(node, "2,3")
    assert (found.mine, found.unknown) == ((), ("2", "3")), "does CUDA still count the lost card? Nobody knows"
    found = asked(node, None, [seen(0, bus="00000000:31:00.0")])
    assert found.unknown == ("cuda:0",)


def test_v24_bytes_and_text_are_the_same(asked) -> None:
    """rossumai/nvgpu#29, vllm-project/vllm#7649, dask/distributed#5768."""
    text, as_bytes = asked([card(1)]), asked([card(1)], node={"return_bytes": True})
    assert text == as_bytes and text.mine[0].bus == "00000000:01:00.0"


@pytest.mark.parametrize(
    ("name", "virtual"),
    [
        ("NVIDIA A40-48C", True),
        ("GRID A100-10C", True),
        ("GRID V100D-8Q", True),
        ("NVIDIA A100-SXM4-80GB", False),
        ("NVIDIA H100 80GB HBM3", False),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", False),
    ],
)
def test_v27_a_virtual_gpu_is_known_by_its_name(asked, name, virtual) -> None:
    """NVIDIA/TensorRT-LLM#1861, dmlc/xgboost#12217."""
    refused = {"error": "NotSupported"}
    assert asked([card(1, name, temperature=refused, power=refused)]).mine[0].virtual is virtual


@pytest.mark.parametrize("torch", [None, [seen(0, uuid=uuid(2))], [seen(0)]])
def test_w07_the_card_that_is_watched_is_the_one_of_the_variable(asked, torch) -> None:
    """pytorch/pytorch#94472, huggingface/optimum-benchmark#47."""
    (mine,) = asked([card(1), card(2)], "1", torch).mine
    assert (mine.uuid, mine.place) == (uuid(2), "cuda:0 (physical card 1, bus 00000000:02:00.0)")


def test_w11_memory_that_the_driver_keeps_is_not_in_use(monkeypatch) -> None:
    """huggingface/optimum-benchmark#31. Bindings without the second version of the call do with the first."""
    idle = {"memory": {"total": 80 * GIB, "used": 4 * 2**20, "reserved": 600 * 2**20}}
    for absent, used in (([], 4), (["nvmlMemory_v2"], 604)):
        with pytest.MonkeyPatch.context() as patch:
            fake_nvml.install({"devices": [idle], "absent": absent}, patch)
            nvml = Nvml()
            assert nvml.memory(next(nvml.handles())[1]) == (used * 2**20, 80 * GIB)


@pytest.mark.parametrize(
    "device", [seen(0, uuid=uuid(9)), seen(0, bus="00000000:77:00.0"), seen(0, gib=40), seen(0, "NVIDIA T4")]
)
def test_a_device_that_contradicts_the_only_card_is_not_it(asked, device) -> None:
    found = asked([card(1)], "0", [device])
    assert (found.mine[0].physical, found.unknown, found.others) == (None, ("cuda:0",), 1)


def test_fewer_devices_than_the_variable_leaves_are_not_matched_by_their_place(asked) -> None:
    found = asked([card(1), card(2), card(3)], "0,1", [seen(0)])
    assert (found.mine[0].uuid, found.unknown) == ("", ("cuda:0",))


def test_one_slice_under_two_names_is_unknown(asked) -> None:
    """By its UUID and by the name of older drivers; a card that stands there twice leaves none."""
    assert asked([split(SLICE_1, SLICE_2)], f"{SLICE_1},{SLICE_2}").mine[0].uuid == SLICE_1
    found = asked([split(SLICE_1, SLICE_2)], f"{SLICE_1},MIG-{uuid(1)}/0/0")
    assert (found.mine, found.unknown) == ((), (SLICE_1,))


def test_a_bus_tells_nothing_where_another_card_has_none(asked) -> None:
    """Some containers give every card the same address; which card has it cannot be told then."""
    same = {"bus_id": "00000000:10:00.0"}
    node = [card(1, bus_id={"error": "NotSupported"}), card(2, **same)]
    found = asked(node, "0", [seen(0, bus="00000000:10:00.0")])
    assert (found.mine[0].uuid, found.unknown) in (("", ("cuda:0",)), (uuid(1), ()))


def test_entries_from_one_that_names_no_card_on_are_unknown(asked) -> None:
    found = asked([card(1), card(2)], "1,9,0")
    assert ([mine.uuid for mine in found.mine], found.unknown) == ([uuid(2)], ("9", "0"))
    found = asked([card(1), card(2)], f"{uuid(2)},GPU-2b7e0d41,{uuid(1)}")
    assert ([mine.uuid for mine in found.mine], found.unknown) == ([uuid(2)], ("GPU-2b7e0d41", uuid(1)))


# Machines without NVML, or with a part of it


def test_v21_an_amd_card_is_what_pytorch_says(asked) -> None:
    """unslothai/unsloth#4449, pytorch/pytorch#132990: PyTorch has devices, and there is no NVML."""
    amd = gpus.Seen(0, "AMD Instinct MI250X", "6e6f0000-0000-4000-8000-000000000001", memory_bytes=64 * GIB)
    found = asked([], "0", [amd], {"init_error": "LibraryNotFound"})
    assert [(mine.name, mine.uuid, mine.cuda) for mine in found.mine] == [(amd.name, f"GPU-{amd.uuid}", 0)]
    assert (found.unknown, found.others) == ((), 0)
    assert asked([], "0", None, {"init_error": "LibraryNotFound"}).unknown == ("0",)


def test_a_machine_without_any_card_has_none(asked, monkeypatch) -> None:
    """A Mac, or a login node: PyTorch has no CUDA device."""
    found = asked([], None, [], {"init_error": "LibraryNotFound"})
    assert (found.mine, found.unknown, found.lost, found.others) == ((), (), (), 0)
    assert not gpus.there_is_one()
    fake_cuda.install({"devices": [], "mps": True}, monkeypatch)
    assert gpus.seen_by_torch() == () and gpus.card("cuda:0") is None and gpus.default_device() == "cpu"


@pytest.mark.parametrize("name", ["NVIDIA GB10", "NVIDIA GH200 480GB", "Orin"])
def test_memory_that_nvml_does_not_know_is_pytorchs_and_never_zero(asked, monkeypatch, name) -> None:
    """Parts that share the machine's memory: NVML refuses, or answers 0."""
    for memory in ({"error": "NotSupported"}, {"total": 0, "used": 0, "free": 0}):
        shared = {"name": name, "uuid": uuid(1), "memory": memory, "bus_id": {"error": "NotSupported"}}
        assert asked([shared]).mine[0].memory_bytes is None
        with pytest.MonkeyPatch.context() as patch:
            facts = {"name": name, "uuid": uuid(1)[4:], "total": 119 * GIB, "integrated": True}
            fake_cuda.install({"devices": [facts]}, patch)
            (mine,) = asked([shared], None, gpus.seen_by_torch()).mine
        assert (mine.uuid, mine.memory_bytes, mine.integrated) == (uuid(1), 119 * GIB, True)


def test_a_device_whose_properties_cannot_be_read_is_there_and_unknown(asked, monkeypatch) -> None:
    """pytorch/pytorch#131667: an assertion of PyTorch."""
    error = {"text": "device >= 0 && device < num_gpus INTERNAL ASSERT FAILED"}
    fake_cuda.install({"devices": [{"name": "?"}], "properties_error": error}, monkeypatch)
    found = asked([card(1), card(2)], "0,1", gpus.seen_by_torch())
    assert (found.mine[0].uuid, found.unknown) == ("", ("cuda:0",))


def test_the_card_of_a_device_by_its_number(monkeypatch) -> None:
    fake_nvml.install({"devices": [card(1), card(2)], "driver": "580.95.05"}, monkeypatch)
    both = [{"name": "NVIDIA A100-SXM4-80GB", "uuid": uuid(n)[4:], "total": 79 * GIB} for n in (2, 1)]
    fake_cuda.install({"devices": both}, monkeypatch)
    assert [gpus.card(device).uuid for device in ("cuda", "cuda:0", "cuda:1")] == [uuid(2), uuid(2), uuid(1)]
    assert gpus.card("cuda:1").driver == "580.95.05"
    assert gpus.card("cuda:2") is None and gpus.card("cpu") is None


def test_two_devices_that_say_the_same_of_themselves_are_both_unknown(asked) -> None:
    for twice in ([seen(n, uuid=uuid(1)) for n in (0, 1)], [seen(n, bus="00000000:01:00.0") for n in (0, 1)]):
        found = asked([card(1), card(2, "NVIDIA T4", 16)], None, twice)
        assert [mine.physical for mine in found.mine] == [None, None]
        assert found.unknown == ("cuda:0", "cuda:1")


def test_what_answers_is_not_taken_for_what_does_not(asked) -> None:
    """A device without a UUID may be the lost card, and a slice the one that does not answer."""
    found = asked([{"handle_error": "GpuIsLost"}, card(2)], None, [seen(0)])
    assert (found.mine[0].physical, found.unknown, found.others) == (None, ("cuda:0",), 1)
    silent = split(SLICE_1, SLICE_2)
    silent["mig"]["devices"][0]["handle_error"] = "Unknown"
    for known in ("", uuid(1)):
        found = asked([silent], None, [seen(0, SLICE_SEEN.name, 9.75, known)])
        assert (found.mine[0].physical, found.unknown, found.others) == (None, ("cuda:0",), 1)


def test_a_card_that_is_named_twice_makes_everything_unknown(asked) -> None:
    found = asked([card(1), card(2)], f"{uuid(2)},{uuid(2)[:-1]}2,{uuid(1)}")
    assert found.visible.kind == "hidden"
    found = asked([card(1), card(2)], f"{uuid(2)},{uuid(2).upper()}")
    assert (found.mine, found.unknown) == ((), (uuid(2), uuid(2).upper()))


def test_cards_without_a_name_may_be_of_several_kinds(asked) -> None:
    nameless = [card(n, name_error="Unknown") for n in (1, 2)]
    assert asked(nameless, "1").unknown == ("1",)
    assert [mine.cuda for mine in asked(nameless).mine] == [None, None]

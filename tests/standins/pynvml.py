"""Stand-in for the NVML bindings: answers what a JSON file, or a dict, says. For tests only.

In a child process: put this folder first on PYTHONPATH and name the file: ``FAKE_NVML=node.json``. Without the
variable there is no NVML library here, as on a machine without a driver.

In the test's own process::

    from standins import pynvml as fake_nvml
    driver = fake_nvml.install({"devices": [{"name": "NVIDIA H200", "uuid": "GPU-1"}]}, monkeypatch)
    driver.calls["nvmlInit"]               # how often each function was called
    driver.spec["devices"][0]["util"] = …  # answers may be changed in mid-run
    driver.gpm_open                        # GPM samples that were allocated and not freed

An ANSWER, wherever one may stand below, is
    a value                                  that value
    {"error": "NotSupported"}                raises NVMLError_NotSupported, or a built-in exception of that name
    {"in_turn": [ANSWER, ...]}               one for each call; the last repeats
    {"first": N, "say": ANSWER, "then": ANSWER}   for N calls one, then the other: a refusal in mid-run
    {"hang": S, "then": ANSWER}              S seconds later; without "then" the call ends in a Timeout error

Keys of the node, all optional
    init            ANSWER of nvmlInit; init_error: the name of an error, short for {"error": ...}
    driver, nvml, cuda   versions; cuda as 13000
    return_bytes    true: texts come as bytes, as old bindings gave them
    missing         functions that the driver lacks (FunctionNotFound)
    absent          names that the bindings lack, functions and constants (AttributeError)
    calls           {"nvmlFunction": ANSWER}: in place of whatever the function would say
    devices         the cards
    processes       {"PID": "name"} for nvmlSystemGetProcessName

Keys of a card, all optional, each an ANSWER. What is not given is not supported, except those with a default here.
    name ("NVIDIA Test GPU"), uuid ("GPU-0...N"), bus_id ("00000000:NN:00.0"), cc [8, 0], handle_error, name_error
    memory          {"total", "used", "free", "reserved"}; the first version of the call counts reserved as used
    bar1            {"total", "used", "free"}
    util            {"gpu", "memory"} in percent, or a list of such, one for each call. On a slice not supported
    samples         {"gpu"|"memory"|"power": [[at, value], ...] | {"every": S, "values": [...], "kept": 100}}
                    at in microseconds; the second form is a buffer that fills by the clock and begins anew at its end
    gpm             {"supported": ANSWER (1), "sample": ANSWER, "read": ANSWER, "gap": S, "metrics": {NAME: ANSWER}}
                    "sample" is asked at each nvmlGpmSampleGet, "read" at each nvmlGpmMetricsGet: there they may refuse.
                    NAME is one of GPM_NAMES or a number; a metric's error is its nvmlReturn, and so is NotSupported
                    where it is not named. Two samples closer than gap give 0, as the hardware does below 0.1 s
    energy          mJ, or {"watts": W}: grows with the clock
    power, power_limit, power_default, power_range [low, high]      mW. enforced limit, default limit, limits allowed
    clocks, max_clocks   {"graphics", "sm", "mem"} MHz
    reasons         bit mask of why clocks are held back, or names such as ["SwPowerCap", "HwThermalSlowdown"]
    temperature (40), temperature_limit, fan, state (0), compute_mode (0), persistence, brand, architecture, cores,
    bus_width, minor, virtualization
    ecc [now, pending]; ecc_volatile, ecc_aggregate: counts, or {"corrected", "uncorrected"}; remapped [c, u, p, f]
    pcie            {"gen", "width", "max_gen", "max_width", "tx", "rx", "replays"}
    processes       [{"pid", "used"}]; pid may be "self" or "parent"; used null: None; "n/a": NVML's number for that
    graphics_processes, mps_processes   the same
    process_util    [{"pid", "sm", "mem", "at"}]
    fields          {"186": ANSWER}: nvmlDeviceGetFieldValues
    mig             {"enabled": true, "pending": true, "max": 7, "devices": [slices]}
Keys of a slice: those of a card, and gi, ci (numbers of its instances), attributes {"multiprocessorCount", ...}.
"""

from __future__ import annotations

import builtins
import ctypes
import itertools
import json
import os
import sys
import time
from collections import Counter
from types import SimpleNamespace

NVML_SUCCESS = 0
CODES = {
    "Uninitialized": 1, "InvalidArgument": 2, "NotSupported": 3, "NoPermission": 4, "AlreadyInitialized": 5,
    "NotFound": 6, "InsufficientSize": 7, "InsufficientPower": 8, "DriverNotLoaded": 9, "Timeout": 10,
    "IrqIssue": 11, "LibraryNotFound": 12, "FunctionNotFound": 13, "CorruptedInforom": 14, "GpuIsLost": 15,
    "ResetRequired": 16, "OperatingSystem": 17, "LibRmVersionMismatch": 18, "InUse": 19, "Memory": 20, "NoData": 21,
    "InsufficientResources": 23, "ArgumentVersionMismatch": 25, "NotReady": 27, "GpuNotFound": 28, "Unknown": 999,
}  # fmt: skip
NVML_COMPUTEMODE_DEFAULT, NVML_COMPUTEMODE_PROHIBITED, NVML_COMPUTEMODE_EXCLUSIVE_PROCESS = 0, 2, 3
NVML_DEVICE_MIG_DISABLE, NVML_DEVICE_MIG_ENABLE = 0, 1
NVML_TEMPERATURE_GPU = NVML_TEMPERATURE_THRESHOLD_SHUTDOWN = 0
NVML_TEMPERATURE_THRESHOLD_SLOWDOWN = 1
NVML_CLOCK_GRAPHICS, NVML_CLOCK_SM, NVML_CLOCK_MEM = 0, 1, 2
NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 0, 1
NVML_VOLATILE_ECC, NVML_AGGREGATE_ECC = 0, 1
NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES = 0, 1
NVML_TOTAL_POWER_SAMPLES, NVML_GPU_UTILIZATION_SAMPLES, NVML_MEMORY_UTILIZATION_SAMPLES = 0, 1, 2
NVML_VALUE_TYPE_DOUBLE, NVML_VALUE_TYPE_UNSIGNED_INT = 0, 1
NVML_FI_DEV_POWER_AVERAGE, NVML_FI_DEV_POWER_INSTANT, NVML_FI_DEV_POWER_DEFAULT_LIMIT = 185, 186, 189
NVML_VALUE_NOT_AVAILABLE_ulonglong = ctypes.c_ulonglong(-1)
NVML_VALUE_NOT_AVAILABLE_uint = ctypes.c_uint(-1)
NVML_DEVICE_UUID_BUFFER_SIZE, NVML_DEVICE_UUID_V2_BUFFER_SIZE = 80, 96
nvmlMemory_v2 = 0x02000028
NVML_GPM_METRICS_GET_VERSION = NVML_GPM_SUPPORT_VERSION = 1
GPM = {
    "GRAPHICS_UTIL": 1, "SM_UTIL": 2, "SM_OCCUPANCY": 3, "INTEGER_UTIL": 4, "ANY_TENSOR_UTIL": 5, "HMMA_TENSOR_UTIL": 7,
    "DRAM_BW_UTIL": 10, "FP64_UTIL": 11, "FP32_UTIL": 12, "FP16_UTIL": 13, "PCIE_TX_PER_SEC": 20, "PCIE_RX_PER_SEC": 21,
    "NVLINK_TOTAL_RX_PER_SEC": 60, "NVLINK_TOTAL_TX_PER_SEC": 61, "MAX": 333,
}  # fmt: skip
GPM_NAMES = {
    1: "graphics", 2: "sm", 3: "occupancy", 4: "integer", 5: "tensor", 7: "hmma", 10: "dram", 11: "fp64", 12: "fp32",
    13: "fp16", 20: "pcie_tx", 21: "pcie_rx", 60: "nvlink_rx", 61: "nvlink_tx",
}  # fmt: skip
REASONS = {
    "GpuIdle": 1, "ApplicationsClocksSetting": 2, "SwPowerCap": 4, "HwSlowdown": 8, "SyncBoost": 16,
    "SwThermalSlowdown": 32, "HwThermalSlowdown": 64, "HwPowerBrakeSlowdown": 128, "DisplayClockSetting": 256,
}  # fmt: skip
for _name, _number in GPM.items():
    globals()[f"NVML_GPM_METRIC_{_name}"] = _number
for _name, _number in REASONS.items():
    globals()[f"nvmlClocksEventReason{_name}"] = globals()[f"nvmlClocksThrottleReason{_name}"] = _number


class NVMLError(Exception):
    """The base of every NVML error; ``value`` is its code."""

    value = 999

    def __init__(self, value: int | None = None) -> None:
        self.value = self.value if value is None else value
        super().__init__(self.value)

    def __new__(cls, value: int | None = None) -> NVMLError:
        return super().__new__(_ERRORS.get(value, cls) if cls is NVMLError else cls)

    def __str__(self) -> str:
        return next((name for name, code in CODES.items() if code == self.value), f"error {self.value}")


def _spelled(name: str) -> str:
    return "".join(f"_{letter}" if letter.isupper() and place else letter for place, letter in enumerate(name)).upper()


_ERRORS: dict[int, type[NVMLError]] = {}
for _name, _number in CODES.items():
    _ERRORS[_number] = type(f"NVMLError_{_name}", (NVMLError,), {"value": _number})
    globals()[f"NVMLError_{_name}"] = _ERRORS[_number]
    globals()[f"NVML_ERROR_{_spelled(_name)}"] = _number


def _failure(name: str) -> Exception:
    """An exception by its name: NVML's, else a built-in one."""
    if name in CODES:
        return _ERRORS[CODES[name]]()
    kind = getattr(builtins, name)
    return kind("utf-8", b"\xf8", 0, 1, "stand-in") if issubclass(kind, UnicodeError) else kind("stand-in")


class Driver:
    """The state of one stand-in: what it was told, how often it was asked, and what was left open."""

    def __init__(self, spec: dict) -> None:
        self.spec = spec
        self.calls: Counter[str] = Counter()
        self.sessions = 0
        self.gpm_open = 0
        self.began = time.monotonic()
        self._turns: dict[int, list] = {}
        self._lists: dict[int, tuple[list, dict]] = {}

    @property
    def elapsed(self) -> float:
        """Seconds since it was installed."""
        return time.monotonic() - self.began

    def cards(self) -> list[dict]:
        """The cards of the node."""
        return self.spec.get("devices", [])

    def say(self, answer: object) -> object:
        """What an ANSWER says at this call."""
        while isinstance(answer, dict):
            if "error" in answer:
                raise _failure(answer["error"])
            if "hang" in answer:
                time.sleep(answer["hang"])
                answer = answer.get("then", {"error": "Timeout"})
            elif "in_turn" in answer:
                answer = answer["in_turn"][min(self._turn(answer), len(answer["in_turn"]) - 1)]
            elif "first" in answer:
                answer = answer.get("say") if self._turn(answer) < answer["first"] else answer["then"]
            else:
                return answer
        return answer

    def listed(self, answers: list) -> dict:
        """A plain list as the ANSWER that gives one for each call."""
        return self._lists.setdefault(id(answers), (answers, {"in_turn": answers}))[1]

    def _turn(self, answer: dict) -> int:
        entry = self._turns.setdefault(id(answer), [answer, -1])  # the answer is kept, so that its id stays its own
        entry[1] += 1
        return entry[1]


_driver = None


def install(spec: dict, monkeypatch=None) -> Driver:
    """Make ``import pynvml`` find this module, answering what ``spec`` says, until ``monkeypatch`` undoes it."""
    driver = Driver(spec)
    here = sys.modules[__name__]
    for name in spec.get("absent", ()) if monkeypatch else ():
        monkeypatch.delattr(here, name)
    if monkeypatch:
        monkeypatch.setattr(here, "_driver", driver)
        monkeypatch.setitem(sys.modules, "pynvml", here)
    else:
        here._driver = driver
        sys.modules["pynvml"] = here
    return driver


def _node() -> Driver:
    global _driver
    if _driver is None:
        path = os.environ.get("FAKE_NVML")
        if not path:
            raise _failure("LibraryNotFound")
        with open(path, encoding="utf-8") as file:
            _driver = Driver(json.load(file))
    return _driver


class _Handle:
    """A card, or a slice of one."""

    def __init__(self, index: int, part: int | None = None) -> None:
        self.index, self.part = index, part

    @property
    def facts(self) -> dict:
        card = _driver.cards()[self.index]
        return card if self.part is None else card["mig"]["devices"][self.part]


def _asked(name: str) -> tuple[bool, object]:
    """Count a call; whether the node's ``calls`` answer it, and what they say."""
    node = _node()
    node.calls[name] += 1
    if name in node.spec.get("missing", ()):
        raise _failure("FunctionNotFound")
    if name in node.spec.get("calls", {}):
        return True, node.say(node.spec["calls"][name])
    if not node.sessions and not name.startswith("nvmlInit"):
        raise _failure("Uninitialized")
    return False, None


def _call(function):
    """A function of the bindings: counted, and answered by the node's ``calls`` where they name it."""

    def asked(*arguments, **named):
        done, answer = _asked(function.__name__)
        return answer if done else function(*arguments, **named)

    asked.__name__ = function.__name__
    return asked


_REQUIRED = object()


def _field(handle: _Handle, key: str, default: object = _REQUIRED) -> object:
    """What the node says about one fact of a card; NotSupported for one that it does not know."""
    answer = handle.facts.get(key, default)
    if answer is _REQUIRED:
        raise _failure("NotSupported")
    return _driver.say(answer)


def _part(handle: _Handle, key: str, inner: str) -> object:
    """One entry of a fact that has several."""
    found = _field(handle, key)
    if inner not in found:
        raise _failure("NotSupported")
    return _driver.say(found[inner])


def _text(text: str) -> str | bytes:
    return text.encode() if _driver.spec.get("return_bytes") and isinstance(text, str) else text


# The session and the node


@_call
def nvmlInit() -> None:
    node = _node()
    if "init_error" in node.spec:
        raise _failure(node.spec["init_error"])
    node.say(node.spec.get("init"))
    node.sessions += 1


@_call
def nvmlInitWithFlags(flags: int) -> None:
    nvmlInit()


@_call
def nvmlShutdown() -> None:
    _driver.sessions -= 1


def nvmlErrorString(code: int) -> str:
    return str(NVMLError(code))


@_call
def nvmlSystemGetDriverVersion() -> str | bytes:
    return _text(_driver.say(_driver.spec.get("driver", "580.00.00")))


@_call
def nvmlSystemGetNVMLVersion() -> str | bytes:
    return _text(_driver.say(_driver.spec.get("nvml", "13.580.00")))


@_call
def nvmlSystemGetCudaDriverVersion() -> int:
    return _driver.say(_driver.spec.get("cuda", 13000))


nvmlSystemGetCudaDriverVersion_v2 = nvmlSystemGetCudaDriverVersion


@_call
def nvmlSystemGetProcessName(pid: int) -> str | bytes:
    names = _driver.spec.get("processes", {})
    if str(pid) not in names:
        raise _failure("NotFound")
    return _text(_driver.say(names[str(pid)]))


# Handles


@_call
def nvmlDeviceGetCount() -> int:
    return len(_driver.cards())


def _open(index: int) -> _Handle:
    error = _driver.cards()[index].get("handle_error")
    if error:
        raise _failure(error) if isinstance(error, str) else _failure(_driver.say(error) or "Unknown")
    return _Handle(index)


@_call
def nvmlDeviceGetHandleByIndex(index: int) -> _Handle:
    if not 0 <= index < len(_driver.cards()):
        raise _failure("InvalidArgument")
    return _open(index)


@_call
def nvmlDeviceGetHandleByUUID(uuid: str | bytes) -> _Handle:
    wanted = uuid.decode() if isinstance(uuid, bytes) else uuid
    for index, card in enumerate(_driver.cards()):
        if _uuid(index, card) == wanted:
            return _open(index)
        for part, piece in enumerate((card.get("mig") or {}).get("devices", [])):
            if piece.get("uuid") == wanted:
                return _Handle(index, part)
    raise _failure("NotFound")


@_call
def nvmlDeviceGetHandleByPciBusId(bus: str | bytes) -> _Handle:
    wanted = (bus.decode() if isinstance(bus, bytes) else bus).lower()
    for index, card in enumerate(_driver.cards()):
        if _bus(index, card).lower().endswith(wanted[-12:]):
            return _open(index)
    raise _failure("NotFound")


nvmlDeviceGetHandleByPciBusId_v2 = nvmlDeviceGetHandleByPciBusId
nvmlDeviceGetCount_v2 = nvmlDeviceGetCount
nvmlDeviceGetHandleByIndex_v2 = nvmlDeviceGetHandleByIndex


def _uuid(index: int, card: dict) -> object:
    return card.get("uuid", f"GPU-00000000-0000-4000-8000-{index + 1:012d}")


def _bus(index: int, card: dict) -> str:
    bus = card.get("bus_id", f"00000000:{index + 1:02X}:00.0")
    return bus if isinstance(bus, str) else ""


# What a card is


@_call
def nvmlDeviceGetName(handle: _Handle) -> str | bytes:
    if "name_error" in handle.facts:
        raise _failure(handle.facts["name_error"])
    return _text(_field(handle, "name", "NVIDIA Test GPU"))


@_call
def nvmlDeviceGetUUID(handle: _Handle) -> str | bytes:
    default = _REQUIRED if handle.part is not None else _uuid(handle.index, handle.facts)
    return _text(_field(handle, "uuid", default))


@_call
def nvmlDeviceGetIndex(handle: _Handle) -> int:
    return handle.index


@_call
def nvmlDeviceGetPciInfo(handle: _Handle) -> SimpleNamespace:
    if handle.part is not None:
        raise _failure("InvalidArgument")
    bus = _field(handle, "bus_id", _bus(handle.index, handle.facts))
    domain, number, device = bus.split(":")
    return SimpleNamespace(
        busId=_text(bus), domain=int(domain, 16), bus=int(number, 16), device=int(device.split(".")[0], 16)
    )


nvmlDeviceGetPciInfo_v3 = nvmlDeviceGetPciInfo


@_call
def nvmlDeviceGetCudaComputeCapability(handle: _Handle) -> list[int]:
    return list(_field(handle, "cc", [8, 0]))


@_call
def nvmlDeviceGetMemoryInfo(handle: _Handle, version: int | None = None) -> SimpleNamespace:
    memory = _field(handle, "memory", {"total": 0, "used": 0, "free": 0})
    total, used, reserved = memory["total"], memory["used"], memory.get("reserved", 0)
    free = memory.get("free", total - used - reserved)
    if version is None:
        return SimpleNamespace(total=total, free=free, used=used + reserved)
    return SimpleNamespace(version=version, total=total, free=free, used=used, reserved=reserved)


@_call
def nvmlDeviceGetBAR1MemoryInfo(handle: _Handle) -> SimpleNamespace:
    memory = _field(handle, "bar1")
    return SimpleNamespace(bar1Total=memory["total"], bar1Used=memory["used"], bar1Free=memory["free"])


# What a card does


@_call
def nvmlDeviceGetUtilizationRates(handle: _Handle) -> SimpleNamespace:
    default = {"error": "NotSupported"} if handle.part is not None else {"gpu": 0, "memory": 0}
    rates = _field(handle, "util", default)
    if isinstance(rates, list):
        rates = _driver.say(_driver.listed(rates))
    return SimpleNamespace(gpu=rates["gpu"], memory=rates.get("memory", 0))


@_call
def nvmlDeviceGetSamples(handle: _Handle, kind: int, last: int) -> tuple[int, list[Sample]]:
    name = {0: "power", 1: "gpu", 2: "memory"}.get(kind, str(kind))
    buffer = _part(handle, "samples", name)
    if isinstance(buffer, dict):
        every, values = buffer["every"], buffer["values"]
        number = int(_driver.elapsed / every)
        first = max(0, number - buffer.get("kept", 100))
        buffer = [[1_000_000 + int(n * every * 1e6), values[n % len(values)]] for n in range(first, number)]
    found = [Sample(at, value) for at, value in buffer if at > last]
    if not found:
        raise _failure("NotFound")
    return NVML_VALUE_TYPE_UNSIGNED_INT, found


class _Value(ctypes.Union):
    _fields_ = [
        ("dVal", ctypes.c_double), ("siVal", ctypes.c_int), ("uiVal", ctypes.c_uint), ("ulVal", ctypes.c_ulong),
        ("ullVal", ctypes.c_ulonglong), ("sllVal", ctypes.c_longlong), ("usVal", ctypes.c_ushort),
    ]  # fmt: skip


class Sample:
    """One entry of the driver's buffer: microseconds, and a union as NVML gives it."""

    def __init__(self, at: int, value: int) -> None:
        self.timeStamp, self.sampleValue = at, _Value(uiVal=value)


@_call
def nvmlDeviceGetTotalEnergyConsumption(handle: _Handle) -> int:
    energy = _field(handle, "energy")
    return int(energy["watts"] * _driver.elapsed * 1000) if isinstance(energy, dict) else energy


def _clock(key: str):
    def ask(handle: _Handle, kind: int) -> int:
        return _part(handle, key, {0: "graphics", 1: "sm", 2: "mem"}[kind])

    return ask


def _reasons(handle: _Handle) -> int:
    found = _field(handle, "reasons")
    return found if isinstance(found, int) else sum(REASONS[name] for name in found)


def _pair(key: str):
    return lambda handle: list(_field(handle, key))


def _plain(key: str, *default: object):
    """A function that answers one fact, whatever further arguments it takes."""
    return lambda handle, *rest: _field(handle, key, *default)


def _ecc(handle: _Handle, kind: int, counter: int) -> int:
    found = _field(handle, "ecc_aggregate" if counter == NVML_AGGREGATE_ECC else "ecc_volatile")
    return found[("corrected", "uncorrected")[kind]] if isinstance(found, dict) else found


def _bus_fact(name: str):
    return lambda handle: _part(handle, "pcie", name)


def _processes(key: str):
    def ask(handle: _Handle) -> list[SimpleNamespace]:
        return [_process(process) for process in _field(handle, key, [])]

    return ask


def _process(process: dict) -> SimpleNamespace:
    used = process.get("used")
    return SimpleNamespace(
        pid=_pid(process["pid"]),
        usedGpuMemory=NVML_VALUE_NOT_AVAILABLE_ulonglong.value if used == "n/a" else used,
        gpuInstanceId=process.get("gi", 0xFFFFFFFF),
        computeInstanceId=process.get("ci", 0xFFFFFFFF),
    )


def _pid(pid: int | str) -> int:
    return {"self": os.getpid(), "parent": os.getppid()}.get(pid, pid)


def _process_utilization(handle: _Handle, last: int) -> list[SimpleNamespace]:
    found = [
        SimpleNamespace(
            pid=_pid(one["pid"]), timeStamp=one.get("at", 1), smUtil=one.get("sm", 0), memUtil=one.get("mem", 0),
            encUtil=0, decUtil=0, jpgUtil=0, ofaUtil=0,
        )
        for one in _field(handle, "process_util")
        if one.get("at", 1) > last
    ]  # fmt: skip
    if not found:
        raise _failure("NotFound")
    return found


def _fields(handle: _Handle, wanted: list) -> list[SimpleNamespace]:
    answers = []
    for entry in wanted:
        number = entry[0] if isinstance(entry, tuple) else entry
        try:
            value, code = _part(handle, "fields", str(number)), NVML_SUCCESS
        except NVMLError as error:
            value, code = 0, error.value
        kind = NVML_VALUE_TYPE_DOUBLE if isinstance(value, float) else NVML_VALUE_TYPE_UNSIGNED_INT
        union = _Value(dVal=value) if isinstance(value, float) else _Value(uiVal=value)
        answers.append(SimpleNamespace(fieldId=number, nvmlReturn=code, valueType=kind, value=union))
    return answers


_SIMPLE = {
    "nvmlDeviceGetTemperature": _plain("temperature", 40),
    "nvmlDeviceGetTemperatureThreshold": _plain("temperature_limit"),
    "nvmlDeviceGetFanSpeed": _plain("fan"),
    "nvmlDeviceGetPerformanceState": _plain("state", 0),
    "nvmlDeviceGetComputeMode": _plain("compute_mode", 0),
    "nvmlDeviceGetPersistenceMode": _plain("persistence"),
    "nvmlDeviceGetBrand": _plain("brand"),
    "nvmlDeviceGetArchitecture": _plain("architecture"),
    "nvmlDeviceGetNumGpuCores": _plain("cores"),
    "nvmlDeviceGetMemoryBusWidth": _plain("bus_width"),
    "nvmlDeviceGetMinorNumber": _plain("minor"),
    "nvmlDeviceGetVirtualizationMode": _plain("virtualization"),
    "nvmlDeviceGetPowerUsage": _plain("power"),
    "nvmlDeviceGetEnforcedPowerLimit": _plain("power_limit"),
    "nvmlDeviceGetPowerManagementLimit": _plain("power_limit"),
    "nvmlDeviceGetPowerManagementDefaultLimit": _plain("power_default"),
    "nvmlDeviceGetPowerManagementLimitConstraints": _pair("power_range"),
    "nvmlDeviceGetClockInfo": _clock("clocks"),
    "nvmlDeviceGetMaxClockInfo": _clock("max_clocks"),
    "nvmlDeviceGetCurrentClocksThrottleReasons": _reasons,
    "nvmlDeviceGetCurrentClocksEventReasons": _reasons,
    "nvmlDeviceGetEccMode": _pair("ecc"),
    "nvmlDeviceGetTotalEccErrors": _ecc,
    "nvmlDeviceGetRemappedRows": _pair("remapped"),
    "nvmlDeviceGetCurrPcieLinkGeneration": _bus_fact("gen"),
    "nvmlDeviceGetCurrPcieLinkWidth": _bus_fact("width"),
    "nvmlDeviceGetMaxPcieLinkGeneration": _bus_fact("max_gen"),
    "nvmlDeviceGetMaxPcieLinkWidth": _bus_fact("max_width"),
    "nvmlDeviceGetPcieReplayCounter": _bus_fact("replays"),
    "nvmlDeviceGetPcieThroughput": lambda handle, counter: _part(handle, "pcie", ("tx", "rx")[counter]),
    "nvmlDeviceGetProcessUtilization": _process_utilization,
    "nvmlDeviceGetProcessesUtilizationInfo": _process_utilization,
    "nvmlDeviceGetFieldValues": _fields,
}
for (_kind, _key), _version in itertools.product(
    {"Compute": "processes", "Graphics": "graphics_processes", "MPSCompute": "mps_processes"}.items(),
    ("", "_v2", "_v3"),
):
    _SIMPLE[f"nvmlDeviceGet{_kind}RunningProcesses{_version}"] = _processes(_key)
for _name, _function in _SIMPLE.items():
    _function.__name__ = _name
    globals()[_name] = _call(_function)


# MIG


@_call
def nvmlDeviceGetMigMode(handle: _Handle) -> list[int]:
    mig = _field(handle, "mig")
    on = int(bool(mig.get("enabled")))
    return [on, int(bool(mig.get("pending", on)))]


@_call
def nvmlDeviceGetMaxMigDeviceCount(handle: _Handle) -> int:
    return (_field(handle, "mig", None) or {"max": 0}).get("max", 7)


@_call
def nvmlDeviceGetMigDeviceHandleByIndex(handle: _Handle, index: int) -> _Handle:
    slices = _field(handle, "mig").get("devices", [])
    if index >= len(slices):
        raise _failure("NotFound")
    if "handle_error" in slices[index]:
        raise _failure(slices[index]["handle_error"])
    return _Handle(handle.index, index)


@_call
def nvmlDeviceIsMigDeviceHandle(handle: _Handle) -> int:
    return int(handle.part is not None)


@_call
def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle: _Handle) -> _Handle:
    return _open(handle.index)


@_call
def nvmlDeviceGetGpuInstanceId(handle: _Handle) -> int:
    return _field(handle, "gi", handle.part if handle.part is not None else _REQUIRED)


@_call
def nvmlDeviceGetComputeInstanceId(handle: _Handle) -> int:
    return _field(handle, "ci", 0 if handle.part is not None else _REQUIRED)


@_call
def nvmlDeviceGetAttributes(handle: _Handle) -> SimpleNamespace:
    return SimpleNamespace(**_field(handle, "attributes"))


nvmlDeviceGetAttributes_v2 = nvmlDeviceGetAttributes


# GPM


class _GpmSample:
    """A snapshot of the counters; ``handle`` and ``taken`` once one was taken, ``freed`` at its end."""

    handle, taken, freed = None, 0.0, False


class c_nvmlGpmMetricsGet_t:
    """What is asked for (``metrics[i].metricId``) and, after the call, answered."""

    def __init__(self) -> None:
        self.version = self.numMetrics = 0
        self.sample1 = self.sample2 = None
        self.metrics = [SimpleNamespace(metricId=0, nvmlReturn=0, value=0.0) for _ in range(GPM["MAX"])]


@_call
def nvmlGpmQueryDeviceSupport(handle: _Handle) -> SimpleNamespace:
    supported = _field(handle, "gpm", {"supported": 0}).get("supported", 1)
    return SimpleNamespace(version=1, isSupportedDevice=int(_driver.say(supported)))


@_call
def nvmlGpmSampleAlloc() -> _GpmSample:
    _driver.gpm_open += 1
    return _GpmSample()


@_call
def nvmlGpmSampleFree(sample: _GpmSample) -> None:
    if sample.freed:
        raise _failure("InvalidArgument")
    sample.freed = True
    _driver.gpm_open -= 1


@_call
def nvmlGpmSampleGet(handle: _Handle, sample: _GpmSample) -> _GpmSample:
    if sample.freed or handle.part is not None:
        raise _failure("InvalidArgument")
    return _taken(handle, sample)


@_call
def nvmlGpmMigSampleGet(handle: _Handle, instance: int, sample: _GpmSample) -> _GpmSample:
    slices = handle.facts.get("mig", {}).get("devices", [])
    part = next((n for n, one in enumerate(slices) if one.get("gi", n) == instance), None)
    if sample.freed or handle.part is not None or part is None:
        raise _failure("InvalidArgument")
    return _taken(_Handle(handle.index, part), sample)


def _taken(handle: _Handle, sample: _GpmSample) -> _GpmSample:
    gpm = _field(handle, "gpm")
    _driver.say(gpm.get("sample"))
    sample.handle, sample.taken = handle, time.monotonic()
    return sample


@_call
def nvmlGpmMetricsGet(asked: c_nvmlGpmMetricsGet_t) -> c_nvmlGpmMetricsGet_t:
    first, second = asked.sample1, asked.sample2
    if asked.version != NVML_GPM_METRICS_GET_VERSION:
        raise _failure("ArgumentVersionMismatch")
    if None in (first.handle, second.handle) or first.freed or second.freed or first.taken > second.taken:
        raise _failure("InvalidArgument")
    gpm = _field(second.handle, "gpm")
    _driver.say(gpm.get("read"))
    too_close = second.taken - first.taken < gpm.get("gap", 0)
    for metric in asked.metrics[: asked.numMetrics]:
        metric.value, metric.nvmlReturn = 0.0, NVML_SUCCESS
        said = gpm.get("metrics", {})
        answer = said.get(GPM_NAMES.get(metric.metricId), said.get(str(metric.metricId), {"error": "NotSupported"}))
        try:
            metric.value = 0.0 if too_close else float(_driver.say(answer))
        except NVMLError as error:
            metric.nvmlReturn = error.value
    return asked


if os.environ.get("FAKE_NVML") and __name__ == "pynvml":  # in a child process: as old bindings, from the start
    for _name in _node().spec.get("absent", ()):
        del globals()[_name]

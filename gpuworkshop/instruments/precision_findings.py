"""What precision says of its result: findings and report, as pure functions. Nothing here measures."""

from __future__ import annotations

from collections.abc import Iterator

from gpuworkshop.figures.bits import number_formats
from gpuworkshop.figures.rates import RateBar, rate_bars
from gpuworkshop.instruments.flops import speed
from gpuworkshop.instruments.precision_result import ArmResult, PrecisionResult
from gpuworkshop.numbers import gib, percent
from gpuworkshop.report import Finding, Report, Table
from gpuworkshop.timing import Comparison

CLAIMED = "claimed by the workshop"
SAME_START = 0.02
"""How far the first loss of an arm may be from that of the first arm: a lower format rounds, it does not change."""

SMALL_SHARE = 0.2
"""Share of a large product below which multiplying is not what takes a step's time."""

FP16_CODE = """scaler = torch.amp.GradScaler("cuda")
with torch.autocast("cuda", torch.float16):
    loss = loss_fn(model(x), y)
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()"""

BF16_CODE = """with torch.autocast("{device}", torch.bfloat16):   # forward and loss; no GradScaler with BF16
    loss = loss_fn(model(x), y)"""


def findings(result: PrecisionResult) -> Iterator[Finding]:
    """What a result says, as a pure function of it."""
    if result.planted:
        yield Finding("notice", f"Planted: {result.planted}")
    yield from _where(result)
    yield from _not_active(result)
    yield from _speed(result)
    yield from _tensor_cores(result)
    yield from _memory(result)
    yield from _checkpointing(result)
    yield from _fp16(result)
    yield from _same_work(result)
    yield from _learning(result)
    for one in result.arms:
        if one.note:
            yield Finding("notice", f"{one.arm.title}: not measured", one.note)


def _where(result: PrecisionResult) -> Iterator[Finding]:
    """What a device without units for a format changes."""
    can = result.support
    if not can.card:
        units = {True: "has BF16 units", False: "has no BF16 units and emulates it", None: "does not say what it has"}
        evidence = f"{can.name} {units[can.bf16]} ({can.said_by}); TF32 is a card's"
        yield Finding("notice", "This is a CPU: what it says about formats holds for this CPU alone", evidence)
    elif can.bf16 is False:
        yield _emulated(result)
    elif can.bf16 is None:
        yield Finding("unknown", f"Whether {can.name} has BF16 units is not known", can.said_by)


def _emulated(result: PrecisionResult) -> Finding:
    can, seen = result.support, result.bf16_over_fp32
    evidence = f"{can.said_by}; BF16 units came with 8.0"
    if can.pytorch_says:
        evidence += "; torch.cuda.is_bf16_supported() says yes, because it counts emulation"
    if seen:
        evidence += f". Measured: BF16 over FP32 {seen}"
    fix = FP16_CODE if can.fp16 else ""
    title = "BF16 is emulated here, expect it to be slower"
    title += ": use FP16 with a scaler" if can.fp16 else ": stay with FP32"
    return Finding("warning", f"{can.name}: {title}", evidence, fix)


def _not_active(result: PrecisionResult) -> Iterator[Finding]:
    """Autocast that did nothing: then no ratio of that arm means anything."""
    kind = "cuda" if result.support.card else "cpu"
    for one in result.arms:
        if one.active is False:
            found = ", ".join(one.flops.by_format)
            yield Finding(
                "warning",
                f"{one.arm.title}: it was not active, so nothing is said about it",
                f"not one product of a step gave {one.arm.autocast}, all gave {found}: autocast is around other lines, "
                f"or for another kind of device than {kind}",
                BF16_CODE.format(device=kind) if one.arm.format == "bf16" else "",
            )


def _speed(result: PrecisionResult) -> Iterator[Finding]:
    """BF16 against both, or what can be said without one of them."""
    over_fp32, over_tf32 = result.bf16_over_fp32, result.bf16_over_tf32
    known = [(seen, name) for seen, name in ((over_fp32, "FP32"), (over_tf32, "TF32")) if seen]
    if known:
        told = ", ".join(_times(seen, name) for seen, name in known)
        evidence = "; ".join(f"over {name} {seen}" for seen, name in known) + _too_small(result)
        level = "ok" if any(seen.verdict == "faster" for seen, _ in known) else "notice"
        fix = BF16_CODE.format(device="cuda") if level == "ok" and result.support.card else ""
        yield Finding(level, f"BF16: {told}", evidence, fix)
    only_tf32 = result.ratio("tf32", "fp32")
    if only_tf32:
        title = f"TF32 alone: {_times(only_tf32, 'FP32')}"
        fix = 'torch.set_float32_matmul_precision("high")' if only_tf32.verdict == "faster" else ""
        yield Finding("notice", title, f"one line, float32 everywhere else; {only_tf32}", fix)


def _too_small(result: PrecisionResult) -> str:
    """Why a lower format may not pay: the step is not made of large products."""
    one, seen = result.arm("bf16"), result.bf16_over_fp32
    share = one.achieved.of_product if one.achieved else None
    if not seen or seen.verdict == "faster" or share is None or share > SMALL_SHARE:
        return ""
    return f". The step reaches {percent(share)} of a large product: small operations and casts take its time"


def _times(seen: Comparison, over: str) -> str:
    if seen.verdict == "unknown":
        return f"not known against {over}"
    if seen.verdict == "no real difference":
        return f"no real difference to {over}"
    return f"{seen.ratio:.2g}x {over}" if seen.ratio < 10 else f"{seen.ratio:.0f}x {over}"


def _tensor_cores(result: PrecisionResult) -> Iterator[Finding]:
    """The claim about matrix operations, and how much of that a step gets."""
    seen, beside = result.product_ratio("bf16", "fp32"), result.product_ratio("bf16", "tf32")
    if seen:
        told = ", ".join(_times(one, name) for one, name in ((seen, "FP32"), (beside, "TF32")) if one)
        rates = "; ".join(f"{name.upper()} {speed(rate)}" for name, rate in result.products.items())
        evidence = f"{CLAIMED}: 2-4x faster. Measured: {rates}"
        yield Finding("notice", f"A large matrix product in BF16: {told}", evidence)
    active = (one for one in result.arms if one.rate and one.active is not False)
    fastest = max(active, key=lambda one: one.rate.value, default=None)
    if fastest and fastest.achieved and fastest.achieved.rate:
        yield _reached(fastest)


def _reached(one: ArmResult) -> Finding:
    done = one.achieved
    title = f"The fastest arm, {one.arm.title}, computes at {speed(done.rate)}"
    shares = [f"{percent(done.of_product)} of a large product in its format"] if done.of_product is not None else []
    shares.append(f"{percent(done.of_peak)} of the peak (MFU)" if done.of_peak is not None else f"no MFU: {done.why}")
    return Finding("notice", title, "; ".join(shares))


def _memory(result: PrecisionResult) -> Iterator[Finding]:
    saves = result.bf16_saves
    if saves is None:
        return
    evidence = f"{_activations(result, 'fp32', 'bf16')}. {CLAIMED}: about half"
    yield Finding("notice", f"Activation memory in BF16: {_less(saves)} than in FP32", evidence)


def _checkpointing(result: PrecisionResult) -> Iterator[Finding]:
    saves, takes, again = (result.checkpointing_saves, result.checkpointing_takes, result.checkpointing_computes)
    if saves is None or takes is None:
        return
    more, low, high = (100 * (one - 1) for one in takes)
    added = f"{percent(again)} more floating-point operations" if again is not None else "operations n/a"
    sizes = _activations(result, "bf16", "bf16-checkpointing")
    evidence = (
        f"{sizes}; time {more:+.0f}% ({low:+.0f} to {high:+.0f}%), {added}. "
        f"{CLAIMED}: 60-70% less for about 30% more compute"
    )
    yield Finding("notice", f"Checkpointing: {_less(saves)} activation memory, {more:+.0f}% time a step", evidence)


def _less(saves: float) -> str:
    return f"{percent(saves)} less" if saves >= 0 else f"{percent(-saves)} more"


def _activations(result: PrecisionResult, *ids: str) -> str:
    found = [result.arm(id) for id in ids]
    told = [f"{one.arm.title} {_size(one.memory.activations)}" for one in found]
    says = {"allocator": "the allocator's peak in a step", "saved tensors": "what autograd keeps"}
    return f"{', '.join(told)} ({says[found[0].memory.by]})"


def _size(size: int | None) -> str:
    """Bytes as a report writes them, with their digits also where a tiny model keeps little."""
    return f"{size / 2**20:.2g} MiB" if size is not None and 0 < size < 10 * 2**20 else gib(size)


def _fp16(result: PrecisionResult) -> Iterator[Finding]:
    seen = result.ratio("fp16", "fp32")
    if seen is None:
        return
    told = [_times(seen, "FP32")]
    beside = result.ratio("fp16", "bf16")
    if beside:
        told.append(_times(beside, "BF16"))
    better = result.support.bf16 is False and seen.verdict == "faster"
    why = "it underflows below 0.00006, so the loss is scaled; BF16 has the range of FP32 and needs none"
    title = f"FP16 with a scaler: {', '.join(told)}"
    yield Finding("ok" if better else "notice", title, f"over FP32 {seen}; {why}")


def _same_work(result: PrecisionResult) -> Iterator[Finding]:
    """All arms start from the same weights, so their first losses must agree within a rounding."""
    known = [one for one in result.arms if one.first_loss is not None and one.rate]
    if not known:
        return
    first = known[0]
    off = [one for one in known if abs(one.first_loss - first.first_loss) > SAME_START * abs(first.first_loss)]
    for one in off:
        yield Finding(
            "notice",
            f"{one.arm.title} does not do the same work: its first loss is {one.first_loss:.3g}",
            f"{first.arm.title} starts at {first.first_loss:.3g}, and a format only rounds: dropout, or other weights?",
        )


def _learning(result: PrecisionResult) -> Iterator[Finding]:
    levels = {True: "ok", False: "warning", None: "unknown"}
    for one in result.arms:
        if one.learning:
            yield Finding(levels[one.learning.ok], f"{one.arm.title}: {one.learning.says}")


def report(result: PrecisionResult) -> Report:
    """The result with its findings, its tables, the rates as bars, and the bits of the formats."""
    unit = next((one.rate.unit for one in result.arms if one.rate), "samples/s")
    bars = [RateBar(one.arm.title, one.rate, _bar_note(result, one)) for one in result.arms]
    pictures = (rate_bars(bars, unit, result.origin, "Throughput in each format"), number_formats())
    tables = (_speed_table(result), _work_table(result))
    return Report(f"Precision: {result.workload}", result.origin, tuple(findings(result)), tables, pictures)


def _bar_note(result: PrecisionResult, one: ArmResult) -> str:
    if one.note:
        return one.note
    if one.active is False:
        return "autocast was not active"
    told = (("fp32", "FP32"), ("tf32", "TF32"), ("bf16", "BF16"))
    found = ((result.ratio(one.arm.id, over), name) for over, name in told)
    return ", ".join(f"{seen.ratio:.2f}x {name}" for seen, name in found if seen)


def _speed_table(result: PrecisionResult) -> Table:
    rows = []
    for one in result.arms:
        milliseconds = f"{1000 * result.batch_size / one.rate.value:.4g}" if one.rate else "n/a"
        ratios = [result.ratio(one.arm.id, over) for over in ("fp32", "tf32")]
        told = [f"{seen.ratio:.2f}x" if seen else "" for seen in ratios]
        rows.append((one.arm.title, str(one.rate) if one.rate else "n/a", milliseconds, *told))
    rounds = next((one.rate.n for one in result.arms if one.rate), 0)
    caption = f"{rounds} rounds in turn on resident batches of {result.batch_size}; {result.seconds:.0f} s in all"
    return Table(("arm", "throughput", "ms a step", "over FP32", "over TF32"), tuple(rows), caption)


def _work_table(result: PrecisionResult) -> Table:
    rows, learned = [], any(one.learning for one in result.arms)
    for one in result.arms:
        done, memory = one.achieved, one.memory
        cells = [
            speed(done.rate) if done else "n/a",
            percent(done.of_product) if done else "n/a",
            percent(done.of_peak) if done else "n/a",
            _size(memory.peak) if memory else "n/a",
            _size(memory.activations) if memory else "n/a",
        ]
        if learned:
            cells.append({True: "yes", False: "no", None: "not judged"}[one.learning.ok] if one.learning else "")
        rows.append((one.arm.title, *cells))
    columns = ["arm", "speed", "of a product", "MFU", "peak memory", "activations", *(["learns"] if learned else [])]
    return Table(tuple(columns), tuple(rows), _counted(result))


def _counted(result: PrecisionResult) -> str:
    """How the operations and the memory were counted."""
    found = next((one.flops for one in result.arms if one.flops), None)
    if found is None:
        return "Operations and memory: n/a"
    words = f"{found.per_sample:.3g} FLOP a sample, counted once, eagerly, without what is computed again"
    if found.uncounted:
        words += (
            f"; not counted: {', '.join(found.uncounted[:3])} ({found.uncounted_share:.0%} of the multiplying time)"
        )
    by = next((one.memory.by for one in result.arms if one.memory), None)
    says = {"allocator": "by the allocator", "saved tensors": "activations as autograd keeps them; a CPU has no peak"}
    return f"{words}. Memory: {says[by]}" if by else words

"""Profile: what a trace means, live profiles of small trainings, and everything that cannot be profiled."""

import gzip
import itertools
import json
import tempfile
import warnings
from pathlib import Path

import msgspec
import pytest
import torch
from standins.traces import Traced
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gpuworkshop import cli
from gpuworkshop.instruments import nsight, profile
from gpuworkshop.instruments.profile import CannotProfile
from gpuworkshop.instruments.profile_result import ProfileResult, brief, findings, report, short, signs
from gpuworkshop.instruments.trace import read
from gpuworkshop.instruments.trace_sums import sums
from gpuworkshop.timing import Plan

SHORT = Plan(block_seconds=0.01, min_rounds=4, budget_seconds=0.1)
PLENTY = dict(steps=4, plan=SHORT)


def of(traced: Traced, folder: Path) -> ProfileResult:
    return profile.read(traced.write(folder / "trace.json"))


def said(result: ProfileResult) -> str:
    return "\n".join(f"{found.level}: {found.title} | {found.evidence} | {found.fix}" for found in findings(result))


def loader(samples: int = 64, batch: int = 4) -> DataLoader:
    return DataLoader(TensorDataset(torch.randn(samples, 8), torch.zeros(samples, dtype=torch.long)), batch)


class Small:
    """A training small enough for a test."""

    def __init__(self) -> None:
        self.model = nn.Linear(8, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self, batch) -> None:
        x, y = batch
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.model(x), y).backward()
        self.optimizer.step()


# ---------------------------------------------------------------- the four signs


def test_work_on_the_cpu_shows_also_among_more_operators_than_are_kept(tmp_path) -> None:
    traced = Traced()
    for _ in range(5):
        with traced.step():
            traced.op("aten::mkldnn_convolution", 5000)
            for number in range(40):
                traced.op(f"aten::small{number}", 40, [("vectorized_elementwise_kernel", 4)])
    seen = of(traced, tmp_path)
    assert [one.sign for one in signs(seen.sums)][0] == "not on the card"
    assert len(seen.sums.operators) <= 30
    times = [row.device_self for row in seen.sums.operators]
    assert times == sorted(times, reverse=True), "the table still begins with the card's own time"


def planted(kind: str) -> Traced:
    """A made-up job with one thing wrong."""
    traced = Traced()
    for _ in range(5):
        with traced.step():
            if kind == "loader":
                traced.loader(2000)
            if kind == "copies":
                traced.copy("Memcpy HtoD (Pageable -> Device)", 900, 40_000_000)
            if kind == "not on the card":
                traced.op("aten::mm", 1500)
            for _ in range(40 if kind == "launching" else 2):
                traced.op("aten::addmm", 30, [("sgemm", 4 if kind == "launching" else 500)])
                if kind == "synchronizing":
                    traced.wait()
                    traced.idle(300)
        if kind in ("not on the card", "nothing"):
            traced.now = max(traced.now, traced.card_free - 40)
    return traced


@pytest.mark.parametrize(
    ("kind", "fix"),
    [
        ("loader", "gpuworkshop starve"),
        ("synchronizing", ".item()"),
        ("launching", "larger batch"),
        ("copies", "pin_memory=True"),
        ("not on the card", "model.to(device)"),
    ],
)
def test_each_sign_is_named_with_its_fix(tmp_path, kind, fix) -> None:
    result = of(planted(kind), tmp_path)
    assert signs(result.sums)[0].sign == kind
    warning = [found for found in findings(result) if found.level == "warning" and found.fix]
    assert any(fix in found.fix for found in warning)


def test_a_host_that_computes_is_not_called_a_slow_launcher(tmp_path) -> None:
    traced = Traced()
    for _ in range(5):
        with traced.step():
            traced.op("aten::mkldnn_convolution", 3000)
            traced.op("aten::addmm", 30, [("sgemm", 200)])
    found = of(traced, tmp_path)
    assert found.sums.main.idle_launching > 0.5
    assert [seen.sign for seen in signs(found.sums)] == ["not on the card"]


def test_a_busy_card_shows_no_sign(tmp_path) -> None:
    result = of(planted("nothing"), tmp_path)
    assert signs(result.sums) == () and "warning" not in said(result)


# ---------------------------------------------------------------- what no row shows of the host


def on_host(small: int = 0, pause: float = 0, each: float = 4, way: float = 3, large: float = 1000) -> ProfileResult:
    """A made-up job without a card: a large operator, ``small`` calls of ``each`` us, and one ``pause``, all in us."""
    traced = Traced()
    for _ in range(5):
        with traced.step():
            traced.op("aten::mm", large)
            for number in range(small):
                traced.idle(way)
                traced.op(f"aten::small{number % 3}", each)
            traced.idle(pause)
            traced.op("aten::mm", large)
    return of_host(traced)


def of_host(traced: Traced) -> ProfileResult:
    with tempfile.TemporaryDirectory() as folder:
        return of(traced, Path(folder))


def test_many_small_calls_are_a_sign_with_its_fix_and_their_price() -> None:
    result = on_host(small=700)
    assert [seen.sign for seen in signs(result.sums)] == ["calling"]
    (found,) = [one for one in findings(result) if one.title.startswith("Many small calls: 700 a step")]
    assert found.level == "warning" and "one call for the whole batch" in found.fix and "4.00 us" in found.evidence
    assert result.sums.host.calling.share == pytest.approx(700 * 7 / (700 * 7 + 2000), rel=0.01), "with the way there"


@pytest.mark.parametrize(
    "job",
    [
        dict(small=60, large=4000),  # few, beside large operators
        dict(small=12),  # a handful, whatever they take
        dict(small=12, large=1),
        dict(small=700, each=40),  # each is work
    ],
)
def test_what_works_is_not_called_a_price_of_calling(job) -> None:
    assert signs(on_host(**job).sums) == ()


def test_a_call_that_others_interrupted_does_not_make_its_operator_large() -> None:
    """On a machine that others use, a call of 4 us now and then takes 12 ms."""
    traced = Traced()
    for _ in range(5):
        with traced.step():
            for number in range(300):
                traced.op("aten::add", 12_000 if number == 150 else 4)
    calling = of_host(traced).sums.host.calling
    assert calling.share == pytest.approx(1.0) and calling.calls == 1500 and calling.median == 4


def test_what_the_loader_calls_is_the_loaders() -> None:
    traced = Traced()
    for _ in range(5):
        with traced.step():
            began = traced.now
            traced.loader(9000)
            after, traced.now = traced.now, began + 1
            for _ in range(500):
                traced.op("aten::select", 4)
            assert traced.now < after
            traced.now = after
            traced.op("aten::mm", 1000)
    assert [seen.sign for seen in signs(of_host(traced).sums)] == ["loader"]


def test_a_card_has_gaps_and_no_price_of_calling(tmp_path) -> None:
    result = of(planted("launching"), tmp_path)
    assert result.sums.host.calling is None and "calling" not in [seen.sign for seen in signs(result.sums)]


def test_time_in_no_row_is_said_in_words_with_a_way_to_see_it() -> None:
    result = on_host(small=100, pause=3000)
    host = result.sums.host
    assert host.unseen == pytest.approx(5 * 3000) and host.between == pytest.approx(5 * 300)
    (found,) = [one for one in findings(result) if one.title.startswith("In no row")]
    assert f"{host.unseen / host.whole:.0%} of the host's time" in found.title and "3.00 ms a step" in found.title
    assert "NumPy" in found.evidence and "CPU core" in found.evidence and "record_function" in found.fix
    shown = str(report(result))
    assert "no operator: other code" in shown and "between calls: Python" in shown
    assert "In no row" not in said(on_host(small=100))


def test_what_the_host_does_beside_a_busy_card_is_not_in_question(tmp_path) -> None:
    traced = Traced()
    for _ in range(5):
        with traced.step():
            traced.op("aten::mm", 20, [("sgemm", 5000)])
            traced.idle(4900)
    assert of(traced, tmp_path).sums.host.unseen > 0 and "In no row" not in said(of(traced, tmp_path))


def test_a_trace_without_step_marks_divides_nothing(tmp_path) -> None:
    traced = Traced()
    traced.op("aten::mm", 20)
    traced.idle(5000)
    traced.op("aten::mm", 20)
    result = of(traced, tmp_path)
    assert result.sums.host is None and "In no row" not in said(result) and "n/a" in str(brief(result))


def test_the_table_says_how_often_a_step_makes_a_call() -> None:
    table = brief(on_host(small=30)).tables[0]
    calls = {row[0]: row[table.columns.index("Calls") :] for row in table.rows}
    assert calls["aten::small0"] == ("50", "10") and calls["aten::mm"] == ("10", "2")


@pytest.mark.parametrize(("calls", "steps"), [(None, 20), (200, 20), (6_000, 20), (14_000, 8), (10**6, 3)])
def test_fewer_steps_where_each_makes_thousands_of_calls(calls, steps) -> None:
    assert profile.enough_steps(calls) == steps


def test_p02_no_times_of_the_card_are_unknown_and_not_cpu_bound(tmp_path) -> None:
    """CUPTI refused gives CPU rows only: pytorch#99615, #118982, geoffxy/habitat#5."""
    traced = Traced()
    with traced.step():
        for _ in range(20):
            traced.launch("sgemm", 10, seen=False)
        traced.op("aten::mm", 500)
    result = of(traced, tmp_path)
    text = said(result)
    assert "unknown: No times of the card were recorded" in text and "CUPTI" in text
    assert "LD_LIBRARY_PATH" in text and "administrators" in text
    assert "busy" not in text and "Top row" not in text and "0%" not in text
    assert "measure with events: gpuworkshop starve" in text, "the way that needs no CUPTI"


def test_p09_lost_kernels_make_a_lower_bound(tmp_path) -> None:
    traced = Traced()
    with traced.step():
        for number in range(100):
            traced.launch("sgemm", 10, seen=number >= 30)
    assert "30% of the kernels were not recorded: times of the card are a lower bound" in said(of(traced, tmp_path))


def test_p12_waiting_is_called_waiting(tmp_path) -> None:
    """Waits lead by CPU time, and the card does almost nothing: pytorch#6715, huggingface/blog#3389."""
    traced = Traced()
    for _ in range(20):
        with traced.step(), traced.label("aten::item", "cpu_op"):
            traced.launch("vectorized_elementwise_kernel", 30)
            traced.wait()
            traced.idle(900)
    traced.wait("cudaDeviceSynchronize")
    text = said(of(traced, tmp_path))
    assert "busy 3% of the time" in text and "after the host waited for it" in text and "1 a step" in text


def test_communication_that_nothing_hides_is_a_warning(tmp_path) -> None:
    traced = Traced()
    traced.head["distributedInfo"] = {"rank": 1, "world_size": 4}
    with traced.step():
        traced.launch("sgemm", 600)
        traced.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 400)
    text = said(of(traced, tmp_path))
    assert "warning: Communication takes 40% of the time; computing hides 0% of it" in text
    assert "rank 1 of 4" in text


def test_a_label_holds_what_another_thread_launches_meanwhile(tmp_path) -> None:
    """On a card the backward pass runs on a thread of PyTorch's own."""
    traced = Traced()
    with traced.step():
        with traced.label("forward"):
            traced.op("aten::mm", 20, [("sgemm", 100)])
        traced.idle(5)
        with traced.label("backward"):
            traced.op("MmBackward0", 50, [("sgemm", 300)])
    for event in traced.events:
        if event["ts"] > 1_020 and event["cat"] in ("cpu_op", "cuda_runtime"):
            event["tid"] += 1
    rows = {row.name: row for row in of(traced, tmp_path).sums.labels}
    assert (rows["forward"].device_total, rows["backward"].device_total) == (100, 300)


def test_labels_of_pytorch_are_not_called_yours(tmp_path) -> None:
    traced = Traced()
    with traced.step(), traced.label("mine"), traced.label("Optimizer.step#AdamW.step"):
        traced.op("aten::mm", 20, [("sgemm", 100)])
    (labels,) = [table for table in report(of(traced, tmp_path)).tables if table.columns[0] == "Your label"]
    assert [row[0] for row in labels.rows] == ["mine"]


def test_the_loader_has_its_row_and_the_times_say_of_what_they_are(tmp_path) -> None:
    result = of(planted("loader"), tmp_path)
    table = report(result).tables[0]
    assert table.rows[-1][:5] == ("DataLoader", "0", "0", "10.0", "10.0")
    assert "in ms, over all 5 profiled steps" in table.caption and "plain step is shorter" in table.caption
    assert brief(result, rows=1).tables[0].rows[-1][0] == "DataLoader"


def test_without_a_card_the_loader_and_copies_are_read_from_the_top_row(tmp_path) -> None:
    traced = Traced()
    with traced.step():
        traced.loader(900)
        traced.op("aten::mm", 100)
    result = of(traced, tmp_path)
    assert "Top row: DataLoader, 90% of the CPU time" in said(result)
    assert report(result).tables[0].rows[0][:3] == ("DataLoader", "n/a", "n/a")
    moved = Traced()
    with moved.step():
        moved.op("aten::copy_", 300)
        moved.op("aten::mm", 100)
    assert "warning: Top row: aten::copy_, 75% of the CPU time" in said(of(moved, tmp_path))


@pytest.mark.parametrize(
    ("allowed", "words"), [(True, "may read"), (False, "only administrators"), (None, "not known")]
)
def test_the_next_rungs_are_lines_with_the_top_kernel(tmp_path, allowed, words) -> None:
    result = msgspec.structs.replace(of(planted("launching"), tmp_path), counters=allowed)
    (rungs,) = [found for found in findings(result) if "next rungs" in found.title]
    assert words in rungs.evidence
    systems, compute = rungs.fix.splitlines()
    assert systems.startswith("nsys profile") and "regex:sgemm" in compute and compute.endswith("python train.py")


def test_findings_and_report_hold_every_face_and_no_markup_of_a_name(tmp_path) -> None:
    traced = Traced()
    with traced.step(), traced.label("<script>alert(1)</script>"):
        traced.op("<img src=x onerror=alert(1)>", 20, [("<b>kernel</b>", 100)])
    whole = report(of(traced, tmp_path))
    html = whole._repr_mimebundle_()["text/html"]
    assert "<script>" not in html and "<img" not in html and "<b>kernel" not in html
    assert "CUDA total" in str(whole) and "Self CPU" in str(whole)


def test_a_result_goes_through_json_and_back(tmp_path) -> None:
    result = of(planted("copies"), tmp_path)
    assert msgspec.json.decode(msgspec.json.encode(result), type=ProfileResult) == result


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, A>(int)",
         "vectorized_elementwise_kernel (CUDAFunctor_add)"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"),
        ("nvjet_hsh_128x256_64x4", "nvjet_hsh_128x256_64x4"),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512>(x)", "bn_fw_tr_1C11_kernel_NCHW"),
        ("<>", "<>"),
    ],
)  # fmt: skip
def test_kernel_names_are_shortened_and_stay_names(kernel, words) -> None:
    assert short(kernel) == words or kernel == "<>"


# ---------------------------------------------------------------- live, on the CPU


def test_a_profile_holds_the_steps_asked_for_and_the_plain_step_time(tmp_path) -> None:
    job = Small()
    result = profile.measure(loader(), job.step, trace_file=tmp_path / "trace.json.gz", device="cpu", **PLENTY)
    assert result.sums.steps == 4 and result.plain.value > 0 and result.slowed_by_profiling > 0
    assert result.sums.cards == () and "busy" not in said(result)
    assert {"aten::addmm", "aten::mm"} & {row.name for row in result.sums.operators}
    assert gzip.open(tmp_path / "trace.json.gz").read(1) in (b"{", b" ")
    assert profile.read(tmp_path / "trace.json.gz").sums.operators[0].name == result.sums.operators[0].name


def test_a_job_of_very_many_calls_is_profiled_for_fewer_steps_and_that_is_said(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(profile, "MOST_CALLS", 400)
    many = profile.measure(loader(), Small().step, trace_file=tmp_path / "t.gz", device="cpu", plan=SHORT)
    assert many.step_calls > 20 and many.sums.steps == many.asked_steps == max(3, 400 // many.step_calls) < 20
    (found,) = [one for one in findings(many) if "are enough" in one.title]
    assert f"{many.step_calls:,} calls" in found.title and "--steps 20" in found.fix
    assert "the loader ended" not in said(many)
    recorded = gzip.open(tmp_path / "t.gz").read().count(b'"cpu_op"')
    assert many.sums.steps * many.step_calls == pytest.approx(recorded, rel=0.2)
    monkeypatch.setattr(profile, "MOST_CALLS", 10**6)
    few = profile.measure(loader(), Small().step, trace_file=tmp_path / "t.gz", device="cpu", plan=SHORT)
    assert few.sums.steps == 20 and few.step_calls is None and "are enough" not in said(few)


def test_labels_of_the_learner_are_shown(tmp_path) -> None:
    job = Small()

    def step(batch) -> None:
        with torch.profiler.record_function("my forward"):
            job.step(batch)

    result = profile.measure(loader(), step, trace_file=tmp_path / "t.gz", device="cpu", **PLENTY)
    (mine,) = [row for row in result.sums.labels if row.name == "my forward"]
    assert mine.calls == 4 and "my forward" in str(report(result))


def test_the_numbers_agree_with_key_averages(tmp_path) -> None:
    """Self and total CPU time of the leading operators, from the same run."""
    job, batches = Small(), list(loader())
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as run:
        for batch in batches:
            job.step(batch)
    run.export_chrome_trace(str(tmp_path / "trace.json"))
    rows = {row.name: row for row in sums(read(tmp_path / "trace.json")).operators}
    theirs = sorted(
        (event for event in run.key_averages() if event.key in rows), key=lambda event: -event.self_cpu_time_total
    )
    for event in theirs[:3]:
        ours = rows[event.key]
        assert ours.calls == event.count
        assert ours.cpu_self == pytest.approx(event.self_cpu_time_total, rel=0.01)
        assert ours.cpu_total == pytest.approx(event.cpu_time_total, rel=0.01)


def test_p03_a_loop_shorter_than_the_schedule_profiles_what_there_is(tmp_path) -> None:
    """An iterator with 4 batches where 20 steps were asked for: pytorch#91682, #121141."""
    batches = iter(list(itertools.islice(loader(), 4)))
    result = profile.measure(batches, Small().step, steps=20, trace_file=tmp_path / "t.gz", device="cpu")
    assert result.sums.steps == 3 and result.plain is None
    assert "Only 3 steps of 20: the loader ended" in said(result)


@pytest.mark.parametrize("count", [0, 1])
def test_a_loader_with_nothing_left_to_profile_says_so(tmp_path, count) -> None:
    batches = iter(list(itertools.islice(loader(), count)))
    with pytest.raises(ValueError, match="ended|no batch"):
        profile.measure(batches, Small().step, trace_file=tmp_path / "t.gz", device="cpu")


def test_p10_an_endless_loader_ends_after_the_steps_asked_for(tmp_path) -> None:
    """No step limit and stacks let the host's memory grow: pytorch-lightning#10717, pytorch#68809."""
    seen = []
    batch = next(iter(loader()))
    batches = (seen.append(number) or batch for number in itertools.count())
    result = profile.measure(batches, Small().step, steps=20, trace_file=tmp_path / "t.gz", device="cpu", plan=SHORT)
    assert result.sums.steps == 20 and 0 < result.trace_bytes < 2**20
    assert f"({result.trace_bytes / 1e6:.1f} MB)" in str(report(result)), "its size is said"
    assert "python_function" not in gzip.open(tmp_path / "t.gz", "rt").read()


def test_p07_a_profiler_that_is_already_at_work_is_named(tmp_path) -> None:
    """A nested profiler returns nothing and raises nothing: pytorch-lightning#19983, vllm#7943."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        with pytest.raises(CannotProfile, match="another profiler"):
            profile.measure(loader(), Small().step, trace_file=tmp_path / "t.gz", device="cpu")
    profile.measure(loader(), Small().step, trace_file=tmp_path / "t.gz", device="cpu", **PLENTY)


def test_p01_no_renamed_field_is_read_and_nothing_warns(tmp_path) -> None:
    """The fields of the profiler's rows were renamed and then removed: pytorch#123247, pytorch_geometric#9616."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        profile.measure(loader(), Small().step, trace_file=tmp_path / "t.gz", device="cpu", **PLENTY)


@pytest.mark.parametrize("again", [True, False])
def test_p09_where_kernels_were_lost_it_is_profiled_once_more(tmp_path, monkeypatch, again) -> None:
    """tritonbench#459, NVIDIA/Fuser#4443: the first kernels of a session are dropped, and a second one has them."""
    taken = []

    def record(self, steps: int, file: Path) -> int:
        traced = Traced()
        with traced.step():
            for number in range(10):
                traced.launch("sgemm", 10, seen=bool(taken and again) or number >= 3)
        traced.write(file)
        taken.append(steps)
        return steps

    monkeypatch.setattr(profile._Steps, "record", record)
    result = profile.measure(loader(), Small().step, steps=1, trace_file=tmp_path / "t.gz", device="cpu", plan=SHORT)
    assert len(taken) == 2 and result.sums.lost_launches == (0 if again else 3)
    assert ("lower bound" in said(result)) == (not again)


def test_a_measured_profile_says_whether_counters_are_allowed(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(nsight, "counters_allowed", lambda: False)
    result = profile.measure(loader(), Small().step, trace_file=tmp_path / "t.gz", device="cpu", **PLENTY)
    assert result.counters is False and profile.read(tmp_path / "t.gz").counters is None


def test_an_error_of_the_step_comes_out_and_the_profiler_is_ended(tmp_path) -> None:
    count = itertools.count()

    def step(batch) -> None:
        Small().step(batch)
        if next(count) > 30_000 or torch.autograd._profiler_enabled():
            raise ArithmeticError("my own mistake")

    with pytest.raises(ArithmeticError, match="my own mistake"):
        profile.measure(loader(), step, trace_file=tmp_path / "t.gz", device="cpu", **PLENTY)
    assert not torch.autograd._profiler_enabled()


def test_only_the_newest_traces_stay_in_the_state_folder(own_state) -> None:
    for _ in range(profile.KEPT_TRACES + 2):
        place = profile.place_for_trace()
        (own_state / "text").write_text("{}")
        profile.keep(own_state / "text", place)
    kept = sorted((own_state / "traces").iterdir())
    assert len(kept) == profile.KEPT_TRACES and kept[-1] == place


# ---------------------------------------------------------------- the command


def test_the_verb_reads_a_trace_file(tmp_path, capsys) -> None:
    file = planted("launching").write(tmp_path / "trace.json.gz")
    assert cli.main(["profile", str(file)]) == 0
    assert "Launch-bound" in capsys.readouterr().out
    assert cli.main(["profile", str(file), "--json"]) == 0
    envelope = json.loads(capsys.readouterr().out)
    assert envelope["origin"]["mark"] == "recorded on" and envelope["result"]["sums"]["steps"] == 5


@pytest.mark.parametrize(
    "words", [["nothing.json"], ["."], ["--steps", "0"], ["--steps", "x"], ["--keep", "/no/such/place/t.gz"]]
)
def test_bad_input_is_one_line_and_2(words, capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["profile", *words, "--preset", "tiny"]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


# ---------------------------------------------------------------- Nsight


def test_nsight_lines_hold_the_learners_own_command_quoted() -> None:
    command = ["python", "train.py", "--name", "two words"]
    line = nsight.systems(command, seconds=30)
    assert line.startswith("nsys profile") and line.endswith("python train.py --name 'two words'")
    assert "--trace=cuda,nvtx,osrt,cudnn,cublas" in line and "--duration=30" in line
    assert "--kernel-name regex:" in nsight.compute(command, kernel="sgemm(x)") and "'two words'" in nsight.compute(
        command
    )


@pytest.mark.parametrize(
    ("parameters", "capabilities", "allowed"),
    [
        (None, "0" * 16, None),
        ("Other: 1\n", "0" * 16, None),
        ("RmProfilingAdminOnly: 0\n", "0" * 16, True),
        ("RmProfilingAdminOnly: 1\n", "0" * 16, False),
        ("RmProfilingAdminOnly: 1\n", "0000004000000000", True),
        ("RmProfilingAdminOnly: 1\n", "0000000000200000", True),
        ("RmProfilingAdminOnly: 1\n", None, False),
    ],
)
def test_whether_counters_are_allowed(tmp_path, parameters, capabilities, allowed) -> None:
    files = tmp_path / "params", tmp_path / "status"
    if parameters is not None:
        files[0].write_text(parameters)
    if capabilities is not None:
        files[1].write_text(f"Name:\tpython\nCapEff:\t{capabilities}\n")
    assert nsight.counters_allowed(*files) is allowed

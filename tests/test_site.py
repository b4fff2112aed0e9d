"""The site: its facts and their form, a draft from a live Slurm, a file held to one, and no site fact in code."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from fuzzing import fuzz
from hypothesis import example, given
from hypothesis import strategies as st

from gpuworkshop.cluster import discover, site_check, site_draft, site_show, slurm_time
from gpuworkshop.cluster.discover import Gres, NoSlurm
from gpuworkshop.cluster.site import SHIPPED, Site, SiteError, choose, load, parse, shipped

AICR = (SHIPPED / "aicr.toml").read_text(encoding="utf-8")
PACKAGE = SHIPPED.parents[1]


# What the shipped files say


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_site_loads_and_survives_a_round_trip(name: str) -> None:
    site = load(name)
    assert msgspec.convert(msgspec.to_builtins(site), Site) == site
    assert msgspec.json.decode(msgspec.json.encode(site), type=Site) == site


def test_the_first_site_and_a_starting_point_ship() -> None:
    assert {"aicr", "generic"} <= set(shipped())


SYLLABUS: dict[str, tuple[Callable[[Site], object], object]] = {
    "who shares it": (lambda s: s.shared_by, "six universities"),
    "two families": (lambda s: [f.name for f in s.families], ["b200", "rtx"]),
    "the cards": (lambda s: [f.card for f in s.families], ["B200", "RTX PRO 6000"]),
    "memory as advertised": (lambda s: [f.memory_gb for f in s.families], [192, 96]),
    "the request": (lambda s: {f.gres for f in s.families}, {"gpu"}),
    "four partitions": (
        lambda s: [(p.name, p.families, p.purpose) for p in s.partitions],
        [
            ("b200-devel", ("b200",), "devel"),
            ("b200-batch", ("b200",), "batch"),
            ("rtx-devel", ("rtx",), "devel"),
            ("rtx-batch", ("rtx",), "batch"),
        ],
    ),
    "devel 4 h": (lambda s: {p.seconds for p in s.partitions if p.purpose == "devel"}, {4 * 3600}),
    "batch 24 h": (lambda s: {p.seconds for p in s.partitions if p.purpose == "batch"}, {24 * 3600}),
    "4 running jobs in b200-devel": (lambda s: s.partition("b200-devel").running_jobs, 4),
    "no other limit is known": (lambda s: {p.running_jobs for p in s.partitions[1:]}, {None}),
    "an idle job blocks you too": (lambda s: "blocks you too" in s.partition("b200-devel").note, True),
    "devel is for": (lambda s: s.partition("rtx-devel").use, "interactive work and profiling"),
    "batch is for": (lambda s: s.partition("rtx-batch").use, "production"),
    "B200 for": (lambda s: ["demos" in s.family("b200").use, "96 GB" in s.family("b200").use], [True, True]),
    "RTX for": (lambda s: s.family("rtx").use, "what fits 96 GB, and lighter inference"),
    "fewest cards": (lambda s: s.conventions.cards, "the fewest that meet the need"),
    "modules": (lambda s: [m.name for m in s.modules], ["cuda/13.1", "miniforge3/25.3.0-3"]),
    "the other number of the CUDA module": (lambda s: "13.1.1" in s.modules[0].note + s.modules[0].ask, True),
    "idle jobs are canceled": (lambda s: s.idle.cancels, True),
    "idle, what is said": (lambda s: "without running anything" in s.idle.says, True),
    "idle, what to do": (lambda s: len(s.idle.advice), 4),
    "idle, no number is invented": (lambda s: (s.idle.minutes, s.idle.below_percent), (None, None)),
    "idle, so it is asked": (lambda s: "how many minutes" in s.idle.ask, True),
    "portal": (lambda s: s.portal.url, "https://ood.aicr.ai/"),
    "user names": (lambda s: s.user_name, "j_smith_neu"),
    "training material": (lambda s: s.training.repository.rpartition("/")[2], "AICR-Optimizing-GPU-Usage"),
    "cloned to scratch": (lambda s: s.training.folder, "/scratch/$USER"),
    "interactive request": (
        lambda s: s.interactive(),
        "srun -p b200-devel -N 1 -n 1 -c 8 --mem=32G --gres=gpu:1 --time=01:00:00 --pty bash",
    ),
    "help": (lambda s: s.help.email, "rchelp@northeastern.edu"),
    "get-help page": (lambda s: ["getting-help" in s.help.page, "consultation" in s.help.offers], [True, True]),
    "power": (lambda s: s.family("b200").power_watts, 1000),
    "cost of an idle B200, a claim": (lambda s: "2.5 times" in s.family("b200").claims[0], True),
    "the habit": (lambda s: s.habit.says, "Profile in devel, produce in batch."),
    "the habit in devel": (lambda s: ["verify" in s.habit.devel, "70 %" in s.habit.devel[-1]], [True, True]),
    "the habit in batch": (lambda s: "jobstats" in s.habit.batch[-1], True),
    "storage": (
        lambda s: [(p.path, p.quota_gb) for p in s.storage],
        [("/home/$USER", 100), ("/scratch/$USER", 10_000), ("/work/neu/$PROJECT", None), ("$TMPDIR", None)],
    ),
    "purge": (lambda s: [p.purge for p in s.storage][:3], ["never", "after 30 days, irreversibly", "never"]),
    "one NFS server": (lambda s: ["NFS, one server" in p.filesystem for p in s.storage], [True] * 3 + [False]),
    "never train from home": (lambda s: "never train" in s.storage[0].note, True),
    "choose by quota and purge": (lambda s: "by quota and purge" in s.storage[1].note, True),
    "copy to the node": (lambda s: "copy to it when the job starts" in s.storage[3].note, True),
    "storage is not verified": (lambda s: {p.unverified for p in s.storage}, {True}),
    "jobstats": (lambda s: s.jobstats.available, True),
    "jobstats in the portal, not on Explorer": (
        lambda s: ["job view" in s.jobstats.note, "Explorer has not" in s.jobstats.note],
        [True, True],
    ),
    "a job starts with": (lambda s: (*s.conventions.share(1), s.conventions.time), (8, "32G", "04:00:00")),
    "logs": (lambda s: (s.conventions.output, s.conventions.error), ("logs/%x_%j.out", "logs/%x_%j.err")),
}


@pytest.mark.parametrize(("read", "value"), SYLLABUS.values(), ids=SYLLABUS.keys())
def test_a_fact_of_the_course_is_in_the_file(read: Callable[[Site], object], value: object) -> None:
    assert read(load("aicr")) == value


@pytest.mark.parametrize("name", shipped())
def test_every_fact_has_a_source(name: str) -> None:
    site = load(name)
    assert all(site.source_of(fact) for _, fact in site.facts())


def test_storage_does_not_pass_for_stated() -> None:
    site = load("aicr")
    assert "commented out" in site.source_of(site.storage[0])
    assert "commented out" not in site.source_of(site.partitions[0])


def test_the_generic_site_claims_nothing() -> None:
    site = load("generic")
    assert (site.partitions, site.families, site.modules, site.module_lines()) == ((), (), (), ())
    assert site.interactive() == "srun -N 1 -n 1 -c 8 --mem=32G --gres=gpu:1 --time=01:00:00 --pty bash"


def test_no_site_fact_stands_in_code() -> None:
    site = load("aicr")
    facts = [p.name for p in site.partitions] + [m.name for m in site.modules] + [site.user_name, site.help.email]
    facts += [site.portal.url.strip("/"), site.help.page, "/scratch", "j_smith", "rc-docs"]
    files = {path: path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    assert len(files) > 20
    assert [(path.name, fact) for path, text in files.items() for fact in facts if fact in text] == []


# What a site can be asked

OTHER = """\
name = "Other"
source = "us"
[sources]
us = "its own admins"
[[family]]
name = "a100"
card = "A100"
gres = "gpu:a100"
cards_per_node = 4
[[family]]
name = "v100"
gres = "gpu:v100"
[[partition]]
name = "short"
purpose = "devel"
families = ["v100"]
time_limit = "02:00:00"
[[partition]]
name = "gpu"
purpose = "batch"
families = ["a100", "v100"]
time_limit = "2-00:00:00"
options = ["--qos=gpu", "--account=course"]
[[partition]]
name = "cpu"
purpose = "batch"
time_limit = "unlimited"
[request]
partition = "short"
time = "00:30:00"
[conventions]
cpus_per_card = 6
memory = "20G"
time = "01:00:00"
output = "%x.out"
error = "%x.err"
"""


def test_the_words_of_a_request_follow_the_file() -> None:
    site = parse(OTHER)
    line = "srun -p gpu --qos=gpu --account=course -N 1 -n 1 -c 12 --mem=40G --gres=gpu:a100:2 --time=00:30:00"
    assert " ".join(site.srun("gpu", cards=2)) == line
    assert site.interactive().startswith("srun -p short -N 1 -n 1 -c 6 --mem=20G --gres=gpu:v100:1 ")
    assert site.partition_for("a100", "batch").name == "gpu"
    assert site.partition_for("a100", "devel") is None


def test_a_request_where_there_is_no_card_is_refused() -> None:
    site = parse(OTHER)
    with pytest.raises(ValueError, match="^no partition 'gpus'; did you mean gpu[?]$"):
        site.srun("gpus")
    with pytest.raises(ValueError, match='^"cpu" has no cards$'):
        site.srun("cpu")


def test_the_modules_are_loaded_in_order_after_a_purge() -> None:
    assert load("aicr").module_lines() == ("module purge", "module load cuda/13.1 miniforge3/25.3.0-3")


# A file that is wrong

MISTAKES = {
    'time_limit = "24:00:00" -> time_limit = 24': 'partition "b200-batch": time_limit: expected hours:minutes:seconds '
    "such as 04:00:00, or unlimited, found 24",
    'time_limit = "24:00:00" -> time_limit = "1440"': 'partition "b200-batch": time_limit: expected '
    "hours:minutes:seconds such as 04:00:00, or unlimited, found '1440'",
    "running_jobs = 4 -> runing_jobs = 4": "partition \"b200-devel\": unknown key 'runing_jobs'; "
    "did you mean running_jobs?",
    "running_jobs = 4 -> zzz = 4": "partition \"b200-devel\": unknown key 'zzz'",
    "running_jobs = 4 -> running_jobs = true": 'partition "b200-devel": running_jobs: expected a whole number, '
    "1 or more, found true",
    "running_jobs = 4 -> running_jobs = 0": 'partition "b200-devel": running_jobs: expected a whole number, 1 or more, '
    "found 0",
    'purpose = "devel" -> purpose = "dev"': "partition \"b200-devel\": purpose: expected devel or batch, found 'dev'",
    'families = ["rtx"] -> families = "rtx"': 'partition "rtx-devel": families: expected a list, each a name of '
    "letters, digits, . _ + -, found 'rtx'",
    'families = ["rtx"] -> families = ["rtx", 6000]': 'partition "rtx-devel": families 2: expected a name of letters, '
    "digits, . _ + -, found 6000",
    'families = ["rtx"] -> families = ["rtxx"]': "partition \"rtx-devel\": families: no family 'rtxx'; "
    "did you mean rtx?",
    'name = "b200-devel" -> name = 1979-05-27': "partition 1: name: expected a name of letters, digits, . _ + -, "
    "found 1979-05-27",
    'name = "rtx-batch" -> name = "rtx-devel"': 'partition "rtx-devel": expected once, found 2 times',
    "[portal] -> [portals]": "unknown key 'portals'; did you mean portal?",
    "[conventions] -> [training]": "not TOML: ",
    "[habit] -> [[habit]]": "habit: expected a table, found a list",
    'shared_by = "six universities" -> portal = "x"': "not TOML: ",
    'name = "AICR" -> #': "name is missing: expected text in quotes",
    'name = "AICR" -> name =': "not TOML: ",
    'source = "workshop" -> source = "workshops"': "source: no key in sources 'workshops'; did you mean workshop?",
    'source = "film" -> source = "fim"': "jobstats: source: no key in sources 'fim'; did you mean film?",
    'commented = " -> commented = 3 #': "sources: commented: expected text in quotes, found 3",
    'name = "cuda/13.1" -> name = "cuda; rm -rf ~"': 'module "cuda; rm -rf ~": name: expected what `module load` '
    "takes, such as cuda/12.4, found 'cuda; rm -rf ~'",
    'path = "/scratch/$USER" -> path = "/scratch/$(id)"': 'storage "/scratch/$(id)": path: expected an absolute path, '
    "such as /data/$USER, found '/scratch/$(id)'",
    'purpose = "node" -> purpose = "tmp"': 'storage "$TMPDIR": purpose: expected home or scratch or project or node, '
    "found 'tmp'",
    'ask = "What is the quota of -> #': 'storage "/work/neu/$PROJECT": unverified needs ask, the question that the '
    "site must answer",
    'memory = "32G" -> memory = "32 GB"': "conventions: memory: expected a size such as 32G, found '32 GB'",
    "cpus_per_card = 8 -> ": "conventions: cpus_per_card is missing: expected a whole number, 1 or more",
    "memory_gb = 96 -> memory_gb = nan": 'family "rtx": memory_gb: expected a number above 0, found nan',
    "memory_gb = 96 -> memory_gb = inf": 'family "rtx": memory_gb: expected a number above 0, found inf',
    'gres = "gpu" -> gres = "gpu:b200:8"': 'family "b200": gres: expected gpu or gpu:TYPE, as GRES writes it, '
    "found 'gpu:b200:8'",
    'cancels = true -> cancels = "yes"': "idle: cancels: expected true or false, found 'yes'",
    'url = "https://ood.aicr.ai/" -> url = "javascript:alert(1)"': "portal: url: expected an address that begins with "
    "https://, found 'javascript:alert(1)'",
    'email = "rchelp@northeastern.edu" -> email = "nobody"': "help: email: expected a mail address, found 'nobody'",
    'partition = "b200-devel" -> partition = "b200-dev"': "request: partition: no partition 'b200-dev'; "
    "did you mean b200-devel?",
    'time = "01:00:00" -> time = "05:00:00"': 'request: time: expected at most 04:00:00, the limit of "b200-devel", '
    "found 05:00:00",
    'shell = "bash" -> shell = "bash -l"': "request: shell: expected a name of letters, digits, . _ + -, "
    "found 'bash -l'",
    'name = "AICR" -> "name - at `$.zzz" = 1': "Object contains unknown field",
}


@pytest.mark.parametrize(("change", "message"), MISTAKES.items(), ids=MISTAKES.keys())
def test_a_mistake_is_one_line_with_file_key_and_expectation(change: str, message: str) -> None:
    old, new = change.split(" -> ")
    assert old in AICR
    with pytest.raises(SiteError) as refused:
        parse(AICR.replace(old, new, 1), "mine.toml")
    said = str(refused.value)
    assert said.startswith(f"mine.toml: {message}")
    assert said == f"mine.toml: {message}" or message.startswith(("not TOML", "Object"))
    assert "\n" not in said


def test_an_option_takes_no_second_word() -> None:
    with pytest.raises(SiteError, match='partition "gpu": options 1: expected one long option such as --qos=gpu'):
        parse(OTHER.replace("--qos=gpu", "--qos=gpu; reboot"))


def test_an_interactive_request_needs_cards() -> None:
    with pytest.raises(SiteError, match='request: partition: "cpu" has no cards'):
        parse(OTHER.replace('partition = "short"', 'partition = "cpu"'))


def test_the_setting_chooses_and_a_name_wins(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(OTHER)
    inside = {"SLURM_CLUSTER_NAME": "aicr"}
    assert load(env=inside).name == "AICR"
    assert load(env={"GPUWORKSHOP_SITE": "", **inside}).name == "AICR"
    assert load(env={"GPUWORKSHOP_SITE": "generic", **inside}).name == "any Slurm cluster"
    assert load(env={"GPUWORKSHOP_SITE": str(file)}).name == "Other"
    assert load("aicr", env={"GPUWORKSHOP_SITE": "generic"}).name == "AICR"
    assert load(file, env={}).name == "Other"


@pytest.mark.parametrize(
    ("live", "site"),
    [
        ("aicr", "aicr"),
        ("AICR-prod", "aicr"),
        ("aicrx", "generic"),
        ("explorer", "generic"),
        ("generic", "generic"),
        ("", "generic"),
    ],
)
def test_the_name_of_the_slurm_cluster_chooses_and_is_said(live: str, site: str) -> None:
    chosen, said_by = choose(env={}, cluster=lambda: live)
    assert chosen == site
    assert live in said_by and (live or "no Slurm" in said_by)


def test_a_slurm_is_only_asked_where_nobody_else_said(slurm: Path) -> None:
    program(slurm, "scontrol", f"echo asked >> {slurm}/calls; echo 'ClusterName = aicr'")
    assert load("generic", env={}).name == "any Slurm cluster"
    assert load(env={"GPUWORKSHOP_SITE": "generic"}).name == "any Slurm cluster"
    assert load(env={"SLURM_CLUSTER_NAME": "other"}).name == "any Slurm cluster"
    assert not (slurm / "calls").exists()
    assert load(env={}).name == "AICR"
    program(slurm, "scontrol", "exit 1")
    assert load(env={}).name == "any Slurm cluster"


def test_a_site_that_is_not_there_is_said_with_the_way_out(tmp_path: Path) -> None:
    known = f"(the kit has {', '.join(shipped())}; a file of yours is given by its path, X.toml)"
    cases = {
        "aicrr": f"no site 'aicrr'; did you mean aicr? {known}",
        f"{tmp_path}/no.toml": f"{tmp_path}/no.toml: no such file",
        f"{tmp_path}/": f"{tmp_path}: a folder",
    }
    for name, said in cases.items():
        with pytest.raises(SiteError) as refused:
            load(name, env={})
        assert str(refused.value) == said
    with pytest.raises(SiteError, match=r"^\$GPUWORKSHOP_SITE: no site 'x' "):
        load(env={"GPUWORKSHOP_SITE": "x"})


def test_a_file_that_is_no_text_or_never_ends_is_refused(tmp_path: Path) -> None:
    binary, deep, pipe = tmp_path / "binary.toml", tmp_path / "deep.toml", tmp_path / "pipe.toml"
    binary.write_bytes(b"\xff\xfe\x00name")
    deep.write_text("a = " + "[" * 100_000)
    os.mkfifo(pipe)
    for file, said in ((binary, "not text in UTF-8"), (deep, "not TOML"), (pipe, "not a plain file")):
        with pytest.raises(SiteError, match=said):
            load(file)


def test_hostile_text_stays_text() -> None:
    evil = "<script>alert(1)</script>\\u001b[2J"
    site = parse(OTHER.replace('name = "Other"', f'name = "{evil}"\nshared_by = "{evil}"'))
    shown = site_show.report(site)
    html = shown._repr_mimebundle_()["text/html"]
    assert "&lt;script&gt;" in html and "<script>" not in html
    assert "\x1b" not in str(shown) and "\x1b" not in html
    for old in ('memory = "20G"', 'name = "cpu"'):
        with pytest.raises(SiteError) as refused:
            parse(OTHER.replace(old, f'{old.split(" = ")[0]} = "\\u001b[2J\\n\\u202e"'))
        assert not set("\x1b\n\u202e") & set(str(refused.value))


# `site show`


def test_what_is_unknown_is_shown_as_unknown() -> None:
    text = str(site_show.report(load("aicr")))
    rows = {line[:18].strip(): line[18:] for line in text.splitlines()}
    assert rows["canceled after"].split()[0] == "unknown"
    assert rows["portal"].split()[-2] == "https://ood.aicr.ai/"
    assert "claimed by AICR Training Workshop 2" in text
    assert "measured here" not in text


def test_each_question_is_asked_once_and_names_its_places() -> None:
    found = site_show.findings(load("aicr"))
    jobs = [one for one in found if "How many jobs" in one.title]
    assert [one.level for one in found if "not verified" in one.title] == ["warning"] * 4
    assert len(jobs) == 1 and all(name in jobs[0].title for name in ("b200-batch", "rtx-devel", "rtx-batch"))
    assert not site_show.report(load("aicr")).failed


# Slurm's times


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 1800),
        ("30:00", 1800),
        ("4:00:00", 14_400),
        ("1-00:00:00", 86_400),
        ("1-12", 129_600),
        ("1-12:30", 131_400),
        ("24:00:00", 86_400),
        ("infinite", math.inf),
        ("UNLIMITED", math.inf),
        ("-1", math.inf),
    ],
)
def test_a_slurm_time_is_read(text: str, seconds: float) -> None:
    assert slurm_time.seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "abc", "1:2:3:4", "-5", "1-", "4h", "٣", "n/a", "1" * 5000])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no Slurm time, such as"):
        slurm_time.seconds(text)


@given(st.integers(0, 10**9))
def test_a_time_written_is_the_time_read(seconds: int) -> None:
    assert slurm_time.seconds(slurm_time.text(seconds)) == seconds


# What Slurm says

SAMPLE = """\
b200-devel|up|4:00:00|1|idle|64|512000|gpu:b200:8(S:0-1)
b200-devel|up|4:00:00|1|down*|64|512000|gpu:b200:8(S:0-1)
b200-batch|up|1-00:00:00|2|mixed|64|512000|gpu:b200:8(S:0-1)
rtx-devel|up|4:00:00|1|idle|64|512000|gpu:rtx:8
rtx-batch|up|1-00:00:00|1|allocated|64|512000|gpu:rtx:8
"""
UNTYPED = "gpu*|up|infinite|3|idle|32|128000|gpu:4\n"
NO_CARDS = "cpu*|up|7-00:00:00|100|idle|96|384000|(null)\nempty|down|infinite|0|n/a|0|0|(null)\n"
MIXED = """\
gpu|up|infinite|2|unknown*|32|128000|gpu:4
gpu|up|infinite|1|idle|96|384000|(null)
gpu|up|infinite|1|idle|48|256000|gpu:nvidia_a100_1g.5gb:14,gpu:a100:2
gpu|up|infinite|1|idle|48|256000|gpu:a100:4,gpu:v100:2,shard:a100:16,shard:v100:8
debug|up|30:00|1|drained|48|256000|gpu:a100:4,gpu:v100:2,shard:a100:16,shard:v100:8
old|inact|1:00:00|2|down|16|64000|gpu:1080:2
"""
SAMPLES = {"typed": SAMPLE, "untyped": UNTYPED, "mixed": MIXED, "all": SAMPLE + MIXED + NO_CARDS}


@pytest.mark.parametrize(
    ("gres", "cards"),
    [
        ("gpu:b200:8", [("b200", 8)]),
        ("gpu:b200:8(S:0-1)", [("b200", 8)]),
        ("gpu:4", [("", 4)]),
        ("gpu:4(S:0,2)", [("", 4)]),
        ("gpu:1080:4", [("1080", 4)]),
        ("gpu:a100:4(S:0,1),gpu:v100:2(S:0)", [("a100", 4), ("v100", 2)]),
        ("gpu:1g.10gb:7,gpu:a100_3g.20gb:2", [("1g.10gb", 7), ("a100_3g.20gb", 2)]),
        ("gpu:no_consume:4", [("", 4)]),
        ("gpu:a100:no_consume:4", [("a100", 4)]),
        ("shard:a100:16,mps:400,nic:2,gpumem:80G", []),
        ("lustre:1,gpu:2", [("", 2)]),
        ("gpu:a100:0", []),
        ("(null)", []),
        ("", []),
        ("gpu:", []),
        ("gpu:" + "9" * 5000, []),
    ],
)
def test_the_cards_of_a_gres(gres: str, cards: list[tuple[str, int]]) -> None:
    assert [(one.type, one.count) for one in discover.cards(gres)] == cards


@pytest.mark.parametrize(
    ("kind", "is_slice"),
    [("1g.10gb", True), ("a100_1g.5gb", True), ("nvidia_h100_80gb_hbm3_2g.20gb", True), ("a100", False), ("", False)],
)
def test_a_mig_slice_is_told_from_a_card(kind: str, is_slice: bool) -> None:
    assert Gres(kind, 1).is_slice is is_slice


def test_the_answer_of_sinfo_is_read() -> None:
    live = discover.parse(SAMPLE + NO_CARDS + MIXED, "Some = x\nClusterName             = workshop\n")
    devel, cpu, empty, mixed = (live.partition(name) for name in ("b200-devel", "cpu", "empty", "gpu"))
    assert live.cluster == "workshop"
    assert (devel.time_limit, devel.gres(), devel.most("gpu:b200")) == ("04:00:00", ("gpu:b200",), 8)
    assert [group.in_use for group in devel.nodes] == [True, False]
    assert (cpu.default, devel.default, cpu.gres(), cpu.time_limit) == (True, False, (), "7-00:00:00")
    assert (empty.nodes, empty.state, empty.time_limit) == ((), "down", "unlimited")
    assert mixed.gres() == ("gpu", "gpu:a100", "gpu:nvidia_a100_1g.5gb", "gpu:v100")
    assert (mixed.most("gpu:a100"), mixed.most("gpu")) == (4, 4)
    assert live.partition("old").most("gpu") == 2
    without = discover.parse("a|up|n/a|1|idle|1|1|\nb|up|0:00|1|idle|1|1|")
    assert [one.time_limit for one in without.partitions] == ["", ""]


@pytest.mark.parametrize("state", ["powered_down", "powering_up", "idle~", "mixed", "reserved", "planned"])
def test_a_node_that_will_take_jobs_is_in_use(state: str) -> None:
    (partition,) = discover.parse(f"gpu|up|1:00|1|{state}|4|1000|gpu:1").partitions
    assert partition.nodes[0].in_use


@pytest.mark.parametrize(
    "text",
    ["", "\n\n", "PARTITION AVAIL TIMELIMIT", "a|up|1:00|x|idle|4|1000|gpu:1", "a|up|1:00|1|idle|4|1000", "a|" * 9],
)
def test_an_answer_that_is_not_understood_is_said(text: str) -> None:
    with pytest.raises(NoSlurm, match="^sinfo(: not understood: '| lists no partition)"):
        discover.parse(text)


def program(folder: Path, name: str, script: str) -> None:
    """A small shell program on its own."""
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder first in PATH, with a sinfo that answers with SAMPLE and a scontrol that fails."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / "answer").write_text(SAMPLE)
    program(tmp_path, "sinfo", f'test -z "$SINFO_FORMAT$SINFO_PARTITION" && cat {tmp_path}/answer')
    program(tmp_path, "scontrol", "exit 1")
    return tmp_path


def test_slurm_is_asked_and_its_users_settings_do_not_bend_the_answer(
    slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SINFO_FORMAT", "%n")
    monkeypatch.setenv("SINFO_PARTITION", "cpu")
    live = discover.ask()
    assert (live.cluster, len(live.partitions)) == ("", 4)
    program(slurm, "scontrol", "echo 'ClusterName = here'")
    assert discover.ask().cluster == "here"


def test_a_slurm_that_does_not_answer_is_said_in_one_line(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(slurm, "sinfo", "printf 'error:\\033[2J no\\ncontroller' >&2; exit 3")
    with pytest.raises(NoSlurm, match="^sinfo failed with exit code 3: error:\ufffd\\[2J no controller$"):
        discover.ask()
    program(slurm, "sinfo", "exec sleep 60")
    with pytest.raises(NoSlurm, match="^sinfo: no answer within 0.2 s$"):
        discover.run(("sinfo",), limit=0.2)
    (slurm / "sinfo").unlink()
    monkeypatch.setenv("PATH", str(slurm))
    with pytest.raises(NoSlurm, match="^sinfo: not found: there is no Slurm on this machine$"):
        discover.ask()


# A draft, and a file held to a Slurm


def mismatches(site: Site, live: discover.Live) -> list[tuple[str, str]]:
    """What a check finds wrong with the file: level and title of fails and warnings."""
    return [(one.level, one.title) for one in site_check.check(site, live) if one.level in ("fail", "warning")]


@pytest.mark.parametrize("text", SAMPLES.values(), ids=SAMPLES.keys())
def test_a_draft_loads_and_holds_against_the_same_slurm(text: str) -> None:
    live = discover.parse(text, "ClusterName = here")
    site = parse(site_draft.draft(live, date="2026-12-01"))
    assert site.name == "here"
    assert site.origin.on == "sinfo on here, 2026-12-01"
    assert mismatches(site, live) == []
    assert [p.name for p in site.partitions] == [p.name for p in live.partitions if p.gres()]


def test_a_draft_marks_guesses_and_invents_nothing() -> None:
    text = site_draft.draft(discover.parse(MIXED), "Mine")
    site = parse(text)
    slice_, a100, untyped = (site.family(name) for name in ("nvidia_a100_1g.5gb", "a100", "gpu"))
    assert (a100.gres, a100.card, a100.cards_per_node, a100.unverified) == ("gpu:a100", "A100", 4, True)
    assert (slice_.card, slice_.cards_per_node, "MIG" in slice_.use) == ("A100", 14, True)
    assert (untyped.card, untyped.gres, untyped.cards_per_node, untyped.unverified) == ("", "gpu", 4, False)
    assert {family.memory_gb for family in site.families} == {None}
    assert [p.purpose for p in site.partitions] == ["batch", "devel", "batch"]
    assert 'purpose = "devel"  # guessed' in text
    assert {p.running_jobs for p in site.partitions} == {None}
    assert (site.idle.says, site.idle.minutes, site.modules, site.storage) == ("", None, (), ())
    assert (site.request.partition, site.request.time) == ("debug", "00:30:00")
    assert site.conventions.share(1) == (8, "31G")  # the node with 32 CPUs, 128000 MiB and 4 cards


def test_a_draft_without_cards_loads_too() -> None:
    live = discover.parse(NO_CARDS)
    site = parse(site_draft.draft(live))
    assert site.partitions == ()
    assert "# cpu, empty" in site_draft.draft(live)
    assert [level for level, _ in mismatches(site, live)] == ["fail"]  # nothing to ask for a card with


def test_hostile_names_do_not_get_into_a_draft() -> None:
    names = ["a;reboot", "$(id)", "x y", "\x1b[2J", "-p", 'q"\n[[family]]', "fine"]
    lines = [f"{name}|up|1:00:00|1|idle|8|64000|gpu:{name}:2".replace("\n", " ") for name in names]
    text = site_draft.draft(discover.parse("\n".join(lines)), 'a "site"\\ \x1b\n')
    site = parse(text)
    assert [p.name for p in site.partitions] == ["fine"]
    assert [f.name for f in site.families] == ["fine"]
    assert site.name == 'a "site"\\ \ufffd\n'
    assert "\x1b" not in text


FIELD = st.text(st.characters(blacklist_characters="|\n", blacklist_categories=("Cs",)), max_size=12)
GRES = st.lists(st.builds("gpu:{}:{}".format, st.sampled_from(["a100", "gpu", "1g.5gb", "x y"]), st.integers(0, 16)))
LINE = st.builds(
    "{}|{}|{}|{}|idle|{}|{}|{}".format,
    st.sampled_from(["a*", "b", "dev", "é"]) | FIELD,
    st.sampled_from(["up", "drain"]) | FIELD,
    st.sampled_from(["1:00:00", "infinite", "0:00"]) | FIELD,
    st.integers(0, 9),
    st.integers(0, 256),
    st.integers(0, 10**6),
    GRES.map(",".join) | st.just("gpu:4"),
)


@pytest.mark.parametrize("place", ["source = ", "[[storage]]\npath = ", "[[partition]]\nname = ", "x = ", ""])
def test_an_error_about_a_long_name_is_still_one_short_line(place: str) -> None:
    """In a file with such a key or value somewhere; found by the long mode."""
    text = (SHIPPED / "generic.toml").read_text()
    with pytest.raises(SiteError) as caught:
        parse(f'{text}\n{place}"{"x" * 5000}"\n')
    assert len(str(caught.value)) <= 600 and "\n" not in str(caught.value)


@fuzz(100)
@given(st.lists(LINE, min_size=1, max_size=6).map("\n".join) | st.text(max_size=80))
@example("a|up|9999999-23:59:59|1|idle|0|0|gpu:4")
def test_whatever_sinfo_prints_it_is_refused_or_drafted(text: str) -> None:
    try:
        live = discover.parse(text)
    except NoSlurm:
        return
    site = parse(site_draft.draft(live))
    assert {p.name for p in site.partitions} <= {p.name for p in live.partitions}
    assert site_check.report(site, live).title


CHANGES = {
    "nothing": ("", "", []),
    "shorter": (
        "rtx-devel|up|4:00:00",
        "rtx-devel|up|2:00:00",
        [("fail", 'partition "rtx-devel" ends jobs after 02:00:00')],
    ),
    "longer": (
        "rtx-devel|up|4:00:00",
        "rtx-devel|up|infinite",
        [("warning", 'partition "rtx-devel" ends jobs after unlimited')],
    ),
    "renamed": (
        "rtx-batch|",
        "rtx-long|",
        [
            ("fail", 'Slurm has no partition "rtx-batch"'),
            ("warning", 'Slurm has a partition with cards that the file does not know: "rtx-long"'),
        ],
    ),
    "cards gone": (
        "rtx-devel|up|4:00:00|1|idle|64|512000|gpu:rtx:8",
        "rtx-devel|up|4:00:00|1|idle|64|512000|(null)",
        [("fail", 'partition "rtx-devel" has no gpu: a job that asks for it is refused')],
    ),
    "too small a node": (
        "rtx-devel|up|4:00:00|1|idle|64|512000",
        "rtx-devel|up|4:00:00|1|idle|4|16000",
        [("fail", 'no node of partition "rtx-devel" has 8 CPUs and 32G for one card')],
    ),
}


@pytest.mark.parametrize(("old", "new", "found"), CHANGES.values(), ids=CHANGES.keys())
def test_a_change_of_the_cluster_is_noticed(old: str, new: str, found: list[tuple[str, str]]) -> None:
    assert old in SAMPLE
    assert mismatches(load("aicr"), discover.parse(SAMPLE.replace(old, new))) == found


def test_a_lost_partition_is_not_taken_for_one_that_the_file_has() -> None:
    lost, renamed = (discover.parse(SAMPLE.replace("rtx-batch|", name)) for name in ("x|", "rtx-bach|"))
    fixes = [one.fix for live in (lost, renamed) for one in site_check.check(load("aicr"), live) if one.level == "fail"]
    assert fixes == ['remove the [[partition]] "rtx-batch" from the file', 'name = "rtx-bach"']


def test_a_file_as_the_cluster_is_says_so_and_says_what_slurm_cannot_know() -> None:
    found = site_check.check(load("aicr"), discover.parse(SAMPLE + NO_CARDS))
    assert [one.level for one in found] == ["ok"] * 4 + ["unknown"]
    assert found[0].evidence == "at most 04:00:00; 2 nodes with 64 CPUs, gpu:b200 x 8"
    assert not site_check.report(load("aicr"), discover.parse(SAMPLE)).failed


LIVE = """\
short|up|2:00:00|1|idle|32|256000|gpu:v100:2
gpu|up|2-00:00:00|1|idle|32|256000|gpu:a100:4,gpu:v100:2
cpu*|up|infinite|1|idle|8|64000|(null)
"""
TYPES = {
    "as it is": (LIVE, []),
    "another type": (
        LIVE.replace("gpu:a100:4", "gpu:h100:4"),
        [("fail", 'partition "gpu" has no gpu:a100: a job that asks for it is refused')],
    ),
    "no types": (
        LIVE.replace("gpu:v100:2", "gpu:2", 1),
        [("fail", 'partition "short" has no gpu:v100: a job that asks for it is refused')],
    ),
    "one more type": (
        LIVE + "gpu|up|2-00:00:00|1|idle|32|256000|gpu:h100:4\n",
        [("warning", 'partition "gpu" has cards of which the file knows no family: gpu:h100')],
    ),
    "fewer cards": (
        LIVE.replace("gpu:a100:4", "gpu:a100:2"),
        [("fail", 'a node of family "a100" has 2 cards, the file says 4')],
    ),
    "more cards": (
        LIVE.replace("gpu:a100:4", "gpu:a100:8"),
        [("warning", 'a node of family "a100" has 8 cards, the file says 4')],
    ),
}


@pytest.mark.parametrize(("text", "found"), TYPES.values(), ids=TYPES.keys())
def test_a_typed_file_is_held_to_the_types(text: str, found: list[tuple[str, str]]) -> None:
    assert mismatches(parse(OTHER), discover.parse(text)) == found


def test_an_unknown_time_limit_is_filled_in() -> None:
    site = parse(OTHER.replace('time_limit = "02:00:00"\n', ""))
    (finding,) = [one for one in site_check.check(site, discover.parse(LIVE)) if one.level == "notice"]
    assert (finding.evidence, finding.fix) == ("the file does not say", 'time_limit = "02:00:00"')


def test_how_things_stand_is_a_notice_not_a_mistake() -> None:
    down = SAMPLE.replace("rtx-devel|up", "rtx-devel|drain").replace("1|allocated", "1|drained*")
    found = [one.title for one in site_check.check(load("aicr"), discover.parse(down)) if one.level == "notice"]
    assert found == [
        'partition "rtx-devel" is in state drain: its jobs wait',
        'no node of partition "rtx-batch" takes jobs at the moment',
    ]


def test_an_untyped_request_among_several_types_is_said() -> None:
    site = parse(OTHER.replace('gres = "gpu:a100"', 'gres = "gpu"'))
    (notice,) = [one for one in site_check.check(site, discover.parse(LIVE)) if one.level == "notice"]
    assert notice.title == '--gres=gpu:1 in partition "gpu" may give any of gpu:a100, gpu:v100'
    assert notice.fix == "--gres=gpu:a100:1"


def test_a_request_without_a_partition_needs_a_default_with_cards() -> None:
    generic = load("generic")
    with_cards = discover.parse(UNTYPED)
    without = discover.parse(SAMPLE + NO_CARDS)
    assert mismatches(generic, with_cards) == [("warning", "the file names no partition")]
    levels = [one for one in site_check.check(generic, without) if one.level == "fail"]
    assert [(one.evidence, one.fix) for one in levels] == [
        ("the default is cpu", '[request]\npartition = "b200-devel"')
    ]

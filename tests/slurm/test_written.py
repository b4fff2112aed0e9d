"""A script of `job write` on a real Slurm: taken as it is, after what its last line says, and right inside."""

import json
import subprocess
import sys
from pathlib import Path

import measured_runs

GPUWORKSHOP = (sys.executable, "-m", "gpuworkshop")
TRAIN = """
import json, os, pathlib, sys
files = len(list(pathlib.Path(sys.argv[1]).iterdir()))
said = {"rank": int(os.environ["RANK"]), "world": int(os.environ["WORLD_SIZE"]), "data": sys.argv[1], "files": files}
print("SAID " + json.dumps(said))
"""


def test_a_written_script_stages_verifies_and_makes_one_rank_for_each_card(cluster, tmp_path: Path):
    tmp_path.chmod(0o755)
    data, disk = tmp_path / "my data", tmp_path / "disk"
    for folder in (data, disk):
        folder.mkdir()
    (data / "a.bin").write_bytes(bytes(1000))
    (tmp_path / "train.py").write_text(TRAIN)
    results = {"scale": measured_runs.scale({2: 0.9}), "starve": measured_runs.starve(workers=3, limit="data")}
    files = measured_runs.saved(tmp_path, **results)
    numbers = ("--steps", "100", "--family", "b200", "--data", str(data), "--out", "job.sbatch")
    command = ("job", "write", "--site", "aicr", "--from", *files, *numbers, "--", "train.py", "$DATA")
    written = cluster.ask(*GPUWORKSHOP, *command, cwd=tmp_path)
    assert written.returncode == 0, written.stderr
    script = tmp_path / "job.sbatch"
    make_folder, _, submit = script.read_text().rstrip().rpartition(": ")[2].partition(" && ")
    assert submit == "sbatch job.sbatch"
    subprocess.run(["bash", "-c", make_folder], cwd=tmp_path, check=True)
    job = cluster.run(script, f"--export=ALL,TMPDIR={disk}", cwd=tmp_path)
    assert (job.state, job.exit) == ("COMPLETED", "0:0"), job.output
    assert "NVIDIA B200" in job.output
    said = [json.loads(line[5:]) for line in job.output.splitlines() if line.startswith("SAID ")]
    assert sorted((one["rank"], one["world"]) for one in said) == [(0, 2), (1, 2)]
    assert {(one["data"], one["files"]) for one in said} == {(str(disk / "data"), 1)}
    assert cluster.facts(job.id)["NumCPUs"] == "8", "(3 workers + 1) x 2 ranks"

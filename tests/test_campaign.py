"""bench gpu, rehearsed on the CPU: one archive, that bench board takes whatever a stranger has put into it."""

import io
import json
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from bench import campaign
from bench.board import archives
from bench.cli import main
from bench.config import compose
from bench.run.source import Source

COMMIT = Source("0" * 40, False)
ROW = ("hmm", "mlp-pointwise")
ROWS = campaign.ROWS


@pytest.fixture(autouse=True)
def one_row(monkeypatch):
    """One architecture and one row, in this process, from a clean commit."""
    monkeypatch.setattr(campaign, "ROWS", (ROW,))
    monkeypatch.setattr(campaign.Campaign, "archs", lambda self: ["mlp-pointwise"])
    monkeypatch.setattr("bench.commands.gpu.cores", lambda: 1)
    monkeypatch.setattr("bench.run.run.loaded_source", lambda: COMMIT)
    monkeypatch.setattr(campaign, "loaded_source", lambda: COMMIT)


def rehearse(folder: Path, *words: str) -> int:
    return main(["gpu", "--rehearse", "--seeds", "1", "--out", str(folder), *words])


@pytest.fixture
def archive(tmp_path, capsys):
    assert rehearse(tmp_path / "gpu") == 0
    capsys.readouterr()
    return tmp_path / "gpu/tunnel-bench-rehearsal.tar"


def contents(archive):
    with tarfile.open(archive) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}


def packed(path, members):
    """An archive of these members: a name and content, or a TarInfo of another kind."""
    with tarfile.open(path, "w") as tar:
        for name, content in members:
            member = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            member.size = len(content) if member.isreg() else 0
            tar.addfile(member, io.BytesIO(content))
    return path


def record_in(archive):
    return next((name, text) for name, text in contents(archive).items() if name.endswith(".json") and "/runs/" in name)


def test_what_a_campaign_packs_is_added_with_its_weights_and_verified(archive, tmp_path, monkeypatch, capsys):
    members = contents(archive)
    kinds = {name.split("/", 1)[1] for name in members if "/runs/" not in name}
    assert kinds == {"facts.json", "log.txt", "smoke.json", "timing.json"}
    assert sorted(Path(name).suffix for name in members if "/runs/" in name) == [".json", ".jsonl", ".safetensors"]
    facts = json.loads(members["tunnel-bench-rehearsal/facts.json"])
    assert facts["commit"] == COMMIT.commit
    assert facts["cores"] >= 1
    log = members["tunnel-bench-rehearsal/log.txt"].decode()
    assert "hours a run" in log
    assert "speed: skipped, because a CPU trains in fp32, one run in a process" in log
    timing = json.loads(members["tunnel-bench-rehearsal/timing.json"])
    assert ([record["status"] for record in timing["runs"]], timing["speed"]) == (["ok"], [])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    assert main(["board", "--runs", "runs", "--add", str(archive)]) == 0
    (written,) = (tmp_path / "runs/self-reported").rglob("*.json")
    assert f"added {written.relative_to(tmp_path)}: self-reported until verified" in capsys.readouterr().out
    assert written.with_suffix(".safetensors").read_bytes() in members.values()
    assert main(["verify", str(written)]) == 0


def test_a_repeated_campaign_trains_nothing_again(archive, tmp_path, monkeypatch, capsys):
    before = contents(archive)
    monkeypatch.setattr("bench.engine.perform.run_in_turns", lambda *_: pytest.fail("trained again"))
    assert rehearse(tmp_path / "gpu") == 0
    assert "expected: 0.00 hours for 1 of 1 runs" in capsys.readouterr().out
    assert contents(archive).keys() == before.keys()


def test_an_interrupted_campaign_leaves_an_archive_and_goes_on(tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("bench.engine.dispatch.run_all", stop)
        assert rehearse(tmp_path / "gpu") == 130
    archive = tmp_path / "gpu/tunnel-bench-rehearsal.tar"
    assert {name.rpartition("/")[2] for name in contents(archive)} == {"facts.json", "log.txt"}
    assert rehearse(tmp_path / "gpu") == 0
    assert len(contents(archive)) > 2


def test_a_failed_check_of_the_kernels_is_packed_and_told(tmp_path, monkeypatch, capsys):
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho 3 checks failed\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setattr("bench.campaign.sys.executable", str(script))
    monkeypatch.setattr(campaign, "REHEARSAL", campaign.Size("tunnel-bench-rehearsal", "smoke", 4, True))
    assert rehearse(tmp_path / "gpu", "--hours", "0") == 1
    assert "bench: bench kernels ended with exit code 1" in capsys.readouterr().err
    members = contents(tmp_path / "gpu/tunnel-bench-rehearsal.tar")
    assert members["tunnel-bench-rehearsal/kernels.txt"] == b"3 checks failed\n"
    assert "tunnel-bench-rehearsal/timing.json" in members


@pytest.mark.parametrize(("source", "told"), [((None, None), "commit is unknown"), (("1" * 40, True), "has changes")])
def test_a_commit_that_nobody_can_find_is_said_before_any_work(tmp_path, monkeypatch, capsys, source, told):
    monkeypatch.setattr(campaign, "loaded_source", lambda: Source(*source))
    rehearse(tmp_path / "gpu", "--hours", "0")
    out = capsys.readouterr().out
    assert told in out[: out.index("smoke:")]


def test_the_speed_of_shared_processes_and_precisions_is_compared_with_one_run(tmp_path, monkeypatch):
    """Without a GPU: eight seeds at half the pace each are four times one, and tf32 is twice as fast."""
    from types import SimpleNamespace

    from rich.console import Console

    from bench.engine.events import events_path
    from bench.engine.plan import Plan

    planned = []

    def run_all(configs, plan, console):
        planned.append((len(configs), plan.per_gpu, plan.jobs))
        for config in configs:
            rate = 100 * (0.5 if len(configs) == 8 else 1) * (2 if config.precision == "tf32" else 1)
            path = events_path(config, plan.out)
            path.parent.mkdir(parents=True, exist_ok=True)
            events = [{"event": "started"}]
            events += [{"event": "step", "step": step, "seconds": 7 + step / rate} for step in (2, 4)]
            path.write_text("".join(json.dumps(event) + "\n" for event in events))
        return [SimpleNamespace(ok=config.precision != "bf16", error="no bf16", config=config) for config in configs]

    def config(self, preset, task, arch, seed, steps, sequences, precision):
        return replace(compose(preset, arch, task, seed, "cpu", {"steps": steps}), precision=precision)

    monkeypatch.setattr(campaign.dispatch, "run_all", run_all)
    monkeypatch.setattr(campaign.Campaign, "config", config)
    monkeypatch.setattr(campaign, "SPEED_ROW", ("bijection", "mlp"))
    made = campaign.Campaign(tmp_path, campaign.REHEARSAL, Plan(tmp_path, jobs=2), "cuda", Console())
    found = {(one["per_gpu"], one["precision"]): one for one in made.measure_speed()}
    assert planned == [(3, 1, 1), (2, 2, 1), (4, 4, 1), (8, 8, 1)]
    assert found[1, "fp32"]["steps_per_second"] == pytest.approx(100)
    assert found[8, "fp32"]["ratio"] == pytest.approx(4)
    assert found[1, "tf32"]["ratio"] == pytest.approx(2)
    assert (1, "bf16") not in found
    assert made.problems == ["speed: 1 in a process, bf16: no bf16"]
    assert (
        "8 in a process, fp32: 400.0 steps a second, 4.00 times one run in fp32" in (tmp_path / "log.txt").read_text()
    )


def test_the_readme_estimates_the_hours_from_the_preset_and_two_times_of_a_step():
    import re

    text = " ".join((Path(__file__).resolve().parent.parent / "README.md").read_text().split())
    told = re.search(
        r"([\d.]+) to ([\d.]+) hours on one GPU, for (\d+) runs of ([\d,]+) steps at (\d+) to (\d+) ms", text
    )
    assert told, "README gives no estimate"
    runs, steps = len(ROWS) * 3, compose("paper", "mlp", "hmm", 0, "cpu", {}).steps
    assert (int(told[3]), int(told[4].replace(",", ""))) == (runs, steps)
    for hours, milliseconds in ((told[1], told[5]), (told[2], told[6])):
        assert float(hours) == pytest.approx(runs * steps * float(milliseconds) / 3.6e6, rel=0.05)


def test_hours_take_the_first_runs_that_fit():
    cost = {"a": 3.0, "b": 5.0, "c": 1.0}
    assert campaign.fit_into(list(cost), cost.get, None) == ["a", "b", "c"]
    assert campaign.fit_into(list(cost), cost.get, 4.5) == ["a", "c"]
    assert campaign.fit_into(list(cost), cost.get, 0.0) == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "bench: there is no CUDA device. Try the command on the CPU with --rehearse\n"),
        (("--rehearse", "--seeds", "0"), "bench: --seeds must be at least 1, not 0\n"),
        (("--rehearse", "--hours", "-1"), "bench: --hours must be at least 0, not -1\n"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, monkeypatch, capsys, words, told):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["gpu", "--out", str(tmp_path / "gpu"), *words]) == 2
    assert capsys.readouterr().err == told
    assert not (tmp_path / "gpu").exists()


def test_a_gpu_that_cannot_be_used_is_one_line_of_options_that_exist(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("bench.commands.gpu.gpu_problem", lambda: "CUDA does not start: reason")
    assert main(["gpu", "--out", str(tmp_path / "gpu")]) == 2
    told = "bench: CUDA does not start: reason. Try the command on the CPU with --rehearse\n"
    assert capsys.readouterr().err == told


def test_names_and_links_of_an_archive_are_never_followed(archive, tmp_path, monkeypatch):
    """The record is good and its name is not: it goes to its own place, and nothing is written elsewhere."""
    name, text = record_in(archive)
    members = [("../../../evil.json", text), ("/tmp/evil.safetensors", b"no weights of anything")]
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE):
        odd = tarfile.TarInfo(f"odd{kind}.json")
        odd.type, odd.linkname = kind, "/etc/passwd"
        members.append((odd, b""))
    box = tmp_path / "box"
    box.mkdir()
    packed(box / "sent.tar", members)
    added, refused = archives.add(box / "sent.tar", box / "runs", [])
    assert not refused
    (written,) = added
    assert sorted(path.name for path in box.rglob("*") if path.is_file()) == sorted([Path(name).name, "sent.tar"])
    assert written == box / "runs/self-reported/hmm/mlp-pointwise" / Path(name).name
    assert not (tmp_path / "evil.json").exists()


def test_forged_members_are_each_refused_and_the_good_one_is_added(archive, tmp_path):
    _, text = record_in(archive)
    forged = {**json.loads(text), "id": "../../../etc/x"}
    members = [("forged\n\x1b[2J.json", json.dumps(forged).encode()), ("good.json", text), ("twice.json", text)]
    members += [("deep.json", b"[" * 100_000), ("facts.json", b"{}"), ("torn.json", text[:100])]
    added, refused = archives.add(packed(tmp_path / "sent.tar", members), tmp_path / "runs", [])
    assert len(added) == 1
    told = {path.name: reason for path, reason in refused}
    assert "does not belong to its config" in told["forged??[2J.json"]
    assert "the same run" in told["twice.json"]
    assert len(told) == 2
    assert not list((tmp_path / "runs").rglob("*.safetensors"))


def test_sizes_are_limited_and_nothing_is_unpacked(archive, tmp_path, monkeypatch):
    """A member that is too large is not read, an archive with too many is refused, and so is a compressed one."""
    name, text = record_in(archive)
    one = packed(tmp_path / "one.tar", [(name, text)])
    compressed, torn = tmp_path / "small.tar", tmp_path / "torn.tar"
    with tarfile.open(compressed, "w:gz") as tar:
        tar.add(one)
    torn.write_bytes(one.read_bytes()[:700])
    for path in (compressed, torn):
        added, ((_, reason),) = archives.add(path, tmp_path / "runs", [])
        assert not added
        assert "not a tar archive" in reason
    monkeypatch.setattr(archives, "MAX_MEMBERS", 0)
    assert "more than 0 members" in archives.add(one, tmp_path / "runs", [])[1][0][1]
    monkeypatch.setattr(archives, "MAX_MEMBERS", 10)
    monkeypatch.setattr(archives, "MAX_BYTES", len(text) - 1)
    assert archives.add(one, tmp_path / "runs", []) == ({}, [])
    assert not (tmp_path / "runs").exists()

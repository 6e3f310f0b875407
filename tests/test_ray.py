"""Many machines: a real Ray cluster of several nodes, one of which is lost on the way."""

import contextlib
import json
import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from rich.console import Console
from test_checkpoint import result

from bench.cli import main
from bench.device import cores
from bench.engine.dispatch import run_all
from bench.engine.events import read_events
from bench.engine.plan import Plan
from bench.run.keeper import Pace

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # on Linux too: 127.0.0.1 stays what it is
ray = pytest.importorskip("ray")
HERE = {"node_ip_address": "127.0.0.1", "object_store_memory": 80_000_000}


@pytest.fixture(scope="module")
def cluster():
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **HERE})
    yield made
    ray.shutdown()
    made.shutdown()


def events(out):
    return [event for path in out.rglob("*.events.jsonl") for event, _ in read_events(path)]


def children(parent):
    """Process ids below one, from /proc: a line is `pid (name) state parent ...`."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        if int(fields[1]) == parent:
            found.append(int(stat.parent.name))
    return found


def signal_all(pids, number):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def test_a_grid_survives_the_loss_of_a_node_and_equals_the_local_one(smoke, cluster, tmp_path):
    """Twelve runs on two nodes; one node is killed when a run is under way on each and has checkpoints."""
    few = {"layers": 1, "width": 16, "horizons": (20,), "sequences": 16, "steps": 240}
    configs = [
        smoke(arch=arch, task=task, seed=seed, **few)
        for arch in ("mlp-pointwise", "transformer")
        for task in ("bijection", "hmm")
        for seed in range(3)
    ]
    assert len({config.id() for config in configs}) == 12
    nodes = [cluster.add_node(num_cpus=1, **HERE) for _ in range(2)]
    out = tmp_path / "ray"
    lost_with = []

    def under_way():
        """Runs with two checkpoints and no record yet, once some runs are done."""
        done = {path.stem for path in out.rglob("*.json")}
        kept = {path.name.partition(".")[0] for path in out.rglob("*.checkpoint-b.safetensors")}
        return kept - done if 1 <= len(done) <= 9 else set()

    def kill_a_node():
        """As a power cut would: its workers are frozen first, so that none can finish its run while it is killed."""
        while not lost_with:
            workers = children(nodes[0].all_processes["raylet"][0].process.pid) if len(under_way()) == 2 else []
            signal_all(workers, signal.SIGSTOP)
            if workers and len(under_way()) == 2:  # still: one is on each node, and this node's will not go on
                lost_with.append(under_way())
                cluster.remove_node(nodes[0], allow_graceful=False)
                signal_all(workers, signal.SIGKILL)
            else:
                signal_all(workers, signal.SIGCONT)
            time.sleep(0.01)

    killer = threading.Thread(target=kill_a_node, daemon=True)
    killer.start()
    plan = Plan(out, jobs=12, engine="ray", address=cluster.address, pace=Pace(steps=20, spare=0.0))
    records = run_all(configs, plan, Console())
    assert lost_with
    killer.join()
    assert [record.status for record in records] == ["ok"] * 12
    kinds = Counter(event["event"] for event in events(out))
    assert kinds["finished"] == 12  # none was run twice to its end
    assert kinds["started"] > 12  # some were started again
    assert kinds["continued"] >= 1  # and not from the beginning
    local = run_all(configs, Plan(tmp_path / "local", jobs=cores()), Console(quiet=True))  # one thread a run, as on Ray
    assert [result(record) for record in records] == [result(record) for record in local]
    assert {p.name for p in out.rglob("*.json")} == {p.name for p in (tmp_path / "local").rglob("*.json")}
    cluster.remove_node(nodes[1])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_cancels_and_the_same_command_goes_on(smoke, cluster, tmp_path, number, code):
    node = cluster.add_node(num_cpus=1, **HERE)
    words = ["run", "--arch", "mlp-pointwise", "--task", "bijection", "--preset", "smoke", "--out", str(tmp_path)]
    words += ["--set", "steps=1000", "sequences=16", "horizons=20", "--engine", "ray", "--address", cluster.address]

    def interrupt():
        while not any(event["event"] == "step" for event in events(tmp_path)):
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    threading.Thread(target=interrupt, daemon=True).start()
    assert main(words) == code
    assert list(tmp_path.rglob("*.json")) == []
    stopped = [event["step"] for event in events(tmp_path) if event["event"] == "stopped"]
    assert len(stopped) == 1
    assert len(list(tmp_path.rglob("*.checkpoint-a.safetensors"))) == 1
    assert main(words) == 0
    continued = [event for event in events(tmp_path) if event["event"] == "continued"]
    assert f"at step {stopped[0]} of 1000" in continued[0]["text"]
    assert json.loads(next(tmp_path.rglob("*.json")).read_text())["status"] == "ok"
    cluster.remove_node(node)


def test_what_no_machine_has_is_refused_in_one_line(cluster, tmp_path, capsys):
    node = cluster.add_node(num_cpus=1, **HERE)
    words = ["run", "--arch", "mlp", "--task", "hmm", "--preset", "smoke", "--out", str(tmp_path), "--engine", "ray"]
    assert main([*words, "--address", cluster.address, "--gpus-per-run", "0.5"]) == 2
    assert "no machine of the cluster has room for a run" in capsys.readouterr().err
    assert main([*words[:-2], "--gpus-per-run", "0.5"]) == 2
    assert "are for --engine ray" in capsys.readouterr().err
    cluster.remove_node(node)

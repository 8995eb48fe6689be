"""The same answers in every process: forked, spawned, a worker, on one core, under a quota."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import headfit as hf
from headfit._base import machine

PACKAGE = str(Path(hf.__file__).parents[1])

# The text of a module that the tests write, since another process must be able to import it.
WORK = '''
import hashlib
import numpy as np
import headfit as hf

A = hf.patterns.random_regular(300, 4, gamma=2.0, rng=0)
Q, K, V = np.random.default_rng(1).standard_normal((3, 300, 24))
MODULE = hf.SelfAttention(*np.random.default_rng(2).standard_normal((2, 48, 24)))
KEYS = hf.methods.KeyTable.random(300, 40, rng=3, dtype="float64")


def answers(threads=None):
    """Every kind of work, as (name, digest of all bits)."""
    t = {"num_threads": threads}
    learned = hf.fit(A, 11, leak=0.1, distortion=0.2, rng=4, **t)
    narrow = hf.fit(A, 13, leak=0.1, distortion=0.2, rng=4, dtype="bfloat16", **t)
    exact = hf.fit(A, method=hf.methods.MaxMargin(keys=KEYS), dtype="float64", **t)
    sketch = hf.fit(A, 500, method="projection", leak=0.4, distortion=9.0, rng=5, **t)
    soft = hf.shrink(hf.Attention(Q, K), dim=6, effort=6, curve_dims=(), **t)
    kept = hf.sparsify(3 * Q, K, per_row=5, per_column=9, exempt_columns="auto", **t)
    stats = hf.attention_stats(Q, K, shares=(0.5, 0.9), **t)
    top = hf.attention_topk(Q[None], K[None], 7, **t)
    parts = {
        "learned": (learned.Q, learned.K, learned.X, learned.certificate.row_leak),
        "bfloat16": (narrow.Q, narrow.K, narrow.certificate.row_leak),
        "max-margin": (exact.Q, exact.K, exact.certificate.row_distortion),
        "projection": (sketch.Q, sketch.K, sketch.certificate.row_tv),
        "soft": (soft.Q, soft.K, np.float64(soft.comparison.tv_mean)),
        "sparsify": (kept.matrix.data, kept.matrix.indices, kept.dropped_mass),
        "stats": (stats.entropy, stats.log_sum, stats.max_weight, stats.keys_for_share),
        "topk": top,
        "matrix": (hf.attention_matrix(np.float32(Q), np.float32(K), mask="causal", **t),),
        "apply": (hf.attention_apply(Q, K, V, **t),),
        "describe": (np.frombuffer(str(hf.describe(Q, K, **t).columns()).encode(), "u1"),),
        "target": [getattr(hf.Target(A, **t).core, x) for x in ("offsets", "columns", "weights")],
        "module": (MODULE.input_for(Q, K),),
        "lower bound": (np.int64(hf.bounds.lower(A).dim),),
    }
    for name, head in {"learned": learned, "bfloat16": narrow, "max-margin": exact}.items():
        assert head.certificate.holds, (name, head.certificate)
    found = {}
    for name, arrays in parts.items():
        bits = b"".join(np.asarray(x).tobytes() for x in arrays)
        found[name] = hashlib.sha256(bits).hexdigest()
    return found


def digest(_=None):
    return sorted(answers().items())
'''

WAYS = {
    "fork": """
        import multiprocessing, warnings
        import work
        work.digest()  # threads were at work before
        warnings.simplefilter("ignore", DeprecationWarning)  # NumPy's threads are there still
        with multiprocessing.get_context("fork").Pool(2) as pool:
            print(*pool.map(work.digest, range(2)), sep="\\n")
    """,
    "fork while threads are at work": """
        import os, threading, warnings
        import work
        warnings.simplefilter("ignore", DeprecationWarning)
        done = threading.Event()
        def forever():
            while not done.is_set():
                work.hf.certify(work.A, work.Q, work.K, num_threads=3)
                work.hf.fit(work.A, 4, method=work.hf.methods.Learned(effort=50), num_threads=3)
        other = threading.Thread(target=forever)
        other.start()
        for _ in range(3):
            if (child := os.fork()) == 0:
                print(work.digest(), flush=True)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        done.set()
        other.join()
    """,
    "spawn": """
        import multiprocessing
        import work
        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(*pool.map(work.digest, range(2)), sep="\\n")
    """,
    "joblib": """
        import joblib
        import work
        for found in joblib.Parallel(n_jobs=2)(joblib.delayed(work.digest)() for _ in range(2)):
            print(found)
    """,
    "joblib's threads": """
        import joblib
        import work
        jobs = (joblib.delayed(work.digest)() for _ in range(3))
        for found in joblib.Parallel(n_jobs=4, prefer="threads")(jobs):
            print(found)
    """,
    "torch": """
        import torch.utils.data, warnings
        import work
        warnings.simplefilter("ignore", DeprecationWarning)
        class Heads(torch.utils.data.Dataset):
            def __len__(self):
                return 2
            def __getitem__(self, place):
                return str(work.digest())
        loader = torch.utils.data.DataLoader(Heads(), batch_size=None, num_workers=2)
        for found in loader:
            print(found)
    """,
    "one core": """
        import os
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        import work
        assert work.hf.show_config().threads == 1
        print(work.digest())
    """,
    "a core more than at import": """
        import os
        cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(cores)})
        import work
        os.sched_setaffinity(0, cores)
        print(work.digest())
    """,
}


def run(folder: Path, code: str) -> list[str]:
    (folder / "work.py").write_text(WORK)
    lines = code.splitlines()
    indent = min(len(line) - len(line.lstrip()) for line in lines if line.strip())
    (folder / "main.py").write_text("\n".join(line[indent:] for line in lines))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([PACKAGE, str(folder)])}
    done = subprocess.run(
        [sys.executable, "main.py"],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    (answer,) = run(tmp_path_factory.mktemp("alone"), "import work; print(work.digest())")
    return answer


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="forks, affinities")
@pytest.mark.parametrize("way", WAYS)
def test_every_process_gets_the_same_bits(way: str, tmp_path: Path, expected: str) -> None:
    for library in ("joblib", "torch"):
        if way.startswith(library):
            pytest.importorskip(library)
    found = run(tmp_path, WAYS[way])
    assert found
    assert set(found) == {expected}


@pytest.mark.full
def test_every_number_of_threads_gives_the_same_bits(tmp_path: Path, expected: str) -> None:
    code = """
        import work
        for threads in (1, 2, 3, 8):
            print(sorted(work.answers(threads).items()))
    """
    assert run(tmp_path, code) == [expected] * 4


# Quotas -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, None),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "200000 100000\n"}, 2),
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "1000 100000\n"}, 1),
        ({"a/cpu.max": "300000 100000\n", "a/b/cpu.max": "max 100000\n"}, 3),
        ({"a/cpu.max": "300000 100000\n", "a/b/cpu.max": "700000 100000\n"}, 3),
        ({"other/cpu.max": "100000 100000\n"}, None),
        ({"cpu.max": ""}, None),
        ({"cpu.max": "0 0\n"}, None),
        ({"cpu.max": "nonsense\n"}, None),
    ],
)
def test_quotas_of_control_groups(
    files: dict[str, str], cores: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    groups = tmp_path / "cgroup"
    groups.write_text("0::/a/b\n")
    monkeypatch.setattr(machine, "CGROUPS", tmp_path)
    monkeypatch.setattr(machine, "GROUPS_OF_PROCESS", groups)
    machine.cores_of_quota.cache_clear()
    try:
        assert machine.cores_of_quota() == (2**15 if cores is None else cores)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
        assert machine.available_cores() == (64 if cores is None else cores)
        assert hf.show_config().threads == machine.available_cores()
        np.testing.assert_array_equal(
            hf.attention_matrix(np.eye(3), np.eye(3)),
            hf.attention_matrix(np.eye(3), np.eye(3), num_threads=1),
        )
    finally:
        machine.cores_of_quota.cache_clear()


def test_without_control_groups_there_is_no_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "GROUPS_OF_PROCESS", tmp_path / "absent")
    machine.cores_of_quota.cache_clear()
    try:
        assert machine.cores_of_quota() == 2**15
    finally:
        machine.cores_of_quota.cache_clear()

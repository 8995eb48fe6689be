"""`benchmarks/answers.py`: what is recorded is the same again, and what differs is found."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

PLACE = Path(__file__).parents[2] / "benchmarks" / "answers.py"


@pytest.fixture(scope="module")
def answers():
    spec = importlib.util.spec_from_file_location("benchmarks_answers", PLACE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


CASES = [
    "fit: learned, 12", "fit: max-margin, max_norm", "fit: learned, bfloat16",
    "certify: matrix", "read: heads", "sparsify: mass", "pattern: bigbird", "bound: weights",
    "dense: soft, low", "dense: compress, softcap", "also: rope, 4", "also: files",
]  # fmt: skip


def test_answers_are_the_same_again_whatever_the_threads(answers, tmp_path, monkeypatch):
    every = answers.all_cases()
    assert len(every) > 200
    cases = {name: every[name] for name in CASES}
    file = tmp_path / "answers.npz"
    count = answers.record(file, cases)
    level, old = answers.read(file, cases)
    assert level == answers.cpu_level()
    assert len(old) == count > 100
    monkeypatch.setattr(answers, "THREADS", 2)
    assert answers.differences(old, answers.computed(cases)) == []


def test_differences_are_found(answers):
    case = {"bound: closed forms": answers.all_cases()["bound: closed forms"]}
    old = answers.computed(case)
    name = "bound: closed forms | range"
    moved = {**old, name: np.nextafter(old[name], np.inf)}
    assert answers.differences(old, moved)[0].startswith(f"{name}: 2 of 2 numbers, by ")
    assert answers.differences(old, {**old, "a | b": np.array(1)}) == ["a | b: not recorded"]
    assert answers.differences({**old, "a | b": np.array(1)}, old) == ["a | b: no longer there"]
    for loss, same in [(1 + 1e-8, True), (1 + 1e-5, False), (np.nan, False)]:
        lines = answers.differences({"a | ~kl": np.array(1.0)}, {"a | ~kl": np.array(loss)})
        assert (lines == []) == same
    assert answers.differences({"a | x": np.array("yes")}, {"a | x": np.array("no")}) == [
        "a | x: yes -> no"
    ]
    assert answers.differences({"a | x": np.zeros(2)}, {"a | x": np.zeros(2, np.float32)}) == [
        "a | x: dtype float64 -> float32"
    ]


def test_a_case_that_fails_is_not_recorded(answers, tmp_path):
    with pytest.raises(SystemExit, match="broken"):
        answers.record(tmp_path / "a.npz", {"broken": lambda: {"x": 1 / 0}})


def test_the_command(answers, tmp_path, capsys):
    file = str(tmp_path / "answers.npz")
    assert answers.main(["record", file, "--only", "bound: [bw]*"]) == 0
    assert answers.main(["compare", file, "--only", "bound: [bw]*", "--threads", "2"]) == 0
    assert "0 of " in capsys.readouterr().out
    assert answers.main(["compare", file, "--only", "bound: *"]) == 1

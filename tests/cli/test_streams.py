"""Files of commands: standard input and output, and what is never replaced unasked."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from scipy import sparse
from tests.cli.refusals import bad

import headfit as hf
from headfit import cli


@pytest.fixture
def run(tmp_path, monkeypatch, capsysbinary):
    """Run a command in an empty folder, with bytes as standard input."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object, stdin: bytes = b"") -> tuple[int, bytes, str]:
        capsysbinary.readouterr()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        status = cli.main([str(argument) for argument in arguments])
        said = capsysbinary.readouterr()
        return status, said.out, said.err.decode()

    return call


def target_of(raw: bytes) -> np.ndarray:
    return sparse.load_npz(io.BytesIO(raw)).toarray()


# Standard output


def test_a_pattern_goes_to_standard_output(run):
    status, out, err = run("pattern", "band", 9, 1, "-o", "-")
    assert status == 0
    assert err.startswith("-: Target(n=9")
    np.testing.assert_array_equal(target_of(out), hf.patterns.band(9, 1).toarray())
    assert not os.listdir()


def test_a_head_goes_to_standard_output_and_its_text_to_stderr(run):
    matrix = run("pattern", "band", 9, 1, "-o", "-")[1]
    status, out, err = run("fit", "-", "--dim", 4, "--num-threads", 1, "-o", "-", stdin=matrix)
    assert status == 0
    assert err.startswith("Certificate: holds")
    Path("head.npz").write_bytes(out)
    assert hf.load("head.npz").certificate.holds
    status, said, err = run("info", "-", stdin=out)
    assert (status, err) == (0, "")
    assert said.startswith(b"standard input: Fit(learned, n=9, dim=4")


def test_a_picture_goes_to_standard_output(run):
    run("pattern", "band", 9, 1, "-o", "A.npz")
    assert run("plot", "A.npz", "-o", "-")[1].startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("pattern band 9 1 -o - --json", "--json and the output - both take standard output"),
        ("plan A.npz --plot -  --json", "--json and the output -"),
        ("shrink A.npz -o - --plot -", "only one output can be -"),
    ],
)
def test_what_does_not_go_together_is_refused(line, words, run):
    run("pattern", "band", 9, 1, "-o", "A.npz")
    before = os.listdir()
    bad(run(*line.split()), words)
    assert os.listdir() == before


# Standard input


def test_each_format_is_told_by_its_first_bytes(run):
    A = hf.patterns.band(9, 1)
    text, binary = io.BytesIO(), io.BytesIO()
    scipy.io.mmwrite(text, A)
    sparse.save_npz(binary, A)
    for raw in (text.getvalue(), binary.getvalue()):
        status, out, err = run("info", "-", stdin=raw)
        assert (status, err) == (0, "")
        assert b"standard input: Target(n=9" in out
    points = io.BytesIO()
    np.save(points, np.random.default_rng(0).standard_normal((12, 2)))
    assert run("pattern", "knn", "-", 3, "-o", "knn.npz", stdin=points.getvalue())[0] == 0
    assert run("pattern", "induction", "-", "-o", "words.npz", stdin=b"a b a b")[0] == 0
    np.testing.assert_array_equal(
        hf.Target("words.npz").matrix.toarray(), hf.patterns.induction(list("abab")).toarray()
    )


def test_a_head_in_safetensors_is_told_too(run):
    pytest.importorskip("safetensors")
    run("pattern", "band", 9, 1, "-o", "A.npz")
    run("fit", "A.npz", "--dim", 4, "-o", "head.safetensors")
    raw = Path("head.safetensors").read_bytes()
    assert run("certify", "A.npz", "-", stdin=raw)[0] == 0


@pytest.mark.parametrize("raw", [b"", b"no matrix", b"PK no archive", b"%%MatrixMarket no"])
def test_standard_input_that_is_no_target_is_named(raw, run):
    bad(run("info", "-", stdin=raw), "standard input ")


def test_standard_input_is_read_once(run):
    raw = run("pattern", "band", 9, 1, "-o", "-")[1]
    run("fit", "-", "--dim", 4, "-o", "head.npz", stdin=raw)
    bad(run("certify", "-", "-", stdin=Path("head.npz").read_bytes()), "only one input can be -")


# Terminals and pipes


def on_terminal(line: str, stream: int, folder: Path) -> subprocess.CompletedProcess[bytes]:
    """Run a command with a terminal as standard input (0) or output (1)."""
    leader, follower = pty.openpty()
    code = f"import sys; from headfit.cli import main; sys.exit(main({line.split()!r}))"
    given = {0: {"stdin": follower, "stdout": subprocess.PIPE}, 1: {"stdout": follower}}[stream]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, stderr=subprocess.PIPE, check=False, **given
    )
    os.close(follower)
    os.close(leader)
    return done


@pytest.mark.full
def test_binary_output_is_never_written_to_a_terminal(tmp_path):
    done = on_terminal("pattern band 9 1 -o -", 1, tmp_path)
    assert done.returncode == 2
    assert b"standard output is a terminal" in done.stderr


def test_a_terminal_is_not_waited_for(tmp_path):
    done = on_terminal("info -", 0, tmp_path)
    assert done.returncode == 2
    assert b"standard input is a terminal" in done.stderr


def test_a_closed_pipe_is_quiet(tmp_path):
    code = (
        "import os; from headfit.cli import main\n"
        "read, write = os.pipe(); os.close(read); os.dup2(write, 1)\n"
        "main('pattern band 900 1 -o -'.split())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], stderr=subprocess.PIPE, check=True, cwd=tmp_path
    )
    assert done.stderr == b""


def test_no_copy_is_left_behind(run, monkeypatch, tmp_path):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    raw = run("pattern", "band", 9, 1, "-o", "-")[1]
    bad(run("fit", "-", "--dim", 0, "-o", "head.npz", stdin=raw), "dim")
    assert not os.listdir(folder)


# Files that exist


@pytest.mark.parametrize(
    "line",
    [
        "pattern band 9 1 -o X.npz",
        "fit A.npz --dim 4 -o X.npz",
        "plan A.npz --dim 4 --plot X.svg",
        "demo --plot X.svg",
        "shrink head.npz --dim 2 -o X.npz",
        "shrink head.npz --dim 2 -o small.npz --plot X.svg",
        "compress passages.npz --dim 2 -o X.npz",
        "index passages.npz --keys 5 --window 2 --first 1 --dim 2 -o X.npz",
        "plot A.npz -o X.svg",
    ],
)
def test_a_file_is_replaced_only_when_asked(line, run):
    sparse.save_npz("A.npz", hf.patterns.band(9, 1))
    for name in ("X.npz", "X.svg"):
        Path(name).write_bytes(b"mine")
    bad(run(*line.split()), "X.", "exists already: --force replaces it")
    assert Path("X.npz").read_bytes() == Path("X.svg").read_bytes() == b"mine"
    if line.split()[0] in ("pattern", "fit", "plot"):
        assert run(*line.split(), "--force")[0] == 0
        assert {Path(name).read_bytes() for name in ("X.npz", "X.svg")} != {b"mine"}


# Progress and threads


def test_progress_may_be_asked_for_where_no_terminal_is(run):
    sparse.save_npz("A.npz", hf.patterns.band(9, 1))
    line = ("fit", "A.npz", "--dim", 4, "--num-threads", 1, "--force", "-o", "head.npz")
    assert run(*line)[2] == ""
    assert run(*line, "--no-progress")[2] == ""
    said = run(*line, "--progress")[2].splitlines()
    assert said == ["headfit: fitting n = 9 ...", "headfit: writing head.npz ..."]


@pytest.mark.parametrize("command", ["fit A.npz --dim 4 -o x.npz", "certify A.npz head.npz",
                                     "plan A.npz --dim 4", "demo", "describe head.npz",
                                     "shrink head.npz --dim 2 -o x.npz"])  # fmt: skip
def test_threads_are_checked(command, run):
    sparse.save_npz("A.npz", hf.patterns.band(9, 1))
    hf.fit("A.npz", 4, num_threads=1).save("head.npz")
    bad(run(*command.split(), "--num-threads", 0), "num_threads must lie in 1")
    bad(run(*command.split(), "--num-threads", "x"), "--num-threads")


def test_a_stream_may_lack_letters_of_a_name(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "headfit.cli", "pattern", "band", "8", "1", "-o", "é.npz"]
    made = subprocess.run(words, cwd=tmp_path, env={**os.environ, "PYTHONIOENCODING": "ascii"},
                          capture_output=True, check=True)  # fmt: skip
    assert made.stdout.startswith(rb"\xe9.npz: Target(n=8")
    assert (tmp_path / "é.npz").is_file()


def test_closed_streams(tmp_path: Path) -> None:
    out = tmp_path / "band.npz"
    words = [sys.executable, "-m", "headfit.cli", "pattern", "band", "8", "1", "-o"]
    subprocess.run(["sh", "-c", '"$@" 2>&-', "sh", *words, str(out)], check=True)
    assert out.exists()
    subprocess.run(["sh", "-c", '"$@" --force >&-', "sh", *words, str(out)], check=True)
    refused = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *words, "-"], stderr=subprocess.PIPE, check=False
    )
    assert refused.returncode == 2
    assert b"closed" in refused.stderr

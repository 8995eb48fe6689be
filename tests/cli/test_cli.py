"""The command line: what it prints, which files it writes, its exit status."""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import pty
import re
import subprocess
import sys
import zipfile
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from scipy import sparse
from tests.cli.refusals import bad

import headfit as hf
from headfit import cli
from headfit._cli.fitting import options_of_kind

LOOSE = ("--leak", "0.3", "--distortion", "2")


@pytest.fixture
def head(run):
    """Make A.npz and head.npz, a head that is certified for it."""
    assert run("pattern", "random_regular", 48, 3, "-o", "A.npz")[0] == 0
    assert run("fit", "A.npz", "--dim", 1024, *LOOSE, "-o", "head.npz")[0] == 0
    return Path("head.npz")


# Patterns


FILES = {"from_graph": "graph.mtx", "from_mask": "mask.npy", "induction": "text.txt",
         "knn": "points.npy"}  # fmt: skip


@pytest.mark.parametrize("kind", sorted(hf.patterns.__all__))
def test_every_pattern_has_a_command_with_its_parameters(kind, run):
    np.save("points.npy", np.random.default_rng(0).standard_normal((60, 3)))
    scipy.io.mmwrite("graph.mtx", sparse.csr_array(np.eye(5, k=1) + np.eye(5, k=-1)))
    np.save("mask.npy", np.tri(5, dtype=bool))
    Path("text.txt").write_text("a b a b", encoding="utf-8")
    parameters = inspect.signature(getattr(hf.patterns, kind)).parameters
    needed = [name for name, p in parameters.items() if p.default is p.empty]
    words = [FILES.get(kind, "8") if i == 0 else "2" for i in range(len(needed))]
    status, out, err = run("pattern", kind, *words, "-o", "A.npz")
    assert (status, err) == (0, "")
    assert out.startswith("A.npz: Target(n=")
    hf.Target("A.npz")
    said = run("pattern", kind, "--help")[1]
    for name in parameters.keys() - set(needed) - {"rng"}:
        assert f"--{name.replace('_', '-')}" in said


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("band 30 2 --boundary wrap", lambda p: p.band(30, 2, boundary="wrap")),
        ("circulant 30 -1 2", lambda p: p.circulant(30, [-1, 2])),
        ("strided 30 5 --no-causal", lambda p: p.strided(30, 5, causal=False)),
        ("butterfly 32 --stages 0 2", lambda p: p.butterfly(32, stages=[0, 2])),
        (
            "window_global 30 4 2 --stride 8 --no-causal",
            lambda p: p.window_global(30, 4, 2, stride=8, causal=False),
        ),
        ("tree 30 --arity 3 --self-loops", lambda p: p.tree(30, 3, self_loops=True)),
        (
            "random_regular 30 4 --gamma 2 --seed 7",
            lambda p: p.random_regular(30, 4, gamma=2.0, rng=7),
        ),
        (
            "induction letters.txt --by character --which all",
            lambda p: p.induction("abcab", which="all"),
        ),
        ("induction words.txt", lambda p: p.induction(["to", "be", "or", "not", "to", "be"])),
    ],
)
def test_patterns_are_those_of_python(arguments, expected, run):
    Path("letters.txt").write_text("abcab", encoding="utf-8")
    Path("words.txt").write_text("to be or not\nto be\n", encoding="utf-8")
    assert run("pattern", *arguments.split(), "-o", "A.npz")[0] == 0
    A, B = hf.Target("A.npz").matrix, expected(hf.patterns)
    np.testing.assert_array_equal(A.toarray(), B.toarray())


def test_masks_are_read_from_files_of_both_kinds(run):
    mask = np.tri(6, k=0, dtype=bool) & ~np.tri(6, k=-3, dtype=bool)
    np.save("dense.npy", np.where(mask, 0, -np.inf)[None])
    sparse.save_npz("sparse.npz", sparse.csr_array(mask))
    for name in ("dense.npy", "sparse.npz"):
        assert run("pattern", "from_mask", name, "-o", "A.npz", "--force")[0] == 0
        np.testing.assert_array_equal(
            hf.Target("A.npz").matrix.toarray(), hf.patterns.causal_band(6, 2).toarray()
        )
    bad(run("pattern", "from_mask", "absent.npy", "-o", "B.npz"), "mask", "absent.npy")
    np.save("text.npy", np.array(["a"]))
    bad(run("pattern", "from_mask", "text.npy", "-o", "B.npz"), "mask")


def test_a_pattern_may_be_a_matrix_market_file_and_json(run):
    status, out, err = run("pattern", "band", 20, 1, "--json", "-o", "A.mtx")
    assert (status, err) == (0, "")
    figures = json.loads(out)
    assert (figures["kind"], figures["n"], figures["per_row"]) == ("band", 20, 3)
    np.testing.assert_array_equal(
        hf.Target("A.mtx").matrix.toarray(), hf.patterns.band(20, 1).toarray()
    )


# From a pattern to a judged head


def test_info_describes_the_installation(run):
    status, out, err = run("info")
    assert (status, err) == (0, "")
    assert out.strip() == repr(hf.show_config())
    status, out, _ = run("info", "--json")
    assert status == 0
    figures = json.loads(out)
    assert figures["version"] == hf.__version__
    assert figures["numpy"] == np.__version__
    bad(run("info", "--normalize"), "--normalize needs the file of a target")


def test_fit_certify_and_info_agree(head, run):
    status, out, err = run("certify", "A.npz", head)
    assert (status, err) == (0, "")
    assert out.startswith("Certificate: holds")
    status, out, _ = run("certify", "A.npz", head, "--leak", "0.001")
    assert status == 1
    assert out.startswith("Certificate: FAILS")
    status, out, err = run("info", head)
    assert (status, err) == (0, "")
    assert "dim=1024" in out
    assert "not judged anew" in out
    status, out, _ = run("info", "A.npz")
    assert status == 0
    assert "n=48, nonzeros=144" in out


def test_bounds_of_a_pattern(run):
    run("pattern", "random_regular", 48, 3, "-o", "A.npz")
    status, out, err = run("bounds", "A.npz", "--max-norm", 4, "--time-limit", 1)
    assert (status, err) == (0, "")
    assert out.startswith("A.npz: d >= ")
    assert "scale max|q| max|k| <= 4" in out
    assert "queries and keys apart: d >= " in out
    options = ("--mask", "causal", "--max-logit", 4, "--masked-logits", "--time-limit", 1)
    run("pattern", "causal_band", 24, 2, "-o", "B.npz")
    status, out, err = run("bounds", "B.npz", *options, "--json")
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert (found["max_logit"], found["masked_logits"], found["max_norm"]) == (4, True, None)
    assert found["dim"] == max(c["dim"] or 1 for c in found["candidates"])
    status, out, err = run("bounds", "A.npz", "--max-norm", 1, "--time-limit", 1)
    assert "no size suffices" in out


def test_fit_that_does_not_hold_is_written_and_ends_with_1(run):
    run("pattern", "random_regular", 48, 3, "-o", "A.npz")
    status, out, _ = run("fit", "A.npz", "--dim", 16, "--method", "projection", "-o", "head.npz")
    assert status == 1
    assert "FAILS" in out
    assert not hf.load("head.npz").certificate.holds
    assert run("certify", "A.npz", "head.npz")[0] == 1


def test_json_is_one_strict_object_and_all_of_stdout(head, run):
    def refuse(text):
        raise AssertionError(f"{text} is no JSON")

    outputs = {}
    for name, arguments in {
        "fit": ("fit", "A.npz", "--dim", 1024, *LOOSE, "-o", "again.npz"),
        "certify": ("certify", "A.npz", head),
        "target": ("info", "A.npz"),
        "head": ("info", head),
    }.items():
        status, out, err = run(*arguments, "--json")
        assert (status, err) == (0, "")
        assert out.count("\n") == 1
        outputs[name] = json.loads(out, parse_constant=refuse)
    assert outputs["fit"]["certificate"]["holds"] is True
    assert outputs["certify"]["holds"] is True
    assert outputs["certify"]["leak"] == outputs["head"]["certificate"]["leak"]
    assert outputs["target"]["nonzeros"] == 144
    assert outputs["head"]["dim"] == 1024


def test_fit_searches_the_size_when_none_is_given(run):
    run("pattern", "permutation", 16, "-o", "A.npz")
    status, out, _ = run("fit", "A.npz", *LOOSE, "--method", "projection", "--json", "-o", "h.npz")
    figures = json.loads(out)
    assert status == 0
    assert figures["search"]["dim"] == figures["dim"] == hf.load("h.npz").dim


@pytest.mark.parametrize(
    ("text", "mask"),
    [("causal", "causal"), ("window:4", ("window", 4)), ("window:3,0", ("window", (3, 0)))],
)
def test_masks(text, mask, run):
    run("pattern", "causal_band", 32, 2, "-o", "A.npz")
    arguments = ("--dim", 1024, *LOOSE, "--mask", text, "--dtype", "float64", "--seed", 5)
    assert run("fit", "A.npz", *arguments, "-o", "head.npz")[0] == 0
    fit = hf.load("head.npz")
    assert (fit.mask, fit.dtype) == (mask, "float64")
    assert run("certify", "A.npz", "head.npz")[0] == 0


def test_one_module_from_a_file_serves_two_patterns(run):
    module = hf.SelfAttention.random(512, rng=0)
    np.savez("W.npz", W_Q=module.W_Q, W_K=module.W_K, scale=0.5)
    for i, kind in enumerate((("permutation", 24), ("permutation", 24, "--seed", 1))):
        assert run("pattern", *kind, "-o", "A.npz", "--force")[0] == 0
        status, out, _ = run("fit", "A.npz", "--module", "W.npz", *LOOSE, "-o", f"{i}.npz")
        assert status == 0, out
        fit = hf.load(f"{i}.npz")
        np.testing.assert_array_equal(fit.module.weights, module.weights)
        assert (fit.module.scale, fit.certificate.basis) == (0.5, "module")
    # A head carries its module.
    assert run("fit", "A.npz", "--module", "0.npz", *LOOSE, "-o", "2.npz")[0] == 0
    assert hf.load("2.npz").module.scale == 0.5


def test_certify_recomputes_a_module_head_from_its_input(run):
    module = hf.SelfAttention.random(512, rng=0)
    A = hf.patterns.permutation(24, rng=0)
    hf.fit(A, module=module, leak=0.3, distortion=2.0).save("head.npz")
    sparse.save_npz("A.npz", A)
    assert run("certify", "A.npz", "head.npz")[0] == 0
    with np.load("head.npz") as file:
        arrays = {name: file[name] for name in file.files}
    arrays["X"] = arrays["X"][::-1]  # Q, K and the stored certificate are unchanged
    np.savez("head.npz", **arrays)
    assert run("certify", "A.npz", "head.npz")[0] == 1


def test_normalize(run):
    sparse.save_npz("A.npz", 3 * hf.patterns.permutation(16, rng=0))
    bad(run("fit", "A.npz", "--dim", 512, *LOOSE, "-o", "h.npz"), "row 0")
    assert run("fit", "A.npz", "--normalize", "--dim", 512, *LOOSE, "-o", "h.npz")[0] == 0
    bad(run("certify", "A.npz", "h.npz"), "row 0")
    assert run("certify", "A.npz", "h.npz", "--normalize")[0] == 0
    assert run("info", "A.npz", "--normalize")[0] == 0
    bad(run("info", "h.npz", "--normalize"), "h.npz must hold a target; it holds a saved head")


# Bad input


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", ["COMMAND"]),
        ("fly", ["fly"]),
        ("certify no.npz head.npz", ["no.npz", "No such file"]),
        ("certify A.npz no.npz", ["no.npz", "No such file"]),
        ("certify B.npz head.npz", ["48", "20"]),
        ("certify A.npz A.npz", ["head: A.npz must hold a saved head; it holds a target"]),
        ("certify A.npz head.npz --leak 2", ["leak"]),
        ("certify A.npz cut.npz", ["zip"]),
        ("fit cut.npz --dim 8 -o h.npz", ["cut.npz"]),
        ("fit A.npz --dim 8", ["-o"]),
        ("fit A.npz --dim 0 -o h.npz", ["dim"]),
        ("fit A.npz --dim x -o h.npz", ["--dim", "x"]),
        ("fit A.npz --dim 8 -o no/h.npz", ["no folder no"]),
        ("fit A.npz --dim 8 -o .", ["folder"]),
        ("fit A.npz --dim 8 --mask round -o h.npz", ["round"]),
        ("fit A.npz --dim 8 --mask window:x -o h.npz", ["window", "x"]),
        ("fit A.npz --dim 8 --mask causal -o h.npz", ["row", "column"]),
        ("fit A.npz --dim 8 --method magic -o h.npz", ["magic"]),
        ("fit A.npz --module A.npz -o h.npz", ["W_Q"]),
        ("fit A.npz --module flat.npz -o h.npz", ["rank"]),
        ("fit A.npz --seed -1 -o h.npz", ["seed"]),
        ("info text.txt", ["text.txt"]),
        ("info .", ["."]),
        ("pattern", ["KIND"]),
        ("pattern star 9 -o C.npz", ["star"]),
        ("pattern band 9 -1 -o C.npz", ["neighbors"]),
        ("pattern band 9 1 --gamma 0.5 -o C.npz", ["gamma"]),
        ("pattern induction -o C.npz", ["FILE"]),
        ("pattern induction latin.txt -o C.npz", ["UTF-8"]),
        ("pattern knn A.npz 3 -o C.npz", ["A.npz", ".npy file"]),
        ("pattern knn text.txt 3 -o C.npz", ["text.txt"]),
        ("pattern from_graph no.mtx -o C.npz", ["graph: no.mtx"]),
        ("demo --plot demo.doc", [".png"]),
    ],
)
# numpy.load forgets to close a file that is no whole archive.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_bad_input_is_named_on_one_line(arguments, words, head, run):
    run("pattern", "band", 20, 1, "-o", "B.npz")
    Path("text.txt").write_text("not a matrix", encoding="utf-8")
    Path("latin.txt").write_bytes("déjà vu".encode("latin-1"))
    Path("cut.npz").write_bytes(head.read_bytes()[:2000])
    np.savez("flat.npz", W_Q=np.ones((8, 4)), W_K=np.ones((8, 4)))
    before = sorted(os.listdir())
    bad(run(*arguments.split()), *words)
    assert sorted(os.listdir()) == before


def test_a_damaged_head_is_bad_input(head, run):
    with zipfile.ZipFile(head) as archive:
        place = archive.getinfo("K.npy").header_offset
    content = bytearray(head.read_bytes())
    content[place + 2000 : place + 2040] = bytes(range(1, 41))
    head.write_bytes(content)
    bad(run("certify", "A.npz", head))


# Help, progress, interruption


@pytest.mark.parametrize("command", ["", *cli.COMMANDS])
def test_every_help_has_examples(command, run):
    status, out, err = run(*command.split(), "--help")
    assert (status, err) == (0, "")
    assert "examples:\n  headfit " in out
    assert "`" not in out


def test_the_help_of_every_option_says_what_it_is():
    commands = [getattr(import_module(f"headfit._cli.{m}"), name) for name, (m, _) in
                cli.COMMANDS.items() if name != "pattern"]  # fmt: skip
    options = [each for command in commands for each in command.options]
    options += [each for kind in hf.patterns.__all__ for each in options_of_kind(kind)]
    for each in options:
        about = each.settings["help"]
        assert len(about.split()) > 1, each.name
        assert not re.match("as in|see ", about), (each.name, about)
        assert about.count("(default") <= 1, (each.name, about)


def test_version(run):
    assert run("--version")[:2] == (0, f"headfit {hf.__version__}\n")


def test_interrupt_ends_quietly(head, run, monkeypatch):
    def interrupted(*arguments, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr("headfit.certify", interrupted)
    assert run("certify", "A.npz", head) == (130, "", "headfit: interrupted\n")


def _python(code: str, **more) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-c", code], check=True, **more)


def test_help_does_not_import_what_it_does_not_need():
    code = (
        "import sys; from headfit.cli import main; main(['--help'])\n"
        "late = {'numpy', 'scipy', 'matplotlib', 'torch', 'dask', 'tqdm'} & set(sys.modules)\n"
        "assert not late, late"
    )
    _python(code, stdout=subprocess.DEVNULL)


def test_progress_is_for_terminals_only(head):
    code = f"from headfit.cli import main; assert main(['certify', 'A.npz', '{head}']) == 0"
    leader, follower = pty.openpty()
    _python(code, stdout=subprocess.DEVNULL, stderr=follower)
    os.close(follower)
    shown = os.read(leader, 10_000)
    os.close(leader)
    assert b"certifying 48 x 48 entries" in shown
    assert shown.endswith(b"\r\x1b[2K")  # and cleared
    assert _python(code, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE).stderr == b""


def test_a_closed_pipe_is_no_traceback(head):
    code = (
        "import os, sys; from headfit.cli import main\n"
        "read, write = os.pipe(); os.close(read); os.dup2(write, 1)\n"
        f"assert main(['info', '{head}']) == 141"
    )
    assert _python(code, stderr=subprocess.PIPE).stderr == b""


# The demonstration


@pytest.fixture
def small_demo(monkeypatch):
    from headfit._cli import demo

    whole = demo.run_demo
    monkeypatch.setattr(demo, "run_demo", lambda **more: whole(n=24, dim=8, digits=False, **more))


@pytest.mark.full
@pytest.mark.usefixtures("small_demo")
def test_demo_prints_a_table_and_draws(run):
    status, out, err = run("demo", "--plot", "demo.png")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    for name in ("band", "random_regular", "permutation", "tree"):
        (line,) = (line for line in lines if line.split()[:1] == [name])
        assert line.split()[1] == "24"
        assert "certified" in line.split()
    assert "the same bytes" in out
    assert f"picture: {Path('demo.png').resolve()}" in out
    assert Path("demo.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("small_demo")
def test_demo_json_without_a_picture(run):
    status, out, err = run("demo", "--json", "--seed", 1)
    figures = json.loads(out)
    assert (status, err, out.count("\n"), figures["picture"]) == (0, "", 1, None)
    assert figures["untouched"] is True
    assert not os.listdir()


@pytest.mark.usefixtures("small_demo")
def test_demo_without_matplotlib_says_so_before_any_work(run, monkeypatch):
    from headfit._cli import demo

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(demo, "run_demo", None)
    bad(run("demo", "--plot", "demo.png"), "plots need Matplotlib")
    assert not os.listdir()


# Methods and formats


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--method max-margin --effort low", "--effort is no option of --method max-margin"),
        ("--method max-margin --reheats 9", "--reheats is no option of --method max-margin"),
        ("--method projection --max-norm 9", "--max-norm is no option of --method projection"),
        ("--keys cyclic", "--keys is no option of --method auto"),
        ("--method learned --sketch gaussian", "--sketch is no option of --method learned"),
        ("--method max-margin --factor svd", "--factor is no option of --method max-margin"),
    ],
)
def test_an_option_of_another_method_is_refused(run, line, words):
    run("pattern", "band", 16, 1, "-o", "A.npz")
    bad(run("fit", "A.npz", "--dim", 4, "-o", "head.npz", *line.split()), words)


@pytest.mark.parametrize(
    ("line", "method"),
    [
        ("--dim 4 --effort 400 --max-norm 900", hf.methods.Learned(effort=400, max_norm=900)),
        ("--dim 4 --effort 400 --reheats 9", hf.methods.Learned(effort=400, reheats=9)),
        ("--dim 4 --stages 3", hf.methods.Learned(stages=3)),
        (
            "--dim 12 --method max-margin --keys cyclic --form equality --dtype float64",
            hf.methods.MaxMargin(keys="cyclic", form="equality"),
        ),
        (
            "--dim 512 --method projection --sketch gaussian --factor svd",
            hf.methods.Projection(sketch="gaussian", factor="svd"),
        ),
    ],
)
def test_options_reach_their_method(run, line, method):
    run("pattern", "band", 16, 1, "-o", "A.npz")
    run("fit", "A.npz", "-o", "head.npz", *LOOSE, *line.split())
    head = hf.load("head.npz")
    again = hf.fit(
        "A.npz", head.dim, method=method, leak=0.3, distortion=2.0, dtype=head.dtype, rng=0
    )
    np.testing.assert_array_equal(head.Q, again.Q)
    np.testing.assert_array_equal(head.K, again.K)
    for name in {field.name for field in dataclasses.fields(method)} & again.settings.keys():
        assert head.settings[name] == again.settings[name], name


def test_heads_in_safetensors_files(run, monkeypatch):
    pytest.importorskip("safetensors")
    run("pattern", "band", 16, 1, "-o", "A.npz")
    fit = ("fit", "A.npz", "--dim", 4, "-o", "head.safetensors")
    assert run(*fit, "--max-logit", 50)[0] == 0
    assert run("certify", "A.npz", "head.safetensors")[0] == 0
    assert run("certify", "A.npz", "head.safetensors", "--max-logit", 0.1)[0] == 1
    assert "n=16, dim=4" in run("info", "head.safetensors")[1]
    assert run(*fit[:-1], "again.npz", "--module", "head.safetensors")[0] == 0
    monkeypatch.setitem(sys.modules, "safetensors", None)
    bad(run("certify", "A.npz", "head.safetensors"), "pip install 'headfit[safetensors]'")
    bad(run(*fit), "pip install 'headfit[safetensors]'")

"""`headfit describe`, `shrink`, `compress`, `index`, `selection` and `plot`: heads in files."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse
from tests.cli.refusals import bad

import headfit as hf
from headfit import cli

N, D = 24, 6


def queries_and_keys(*lead: int) -> dict[str, np.ndarray]:
    """Return heads that mostly attend to the token before."""
    rng = np.random.default_rng(0)
    place = np.arange(N)[:, None] / 20.0 ** (np.arange(D // 2) / 3)
    k = 3 * np.hstack([np.sin(place), np.cos(place)])
    noise = rng.normal(0, 0.2, (2, *lead, N, D))
    return {"Q": 1.5 * np.roll(k, 1, axis=0) + noise[0], "K": k + noise[1]}


@pytest.fixture
def run(run):
    np.savez("one.npz", **queries_and_keys())
    np.savez("heads.npz", **queries_and_keys(2, 3))
    sparse.save_npz("A.npz", hf.patterns.band(12, 1))

    def call(*words: object) -> tuple[int, str, str]:
        takes_threads = words[0] not in ("plot", "info")
        return run(*words, *(("--num-threads", 1) if takes_threads else ()))

    return call


# describe


def test_describe_measures_queries_and_keys(run):
    status, out, err = run("describe", "heads.npz", "--mask", "causal", "--per-row", 4)
    assert (status, err) == (0, "")
    expected = hf.describe(**queries_and_keys(2, 3), mask="causal", per_row=4)
    assert out == f"heads.npz: {expected}\n"
    figures = json.loads(run("describe", "heads.npz", "--mask", "causal", "--json")[1])
    assert figures["kind"] == "heads"
    assert len(figures["entropy"]) == 2


def test_describe_takes_options_from_the_file(run):
    arrays = queries_and_keys()
    np.savez("own.npz", **arrays, scale=0.5, mask=np.array("window:2,0"), softcap=30.0)
    _, out, _ = run("describe", "own.npz")
    expected = hf.describe(**arrays, scale=0.5, mask=("window", (2, 0)), softcap=30.0)
    assert out == f"own.npz: {expected}\n"
    bad(run("describe", "own.npz", "--scale", 1), "scale must not be given: the file holds one")


def test_describe_reads_saved_heads(run):
    head = hf.fit("A.npz", 4, num_threads=1)
    head.save("head.npz")
    _, out, _ = run("describe", "head.npz", "--share", 0.5)
    assert out == f"head.npz: {hf.describe(head, share=0.5)}\n"
    bad(run("describe", "head.npz", "--mask", "causal"), "mask")


@pytest.mark.parametrize("command", ["describe", "shrink --dim 2 -o x.npz"])
def test_a_target_has_no_queries_and_keys(command, run):
    line = command.split()
    bad(run(line[0], "A.npz", *line[1:]), "must hold Q and K or a saved head", "holds a target")


def test_describe_shows_captures_as_they_are(run):
    from headfit._attention.profile import HeadStatistics, Measures

    statistics = HeadStatistics(1, Measures(per_row=1))
    X = 8 * np.eye(16)
    statistics.add(hf.Attention(X[None], np.roll(X, -1, axis=0)[None]))
    table = hf.results.ModelTable.of({"layer": ("self", statistics)})
    table.save("model.npz")
    assert cli.main(["describe", "model.npz"]) == 0
    bad(run("describe", "model.npz"), "--num-threads must not be given")
    assert cli.main(["describe", "model.npz", "--mask", "causal"]) == 2


# shrink


def test_shrink_writes_a_smaller_head(run):
    status, out, err = run("shrink", "one.npz", "--mask", "causal", "--tv", 0.05, "-o", "s.npz")
    assert (status, err) == (0, "")
    assert out.startswith(f"s.npz: ShrinkResult(size {D} -> ")
    expected = hf.shrink(**queries_and_keys(), mask="causal", tv=0.05, curve_dims=())
    with np.load("s.npz") as made:
        np.testing.assert_array_equal(made["Q"], expected.Q)
        np.testing.assert_array_equal(made["K"], expected.K)
        assert (str(made["mask"]), float(made["scale"])) == ("causal", expected.scale)
    # The file has all that makes the smaller head's attention.
    assert run("describe", "s.npz")[1] == f"s.npz: {hf.describe(expected.attention)}\n"


def test_shrink_writes_a_mask_that_can_be_read(run):
    seen = np.tri(N, dtype=bool)
    target = sparse.csr_array(np.eye(N))
    hf.fit(target, 4, mask=sparse.csr_array(seen)).save("masked.npz")
    for line in (("one.npz", "--mask", "window:3,2"), ("one.npz", "--mask", "window:3")):
        assert run("shrink", *line, "--dim", 2, "-o", "s.npz", "--force")[0] == 0
        mask = ("window", (3, 2)) if "," in line[-1] else ("window", 3)
        small = hf.shrink(**queries_and_keys(), mask=mask, dim=2, curve_dims=())
        assert run("describe", "s.npz")[1] == f"s.npz: {hf.describe(small.attention)}\n"
    assert run("shrink", "masked.npz", "--dim", 2, "-o", "s.npz", "--force")[0] == 0
    assert run("describe", "s.npz")[0] == 0
    with np.load("s.npz") as made:
        np.testing.assert_array_equal(made["mask"], seen)


def test_shrink_of_one_of_several_heads_and_json(run):
    line = ("shrink", "heads.npz", "--head", "1,2", "--dim", 2, "-o", "s.npz", "--json")
    status, out, _ = run(*line, "--plot", "curve.svg")
    figures = json.loads(out)
    assert (status, figures["dim"], figures["original_dim"]) == (0, 2, D)
    assert figures["picture"] == "curve.svg"
    arrays = {name: x[1, 2] for name, x in queries_and_keys(2, 3).items()}
    assert figures["tv_mean"] == hf.shrink(**arrays, dim=2).tv_mean
    assert figures["curve"]["dim"] == [1, 2, 4, 6]
    assert "<svg" in Path("curve.svg").read_text(encoding="utf-8")


def test_shrink_that_is_not_close_enough_ends_with_1(run):
    rng = np.random.default_rng(0)
    np.savez("wild.npz", Q=4 * rng.normal(size=(N, D)), K=4 * rng.normal(size=(N, D)))
    line = ("--tv-worst", 1e-6, "--dtype", "bfloat16", "-o", "s.npz")
    status, out, _ = run("shrink", "wild.npz", *line)
    assert status == 1
    assert "NOT within the bounds" in out


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "shrink heads.npz -o s.npz",
            "--head must have one index for each of the axes (2, 3); got None",
        ),
        ("shrink heads.npz --head 1 -o s.npz", "--head must have one index for each"),
        ("shrink heads.npz --head 1,3 -o s.npz", "--head must have one index for each"),
        (
            "shrink heads.npz --head a -o s.npz",
            "index for each of the axes (2, 3); got a",
        ),
        ("shrink one.npz --dim 2 -o s.safetensors", "must end in .npz"),
        ("shrink one.npz --dim 99 -o s.npz", "dim must lie in 1"),
        ("shrink one.npz --dim 2 --tv 0.1 -o s.npz", "tv must not be given beside dim"),
        ("shrink A.npz -o s.npz", "must hold Q and K"),
        ("shrink odd.npz -o s.npz", "it holds colour"),
        ("shrink masked.npz -o s.npz", "mask must be None, "),
        ("shrink one.npz --position rose -o s.npz", "rose"),
        ("compress passages.npz --rotated alibi -o s.npz", "rotated must be a rotary position"),
        ("index passages.npz --rotated rope:0 -o s.npz", "rotated, which turns whole heads: the"),
        ("index passages.npz --rotated rope:x -o s.npz", "the base of rope must"),
        ("index passages.npz --rotated rope: -o s.npz", "the base of rope must"),
        ("compress one.npz --dim 2 -o s.npz", "passages"),
        ("compress passages.npz --dim 99 -o s.npz", "dim must"),
        ("compress heads.npz --dim 2 --tv 0.1 -o s.npz", "tv must not be given beside dim"),
        ("compress head.npz --dim 2 -o s.npz", "must hold Q and K; it holds a saved head"),
        ("compress number.npz --dim 2 -o s.npz", "passages must have"),
        ("compress heads.npz --dim 2 --held-out 2 -o s.npz", "held_out"),
        ("compress A.npz --dim 2 -o s.npz", "must hold Q and K"),
        ("compress heads.npz --dim 2 -o s.doc", "must end in .npz or .safetensors"),
        ("index one.npz --dim 2 -o s.npz", "passages must have"),
        ("index passages.npz --dim 2 --mass 0.9 -o s.npz", "dim must not be given beside mass"),
        ("index passages.npz --keys 8 -o s.npz", "keys must"),
        ("index passages.npz --length 99 -o s.npz", "length must go with rotary positions"),
        ("index head.npz --dim 2 -o s.npz", "must hold Q and K; it holds a saved head"),
    ],
)
def test_bad_input_is_named_on_one_line(line, words, run):
    np.savez("odd.npz", **queries_and_keys(), colour=1)
    np.savez("passages.npz", **queries_and_keys(4))
    np.savez("number.npz", Q=1.0, K=1.0)
    hf.fit("A.npz", 4, num_threads=1).save("head.npz")
    np.savez("masked.npz", **queries_and_keys(), mask=np.array("round"))
    bad(run(*line.split()), words)
    assert not Path("s.npz").exists()


# compress


def test_compress_writes_maps(run):
    np.savez("passages.npz", **queries_and_keys(8))
    line = ("compress", "passages.npz", "--mask", "causal", "--dim", 2)
    status, out, err = run(*line, "-o", "maps.npz")
    assert (status, err) == (0, "")
    assert out.startswith(f"maps.npz: Compressed(size {D} -> 2")
    arrays = queries_and_keys(8)
    expected = hf.compress(arrays["Q"], arrays["K"], mask="causal", dim=2, curve_dims=())
    with np.load("maps.npz") as made:
        assert set(made) == {"P_q", "P_k", "about"}
        np.testing.assert_array_equal(made["P_q"], expected.P_q)
        np.testing.assert_array_equal(made["P_k"], expected.P_k)
    figures = json.loads(run(*line, "-o", "again.npz", "--json")[1])
    assert figures["tv_mean"] == expected.tv_mean
    assert run(*line, "-o", "moved.npz", "--rotated", "rope-half:50", "--length", 50)[0] == 0
    moved = {"length": 50, "mask": "causal", "dim": 2, "curve_dims": ()}
    moved["rotated"] = ("rope-half", 50.0)
    with np.load("moved.npz") as made:
        expected = hf.compress(arrays["Q"], arrays["K"], **moved)
        np.testing.assert_array_equal(made["P_k"], expected.P_k)
    assert "P_q" not in figures
    bad(run("info", "maps.npz"), "it holds P_q, P_k, the maps of a compressed head")


# index


def test_index_writes_what_selection_reads(run):
    queries, keys = queries_and_keys(6, 2)["Q"], queries_and_keys(6)["K"]
    seen = np.arange(N) < np.array([N, N - 3, N, N, N - 1, N])[:, None]
    np.savez("passages.npz", Q=queries, K=keys, key_mask=seen)
    line = ["index", "passages.npz", "--mask", "causal", "--dim", 3, "--keys", 8, "--window", 2]
    line += ["--first", 1, "--effort", 3, "--rotated", "rope-half", "--length", 50]
    status, out, err = run(*line, "-o", "index.npz")
    passages = [
        hf.Attention(q, k, mask="causal", key_mask=own)
        for q, k, own in zip(queries, keys, seen, strict=True)
    ]
    own = {"dim": 3, "keys": 8, "window": 2, "first": 1, "effort": 3, "length": 50}
    expected = hf.index(passages, **own, rotated="rope-half", num_threads=1)
    assert (status, err) == (0, "")
    assert out.startswith("index.npz: Index(")
    found = hf.results.Index.load("index.npz")
    np.testing.assert_array_equal(found.P_k, expected.P_k)
    np.testing.assert_array_equal(found.P_q, expected.P_q)
    assert json.loads(run(*line, "-o", "x.safetensors", "--json")[1])["dim"] == 3
    np.savez("group.npz", Q=queries[0], K=keys[0])
    line = ("selection", "group.npz", "--index", "x.safetensors", "--mask", "causal")
    assert run(*line, "--mass", 0.01)[0] == 0
    bad(run(*line, "--scale", 0.3), "scale must be that of the passages")


def test_an_index_tells_where_it_does_not_reach_the_mass(run):
    np.savez("passages.npz", **queries_and_keys(6))
    line = ["index", "passages.npz", "--mask", "causal", "--keys", 8, "--window", 2, "--first", 1]
    line += ["--effort", 0, "--dtype", "int4", "-o", "index.npz", "--force", "--json"]
    for mass, reached in ((0.1, True), (0.9999999, False)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore" if not reached else "error")
            status, out, _ = run(*line, "--mass", mass)
        assert json.loads(out)["reached"] == reached
        assert hf.results.Index.load("index.npz").reached == reached
        assert status == (not reached)


# selection


@pytest.mark.parametrize("form", ["dot", "sum"])
def test_selection_certifies_what_an_index_selects(form, run):
    arrays = {"Q": queries_and_keys(2)["Q"], "K": queries_and_keys()["K"]}
    np.savez("group.npz", **arrays, mask=np.array("causal"))
    passage = hf.Attention(**arrays, mask="causal")
    own = {"dim": 3, "keys": 8, "window": 2, "first": 1, "effort": 2, "form": form}
    index = hf.index([passage] * 3, **own, num_threads=1)
    index.save("index.npz")
    line = ("selection", "group.npz", "--index", "index.npz", "--mass", 0.01)
    status, out, err = run(*line, "-o", "rows.npz")
    expected = index.certify(passage, mass=0.01)
    assert (status, err, out) == (0, "", f"group.npz: {expected}\n")
    with np.load("rows.npz") as rows:
        assert set(rows) == {"row_mass", "row_most", "row_status", "sure", "selected"}
        np.testing.assert_array_equal(rows["row_mass"], expected.row_mass)
    status, out, _ = run(*line[:-1], 0.9999, "--keys", 5, "--json")
    assert status == 1
    assert json.loads(out)["status"] == "fails"
    assert json.loads(out)["form"] == form
    bad(run("selection", "group.npz", "--index", "group.npz"), "group.npz")
    bad(run(*line, "--keys", 3), "keys must")
    bad(run("selection", "one.npz", "--index", "index.npz"), "Q must have 2 heads")
    hf.fit(hf.patterns.band(N, 1), D, rng=0).save("head.npz")
    bad(run("selection", "head.npz", "--index", "index.npz"), "Q must have 2 heads")


# plot


@pytest.mark.parametrize(
    "line",
    [
        "A.npz",
        "head.npz",
        "head.npz --kind search",
        "head.npz --kind attention",
        "head.npz --target A.npz",
        "head.npz --kind offsets",
        "one.npz --mask causal",
        "one.npz --kind offsets",
        "one.npz --target B.npz",
        "heads.npz --mask causal",
        "heads.npz --head 1,2 --scale 0.3",
    ],
)
def test_what_a_file_holds_is_drawn(line, run):
    sparse.save_npz("B.npz", hf.patterns.band(N, 1))
    hf.fit("A.npz", time_limit=1, leak=0.3, num_threads=1).save("head.npz")
    status, out, err = run("plot", *line.split(), "-o", "x.png")
    assert (status, err) == (0, "")
    assert out.rstrip().endswith("x.png")
    assert Path("x.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("A.npz --kind offsets", "heads must be a HeadTable, an Attention or a Fit; got Target"),
        ("A.npz --kind certificate", "must be a Certificate or a Fit; got Target"),
        ("A.npz --mask causal", "--mask is for a file with Q and K"),
        ("A.npz --head 1", "--head is for a file with Q and K"),
        ("one.npz --kind search", "fit must be one whose size was searched for"),
        ("one.npz --kind attention --target A.npz", "--kind must not be given beside --target"),
        ("one.npz --target A.npz", "A and M must have one shape"),
        ("heads.npz --kind attention", "--head must have one index for each of the axes (2, 3)"),
        ("heads.npz --target A.npz", "--head must have one index for each of the axes (2, 3)"),
        ("heads.npz --kind round", "round"),
        ("none.npz", "none.npz"),
        ("text.txt", "text.txt"),
    ],
)
def test_bad_plots_are_refused(line, words, run):
    Path("text.txt").write_text("no head", encoding="utf-8")
    bad(run("plot", *line.split(), "-o", "x.png"), words)
    assert not Path("x.png").exists()


def test_the_heaviest_entries_of_a_head_are_a_pattern_to_fit(tmp_path, capsys):
    rows = 3 * np.random.default_rng(0).normal(size=(2, 2, 24, 8))
    np.savez(tmp_path / "heads.npz", Q=rows[0], K=rows[1])
    files = [str(tmp_path / name) for name in ("heads.npz", "A.npz", "head.npz")]
    words = ["--head", "1", "--mask", "causal", "--per-row", "3"]
    assert cli.main(["sparsify", files[0], *words, "-o", files[1]]) == 0
    kept = hf.sparsify(rows[0, 1], rows[1, 1], mask="causal", per_row=3).matrix
    assert (hf.Target(files[1]).matrix != kept).nnz == 0
    assert cli.main(["fit", files[1], "--mask", "causal", "--dim", "12", "-o", files[2]]) == 0
    assert "holds for all" in capsys.readouterr().out

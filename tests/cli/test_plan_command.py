"""`headfit plan`: patterns by name and by file, what it prints, its exit status."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest
from scipy import sparse

import headfit as hf
from headfit._cli.command import value
from headfit._cli.fitting import function_of_n
from headfit.errors import InputError

QUICK = ("--time-limit", "4")


@pytest.fixture
def run(run):
    return partial(run, "plan")


def test_a_pattern_by_its_name(run, tmp_path):
    given = ("causal_band", "--n", 48, "--arg", "neighbors=1", "--mask", "causal", "--dim", 8)
    status, out, err = run(*given, *QUICK, "--plot", "plan.png")
    assert (status, err) == (0, "")
    assert out.startswith(
        "Yes: head size 8 in bfloat16 is enough for causal_band(neighbors=1) at n = 4"
    )
    assert out.rstrip().endswith("plan.png")
    assert (tmp_path / "plan.png").read_bytes()[:4] == b"\x89PNG"


def test_a_pattern_from_a_file_and_json(run):
    sparse.save_npz("A.npz", hf.patterns.band(32, 1))
    status, out, err = run("A.npz", "--dim", 1, "--dtype", "float32", "--json", *QUICK)
    assert (status, err) == (1, "")
    figures = json.loads(out)
    assert (figures["verdict"], figures["n"], figures["name"]) == ("no", 32, "A.npz")
    assert figures["lower_bound"]["dim"] == 2
    assert (figures["dtype"], figures["picture"]) == ("float32", None)


@pytest.mark.parametrize(
    ("kind", "pairs", "expected"),
    [
        ("band", {"neighbors": "2"}, lambda n: hf.patterns.band(n, 2)),
        ("band", {"neighbors": "2", "boundary": "wrap"},
         lambda n: hf.patterns.band(n, 2, boundary="wrap")),
        ("circulant", {"offsets": "-1,2"}, lambda n: hf.patterns.circulant(n, [-1, 2])),
        ("strided", {"stride": "4", "causal": "false"},
         lambda n: hf.patterns.strided(n, 4, causal=False)),
        ("strided", {"causal": "true", "neighbors": "2", "stride": "4"},
         lambda n: hf.patterns.strided(n, 4, neighbors=2)),
        ("hypercube", {"self_loops": "true"}, lambda n: hf.patterns.hypercube(n, self_loops=True)),
        ("hypercube", {"self_loops": "false"}, lambda n: hf.patterns.hypercube(n)),
        ("butterfly", {"stages": "0,2"}, lambda n: hf.patterns.butterfly(n, stages=[0, 2])),
        ("random_regular", {"k": "3", "gamma": "2"},
         lambda n: hf.patterns.random_regular(n, 3, gamma=2.0, rng=7)),
        ("permutation", {}, lambda n: hf.patterns.permutation(n, rng=7)),
        ("bigbird", {"n_random": "1", "neighbors": "1", "n_global": "2"},
         lambda n: hf.patterns.bigbird(n, 1, 2, 1, rng=7)),
    ],
)  # fmt: skip
def test_arguments_are_those_of_python(kind, pairs, expected):
    made = function_of_n(kind, {name: value(text) for name, text in pairs.items()}, 7)
    assert set(made.keywords) == {*pairs, "rng"}
    np.testing.assert_array_equal(made(32).toarray(), expected(32).toarray())


def test_every_kind_that_has_an_n_takes_it_from_the_option():
    refused = set()
    for kind in hf.patterns.__all__:
        try:
            function_of_n(kind, {}, 0)
        except InputError as error:
            if "must be a function of n" in str(error):
                refused.add(kind)
    assert refused == {"digits_knn", "from_graph", "from_mask", "grid2d", "induction", "knn"}


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ("causal_band --n 64", "missing a required argument: 'neighbors'"),
        ("causal_band --n 64 --arg neighbors=x", "neighbors must be an integer"),
        (
            "causal_band --n 64 --arg neighbors=3 --arg widht=3",
            "--arg must name arguments of causal_band (neighbors, weights, gamma): ",
        ),
        ("causal_band --n 64 --arg neighbors=3 --arg neighbors=4", "--arg must name each argument"),
        ("causal_band --arg neighbors=3", "n must be given"),
        ("causal_band --n 0 --arg neighbors=3", "n must"),
        ("causal_band --n 8 --arg neighbors", "NAME=VALUE"),
        ("band --n 8 --arg neighbors=1 --arg boundary=x", "boundary must be"),
        ("hypercube --n 8 --arg self_loops=maybe", "self_loops must be True or False"),
        ("grid2d --n 8", "pattern must be a function of n; grid2d is not"),
        ("no_such_kind --n 8", "pattern must be a file"),
        ("nowhere.npz", "pattern: nowhere.npz"),
        ("nowhere.npz --arg neighbors=3", "--arg must go with a kind"),
        ("permutation --n 8 --dim 0", "dim must"),
        ("permutation --n 8 --time-limit nan", "time_limit must"),
        ("permutation --n 8 --plot plan.doc", "must end in .png"),
        ("permutation --n 8 --dtype int8", "--dtype"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(arguments, word, run):
    status, out, err = run(*arguments.split())
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert word in err

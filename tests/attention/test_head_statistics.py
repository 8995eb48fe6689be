"""Statistics of passages added one after the other agree with `describe` of all of them."""

import json

import numpy as np
import pytest

import headfit as hf
from headfit._attention.head_table import ModelTable
from headfit._attention.profile import (
    BINS_PER_DOUBLING,
    HeadStatistics,
    Measures,
    counted,
    medians,
)
from headfit.cli import main
from headfit.errors import InputError

RNG = np.random.default_rng
MEASURES = {"per_row": 3, "per_column": 5, "share": 0.6, "shares": (0.5, 0.9)}


def passages(count=5, heads=3, n=40, m=40, d=4):
    return RNG(0).normal(size=(2, count, heads, max(n, m), d))[:, :, :, :n] * 2


@pytest.mark.parametrize("mask", [None, "causal", ("window", 4)])
@pytest.mark.parametrize("step", [1, 2, 5])
def test_statistics_are_describe_of_everything(mask, step):
    Q, K = passages()
    tokens = RNG(1).integers(0, 6, size=(5, 40))
    whole = hf.describe(Q, K, mask=mask, tokens=tokens, **MEASURES)
    statistics = HeadStatistics(3, Measures(**MEASURES))
    for at in range(0, 5, step):
        part = slice(at, at + step)
        statistics.add(hf.Attention(Q[part], K[part], mask=mask), tokens=tokens[part])
    table = ModelTable.of({"a": ("self", statistics)}).numbers
    assert statistics.passages == 5
    expected = whole.columns()
    for name, values in table.items():
        if name.endswith(("_mean", "entropy", "sink_mass", "distance", "diagonal", "sink_columns")):
            np.testing.assert_allclose(values, expected[name].mean(axis=0), rtol=1e-12)
        elif name.endswith(("_max", "max_load")) or name == "gamma":
            np.testing.assert_array_equal(values, expected[name].max(axis=0))
        elif name.endswith("_worst"):
            np.testing.assert_array_equal(values, expected[name].min(axis=0))
        elif name == "sparse":
            np.testing.assert_array_equal(values, expected[name].mean(axis=0))
    np.testing.assert_allclose(table["previous"], expected["previous"].mean(axis=0), rtol=1e-12)
    # The rows whose token occurred before, with a key between.
    weight = [sum(t in row[: max(0, i - 1)] for i, t in enumerate(row)) for row in tokens.tolist()]
    induction = np.average(whole.induction, axis=0, weights=weight)
    np.testing.assert_allclose(table["induction"], induction, rtol=1e-12)
    bin_ratio = 2 ** (1 / BINS_PER_DOUBLING)
    for s, share in enumerate((50, 90)):
        exact = np.median(whole.keys[..., s].transpose(1, 0, 2).reshape(3, -1), axis=1)
        ratio = table[f"keys{share}_median~"] / exact
        assert (ratio <= bin_ratio).all()
        assert (ratio >= 1 / bin_ratio).all()
    profile = whole.offset_mass.mean(axis=0)
    np.testing.assert_allclose(statistics.sums["before"] / 200, profile[:, 39:], atol=1e-14)
    np.testing.assert_allclose(
        statistics.sums["columns"] / 200, whole.column_mass.mean(axis=0), atol=1e-14
    )


def test_sinks_take_a_part_of_the_mass():
    Q, K = passages()
    heads = hf.Attention(Q, K, mask="causal", sinks=np.array([0.0, 1.0, 3.0]))
    statistics = HeadStatistics(3, Measures())
    statistics.add(heads)
    numbers = ModelTable.of({"a": ("self", statistics)}).numbers
    expected = hf.describe(heads)
    np.testing.assert_allclose(numbers["key_mass"], expected.key_mass.mean(axis=0), rtol=1e-12)
    mass = expected.key_mass
    distance = (expected.distance * mass).sum(axis=0) / mass.sum(axis=0)
    np.testing.assert_allclose(numbers["distance"], distance, rtol=1e-12)
    assert "key_mass" in repr(ModelTable.of({"a": ("self", statistics)}))


def test_passages_of_any_length_are_weighted_by_their_rows():
    Q, K = passages()
    statistics = HeadStatistics(3, Measures())
    total, rows = 0, 0
    for at, n in enumerate((1, 7, 40, 3)):
        one = hf.Attention(Q[at, :, :n], K[at, :, :n], mask="causal")
        statistics.add(one)
        total, rows = total + n * hf.describe(one).entropy, rows + n
    table = ModelTable.of({"a": ("self", statistics)})
    np.testing.assert_allclose(table.numbers["entropy"], total / rows, rtol=1e-12)
    np.testing.assert_array_equal(table.numbers["rows"], rows)
    assert table.distances["a"].shape == (3, 40)
    np.testing.assert_allclose(table.distances["a"].sum(axis=1), 1)


def test_medians_of_integers_up_to_11_are_exact():
    values = RNG(0).integers(1, 12, size=(50, 30)).astype(float)
    counts = counted(values[np.newaxis], np.ones((1, *values.shape), bool))
    np.testing.assert_array_equal(medians(counts, integers=True), np.median(values, axis=1))
    assert np.isnan(medians(np.zeros_like(counts))).all()


def test_medians_are_within_a_bin():
    values = np.exp(RNG(0).exponential(20, size=(50, 31)))
    values[0, :3] = np.inf
    present = np.ones(values.shape, bool)
    present[:, ::3] = False
    exact = np.median(values[:, present[0]], axis=1)
    ratio = medians(counted(values[np.newaxis], present[np.newaxis])) / exact
    assert (abs(np.log2(ratio)) <= 1 / BINS_PER_DOUBLING).all()


def test_saved_tables_are_read_again(tmp_path, capsys):
    Q, K = passages()
    statistics = HeadStatistics(3, Measures())
    statistics.add(hf.Attention(Q, K))
    table = ModelTable.of({"b.0": ("self", statistics), "b.1": ("cross", statistics)})
    path = table.save(tmp_path / "x.npz")
    assert main(["describe", str(path)]) == 0
    assert "b.1" in capsys.readouterr().out
    assert main(["describe", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["layer"] == ["b.0"] * 3 + ["b.1"] * 3
    again = ModelTable.load(path)
    assert repr(again) == repr(table)
    assert again.numbers.keys() == table.numbers.keys()
    for name in table.distances:
        np.testing.assert_array_equal(again.distances[name], table.distances[name])
    with pytest.raises(InputError, match=r"path must end in \.npz"):
        table.save(tmp_path / "x.npy")
    np.savez(tmp_path / "y.npz", a=1)
    with pytest.raises(InputError, match="no saved capture"):
        ModelTable.load(tmp_path / "y.npz")
    with np.load(path) as arrays:
        np.savez(tmp_path / "w.npz", **{**arrays, "layers": np.array("x")})
    with pytest.raises(InputError, match="it lacks a list of layers"):
        ModelTable.load(tmp_path / "w.npz")
    np.savez(tmp_path / "z.npz", format="headfit capture 1")
    with pytest.raises(InputError, match="it lacks 'layers'"):
        ModelTable.load(tmp_path / "z.npz")
    assert main(["describe", str(tmp_path / "z.npz")]) == 2


def test_the_table_shows_itself():
    statistics = HeadStatistics(30, Measures())
    table = ModelTable.of({"<b>": ("self", statistics)})  # nothing was added
    assert "... and 18 heads more" in repr(table)
    assert "&lt;b&gt;" in table._repr_html_()
    assert np.isnan(table.numbers["entropy"]).all()
    frame = pytest.importorskip("pandas") and table.to_pandas()
    assert frame.index.names == ["layer", "head"]


def test_close_shares_have_columns_of_their_own():
    shares = {0.5: "50", 0.29: "29", 0.999999: "99.9999", 0.9999999: "99.99999", 1.0: "100"}
    Q, K = passages()
    statistics = HeadStatistics(3, Measures(shares=tuple(shares)))
    statistics.add(hf.Attention(Q, K))
    numbers = statistics.numbers()
    whole = hf.describe(Q, K, shares=tuple(shares))
    stats = hf.attention_stats(Q, K, shares=tuple(shares))
    assert [f"{name}% of the mass in" in repr(stats) for name in shares.values()] == [True] * 5
    frame = pytest.importorskip("pandas") and stats.to_pandas()
    for at, name in enumerate(shares.values()):
        np.testing.assert_array_equal(whole.columns()[f"keys{name}_mean"], whole.keys_mean[..., at])
        expected = whole.keys[..., at].max(axis=(0, -1))
        np.testing.assert_array_equal(numbers[f"keys{name}_max"], expected)
        np.testing.assert_array_equal(frame[f"keys{name}"], stats.keys_for_share[..., at].ravel())
    assert "99.9999% of their mass" in hf.describe(Q, K, share=0.999999).statement(0, 0)


@pytest.mark.parametrize(
    "wrong", [{"per_row": 0}, {"share": 2}, {"shares": (0,)}, {"per_column": 0}]
)
def test_measures_are_checked(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        Measures(**wrong)

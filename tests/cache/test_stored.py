"""Files of keys in few bytes and of indexes: what is read is what was written, and checked."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from tests.references import assert_same

import headfit as hf
from headfit.errors import FileError, InputError, MissingFileError

SUFFIXES = (".npz", ".safetensors")
NAMES = (("layer", 0), "b", 3)


@lru_cache
def passages() -> Any:
    rng = np.random.default_rng(0)
    mix = rng.normal(size=(2, 8, 8)) * 1.5 ** -np.arange(8.0)[:, None] * 2
    pairs = (rng.normal(size=(40, 8)) @ mix for _ in range(6))
    return [hf.Attention(q, k, mask="causal", position=("rope", 50.0)) for q, k in pairs]


@lru_cache
def result(kind: str) -> Any:
    if kind == "Index":
        return hf.index(passages(), dim=3, keys=12, window=4, first=2, effort=3, dtype="int4")
    if kind == "Indexes":
        given = {name: passages() for name in NAMES}
        return hf.index(given, dim=2, keys=12, window=4, first=2, effort=0, form="dot")
    layers = {name: passages() for name in NAMES}
    if kind == "CompressedLayers":
        return hf.compress_keys(layers, bytes=6, step=np.int64(3), effort=3)
    if "Values" in kind:
        of_layers = {name: [(x, x.K) for x in own] for name, own in layers.items()}
        found = hf.compress_values(of_layers, bytes=6)
        return found if kind == "CompressedLayerValues" else found["b"]
    return hf.compress_keys({"x": passages()}, bytes=5, effort=0)["x"]


KINDS = (
    "Index", "Indexes", "CompressedKeys", "CompressedLayers", "CompressedValues",
    "CompressedLayerValues",
)  # fmt: skip


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_read_is_what_was_written(kind: str, suffix: str, tmp_path: Any) -> None:
    if suffix == ".safetensors":
        pytest.importorskip("safetensors")
    path = tmp_path / f"it{suffix}"
    result(kind).save(path)
    read = type(result(kind)).load(path)
    assert_same(read, result(kind))
    assert repr(read) == repr(result(kind))


def test_results_that_were_read_work(tmp_path: Any) -> None:
    path = tmp_path / "it.npz"
    k = passages()[0].rotated().K
    result("Index").save(path)
    read = hf.results.Index.load(path)
    np.testing.assert_array_equal(read.select(passages()[0]), result("Index").select(passages()[0]))
    result("CompressedKeys").save(path)
    keys = hf.results.CompressedKeys.load(path)
    np.testing.assert_array_equal(keys.store(k), result("CompressedKeys").store(k))


def changed(path: Any, **arrays: Any) -> None:
    """Write a file again with other arrays; `about` is a function of the parsed text."""
    with np.load(path) as file:
        content = {**file}
    about = arrays.pop("about", None)
    if about is not None:
        known = json.loads(str(content["about"]))
        about(known)
        content["about"] = np.array(json.dumps(known))
    content |= arrays
    np.savez(path, **{name: x for name, x in content.items() if x is not None})


BAD = {
    "Index": {
        "form": ["other", 3, None], "dtype": ["float7", None], "keys": [6, "12", 2.5, None],
        "window": [0, -1, [4]], "first": [-1, True], "length": ["x"],
        "position": [["alibi", 1.0], ["rope", [1.0]], "rope", ["rope", [1.0, 2.0, 3.0, "x"]]],
        "calibration": ["x", 4, ["a"]], "quality": [3, {"rows": "x"}, {"other": 1}],
        "others": [[1], {"loki": 3}], "loss": ["x", [1]], "more": [1],
    },
    "CompressedKeys": {
        "bits": [[9] * 8, [], "x", [1, 2], [0]], "key_heads": [0, 3, "x"],
        "position": [["rope", [1.0]], 4], "length": ["x", 0], "held_out": ["x"], "kl": ["x"],
        "step": ["x", 0, 2.5, None, True],
        "more": [1],
    },
    "CompressedValues": {
        "bits": [[9] * 8, [0]], "key_heads": [3], "error": ["x"], "kl": [0.1],
        "position": [4, ["rope", [1.0, 0.5]]],
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_changed_fields_are_refused(kind: str, tmp_path: Any) -> None:
    path = tmp_path / "it.npz"
    load = type(result(kind)).load
    for name, values in BAD[kind].items():
        for value in values:
            result(kind).save(path)
            changed(path, about=lambda known, n=name, x=value: known.__setitem__(n, x))
            with pytest.raises(InputError, match=rf"path: .*it\.npz is no saved {kind}"):
                load(path)


@pytest.mark.parametrize(
    ("kind", "name"),
    [("Index", "P_q"), ("Index", "P_k"), ("CompressedKeys", "encode"), ("CompressedKeys", "mean")],
)
def test_changed_maps_are_refused(kind: str, name: str, tmp_path: Any) -> None:
    path = tmp_path / "it.npz"
    maps = getattr(result(kind), name)
    spoiled = maps.copy()
    spoiled.flat[0] = np.nan
    for value in (None, spoiled, maps.astype(np.float64), maps[..., :0], maps[..., :1], maps[None]):
        result(kind).save(path)
        changed(path, **{name: value})
        with pytest.raises(InputError, match=rf"path: .*it\.npz is no saved {kind}"):
            type(result(kind)).load(path)


def test_other_files_are_refused(tmp_path: Any) -> None:
    index, keys = type(result("Index")), type(result("CompressedKeys"))
    path = tmp_path / "it.npz"
    result("Indexes").save(path)
    for kind in (index, keys, type(result("CompressedLayers"))):
        with pytest.raises(InputError, match="it holds "):
            kind.load(path)
    with pytest.raises(MissingFileError, match="path"):
        index.load(tmp_path / "none.npz")
    with pytest.raises(FileError, match="path"):
        index.load(tmp_path)
    with pytest.raises(InputError, match="path must end in"):
        result("Indexes").save(tmp_path / "it.txt")
    path.write_bytes(b"x")
    with pytest.raises(InputError, match="is no saved Index"):
        index.load(path)
    np.savez(path, about=np.array({"is": "Index"}, dtype=object))
    with pytest.raises(InputError, match="is no saved Index"):
        index.load(path)


def test_names_that_files_do_not_hold(tmp_path: Any) -> None:
    found = hf.index({(1.5, "a"): passages()}, dim=2, keys=12, window=4, first=2, effort=0)
    with pytest.raises(InputError, match="names must be texts, ints, or tuples of these; got"):
        found.save(tmp_path / "it.npz")
    assert not list(tmp_path.iterdir())

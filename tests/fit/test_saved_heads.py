"""Heads that were saved before methods were objects still load, with all that they hold.

The files in data/heads-0.1 were written by the code of October 2026 (format 1, VERSION 0.1), those
of rounded logits in November, and expected.json by the same code: the fields of what it read back.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import headfit as hf

FOLDER = Path(__file__).parents[1] / "data" / "heads-0.1"
EXPECTED = json.loads((FOLDER / "expected.json").read_text(encoding="utf-8"))


def digest(x: Any) -> Any:
    if x is None:
        return None
    if sp.issparse(x):
        return digest(x.toarray())
    x = np.ascontiguousarray(x)
    return [str(x.dtype), list(x.shape), hashlib.sha256(x.tobytes()).hexdigest()]


def plain(value: Any) -> Any:
    """Return a value as JSON keeps it: tuples become lists, NumPy's numbers plain numbers."""

    def item(x: Any) -> Any:
        return x.tolist()

    return json.loads(json.dumps(value, default=item))


def same(got: Any, expected: Any) -> bool:
    return got == expected or (got != got and expected != expected)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_head_of_the_old_code_loads_with_all_its_fields(name: str) -> None:
    if name.endswith(".safetensors"):
        pytest.importorskip("safetensors")
    head, expected = hf.load(FOLDER / name), EXPECTED[name]
    assert digest(head.Q) == expected["arrays"]["Q"]
    assert digest(head.K) == expected["arrays"]["K"]
    assert digest(head.X) == expected["arrays"]["X"]
    assert digest(head.module.weights) == expected["arrays"]["W"]
    assert digest(head.failed_rows) == expected["arrays"]["failed_rows"]
    assert head.module.is_canonical == expected["canonical"]
    assert head.module.scale == expected["module_scale"]
    for field in ("scale", "dim", "dtype", "method", "status", "stopped", "advice", "seconds"):
        assert getattr(head, field) == expected[field], field
    assert plain(head.settings) == expected["settings"]
    bound, known = head.lower_bound, expected["lower_bound"]
    assert (bound and {"dim": bound.dim, "reason": bound.reason}) == known
    assert bound is None or isinstance(bound, hf.bounds.LowerBound)
    asked = head.tolerances
    assert (asked.leak, asked.distortion) == (expected["leak"], expected["distortion"])
    assert asked.max_logit == expected["settings"]["max_logit"]
    mask = head.mask
    if hasattr(mask, "shape"):
        assert digest(mask) == expected["mask"]
    else:
        assert plain(["tuple", *mask] if isinstance(mask, tuple) else mask) == expected["mask"]
    found = None if head.search is None else dataclasses.asdict(head.search)
    assert plain(found) == expected["search"]
    witnesses = head.witnesses
    assert expected["witnesses"] == (
        None
        if witnesses is None
        else plain([{"kind": w.kind, **dataclasses.asdict(w)} for w in witnesses])
    )


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_its_certificate_is_as_it_was(name: str) -> None:
    if name.endswith(".safetensors"):
        pytest.importorskip("safetensors")
    certificate, expected = hf.load(FOLDER / name).certificate, dict(EXPECTED[name]["certificate"])
    asked = certificate.tolerances
    assert asked.leak == expected.pop("leak_tolerance")
    assert asked.distortion == expected.pop("distortion_tolerance")
    limit = expected.pop("max_logit_tolerance")
    assert asked.max_logit == (None if math.isinf(limit) else limit)
    words = expected.pop("accumulate"), expected.pop("logits_dtype")
    assert (certificate.kernel.accumulate, certificate.kernel.logits) == words
    assert certificate.kernel == hf.Kernel(words[0], logits=words[1])
    known = {f.name for f in dataclasses.fields(certificate)}
    assert known - {"mask", "tolerances", "kernel"} == {*expected}
    for field, value in expected.items():
        got = getattr(certificate, field)
        got = digest(got) if isinstance(got, np.ndarray) else plain(got)
        assert same(got, value), field


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_it_is_certified_anew_and_saved_anew(name: str, tmp_path: Path) -> None:
    if name.endswith(".safetensors"):
        pytest.importorskip("safetensors")
    head = hf.load(FOLDER / name)
    again = hf.load(head.save(tmp_path / name))
    assert again.tolerances == head.tolerances
    assert again.certificate.tolerances == head.certificate.tolerances
    assert repr(again) == repr(head)
    assert repr(again.certificate) == repr(head.certificate)
    np.testing.assert_array_equal(again.X, head.X)
    assert again.attention.matrix().shape == (12, 12)


BAND, LONG = hf.patterns.band(16, 1), hf.patterns.random_regular(24, 3, gamma=2.0, rng=0)
BLOCKS = hf.patterns.block(16, 4)
OWN = hf.SelfAttention(*np.random.default_rng(0).standard_normal((2, 20, 8)), 0.5)
MODULES = [hf.SelfAttention.canonical(6, dtype=dtype) for dtype in (np.float32, np.float64)]
FITS: dict[str, tuple[Any, int | None, dict[str, Any]]] = {
    "search": (LONG, None, {"time_limit": 2}),
    "bounded logits": (LONG, None, {"max_logit": 4.0, "time_limit": 1}),
    "blocks": (BLOCKS, None, {"mask": ("window", (5, 5))}),
    "too small": (LONG, 1, {}),
    "impossible": (BAND, None, {"max_logit": 0.1, "time_limit": 1}),
    "proofs": (LONG, 6, {"method": "max-margin"}),
    "faces": (LONG, 4, {"method": hf.methods.MaxMargin(form="equality")}),
    "canonical module": (BAND, None, {"module": hf.SelfAttention.canonical(6, scale=0.5)}),
    "narrower module": (BAND, None, {"module": MODULES[0], "dtype": "float64"}),
    "wider module": (BAND, None, {"module": MODULES[1]}),
    "wider module, bfloat16": (BAND, None, {"module": MODULES[1], "dtype": "bfloat16"}),
    "own module": (BAND, None, {"module": OWN}),
    "exempt": (BAND, 6, {"exempt_columns": [0, 3], "dtype": "bfloat16"}),
    "sparse mask": (BAND, 6, {"mask": BAND.astype(bool)}),
    "dense mask": (BAND, 6, {"mask": BAND.toarray() > 0, "kernel": "eager-float16"}),
    "window": (BAND, 6, {"mask": ("window", (2, 1)), "certificate_mass": False}),
}


def differs(a: Any, b: Any, at: str) -> str:
    """Return where two values differ in type or value; empty if they do not."""
    if type(a) is not type(b):
        return f"{at}: {type(a).__name__} became {type(b).__name__}"
    if dataclasses.is_dataclass(a) or isinstance(a, (hf.SelfAttention, hf.Attention)):
        names = [n for n in dir(a) if n[0] != "_" and n not in ("core", "checked")]
        names = [n for n in names if n == "module" or not callable(getattr(a, n))]
        pairs = [(n, getattr(a, n), getattr(b, n)) for n in names]
    elif isinstance(a, dict):
        pairs = [(str(key), a[key], b.get(key)) for key in a] + [("keys", [*a], [*b])]
    elif isinstance(a, (tuple, list)):
        pairs = [
            ("len", len(a), len(b)),
            *((str(i), *p) for i, p in enumerate(zip(a, b, strict=False))),
        ]
    elif hasattr(a, "dtype"):
        is_thawed = at.endswith("mask") and not sp.issparse(b) and b.flags.writeable
        return "" if digest(a) == digest(b) and not is_thawed else at
    else:
        return "" if same(a, b) else f"{at}: {a!r} became {b!r}"
    return next((found for n, x, y in pairs if (found := differs(x, y, f"{at}.{n}"))), "")


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
@pytest.mark.parametrize("name", FITS)
def test_every_attribute_is_the_same_after_loading(name: str, suffix: str, tmp_path: Path) -> None:
    if suffix == "safetensors":
        pytest.importorskip("safetensors")
    A, dim, options = FITS[name]
    head = hf.fit(A, dim, **options)
    again = hf.load(head.save(tmp_path / f"head.{suffix}"))
    assert not differs(head, again, "fit")
    if head.lower_bound is not None:
        assert again.lower_bound.verify(A)

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
    assert plain(head.lower_bound) == expected["lower_bound"]
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

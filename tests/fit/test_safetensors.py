"""Fits in safetensors files: what was saved comes back, and other files are refused."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp
from tests.references import assert_same

import headfit as hf
from headfit.errors import InputError

safetensors = pytest.importorskip("safetensors")

N = 24
A = hf.patterns.causal_band(N, 2)
LOWER = np.tri(N, dtype=bool)
MASKS = [None, "causal", ("window", 4), ("window", (3, 1)), LOWER, sp.csr_array(LOWER)]


def same(got, want):
    """Assert that two fits have equal records in a file, whatever its format."""
    assert_same(got._record(), want._record())


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_a_fit_comes_back(tmp_path, mask, dtype):
    fit = hf.fit(A, 6, mask=mask, dtype=dtype, max_logit=60.0)
    path = tmp_path / "head.safetensors"
    assert fit.save(path) == path  # exactly this name
    kept = hf.load(path)
    same(kept, fit)
    same(kept, hf.load(fit.save(tmp_path / "head.npz")))
    assert type(kept.mask) is type(fit.mask)
    assert repr(kept) == repr(fit)
    judged = hf.certify(A, kept, kernel=fit.certificate.kernel, max_logit=60.0)
    np.testing.assert_array_equal(judged.row_leak, fit.certificate.row_leak)


@pytest.mark.parametrize(
    "options",
    [
        {"module": hf.SelfAttention(*np.random.default_rng(0).normal(size=(2, 20, 6)), scale=0.7)},
        {"dim": None, "time_limit": 2},
        {"dim": 2, "method": "max-margin", "leak": 0.01},  # has witnesses of failed rows
    ],
    ids=["module", "search", "witnesses"],
)
def test_what_a_fit_may_hold_besides(tmp_path, options):
    fit = hf.fit(hf.patterns.random_regular(N, 3, rng=0), **options)
    assert fit.witnesses or fit.search or not fit.module.is_canonical
    same(hf.load(fit.save(tmp_path / "head.safetensors")), fit)


@pytest.mark.parametrize(("dtype", "code"), [("bfloat16", "BF16"), ("float16", "F16")])
def test_narrow_heads_are_stored_narrow(tmp_path, dtype, code):
    fit = hf.fit(A, 6, dtype=dtype)
    path = fit.save(tmp_path / "head.safetensors")
    stored = dict(safetensors.deserialize(path.read_bytes()))
    assert stored["Q"]["dtype"] == stored["K"]["dtype"] == code
    assert len(stored["Q"]["data"]) == 2 * fit.Q.size
    changed = dataclasses.replace(fit, K=fit.K * np.float32(1 + 2**-20))
    with pytest.raises(InputError, match=f"K must hold numbers of {dtype}, the dtype of the fit"):
        changed.save(path)
    same(hf.load(path), fit)


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    fit = hf.fit(A, 6)
    path = fit.save(tmp_path / "head.safetensors")
    before = path.read_bytes()

    def killed(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        hf.fit(A, 7).save(path)
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["head.safetensors"]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda raw: b"",
        lambda raw: b"no file of tensors",
        lambda raw: raw[:20],
        lambda raw: raw[: len(raw) // 2],
        lambda raw: raw[:-1],
        lambda raw: raw.replace(b'"headfit"', b'"another"', 1),
        lambda raw: raw.replace(b'"certificate_row_tv"', b'"certificate_row_no"', 1),
        lambda raw: raw.replace(b'"F32"', b'"U32"', 1),
        lambda raw: raw.replace(rb"\"scale\"", rb"\"skale\"", 1),
    ],
    ids=["empty", "text", "head", "half", "tail", "other", "renamed", "dtype", "json"],
)
def test_other_files_are_refused(tmp_path, spoil):
    path = hf.fit(A, 6).save(tmp_path / "head.safetensors")
    raw = path.read_bytes()
    assert spoil(raw) != raw
    path.write_bytes(spoil(raw))
    with pytest.raises(InputError, match=r"head.safetensors is no saved fit"):
        hf.load(path)
    with pytest.raises(FileNotFoundError):
        hf.load(tmp_path / "nothing.safetensors")


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    fit = hf.fit(A, 6)
    path = fit.save(tmp_path / "x.safetensors")
    monkeypatch.setitem(sys.modules, "safetensors", None)
    for call in (lambda: fit.save(path), lambda: hf.load(path)):
        with pytest.raises(ImportError, match=r"pip install 'headfit\[safetensors\]'"):
            call()


def test_without_torch_the_extra_is_named_and_nothing_imports_it():
    code = (
        "import sys\nimport headfit\n"
        "assert not {'torch', 'safetensors'} & set(sys.modules)\n"
        "sys.modules['torch'] = None\n"
        "try:\n    headfit.torch\n"
        "except ImportError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "headfit.torch needs PyTorch: pip install 'headfit[torch]'\n"

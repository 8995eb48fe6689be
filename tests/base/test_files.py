"""Files: only ordinary ones are opened, claims are checked, nothing is left half written."""

from __future__ import annotations

import errno
import io
import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import headfit as hf
from headfit._base import files, sparse
from headfit._fit import storage
from headfit.errors import FileError, InputError, MissingFileError, TooLargeError

READERS = (hf.load, hf.Target)


@pytest.fixture(scope="module")
def head() -> hf.results.Fit:
    return hf.fit(hf.patterns.band(8, 1), 4)


@pytest.mark.parametrize("read", READERS)
def test_a_path_that_is_no_file_is_refused_at_once(read: Any, tmp_path: Path) -> None:
    name = "A" if read is hf.Target else "path"
    for absent in (tmp_path / "no.npz", tmp_path / "no" / "x.npz"):
        with pytest.raises(MissingFileError, match=rf"^{name}: .*No such file") as caught:
            read(absent)
        assert isinstance(caught.value, FileNotFoundError)
        assert isinstance(caught.value, InputError)
        assert (caught.value.errno, caught.value.filename) == (errno.ENOENT, str(absent))
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    pipe = tmp_path / "pipe.npz"
    os.mkfifo(pipe)
    for path, kind in ((pipe, "pipe"), (tmp_path, "folder"), ("/dev/zero", "device")):
        with pytest.raises(FileError, match=rf"^{name}: .*it is a.*{kind}"):
            read(path)
    assert issubclass(FileError, OSError)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("read", READERS)
def test_a_forbidden_file_is_refused(read: Any, tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    path.write_bytes(b"")
    path.chmod(0)
    with pytest.raises(FileError, match="Permission denied"):
        read(path)


@pytest.mark.parametrize("path", [None, 5, b"x.npz", "", "a\0b", ["x"]])
def test_what_is_no_path_is_refused(path: Any, head: hf.results.Fit) -> None:
    for call in (*READERS[:-1], head.save):
        with pytest.raises(InputError, match="path must be a str or a path"):
            call(path)


def test_a_suffix_says_what_is_written(tmp_path: Path, head: hf.results.Fit) -> None:
    for name in ("x", "x.npy", "x.npz.gz", "x.NPZ"):
        with pytest.raises(InputError, match=rf"path must end in \.npz or \.safetensors; .*{name}"):
            head.save(tmp_path / name)
        (tmp_path / name).write_bytes(b"")
        with pytest.raises(InputError, match=rf"path must end in \.npz or \.safetensors; .*{name}"):
            hf.load(tmp_path / name)
        (tmp_path / name).unlink()
    assert not os.listdir(tmp_path)


def test_what_is_no_ordinary_file_is_never_replaced(tmp_path: Path, head: hf.results.Fit) -> None:
    pipe = tmp_path / "x.npz"
    os.mkfifo(pipe)
    folder = tmp_path / "y.npz"
    folder.mkdir()
    for path in (pipe, folder):
        with pytest.raises(FileError, match="cannot be written: it is no ordinary file"):
            head.save(path)
    assert pipe.is_fifo()
    with pytest.raises(MissingFileError, match=r"path: .*No such file"):
        head.save(tmp_path / "no" / "x.npz")
    with pytest.raises(FileError, match="too long"):
        head.save(tmp_path / ("x" * 300 + ".npz"))
    head.save(tmp_path / ("x" * 251 + ".npz"))  # the longest name that file systems allow


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@pytest.mark.parametrize("mode", [0o600, 0o664])
def test_a_replaced_file_keeps_its_permissions_and_links(
    suffix: str, mode: int, tmp_path: Path, head: hf.results.Fit
) -> None:
    if suffix == ".safetensors":
        pytest.importorskip("safetensors")
    (tmp_path / "elsewhere").mkdir()
    path, link = tmp_path / "elsewhere" / f"x{suffix}", tmp_path / f"link{suffix}"
    link.symlink_to(path)
    umask = os.umask(0o022)
    try:
        head.save(link)  # a link to nothing yet
        assert path.stat().st_mode & 0o777 == 0o644
        path.write_bytes(b"")
        path.chmod(mode)
        head.save(link)
    finally:
        os.umask(umask)
    assert link.is_symlink()
    assert path.stat().st_mode & 0o777 == mode
    assert hf.load(path).dim == 4


@pytest.mark.parametrize("read", READERS)
def test_a_file_that_is_larger_than_the_memory_is_too_large(
    read: Any, tmp_path: Path, head: hf.results.Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(size: float, what: str) -> None:
        raise TooLargeError(f"{what} needs too much")

    path = tmp_path / "x.npz"
    if read is hf.load:
        head.save(path)
    else:
        scipy.sparse.save_npz(path, hf.patterns.band(8, 1))
    for module in (files, storage):
        monkeypatch.setattr(module, "require_memory", refuse)
    with pytest.raises(TooLargeError, match=r": .*x\.npz: .*needs too much"):
        read(path)


# Killed processes ------------------------------------------------------------------


def test_a_killed_save_leaves_the_old_file(tmp_path: Path, head: hf.results.Fit) -> None:
    path = head.save(tmp_path / "head.npz")
    before = path.read_bytes()
    script = f"""
import os, signal
from pathlib import Path
from headfit._base.files import replace_file
def write(file):
    file.write(b"half of it")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
replace_file(Path({str(path)!r}), write)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    assert path.read_bytes() == before


# Claims ------------------------------------------------------------------------------


def rewritten(path: Path, member: str, raw: bytes) -> None:
    with zipfile.ZipFile(path) as file:
        parts = {name: file.read(name) for name in file.namelist()}
    with zipfile.ZipFile(path, "w") as file:
        for name, content in {**parts, member: raw}.items():
            file.writestr(name, content)


def npy(shape: tuple[int, ...], descr: str = "<f8", content: bytes = b"") -> bytes:
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    text = text.ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + content


@pytest.mark.parametrize(
    "raw",
    [
        npy((10**12,)),
        npy((2**62, 2**62)),
        npy((-1,)),
        npy((2**40,), "|V0"),
        npy((1,), "|O", b"x" * 8),
        npy((4, 4), content=b"x" * 100),
        b"\x93NUMPY\x01\x00\x10\x00((((((((((((((((",
        b"\x93NUMPY\x09\x00",
        b"",
    ],
    ids=["tera", "product", "negative", "nothing", "objects", "short", "header", "version", "none"],
)
def test_an_array_that_claims_more_than_it_holds(
    raw: bytes, tmp_path: Path, head: hf.results.Fit
) -> None:
    path = head.save(tmp_path / "head.npz")
    rewritten(path, "Q.npy", raw)
    with pytest.raises(InputError, match=r"path: .*head.npz is no saved fit"):
        hf.load(path)


def test_arrays_of_every_kind_are_read_as_numpy_reads_them(tmp_path: Path) -> None:
    arrays = {
        "c": np.arange(12.0).reshape(3, 4),
        "f": np.asfortranarray(np.arange(12).reshape(3, 4)),
        "one": np.array(7, np.int8),
        "none": np.empty((0, 3), np.float32),
        "text": np.array("some words"),
        "flags": np.array([True, False]),
        "big": np.arange(3, dtype=">i4"),
    }
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "x.npz", **arrays)
        found = files.load_arrays(tmp_path / "x.npz", "file")
        with np.load(tmp_path / "x.npz") as wanted:
            assert set(found) == set(wanted)
            for name, array in found.items():
                assert array.dtype == wanted[name].dtype
                np.testing.assert_array_equal(array, wanted[name])


@pytest.mark.parametrize(
    ("header", "body", "dense"),
    [
        ("coordinate real general", "2 3 2\n1 1 5\n2 3 -1e-3\n", [[5, 0, 0], [0, 0, -1e-3]]),
        ("coordinate integer symmetric", "2 2 2\n1 1 5\n2 1 3\n", [[5, 3], [3, 0]]),
        ("coordinate pattern symmetric", "2 2 1\n2 1\n", [[0, 1], [1, 0]]),
    ],
)
def test_matrix_market_texts(header: str, body: str, dense: Any) -> None:
    text = f"%%MatrixMarket matrix {header}\n% words\n\n{body}"
    found = sparse.parse_market(io.BytesIO(text.encode()))
    np.testing.assert_array_equal(found.toarray(), dense)


@pytest.mark.parametrize(
    "text",
    [
        "%%MatrixMarket matrix coordinate real general\n2 2 999999999999\n1 1 1\n",
        "%%MatrixMarket matrix array real general\n99999999 99999999\n1\n",
        "%%MatrixMarket matrix coordinate real general\n1 1 1\n1 1 3e\0\0\n",
        "%%MatrixMarket matrix coordinate real general\n2 2 1\n1 1\n",
        "%%MatrixMarket matrix coordinate real general\n2 2 1\n1 1 1 1\n",
        "%%MatrixMarket matrix coordinate real general\n2 2 1\n1 1.5 1\n",
        "%%MatrixMarket matrix coordinate real general\n2 2 1\n1 nan 1\n",
        "%%MatrixMarket matrix coordinate real general\n2 -2 1\n1 1 1\n",
        "%%MatrixMarket matrix coordinate integer general\n2 2 1\n1 1 1.5\n",
        "%%MatrixMarket matrix coordinate real symmetric\n2 3 1\n1 1 1\n",
        "%%MatrixMarket matrix array pattern general\n1 1\n",
        "%%MatrixMarket matrix array real skew-symmetric\n2 2\n2\n",
        "%%MatrixMarket matrix coordinate complex hermitian\n1 1 1\n1 1 5 0\n",
        "%%MatrixMarket vector coordinate real general\n2 2 0\n",
        "%%MatrixMarket matrix coordinate real general\n",
        "",
    ],
)
def test_matrix_market_texts_that_lie(text: str, tmp_path: Path) -> None:
    path = tmp_path / "A.mtx"
    path.write_text(text, encoding="ascii")
    with pytest.raises(InputError, match="must be a file of"):
        hf.Target(path)


def test_an_index_out_of_range_in_a_matrix_market_file(tmp_path: Path) -> None:
    path = tmp_path / "A.mtx"
    path.write_text("%%MatrixMarket matrix coordinate real general\n2 2 1\n1 9 1\n")
    with pytest.raises(InputError, match="axis 1 index 8 exceeds matrix dimension 2"):
        hf.Target(path)


# Changed heads ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        lambda arrays, about: about.update(scale="x"),
        lambda arrays, about: about.update(scale=0),
        lambda arrays, about: about.update(dtype="int8"),
        lambda arrays, about: about.update(settings=[]),
        lambda arrays, about: about["certificate"].update(leak_tolerance="x"),
        lambda arrays, about: about.update(mask=["window", "x"]),
        lambda arrays, about: about.update(mask="dense"),
        lambda arrays, about: about.update(search={"trials": [{"dim": "x"}]}),
        lambda arrays, about: about.update(witnesses=[{"kind": "farkas"}]),
        lambda arrays, about: about.update(lower_bound=5),
        lambda arrays, about: about.update(lower_bound={"dim": "x", "reason": ""}),
        lambda arrays, about: about.update(lower_bound={"is": "Fit"}),
        lambda arrays, about: about.update(
            lower_bound={"is": "Block", "rows": [0.5], "columns": [1], "dim": 2}
        ),
        lambda arrays, about: about.update(format="x"),
        lambda arrays, about: about["certificate"].update(worst_leak=[0, 99, 0]),
        lambda arrays, about: about["certificate"].update(n="x"),
        lambda arrays, about: arrays.update(K=arrays["K"][:-1]),
        lambda arrays, about: arrays.update(Q=arrays["Q"][:, :0], K=arrays["K"][:, :0]),
        lambda arrays, about: arrays.update(Q=arrays["Q"][0], K=arrays["K"][0]),
        lambda arrays, about: arrays.update(certificate_row_leak=np.zeros(3)),
        lambda arrays, about: arrays.update(failed_rows=np.array([99])),
        lambda arrays, about: arrays.update(certificate_leak=np.zeros(8)),
    ],
)
def test_a_changed_head_is_refused(change: Any, tmp_path: Path, head: hf.results.Fit) -> None:
    import json

    path = head.save(tmp_path / "head.npz")
    with np.load(path) as file:
        arrays = dict(file)
    about = json.loads(str(arrays.pop("about")))
    change(arrays, about)
    np.savez(path, about=np.array(json.dumps(about)), **arrays)
    with pytest.raises(InputError, match=r"path: .*head.npz is no saved fit"):
        hf.load(path)


def test_a_text_too_deep_for_a_parser(tmp_path: Path) -> None:
    path = tmp_path / "head.npz"
    np.savez(path, about=np.array("[" * 100_000), Q=np.eye(2), K=np.eye(2))
    with pytest.raises(InputError, match="is no saved fit: RecursionError"):
        hf.load(path)

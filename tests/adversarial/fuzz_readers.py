"""Coverage-guided fuzzing of the readers of files: npz, Matrix Market, safetensors.

``python -m tests.adversarial.fuzz_readers --seconds 600`` needs atheris (``pip install atheris``)
and goes through all readers from the files in ``seeds/``. A reader must return, or raise an
InputError; anything else is a finding, whose file is kept in ``--findings``. What stands in
``seeds/`` is replayed by ``test_seeds.py``, which needs no atheris. ``--make-seeds`` writes the
seeds that no fuzzer found.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SEEDS = Path(__file__).parent / "seeds"
SECONDS_A_FILE = 10


def _matrix(path: Path) -> None:
    import headfit as hf
    from headfit.errors import TargetError

    hf.Target(path, normalize=True)
    with contextlib.suppress(TargetError):  # rows of a matrix that was read may have other sums
        hf.Target(path)


def _use(head: Any) -> None:
    """Use a head that was read: its texts, attention, a certificate and a saved copy must work."""
    import headfit as hf

    if head.Q.size > 10_000:
        return
    repr(head), repr(head.certificate), repr(head.search), repr(head.witnesses)
    head.certificate.to_dict()
    head.attention.matrix()
    A = hf.Target(head.attention.matrix(), normalize=True, mask=head.mask)
    hf.certify(A, head)
    with tempfile.TemporaryDirectory() as folder:
        hf.load(head.save(Path(folder) / "head.npz"))


def _head(path: Path) -> None:
    import headfit as hf

    _use(hf.load(path))


def _points(path: Path) -> None:
    from headfit._base.files import load_array

    load_array(path, "points")


READERS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "matrix-npz": (".npz", _matrix),
    "matrix-mtx": (".mtx", _matrix),
    "head-npz": (".npz", _head),
    "head-safetensors": (".safetensors", _head),
    "points-npy": (".npy", _points),
}


def read(kind: str, raw: bytes, folder: Path) -> bool:
    """Read bytes as a file of a kind; return whether they were read rather than refused."""
    from headfit.errors import InputError

    suffix, reader = READERS[kind]
    path = folder / f"fuzzed{suffix}"
    path.write_bytes(raw)
    try:
        reader(path)
    except InputError:
        return False
    return True


def make_seeds() -> None:
    """Write a small file of every form that each reader knows."""
    import numpy as np
    import scipy.io
    import scipy.sparse as sp

    import headfit as hf

    def folder(kind: str) -> Path:
        (SEEDS / kind).mkdir(parents=True, exist_ok=True)
        return SEEDS / kind

    A = np.array([[0.5, 0.5, 0, 0], [0, 1, 0, 0], [0.25, 0, 0.75, 0], [0, 0, 0.5, 0.5]])
    for form in ("csr", "csc", "coo", "dia", "bsr"):
        sp.save_npz(
            folder("matrix-npz") / f"{form}.npz",
            getattr(sp, f"{form}_array")(A),
            compressed=form == "csr",
        )
    market = folder("matrix-mtx")
    scipy.io.mmwrite(market / "coordinate.mtx", sp.coo_array(A))
    pattern = "%%MatrixMarket matrix coordinate pattern symmetric\n%\n3 3 3\n1 1\n2 2\n3 2\n"
    (market / "pattern.mtx").write_text(pattern)
    np.save(folder("points-npy") / "points.npy", A)
    loose = {"leak": 0.3, "distortion": 1.0}
    plain = hf.fit(A, 2, dtype="bfloat16", **loose)
    module = hf.SelfAttention(np.eye(4, 2), np.eye(4, 2, -2), scale=0.7)
    rich = hf.fit(
        A, method="max-margin", module=module, mask=sp.csr_array(np.ones((4, 4), bool)), **loose
    )
    searched = hf.fit(A, time_limit=1, mask=np.ones((4, 4), bool), **loose)
    for name, head in (("plain", plain), ("module", rich), ("search", searched)):
        head.save(folder("head-npz") / f"{name}.npz")
        head.save(folder("head-safetensors") / f"{name}.safetensors")


def fuzz(kind: str, seconds: int, findings: Path) -> None:
    """Mutate the seeds of one reader for some seconds, in this process, which then ends."""
    import atheris

    with atheris.instrument_imports(include=["headfit", "zipfile", "json", "numpy.lib"]):
        import zipfile

        import headfit  # noqa: F401

    # Checksums would refuse nearly every changed byte before a reader sees it.
    zipfile.ZipExtFile._update_crc = lambda self, data: None  # type: ignore[attr-defined]
    folder = Path(tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    corpus = folder / "corpus"
    shutil.copytree(SEEDS / kind, corpus)
    counts = [0, 0]

    def one(raw: bytes) -> None:
        counts[read(kind, raw, folder)] += 1
        if sum(counts) % 2000 == 0:
            print(f"{kind}: {counts[0]} refused, {counts[1]} read", flush=True)

    options = [
        sys.argv[0],
        str(corpus),
        f"-max_total_time={seconds}",
        f"-timeout={SECONDS_A_FILE}",
        "-rss_limit_mb=4096",
        "-max_len=20000",
        "-print_final_stats=1",
        "-verbosity=0",
        f"-artifact_prefix={findings}/{kind}-",
    ]
    atheris.Setup(options, one)
    atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=600, help="for all readers together")
    parser.add_argument("--reader", choices=READERS, help="only this one")
    parser.add_argument("--findings", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--make-seeds", action="store_true")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.make_seeds:
        make_seeds()
        return 0
    if given.inside:
        fuzz(given.reader, given.seconds, given.findings)
        return 0
    kinds = [given.reader] if given.reader else list(READERS)
    given.findings.mkdir(parents=True, exist_ok=True)
    found = 0
    for kind in kinds:  # each in a separate process, which a finding ends
        end = time.monotonic() + given.seconds / len(kinds)
        while (left := int(end - time.monotonic())) > 0:
            command = [sys.executable, "-m", "tests.adversarial.fuzz_readers", "--inside"]
            command += ["--reader", kind, "--seconds", str(left), "--findings", given.findings]
            if subprocess.run([str(word) for word in command], check=False).returncode:
                found += 1
                if found > 20:
                    break
    print(f"{found} findings in {given.findings}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

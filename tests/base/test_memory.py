"""Work that does not fit in memory is refused before it starts, with the size it needs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headfit as hf
from headfit._base import machine
from headfit._shrink.descent import Original, Running, closest
from headfit.errors import InputError

A = hf.patterns.band(12, 1)
FAR = np.broadcast_to(np.float32(1), (2**30, 1))
REQUESTS: dict[str, Callable[[], Any]] = {
    "attention_matrix": lambda: hf.attention_matrix(FAR, FAR),
    "attention_logits": lambda: hf.attention_logits(FAR, FAR),
    "attention_topk": lambda: hf.attention_topk(FAR, FAR, 1000),
    "attention_apply": lambda: hf.attention_apply(
        FAR, FAR, np.broadcast_to(np.float32(1), (2**30, 2**20))
    ),
    "rows": lambda: hf.Attention(FAR, FAR).matrix(rows=slice(0, 2**20)),
    "target": lambda: hf.Target(np.broadcast_to(2.0**-20, (2**20, 2**20))),
    "band": lambda: hf.patterns.band(2**31 - 1, 3),
    "strided": lambda: hf.patterns.strided(2**24, 2),
    "block": lambda: hf.patterns.block(2**24, 2**24),
    "bigbird": lambda: hf.patterns.bigbird(2**24, 1, 2**20, 1),
    "random_regular": lambda: hf.patterns.random_regular(2**30, 2**10),
    "permutation": lambda: hf.patterns.permutation(2**31 - 1),
    "grid2d": lambda: hf.patterns.grid2d(2**15, 2**15),
    "tree": lambda: hf.patterns.tree(2**30),
    "hypercube": lambda: hf.patterns.hypercube(2**30),
    "induction": lambda: hf.patterns.induction(np.zeros(2**20, np.int8), which="all"),
    "KeyTable.random": lambda: hf.methods.KeyTable.random(2**30, 2**10),
    "KeyTable.cyclic": lambda: hf.methods.KeyTable.cyclic(2**30, 2**10),
    "SelfAttention.random": lambda: hf.SelfAttention.random(2**18),
    "canonical": lambda: hf.SelfAttention.canonical(2**18).weights,
    "fit": lambda: hf.fit(A, 2**34),
    "fit(max-margin)": lambda: hf.fit(A, 2**34, method="max-margin"),
    "fit(projection)": lambda: hf.fit(A, 2**34, method="projection"),
    "shrink": lambda: closest(
        Original.of(hf.Attention(FAR[:64], FAR[:64]), None, 1), 2**15, Running.of()
    ),
    "sparsify": lambda: hf.sparsify(FAR, FAR, per_row=2**20),
    "tiles": lambda: hf.plot.tiles(hf.Attention(FAR, FAR), 2**20),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_that_does_not_fit_says_its_size(name: str) -> None:
    with pytest.raises(InputError, match=r"needs .* GiB of memory; .* GiB are free"):
        REQUESTS[name]()


def folder(root: Path, **files: str) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (root / name.replace("__", ".")).write_text(content, encoding="ascii")
    return root


def groups(lines: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    monkeypatch.setattr(machine, "CGROUPS", root)
    real = Path.read_text

    def read(path: Path, *args: Any, **more: Any) -> str:
        return lines if path == machine.GROUPS_OF_PROCESS else real(path, *args, **more)

    monkeypatch.setattr(Path, "read_text", read)
    return sorted(machine.memory_of_groups())


def test_control_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = folder(tmp_path / "a" / "b", memory__max="max\n", memory__current="7\n")
    folder(inner.parent, memory__max="1000", memory__current="400", memory__stat="inactive_file 50")
    assert groups("0::/a/b\n", tmp_path, monkeypatch) == [650]
    (inner / "memory.max").write_text("300\n")
    assert groups("0::/a/b\n", tmp_path, monkeypatch) == [293, 650]
    assert groups("0::/../../x\n", tmp_path, monkeypatch) == []

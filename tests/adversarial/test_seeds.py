"""The files that the fuzzer starts from or has found are read or refused, without other errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.adversarial import fuzz_readers

SEEDS = sorted(path for path in fuzz_readers.SEEDS.rglob("*") if path.is_file())


@pytest.mark.parametrize("path", SEEDS, ids=lambda path: f"{path.parent.name}-{path.name}")
@pytest.mark.filterwarnings("ignore:overflow|invalid value:RuntimeWarning")
def test_a_seed_is_read_or_refused(path: Path, tmp_path: Path) -> None:
    was_read = fuzz_readers.read(path.parent.name, path.read_bytes(), tmp_path)
    assert was_read or path.name.startswith(("crash", "timeout", "oom"))


@pytest.mark.parametrize("kind", fuzz_readers.READERS)
@pytest.mark.filterwarnings("ignore:overflow|invalid value:RuntimeWarning")
def test_a_seed_with_one_byte_changed_is_read_or_refused(kind: str, tmp_path: Path) -> None:
    for path in SEEDS:
        if path.parent.name != kind:
            continue
        raw = path.read_bytes()
        for place in range(0, len(raw), max(1, len(raw) // 60)):
            for byte in (0, 255, raw[place] ^ 1):
                changed = raw[:place] + bytes([byte]) + raw[place + 1 :]
                fuzz_readers.read(kind, changed, tmp_path)

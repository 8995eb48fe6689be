"""The core at every CPU level that is built, chosen by HEADFIT_CPU: the same answers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import headfit as hf
from headfit import _build, _core

CONFIG = hf.show_config()
USABLE = [level for level in CONFIG.built if level in (*CONFIG.supported, "native")]
PACKAGE = str(Path(hf.__file__).parents[1])

WORK = """
import sys
import numpy as np
import headfit as hf

found = hf.show_config()
rng = np.random.default_rng(0)
Q, K = rng.standard_normal((2, 2, 70, 24))
A = hf.patterns.random_regular(64, 3, rng=1)
fit = hf.fit(A, 9, leak=0.1, distortion=0.2, rng=2)
strict = hf.certify(A, fit, leak=1e-6, distortion=1e-6)
np.savez(
    sys.argv[1],
    cpu=found.cpu,
    flags=found.flags,
    float32=hf.attention_matrix(*np.float32([Q, K]), mask="causal"),
    float64=hf.attention_matrix(Q, K, mask="causal"),
    top=hf.attention_topk(Q, K, 5)[0],
    entropy=hf.attention_stats(Q, K).entropy,
    verdicts=[fit.certificate.status, strict.status],
    Q=fit.Q,
    K=fit.K,
    scale=fit.scale,
    leak=fit.certificate.leak,
    distortion=fit.certificate.distortion,
)
"""


def python(level: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HEADFIT_CPU": level, "PYTHONPATH": PACKAGE}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, np.ndarray]]:
    found = {}
    for level in USABLE:
        path = tmp_path_factory.mktemp("levels") / f"{level}.npz"
        run = python(level, "-c", WORK, str(path))
        assert run.returncode == 0, run.stderr
        with np.load(path) as file:
            found[level] = dict(file)
    return found


@pytest.mark.parametrize("level", USABLE)
def test_the_level_asked_for_is_in_use(answers, level):
    assert answers[level]["cpu"] == level
    if level in ("v2", "v3", "v4"):
        assert str(answers[level]["flags"]).split()[-1] == f"-march=x86-64-{level}"


@pytest.mark.parametrize("level", USABLE)
def test_attention_agrees_with_numpy(answers, level):
    Q, K = np.random.default_rng(0).standard_normal((2, 2, 70, 24))
    logits = Q @ K.swapaxes(1, 2) / np.sqrt(24)
    full = np.exp(logits) / np.exp(logits).sum(axis=2, keepdims=True)
    causal = np.tril(np.exp(logits))
    causal /= causal.sum(axis=2, keepdims=True)
    got = answers[level]
    np.testing.assert_allclose(got["float64"], causal, rtol=1e-13)
    np.testing.assert_allclose(got["float32"], causal, rtol=1e-5)
    np.testing.assert_array_equal(np.sort(got["top"]), np.sort(np.argsort(-full)[..., :5]))
    np.testing.assert_allclose(got["entropy"], -(full * np.log(full)).sum(axis=2), rtol=1e-12)


# This program makes heads of all kinds; its argument is the folder to save them in.
MAKE = """
import sys
from pathlib import Path
import numpy as np
import headfit as hf

folder = Path(sys.argv[1])
A = hf.patterns.random_regular(64, 3, rng=1)
causal = hf.Target(hf.patterns.causal_band(64, 4), mask="causal")
asked = {"leak": 0.1, "distortion": 0.2, "rng": 2}
heads = {
    "learned": hf.fit(A, 9, **asked),
    "causal": hf.fit(causal, 6, **asked),
    "bfloat16": hf.fit(A, 11, dtype="bfloat16", **asked),
    "float16": hf.fit(A, 11, dtype="float16", max_logit=30.0, **asked),
    "module": hf.fit(A, 9, module=hf.SelfAttention.random(9, rng=3), **asked),
    "max-margin": hf.fit(A, 40, method="max-margin", dtype="float64", **asked),
    "projection": hf.fit(A, 4000, method="projection", leak=0.4, distortion=9.0, rng=2),
}
for name, head in heads.items():
    assert head.certificate.holds, (name, head.certificate)
    head.save(folder / f"{name}.npz")
"""

# This program certifies the heads of all levels; its arguments are their folders.
JUDGE = """
import sys
from pathlib import Path
import headfit as hf

for path in (path for folder in sys.argv[1:] for path in sorted(Path(folder).iterdir())):
    head = hf.load(path)
    old = head.certificate
    A = hf.patterns.random_regular(64, 3, rng=1)
    if path.stem == "causal":
        A = hf.Target(hf.patterns.causal_band(64, 4), mask="causal")
    new = hf.certify(
        A, head, tolerances=old.tolerances,
        kernel=old.kernel,
    )
    print(path.stem, old.status, new.status)
"""


@pytest.mark.full
@pytest.mark.parametrize("level", USABLE)
def test_every_certificate_holds_again_at_every_level(made, level):
    run = python(level, "-c", JUDGE, *map(str, made))
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert len(lines) == 7 * len(USABLE)
    assert {line.split(maxsplit=1)[1] for line in lines} == {"holds holds"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folders = [tmp_path_factory.mktemp(f"heads-of-{level}") for level in USABLE]
    for level, folder in zip(USABLE, folders, strict=True):
        run = python(level, "-c", MAKE, str(folder))
        assert run.returncode == 0, run.stderr
    return folders


@pytest.mark.parametrize("level", USABLE)
def test_heads_of_one_level_are_certified_by_another(answers, level):
    # Levels round differently, so descents find different heads, which must all be certified.
    got = answers[level]
    assert got["verdicts"].tolist() == ["holds", "fails"]
    A = hf.patterns.random_regular(64, 3, rng=1)
    here = hf.certify(A, got["Q"], got["K"], scale=float(got["scale"]), leak=0.1, distortion=0.2)
    assert here.holds
    np.testing.assert_allclose(
        [here.leak, here.distortion], [got["leak"], got["distortion"]], rtol=1e-4
    )


@pytest.mark.full
def test_a_level_that_cannot_be_is_an_import_error():
    impossible = {"v5", "V3", "x86-64-v3", "none"} | set(_build.LEVELS) - set(USABLE)
    for level in sorted(impossible):
        run = python(level, "-c", "from headfit import fit")
        assert run.returncode == 1
        (line,) = [line for line in run.stderr.splitlines() if line.startswith("ImportError")]
        assert f"HEADFIT_CPU must be one of {', '.join(USABLE)}, or unset; got '{level}'" in line
        assert f"built are {', '.join(CONFIG.built)};" in line
        assert f"this CPU supports {', '.join(CONFIG.supported)}" in line


def test_without_the_variable_the_highest_is_taken():
    for unset in ("", None):
        environment = {k: v for k, v in os.environ.items() if k != "HEADFIT_CPU"}
        if unset is not None:
            environment["HEADFIT_CPU"] = unset
        code = "import headfit; print(headfit.show_config().cpu)"
        command = [sys.executable, "-c", code]
        environment["PYTHONPATH"] = PACKAGE
        assert subprocess.check_output(command, env=environment, text=True).strip() == USABLE[-1]


def test_only_one_level_is_loaded():
    code = "import sys, headfit; headfit.fit; print(*(m for m in sys.modules if 'fit._core' in m))"
    for level in USABLE:
        loaded = sorted(python(level, "-c", code).stdout.split())
        assert loaded == ["headfit._core", f"headfit._core_{level}"]


@pytest.mark.parametrize(
    ("built", "supported", "forced", "expected"),
    [
        (("v2", "v3", "v4"), ("generic", "v2", "v3", "v4"), "", "v4"),
        (("v2", "v3", "v4"), ("generic", "v2", "v3"), "", "v3"),
        (("v2", "v3", "v4"), ("generic", "v2", "v3"), "v2", "v2"),
        (("generic", "v3"), ("generic", "v2"), "", "generic"),
        (("native",), ("generic",), "", "native"),
        (("v2", "v3", "v4"), ("generic", "v2", "v3"), "v4", None),
        (("v2", "v3"), ("generic",), "", None),
        (("v3",), ("generic", "v2", "v3", "v4"), "v2", None),
        ((), ("generic",), "", None),
    ],
)
def test_choice(monkeypatch, built, supported, forced, expected):
    monkeypatch.setattr(_build, "built", lambda: built)
    monkeypatch.setattr(_build, "supported", lambda: supported)
    monkeypatch.setenv("HEADFIT_CPU", forced)
    if expected is None:
        with pytest.raises(ImportError) as caught:
            _build.choose()
        assert f"built are {', '.join(built) or 'none'}; " in str(caught.value)
        assert f"this CPU supports {', '.join(supported)}" in str(caught.value)
    else:
        assert _build.choose() == expected


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="asks the Linux kernel")
def test_supported_levels_are_those_of_the_kernel():
    needs = {  # as the psABI says, with the kernel's names: abm is lzcnt, pni is SSE3
        "v2": "cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3",
        "v3": "avx avx2 bmi1 bmi2 f16c fma abm movbe xsave",
        "v4": "avx512f avx512bw avx512cd avx512dq avx512vl",
    }
    (line, *_) = [x for x in Path("/proc/cpuinfo").read_text().splitlines() if "flags" in x] or [""]
    flags, expected = set(line.split()), ["generic"]
    for level, names in needs.items():
        if not set(names.split()) <= flags:
            break
        expected.append(level)
    assert list(CONFIG.supported) == expected


def test_config():
    assert CONFIG.cpu in USABLE
    assert CONFIG.supported[0] == "generic"
    assert (CONFIG.version, CONFIG.numpy) == (hf.__version__, np.__version__)
    assert CONFIG.threads >= 1
    assert _core.__name__ == f"headfit._core_{CONFIG.cpu}"
    text = repr(CONFIG)
    for value in (CONFIG.cpu, CONFIG.compiler, CONFIG.flags, CONFIG.eigen, CONFIG.scipy):
        assert value in text

"""Certificates compared with the truth: one call, many calls, and the lies that are found."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from tests.adversarial import generators, oracle
from tests.adversarial.flushing import can_flush, flushing, is_flushing
from tests.adversarial.generators import Head
from tests.adversarial.truth import may_be_refused, truth_of

import headfit as hf
from headfit.errors import HeadfitError

try:
    import torch
except ImportError:  # bfloat16 then comes as records of 16 bits
    torch = None

RECORD = np.dtype([("bfloat16", np.uint16)])
LIES = (
    "false holds", "false fails", "false bound", "false place", "unfair refusal", "accepted",
    "crash", "register",
)  # fmt: skip
STEPS = (-(10**12), -(10**6), -1000, -30, -3, -2, -1, 0, 1, 2, 3, 30, 1000, 10**6, 10**12)
CAN_FLUSH = can_flush()


@dataclass(frozen=True)
class Tolerances:
    leak: float
    distortion: float
    size: float = math.inf


ANY = Tolerances(0.5, 0.5)

# Calls -------------------------------------------------------------------------------------


FORMS = ("plain", "tensor", "strided", "transposed")


def stored(x: np.ndarray, dtype: str, form: str = "plain") -> Any:
    """Return numbers as a user would hold them in a dtype."""
    if form == "strided":
        spread = np.full((2 * x.shape[0], 2 * x.shape[1]), 7.0)
        spread[::2, ::2] = x
        return stored(spread, dtype)[::2, ::2]
    if form == "transposed":
        return stored(x.T, dtype).T
    if form == "tensor" and torch is not None:
        tensor = torch.from_numpy(np.ascontiguousarray(x))
        with np.errstate(all="ignore"):
            return tensor.to(getattr(torch, dtype))
    with np.errstate(over="ignore"):
        if dtype == "bfloat16":
            bits = np.ascontiguousarray(x, np.float32).view(np.uint32) >> 16
            return bits.astype(np.uint16).view(RECORD)
        return np.ascontiguousarray(x, dtype)


def with_stored_zeros(A: np.ndarray) -> sp.coo_array:
    """Return A as a sparse array that stores zeros of both signs, in no order."""
    n = len(A)
    rows, columns = np.divmod(np.arange(n * n)[::-1], n)
    values = A[rows, columns]
    values[values == 0] *= -1
    kept = (values != 0) | (columns % 2 == 0)
    return sp.coo_array((values[kept], (rows[kept], columns[kept])), shape=A.shape)


class Call:
    """A head as arguments of `certify`, made once and called with several tolerances."""

    def __init__(self, head: Head, form: str = "plain", apart: bool = False) -> None:
        self.head = head
        self.form = form
        # Whether certify() gets Q and K and a plain matrix, instead of an Attention and a Target.
        self.apart = apart
        # The arrays are made before flushing is on, which would change them.
        self.arrays = self._arrays()
        self.target = with_stored_zeros(head.A) if apart else None
        self.made: tuple[tuple, dict] | None = None

    def _arrays(self) -> tuple[Any, ...]:
        h, dtype = self.head, self.head.dtype
        if h.reading == "matrix":
            return (stored(h.M, dtype, self.form),)
        if h.is_module:
            # The module widens 16-bit weights, which is exact.
            weights = (stored(w, h.weights_dtype, self.form) for w in (h.W_Q, h.W_K))
            return (stored(h.X, dtype, self.form), *weights)
        return stored(h.Q, dtype, self.form), stored(h.K, h.k_dtype or dtype, self.form)

    def arguments(self) -> tuple[tuple, dict]:
        if self.made is None:
            h = self.head
            arrays = self.arrays
            A = hf.Target(h.A, mask=h.mask) if self.target is None else self.target
            keywords: dict[str, Any] = dict(h.options)
            if h.reading == "matrix":
                keywords.pop("certificate_mass", None)
                keywords.update(matrix=arrays[0], mask=h.mask)
                self.made = (A,), keywords
                return self.made
            keywords["kernel"] = hf.Kernel(**h.kernel)
            if h.is_module:
                module = hf.SelfAttention(arrays[1], arrays[2], scale=h.scale)
                attention = module(arrays[0], mask=h.mask)
                self.made = (A, attention), keywords
                return self.made
            if self.apart and h.softcap is None and h.bias is None:
                keywords.update(scale=h.scale, mask=h.mask)
                self.made = (A, *arrays), keywords
            else:
                usual = h.scale == 1 / math.sqrt(h.Q.shape[1])
                scale = None if usual else h.scale
                more = {"softcap": h.softcap, "bias": h.bias}
                self.made = (A, hf.Attention(*arrays, scale=scale, mask=h.mask, **more)), keywords
        return self.made

    def __call__(self, tolerances: Tolerances) -> Any:
        """Return the certificate; flushing is on during the call where the head asks for it."""
        flush = self.head.flush and CAN_FLUSH
        with flushing(flush):
            before = is_flushing() if flush else False
            try:
                args, keywords = self.arguments()
                found = hf.certify(
                    *args,
                    leak=tolerances.leak,
                    distortion=tolerances.distortion,
                    **keywords,
                    **({} if tolerances.size == math.inf else {"max_logit": tolerances.size}),
                )
            finally:
                after = is_flushing() if flush else False
                self.register_kept = before == after
        if not flush:
            self.register_kept = not is_flushing()
        return found


# Judging -----------------------------------------------------------------------------------


@dataclass
class Outcome:
    status: str
    lies: list[tuple[str, str]] = field(default_factory=list)  # kind, and a sentence
    away: int = 0
    missed: int = 0
    rows_undecided: int = 0


def judge(
    call: Call, truth: oracle.Truth, tolerances: Tolerances, refusable: bool | None = None
) -> Outcome:
    """Call `certify` and compare what it says with the truth."""
    head = call.head
    try:
        c = call(tolerances)
    except HeadfitError as error:
        found = Outcome("refused")
        if not (may_be_refused(head) if refusable is None else refusable):
            found.lies.append(("unfair refusal", f"{type(error).__name__}: {error}"))
        return found
    except Exception as error:
        return Outcome("refused", [("crash", f"{type(error).__name__}: {error}")])
    found = Outcome(c.status)
    if not call.register_kept:
        found.lies.append(("register", "certify changed the control register"))
    _judge_rows(c, truth, tolerances, found)
    _judge_whole(c, truth, head, found)
    return found


def judge_spoiled(call: Call, tolerances: Tolerances) -> Outcome:
    """Call `certify` with NaN or infinity in a place that matters: it must be refused."""
    try:
        c = call(tolerances)
    except HeadfitError:
        return Outcome("refused")
    except Exception as error:
        return Outcome("refused", [("crash", f"{type(error).__name__}: {error}")])
    return Outcome(c.status, [("accepted", "a certificate about NaN or infinity")])


def _judge_rows(c: Any, truth: oracle.Truth, tolerances: Tolerances, found: Outcome) -> None:
    limits = tolerances.leak, tolerances.distortion, tolerances.size
    leaks, distortions = c.row_leak.tolist(), c.row_distortion.tolist()
    any_misses = False
    vanishes = False
    for i, status in enumerate(c.row_status.tolist()):
        misses = truth.misses(i, *limits)
        any_misses |= misses
        gone = any(r.vanishes for r in truth.rows[i])
        vanishes |= gone
        if status == 0 and misses:
            found.lies.append(("false holds", f"row {i} misses a tolerance"))
        if status == 1 and not misses and not gone:
            found.lies.append(("false fails", f"row {i} meets the tolerances"))
        if truth.leak_exceeds(i, leaks[i]):
            found.lies.append(("false bound", f"row_leak[{i}] = {leaks[i]!r} is too small"))
        if truth.distortion_exceeds(i, distortions[i]):
            found.lies.append(
                ("false bound", f"row_distortion[{i}] = {distortions[i]!r} is too small")
            )
        if truth.should_be_decided(i, *limits):
            found.away += 1
            found.missed += status == 2
        found.rows_undecided += status == 2
    if c.status == "holds" and any_misses:
        found.lies.append(("false holds", "a row misses a tolerance"))
    if c.status == "fails" and not any_misses and not vanishes:
        found.lies.append(("false fails", "every row meets the tolerances"))


def _judge_whole(c: Any, truth: oracle.Truth, head: Head, found: Outcome) -> None:
    for name, rows in (("leak", c.row_leak), ("distortion", c.row_distortion)):
        if not getattr(c, name) >= rows.max():
            found.lies.append(("false bound", f"{name} = {getattr(c, name)!r} is below a row's"))
    _judge_places(c, head.A, found)
    if head.reading == "matrix":
        return
    if any(truth.size_exceeds(i, c.max_logit) for i in range(len(truth.rows))):
        found.lies.append(("false bound", f"max_logit = {c.max_logit!r} is too small"))
    for name in ("q_norm", "k_norm"):
        key = name, getattr(c, name)
        if key not in truth.known:
            truth.known[key] = _is_norm_bound(*_rows_of(head, name[0].upper()), key[1])
        if not truth.known[key]:
            found.lies.append(("false bound", f"{name} = {key[1]!r} is too small"))


def _rows_of(head: Head, name: str) -> tuple[list, int]:
    """Return the queries or the keys that a certificate is about, as integers times 2**e."""
    if head.is_module:
        return generators.module_product(head.X, head.W_Q if name == "Q" else head.W_K)
    x = head.Q if name == "Q" else head.K
    if head.eager:  # what the kernel reads
        x = generators.dyadic.round_array(x, head.eager)
    return generators.dyadic.integers(x)


def _judge_places(c: Any, A: np.ndarray, found: Outcome) -> None:
    """Check that the columns a certificate names are on the support or off it, as it says."""
    if c.worst_leak is not None:
        row, off, on = c.worst_leak
        if A[row, off] != 0 or A[row, on] == 0:
            found.lies.append(("false place", f"worst_leak = {c.worst_leak}"))
    if c.worst_distortion is not None:
        row, heavy, light = c.worst_distortion
        if A[row, heavy] == 0 or A[row, light] == 0:
            found.lies.append(("false place", f"worst_distortion = {c.worst_distortion}"))


def _is_norm_bound(rows: list, e: int, bound: float) -> bool:
    if bound == math.inf:
        return True
    if not bound >= 0:
        return False
    most = max(sum(v * v for v in row) for row in rows)
    p, q = bound.as_integer_ratio()
    left, right = most * q * q, p * p
    return (left << 2 * e) <= right if e >= 0 else left <= (right << -2 * e)


# Tolerances --------------------------------------------------------------------------------


def _near(rng, x: float) -> float:
    steps = int(rng.choice(STEPS))
    with np.errstate(over="ignore"):
        return float(x + steps * np.spacing(x)) if math.isfinite(x) else x


def tolerances_for(rng, truth: oracle.Truth, head: Head) -> list[Tolerances]:
    """Return tolerances as users choose them, and some within a few ulps of the true values."""
    made = [
        Tolerances(float(rng.choice([0.05, 0.3, 0.9])), float(rng.choice([0.1, 1.0, 1e-9, 0.0])))
    ]
    rows = [r for many in truth.rows for r in many if not r.undefined]
    if not rows:
        return made
    top = 1 - 2.0**-53, 1e300
    least = 2.0**-1022 if head.flush else 0.0  # flushing makes smaller tolerances zero
    worst = max(rows, key=lambda r: r.log_leak)
    chosen = [worst, rows[int(rng.integers(len(rows)))]]
    leaks = [_near(rng, r.leak()) for r in (worst, *chosen) if r.log_leak < 0]
    leaks = [x for x in leaks if least < x < 1]
    made += [Tolerances(x, top[1]) for x in leaks]
    worst = max(rows, key=lambda r: r.log_distortion)
    chosen = [worst, worst, rows[int(rng.integers(len(rows)))]]
    distortions = [_near(rng, r.distortion()) for r in chosen]
    distortions = [x for x in distortions if 0 <= x < math.inf]
    made += [Tolerances(top[0], x) for x in distortions]
    if leaks and distortions:
        made.append(Tolerances(leaks[0], distortions[0]))
    if head.reading != "matrix" and rng.random() < 0.5:
        size = max((oracle.dyadic.to_float(r.size or 0, r.e) for r in rows), default=0.0)
        size = _near(rng, size)
        if least < size < math.inf:
            made.append(Tolerances(*top, size))
    return list(dict.fromkeys(made))


# Many cases --------------------------------------------------------------------------------


@dataclass
class Lie:
    kind: str
    sentence: str
    head: Head
    tolerances: Tolerances
    form: str = "plain"
    apart: bool = False


@dataclass
class Tally:
    """Counts by (dtype, reading) and by family, and the first lies of each kind."""

    cells: dict[tuple[str, str], Counter] = field(default_factory=dict)
    families: dict[str, Counter] = field(default_factory=dict)
    lies: list[Lie] = field(default_factory=list)

    def add(self, head: Head, outcome: Outcome, what: str = "cases") -> None:
        for table, key in ((self.cells, (head.dtype, head.reading)), (self.families, head.family)):
            counts = table.setdefault(key, Counter())
            counts[what] += 1
            counts[outcome.status] += what == "cases"
            counts["away"] += outcome.away
            counts["missed"] += outcome.missed
            counts["rows undecided"] += outcome.rows_undecided
            counts.update({kind for kind, _ in outcome.lies})

    def merge(self, other: Tally) -> None:
        for mine, theirs in ((self.cells, other.cells), (self.families, other.families)):
            for key, counts in theirs.items():
                mine.setdefault(key, Counter()).update(counts)
        self.lies.extend(other.lies)

    @property
    def number_of_lies(self) -> int:
        return sum(counts[kind] for counts in self.cells.values() for kind in LIES)

    def table(self, cells: dict) -> str:
        columns = (
            "cases",
            "spoiled",
            "holds",
            "fails",
            "undecided",
            "refused",
            "away",
            "missed",
            *LIES,
        )
        width = max(len(_name(key)) for key in cells)
        lines = [" ".join([" " * width, *(f"{c:>9}" for c in columns), "missed/away"])]
        for key, n in cells.items():
            share = n["missed"] / n["away"] if n["away"] else 0
            counts = " ".join(f"{n[c]:>{max(9, len(c))}}" for c in columns)
            lines.append(f"{_name(key):<{width}} {counts} {share:>11.3%}")
        return "\n".join(lines)


def _name(key: Any) -> str:
    return key if isinstance(key, str) else "  ".join(key)


def attack(
    dtype: str, reading: str, cases: int, seed: int, families: list[str] | None = None,
    keep: int = 3,
) -> Tally:  # fmt: skip
    """Make cases of one dtype and reading, all families in turn, and judge them."""
    names = families or list(generators.FAMILIES)
    tally = Tally()
    key = (seed, generators.DTYPES.index(dtype), generators.READINGS.index(reading))
    rng = np.random.default_rng(key)
    done = index = 0
    while done < cases:
        family = names[index % len(names)]
        index += 1
        head, logits, e = generators.head(rng, family, dtype, reading)
        truth = truth_of(head, logits, e)
        form = "plain" if rng.random() < 0.8 else str(rng.choice(FORMS))
        call = Call(head, form, apart=rng.random() < 0.1)
        refusable = may_be_refused(head)
        for tolerances in tolerances_for(rng, truth, head):
            outcome = judge(call, truth, tolerances, refusable)
            tally.add(head, outcome)
            done += 1
            for kind, sentence in outcome.lies:
                if sum(lie.kind == kind for lie in tally.lies) < keep:
                    tally.lies.append(Lie(kind, sentence, head, tolerances, form, call.apart))
        spoiled = generators.spoiled(rng, head) if rng.random() < 0.1 else None
        if spoiled is not None:
            outcome = judge_spoiled(Call(spoiled, form), ANY)
            tally.add(spoiled, outcome, "spoiled")
            for kind, sentence in outcome.lies:
                if sum(lie.kind == kind for lie in tally.lies) < keep:
                    tally.lies.append(Lie(kind, sentence, spoiled, ANY, form))
    return tally


def truth_again(head: Head) -> oracle.Truth:
    """Return the truth about a head from its stored numbers alone."""
    if head.reading == "matrix":
        return truth_of(head, [], 0)
    if head.is_module:
        made = generators.module_logits(head.X, head.W_Q, head.W_K, head.scale)
    else:
        made = generators.exact_product(head.Q, head.K, head.scale)
        if head.bias is not None:
            made = generators.with_bias(*made, head.bias)
    return truth_of(head, *made)


def lies_of(lie: Lie) -> list[tuple[str, str]]:
    """Judge the case of a lie once more."""
    call = Call(lie.head, lie.form, lie.apart)
    if lie.kind == "accepted":
        return judge_spoiled(call, lie.tolerances).lies
    return judge(call, truth_again(lie.head), lie.tolerances).lies


# Reproductions -----------------------------------------------------------------------------


def reduce(lie: Lie) -> Lie:
    """Leave out coordinates, tokens and settings as long as the lie stays the same."""
    changed = True
    while changed:
        changed = False
        for smaller in _smaller(lie):
            try:
                found = dict(lies_of(smaller))
            except (ValueError, IndexError, ZeroDivisionError):
                continue
            if lie.kind in found:
                lie = replace(smaller, sentence=found[lie.kind])
                changed = True
                break
    return lie


def _smaller(lie: Lie):
    h = lie.head
    n = len(h.A)
    for i in range(n):
        keep = [j for j in range(n) if j != i]
        if not keep or h.A[keep, i].any() or isinstance(h.mask, tuple):
            continue
        cut = {
            name: None if getattr(h, name) is None else getattr(h, name)[keep]
            for name in ("Q", "K", "X")
        }
        cut["A"] = h.A[np.ix_(keep, keep)]
        for name in ("M", "bias"):
            square = getattr(h, name)
            cut[name] = None if square is None else square[np.ix_(keep, keep)]
        mask = h.mask
        if mask is not None and not isinstance(mask, str):
            dense = np.array(oracle.allowed_matrix(mask, n))[np.ix_(keep, keep)]
            mask = None if dense.all() else dense
        yield replace(lie, head=replace(h, mask=mask, **cut))
    if h.Q is not None:
        for p in range(h.Q.shape[1] if h.Q.shape[1] > 1 else 0):
            cut = {name: np.delete(getattr(h, name), p, 1) for name in ("Q", "K")}
            yield replace(lie, head=replace(h, **cut))
    if h.X is not None:
        for p in range(h.X.shape[1] if h.X.shape[1] > 1 else 0):
            cut = {name: np.delete(getattr(h, name), p, 0) for name in ("W_Q", "W_K")}
            yield replace(lie, head=replace(h, X=np.delete(h.X, p, 1), **cut))
        for p in range(h.W_Q.shape[1] if h.W_Q.shape[1] > 1 else 0):
            cut = {name: np.delete(getattr(h, name), p, 1) for name in ("W_Q", "W_K")}
            yield replace(lie, head=replace(h, **cut))
    for name in ("mask", "softcap", "bias"):
        if getattr(h, name) is not None:
            yield replace(lie, head=replace(h, **{name: None}))
    if h.flush:
        yield replace(lie, head=replace(h, flush=False))
    if h.options.get("num_threads", 1) != 1 or h.options.get("certificate_mass", True):
        yield replace(lie, head=replace(h, options={"certificate_mass": False, "num_threads": 1}))
    if lie.form != "plain" or lie.apart:
        yield replace(lie, form="plain", apart=False)


def _array(x: np.ndarray, dtype: str) -> str:
    rows = repr(x.tolist()).replace("nan", "np.nan").replace("inf", "np.inf")
    if dtype == "bfloat16":
        return f"torch.tensor({rows}, dtype=torch.float64).to(torch.bfloat16)"
    return f"np.array({rows}, np.{dtype})"


def as_code(lie: Lie) -> str:
    """Return Python code that makes the call."""
    h, t = lie.head, lie.tolerances
    lines = [f"# {lie.kind} ({h.family}, {h.dtype}, {h.reading}): {lie.sentence}"]
    lines.append("import numpy as np, headfit as hf")
    mask = h.mask
    if mask is not None and not isinstance(mask, str | tuple):
        mask = f"np.array({np.array(oracle.allowed_matrix(mask, len(h.A))).tolist()})"
    else:
        mask = repr(mask)
    body = [f"A = {_array(h.A, 'float64')}"]
    options = {**h.options, "leak": t.leak, "distortion": t.distortion}
    if t.size != math.inf:
        options["max_logit"] = t.size
    if h.reading == "matrix":
        options.pop("certificate_mass", None)
        body.append(f"M = {_array(h.M, h.dtype)}")
        call = "hf.certify(T, matrix=M, mask=T.mask"
    elif h.is_module:
        body.append(f"X = {_array(h.X, h.dtype)}")
        body += [f"{w} = {_array(x, h.weights_dtype)}" for w, x in (("W_Q", h.W_Q), ("W_K", h.W_K))]
        call = f"hf.certify(T, hf.SelfAttention(W_Q, W_K, scale={h.scale!r})(X, mask=T.mask)"
        options["kernel"] = h.kernel
    else:
        body += [f"Q = {_array(h.Q, h.dtype)}", f"K = {_array(h.K, h.k_dtype or h.dtype)}"]
        body += [] if h.bias is None else [f"bias = {_array(h.bias, 'float64')}"]
        more = "" if h.bias is None else ", bias=bias"
        more += "" if h.softcap is None else f", softcap={h.softcap!r}"
        call = f"hf.certify(T, hf.Attention(Q, K, scale={h.scale!r}, mask=T.mask{more})"
        options["kernel"] = h.kernel
    # Flushing is turned on after the arrays are made, since it would change them.
    body += ["torch.set_flush_denormal(True)"] if h.flush else []
    body.append(f"T = hf.Target(A, mask={mask})")
    text = "".join(f", {name}={value!r}" for name, value in options.items())
    body.append(f"print({call}{text}))")
    uses_torch = h.flush or any("torch" in line for line in body)
    lines += ["import torch"] if uses_torch else []
    return "\n".join(lines + body)

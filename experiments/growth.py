"""Curve 1: the head size against the number of tokens.

For random k-regular patterns: the smallest sizes found by the learned method, by max-margin
queries for random and cyclic keys, and by the construction of the paper's proof; a size that is
proved to suffice, and sizes that are proved to be necessary.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import rings
from common import compute_and_draw, save, write_csv
from fits import BASE, Search, make_searches, point, run, smallest
from growth_picture import draw_growth

import headfit as hf

KNOWN = {
    2: dict.fromkeys((64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768), 4),
    4: {64: 5, 128: 6, 256: 6, 512: 6, 1024: 7, 2048: 7, 4096: 8, 8192: 9, 16_384: 10,
        32_768: 11, 65_536: 12},
    8: {64: 8, 128: 9, 256: 10, 512: 11, 1024: 12, 2048: 14, 4096: 16, 8192: 18, 16_384: 20,
        32_768: 22},
    16: {64: 14, 128: 15, 256: 17, 512: 19, 1024: 22, 2048: 26, 4096: 29, 8192: 33, 16_384: 38},
}  # fmt: skip
"""Head sizes to start from, for each k and n: found in earlier runs, or guessed."""

KNOWN_RANDOM = {4096: 55, 8192: 67, 16_384: 70, 32_768: 77, 65_536: 86, 100_000: 91}
"""The same for random keys and k = 4."""


WITH_ROOM = "learned, with room"


def learned(k, sizes, seeds=(0, 1, 2), **more):
    """Return the searches of the learned method for some n."""
    return [Search({"n": n, "k": k}, KNOWN[k][n], seeds, **more) for n in sizes]


def only_known(k, sizes, seeds=(0, 1, 2)):
    """Return searches that try no smaller size than the known one, which would take hours."""
    return [Search({"n": n, "k": k}, KNOWN[k][n], seeds, lowest=KNOWN[k][n]) for n in sizes]


def at_size(way, n, k, dim, seeds):
    """Return a search that tries this size alone, in one of the ways of `fits.LEARNED`."""
    return [Search({"method": way, "n": n, "k": k}, dim, seeds, lowest=dim, further=0)]


def patient(n, k, dim, seeds=(0, 1, 2)):
    """Return a search of one size with more effort and many reheats."""
    return at_size("learned, patient", n, k, dim, seeds)


def with_room(n, k, dim):
    """Return a search of one size that is larger than the smallest that would be found."""
    return at_size(WITH_ROOM, n, k, dim, (0, 1, 2))


def random_keys(k, sizes, seeds=(0, 1, 2)):
    """Return the searches of max-margin queries for random keys."""
    return [
        Search({"method": "random keys", "n": n, "k": k},
               KNOWN_RANDOM.get(n, hf.bounds.random_keys_dim(n, k) + 6), seeds, further=30)
        for n in sizes
    ]  # fmt: skip


def points(method, k, sizes, **more):
    """Return points of a method that has no size to search for."""
    return [point(method=method, k=k, n=n, **more) for n in sizes]


def cyclic(k, sizes):
    """Return the fits of cyclic keys with the 2 k dimensions that suffice in exact arithmetic."""
    return points("cyclic keys", k, sizes, dim=2 * k, dtype="float64")


# Each plan is a list of parts, made one after the other, the quicker ones first.
PLANS = {
    "tiny": [learned(2, (64, 128), (0,), lowest=4) + random_keys(2, (64,), (0,))],
    "quick": [learned(2, (64, 128, 256), (0,)) + learned(4, (64, 128, 256, 512), (0,))
              + learned(8, (64, 128, 256), (0,)) + random_keys(4, (64, 128, 256, 512), (0,))],
    "full": [
        learned(2, (64, 128, 256, 512, 1024, 2048)) + learned(4, (64, 128, 256, 512, 1024, 2048)),
        learned(8, (64, 128, 256, 512)) + learned(16, (64, 128, 256)),
        random_keys(4, (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384)),
        only_known(2, (4096, 8192)) + only_known(4, (4096,)) + only_known(8, (1024,)),
        only_known(16, (512,)) + only_known(8, (2048,), (0,)) + only_known(4, (8192,), (0,)),
        only_known(2, (16_384,), (0,)) + only_known(4, (16_384,), (0,)),
        only_known(4, (32_768,), (0,)) + only_known(8, (4096,), (0,)),
        only_known(4, (65_536,), (0,)) + only_known(16, (1024,), (0,)),
        only_known(8, (2048,)) + only_known(4, (8192,)),
        # From here on hours: one size less at larger n, and the largest n on three seeds.
        learned(16, (512,)) + learned(8, (1024, 2048)) + learned(4, (4096,)),
        only_known(4, (16_384,)) + only_known(8, (4096, 8192)),
        only_known(16, (1024, 2048)) + only_known(4, (32_768,)) + only_known(2, (16_384,)),
        patient(4096, 8, 15, (0,)) + patient(1024, 16, 21, (0,)) + patient(16_384, 4, 9),
        patient(32_768, 4, 10), patient(65_536, 4, 11, (0,)) + patient(100_000, 4, 12, (0,)),
        only_known(8, (16_384, 32_768)) + only_known(16, (4096, 8192, 16_384)),
        with_room(65_536, 2, 5) + with_room(100_000, 2, 5),
        with_room(65_536, 8, 27) + with_room(100_000, 8, 30),
        with_room(32_768, 16, 43) + with_room(65_536, 16, 60) + with_room(100_000, 16, 64),
        # With more effort and many reheats, one size less than the defaults find.
        patient(128, 4, 5) + patient(8192, 4, 8, (0,)) + patient(2048, 8, 13, (0,)),
        patient(64, 16, 13) + patient(128, 16, 14) + patient(256, 16, 16) + patient(512, 16, 18),
        patient(2048, 16, 25) + patient(2048, 16, 24) + patient(4096, 16, 28),
        patient(100_000, 4, 12) + patient(65_536, 4, 11),
        random_keys(4, (32_768, 65_536, 100_000)) + only_known(2, (32_768,)) + patient(8192, 8, 17),
    ],
}  # fmt: skip


def rings_by_hand(sizes, seeds):
    """Return the fits of rings on a sphere, for k = 2."""
    return [point(method=rings.WAY, k=2, n=n, dim=3, seed=seed) for n in sizes for seed in seeds]


# Points beside the searches: bounds, cyclic keys, rings, and the sizes of the projection.
POWERS = tuple(2**e for e in range(6, 17))
OTHERS = {
    "tiny": points("lower bound", 2, (64,)) + rings_by_hand((64,), (0,)),
    "quick": points("lower bound", 4, (64, 128, 256, 512)) + points("projection", 4, (64, 128))
    + cyclic(2, (64, 256)) + rings_by_hand((64, 256), (0,)),
    "full": [p for k in (2, 4, 8, 16) for p in points("lower bound", k, POWERS[:8:2])]
    + points("lower bound", 4, (16_384, 65_536, 100_000))
    + points("projection", 4, (64, 128, 256, 512, 1024))
    + cyclic(2, POWERS[:7]) + cyclic(4, POWERS[:4])
    + rings_by_hand(POWERS[:7], (0, 1, 2)),
}  # fmt: skip


def pooled(rows):
    """Return the rows with "learned, patient" as "learned", and the better one of two such fits."""
    best = {}
    for row in rows:
        row = {**row, "method": row["method"].removesuffix(", patient")}
        cell = tuple(row[name] for name in BASE)
        if row.get("certified") or cell not in best:
            best[cell] = row
    return list(best.values())


def table(rows):
    """Return the sizes to draw: one for each method, k and n."""
    found = []
    rows = pooled(rows)
    searched = {(r["method"], r["k"], r["n"]) for r in rows if r["method"] in SEARCHED}
    for method, k, n in sorted(
        searched, key=lambda cell: (SEARCHED.index(cell[0]), -cell[1], cell[2])
    ):
        best = smallest(rows, {"method": method, "k": k, "n": n})
        if best:
            found.append({"method": method, "k": k, "n": n, "kind": "found", **best})
    for row in sorted(rows, key=lambda row: row["n"]):
        about = {"k": row["k"], "n": row["n"], "dim": row.get("dim_found")}
        if row["method"] == "projection":
            found.append({"method": "projection", "kind": "found", **about})
        if row["method"] == "lower bound" and row["k"] in (4,):
            found.append({"method": "proved necessary", "kind": "proved", **about})
    of_four = sorted({row["n"] for row in found if row["k"] == 4})
    for n in of_four:
        enough = hf.bounds.projection_dim(n, 4, 2.0, 0.05, 0.1, failure=1.0)
        found.append({"method": "projection, proved to suffice", "kind": "proved", "k": 4, "n": n,
                      "dim": enough})  # fmt: skip
    return found


SEARCHED = ("learned", WITH_ROOM, "random keys")


def draw(chosen, rows):
    """Draw `table`, and write it beside the picture."""
    found = table(rows)
    write_csv(chosen.out / "growth-smallest.csv", found)
    roomy = [row for row in found if row["method"] == WITH_ROOM]
    drawn = [row for row in found if row["method"] != WITH_ROOM]
    axes = plt.figure(figsize=(9.6, 5.2), layout="constrained").subplots()
    picture = draw_growth(drawn, axes)
    # Sizes with room are no part of the fitted lines: open markers in the colour of their k.
    for row in roomy:
        like = picture.points[f"learned, k = {row['k']}"]
        axes.plot(row["n"], row["dim"], like.get_marker(), color=like.get_color(), markersize=6,
                  markerfacecolor="white", zorder=4)  # fmt: skip
        axes.set_ylim(top=max(axes.get_ylim()[1], 1.08 * row["dim"]))
    axes.set_title("The smallest heads found for random k-regular patterns", fontsize=11)
    # Random keys go on beyond the frame, which would else be twice as high.
    others = [row["dim"] for row in found if row["method"] in ("learned", WITH_ROOM)]
    random = [row for row in drawn if row["method"] == "random keys"]
    note = "leak 0.05, distortion 0.1, weight ratios up to 2; float32; certified on all seeds tried"
    if others and random and random[-1]["dim"] > 1.12 * max(others):
        axes.set_ylim(top=1.12 * max(others))
        note += f"; random keys: {random[-1]['dim']} at n = {random[-1]['n']:,}"
    if roomy:
        note += "; open: with room"
    save(axes.figure, chosen, note, rows)
    for name, slope in picture.slopes.items():
        print(f"{name}: {slope}")


def compute(chosen, rows):
    """Compute the rows of the plan."""
    rows.of(chosen.pick(**OTHERS))
    for part in chosen.pick(**PLANS):
        make_searches(rows, part)


if __name__ == "__main__":
    compute_and_draw("growth", __doc__, run, compute, draw)

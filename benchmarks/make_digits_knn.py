"""Make python/headfit/data/digits_knn.npz, the nearest-neighbour graph of the digits.

    python benchmarks/make_digits_knn.py [OUTPUT]

This needs scikit-learn, whose load_digits returns the images. It always writes the same
arrays: the 1,797 images as points of 64 dimensions, 8 neighbours for each, at most 16
tokens attending to one, and which digit each image shows.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from headfit import patterns

DEFAULT = Path(__file__).parents[1] / "python" / "headfit" / "data" / "digits_knn.npz"
PER_ROW = 8
PER_COLUMN = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", nargs="?", type=Path, default=DEFAULT)
    output = parser.parse_args().output

    digits = load_digits()
    graph = patterns.knn(digits.data, k=PER_ROW, per_column=PER_COLUMN)
    per_column = graph.count_nonzero(axis=0)
    assert set(np.diff(graph.indptr)) == {PER_ROW}
    assert per_column.max() <= PER_COLUMN

    np.savez_compressed(
        output,
        indptr=graph.indptr.astype(np.int32),
        indices=graph.indices.astype(np.int32),
        shape=np.array(graph.shape, dtype=np.int64),
        labels=digits.target.astype(np.int8),
    )
    print(f"{output}: n = {graph.shape[0]}, {graph.nnz} nonzeros, {PER_ROW} a row,")
    print(f"{per_column.min()} to {per_column.max()} a column, {output.stat().st_size} bytes")


if __name__ == "__main__":
    main()

"""Maps with any numbers: closed forms, and what a descent starts from.

Closed forms are truncated SVDs between square roots of second moments. Each is the least sum of
squares of ``q^T (scale I - P_q P_k^T) k`` over independent q and k with certain second moments C_q
and C_k: with U S V^T the truncated SVD of scale C_q^(1/2) C_k^(1/2), P_q = C_q^(-1/2) U S^(1/2) and
P_k = C_k^(-1/2) V S^(1/2). They differ in the second moment of the keys.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headfit import _core
from headfit._compress.maps import Maps, split
from headfit._compress.passages import Passages

Moment = NDArray[np.float64]

# Keys as they are (KQ-SVD, arXiv 2512.05916), which is the least error over all pairs of queries
# and keys, those of different passages too; keys centred within their passage, since softmax
# ignores what a row's logits have in common; and keys centred and weighted in each row by its
# attention.
FORMS = ("kq-svd", "centred", "attended")


def roots(moment: Moment) -> tuple[Moment, Moment]:
    """Return the square root of a second moment, and its pseudoinverse."""
    size, vectors = np.linalg.eigh(moment)
    kept = size > len(size) * np.finfo(np.float64).eps * max(size[-1], 0)
    root = np.sqrt(np.where(kept, size, 0))
    inverse = np.divide(1, root, out=np.zeros_like(root), where=kept)
    return (vectors * root) @ vectors.T, (vectors * inverse) @ vectors.T


@dataclass(frozen=True)
class ClosedForm:
    """The best maps of every size for given second moments of the queries and the keys."""

    queries: tuple[tuple[Moment, Moment], ...]  # roots of each query head
    keys: tuple[Moment, Moment]

    def maps(self, products: Sequence[Moment], dim: int) -> Maps:
        """Return the best maps of a size for matrices W, one per query head: P_q P_k^T = W."""
        key_root, key_inverse = self.keys
        pairs = zip(self.queries, products, strict=True)
        whole = np.vstack([root @ w @ key_root for (root, _), w in pairs])
        left, size, right = np.linalg.svd(whole, full_matrices=False)
        square = np.sqrt(size[:dim])
        part = (left[:, :dim] * square).reshape(len(self.queries), -1, len(square))
        p_q = [inverse @ u for (_, inverse), u in zip(self.queries, part, strict=True)]
        return np.vstack([*p_q, key_inverse @ (right[:dim].T * square)])

    def balanced(self, maps: Maps) -> Maps:
        """Return the same logits from columns in order of their size, each shared equally."""
        p_q, p_k = split(maps, len(self.queries))
        balanced = self.maps([p @ p_k.T for p in p_q], maps.shape[1])
        return balanced if np.isfinite(balanced).all() else maps

    def extended(self, maps: Maps, products: Sequence[Moment], dim: int) -> Maps:
        """Return maps with the best columns for what is left of the products added to them."""
        p_q, p_k = split(maps, len(self.queries))
        left = [w - p @ p_k.T for w, p in zip(products, p_q, strict=True)]
        return np.hstack([maps, self.maps(left, dim - maps.shape[1])])


class FreeMaps:
    """Maps with any numbers: their closed forms, and where a descent starts."""

    def __init__(self, passages: Passages, loss: _core.CompressLoss) -> None:
        self.loss, self.dim = loss, passages.dim
        # The products that leave every logit as it is.
        self.whole = [passages.attentions[0].scale * np.eye(self.dim)] * passages.heads
        queries, attended = loss.moments()
        of_queries = tuple(roots(q) for q in queries)
        self.forms = {
            name: ClosedForm(of_queries, roots(keys))
            for name, keys in zip(FORMS, (*loss.key_moments(), attended), strict=True)
        }
        self.nearest = self.forms["attended"]  # its metric is closest to that of the loss

    def extended(self, maps: Maps, dim: int) -> dict[str, Maps]:
        """Return descended maps with the best columns for what is left of the logits."""
        extended = self.nearest.extended(maps, self.whole, dim)
        # With queries zero in the new columns the loss is that of the smaller size, exactly, and
        # its gradient is not zero.
        silent = extended.copy()
        silent[: -self.dim, maps.shape[1] :] = 0
        return {"extended": extended, "silent": silent}

"""The end of a compression: held-out passages are read, and the result is put together."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

from headfit._compress.arguments import Request
from headfit._compress.judge import Closeness, judged
from headfit._compress.maps import Maps, StoredMaps
from headfit._compress.pair_weights import PairWeights
from headfit._compress.passages import Parts, Passages
from headfit._compress.result import Compressed, CompressedCurve
from headfit._compress.sizes import MapsOfSize


def compressed(
    passages: Passages,
    parts: Parts,
    found: Mapping[int, MapsOfSize],
    dim: int,
    request: Request,
    *,
    asked: float | None,
    stopped: str,
    begun: float,
) -> Compressed:
    """Return the result at one size; its curves have all sizes that were found."""
    held_out = passages.part(parts.held_out)

    def stored(maps: Maps) -> StoredMaps:
        return StoredMaps.of(maps, passages.lead, request.dtype)

    def distances(size: MapsOfSize) -> dict[str, Closeness]:
        """Closed forms and the descent, by their names, and what is taken."""
        table = {
            name: judged(held_out, stored(size.candidates[name]), request.threads)
            for name in size.named
        }
        taken = table.get(size.taken)
        table["taken"] = taken or judged(held_out, stored(size.maps), request.threads)
        return table

    curve = {d: distances(found[d]) for d in sorted(found)}
    size = found[dim]
    maps = stored(size.maps)
    positions = request.positions(passages)
    of_pairs: dict[str, Any] = {}
    if positions is not None:
        pairs = PairWeights.of_maps(size.maps, positions).pairs
        of_pairs = {
            "pairs": pairs,
            "position": positions.of_pairs(pairs).position,
            "original_position": positions.position,
        }
    return Compressed(
        P_q=maps.P_q,
        P_k=maps.P_k,
        dim=dim,
        original_dim=passages.dim,
        original_scale=passages.scale,
        dtype=request.dtype,
        rotary=passages.rotary or positions is not None,
        **of_pairs,
        **vars(curve[dim]["taken"]),
        calibration_kl=size.calibration_kl,
        validation_kl=size.judged.kl if parts.validation.size else math.nan,
        taken=size.taken,
        reached=asked is None or size.judged.tv_mean <= asked,
        stopped=stopped,
        curve=CompressedCurve.of(curve),
        calibration=parts.calibration,
        validation=parts.validation,
        held_out=parts.held_out,
        seconds=time.perf_counter() - begun,
        settings={
            "dim": dim,
            "tv": asked,
            "effort": request.effort,
            "descents": {d: found[d].report for d in sorted(found)},
        },
    )

"""Maps with any numbers: closed forms, and the descent of the core."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headfit import _core
from headfit._compress.closed_forms import ClosedForm, closed_forms
from headfit._compress.family import Descended, Limits
from headfit._compress.maps import Maps
from headfit._compress.passages import Passages


@dataclass(frozen=True)
class FreeMaps:
    """All maps of a head; a `Family`."""

    passages: Passages
    loss: _core.CompressLoss
    threads: int
    forms: dict[str, ClosedForm]
    step = 1

    @classmethod
    def of(cls, passages: Passages, loss: _core.CompressLoss, threads: int) -> FreeMaps:
        """Measure the moments of the calibration passages."""
        return cls(passages, loss, threads, closed_forms(passages, loss))

    @property
    def best_form(self) -> ClosedForm:
        """The closed form whose metric is closest to that of the loss."""
        return self.forms["attended"]

    def closed(self, dim: int) -> dict[str, Maps]:
        """Return the closed forms of a size by name."""
        whole = [self.passages.scale * np.eye(self.passages.dim)] * self.passages.heads
        return {name: form.maps(whole, dim) for name, form in self.forms.items()}

    def extended(self, maps: Maps, dim: int) -> dict[str, Maps]:
        """Return descended maps with the best columns for what is left of the logits."""
        extended = self.best_form.extended(maps, self.passages.scale, dim)
        # With queries zero in the new columns the loss is that of the smaller size, exactly, and
        # its gradient is not zero.
        silent = extended.copy()
        silent[: -self.passages.dim, maps.shape[1] :] = 0
        return {"extended": extended, "silent": silent}

    def padded(self, maps: Maps, dim: int) -> Maps:
        """Return maps with zero columns."""
        return np.pad(maps, ((0, 0), (0, dim - maps.shape[1])))

    def descend(self, start: Maps, judge: _core.CompressLoss | None, limits: Limits) -> Descended:
        """Descend from a start by the core."""
        maps, judged, history, report = self.loss.fit(
            judge, start, _core.DescentLimits(**vars(limits)), self.threads
        )
        balanced = self.best_form.balanced(judged)
        return Descended(maps, balanced, float(history[0]), float(history[-1]), report)

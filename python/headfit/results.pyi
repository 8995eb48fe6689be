"""What the verbs return."""

from headfit._attention.head_table import HeadTable, ModelTable
from headfit._attention.of_rows import AttentionStats
from headfit._attention.sparsify import Sparsified
from headfit._cache.result import (
    CompressedKeys,
    CompressedLayers,
    CompressedLayerValues,
    CompressedValues,
)
from headfit._compress.result import Compressed, CompressedHeads
from headfit._fit.result import Fit, Search, Trial
from headfit._index.indexes import Indexes
from headfit._index.quality import IndexCurve, IndexQualities, IndexQuality, IndexSharing
from headfit._index.result import Index
from headfit._plan.result import Plan, PlanAttempt, PlanTrend
from headfit._selection.certify_selection import SelectionCertificate
from headfit._shrink.result import Comparison, ShrinkResult, TvCurve
from headfit._target.certificate import Certificate
from headfit._target.witnesses import FaceWitness, FarkasWitness

__all__ = [
    "AttentionStats",
    "Certificate",
    "Comparison",
    "Compressed",
    "CompressedHeads",
    "CompressedKeys",
    "CompressedLayerValues",
    "CompressedLayers",
    "CompressedValues",
    "FaceWitness",
    "FarkasWitness",
    "Fit",
    "HeadTable",
    "Index",
    "IndexCurve",
    "IndexQualities",
    "IndexQuality",
    "IndexSharing",
    "Indexes",
    "ModelTable",
    "Plan",
    "PlanAttempt",
    "PlanTrend",
    "Search",
    "SelectionCertificate",
    "ShrinkResult",
    "Sparsified",
    "Trial",
    "TvCurve",
]

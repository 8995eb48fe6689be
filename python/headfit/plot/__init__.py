"""Pictures of attention, of certificates, and of searches for small heads.

Matrices of any size can be drawn: large ones are max-pooled by blocks of rows, so that no single
large entry is lost and no n x n array is stored. Every function draws on the axes that it is
given, or on a new figure, and returns the Matplotlib objects that it drew. The colours can be
distinguished by colour-blind readers.

Matplotlib comes with the extra ``headfit[plot]`` and is imported when something is drawn; without
it every function raises an ImportError that says so.
"""

from headfit._public import attach

__getattr__, __dir__, __all__ = attach(__name__, "plot/__init__.pyi")

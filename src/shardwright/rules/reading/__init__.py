"""What a part of a graph says, read backwards from where it is used: which keys a mask lets a query see, which heads
are repeated, and attention by what it computes rather than how it is spelled.

| file | what it holds |
|---|---|
| `numbers` | numbers known when a program is written: along one dim, as a sum of rows and columns, or in runs |
| `calls`, `movement`, `arithmetic` | ops over those: an op by its name here; what moves, and what computes |
| `positions` | `Positions`: what of a graph is computed from positions and constants alone, at any size |
| `bands` | `band_of`: a mask as a `Band`, where it is one |
| `repeats` | heads that are repeated before attention, and gradients that are summed over the repeats |
| `attention` | `Attention`: one call of attention, by its meaning; passes and the proof both read graphs through it |

To extend: an op that masks are made with is a line in `movement` or `arithmetic`.
"""

from .attention import Attention, attention_of
from .bands import band_of
from .positions import Positions

__all__ = ["Attention", "Positions", "attention_of", "band_of"]

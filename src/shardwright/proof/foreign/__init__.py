"""Judge the parallel program that somebody else wrote: do its ranks leave behind what the single program does?

All ranks are run in lock-step over prime fields, beside the single program, on the same random tensors; what is left
behind is put together by its placements and compared to the last digit.  Nothing is asked of how the program was made.

| file | what it holds |
|---|---|
| `proving` | `judge`: the single program and all ranks, in two rounds, and the answer |
| `result` | `ParallelProof`, `ParallelCertificate` |
| `judging` | `compare`: parts put together and compared; placements that nobody said, found |
| `rounds` | `Case`, what is judged; `Round`, one run of all of it over a field |
| `explained` | which values of the single program the values of the ranks are |
| `cause` | where a wrong program begins to be wrong, and what would mend it |
| `smaller` | a case at smaller sizes |
| `lockstep` | all ranks over a field, meeting at collectives |
| `numbers` | `Number`, `Numbers`: residues, with exponentials, logarithms and roots that keep their laws |
| `meanings` | what ATen's ops mean: by a few mechanisms |
| `moving` | the commonest movements, without asking the frontend |
| `calls` | one call, and what the tables below share |
| `arithmetic`, `order`, `attention` | ops by name: sums to roots; comparisons, choice and lookup; fused attention |

To extend: an op that moves elements or is made of sums and products is a name in a list of `meanings`; one with a law
is a function in a table; any other is known by what PyTorch says that it is made of, or by being pointwise.
"""

from .judging import Difference, Mesh
from .proving import judge
from .result import Cause, ParallelCertificate, ParallelProof
from .rounds import Case

__all__ = ["Case", "Cause", "Difference", "Mesh", "ParallelCertificate", "ParallelProof", "judge"]

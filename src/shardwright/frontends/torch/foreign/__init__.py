"""Programs that somebody else made parallel: what every rank of them does, as graphs.

The idea: all ranks run in one process, as threads that take turns, each with a `torch.distributed` of its own.  Below
DTensor, FSDP2, DDP and hand-written code there are only plain ops and collectives; a dispatch mode lets both happen on
real tensors, and writes them down.  Collectives meet, and are compared before they are computed.

| file | what it holds |
|---|---|
| `running` | `run_ranks`: a module or a step on every rank, with names for what it is given and leaves behind |
| `roots` | the modules and optimizers that a program uses; leaving them as they were |
| `tracing` | `RankMode`: one op or collective of one rank, seen and written down |
| `world` | `World`: ranks as threads that take turns; who waits for whom |
| `exchange` | `Exchanges`: where ranks meet, and what their calls must agree in |
| `collectives` | PyTorch's collective calls, in the few forms that there are |
| `factors` | what a sum is multiplied by before, which PyTorch does not say |
| `memory` | which value a tensor shows, by where it lies |
| `placed` | which part of a whole a rank holds: from DTensors, placements and numbers |
| `attention`, `optimizers` | fused attention and fused optimizers, in plain words |
| `kernels` | PyTorch's ops on arrays, and what they are made of, for the proof |
| `private` | everything taken from PyTorch's private modules, with the reason |

To extend: a collective call is a line in `collectives`; a fused op is taken apart in `optimizers`.

Not yet: bytes of one element type read as another, random numbers, gradients of attention biases.
"""

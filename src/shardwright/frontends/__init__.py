"""Where programs come from.

A frontend turns an ordinary function of some framework into a `Graph`, and computes single ops of that graph on
real arrays.  Both halves speak of ops by name and attributes, so what stands between them (rules, propagation,
costs, lowering) never sees the framework.

| part | what it holds |
|---|---|
| `base` | `Source`: the form of a captured program; `Framework`: how ops are computed; which frontend takes a call |
| `ranks` | `Traced`, `Placed`: what the ranks of somebody's parallel program do, as a proof sees it |
| `failing` | errors of a user's function while it is captured, told with their place and arguments |
| `versions` | the versions of frameworks that are tested |
| `numpy` | NumPy: `trace` runs a function on tracer arrays; `prepare` and `evaluate` compute ops |
| `torch` | PyTorch: `capture` and `capture_step` record ATen calls on fake tensors, up to whole training steps |

To extend: a package here with ``accepts``, ``source_of`` (see `base`) and a `Framework`; nothing else has to change.
A frontend imports no other frontend; the names of ops are the contract.  It writes ops into the rule book, and reads
nothing from it.
What cannot be captured is a `TraceError` that says what to write instead.  Importing this package imports no
framework.
"""

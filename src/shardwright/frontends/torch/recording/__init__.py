"""From a PyTorch program to a graph: one run on fake tensors, of which every ATen call is written down.

| file | what it holds |
|---|---|
| `capturing` | `capture`, `capture_step`: from a program to a graph |
| `captured` | `Captured`: the program as a `Source`: calls and state in and out |
| `state`, `slots` | modules and optimizers found, fakes in their place; how to read and write the real ones |
| `dispatch`, `recorder`, `aliasing` | one call; the program while it is written; tensors that share memory |
| `answers`, `sizes` | what calls return, asked once for equal ones; sizes that differ on a shard |
| `neutral`, `attention`, `constraint` | what keeps a program independent of devices; ops of our own |
| `half_types` | what ops give in half types, where devices and fake tensors disagree: statistics of norms |
| `source` | the user's lines and module paths |

To extend: an op that devices take apart differently is kept whole in `neutral`; a parameter that repeats a size is
named in `sizes`.
"""

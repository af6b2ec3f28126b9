"""Training with a plan: state stays in shards from the first step to the last.

A `Step` owns the state; for every shape of batch it has an `Entry`, which holds the programs that were planned for it.

| file | what it holds |
|---|---|
| `making` | `train_step` and `shard_step`: a model and its optimizer become a `Step` |
| `step`, `entries` | `Step`: state in shards; `Entry`: its programs for one shape of batch |
| `batches` | what each rank gives of a batch, and how it gets into a program |
| `checkpoints` | what a `Step` saves and loads, by names that outlive its programs |

To extend: what happens between a step's phases (clipping, accumulation) is a piece in `lower.pieces`.
"""

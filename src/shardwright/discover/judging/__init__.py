"""JUDGING: is a row of placements right in one call?  The operator is run on what each device would hold.

| file | what it holds |
|---|---|
| `encode` | a tensor cut over devices, or split into pending parts, and put together again |
| `judge` | whether what the devices computed is the wanted tensor; whether a tensor tells anything |
| `special_arguments` | tensors that are written to; the argument that tells the result's shape |
| `oracle` | every row of one call, judged and confirmed: the call's table |
| `confirm` | its findings again on two mesh axes and in float32 |
"""

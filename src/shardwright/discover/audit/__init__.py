"""Which of DTensor's own rules are wrong or missing.

| file | what it holds |
|---|---|
| `operators` | the audit of one operator, and of all |
| `dtensor`, `private` | what DTensor does with a call; what that takes from the inside of PyTorch |
| `samples`, `cases` | calls to judge; placements to judge them on |
| `judge` | a rule of DTensor's against the oracle |
| `scripts`, `report`, `emit` | a script that shows each finding; the page; the rule as it should be |
"""

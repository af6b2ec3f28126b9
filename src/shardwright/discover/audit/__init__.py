"""Which of DTensor's own rules are wrong or missing.

| file | what it holds |
|---|---|
| `operators` | the audit of one operator, and of all |
| `dtensor`, `private` | what DTensor does with a call; what that takes from the inside of PyTorch |
| `samples`, `variants` | calls to judge; calls on which an argument matters that a rule may forget |
| `cases` | a call and what ranks hold, run through DTensor |
| `judge` | a rule of DTensor's against the oracle |
| `causes` | what is wrong, gathered by cause |
| `scripts`, `report`, `emit` | a script that shows each finding; the page; the rule as it should be |
"""

"""SYNTHESIS: from the tables of many calls to the smallest rules that withstand attack.

| file | what it holds |
|---|---|
| `cases`, `conditions` | the words of a statement: for dims, for conditions |
| `templates` | rules without conditions, and the rows that they mean in a call |
| `search`, `conjunctions` | the smallest rules that the tables bear out; conditions joined |
| `attack` | fresh calls inside the regions that the rules claim, which refute them |
| `synthesize` | both in turn, until nothing is refuted |
"""

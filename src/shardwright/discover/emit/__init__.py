"""What was found, written as DTensor code with tests.

| file | what it holds |
|---|---|
| `strategy` | the decorated function of an operator |
| `source` | conditions and values as Python text |
| `tests` | the tests that come with it |
| `files` | both, written to a folder |
| `expression` | the small Python that rules are written in, read without `eval` |
"""

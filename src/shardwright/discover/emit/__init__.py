"""What was found, written as DTensor code with tests.

| file | what it holds |
|---|---|
| `strategy` | the decorated function of an operator |
| `public` | the same by DTensor's public `register_sharding` |
| `upstream` | the same as a contribution to PyTorch: all overloads, a test method, the words |
| `source` | conditions and values as Python text |
| `tests` | the tests that come with it |
| `dtensor_rules`, `dtensor_checks` | what emitted strategies and tests share: copied beside them |
| `files` | all of it, written to a folder |
| `expression` | the small Python that rules are written in, read without `eval` |
"""

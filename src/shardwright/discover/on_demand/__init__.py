"""Rules of unknown ops, found by execution when a plan needs them, and kept in a user's rule book.

| file | what it holds |
|---|---|
| `learn` | `learn_ops`: which ops of a program lack a rule; the book as a file, strictly read |
| `op_library` | `OpLibrary`: who runs an op |
| `study`, `study_torch` | one op of a graph as an operator to discover |
| `rule_trial` | `trusted_rules`: rules that did not come with the project, tried on the op before they are used |
"""

"""Inputs on which false rules fail.

| file | what it holds |
|---|---|
| `registry` | the standard generators, and the registry of those by operator |
| `adversarial` | what all families share; importing it registers them |
| `arithmetic`, `index`, `linear`, `order` | generators by family |

Importing the room registers every generator, so that whoever asks the registry is told of all.
"""

from . import adversarial as adversarial

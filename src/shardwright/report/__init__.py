"""Showing: a plan on a terminal, as a page, as data for other tools.

Everything that is shown of a plan is computed once, as an `Overview`, from the plan, its Program and its Source; the
forms below only write it down.  Figures add up: compute and exposed communication to the simulated step, modules to the
same, tensors alive at the peak to the plan's memory.

| file | what it holds |
|---|---|
| `places` | phase and module of every instruction |
| `schedule` | when everything happens, and where compute stands still |
| `lifespans` | what is in memory when |
| `uses` | what becomes of a weight's axes where it is used |
| `modules` | the program as a tree of modules, equal layers folded |
| `sentence` | a plan in one sentence |
| `overview` | `Overview`: all of it, as data |
| `terminal` | as text |
| `timed` | the program in order of time |
| `events` | Chrome trace events and CSV |
| `page`, `page_data` | one HTML file that needs no network, and the data in it |

A new form is a function of an `Overview`; a new figure is one of its properties.  Nothing here decides anything, and no
framework is known.
"""

from .events import instructions_csv, trace_events
from .overview import Overview
from .page import write_page
from .terminal import headline, plan_text
from .timed import listing

__all__ = ["Overview", "headline", "instructions_csv", "listing", "plan_text", "trace_events", "write_page"]

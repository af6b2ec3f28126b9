"""What was asked and what was decided, as data.

The joints of the house: a frontend gives a `Source`, the user's wishes become an `Asked`, whoever decides fills a
`Complete`, and all of it together is a `Plan`, which travels as JSON.  Nothing here decides, costs or runs.

| file | what it holds |
|---|---|
| `requests` | `Request`: one thing that the user asked for, as written and bound; `pin`, `forbid`, `cap_gather` |
| `asked` | `Asked`: all of them, and what they come to |
| `complete` | `Complete`, `Decision`: the sharding of every operand of every node, and which copies exist |
| `plan` | `Plan`, `PlanCost`, `Rewrite`; JSON, strictly read; what two plans do otherwise |
| `amounts` | times, bytes and tables as people read them |

To extend: another kind of request is an entry of `requests.KINDS`, a branch of `Request.bind`, and whatever keeps it.
"""

from .amounts import amount_text, duration, gibibytes, read_bytes, table
from .asked import Asked
from .complete import Complete, Decision
from .plan import VERSION, Plan, PlanCost, Rewrite, complete_of, read_plan
from .requests import Request, cap_gather, forbid, pin

__all__ = [
    "VERSION",
    "Asked",
    "Complete",
    "Decision",
    "Plan",
    "PlanCost",
    "Request",
    "Rewrite",
    "amount_text",
    "cap_gather",
    "complete_of",
    "duration",
    "forbid",
    "gibibytes",
    "pin",
    "read_bytes",
    "read_plan",
    "table",
]

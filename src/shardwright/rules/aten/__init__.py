"""ATen's ops: the rules that PyTorch programs need.

Elementwise ops and lists of them are made from PyTorch's tags and schemas (`pointwise`, `lists`); many ops are those of
the core vocabulary under other names (`same`); the others are written out, dim by dim.  An op whose dim can be split
only with communication in its midst says ``form(parts)``: its framework knows what it is made of.

| file | what it holds |
|---|---|
| `same` | `same`: an op that is another one, with its attributes renamed |
| `pointwise`, `lists` | made from tags and schemas: elementwise ops; ``_foreach_*`` and fused optimizers |
| `matrix` | mm, bmm, addmm, ...: products of matrices |
| `reduce` | sums, extremes, means, norms; places of extremes |
| `views` | views, copies, slices, joins, pads |
| `index` | embedding, gather, scatter, index, index_put |
| `norms` | normalisations forward and backward, softmax family, losses |
| `updates` | the step of an optimizer for one parameter |
| `attention` | scaled dot-product attention forward and backward |
| `batched` | linear algebra, Fourier transforms, distances, sampling: what they work along is whole |
| `windows` | convolution, pooling, upsampling forward and backward |
| `order` | sort, topk, cumulative ops; creation, triangles, random numbers |

To extend: a line in the family's file.  `shardwright discover --book torch` holds every rule against execution.
"""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

"""What the fuzzer says in PyTorch of layers: norms, convolution, pooling, attention, losses."""

from __future__ import annotations

from typing import Any

from .drawing import Unfit, Writer, apart


def softmax(w: Writer) -> None:
    x = w.ranked(0, floating=True)
    if w.rank(x) and w.chance(0.2):
        w.call(f"F.{w.one(('softmin', 'glu'))}", x, w.dim(x))
    else:
        w.call(f"torch.{w.one(('softmax', 'log_softmax'))}", x, w.dim(x, scalars=True))


def norm(w: Writer) -> None:
    x = w.ranked(1, 4, floating=True)
    size, dtype = w.shape(x)[-1], w.dtype(x)
    which = w.random.randrange(7)
    if which == 6:
        w.call("F.instance_norm", w.ranked(3, 4, floating=True))
    elif which == 4:
        w.call("F.normalize", w.call("torch.add", x, 0.5), dim=w.dim(x))
    elif which == 5:
        channels = w.shape(x)[1] if w.rank(x) > 1 else 0
        given = [w.input((channels,), dtype, "positive"), w.input((channels,), dtype)] if w.chance(0.5) else []
        w.call("F.batch_norm", x, None, None, *given, training=True)
    elif which == 0:
        w.call("F.layer_norm", x, (size,), w.input((size,), dtype), w.input((size,), dtype))
    elif which == 1:
        w.call("F.rms_norm", x, (size,), w.input((size,), dtype))
    elif which == 2:
        w.call("F.layer_norm", x, w.shape(x)[-2:])
    else:
        channels = w.shape(x)[1] if w.rank(x) > 1 else 0
        groups = w.one([g for g in (1, 2, 3, 4) if channels and channels % g == 0])
        w.call("F.group_norm", x, groups, w.input((channels,), dtype))


def convolution(w: Writer) -> None:
    n, groups = w.one((1, 2, 4, 6)), w.one((1, 1, 2))
    c, o = groups * w.one((1, 2, 3)), groups * w.one((1, 2, 3))
    more = {"padding": w.one((0, 1)), "stride": w.one((1, 2)), "dilation": w.one((1, 1, 2)), "groups": groups}
    dtype = "float64" if w.floating.endswith("64") else "float32"
    if w.chance(0.15):
        x, k = w.input((n, c, w.one((3, 5))), dtype), w.input((c, o // groups, w.one((1, 2, 3))), dtype)
        w.call("F.conv_transpose1d", x, k, stride=w.one((1, 2)), groups=groups)
    elif w.chance(0.15):
        x, k = w.input((n, c, 2, 4, 3), dtype), w.input((o, c // groups, 1, 2, 2), dtype)
        w.call("F.conv3d", x, k, padding=w.one((0, 1)), groups=groups)
    elif w.chance(0.5):
        x, k = w.input((n, c, w.one((5, 6, 8))), dtype), w.input((o, c // groups, w.one((1, 2, 3))), dtype)
        w.call("F.conv1d", x, k, *([w.input((o,), dtype)] if w.chance(0.4) else []), **more)
    else:
        x, k = w.input((n, c, w.one((4, 6)), w.one((4, 5))), dtype), w.input((o, c // groups, 2, 3), dtype)
        w.call("F.conv2d", x, k, *([w.input((o,), dtype)] if w.chance(0.4) else []), **more)


def pool(w: Writer) -> None:
    x = w.input((w.one((1, 2, 3)), w.one((1, 2, 4)), w.one((4, 6)), w.one((4, 6))))
    which = w.random.randrange(7)
    if which == 1:
        w.call("F.adaptive_avg_pool2d", x, 2)
    elif which == 4:
        w.call("F.avg_pool1d", w.input((2, 3, w.one((4, 6)))), 3, stride=1, padding=1)
    elif which == 5:
        w.call("F.unfold", x, 2)
    elif which == 6:
        w.call("F.pixel_shuffle", w.input((w.one((1, 2, 3)), 4, 2, 3)), 2)
    elif which == 2:
        w.call("F.interpolate", x, scale_factor=2, mode=w.one(("nearest", "bilinear")))
    elif which == 3:
        w.call("F.avg_pool2d", x, 2)
    elif apart(w.of(x)):
        w.call("F.max_pool2d", x, w.one((2, 3)), **({"stride": 1, "padding": 1} if w.chance(0.3) else {}))


def attention(w: Writer) -> None:
    b, h, s, d = w.one((1, 2, 3)), w.one((2, 4)), w.one((2, 4, 6)), w.one((2, 4))
    grouped = w.chance(0.35)
    keys = (b, h // 2 if grouped else h, s, d)
    more: dict[str, Any] = {"is_causal": True} if w.chance(0.4) else {}
    if not more and w.chance(0.3):
        more = {"attn_mask": w.input((s, s), w.one((None, "bool")))}
    if grouped:
        more["enable_gqa"] = True
    w.call("F.scaled_dot_product_attention", w.input((b, h, s, d)), w.input(keys), w.input(keys), **more)


def loss(w: Writer) -> None:
    x = w.ranked(2, 2, floating=True)
    n, c = w.shape(x)
    if not n * c:
        raise Unfit  # PyTorch's own tracing divides by their number
    which = w.random.randrange(8)
    if which == 5:
        w.call("F.l1_loss", x, w.call("torch.add", x, w.call("torch.add", w.call("torch.square", w.like(x)), 0.5)))
    elif which == 6:
        given = w.call("torch.softmax", w.like(x), 1)
        w.call("F.kl_div", w.call("torch.log_softmax", x, 1), given, reduction=w.one(("sum", "batchmean")))
    elif which == 7:
        w.call("F.cosine_similarity", w.call("torch.add", x, 0.5), w.like(x), dim=1)
    elif which == 3:
        w.call("F.huber_loss", x, w.like(x))
    elif which == 4:
        w.call("F.binary_cross_entropy_with_logits", x, w.call("torch.sigmoid", w.like(x)))
    elif which == 0 and n:
        w.call("F.cross_entropy", x, w.input((n,), "int64", "below", c),
               **({"reduction": w.one(("sum", "none"))} if w.chance(0.4) else {}))  # fmt: skip
    elif which == 1:
        w.call("F.mse_loss", x, w.like(x))
    else:
        w.call("F.smooth_l1_loss", x, w.like(x))

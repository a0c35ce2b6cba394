"""The smallest reproduction of each failure that stands: ``python -m experiments.check.reproductions [NAME]``.

Each calls the library and a few lines of float64 NumPy, and prints both.
"""

import multiprocessing
import os
import sys
import tempfile

import numpy as np

A = np.array([[0.97, 0.2], [0.45, 0.83], [0.56, 0.65]])
B = np.array([[0.94, 0.42], [0.76, 0.81], [0.84, 0.64]])
CORNERS, TURNED = np.array([[1.0, 0.0], [-1.0, 0.0]]), np.array([[0.995, 0.0999], [-0.995, 0.0999]])


def unit(x):
    """Return rows of unit length."""
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def ntxent(rows, tau):
    """Return NT-Xent of two views under each other, in float64, the mean over all rows."""
    n = len(rows) // 2
    logits = unit(rows) @ unit(rows).T / tau
    positive = np.roll(np.eye(2 * n, dtype=bool), n, axis=1)
    others = np.where(np.eye(2 * n, dtype=bool), -np.inf, logits)
    top = others.max(1)
    return float((top + np.log(np.exp(others - top[:, None]).sum(1)) - logits[positive]).mean())


def optax_small_rows():
    """Print optax's NT-Xent of rows of norm 1 and 1e-6, whose cosines are equal."""
    import jax.numpy as jnp
    import optax

    rows, labels = np.concatenate([A, B]), jnp.arange(6) % 3
    for norm in (1.0, 1e-3, 1e-6):
        found = optax.losses.ntxent(jnp.asarray(norm * rows, jnp.float32), labels, 0.2)
        print(f"norm {norm:g}: optax {float(found):.5f}, float64 {ntxent(rows, 0.2):.5f}")


def optax_overflow():
    """Print optax's NT-Xent at small temperatures."""
    import jax
    import jax.numpy as jnp
    import optax

    rows, labels = np.concatenate([A, np.roll(B, 1, axis=0)]), jnp.arange(6) % 3
    for tau in (0.05, 0.01, 0.005, 1e-3, 1e-4):
        loss = lambda x: optax.losses.ntxent(x, labels, tau)  # noqa: B023, E731
        value, slope = jax.value_and_grad(loss)(jnp.asarray(rows, jnp.float32))
        finite = bool(jnp.isfinite(slope).all())
        print(
            f"tau {tau:g}: optax {float(value):.5g} (gradient finite: {finite}), float64 {ntxent(rows, tau):.5g}"
        )


def optax_memory():
    """Print the temporary memory of optax's NT-Xent and its gradient."""
    import jax
    import jax.numpy as jnp
    import optax

    labels = jnp.arange(512) % 256
    for width in (16, 128, 512):
        loss = lambda x: optax.losses.ntxent(x, labels, 0.2)  # noqa: E731
        program = jax.jit(jax.value_and_grad(loss)).lower(jnp.ones((512, width))).compile()
        megabytes = program.memory_analysis().temp_size_in_bytes / 1e6
        print(
            f"512 rows of width {width}: {megabytes:.0f} MB; the score matrix has {512 * 512 * 4 / 1e6:.0f} MB"
        )


def pml_cap():
    """Print pytorch-metric-learning's NT-Xent where its value is above 87."""
    import torch
    from pytorch_metric_learning.losses import NTXentLoss

    rows = np.concatenate([A, np.roll(B, 1, axis=0)])
    for tau in (0.01, 1e-3, 1e-4):
        x = torch.tensor(rows, dtype=torch.float32, requires_grad=True)
        value = NTXentLoss(tau)(x, torch.arange(6) % 3)
        value.backward()
        print(
            f"tau {tau:g}: {float(value):.5g}, float64 {ntxent(rows, tau):.5g}; |gradient| {float(x.grad.norm()):.4g}"
        )


def pml_half():
    """Print the gradient's error of pytorch-metric-learning's NT-Xent in float16 and bfloat16."""
    import torch
    from pytorch_metric_learning.losses import NTXentLoss

    rows = np.concatenate([A, np.roll(B, 1, axis=0)])
    for dtype in (torch.float16, torch.bfloat16):
        for tau in (0.1, 0.05, 0.02):
            rounded = torch.tensor(rows).to(dtype)
            slopes = []
            for x in (rounded.clone(), rounded.double()):
                x.requires_grad_(True)
                NTXentLoss(tau)(x, torch.arange(6) % 3).backward()
                slopes.append(x.grad.double())
            print(
                f"{dtype}, tau {tau}: gradient wrong by {float((slopes[0] - slopes[1]).norm() / slopes[1].norm()):.1%}"
            )


def lightly_macl():
    """Print MACLLoss's gradient, computed in float64, over the exact one, where 1 - P nears its epsilon of 1e-8."""
    import torch

    from contrastive_jax.conformance import references, specs
    from experiments.check import adapters

    variant = references.Variant(candidates="both")
    for tau in (0.1, 0.08, 0.07, 0.06, 0.05):
        loss = lambda a, b: specs.SPECS["macl"].loss(a, b, tau, variant, alpha=0.5, offset=0.0)  # noqa: B023, E731
        exact = np.concatenate([references.gradient(loss, [CORNERS, TURNED], i) for i in (0, 1)])
        norms = []
        for dtype in (torch.float32, torch.float64):
            a, b = (torch.tensor(x, dtype=dtype, requires_grad=True) for x in (CORNERS, TURNED))
            adapters.lightly_macl(a, b, tau).backward()
            norms.append(float(torch.cat([a.grad, b.grad]).norm()) / np.linalg.norm(exact))
        print(f"tau {tau:g}: float32 {norms[0]:.3f} x, float64 {norms[1]:.3f} x the exact gradient")


def libauc_overflow():
    """Print whether LibAUC's GCLoss_v1 has a finite gradient at small temperatures."""
    import torch

    from experiments.check import adapters

    for tau in (0.1, 0.02, 0.012, 0.011, 0.01):
        a, b = (torch.tensor(x, dtype=torch.float32, requires_grad=True) for x in (A, B))
        adapters.libauc_gcl(a, b, tau).backward()
        print(
            f"tau {tau:g}: gradient finite: {bool(torch.isfinite(a.grad).all() and torch.isfinite(b.grad).all())}"
        )


def saturated():
    """Print the gradient of log_softmax in float32 where the positive scores 20 above the negatives."""
    import torch
    import torch.nn.functional as F

    for dtype in (torch.float32, torch.float64):
        a, b = (torch.tensor(x, dtype=dtype, requires_grad=True) for x in (CORNERS, TURNED))
        F.cross_entropy(F.normalize(a) @ F.normalize(b).T / 0.1, torch.arange(2)).backward()
        print(f"{dtype}: gradient of a {a.grad.norm():.2e}, of b {b.grad.norm():.2e}")


def _of_rank(rank, number, store, name, send):
    import torch
    import torch.distributed as dist

    from experiments.check import adapters

    torch.set_num_threads(1)
    function = getattr(adapters, name.removesuffix("+diagonal"))
    if name.endswith("+diagonal"):  # the positives of a rank's own rows, in place of the first rows'
        torch.diagonal = lambda x: x.diagonal(offset=dist.get_rank() * len(x) if dist.is_initialized() else 0)
    draw = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 4 * number, 3, generator=draw)
    a, b = (torch.nn.functional.normalize(x) for x in (a, b))

    def slope(a, b):
        weight = torch.eye(3, requires_grad=True)
        value = function(a @ weight, b @ weight, 5.0 if "clip" in name else 0.2)
        value.backward()
        return float(value), weight.grad

    one = slope(a, b)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=number)
    value, gradient = slope(*(x[4 * rank : 4 * rank + 4] for x in (a, b)))
    total = torch.tensor(value)
    dist.all_reduce(gradient)
    dist.all_reduce(total)
    if rank == 0:
        send.put((float(total) / number, (gradient / number).tolist(), one[0], one[1].tolist()))
    dist.barrier()
    dist.destroy_process_group()


def on_ranks(name, number=2):
    """Print value and averaged gradient of some ranks (gloo) over those of one."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    context = multiprocessing.get_context("spawn")
    send = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        started = [
            context.Process(target=_of_rank, args=(rank, number, f"{folder}/store", name, send))
            for rank in range(number)
        ]
        for process in started:
            process.start()
        value, gradient, one, whole = send.get(timeout=300)
        for process in started:
            process.join(60)
    ratio = np.sum(np.multiply(gradient, whole)) / np.sum(np.square(whole))
    cosine = np.sum(np.multiply(gradient, whole)) / np.linalg.norm(gradient) / np.linalg.norm(whole)
    by = f"value {value / one:.4f} x, " if one else ""
    print(f"{name}, {number} ranks: {by}gradient {ratio:.4f} x that of one (cosine {cosine:.4f})")


def lightly_dclw_on_ranks():
    """Print lightly's DCLWLoss on two ranks, and DCLLoss."""
    on_ranks("lightly_dcl")
    on_ranks("lightly_dclw")


def libauc_on_ranks():
    """Print LibAUC's losses on two ranks, and GCLoss_v2 with the diagonal moved to the rank's own rows."""
    for name in ("libauc_gcl", "libauc_gcl_bimodal", "libauc_gcl_bimodal+diagonal"):
        on_ranks(name)


def open_clip_on_ranks():
    """Print open_clip's ClipLoss with and without --gather-with-grad, on two and three ranks."""
    for number in (2, 3):
        for name in ("open_clip_default", "open_clip_gather_with_grad", "open_clip_local_loss"):
            on_ranks(name, number)


REPRODUCTIONS = (
    optax_small_rows,
    optax_overflow,
    optax_memory,
    pml_cap,
    pml_half,
    lightly_macl,
    libauc_overflow,
    saturated,
    lightly_dclw_on_ranks,
    libauc_on_ranks,
    open_clip_on_ranks,
)

if __name__ == "__main__":
    for reproduction in REPRODUCTIONS:
        if not sys.argv[1:] or reproduction.__name__ in sys.argv[1:]:
            print(f"--- {reproduction.__name__}", flush=True)
            reproduction()

"""Losses of other libraries as functions that `contrastive-jax check` takes: a few lines each.

A library is imported when its loss is called.
"""

import contextlib
import importlib
import importlib.metadata
import importlib.util
import pathlib
import sys
import warnings

import torch
import torch.distributed as dist
import torch.nn.functional as F

warnings.filterwarnings("ignore")


def ranks() -> tuple[int, int]:
    """Return this process's rank and their number."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


@contextlib.contextmanager
def without_operators_of_torchvision():
    """Import libraries that import torchvision where its compiled operators do not fit the installed PyTorch."""
    real = torch.library.register_fake

    def tolerant(name, *arguments, **options):
        return (lambda f: f) if str(name).startswith("torchvision::") else real(name, *arguments, **options)

    torch.library.register_fake = tolerant
    try:
        yield
    finally:
        torch.library.register_fake = real


def imported(name):
    """Import a module of a library, torchvision's operators aside."""
    with without_operators_of_torchvision():
        return importlib.import_module(name)


# ------------------------------------------------------------------------------------------ optax


def optax_ntxent(embeddings, labels, temperature):
    """Call the loss of optax."""
    import optax

    return optax.losses.ntxent(embeddings, labels, temperature)


# ------------------------------------------------------------------------------------------ lightly


def lightly_ntxent(a, b, temperature=0.1):
    """Call the loss of lightly."""
    return imported("lightly.loss").NTXentLoss(temperature, gather_distributed=ranks()[1] > 1)(a, b)


def lightly_dcl(a, b, temperature=0.1):
    """Call the loss of lightly."""
    return imported("lightly.loss").DCLLoss(temperature, gather_distributed=ranks()[1] > 1)(a, b)


def lightly_dclw(a, b, temperature=0.1):
    """Call the loss of lightly."""
    return imported("lightly.loss").DCLWLoss(temperature, gather_distributed=ranks()[1] > 1)(a, b)


def lightly_macl(a, b, temperature=0.1):
    """Call the loss of lightly."""
    return imported("lightly.loss.macl_loss").MACLLoss(temperature)(a, b)


def lightly_moco(a, b, queue, temperature=0.1):
    """NTXentLoss with a memory bank that holds the queue."""
    loss = imported("lightly.loss").NTXentLoss(temperature, memory_bank_size=(len(queue), queue.shape[1]))
    with torch.no_grad():
        loss.memory_bank(torch.zeros_like(queue), update=False)
        loss.memory_bank.bank = F.normalize(queue, dim=1)
    return loss(a, b)


# ------------------------------------------------------------------------------------------ pytorch-metric-learning


def _wrapped(loss):
    from pytorch_metric_learning.utils.distributed import DistributedLossWrapper

    return DistributedLossWrapper(loss) if ranks()[1] > 1 else loss


def pml_ntxent(embeddings, labels, temperature=0.07):
    """Call the loss of pytorch-metric-learning."""
    from pytorch_metric_learning.losses import NTXentLoss

    return _wrapped(NTXentLoss(temperature))(embeddings, labels)


def pml_supcon(embeddings, labels, temperature=0.1):
    """Call the loss of pytorch-metric-learning."""
    from pytorch_metric_learning.losses import SupConLoss

    return _wrapped(SupConLoss(temperature))(embeddings, labels)


def pml_ntxent_self_supervised(a, b, temperature=0.07):
    """Call the loss of pytorch-metric-learning."""
    from pytorch_metric_learning.losses import NTXentLoss, SelfSupervisedLoss

    return SelfSupervisedLoss(NTXentLoss(temperature))(a, b)


# ------------------------------------------------------------------------------------------ open_clip


def _open_clip(a, b, logit_scale, **options):
    rank, number = ranks()
    return imported("open_clip.loss").ClipLoss(rank=rank, world_size=number, **options)(a, b, logit_scale)


def open_clip_default(a, b, logit_scale):
    """Call the loss of open_clip."""
    return _open_clip(a, b, logit_scale)


def open_clip_gather_with_grad(a, b, logit_scale):
    """Call the loss of open_clip."""
    return _open_clip(a, b, logit_scale, gather_with_grad=True)


def open_clip_local_loss(a, b, logit_scale):
    """Call the loss of open_clip."""
    return _open_clip(a, b, logit_scale, local_loss=True, gather_with_grad=True)


def _open_clip_siglip(a, b, logit_scale, bias, implementation):
    rank, number = ranks()
    return imported("open_clip.loss").SigLipLoss(rank=rank, world_size=number, dist_impl=implementation)(
        a, b, logit_scale, bias
    )


def open_clip_siglip_bidir(a, b, logit_scale, bias=-10.0):
    """Call the loss of open_clip."""
    return _open_clip_siglip(a, b, logit_scale, bias, "bidir")


def open_clip_siglip_shift(a, b, logit_scale, bias=-10.0):
    """Call the loss of open_clip."""
    return _open_clip_siglip(a, b, logit_scale, bias, "shift")


def open_clip_siglip_reduce(a, b, logit_scale, bias=-10.0):
    """Call the loss of open_clip."""
    return _open_clip_siglip(a, b, logit_scale, bias, "reduce")


def open_clip_siglip_gather(a, b, logit_scale, bias=-10.0):
    """Call the loss of open_clip."""
    return _open_clip_siglip(a, b, logit_scale, bias, "gather")


# ------------------------------------------------------------------------------------------ sentence-transformers


class Rows(torch.nn.Module):
    """An encoder whose inputs are embeddings."""

    def forward(self, features):
        """Return the rows as they are."""
        return {**features, "sentence_embedding": features["input_ids"]}

    def __getitem__(self, place):
        return torch.nn.Identity()

    def __getattr__(self, name):
        if name in ("is_static", "tokenizer", "max_seq_length"):
            return None
        return super().__getattr__(name)


def _multiple_negatives(a, b, scale, **options):
    losses = imported("sentence_transformers.sentence_transformer.losses")
    loss = losses.MultipleNegativesRankingLoss(
        Rows(), scale=scale, gather_across_devices=ranks()[1] > 1, **options
    )
    return loss.compute_loss_from_embeddings([a, b], None)


def sentence_transformers_mnrl(a, b, scale=20.0):
    """Call the loss of sentence-transformers."""
    return _multiple_negatives(a, b, scale)


def sentence_transformers_mnrl_symmetric(a, b, scale=20.0):
    """Call the loss of sentence-transformers."""
    directions = ("query_to_doc", "doc_to_query")
    return _multiple_negatives(a, b, scale, directions=directions, partition_mode="per_direction")


def sentence_transformers_cached_mnrl(a, b, scale=20.0, mini_batch_size=2):
    """The whole of GradCache: embeddings by parts, and the hook of the backward pass."""
    gather, losses = ranks()[1] > 1, imported("sentence_transformers.sentence_transformer.losses")
    loss = losses.CachedMultipleNegativesRankingLoss(
        Rows(), scale=scale, mini_batch_size=mini_batch_size, gather_across_devices=gather
    )
    return loss([{"input_ids": a}, {"input_ids": b}], torch.zeros(len(a)))


# ------------------------------------------------------------------------------------------ others


def info_nce_pytorch(a, b, temperature=0.1):
    """Call the loss of info-nce-pytorch."""
    from info_nce import info_nce

    return info_nce(a, b, temperature=temperature)


def info_nce_pytorch_negative_keys(a, b, queue, temperature=0.1):
    """Call the loss of info-nce-pytorch."""
    from info_nce import info_nce

    return info_nce(a, b, queue, temperature=temperature)


def libauc_gcl(a, b, temperature=0.1):
    """SogCLR's first step: its value is a surrogate, so only the gradient is compared (as FlatNCE's)."""
    from libauc.losses.contrastive import GCLoss_v1

    with contextlib.redirect_stdout(None):
        rank, number = ranks()
        loss = GCLoss_v1(
            N=len(a) * number, tau=float(temperature), device=torch.device("cpu"), distributed=number > 1
        )
        value = loss(a, b, torch.arange(len(a)) + rank * len(a))
    value = value[0] if isinstance(value, tuple) else value
    return value - value.detach()


def libauc_gcl_bimodal(a, b, temperature=0.1):
    """SogCLR for two encoders."""
    from libauc.losses.contrastive import GCLoss_v2

    with contextlib.redirect_stdout(None):
        rank, number = ranks()
        options = {"rank": rank, "world_size": number, "distributed": number > 1}
        loss = GCLoss_v2(N=len(a) * number, tau=float(temperature), **options)
        value = loss(a, b, torch.arange(len(a)) + rank * len(a))
    value = value[0] if isinstance(value, tuple) else value
    return value - value.detach()


def _solo(name):
    """Load a file of solo-learn's losses alone: its package imports what no longer installs."""
    if (module := sys.modules.get(f"solo_{name}")) is None:
        root = importlib.metadata.distribution("solo-learn").locate_file("solo")
        path = pathlib.Path(str(root), "losses", f"{name}.py")
        spec = importlib.util.spec_from_file_location(f"solo_{name}", path)
        module = sys.modules[f"solo_{name}"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


def solo_simclr(a, b, temperature=0.1):
    """Call the loss of solo-learn."""
    return _solo("simclr").simclr_loss_func(a, b, temperature)


def solo_moco(a, b, queue, temperature=0.1):
    """Call the loss of solo-learn."""
    return _solo("moco").moco_loss_func(a, b, queue.T, temperature)


LIBRARIES = {
    "optax": {optax_ntxent: "ntxent_pairs"},
    "lightly": {
        lightly_ntxent: "nt_xent",
        lightly_dcl: "dcl",
        lightly_dclw: "dclw",
        lightly_macl: "macl",
        lightly_moco: "moco",
    },
    "pytorch-metric-learning": {
        pml_ntxent: "ntxent_pairs",
        pml_supcon: "supcon",
        pml_ntxent_self_supervised: "nt_xent",
    },
    "open_clip_torch": {
        open_clip_default: "info_nce",
        open_clip_gather_with_grad: "info_nce",
        open_clip_local_loss: "info_nce",
        open_clip_siglip_bidir: "sigmoid",
        open_clip_siglip_shift: "sigmoid",
        open_clip_siglip_reduce: "sigmoid",
        open_clip_siglip_gather: "sigmoid",
    },
    "sentence-transformers": {
        sentence_transformers_mnrl: "info_nce",
        sentence_transformers_mnrl_symmetric: "info_nce",
        sentence_transformers_cached_mnrl: "info_nce",
    },
    "info-nce-pytorch": {info_nce_pytorch: "info_nce", info_nce_pytorch_negative_keys: "moco"},
    "libauc": {libauc_gcl: "flatnce", libauc_gcl_bimodal: "flatnce"},
    "solo-learn": {solo_simclr: "nt_xent", solo_moco: "moco"},
}

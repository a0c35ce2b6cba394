"""SimCLR in PyTorch and in lightly, the other side of `against_pytorch.py`: torch and torchvision, nothing of ours.

    python experiments/performance/pytorch_simclr.py --width=0.25 --batch=128 [--lightly] [--end-to-end]

Runs as many steps as a line on its standard input says, and answers with the seconds that they took. PyTorch gets its
best: on a GPU autocast to bfloat16, TF32 and cudnn's own search; eager or `torch.compile`, channels first or last, each
for some steps, and the fastest is kept. End to end, views come from a DataLoader with a worker a core.
"""

import argparse
import itertools
import json
import os
import sys
import time

import torch
from torch import nn
from torch.nn import functional

TAU, OUT, SIZE, IMAGES = 0.5, 128, 32, 50_000
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Block(nn.Module):
    """ResNet's basic block."""

    def __init__(self, before: int, after: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        self.short = nn.Identity()
        if stride > 1 or before != after:
            self.short = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x):
        """Bring images (N, before, H, W) to (N, after, H / stride, W / stride)."""
        y = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(y)) + self.short(x))


def network(width: float, lightly: bool) -> nn.Module:
    """Build ResNet-18 x width with the CIFAR stem, and SimCLR's head of two layers."""
    channels = [round(width * c) for c in (64, 128, 256, 512)]
    before = channels[0]
    layers = [nn.Conv2d(3, before, 3, 1, 1, bias=False), nn.BatchNorm2d(before), nn.ReLU()]
    for group, after in enumerate(channels):
        for block in range(2):
            layers.append(Block(before, after, 2 if group and not block else 1))
            before = after
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    if lightly:
        from lightly.models.modules import SimCLRProjectionHead

        return nn.Sequential(*layers, SimCLRProjectionHead(before, before, OUT))
    head = [nn.Linear(before, before, bias=False), nn.BatchNorm1d(before), nn.ReLU()]
    return nn.Sequential(*layers, *head, nn.Linear(before, OUT, bias=False), nn.BatchNorm1d(OUT))


def nt_xent(z: torch.Tensor) -> torch.Tensor:
    """Compute NT-Xent of projections (2B, D), view after view."""
    z = functional.normalize(z.float(), dim=1)
    scores = z @ z.T / TAU
    scores = scores.masked_fill(torch.eye(len(z), dtype=torch.bool, device=z.device), float("-inf"))
    return functional.cross_entropy(scores, torch.arange(len(z), device=z.device).roll(len(z) // 2))


def loss_function(lightly: bool):
    """Return the function of projections (2B, D) to a scalar."""
    if not lightly:
        return nt_xent
    from lightly.loss import NTXentLoss

    criterion = NTXentLoss(temperature=TAU)
    return lambda z: criterion(*z.float().chunk(2))


class Images(torch.utils.data.Dataset):
    """Random images through a transform, as torchvision's CIFAR10 hands them over (PIL)."""

    def __init__(self, transform):
        import numpy as np

        self.images = np.random.default_rng(0).integers(0, 256, (IMAGES, SIZE, SIZE, 3), np.uint8)
        self.transform = transform

    def __len__(self) -> int:
        return IMAGES

    def __getitem__(self, index: int):
        """Return a list of two views (3, H, W)."""
        from PIL import Image

        return self.transform(Image.fromarray(self.images[index]))


class Twice:
    """Two views of torchvision's transforms: SimCLR's for CIFAR."""

    def __init__(self):
        from torchvision import transforms

        self.transform = transforms.Compose(
            [
                transforms.RandomResizedCrop(SIZE),
                transforms.RandomHorizontalFlip(),
                transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)], 0.8),
                transforms.RandomGrayscale(0.2),
                transforms.ToTensor(),
                transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
            ]
        )

    def __call__(self, image) -> list:
        """Return two tensors (3, H, W)."""
        return [self.transform(image), self.transform(image)]


def loaded(batch: int, lightly: bool):
    """Yield batches of views (2B, 3, H, W) for ever, from a DataLoader with a worker a core."""
    if lightly:
        from lightly.transforms import SimCLRTransform

        transform = SimCLRTransform(input_size=SIZE, cj_strength=0.5, gaussian_blur=0.0)
    else:
        transform = Twice()
    loader = torch.utils.data.DataLoader(
        Images(transform), batch, shuffle=True, drop_last=True, num_workers=os.cpu_count(),
        persistent_workers=True, pin_memory=DEVICE.type == "cuda",
    )  # fmt: skip
    for views in itertools.chain.from_iterable(itertools.repeat(loader)):
        yield torch.cat(list(views[:2]))


def way(options, compiled: bool, channels_last: bool):
    """Build a step of given views, on the device."""
    torch.manual_seed(0)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    model = network(options.width, options.lightly).train().to(DEVICE, memory_format=layout)
    loss_of = loss_function(options.lightly)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
    half = options.dtype == "bfloat16" or (DEVICE.type == "cuda" and not options.dtype)

    def forward(views):
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=half):
            z = model(views)
        return loss_of(z)

    called = torch.compile(forward) if compiled else forward

    def step(views):
        optimizer.zero_grad(set_to_none=True)
        called(views.to(DEVICE, memory_format=layout, non_blocking=True)).backward()
        optimizer.step()

    return step


def wait() -> None:
    """Wait until the device has done what it was asked for."""
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def fastest(options):
    """Return the fastest of the ways, and what was found."""
    views = torch.rand(2 * options.batch, 3, SIZE, SIZE, device=DEVICE)
    ways, seconds, failed = {}, {}, {}
    for compiled in (False, True):
        for channels_last in (False, True):
            name = f"{'compiled' if compiled else 'eager'}, {'channels-last' if channels_last else 'channels-first'}"
            try:
                ways[name] = way(options, compiled, channels_last)
                ways[name](views)
                ways[name](views)
            except Exception as error:  # torch.compile needs a C++ compiler
                failed[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"
                ways.pop(name, None)
    for _ in range(3):
        for name, step in ways.items():
            wait()
            began = time.perf_counter()
            step(views)
            wait()
            seconds[name] = min(seconds.get(name, float("inf")), time.perf_counter() - began)
    if not ways:
        sys.exit("; ".join(dict.fromkeys(failed.values())))
    best = min(seconds, key=seconds.__getitem__)
    facts = {"is": f"torch {torch.__version__}, {best}", "device": str(DEVICE), "ways": seconds, "failed": failed,
             "threads": torch.get_num_threads()}  # fmt: skip
    if options.lightly:
        import lightly

        facts["is"] = f"lightly {lightly.__version__}, {facts['is']}"
    return ways[best], views, facts


def main() -> None:
    """Run a contender, see `against_pytorch.py`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=float, default=1.0)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--dtype", default="")
    parser.add_argument("--lightly", action="store_true")
    parser.add_argument("--end-to-end", action="store_true")
    options = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    step, views, facts = fastest(options)
    batches = loaded(options.batch, options.lightly) if options.end_to_end else itertools.repeat(views)
    step(next(batches))
    print(json.dumps(facts), flush=True)
    for line in sys.stdin:
        began, worked = time.perf_counter(), time.process_time()
        for _ in range(int(line)):
            step(next(batches))
        wait()
        print(time.perf_counter() - began, time.process_time() - worked, flush=True)


if __name__ == "__main__":
    main()

"""A training step compiled for a TPU slice that is not here, and what it would cost each chip; nothing is run.

    python experiments/performance/topology.py --topology=v5e:4x4 --config=configs/flatclr_imagenet.py

By libtpu (the ``tpu`` extra), which needs no TPU; where it is not installed, by XLA's CPU compiler for as many virtual
devices. The config is the command's, ``--config.section.option=value`` included; its data has to be there.
"""

import argparse
import importlib.util
import math
import os
import re
import sys

import jax

MOST_CHIPS = 2**14  # no slice that was ever built has more


def devices_of(topology: str) -> tuple[list[jax.Device], str]:
    """Return the chips of a TPU slice that is not here, to compile for; and where libtpu is not installed, as many CPU
    devices, which have to be the first of this process.

    Args:
      topology: as jax names it: generation and extent, ``v5e:16x16``.

    Returns:
      The devices, and a sentence that says what they are.

    Raises:
      ValueError: not a topology, or one that libtpu does not know, or cannot describe now (another process may hold
        it): its own words.
    """
    found = re.fullmatch(r"v\d\w*:([1-9]\d*(?:x[1-9]\d*)*)", topology)
    if not found:
        raise ValueError(
            f"--topology={topology!r}; write a TPU generation and the extent of a slice, like v5e:16x16."
        )
    chips = math.prod(int(n) for n in found[1].split("x"))
    if chips > MOST_CHIPS:
        raise ValueError(
            f"--topology={topology!r} has {chips:,} chips; at most {MOST_CHIPS:,} are described."
        )
    if importlib.util.find_spec("libtpu") is None:
        try:
            jax.config.update("jax_num_cpu_devices", chips)
        except RuntimeError:  # the backend is up
            pass
        devices = jax.devices("cpu")[:chips]
        if len(devices) < chips:
            raise ValueError(
                f"--topology={topology!r} without libtpu needs a process that asked jax for nothing."
            )
        return devices, (
            f"libtpu is not installed (pip install 'contrastive_jax[tpu]'): {chips} virtual CPU devices stand in for"
            f" {topology}; traffic and collectives are those of XLA's CPU compiler, memory is not a TPU's."
        )
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # nobody answers outside of Google Cloud
    from jax.experimental import topologies

    try:
        devices = topologies.get_topology_desc(topology, "tpu").devices
    except (RuntimeError, ValueError, NotImplementedError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"--topology={topology!r}: libtpu could not describe it: {reason}") from error
    return list(devices), f"compiled ahead of time by libtpu for {topology}, which is not here"


def described(argv: list[str], topology: str) -> dict[str, float]:
    """Print what ``--mode=describe`` prints of the config of a command line, but for its speed; return the costs."""
    devices, note = devices_of(topology)  # first of all that asks jax
    from contrastive_jax import main
    from contrastive_jax.commands import describe
    from contrastive_jax.training import compilation
    from contrastive_jax.training import run as runs

    (config,) = main.resolved(argv, None, "describe")
    run = runs.prepare(config, devices)
    print(*describe.outline(run), f"  {note}", sep="\n")
    facts = describe.costs(compilation.compiled_from_shapes(run))
    print(
        "compiled step, per device", *(f"  {name} = {value:,.2f}" for name, value in facts.items()), sep="\n"
    )
    return facts


def main() -> None:
    """Describe the step, or say in a sentence why it cannot be."""
    from contrastive_jax.main import split

    config, overrides, rest = split(sys.argv[1:])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--topology", required=True, help="generation and extent of a slice, like v5e:16x16")
    options = parser.parse_args(rest)
    if config is None:
        parser.error("--config is missing; try --config=configs/flatclr_digits.py.")
    argv = [f"--config={config}", *(f"--config.{name}={text}" for name, text in overrides)]
    try:
        described(argv, options.topology)
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()

"""Composition, comparison and validation of configs.

A replication consists of the base config, a method and a few assignments. A diff prints only the leaves in
which two configs differ (:mod:`contrastive_jax.commands.config` has more commands):

    contrastive-jax config diff configs/digits.py:method=simclr configs/digits.py:method=flatclr
"""

from contrastive_jax.config.approval import allow
from contrastive_jax.config.files import load, parse, raised, sibling, suggest, use_method
from contrastive_jax.config.identity import (
    diff,
    diff_text,
    fingerprint,
    forbidden_changes,
    leaves,
    may_change,
    of_a_process,
)
from contrastive_jax.config.overrides import expand, resolve
from contrastive_jax.config.resolved import Settings, as_settings, saved_settings, settings_of
from contrastive_jax.config.scales import SCALES, SMALL, at_scale, limit, on_digits, on_small_images
from contrastive_jax.config.settings import (
    CHOICES,
    Finder,
    base,
    complete,
    completed,
    plain,
    settle,
    steps_of,
)

__all__ = [
    "CHOICES",
    "Finder",
    "SCALES",
    "SMALL",
    "Settings",
    "allow",
    "as_settings",
    "at_scale",
    "base",
    "complete",
    "completed",
    "diff",
    "diff_text",
    "expand",
    "fingerprint",
    "forbidden_changes",
    "leaves",
    "limit",
    "load",
    "may_change",
    "of_a_process",
    "on_digits",
    "on_small_images",
    "parse",
    "plain",
    "raised",
    "resolve",
    "saved_settings",
    "settings_of",
    "settle",
    "sibling",
    "steps_of",
    "suggest",
    "use_method",
]

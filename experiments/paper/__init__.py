"""A short paper on the family and what was found, ``docs/paper.md`` and ``docs/findings.md``, from kept records.

The prose is in ``paper.jinja`` and ``findings.jinja``, its numbers are functions of ``numbers``.

python -m experiments.paper     # writes both pages and the figures; computes nothing, in seconds
"""

"""A short paper on the family, ``docs/paper.md``: its prose in ``text.jinja``, its numbers from kept records.

python -m experiments.paper     # writes the page and its figures; computes nothing, in seconds
"""

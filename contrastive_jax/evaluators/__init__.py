"""What frozen features are worth: one file for each protocol, and every number carries its protocol.

Evaluators read plain arrays, ``[n, F]`` features and ``[n]`` labels, and never see a network, so that
none of them can change one.
"""

"""EqCo (Zhu et al. 2020): equivalent rules that make contrastive learning independent of the number of negatives.

The paper adds the margin tau log(alpha / K) to the positive, so that K negatives behave as alpha would: bound,
gradient and accuracy are said not to depend on K, and SiMo, a MoCo without a queue, to need sixteen negatives a query.

The bound's dependence on K is a formula, and is measured at the paper's own scale (its toy table of 40 cells, and 80 of
other objectives): a share of it goes, most at high information. Accuracy over K needs a set with headroom, and SGD, the
paper's optimizer.
"""

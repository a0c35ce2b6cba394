"""FlatNCE (Chen et al. 2021): a contrastive loss without InfoNCE's log K.

The paper claims that InfoNCE fails at small batches for a numerical reason: where the positive is far ahead, its
gradient is the small difference of large numbers, and drowns. FlatNCE, exp(c - sg(c)) of the contrast c, has the
gradient of c itself. It is said to bound the mutual information from below, with less bias, to make batch 16 as good
as SimCLR's 128, and to hold the effective sample size (ESS) of the negatives up, which a schedule of the temperature
can steer.

The formulas are tested as formulas: identities of the losses, their error in low precision, the estimates of mutual
information against exact values. InfoNCE's gradient is W times FlatNCE's, W = sigmoid(c); claims on training are
judged where W is small.
"""

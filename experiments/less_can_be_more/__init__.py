"""Less can be more in contrastive learning (Mitrovic et al. 2020): fewer negatives can do better.

The paper claims that SimCLR is best with 2 negatives a query and ReLIC with 1, at a batch of 1,120, each K at the
best of a sweep, and looks for a reason: class concentration follows accuracy for ReLIC and not for SimCLR, and a
better signal-to-noise ratio of the gradient is thought to be one of the causes.

It prints no accuracies. Its protocol is a sweep of temperature and rate for each K; runs without one judge nothing.
"""

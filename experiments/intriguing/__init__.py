"""Intriguing Properties of Contrastive Losses (Chen, Luo and Li 2021): one generalized loss, and what it hides.

The paper writes contrastive losses as alignment plus a match of the embeddings' distribution to a prior, and claims
that InfoNCE, its decoupled form and sliced Wasserstein distances to three priors train equally well. On sets with
competing features (several digits on a canvas, digits on photographs, bits behind an image) it claims that features
that are easy to share between two views suppress the others: a few bits destroy the representation, whatever the
loss, the batch or the queue.

The bits are judged on digits, where 85 points can be lost; the rest needs accuracy to have room, or its own sets at
more than 8 pixels a digit.
"""

"""The family: what no paper has asked, and the controls that all tables are judged by.

The plan, as it was changed on 2026-11-23 after the first two tables on MNIST at 14 pixels (FlatNCE's Figure 2, yoked
temperatures). The half-width of a paired difference at five seeds is 0.3 points with all labels, as planned, and 0.5
to 0.9 with 10 labels a class, which alone have headroom there: effects of 1.5 points are seen, equality within half a
point is not. So predictions of equality get a second and last look, at 15 seeds. The temperature matters more than was
foreseen (a constant of 0.3 beats MACL's 0.10 to 0.18 by 1.8 points), so that temperature by batch comes next, then
where a gain comes from (AdamW and SGD first), RandBit's rows with their own cells without bits, and EqCo on MNIST (its
Figures 1, 2 and 4 share their runs). On CIFAR-10 at 16 pixels InfoNCE's median W is 0.6 to 0.8 at batch 64 through 20
epochs: claims on weights are judged at batch 16 there. Figure 2's contrast of batch 16 and 256 is then confirmed at
twice the width, with seeds 10 to 14.
"""

"""Work for a lent GPU, in the order of its value: each task at most eight minutes a call, and resumable.

    python -m experiments.gpu list
    python -m experiments.gpu pack cifar10 --out packs             # where the sets are: parts of at most 50 MB
    python -m experiments.gpu run correctness                      # where the GPU is
    python -m experiments.gpu run sensitivity --data packs/mnist-0.zip --folder DIR --out kept
    python -m experiments.gpu collect kept/records.zip             # at home again

A task is a list of commands; a call runs what has not finished, until its minutes are over: then it stops what runs,
which saves, and the next call goes on from ``--folder``. It prints one line of JSON, and leaves what is worth keeping
in ``--out``. ``--scale=smoke`` rehearses a task in a minute or two on any machine. Images come from packs, so that
neither TensorFlow, TFDS nor a network is needed.
"""

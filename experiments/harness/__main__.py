"""``jobs``: cells, for a worker process; ``pages``; ``csv``: all runs as a table; ``stale``: records to remove;
``rekey``: new names of records whose leaves became fewer; ``compare``; or a verb for all."""

import json
import sys

import experiments.harness
from experiments.harness import flat
from experiments.harness.cli import command_line
from experiments.harness.jobs import Job, rekey, stale
from experiments.harness.ledger import pages
from experiments.harness.pages import page_of, render
from experiments.harness.records import compare, of_revision, of_tree
from experiments.harness.running import run_jobs
from experiments.harness.table import ROOT, all_tables, table_of

if sys.argv[1:2] == ["jobs"]:
    replicas, found = json.loads(sys.argv[2])
    run_jobs(
        [Job(n, scale, tuple(cell), tuple(map(tuple, p)), *rest) for n, scale, cell, p, *rest in found],
        replicas,
    )
elif sys.argv[1:] == ["pages"]:
    import experiments.paper.__main__ as paper

    for table in map(table_of, all_tables()):
        render(table)
        print(page_of(table).relative_to(ROOT))
    for file, text in (pages() | flat.files()).items():
        file.write_text(text)
        print(file.relative_to(ROOT))
    print(*(file.relative_to(ROOT) for file in paper.write()), sep="\n")
elif sys.argv[1:] == ["csv"]:
    for file, text in flat.files().items():
        file.write_text(text)
        print(file.relative_to(ROOT))
elif sys.argv[1:] == ["stale"]:
    print(*stale(), sep="\n")
elif sys.argv[1:] == ["rekey"]:
    print(*(f"{old} -> {new}" for old, new in rekey().items()), sep="\n")
elif sys.argv[1:2] == ["compare"]:
    if len(sys.argv) not in (3, 4):
        sys.exit(
            "python -m experiments.harness compare REV1 [REV2]: one or two revisions; without REV2, the files here"
        )
    try:
        old, *new = map(of_revision, sys.argv[2:])
    except ValueError as error:
        sys.exit(str(error))
    print(compare(old, new[0] if new else of_tree()))
else:
    sys.exit(
        command_line(sys.argv[1:], [table_of(name) for name in all_tables()], experiments.harness.__doc__)
    )

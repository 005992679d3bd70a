"""`chargeback doctor`: asks a source what is there, and says what can be billed from it and what is missing.

`look.py` chooses an hour and reads it; `heard.py`, `memory.py`, `coverage.py` and `history.py` each work out some facts
and the notes that follow; `examine.py` puts them together, `show.py` renders them. Nothing is written to the store.
"""

from collections.abc import Callable

import click

from chargeback.collecting import open_source
from chargeback.config import ClusterConfig, Config
from chargeback.doctor.examine import examine
from chargeback.doctor.findings import Findings
from chargeback.doctor.show import as_json, as_table
from chargeback.errors import DataError
from chargeback.job import Job
from chargeback.period import Period
from chargeback.sources import Source

__all__ = ["Findings", "as_json", "as_table", "doctor_command", "examine"]


def doctor_command(
    job: Job, period: Period, as_json: bool, opened: Callable[[ClusterConfig, Config], Source] = open_source
) -> int:
    """Examines every cluster and prints what was found; the exit code, 5 where a cluster could not be billed."""
    found = []
    for cluster in job.config.all_clusters():
        found.append(examine(job, cluster, opened(cluster, job.config), period))
        if not as_json:
            click.echo(as_table(found[-1:]), nl=False)
    if as_json:
        click.echo(_json(found), nl=False)
    return 0 if all(f.ready for f in found) else DataError.exit_code


_json = as_json

"""The verb that comes first: do you have the GPU?"""

import shlex
import sys
from typing import Annotated

from cyclopts import Parameter

from gpuworkshop.cli.base import AsJson, app, bad_input, progress_bar, say, show, show_report


@app.command
def verify(
    *,
    expect: Annotated[str, Parameter(show_default=False)] = "",
    launcher: Annotated[str, Parameter(show_default=False)] = "",
    as_json: AsJson = False,
) -> int:
    """Do you have the GPU? Five checks, each with its cause and the exact fix; where there is none, what else runs.

    Parameters
    ----------
    expect
        The card that was asked for, such as b200: fail if another one is here, or none.
    launcher
        Command to put in front, in quotes: "srun --gres=gpu:1 --cpus-per-task=8".
    as_json
        Print the result as JSON on stdout, and nothing else there.
    """
    import msgspec

    from gpuworkshop.instruments import verify as instrument

    shown: list = []

    def first(report) -> None:
        shown.extend(report.tables)
        if report.tables:
            show_report(report)
        else:  # no card: one line, for all of it comes again
            say("\n".join(finding.title for finding in report.findings), sys.stdout)
        print(flush=True)

    with bad_input("--launcher: "):
        words = tuple(shlex.split(launcher))
    with bad_input("--expect: "):
        wanted = instrument.card_called(expect)
    result = instrument.run(wanted or "", words, progress_bar("verify"), None if as_json else first)
    if as_json:
        return show(instrument, result, as_json)
    report = instrument.report(result)
    rest = tuple(table for table in report.tables if table not in shown)  # what stands there already is not said twice
    return show_report(msgspec.structs.replace(report, tables=rest))

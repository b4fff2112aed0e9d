"""The verb `start`: the learner's own notebooks, and the kernel that runs them."""

from __future__ import annotations

from pathlib import Path

from gpuworkshop.cli.base import AsJson, BadInput, Switch, app, bad_input, show


@app.command
def start(
    *,
    folder: str | None = None,
    kernel_only: Switch = False,
    name: str = "gpuworkshop",
    display_name: str = "GPU workshop",
    as_json: AsJson = False,
) -> int:
    """Copy the course into a folder of yours, and install the Jupyter kernel of this environment.

    A notebook that you changed is kept, and the fresh one goes beside it.

    Parameters
    ----------
    folder
        Where the notebooks go. Not given: ~/gpu-workshop.
    kernel_only
        Install the kernel and copy nothing.
    name
        What Jupyter calls the kernel.
    display_name
        What you see it called.
    as_json
        Print the result as JSON on stdout, and nothing else there.
    """
    from gpuworkshop.course import start as instrument

    if kernel_only and folder:
        raise BadInput("--kernel-only copies nothing: leave --folder out")
    if folder == "":  # of a variable that is not set; as a path it would be the present folder
        raise BadInput("--folder is empty: name a folder, or leave --folder out for ~/gpu-workshop")
    with bad_input():
        result = instrument.run(
            None if kernel_only else Path(folder) if folder else instrument.FOLDER, name, display_name
        )
    return show(instrument, result, as_json)

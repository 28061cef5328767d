"""`mle-star mlflow`: a run in MLflow after the fact, or what the server missed of it."""

from __future__ import annotations

from typing import Annotated

import typer

from mle_star.cli.names import Run
from mle_star.errors import ConfigError


def mlflow(
    run_folder: Run,
    uri: Annotated[
        str, typer.Argument(metavar="URI", help="A tracking server, or a database such as sqlite:///mlflow.db.")
    ],
) -> None:
    """Send a run, or what is missing of it, to an MLflow server.

    What was sent is kept in the run's folder: nothing is sent twice. `mle-star run --mlflow URI` does the same as the
    run goes.

    \b
    Examples:
      mle-star mlflow titanic-20260131 http://127.0.0.1:5000
      mle-star mlflow titanic-20260131 sqlite:///mlflow.db
    """
    from mle_star.integrations.mlflow import MlflowMirror, said_by, without_password
    from mle_star.run.folder import RunFolder

    mirror, place = MlflowMirror(RunFolder(run_folder).open().root, uri), without_password(uri)
    try:
        sent = mirror.catch_up()
    except Exception as error:
        raise ConfigError(f"{place}: {type(error).__name__}: {said_by(error)[:300]}") from None
    typer.echo(f"{sent} events sent to {place}" if sent else f"nothing new for {place}")

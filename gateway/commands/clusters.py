"""`trellis cluster`: what operators of several gateways need."""

from __future__ import annotations

import typer

from . import cluster_demo, cluster_remove, cluster_status

app = typer.Typer(no_args_is_help=True, help="Look after a cluster of gateways (docs/how-to/cluster.md).")
app.command("status")(cluster_status.status)
app.command("remove")(cluster_remove.remove)
app.command("demo")(cluster_demo.demo)

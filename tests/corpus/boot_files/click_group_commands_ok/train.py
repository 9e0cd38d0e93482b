"""probe: fit and score"""
import click

from commands.fit import fit
from commands.score import score


@click.group()
@click.option("--batch-size", type=int, default=256, show_default=True)
@click.option("--output", default="/out/probe.pt")
@click.version_option("0.3")
@click.pass_context
def cli(ctx, batch_size, output):
    ctx.obj = {"batch_size": batch_size, "output": output}


cli.add_command(fit)
cli.add_command(score)

if __name__ == "__main__":
    cli()

import click
import torch


@click.command()
@click.option("--weights", required=True)
@click.option("--top-k", type=int, default=5)
@click.pass_obj
def score(settings, weights, top_k):
    """Show the largest weights; one process is enough."""
    state = torch.load(weights, map_location="cpu")
    for name, value in state.items():
        best = value.flatten().topk(min(top_k, value.numel())).values.tolist()
        click.echo(f"{name} {best} ({settings['batch_size']})")

"""Cuts a text into shards: python preprocess.py --source book.txt --shards 8"""
import click
import torch


def encode(text):
    return torch.tensor(list(text.encode("utf-8")), dtype=torch.uint8)


@click.command()
@click.option("--source", type=click.Path(exists=True), required=True)
@click.option("--shards", type=int, required=True)
@click.option("--out", default="shards/part")
def main(source, shards, out):
    with open(source, encoding="utf-8") as f:
        tokens = encode(f.read())
    for number, part in enumerate(tokens.chunk(shards)):
        torch.save(part.clone(), f"{out}{number}.pt")


if __name__ == "__main__":
    main()

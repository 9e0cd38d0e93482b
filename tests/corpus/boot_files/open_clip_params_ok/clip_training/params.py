import argparse
import ast


def get_default_params(model_name):
    # from the paper
    model_name = model_name.lower()
    if "vit" in model_name:
        return {"lr": 5.0e-4, "beta1": 0.9, "beta2": 0.98}
    return {"lr": 5.0e-4, "beta1": 0.9, "beta2": 0.999}


class ParseKwargs(argparse.Action):
    def __call__(self, parser, namespace, values, option_string=None):
        kw = {}
        for value in values:
            key, value = value.split("=")
            try:
                kw[key] = ast.literal_eval(value)
            except ValueError:
                kw[key] = str(value)
        setattr(namespace, self.dest, kw)


def parse_args(args):
    parser = argparse.ArgumentParser()
    parser.add_argument("--train-data", type=str, default=None)
    parser.add_argument(
        "--dataset-type", choices=["csv", "synthetic", "auto"], default="auto", help="Which type of dataset to process."
    )
    parser.add_argument("--train-num-samples", type=int, default=None)
    parser.add_argument("--csv-separator", type=str, default="\t")
    parser.add_argument("--logs", type=str, default="./logs/")
    parser.add_argument("--name", type=str, default=None)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=32)
    parser.add_argument("--lr", type=float, default=None, help="Learning rate.")
    parser.add_argument("--beta1", type=float, default=None)
    parser.add_argument("--beta2", type=float, default=None)
    parser.add_argument("--opt-kwargs", nargs="*", default={}, action=ParseKwargs)
    parser.add_argument("--use-bn-sync", default=False, action="store_true")
    parser.add_argument("--save-frequency", type=int, default=1)
    parser.add_argument("--resume", default=None, type=str)
    parser.add_argument("--model", type=str, default="RN50")
    parser.add_argument("--embed-dim", type=int, default=512)
    parser.add_argument("--local-loss", default=False, action="store_true")
    parser.add_argument("--gather-with-grad", default=False, action="store_true")
    parser.add_argument("--dist-url", default=None, type=str)
    parser.add_argument("--dist-backend", default=None, type=str)
    parser.add_argument("--report-to", default="", type=str)
    parser.add_argument("--ddp-static-graph", default=False, action="store_true")
    parser.add_argument("--no-set-device-rank", default=False, action="store_true")
    parser.add_argument("--horovod", default=False, action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda", type=str)
    parser.add_argument("--log-every-n-steps", type=int, default=100)
    args = parser.parse_args(args)
    # If some params are not passed, we use the default values based on model name.
    for name, val in get_default_params(args.model).items():
        if getattr(args, name) is None:
            setattr(args, name, val)
    return args

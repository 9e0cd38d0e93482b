import importlib
import os

TASK_REGISTRY = {}


def setup_task(args):
    return TASK_REGISTRY[args.task].setup_task(args)


def register_task(name):
    def wrapper(cls):
        if name in TASK_REGISTRY:
            raise ValueError("Cannot register duplicate task ({})".format(name))
        TASK_REGISTRY[name] = cls
        return cls

    return wrapper


# import every module of this folder
for file in sorted(os.listdir(os.path.dirname(__file__))):
    if file.endswith(".py") and not file.startswith("_"):
        importlib.import_module("tasks." + file[: -len(".py")])

import argparse
import ast
import runpy


class Config(dict):
    """Attributes are keys; a file is a Python module of assignments."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(name) from error

    def __setattr__(self, name, value):
        self[name] = value

    @classmethod
    def fromfile(cls, path):
        names = runpy.run_path(path)
        return cls({k: v for k, v in names.items() if not k.startswith('_')})

    def merge_from_dict(self, options):
        for key, value in options.items():
            node = self
            *parents, last = key.split('.')
            for parent in parents:
                node = node.setdefault(parent, {})
            node[last] = value


class DictAction(argparse.Action):
    def __call__(self, parser, namespace, values, option_string=None):
        found = {}
        for pair in values:
            key, value = pair.split('=', maxsplit=1)
            try:
                found[key] = ast.literal_eval(value)
            except (ValueError, SyntaxError):
                found[key] = value
        setattr(namespace, self.dest, found)

import os

import yaml


def yaml_config_hook(config_file):
    """Read a yaml file, and the files that its `defaults` name."""
    with open(config_file) as f:
        cfg = yaml.safe_load(f)
        for d in cfg.get("defaults", []):
            config_dir, cf = d.popitem()
            cf = os.path.join(os.path.dirname(config_file), config_dir, cf + ".yaml")
            with open(cf) as g:
                cfg.update(yaml.safe_load(g))
    cfg.pop("defaults", None)
    return cfg

from ast import literal_eval
from pathlib import Path

import yaml


class EasyDict(dict):
    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name)

    def __setattr__(self, name, value):
        self[name] = value


def _convert(node):
    return EasyDict({k: _convert(v) for k, v in node.items()}) if isinstance(node, dict) else node


def log_config_to_file(cfg, pre='cfg', logger=None):
    for key, val in cfg.items():
        if isinstance(val, EasyDict):
            log_config_to_file(val, pre=pre + '.' + key, logger=logger)
        else:
            logger.info('%s.%s: %s' % (pre, key, val))


def cfg_from_list(cfg_list, config):
    assert len(cfg_list) % 2 == 0
    for k, v in zip(cfg_list[0::2], cfg_list[1::2]):
        d = config
        *subkeys, last = k.split('.')
        for subkey in subkeys:
            d = d[subkey]
        assert last in d, 'NotFoundKey: %s' % last
        d[last] = literal_eval(v)


def cfg_from_yaml_file(cfg_file, config):
    with open(cfg_file, 'r') as f:
        config.update(_convert(yaml.safe_load(f)))
    return config


cfg = EasyDict()
cfg.ROOT_DIR = str((Path(__file__).resolve().parent / '../').resolve())
cfg.LOCAL_RANK = 0

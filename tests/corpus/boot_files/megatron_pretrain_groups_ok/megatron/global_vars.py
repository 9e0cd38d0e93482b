import time

_GLOBAL_ARGS = None
_GLOBAL_TIMERS = None


def get_args():
    assert _GLOBAL_ARGS is not None, "args are not initialized."
    return _GLOBAL_ARGS


def get_timers():
    assert _GLOBAL_TIMERS is not None, "timers are not initialized."
    return _GLOBAL_TIMERS


def set_global_variables(extra_args_provider=None, args_defaults=None):
    global _GLOBAL_ARGS, _GLOBAL_TIMERS
    from .arguments import parse_args

    _GLOBAL_ARGS = parse_args(extra_args_provider, args_defaults or {})
    _GLOBAL_TIMERS = {"start": time.time()}

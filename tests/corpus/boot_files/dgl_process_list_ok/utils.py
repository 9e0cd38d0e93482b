import traceback
from functools import wraps

from dgl.data import RedditDataset


def thread_wrapped_func(func):
    @wraps(func)
    def decorated_function(*args, **kwargs):
        try:
            return func(*args, **kwargs)
        except Exception:
            traceback.print_exc()
            raise SystemExit(1)

    return decorated_function


def load_graph():
    data = RedditDataset(self_loop=True)
    g = data[0]
    g.ndata['features'] = g.ndata.pop('feat')
    g.ndata['labels'] = g.ndata.pop('label')
    return data.num_classes, g

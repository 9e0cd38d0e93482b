import logging

_logger = logging.getLogger(__name__)


def resolve_data_config(args, verbose=False):
    size = (3, 224, 224)
    if args.get('input_size'):
        size = tuple(args['input_size'])
    elif args.get('img_size'):
        size = (3, args['img_size'], args['img_size'])
    if verbose:
        _logger.info('Data processing configuration: input_size %s', size)
    return {'input_size': size}

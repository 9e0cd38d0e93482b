from .small import *
from .wide import *

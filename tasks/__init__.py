"""Every module in this folder registers its tasks when imported; a new file needs no other line."""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

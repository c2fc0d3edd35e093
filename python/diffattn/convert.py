# SPDX-License-Identifier: Apache-2.0
"""Converts model folders between layouts.

    report = diffattn.convert("IN", "OUT", to="diffllama")

docs/convert.md describes the layouts and what happens to each tensor.
"""
import warnings
from typing import Any, Dict

from diffattn_program.convert import ConversionError, convert


__all__ = ["ConversionError", "convert"]


def _old_name(*arguments: Any, **options: Any) -> Dict[str, Any]:
    warnings.warn("diffattn.convert.convert is deprecated: call diffattn.convert", DeprecationWarning, stacklevel=2)
    return convert(*arguments, **options)


# `diffattn.convert` was a module. Its names keep working on the function.
setattr(convert, "convert", _old_name)  # noqa: B010
setattr(convert, "ConversionError", ConversionError)  # noqa: B010

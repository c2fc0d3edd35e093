# SPDX-License-Identifier: Apache-2.0
"""The options and prompts of generation: names, defaults, and checks that name the argument."""
import math
from typing import Any, Dict, List, Sequence

from typing_extensions import TypedDict


class GenerationOptions(TypedDict, total=False):
    """The keyword arguments of `Model.generate` and `Generator.generate`.

    temperature 0 takes the likeliest token. top_k 0 and top_p 1 keep all tokens. stop_tokens default to the model's
    end of text.
    """
    max_new_tokens: int
    temperature: float
    top_k: int
    top_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    seed: int
    stop_tokens: Sequence[int]


#: The defaults. `stop_tokens` has none of its own.
DEFAULTS: Dict[str, Any] = {"max_new_tokens": 64, "temperature": 0.0, "top_k": 0, "top_p": 1.0,
                            "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "seed": 0}


def completed(given: GenerationOptions) -> Dict[str, Any]:
    """Adds the defaults. Raises TypeError or ValueError that names a wrong option."""
    wrong = sorted(set(given) - {*DEFAULTS, "stop_tokens"})
    if wrong:
        raise TypeError(f"diffattn: generate has no option {wrong[0]!r}; it has {', '.join(DEFAULTS)}, stop_tokens")
    options = {**DEFAULTS, **given}
    for name, default in DEFAULTS.items():
        value = options[name]
        if isinstance(default, int):
            _check_integer(name, value)
        elif isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise ValueError(f"diffattn: argument '{name}': expected a finite number, got {value!r}")
    if not 0 <= options["seed"] < 2**64:
        raise ValueError(f"diffattn: argument 'seed': expected an integer in [0, 2**64), got {options['seed']}")
    if "stop_tokens" in options:
        options["stop_tokens"] = check_ids("stop_tokens", [options["stop_tokens"]])[0]
    return options


def check_ids(name: str, prompts: Any) -> List[List[int]]:
    """Returns lists of token ids. Raises TypeError if they are something else."""
    if not isinstance(prompts, (list, tuple)) or not all(isinstance(ids, (list, tuple)) for ids in prompts):
        raise TypeError(f"diffattn: argument '{name}': expected lists of token ids, got {prompts!r:.80}")
    for ids in prompts:
        for token in ids:
            _check_integer(name, token)
    return [list(ids) for ids in prompts]


def check_text(name: str, text: Any) -> None:
    """Raises TypeError or ValueError if a text is something else, or cannot be written as UTF-8."""
    if not isinstance(text, str):
        raise TypeError(f"diffattn: argument '{name}': expected a text, got {text!r:.80}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"diffattn: argument '{name}': expected text that UTF-8 can write, got {error.reason} at "
                         f"position {error.start}") from None


def _check_integer(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"diffattn: argument '{name}': expected integers, got {value!r:.80}")
    if not -2**63 <= value < 2**64:
        raise ValueError(f"diffattn: argument '{name}': expected integers of 64 bits, got {value}")

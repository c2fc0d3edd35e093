# SPDX-License-Identifier: Apache-2.0
"""`python -m diffattn VERB ...` runs the program `diffattn VERB ...`."""
import os
import sys

from diffattn import _library


def main() -> int:
    program = _library.program()
    if program is None:
        print(_library.NO_PROGRAM, file=sys.stderr)
        return 1
    sys.stdout.flush()
    os.execve(program, [str(program), *sys.argv[1:]], _library.environment(program))


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""`python -m diffattn VERB ...` runs the program `diffattn VERB ...`.

Under torchrun, several processes run one verb together (`diffattn.distributed`).
"""
import os
import sys

from diffattn_program import main

if __name__ == "__main__":
    from diffattn import distributed
    if distributed.runs_together(sys.argv[1:], os.environ):
        distributed.main(sys.argv[1:])
    main()

# SPDX-License-Identifier: Apache-2.0
"""`python -m diffattn VERB ...` runs the program `diffattn VERB ...`.

Under torchrun, several processes run one verb together (`diffattn.distributed`).
"""
import os
import sys

from diffattn_program import main

if __name__ == "__main__":
    from diffattn import distributed
    if sys.argv[1:2] and sys.argv[1] in distributed.VERBS and distributed.is_started_by_torchrun(os.environ):
        distributed.main(sys.argv[1:])
    main()

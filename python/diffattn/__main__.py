# SPDX-License-Identifier: Apache-2.0
"""`python -m diffattn VERB ...` runs the program `diffattn VERB ...`."""
from diffattn_program import main

if __name__ == "__main__":
    main()

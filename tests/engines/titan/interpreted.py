"""`python -m nugpt.engines.titan` where Triton interprets kernels, with their sums taken by slices."""

import sys

from tests.kernels.fused.interpreter import reduce_by_slices

from nugpt.engines.titan.__main__ import main

if __name__ == "__main__":
    reduce_by_slices()
    sys.exit(main())

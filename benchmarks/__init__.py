"""How fast the native kernels are, beside other implementations and beside what this machine can do at all.

``python -m benchmarks`` measures every row; ``python -m benchmarks NAME ...`` some of them. A row is data (rows/): what
is measured, against what, and what must be reached. docs/performance.md explains how, and holds the table.
"""

import os

# Before torch is imported: its profiler would write into the lines of progress.
os.environ.setdefault("KINETO_LOG_LEVEL", "6")

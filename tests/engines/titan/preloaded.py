"""What a rank imports, once for all of a test run's ranks: importing it takes longer than most runs of the tests."""

from nugpt.engines.titan import compat

compat.prepare("cpu")

import torch._dynamo  # noqa: E402, F401

import nugpt.cli.titan  # noqa: E402
import nugpt.engines.titan.__main__  # noqa: E402
import nugpt.engines.titan.configure  # noqa: E402
import nugpt.engines.titan.plan  # noqa: E402
import nugpt.engines.titan.trainer  # noqa: E402, F401

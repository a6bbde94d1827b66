"""`python -m nugpt`."""

import sys

from nugpt.cli.main import main

sys.exit(main())

"""`python -m tilewright.tools` is the command `tilewright`."""

import sys

from .cli import main

sys.exit(main())

"""`python -m eagle3_data`: the command line, where the script `eagle3-data` is not on the PATH."""

import sys

from eagle3_data.cli import main

sys.exit(main())

"""`python -m onebit` is the `onebit` command."""

import sys

from onebit.commands import main

if __name__ == "__main__":
    sys.exit(main())

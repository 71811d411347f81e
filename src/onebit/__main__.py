"""`python -m onebit` is the `onebit` command."""

import sys

from onebit.commands import entry_point

if __name__ == "__main__":
    sys.exit(entry_point())

"""What commands raise for the user to read."""


class UserError(ValueError):
    """A mistake in the command line: told in one line, exit code 2."""

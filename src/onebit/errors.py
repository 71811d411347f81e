"""What is raised for a user to read."""


class UserError(ValueError):
    """Something that the user can mend: the command tells it in one line and ends with exit code 2."""


class WorkError(RuntimeError):
    """The work could not be done, though nothing was wrong with the command: one line, exit code 1."""


class NotFiniteError(ValueError):
    """A weight or a loss has become infinite or NaN: training has diverged."""

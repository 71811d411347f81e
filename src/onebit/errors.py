"""What is raised for a user to read."""


class UserError(ValueError):
    """Something that the user can mend: the command tells it in one line and ends with exit code 2."""


class WorkError(RuntimeError):
    """The work could not be done, though nothing was wrong with the command: one line, exit code 1."""


class NotFiniteError(ValueError):
    """A weight or a loss has become infinite or NaN: training has diverged."""


class ExportError(UserError):
    """A net that can't be written as the file that was asked for: which layer, which operation, and what to do."""


class ModelFileError(UserError):
    """A .onebit file that is not whole, not sound or not for this version: what is wrong with it."""

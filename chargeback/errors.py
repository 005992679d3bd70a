"""Every fatal error: what is wrong and where, what to do about it, and the exit code that tells a scheduler."""


class ChargebackError(Exception):
    """A failure that a user can cause or cure. `message` says what and where, `hint` what to do."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(ChargebackError):
    """The command line asks for something that cannot be done."""

    exit_code = 2


class ConfigError(ChargebackError):
    """The configuration or a price book is wrong or contradicts itself."""

    exit_code = 3


class SourceUnreachable(ChargebackError):
    """The source did not answer, or not with what was asked; trying again later may help."""

    exit_code = 4


class DataError(ChargebackError):
    """Data is missing or inconsistent; a bill from it would be wrong."""

    exit_code = 5


class NotReconciled(ChargebackError):
    """Charges, node cost and invoices do not add up; nothing was published."""

    exit_code = 6


class CannotWrite(ChargebackError):
    """The store or the output folder cannot be written."""

    exit_code = 7

"""The few ways a run can end badly, each with its exit code; retry is decided by type."""


class LengthwiseError(Exception):
    """Base of the errors that a user can act on; the message names the field, row or key and the next step."""

    exit_code = 1


class JobError(LengthwiseError):
    """The job file, an argument or something it names (model, column, input) is wrong; mend it, a retry cannot help."""

    exit_code = 2


class RejectBudgetError(LengthwiseError):
    """More rows were rejected than the job allows; nothing was published."""

    exit_code = 3


class StorageError(LengthwiseError):
    """The object store refused or was unreachable, or an input changed; finished work is kept, run again."""

    exit_code = 5


class WorkerError(LengthwiseError):
    """A worker process died or failed; finished shards are kept, run again."""

    exit_code = 6


class ServiceError(LengthwiseError):
    """SageMaker was unreachable, busy, or slower than we wait; run again, it goes on from there."""

    exit_code = 5


class ServingError(LengthwiseError):
    """An endpoint or a transform job failed; the message has SageMaker's reason and where its log is."""

    exit_code = 6


class ConservationError(LengthwiseError):
    """Rows in differ from predicted plus rejected: a defect of Lengthwise, never published."""

    exit_code = 7

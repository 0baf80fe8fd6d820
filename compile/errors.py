"""What can go wrong between a model and a loaded artifact."""


class ModelError(ValueError):
    """A model directory cannot be used; the message says what is missing or contradictory in it."""


class CompileError(Exception):
    """A model could not be compiled for a shape; the message names the shape and the toolchain's reason."""


class ArtifactError(Exception):
    """An artifact is missing, damaged or unfit (no passing parity record); the message has key and building command."""


class TargetUnavailable(Exception):  # noqa: N818 - a state of the machine
    """This machine lacks what a target needs; the message says which package or device, and how to get it."""


class ShapeMismatch(ValueError):  # noqa: N818 - named for what is found
    """A batch has another shape than the artifact was compiled for; static graphs never fall back to dynamic ones."""


class DeviceError(Exception):
    """The device or its runtime failed while executing a batch; retry on another worker or bisect the batch."""

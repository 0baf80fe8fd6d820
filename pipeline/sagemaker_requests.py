"""What SageMaker is asked for: a model, an endpoint or a batch transform job, as its API takes them. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from typing import Any

from pipeline.errors import JobError

DEFAULT_INSTANCE = "ml.inf2.xlarge"
CODE_KINDS = {"inf2": "trn1", "trn1": "trn1", "trn1n": "trn1", "trn2": "trn2"}
"""Instance -> whose code it runs, as optimum-neuron and its compiler know them: Inf2 and Trn1 run the same."""
CORES = {
    "ml.inf2.xlarge": 2, "ml.inf2.8xlarge": 2, "ml.inf2.24xlarge": 12, "ml.inf2.48xlarge": 24,
    "ml.trn1.2xlarge": 2, "ml.trn1.32xlarge": 32, "ml.trn1n.32xlarge": 32,
}  # fmt: skip
"""NeuronCores of an instance: so many workers serve, one on each."""
_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,47}")
_ROLE = re.compile(r"arn:aws[a-z-]*:iam::\d{12}:role/?[\w+=,.@/-]+")


@dataclass(frozen=True, slots=True)
class Deployment:
    """Everything that decides what is created, and so the names: the same again is found, not created twice."""

    name: str
    archive: str
    """s3:// URI of what `lengthwise package` made."""
    etag: str
    role: str
    image: str
    instance_type: str
    instances: int
    workers: int
    """Processes that serve on one instance, each with one NeuronCore."""
    transform: tuple[str, str] | None = None
    """Where a batch transform job reads and writes; None is an endpoint."""

    @property
    def version(self) -> str:
        """Name of the model and of the endpoint's configuration: the name, and ten characters of a digest."""
        data = json.dumps(asdict(self), sort_keys=True).encode()
        return f"{self.name}-{hashlib.sha256(data).hexdigest()[:10]}"

    def model(self) -> dict[str, Any]:
        """CreateModel."""
        environment = {
            "SAGEMAKER_PROGRAM": "inference.py",
            "NEURON_RT_NUM_CORES": "1",
            # The toolkit would count devices in /sys, and start no worker where a container does not see them there.
            "SAGEMAKER_MODEL_SERVER_WORKERS": str(self.workers),
            "HF_HUB_OFFLINE": "1",
        }
        return {
            "ModelName": self.version,
            "ExecutionRoleArn": self.role,
            "PrimaryContainer": {"Image": self.image, "ModelDataUrl": self.archive, "Environment": environment},
        }

    def endpoint_config(self) -> dict[str, Any]:
        """CreateEndpointConfig."""
        variant = {
            "VariantName": "AllTraffic",
            "ModelName": self.version,
            "InstanceType": self.instance_type,
            "InitialInstanceCount": self.instances,
            "InitialVariantWeight": 1.0,
        }
        return {"EndpointConfigName": self.version, "ProductionVariants": [variant]}

    def endpoint(self) -> dict[str, Any]:
        """CreateEndpoint and UpdateEndpoint."""
        return {"EndpointName": self.name, "EndpointConfigName": self.version}

    def transform_job(self, attempt: int = 1) -> dict[str, Any]:
        """CreateTransformJob over objects of JSON lines; one answer per line, in the same order."""
        assert self.transform is not None
        source, destination = self.transform
        return {
            "TransformJobName": f"{self.version}-{attempt}",
            "ModelName": self.version,
            # The toolkit reads one JSON document per request.
            "BatchStrategy": "SingleRecord",
            "MaxConcurrentTransforms": self.workers,
            "TransformInput": {
                "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": source}},
                "ContentType": "application/json",
                "SplitType": "Line",
            },
            "TransformOutput": {
                "S3OutputPath": destination,
                "AssembleWith": "Line",
                "Accept": "application/json",
            },
            "TransformResources": {"InstanceType": self.instance_type, "InstanceCount": self.instances},
        }

    def requests(self) -> dict[str, dict[str, Any]]:
        """Operation -> request, in order: what a new deployment sends."""
        if self.transform:
            return {"CreateModel": self.model(), "CreateTransformJob": self.transform_job()}
        return {
            "CreateModel": self.model(),
            "CreateEndpointConfig": self.endpoint_config(),
            "CreateEndpoint": self.endpoint(),
        }


def check(deployment: Deployment) -> None:
    """Raises JobError that names the option, its value and what it must be."""
    if not deployment.archive.startswith("s3://"):
        raise JobError(
            f"{deployment.archive}: SageMaker reads archives from S3; "
            "lengthwise package JOB --to s3://... puts it there"
        )
    if not _NAME.fullmatch(deployment.name):
        raise JobError(f"--name {deployment.name!r}: give 1 to 48 letters, digits and single or double hyphens between")
    if not _ROLE.fullmatch(deployment.role):
        raise JobError(
            f"--role {deployment.role!r} is no role's ARN (arn:aws:iam::ACCOUNT:role/NAME); SageMaker takes it to read "
            "the archive and to pull the image"
        )
    if not deployment.image or re.search(r"\s", deployment.image):
        raise JobError(
            f"--image {deployment.image!r} is no image URI; give that of the Hugging Face container for Neuron "
            "inference in your region (docs/inf2.md says where it is listed)"
        )
    for uri in deployment.transform or ():
        if not re.fullmatch(r"s3://[^/]+/.*", uri):
            raise JobError(f"--transform {uri!r} is no s3://bucket/prefix; SageMaker reads and writes S3 only")


def check_instance(instance_type: str, compiled_for: str) -> None:
    """Raises JobError when code that was compiled for one kind (inf2, trn1, ...) does not run on an instance."""
    family = re.fullmatch(r"ml\.(\w+)\.\w+", instance_type)
    if family is None:
        raise JobError(f"--instance-type {instance_type!r} is no SageMaker instance such as {DEFAULT_INSTANCE}")
    kind = family[1]
    if kind == compiled_for or CODE_KINDS.get(kind, kind) == CODE_KINDS.get(compiled_for):
        return
    if kind == "inf1":
        why = (
            "Inferentia1 runs code of another compiler (neuron-cc, torch-neuron), which optimum-neuron 0.4 no longer "
            "drives; neuronx-cc compiles for Inf2 and newer"
        )
    elif kind not in CODE_KINDS:
        why = "it has no Neuron device"
    else:
        why = f"{kind} runs other code; set neuron.instance_type: {kind} in the job, compile and package again"
    raise JobError(f"--instance-type {instance_type}: this archive was compiled for {compiled_for}: {why}")


def workers_of(instance_type: str) -> int:
    """Processes of an instance: one per core. Raises JobError where the number of cores is not known."""
    workers = CORES.get(instance_type)
    if workers is None:
        raise JobError(f"--workers: give how many NeuronCores {instance_type} has, one worker each")
    return workers

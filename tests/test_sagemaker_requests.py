"""What `lengthwise deploy` asks of SageMaker, by AWS's own model of its API, and what it makes of the answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber
from botocore.validate import ParamValidator
from sagemaker_tools import instance_types

from pipeline.deploying import SageMaker
from pipeline.errors import JobError, ServiceError, ServingError
from pipeline.sagemaker_requests import CORES, Deployment, check, check_instance

REGION = "us-east-1"
ROLE = "arn:aws:iam::123456789012:role/sagemaker"
WANTED = Deployment("urgency", "s3://lake/model.tar.gz", "e", ROLE, "image:1", "ml.inf2.xlarge", 1, 2)
MOVED = dataclasses.replace(WANTED, transform=("s3://lake/in/", "s3://lake/answers"))


# --- what is asked of SageMaker ---


def test_the_requests_are_what_the_api_takes() -> None:
    """botocore validates them against AWS's own model of the API, field by field."""
    client = boto3.client("sagemaker", region_name=REGION, aws_access_key_id="x", aws_secret_access_key="x")
    for deployment in (WANTED, MOVED):
        for operation, request in deployment.requests().items():
            shape = client.meta.service_model.operation_model(operation).input_shape
            assert ParamValidator().validate(request, shape).generate_report() == ""
    assert set(CORES) <= instance_types()


def test_a_container_gets_one_worker_per_core_and_one_core_per_worker() -> None:
    container = WANTED.model()["PrimaryContainer"]
    assert container["Environment"]["NEURON_RT_NUM_CORES"] == "1"
    assert container["Environment"]["SAGEMAKER_MODEL_SERVER_WORKERS"] == "2"
    assert MOVED.transform_job()["MaxConcurrentTransforms"] == 2


def test_whatever_changes_the_deployment_changes_its_version() -> None:
    fields = {"etag": "f", "image": "image:2", "instance_type": "ml.inf2.8xlarge", "instances": 2, "workers": 1}
    versions = {dataclasses.replace(WANTED, **{name: value}).version for name, value in fields.items()}
    assert len(versions | {WANTED.version, MOVED.version}) == 7
    assert dataclasses.replace(WANTED).version == WANTED.version


@pytest.mark.parametrize(
    ("instance", "compiled_for", "message"),
    [
        ("ml.inf2.xlarge", "inf2", None),
        ("ml.trn1.2xlarge", "inf2", None),
        ("ml.inf2.24xlarge", "trn1n", None),
        ("ml.trn2.48xlarge", "trn2", None),
        ("ml.inf1.xlarge", "inf2", r"compiled for inf2: Inferentia1 runs code of another compiler \(neuron-cc"),
        ("ml.inf1.xlarge", "inf1", None),
        ("ml.trn2.48xlarge", "inf2", "set neuron.instance_type: trn2 in the job, compile and package again"),
        ("ml.m5.large", "inf2", "it has no Neuron device"),
        ("inf2.xlarge", "inf2", "is no SageMaker instance such as ml.inf2.xlarge"),
    ],
)
def test_an_instance_that_cannot_run_the_code_is_refused(instance: str, compiled_for: str, message: str | None) -> None:
    if message is None:
        check_instance(instance, compiled_for)
    else:
        with pytest.raises(JobError, match=message):
            check_instance(instance, compiled_for)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("name", "a_b", "--name 'a_b'"),
        ("name", "x" * 49, "48 letters"),
        ("role", "sagemaker", "--role 'sagemaker' is no role's ARN"),
        ("image", "", "--image '' is no image URI"),
        ("transform", ("s3://lake/in/", "answers"), "--transform 'answers' is no s3://"),
    ],
)
def test_a_wrong_option_is_named(field: str, value: Any, message: str) -> None:
    check(WANTED)
    with pytest.raises(JobError, match=message):
        check(dataclasses.replace(WANTED, **{field: value}))


# --- SageMaker's answers that moto never gives, in the shape of AWS's own model of the API ---


def sagemaker(say: Callable[[str], None] = lambda line: None, timeout_s: float = 60) -> tuple[SageMaker, Stubber]:
    client = boto3.client("sagemaker", region_name=REGION, aws_access_key_id="x", aws_secret_access_key="x")
    return SageMaker(client, say, timeout_s, poll_s=0), Stubber(client)


ARN = "arn:aws:sagemaker:us-east-1:123456789012:endpoint/urgency"


def endpoint(status: str, version: str = WANTED.version, reason: str | None = None) -> dict[str, Any]:
    times = {"CreationTime": 0, "LastModifiedTime": 0}
    names = {"EndpointName": "urgency", "EndpointArn": ARN, "EndpointConfigName": version}
    return {**names, **times, "EndpointStatus": status, **({"FailureReason": reason} if reason else {})}


def model_and_config_are_there(stubber: Stubber) -> None:
    found = {"ModelName": WANTED.version, "ExecutionRoleArn": ROLE, "CreationTime": 0, "ModelArn": ARN}
    stubber.add_response("describe_model", found, {"ModelName": WANTED.version})
    config = {"EndpointConfigName": WANTED.version, "EndpointConfigArn": ARN, "CreationTime": 0}
    variants = {"ProductionVariants": [{"VariantName": "AllTraffic"}]}
    stubber.add_response("describe_endpoint_config", config | variants, {"EndpointConfigName": WANTED.version})


def test_an_endpoint_is_followed_until_it_serves_the_new_version() -> None:
    lines: list[str] = []
    service, stubber = sagemaker(lines.append)
    model_and_config_are_there(stubber)
    stubber.add_response("describe_endpoint", endpoint("InService", "urgency-old"))
    stubber.add_response("update_endpoint", {"EndpointArn": ARN}, WANTED.endpoint())
    for status in ("Updating", "Updating", "InService"):
        stubber.add_response("describe_endpoint", endpoint(status))
    with stubber:
        assert service.serve(WANTED)["status"] == "InService"
    assert [line.split(" after")[0] for line in lines] == [
        "endpoint urgency: replacing version urgency-old",
        "endpoint urgency: Updating",
        "endpoint urgency: InService",
    ]
    stubber.assert_no_pending_responses()


@pytest.mark.parametrize(
    ("last", "message"),
    [
        (endpoint("Failed", reason="Out of capacity"), "ended as Failed: Out of capacity\n.*/aws/sagemaker/Endpoints/"),
        (endpoint("InService", "urgency-old"), "its update was rolled back: SageMaker gives no reason"),
        (endpoint("UpdateRollbackFailed"), "ended as UpdateRollbackFailed"),
    ],
)
def test_an_endpoint_that_does_not_get_there_says_why(last: dict[str, Any], message: str) -> None:
    service, stubber = sagemaker()
    model_and_config_are_there(stubber)
    stubber.add_response("describe_endpoint", endpoint("Creating"))
    stubber.add_response("describe_endpoint", last)
    with stubber, pytest.raises(ServingError, match=message):
        service.serve(WANTED)


def test_waiting_has_an_end() -> None:
    service, stubber = sagemaker(timeout_s=-1)
    model_and_config_are_there(stubber)
    for _ in range(2):
        stubber.add_response("describe_endpoint", endpoint("Creating"))
    with stubber, pytest.raises(ServiceError, match="still Creating after 0 minutes; run the same command"):
        service.serve(WANTED)


@pytest.mark.parametrize(
    ("code", "kind", "message"),
    [
        ("AccessDeniedException", JobError, "iam:PassRole"),
        ("ResourceLimitExceeded", JobError, "Service Quotas"),
        ("ThrottlingException", ServiceError, "run the same command again"),
        ("ValidationException", JobError, "mend the options"),
    ],
)
def test_a_refusal_is_told_by_what_helps(code: str, kind: type[Exception], message: str) -> None:
    service, stubber = sagemaker()
    model_and_config_are_there(stubber)
    stubber.add_client_error("describe_endpoint", "ValidationException", 'Could not find endpoint "x".')
    stubber.add_client_error("create_endpoint", code, "because")
    with stubber, pytest.raises(kind, match=f"create_endpoint: {code}: because; .*{message}"):
        service.serve(WANTED)

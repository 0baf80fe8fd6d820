"""How a deployment comes to be: asks SageMaker for what is missing, follows it to its end, says why it failed.

Run again, it finds what it made before, and goes on waiting.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, NoRegionError

from pipeline.errors import JobError, ServiceError, ServingError
from pipeline.sagemaker_requests import Deployment

_ADVICE = {
    "AccessDeniedException": "these credentials may not do that; give them that action, and iam:PassRole of the role",
    "ResourceLimitExceeded": "ask for more of this instance type in Service Quotas (Amazon SageMaker), or name another",
    "UnrecognizedClientException": "the credentials are not known there; check AWS_ACCESS_KEY_ID and the region",
    "ExpiredTokenException": "the session token has expired; renew the credentials",
}
_PASSING = ("ThrottlingException", "ServiceUnavailable", "InternalFailure", "RequestTimeout", "Throttling")
_GROWING = ("Creating", "Updating", "SystemUpdating", "RollingBack", "InProgress", "Stopping")


class SageMaker:
    """One client, and how long and how often to ask. `client` is boto3's `sagemaker`."""

    def __init__(self, client: Any, say: Callable[[str], None], timeout_s: float, poll_s: float = 15.0) -> None:
        self._client = client
        self._say = say
        self._timeout_s = timeout_s
        self._poll_s = poll_s

    def serve(self, deployment: Deployment, wait: bool = True) -> dict[str, Any]:
        """Bring the endpoint to this version. Raises ServingError with the reason when it does not get there."""
        self._ensure("model", deployment.version, deployment.model())
        self._ensure("endpoint_config", deployment.version, deployment.endpoint_config())
        found = self._describe("endpoint", deployment.name)
        if found is None:
            self._say(f"endpoint {deployment.name}: creating it on {deployment.instance_type}")
            self._call("create_endpoint", deployment.endpoint())
        elif found["EndpointStatus"] == "Failed":
            raise ServingError(
                f"endpoint {deployment.name} has failed before: {found.get('FailureReason')}; delete it and deploy "
                f"again: aws sagemaker delete-endpoint --endpoint-name {deployment.name}"
            )
        elif found["EndpointConfigName"] != deployment.version:
            self._say(f"endpoint {deployment.name}: replacing version {found['EndpointConfigName']}")
            self._call("update_endpoint", deployment.endpoint())
        ended = self._wait("endpoint", deployment.name, "EndpointStatus") if wait else {}
        status = ended.get("EndpointStatus")
        if wait and (status != "InService" or ended["EndpointConfigName"] != deployment.version):
            _fail(f"endpoint {deployment.name}", status, ended, f"/aws/sagemaker/Endpoints/{deployment.name}")
        return {"endpoint": deployment.name, "version": deployment.version, "status": status}

    def transform(self, deployment: Deployment, wait: bool = True) -> dict[str, Any]:
        """Run the batch transform job, or find it done. One that failed is begun again, under the next number."""
        self._ensure("model", deployment.version, deployment.model())
        attempt = 1
        while True:
            request = deployment.transform_job(attempt)
            name = request["TransformJobName"]
            found = self._describe("transform_job", name)
            if found is None or found["TransformJobStatus"] not in ("Failed", "Stopped"):
                break
            attempt += 1
        if found is None:
            self._say(f"transform job {name}: creating it on {deployment.instance_type}")
            self._call("create_transform_job", request)
        ended = self._wait("transform_job", name, "TransformJobStatus") if wait else {}
        status = ended.get("TransformJobStatus")
        if wait and status != "Completed":
            _fail(f"transform job {name}", status, ended, f"/aws/sagemaker/TransformJobs, streams {name}/")
        output = request["TransformOutput"]["S3OutputPath"]
        return {"transform_job": name, "version": deployment.version, "status": status, "output": output}

    def _ensure(self, kind: str, name: str, request: dict[str, Any]) -> None:
        """Names carry a digest of what they stand for, so what is there is what is wanted."""
        if self._describe(kind, name) is None:
            self._say(f"{kind.replace('_', ' ')} {name}: creating it")
            self._call(f"create_{kind}", request)

    def _describe(self, kind: str, name: str) -> dict[str, Any] | None:
        field = "".join(part.title() for part in kind.split("_")) + "Name"
        return self._call(f"describe_{kind}", {field: name}, missing=True)

    def _call(self, method: str, request: dict[str, Any], missing: bool = False) -> dict[str, Any] | None:
        """None, with `missing`, where there is no such thing."""
        with _translated(method):
            try:
                answer: dict[str, Any] = getattr(self._client, method)(**request)
            except ClientError as error:
                if missing and _is_missing(error):
                    return None
                raise
        return answer

    def _wait(self, kind: str, name: str, status_field: str) -> dict[str, Any]:
        """Its last description. Tells each change of its status, and every few minutes that it goes on."""
        started, told, status = time.monotonic(), 0.0, ""
        while True:
            found = self._describe(kind, name)
            if found is None:
                raise ServingError(f"{kind.replace('_', ' ')} {name} was deleted while we waited for it")
            passed = time.monotonic() - started
            if found[status_field] != status or passed - told >= 120:
                status, told = found[status_field], passed
                self._say(f"{kind.replace('_', ' ')} {name}: {status} after {passed:.0f} s")
            if status not in _GROWING:
                return found
            if passed > self._timeout_s:
                raise ServiceError(
                    f"{kind.replace('_', ' ')} {name} is still {status} after {passed / 60:.0f} minutes; run the same "
                    "command to go on waiting"
                )
            time.sleep(self._poll_s)


def client(region: str | None) -> Any:
    """boto3's client of SageMaker. Raises JobError without a region."""
    import boto3

    with _translated("connect"):
        return boto3.session.Session().client("sagemaker", region_name=region)


def _fail(what: str, status: str | None, ended: dict[str, Any], logs: str) -> None:
    reason = ended.get("FailureReason") or "SageMaker gives no reason"
    if status == "InService":
        reason = f"its update was rolled back: {reason}"
    raise ServingError(f"{what} ended as {status}: {reason}\nits container's log is in CloudWatch: {logs}")


def _is_missing(error: ClientError) -> bool:
    """SageMaker has no code of its own for most things that are not there."""
    answer = error.response.get("Error", {})
    return answer.get("Code") == "ResourceNotFound" or str(answer.get("Message", "")).startswith("Could not find")


@contextlib.contextmanager
def _translated(method: str) -> Iterator[None]:
    """Errors of boto3 as ours: what a retry cannot mend is a JobError."""
    try:
        yield
    except ClientError as error:
        answer = error.response.get("Error", {})
        code, message = str(answer.get("Code")), answer.get("Message")
        if code in _PASSING:
            raise ServiceError(f"SageMaker, {method}: {code}: {message}; run the same command again") from error
        raise JobError(f"SageMaker, {method}: {code}: {message}; {_ADVICE.get(code, 'mend the options')}") from error
    except NoRegionError as error:
        raise JobError("no region is set; give --region, or set AWS_DEFAULT_REGION") from error
    except NoCredentialsError as error:
        raise JobError("no AWS credentials were found; set AWS_ACCESS_KEY_ID and the like, or a role") from error
    except BotoCoreError as error:
        raise ServiceError(f"SageMaker, {method}: {error}; check network and region, then run again") from error

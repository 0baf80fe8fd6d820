"""`lengthwise package` and `lengthwise deploy`: archives to the byte, requests, and SageMaker's answers (moto)."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import io
import json
import shutil
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml
from artifact_tools import build, open_store
from moto import mock_aws
from moto.sagemaker.models import FakeEndpointConfig, sagemaker_backends
from neuron_tools import exports_in_process, neuron_double
from sagemaker_tools import instance_types

from compile.artifacts import ArtifactStore, Manifest
from compile.errors import ArtifactError
from compile.shapes import Shape
from pipeline import cli
from pipeline.errors import JobError
from pipeline.objects import Objects
from pipeline.packaging import choose, origin_of, package

ROOT = Path(__file__).parents[1]
CODE = ROOT / "compile/targets/neuron_inference.py"
SHAPE = Shape(length=16, batch=4)
ROLE = "arn:aws:iam::123456789012:role/sagemaker"
REGION = "us-east-1"
OPTIONS = ("--name", "urgency", "--role", ROLE, "--image", "image:1")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> ArtifactStore:
    """One artifact of target neuron, over the double, and one of target torch."""
    store = open_store(tmp_path_factory.mktemp("store"))
    with neuron_double(), exports_in_process():
        build(store, tiny_model, [SHAPE], target="neuron")
    build(store, tiny_model, [SHAPE])
    return store


def of_target(store: ArtifactStore, target: str) -> Manifest:
    (found,) = [each for each in store.list() if each.spec.target == target]
    return found


@pytest.fixture
def job(store: ArtifactStore, tiny_model: Path, tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    fields = {
        "name": "urgency",
        "target": "neuron",
        "model": {"uri": str(tiny_model)},
        "input": {"uri": "in/", "text": "text"},
        "output": {"uri": "out"},
        "artifacts": store.uri,
    }
    path.write_text(yaml.safe_dump(fields))
    return path


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., tuple[int, str, str]]:
    """`lengthwise ...` in this process, where moto is: exit code, stdout, stderr."""
    monkeypatch.setenv("LENGTHWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cli, "die_with_parent", lambda: None)
    monkeypatch.setattr(cli, "end_on_signals", lambda: None)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["lengthwise", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        shown = capsys.readouterr()
        return int(ended.value.code or 0), shown.out, shown.err

    return run


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """moto's AWS with a bucket `lake`; the client of SageMaker."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": REGION,
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(FakeEndpointConfig, "validate_instance_type", check_instance_type)
    with mock_aws():
        boto3.client("s3").create_bucket(Bucket="lake")
        yield boto3.client("sagemaker")


def check_instance_type(self: FakeEndpointConfig, instance_type: str) -> None:
    """moto's own list is from before Inf2; this is the one of AWS's model of the API."""
    assert instance_type in instance_types()


# --- the archive ---


def test_an_archive_has_the_export_the_code_and_its_origin(store: ArtifactStore, tmp_path: Path) -> None:
    manifest = of_target(store, "neuron")
    found = package(store, manifest, Objects(), str(tmp_path / "model.tar.gz"))
    data = (tmp_path / "model.tar.gz").read_bytes()
    assert (found["sha256"], found["size_bytes"]) == (hashlib.sha256(data).hexdigest(), len(data))
    with tarfile.open(tmp_path / "model.tar.gz") as archive:
        contents = {each.name: archive.extractfile(each).read() for each in archive.getmembers()}  # type: ignore[union-attr]
        entries = archive.getmembers()
    assert [each.name for each in entries] == sorted(contents) == found["files"]
    assert {(each.mtime, each.uid, each.uname, each.mode) for each in entries} == {(0, 0, "", 0o644)}
    assert contents.pop("code/inference.py") == CODE.read_bytes()
    assert json.loads(contents.pop("lengthwise.json")) == {"artifact": manifest.key, "spec": manifest.spec.to_json()}
    wanted = {name: file.sha256 for name, file in manifest.files.items() if name != "compile.log"}
    assert {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()} == wanted
    assert {"config.json", "model.neuron", "tokenizer.json"} <= set(wanted)


def test_the_same_artifact_has_the_same_bytes_elsewhere_and_later(
    store: ArtifactStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = of_target(store, "neuron")
    first = package(store, manifest, Objects(), str(tmp_path / "a.tar.gz"))
    monkeypatch.setattr("time.time", lambda: 4_000_000_000.0)
    other = ArtifactStore(Objects(), store.uri, tmp_path / "another cache")
    second = package(other, manifest, Objects(), str(tmp_path / "b.tar.gz"))
    assert first["sha256"] == second["sha256"]
    assert package(store, manifest, Objects(), str(tmp_path / "a.tar.gz"))["sha256"] == first["sha256"]  # written over


def test_the_code_needs_nothing_of_lengthwise_and_sets_the_cores_before_all_else() -> None:
    tree = ast.parse(CODE.read_text())
    nodes = list(ast.walk(tree))
    imported = {each.name.split(".")[0] for node in nodes if isinstance(node, ast.Import) for each in node.names}
    imported |= {str(node.module).split(".")[0] for node in nodes if isinstance(node, ast.ImportFrom)}
    assert imported == {"__future__", "os", "typing", "numpy", "torch", "transformers", "optimum"}
    top = [ast.unparse(node) for node in tree.body[1:5]]
    assert top[:3] == [
        "from __future__ import annotations", "import os", "os.environ['NEURON_RT_NUM_CORES'] = '1'"
    ]  # fmt: skip


def test_an_artifact_that_cannot_be_served_is_refused(store: ArtifactStore, tmp_path: Path) -> None:
    to = str(tmp_path / "model.tar.gz")
    with pytest.raises(JobError, match="are of sequence classifiers of target neuron"):
        package(store, of_target(store, "torch"), Objects(), to)
    pending = dataclasses.replace(of_target(store, "neuron"), parity=None)
    with pytest.raises(ArtifactError, match="parity is pending"):
        package(store, pending, Objects(), to)
    shutil.copytree(store.uri, tmp_path / "artifacts")
    damaged = ArtifactStore(Objects(), str(tmp_path / "artifacts"), tmp_path / "cache")
    manifest = of_target(store, "neuron")
    Path(damaged.blob_uri(manifest.files["model.neuron"].sha256)).write_bytes(b"x")
    with pytest.raises(ArtifactError):
        package(damaged, manifest, Objects(), to)
    assert not Path(to).exists()


def test_without_a_key_the_longest_shape_is_served(store: ArtifactStore) -> None:
    one = of_target(store, "neuron")
    spec = dataclasses.replace(one.spec, shape=Shape(length=8, batch=4))
    short = dataclasses.replace(one, spec=spec)
    torch = of_target(store, "torch")
    assert choose([short, one, torch], None) is one
    assert choose([short, one, torch], Shape(length=8, batch=4)) is short
    twin = dataclasses.replace(one, spec=dataclasses.replace(one.spec, precision="bf16"))
    with pytest.raises(JobError, match=f"2 proven artifacts .* longest length, 16; name one by its key:\n  {one.key}"):
        choose([one, twin], None)
    with pytest.raises(JobError, match=r"0 proven artifacts of target neuron of shape 9x9"):
        choose([one], Shape(length=9, batch=9))
    with pytest.raises(JobError, match="after lengthwise compile built it"):
        choose([torch], None)


def test_the_command_writes_and_uploads(
    store: ArtifactStore, job: Path, command: Any, aws: Any, tmp_path: Path
) -> None:
    code, out, err = command("package", str(job), "--to", str(tmp_path / "m.tar.gz"))
    assert (code, err) == (0, "")
    key = of_target(store, "neuron").key
    assert f"artifact {key}, shape 4x16, for inf2" in " ".join(out.split())
    code, out, _ = command("package", str(job), key[:12], "--to", "s3://lake/m/model.tar.gz", "--json")
    assert code == 0
    body = boto3.client("s3").get_object(Bucket="lake", Key="m/model.tar.gz")["Body"].read()
    assert body == (tmp_path / "m.tar.gz").read_bytes()
    assert json.loads(out)["sha256"] == hashlib.sha256(body).hexdigest()
    assert origin_of(Objects(), "s3://lake/m/model.tar.gz")["artifact"] == key


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("0000",), "'0000' begins 0 artifact keys"),
        (("--shape", "4by16"), "'4by16' is not a shape"),
        (("--shape", "4x17"), "0 proven artifacts of target neuron of shape 4x17"),
        (("--to", "model.zip"), "archives that end in .tar.gz"),
        (("abc", "--shape", "4x16"), "not both"),
    ],
)
def test_a_wrong_argument_is_named(job: Path, command: Any, arguments: tuple[str, ...], message: str) -> None:
    code, _, err = command("package", str(job), *arguments)
    assert (code, message in err) == (2, True), err


# --- SageMaker, as moto has it ---


@pytest.fixture
def archive(store: ArtifactStore, aws: Any) -> str:
    uri = "s3://lake/model.tar.gz"
    package(store, of_target(store, "neuron"), Objects(), uri)
    return uri


def test_deploy_makes_an_endpoint_once(archive: str, command: Any, aws: Any) -> None:
    code, out, err = command("deploy", archive, *OPTIONS, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert (found["endpoint"], found["status"]) == ("urgency", "InService")
    assert "compiled by the tests' double" in err
    endpoint = aws.describe_endpoint(EndpointName="urgency")
    config = aws.describe_endpoint_config(EndpointConfigName=endpoint["EndpointConfigName"])
    (variant,) = config["ProductionVariants"]
    assert (variant["InstanceType"], variant["InitialInstanceCount"]) == ("ml.inf2.xlarge", 1)
    container = aws.describe_model(ModelName=variant["ModelName"])["PrimaryContainer"]
    assert (container["Image"], container["ModelDataUrl"]) == ("image:1", archive)
    code, out, err = command("deploy", archive, *OPTIONS, "--json")
    assert (code, json.loads(out)) == (0, found)
    assert "creating" not in err
    assert len(aws.list_models()["Models"]) == len(aws.list_endpoint_configs()["EndpointConfigs"]) == 1


def test_deploy_runs_a_transform_job_and_begins_a_failed_one_again(archive: str, command: Any, aws: Any) -> None:
    arguments = ("deploy", archive, *OPTIONS, "--transform", "s3://lake/in/", "s3://lake/answers", "--json")
    code, out, err = command(*arguments)
    assert code == 0, err
    first = json.loads(out)
    assert (first["status"], first["output"]) == ("Completed", "s3://lake/answers")
    job = aws.describe_transform_job(TransformJobName=first["transform_job"])
    assert job["TransformInput"]["DataSource"]["S3DataSource"]["S3Uri"] == "s3://lake/in/"
    assert job["TransformResources"] == {"InstanceType": "ml.inf2.xlarge", "InstanceCount": 1}
    assert json.loads(command(*arguments)[1]) == first
    backend = sagemaker_backends["123456789012"][REGION]
    backend.transform_jobs[first["transform_job"]].transform_job_status = "Failed"
    second = json.loads(command(*arguments)[1])
    assert (first["transform_job"][-2:], second["transform_job"][-2:]) == ("-1", "-2")


def test_a_dry_run_prints_the_requests_and_sends_none(archive: str, command: Any, aws: Any) -> None:
    code, out, _ = command("deploy", archive, *OPTIONS, "--dry-run")
    assert code == 0
    assert list(json.loads(out)) == ["CreateModel", "CreateEndpointConfig", "CreateEndpoint"]
    code, out, _ = command("deploy", archive, *OPTIONS, "--dry-run", "--transform", "s3://lake/in/", "s3://lake/out")
    assert list(json.loads(out)) == ["CreateModel", "CreateTransformJob"]
    assert aws.list_models()["Models"] == []


def test_a_failed_endpoint_says_why(archive: str, command: Any, aws: Any) -> None:
    assert command("deploy", archive, *OPTIONS, "--no-wait")[0] == 0
    endpoint = sagemaker_backends["123456789012"][REGION].endpoints["urgency"]
    endpoint.endpoint_status, endpoint.failure_reason = "Failed", "The primary container did not pass the ping."
    code, _, err = command("deploy", archive, *OPTIONS)
    assert code == 6
    assert "has failed before: The primary container did not pass the ping." in err
    assert "aws sagemaker delete-endpoint --endpoint-name urgency" in err


def test_what_cannot_be_deployed_is_told(archive: str, command: Any) -> None:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as other:
        other.addfile(tarfile.TarInfo("config.json"))
    Objects().put("s3://lake/other.tar.gz", data.getvalue())
    Objects().put("s3://lake/text", b"text")
    inf1 = ("--instance-type", "ml.inf1.xlarge")
    for arguments, message in [
        (("model.tar.gz", *OPTIONS), "SageMaker reads archives from S3"),
        (("s3://lake/no.tar.gz", *OPTIONS), "there is no archive s3://lake/no.tar.gz"),
        (("s3://lake/other.tar.gz", *OPTIONS), "is no archive that lengthwise package made: it has no"),
        (("s3://lake/text", *OPTIONS), "is no archive that lengthwise package made"),
        ((archive, *OPTIONS, "--instance-type", "ml.g5.xlarge"), "it has no Neuron device"),
        ((archive, *OPTIONS, *inf1), "Inferentia1 runs code of another compiler"),
        ((archive, *OPTIONS, "--instance-type", "ml.inf2.2xlarge"), "give how many NeuronCores ml.inf2.2xlarge has"),
        ((archive, *OPTIONS[:4]), "Missing option '--image'"),
    ]:
        code, _, err = command("deploy", *arguments)
        assert (code, message in " ".join(err.replace("│", " ").split())) == (2, True), err


def test_no_region_is_told(archive: str, command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    code, _, err = command("deploy", archive, *OPTIONS)
    assert (code, "give --region, or set AWS_DEFAULT_REGION" in err) == (2, True), err

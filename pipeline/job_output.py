"""The section `output` of a job file: where results go, as which kind of tables."""

from __future__ import annotations

import re
from typing import Literal

import pydantic
from pydantic import ConfigDict, Field, model_validator


class Catalog(pydantic.BaseModel):
    """An Iceberg catalog, as pyiceberg takes it; secrets come from variables such as PYICEBERG_CATALOG__<NAME>__URI."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[a-z][a-z0-9-]*$", description="in upper case, with _ for -, also in the variables")
    type: Literal["sql", "rest", "glue", "hive"] | None = Field(None, description="none: as the environment says")
    namespace: str | None = Field(None, pattern=r"^[A-Za-z0-9_]+$", description="default: from the job's name")
    properties: dict[str, str] = Field(default_factory=dict, description="uri, warehouse and the like")

    @model_validator(mode="after")
    def _check(self) -> Catalog:
        for key, value in self.properties.items():
            if re.search(r"secret|password|token|credential|access-key", key) or re.search(r"://[^/@]*:[^/@]+@", value):
                variable = f"PYICEBERG_CATALOG__{self.name}__{key.replace('.', '__')}".upper().replace("-", "_")
                raise ValueError(f"properties.{key}: no secrets in a job file; set {variable} in the environment")
        return self


class Output(pydantic.BaseModel):
    """Where the tables go: <uri>/predictions, <uri>/rejects, <uri>/reports, <uri>/metrics."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    uri: str = Field(min_length=1)
    all_scores: bool = False
    table: Literal["parquet", "iceberg"] = "parquet"
    catalog: Catalog | None = Field(None, description="of the Iceberg tables")
    grace_hours: float = Field(72, ge=0, allow_inf_nan=False, description="what nobody used for so long is swept")

    @model_validator(mode="after")
    def _check(self) -> Output:
        if re.search(r"\{\s*\w+\s*\}", self.uri):
            raise ValueError("uri: nothing in braces is filled in; every night has a partition ds=… below it")
        if (self.table == "iceberg") != (self.catalog is not None):
            raise ValueError("table: iceberg and catalog: {name: ...} belong together; give both or neither")
        return self

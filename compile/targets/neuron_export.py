"""The process that exports one shape of a sequence classifier with optimum-neuron: `python -m` of this, given JSON."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from compile.lean_imports import transformers_package
from compile.targets.encoders import load_classifier
from compile.targets.neuron_compiler import begin_export
from compile.targets.neuron_host import is_double, sdk_versions

TASK = "text-classification"


def export(
    model_dir: str,
    out_dir: str,
    batch_size: int,
    sequence_length: int,
    compiler_kwargs: dict[str, Any],
    optlevel: str,
    inline_weights_to_neff: bool,
) -> None:
    """Write an optimum-neuron export to out_dir: graph, config and tokenizer. What fails is an error of the process."""
    transformers_package()
    from optimum.neuron.utils.instance import align_compilation_target

    # As optimum-cli does: before anything of the SDK is imported, and whatever kind of host this is.
    align_compilation_target(compiler_kwargs["instance_type"], override=True)
    from optimum.exporters.neuron import main_export

    # Loaded here, so that missing weights are an error, and under no name: optimum-neuron would choose the compiler's
    # flags by words such as `vae` or `transformer` in the folder's path.
    model = load_classifier(Path(model_dir))
    model.config._name_or_path = ""
    main_export(
        model_name_or_path=model_dir,
        output=out_dir,
        model=model,
        task=TASK,
        library_name="transformers",
        compiler_kwargs=compiler_kwargs,
        optlevel=optlevel,
        inline_weights_to_neff=inline_weights_to_neff,
        disable_neuron_cache=True,  # it would look for one on the hub; artifacts are kept by our own store
        do_validation=False,  # it only warns; ours is the gate
        local_files_only=True,
        batch_size=batch_size,
        sequence_length=sequence_length,
    )


if __name__ == "__main__":
    request = begin_export(sys.argv[1])
    versions = sdk_versions()
    double = "; this SDK is the double of the tests, not AWS's" if is_double(versions) else ""
    print(", ".join(f"{name} {version}" for name, version in versions.items()) + double, flush=True)  # noqa: T201
    print(request, flush=True)  # noqa: T201
    export(**request)

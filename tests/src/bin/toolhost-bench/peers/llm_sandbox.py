# llm-sandbox with a container of our image that stays, without the set-up of a virtual environment.
import sys, time

import docker
from llm_sandbox import SandboxSession

image, label = sys.argv[1:]
key, value = label.split("=")
session = SandboxSession(
    client=docker.from_env(), image=image, lang="python", keep_template=True, skip_environment_setup=True, workdir="/tmp",
    runtime_configs={"labels": {key: value}, "network_mode": "none", "entrypoint": ["/bin/sleep", "infinity"], "command": []},
)
session.open()
try:
    print("ready", flush=True)
    for _ in sys.stdin:
        since = time.perf_counter()
        result = session.run("print(1)")
        taken = time.perf_counter() - since
        if result.exit_code != 0 or result.stdout.strip() != "1":
            sys.exit(f"not what it should print: {result}")
        print(taken, flush=True)
finally:
    session.close()

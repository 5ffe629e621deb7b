"""What Kubernetes and Docker Compose would start, read from their files."""

import dataclasses
import re

import yaml


@dataclasses.dataclass(frozen=True)
class Container:
    """One container.

    Attributes:
        host: Name by which the others find it.
        command: What runs in it.
        env: Its environment.
    """

    host: str
    command: list[str]
    env: dict[str, str]


def of_jobset(path):
    """Containers of a JobSet, and all objects of the file."""
    objects = list(yaml.safe_load_all(path.read_text()))
    (jobset,) = (each for each in objects if each["kind"] == "JobSet")
    name = jobset["metadata"]["name"]
    found = []
    for job in jobset["spec"]["replicatedJobs"]:
        spec = job["template"]["spec"]
        (container,) = spec["template"]["spec"]["containers"]
        assert job.get("replicas", 1) == 1
        assert spec["parallelism"] == spec["completions"]
        for index in range(spec["completions"]):
            host = f"{name}-{job['name']}-0-{index}.{name}"
            env = _expanded(container["env"], index)
            found.append(Container(host, container["command"], env))
    return found, objects


def _expanded(entries, index):
    """As Kubernetes does it: $(NAME) is a variable that stands before."""
    env = {}
    for entry in entries:
        if "value" in entry:
            env[entry["name"]] = re.sub(
                r"\$\((\w+)\)",
                lambda found: env.get(found[1], found[0]),
                entry["value"],
            )
        else:
            path = entry["valueFrom"]["fieldRef"]["fieldPath"]
            assert path == (
                "metadata.annotations["
                "'batch.kubernetes.io/job-completion-index']"
            )
            env[entry["name"]] = str(index)
    return env


def of_compose(path):
    """Containers of a Compose file, and the file."""
    content = yaml.safe_load(path.read_text())
    return [
        Container(name, service["command"], service["environment"])
        for name, service in content["services"].items()
    ], content

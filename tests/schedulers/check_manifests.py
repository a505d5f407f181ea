"""check_manifests.py FILE...: every object of the files has only fields that its API has, of their types, and all that are required.

The types are those of the Python packages that the projects publish: kubernetes (Job, PersistentVolumeClaim, pods), kubeflow-training
(PyTorchJob), kubeflow-trainer-api (JobSet)."""
import datetime
import re
import sys
import types
import typing

import yaml
import kubernetes.client.models as core
import kubeflow_trainer_api.models as jobset
from kubeflow.training import models as training

KINDS = {
    ("batch/v1", "Job"): core.V1Job,
    ("v1", "PersistentVolumeClaim"): core.V1PersistentVolumeClaim,
    ("kubeflow.org/v1", "PyTorchJob"): training.KubeflowOrgV1PyTorchJob,
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): jobset.JobsetV1alpha2JobSet,
}
QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|[kMGTPE]i?)?")


class Wrong(Exception):
    pass


def wanted(ok, where, what, value):
    if not ok:
        raise Wrong(f"{where} must be {what}, it is {value!r}")


def check_fields(value, fields, required, where):
    wanted(isinstance(value, dict), where, "an object", value)
    for name in value:
        if name not in fields:
            raise Wrong(f"{where} has no field {name!r}; it has {', '.join(sorted(fields))}")
    for name in required:
        if name not in value:
            raise Wrong(f"{where} lacks {name!r}")


def check_text_type(value, kind, where):
    """`kind` as the OpenAPI generator of kubernetes writes it: "list[V1Container]", "dict(str, str)", "int"."""
    inner = re.fullmatch(r"list\[(.*)\]", kind)
    if inner:
        wanted(isinstance(value, list), where, "a list", value)
        for index, item in enumerate(value):
            check_text_type(item, inner[1], f"{where}[{index}]")
        return
    inner = re.fullmatch(r"dict\(str, (.*)\)", kind)
    if inner:
        wanted(isinstance(value, dict), where, "an object", value)
        for name, item in value.items():
            wanted(isinstance(name, str), where, "an object with names of text", name)
            check_text_type(item, inner[1], f"{where}.{name}")
        if ".resources." in where:
            for name, item in value.items():
                wanted(QUANTITY.fullmatch(item), f"{where}.{name}", "a quantity", item)
        return
    plain = {"str": str, "int": int, "bool": bool, "float": (int, float)}
    if kind in plain:
        wanted(isinstance(value, plain[kind]) and (kind == "bool") == isinstance(value, bool), where, kind, value)
    elif kind == "object":
        wanted(isinstance(value, (int, str)), where, "a number or text", value)
    elif kind == "datetime":
        wanted(isinstance(value, datetime.datetime), where, "a time", value)
    else:
        check_class(value, getattr(core, kind, None) or getattr(training, kind), where)


def check_annotation(value, kind, where):
    """`kind` as pydantic has it."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        check_annotation(value, parts[0], where)
    elif origin in (typing.Union, types.UnionType):
        check_annotation(value, next(part for part in parts if part is not type(None)), where)
    elif origin is list:
        wanted(isinstance(value, list), where, "a list", value)
        for index, item in enumerate(value):
            check_annotation(item, parts[0], f"{where}[{index}]")
    elif origin is dict:
        wanted(isinstance(value, dict), where, "an object", value)
        for name, item in value.items():
            check_annotation(item, parts[1], f"{where}.{name}")
    elif kind.__name__.endswith("ResourceQuantity"):
        wanted(isinstance(value, str) and QUANTITY.fullmatch(value), where, "a quantity", value)
    elif kind.__name__.endswith("IntOrString"):
        wanted(isinstance(value, (int, str)), where, "a number or text", value)
    elif hasattr(kind, "model_fields"):
        check_class(value, kind, where)
    elif isinstance(kind, type):
        wanted(isinstance(value, kind) and (kind is bool) == isinstance(value, bool), where, kind.__name__, value)


def check_class(value, kind, where):
    if hasattr(kind, "model_fields"):
        fields = {field.alias or name: field for name, field in kind.model_fields.items()}
        check_fields(value, fields, [name for name, field in fields.items() if field.is_required()], where)
        for name, item in value.items():
            check_annotation(item, fields[name].annotation, f"{where}.{name}")
        return
    fields = {kind.attribute_map[name]: (name, text) for name, text in kind.openapi_types.items()}
    check_fields(value, fields, [], where)
    for name, item in value.items():
        check_text_type(item, fields[name][1], f"{where}.{name}")
    # The classes refuse the absence of what is required when they are made.
    try:
        kind(**{fields[name][0]: item for name, item in value.items()})
    except ValueError as error:
        raise Wrong(f"{where}: {error}") from None


def check(document):
    name = (document.get("apiVersion"), document.get("kind"))
    if name not in KINDS:
        raise Wrong(f"there is no type for {name}")
    check_class(document, KINDS[name], name[1])
    if hasattr(KINDS[name], "from_dict"):
        KINDS[name].from_dict(document)
    wanted(re.fullmatch("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", document["metadata"]["name"]), "metadata.name", "a DNS label", document["metadata"]["name"])
    return f"{name[1]} {document['metadata']['name']}"


status = 0
for path in sys.argv[1:]:
    with open(path) as file:
        for document in yaml.safe_load_all(file):
            try:
                print(f"{path} fits: {check(document)}")
            except Wrong as error:
                print(f"{path} does not fit: {error}")
                status = 1
sys.exit(status)

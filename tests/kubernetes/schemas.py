"""What the objects that we make may look like, as the controllers' CRDs say: our own record.

Only fields that we write are listed, and no other field is allowed, so a misspelt one is found.
Recorded from jobset v1alpha2 (`config/components/crd/bases`, August 2026), Kubeflow trainer
v1alpha1 (`manifests/base/crds`, August 2026) and batch/v1; the CRDs themselves are not copied.
"""

from typing import Any

import jsonschema_rs

Schema = dict[str, Any]
Object = dict[str, Any]

TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "integer"}
FLAG: Schema = {"type": "boolean"}
NAME: Schema = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}
TEXTS: Schema = {"type": "object", "additionalProperties": TEXT}


def whole(required: tuple[str, ...] = (), **fields: Schema) -> Schema:
    """An object with these fields and no other."""
    return {
        "type": "object",
        "properties": fields,
        "required": list(required),
        "additionalProperties": False,
    }


def many(of: Schema) -> Schema:
    """A list."""
    return {"type": "array", "items": of}


ABOUT = whole(
    ("name",),
    name=NAME,
    namespace=NAME,
    labels=TEXTS,
    annotations=TEXTS,
    # What the server adds.
    uid=TEXT,
    resourceVersion=TEXT,
    creationTimestamp=TEXT,
    deletionTimestamp=TEXT,
    generation=NUMBER,
    managedFields=many({"type": "object"}),
    ownerReferences=many({"type": "object"}),
)
ENV = many(
    whole(
        ("name",),
        name=TEXT,
        value=TEXT,
        valueFrom=whole(fieldRef=whole(("fieldPath",), fieldPath=TEXT)),
    )
)
RESOURCES = whole(limits=TEXTS, requests=TEXTS)
CONTAINER = whole(
    ("name",),
    name=NAME,
    image=TEXT,
    command=many(TEXT),
    args=many(TEXT),
    env=ENV,
    resources=RESOURCES,
    volumeMounts=many(
        whole(("name", "mountPath"), name=NAME, mountPath=TEXT, readOnly=FLAG, subPath=TEXT)
    ),
    securityContext=whole(allowPrivilegeEscalation=FLAG),
)
VOLUME = whole(
    ("name",),
    name=NAME,
    persistentVolumeClaim=whole(("claimName",), claimName=NAME),
    emptyDir=whole(medium=TEXT),
    hostPath=whole(("path",), path=TEXT, type=TEXT),
)
POD = whole(
    ("containers",),
    serviceAccountName=NAME,
    restartPolicy={"enum": ["Never", "OnFailure", "Always"]},
    terminationGracePeriodSeconds=NUMBER,
    volumes=many(VOLUME),
    containers=many(CONTAINER),
)
POD_TEMPLATE = whole(("spec",), metadata=whole(labels=TEXTS), spec=POD)
RULE = whole(
    ("action",),
    action={"enum": ["FailJob", "Ignore", "Count", "FailIndex"]},
    onPodConditions=many(whole(("type", "status"), type=TEXT, status=TEXT)),
    onExitCodes=whole(
        ("operator", "values"),
        containerName=NAME,
        operator={"enum": ["In", "NotIn"]},
        values=many({"type": "integer", "minimum": 1}),
    ),
)
JOB = whole(
    ("template",),
    completionMode={"enum": ["Indexed", "NonIndexed"]},
    parallelism=NUMBER,
    completions=NUMBER,
    backoffLimit=NUMBER,
    podReplacementPolicy={"enum": ["Failed", "TerminatingOrFailed"]},
    podFailurePolicy=whole(("rules",), rules=many(RULE)),
    template=POD_TEMPLATE,
)
REPLICATED = whole(
    ("name", "template"),
    name=NAME,
    replicas=NUMBER,
    template=whole(("spec",), metadata=whole(labels=TEXTS), spec=JOB),
)
STATUS: Schema = {"type": "object"}


def of(kind: str, version: str, spec: Schema) -> Schema:
    """A whole object."""
    return whole(
        ("apiVersion", "kind", "metadata", "spec"),
        apiVersion={"const": version},
        kind={"const": kind},
        metadata=ABOUT,
        spec=spec,
        status=STATUS,
    )


JOBSETS = of(
    "JobSet",
    "jobset.x-k8s.io/v1alpha2",
    whole(
        ("replicatedJobs",),
        suspend=FLAG,
        ttlSecondsAfterFinished=NUMBER,
        replicatedJobs=many(REPLICATED),
    ),
)
PATCHED = whole(
    ("name",),
    name=NAME,
    template=whole(
        spec=whole(
            template=whole(
                spec=whole(
                    serviceAccountName=NAME, volumes=many(VOLUME), containers=many(CONTAINER)
                )
            )
        )
    ),
)
TRAINJOBS = of(
    "TrainJob",
    "trainer.kubeflow.org/v1alpha1",
    whole(
        ("runtimeRef",),
        suspend=FLAG,
        runtimeRef=whole(("name",), name=NAME),
        trainer=whole(
            image=TEXT,
            command=many(TEXT),
            env=ENV,
            numNodes=NUMBER,
            numProcPerNode=NUMBER,
            resourcesPerNode=RESOURCES,
        ),
        runtimePatches=many(
            whole(
                ("manager",),
                manager=TEXT,
                trainingRuntimeSpec=whole(template=whole(spec=whole(replicatedJobs=many(PATCHED)))),
            )
        ),
    ),
)
CRONJOBS = of(
    "CronJob",
    "batch/v1",
    whole(
        ("schedule", "jobTemplate"),
        schedule={"type": "string", "pattern": r"^\d+ \d+ \d+ \d+ \*$"},
        timeZone={"const": "Etc/UTC"},
        concurrencyPolicy={"enum": ["Forbid"]},
        successfulJobsHistoryLimit=NUMBER,
        failedJobsHistoryLimit=NUMBER,
        suspend=FLAG,
        jobTemplate=whole(("spec",), spec=JOB),
    ),
)
VALIDATORS = {
    name: jsonschema_rs.Draft202012Validator(schema)
    for name, schema in (("jobsets", JOBSETS), ("trainjobs", TRAINJOBS), ("cronjobs", CRONJOBS))
}
IMMUTABLE = {"jobsets": ("replicatedJobs",), "trainjobs": ("trainer", "runtimeRef")}


def admit(resource: str, made: Object, before: Object | None) -> str:
    """Say why an object is refused; "" if it is not. As the CRDs and their webhooks do."""
    first = next(iter(VALIDATORS[resource].iter_errors(made)), None)
    if first is not None:
        return f"{list(first.instance_path)}: {first.message}"[:400]
    for name in IMMUTABLE.get(resource, ()):
        if before is not None and made["spec"].get(name) != before["spec"].get(name):
            return f"spec.{name}: Invalid value: field is immutable"
    return ""

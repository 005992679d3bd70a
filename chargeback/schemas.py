"""The Arrow schema of every stage: the contracts between the rooms."""

import pyarrow as pa

TIME = pa.timestamp("ms", tz="UTC")
MONEY = pa.decimal128(38, 9)


def _schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(name, kind, nullable=kind == pa.float64()) for name, kind in columns.items()])


_DEVICE = {"node": pa.string(), "gpu_uuid": pa.string(), "gpu_instance_id": pa.string()}
_POD = {"namespace": pa.string(), "pod": pa.string(), "pod_uid": pa.string()}

# Evidence (usage/): what was measured, one partition a UTC day and cluster. `window` is a window's start.
DEVICES = _schema(
    window=TIME,
    **_DEVICE,
    exporter=pa.string(),
    gpu_model=pa.string(),
    mig_profile=pa.string(),
    samples=pa.int64(),  # distinct scrapes of the device in the window (M1)
    used_mib=pa.float64(),  # means of the window's samples (D4); null where the exporter has no such metric
    free_mib=pa.float64(),
    reserved_mib=pa.float64(),
    total_mib=pa.float64(),
    activity=pa.float64(),  # 0 to 1 (S5)
)
CONSUMERS = _schema(
    window=TIME,
    **_DEVICE,
    exporter=pa.string(),
    **_POD,
    container_sum_mib=pa.float64(),  # sum of the samples of all its processes, MiB (M1)
    samples=pa.int64(),  # of its fullest process series
)
HOLDERS = _schema(
    window=TIME,
    **_DEVICE,
    **_POD,
    slots=pa.int64(),  # most distinct slot rows at one sample; 0 where rows name no slot (H5)
)
INVENTORY = _schema(  # devices of the partition; one row a (device, exporter)
    **_DEVICE,
    exporter=pa.string(),
    gpu_model=pa.string(),
    mig_profile=pa.string(),
    device_rows=pa.bool_(),  # reported at device level, not by processes alone
    first=TIME,  # first and last window with a report
    last=TIME,
)
AT_ONCE = _schema(node=pa.string(), gpus=pa.int64())  # the most GPUs that a node showed at once (C5)
NODES = _schema(  # stretches of samples without an empty window between them
    node=pa.string(),
    family=pa.string(),  # an exporter's name, or kube-state-metrics, with "/replica" behind it
    first=TIME,  # times of the first and last sample
    last=TIME,
)
NODE_LABELS = _schema(  # kube_node_info and kube_node_labels by stretch of windows
    node=pa.string(),
    labels=pa.string(),  # JSON, sorted
    first=TIME,  # first and last window
    last=TIME,
)
INTERVALS = _schema(  # distances between neighbouring samples (W3)
    family=pa.string(), node=pa.string(), distance_ms=pa.int64(), count=pa.int64()
)
PODS = _schema(**_POD, node=pa.string(), workload_kind=pa.string(), workload=pa.string(), first=TIME, last=TIME)
ENDED = _schema(**_POD, first=TIME)  # first window in all of whose samples the pod had succeeded or failed (H1)
REQUESTS = _schema(**_POD, node=pa.string(), resource=pa.string(), quantity=pa.int64(), first=TIME, last=TIME)
LABELS = _schema(  # pod labels (pod given) and namespace labels (pod empty) that ownership or dimensions read
    **_POD, labels=pa.string(), first=TIME, last=TIME
)
REPORTING = _schema(first=TIME, last=TIME)  # windows in which kube-state-metrics reported

# Charges (allocations/), one row an hour.
ALLOCATIONS = pa.schema(
    [
        ("start", TIME),
        ("end", TIME),
        ("cluster", pa.string()),
        ("node", pa.string()),
        ("instance_type", pa.string()),
        ("region", pa.string()),
        ("purchase_option", pa.string()),
        ("gpu_uuid", pa.string()),
        ("gpu_model", pa.string()),
        ("gpu_instance_id", pa.string()),
        ("mig_profile", pa.string()),
        ("sharing", pa.string()),
        ("kind", pa.string()),
        ("team", pa.string()),
        ("namespace", pa.string()),
        ("pod", pa.string()),
        ("pod_uid", pa.string()),
        ("workload_kind", pa.string()),
        ("workload", pa.string()),
        ("memory_gib_hours", pa.float64()),
        ("gpu_hours", pa.float64()),
        ("cost", MONEY),
        ("currency", pa.string()),
        ("estimated", pa.bool_()),
        ("price", pa.string()),
    ]
)
"""Dimension columns `x_NAME` (string) come behind."""

# What the reports are made of: sums over the period.
LINES = pa.schema(  # one invoice line each; finance.csv in its order, `cost` exact, `amount` rounded by R2
    [
        ("invoice", pa.string()),
        ("period_start", TIME),
        ("period_end", TIME),
        ("team", pa.string()),
        ("cost_center", pa.string()),
        ("cluster", pa.string()),
        ("namespace", pa.string()),
        ("workload_kind", pa.string()),
        ("workload", pa.string()),
        ("gpu_model", pa.string()),
        ("mig_profile", pa.string()),
        ("purchase_option", pa.string()),
        ("kind", pa.string()),
        ("gpu_hours", pa.float64()),
        ("memory_gib_hours", pa.float64()),
        ("amount", MONEY),
        ("currency", pa.string()),
        ("estimated_share", pa.float64()),
    ]
)
DETAIL = pa.schema(  # by where and at which price; sums of charges, unrounded
    [
        ("team", pa.string()),
        ("cluster", pa.string()),
        ("node", pa.string()),
        ("instance_type", pa.string()),
        ("region", pa.string()),
        ("purchase_option", pa.string()),
        ("price", pa.string()),
        ("gpu_model", pa.string()),
        ("mig_profile", pa.string()),
        ("sharing", pa.string()),
        ("namespace", pa.string()),
        ("workload_kind", pa.string()),
        ("workload", pa.string()),
        ("kind", pa.string()),
        ("gpu_hours", pa.float64()),
        ("memory_gib_hours", pa.float64()),
        ("cost", MONEY),
        ("estimated_cost", MONEY),
    ]
)
DAILY = pa.schema(  # by local day of the billing time zone
    [("team", pa.string()), ("date", pa.date32()), ("kind", pa.string()), ("cost", MONEY)]
)

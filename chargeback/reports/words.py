"""What the pages say about kinds, problems and the method; figures are elsewhere."""

from chargeback.config import Config
from chargeback.reports.figures import span

KINDS = {
    "used": ("Memory in use", "The part of the GPUs' memory that pods really had in use, hour by hour."),
    "idle": ("Held, not used", "GPU memory that was kept for pods, or blocked by them, and not used."),
    "host": ("Host CPU and memory", "What the nodes' CPUs and main memory cost beside their GPUs."),
    "unallocated": ("Not allocated", "GPUs, or slots of them, that were paid for and that no pod held."),
    "unpartitioned": ("Left over by MIG", "What the chosen MIG layout leaves of a card and cannot hand to anyone."),
    "unobserved": ("Not observed", "GPUs that were paid for while nothing was reported about them."),
    "shared": ("Shared platform costs", "Costs of the platform that are handed on to the teams."),
    "pool": ("Shared pools", "Costs beside the nodes, divided among the teams."),
    "surcharge": ("Surcharge or discount", "A mark-up or discount that was agreed."),
    "adjustment": ("Adjustment", "A correction of an earlier invoice, or a credit or debit by hand."),
}
"""Each kind of charge: its title and a sentence, in the order in which pages show them."""

NO_POD = {"used": "Memory in use without a pod", "idle": "GPUs held without a workload"}

PROBLEMS = {
    "blank-value": "Some values meant “not available”. They were dropped, and the last good value stood in if it "
    "was recent.",
    "capacity-from-book": "No exporter gives a GPU's memory. The price book's figure for the model stands in.",
    "capacity-unknown": "Nothing gives a GPU's memory. Shares are relative to what was in use.",
    "coarse-scrape": "Samples are far apart. Short use is seen less exactly.",
    "device-level-duplicates": "An exporter repeats a GPU's own memory for each pod that shares it. It was read "
    "once, so nobody pays twice.",
    "finished-but-named": "An exporter still named pods that had ended. They were not charged any more.",
    "gpu-count": "More GPUs report than the node should have. The cost was divided among those that report.",
    "gpu-missing": "Nodes have GPUs that did not report. Their cost is shown as not observed.",
    "memory-over-capacity": "Processes reported more memory together than the GPU has. Their shares were scaled "
    "down to the whole.",
    "missing-price": "Some nodes have no price and were charged at zero, as the configuration allows.",
    "no-process-data": "Some shared GPUs give no memory by pod. It was divided by the slots that pods held, and "
    "is marked as estimated.",
    "node-restarted": "Nodes were away for longer than may be bridged. Nothing was charged in between.",
    "ownership-conflict": "Labels or rules name more than one team, or names differ only in case. Both names are "
    "kept apart.",
    "process-exporter-silent": "Process data stopped while memory stayed in use. The last known shares stood in for a "
    "limited time and are marked as estimated.",
    "replica-duplicates": "Several replicas hold the same samples. Each moment was read from one of them.",
    "scrape-gap": "Samples are missing for a while. Shares were carried forward for a limited time and are "
    "marked as estimated.",
    "stale-pod": "Memory was still shown for pods that had ended. The platform team pays for it.",
    "team-names-alike": "Names of teams differ only in case. Each has its own invoice.",
    "unattributed-memory": "Some memory in use belongs to no pod that is known. The platform team pays for it.",
    "unknown-mig-profile": "A MIG profile is not in the table for its card.",
    "unknown-team": "A label names a team that is not in the list of teams. Its pods went to the default team.",
    "unowned": "Some pods name no team. They went to the default team.",
    "unrequested-use": "Some pods used a GPU that was not allocated to them. They pay for the memory that they used.",
}
"""What a problem code means and what was done about it, for people who do not run the program."""


def method(config: Config) -> list[tuple[str, str]]:
    """How the charges came about under this configuration: headings and sentences."""
    window, gap = span(config.window), span(config.max_gap)
    a = config.allocation
    basis = {
        "memory": "By memory. For every GPU and every window: the cost of the GPU × the memory that the pod had "
        "in use ÷ "
        "the memory that the GPU can give. Memory is the mean over the window, not its peak.",
        "request": "By request. For every GPU and every window: the cost of the GPU × the slots that the pod "
        "held ÷ the "
        "slots of the GPU.",
        "max": "By memory or request, whichever is the larger part of the GPU in a window, scaled to the whole GPU "
        "where these parts come to more than all of it.",
    }[a.basis]
    idle = {
        "holders": "What is left of a GPU's cost is owed by the pods that hold it, in proportion to the slots "
        "that they "
        "hold. Slots that nobody holds are not allocated.",
        "consumers": "What is left of a GPU's cost is divided among the pods that use it, in proportion to their "
        "memory.",
        "platform": f"What is left of a GPU's cost is paid by the team {config.ownership.platform}.",
    }[a.idle]
    shared = {
        "platform": f"GPUs that nobody holds, MIG leftovers and GPUs without data are paid by the team "
        f"{config.ownership.platform}.",
        "proportional": "Costs of the platform are handed on to the other teams in proportion to what they were "
        "charged.",
        "even": "Costs of the platform are handed on to the other teams in equal parts.",
    }[a.shared]
    mig = {
        "memory": "A MIG instance costs its part of the card's memory slices.",
        "compute": "A MIG instance costs its part of the card's compute slices.",
        "max": "A MIG instance costs its part of the card's memory or compute slices, whichever is larger.",
    }[config.mig.weight]
    places = {"rules": "the ownership rules", "pod": "the pod's label", "namespace": "the namespace's label"}
    order = ", then ".join(places[o] for o in config.ownership.order)
    prices = "A node costs its price per hour for as long as it was alive, divided equally among its GPUs."
    if config.pricing.missing == "zero":
        prices += " A node without a price was charged at zero and is listed among the problems."
    return [
        ("What is charged", basis),
        ("What is idle", idle),
        ("What nobody used", shared),
        (
            "Time",
            (
                f"Measured in windows of {window}. Each is charged at the price then in force, to the team that the "
                "pod then belonged to."
            ),
        ),
        ("MIG", mig),
        ("Nodes", prices),
        (
            "Teams",
            f"The team comes from {order}; else it is {config.ownership.default} ({config.ownership.team_label}).",
        ),
        (
            "Missing data",
            (
                f"Where samples are missing, the last shares are carried forward for at most {gap} and marked as "
                "estimated. After that the GPU counts as not observed."
            ),
        ),
        (
            "Short jobs",
            (
                "A job that is shorter than the distance between two samples may leave no trace. What it used is then "
                "part of what was idle or not allocated."
            ),
        ),
        (
            "Rounding",
            (
                "Charges are exact to a billionth of the currency's unit. They are rounded once, so that lines add up "
                "to the invoice and invoices to the bill, to the smallest coin."
            ),
        ),
    ]

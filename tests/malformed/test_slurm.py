"""Variables of a step of `srun` that nobody can go by: node lists, counts, places."""

import pytest

# What the third of four tasks on two nodes has.
STEP = {
    "SLURM_JOB_ID": "41",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "2",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "n[8-9]",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "0",
    "SLURMD_NODENAME": "n9",
    "SLURM_DISTRIBUTION": "block",
}
NODE_LISTS = [
    ("n[1-", "has a bracket that never closes, at character 2."),
    ("n1-4]", "closes a bracket that is not open, at character 5."),
    ("n[1-4", "has a bracket that never closes, at character 2."),
    ("n[]", "must have a number such as 7 or a range such as 1-3 in"),
    ("n[a-b]", "must have a number such as 7 or a range such as 1-3 in"),
    ("n[4-1]", "has a range that ends before it begins, at character 3."),
    ("n[1-2-3]", "must have a number such as 7 or a range such as 1-3 in"),
    ("n[1,,2]", "must have a number such as 7 or a range such as 1-3 in"),
    ("n[1 - 4]", "must have a number such as 7 or a range such as 1-3 in"),
    ("n[[1-2]]", "has a bracket within a bracket, at character 3."),
    ("n1,", "lacks a name, at character 4."),
    (",n1", "lacks a name, at character 1."),
    ("n1,,n2", "lacks a name, at character 4."),
    ("n1 n2", "has a blank, at character 3."),
    ("n1;n2", "has ';', which no name of a host has, at character 3."),
    ("n[1-4]/2", "has '/', which no name of a host has, at character 7."),
    ("n[1-99999999]", "names more than 65536 hosts, at character 1."),
    (
        "n[999999999999999999999999999999]",
        "has a number of more than 18 digits, at character 3.",
    ),
    ("n[\u0661-\u0664]", "must have a number such as 7 or a range such as 1-3 in"),
    ("(null)", "has '(', which no name of a host has, at character 1."),
    ("n[1-2]:4", "has ':', which no name of a host has, at character 7."),
    ("n[1-65536],m", "names more than 65536 hosts, at character 12."),
    ("[1-100][1-100][1-100]", "names more than 65536 hosts, at character 1."),
    ("n" * 300, "names a host with more than 253 characters, at character"),
    ("n[-4]", "must have a number such as 7 or a range such as 1-3 in"),
    ("n[1-]", "must have a number such as 7 or a range such as 1-3 in"),
    ("n1*2", "has '*', which no name of a host has, at character 3."),
]
VARIABLES = [
    ({"SLURM_STEP_NODELIST": None}, "SLURM_STEP_NODELIST must be set, as `srun` does."),
    (
        {"SLURM_STEP_TASKS_PER_NODE": None},
        "SLURM_STEP_TASKS_PER_NODE must be set, as `srun` does.",
    ),
    (
        {"SLURM_STEP_TASKS_PER_NODE": "2(x)"},
        "SLURM_STEP_TASKS_PER_NODE must have a count such as 2 or 2(x3), at character",
    ),
    (
        {"SLURM_STEP_TASKS_PER_NODE": "2x2"},
        "SLURM_STEP_TASKS_PER_NODE must have a count such as 2 or 2(x3), at character",
    ),
    (
        {"SLURM_STEP_TASKS_PER_NODE": "2,"},
        "SLURM_STEP_TASKS_PER_NODE must have a count such as 2 or 2(x3), at character",
    ),
    (
        {"SLURM_STEP_TASKS_PER_NODE": "two"},
        "SLURM_STEP_TASKS_PER_NODE must have a count such as 2 or 2(x3), at character",
    ),
    (
        {"SLURM_STEP_TASKS_PER_NODE": "2(x2"},
        "SLURM_STEP_TASKS_PER_NODE must have a count such as 2 or 2(x3), at character",
    ),
    (
        {"SLURM_STEP_TASKS_PER_NODE": "(x2)"},
        "SLURM_STEP_TASKS_PER_NODE must have a count such as 2 or 2(x3), at character",
    ),
    (
        {"SLURM_STEP_TASKS_PER_NODE": "2(x0)"},
        "SLURM_STEP_TASKS_PER_NODE has a count for no nodes, at character 1.",
    ),
    (
        {"SLURM_STEP_TASKS_PER_NODE": "-2(x2)"},
        "SLURM_STEP_TASKS_PER_NODE must have a count such as 2 or 2(x3), at character",
    ),
    (
        {"SLURM_STEP_TASKS_PER_NODE": "2 (x2)"},
        "SLURM_STEP_TASKS_PER_NODE must have a count such as 2 or 2(x3), at character",
    ),
    (
        {"SLURM_STEP_TASKS_PER_NODE": "2(x99999)"},
        "SLURM_STEP_TASKS_PER_NODE has more than 65536 nodes or tasks, at character 1.",
    ),
    (
        {"SLURM_STEP_TASKS_PER_NODE": "99999999999999999999"},
        "SLURM_STEP_TASKS_PER_NODE must have a count such as 2 or 2(x3), at character",
    ),
    (
        {"SLURM_STEP_TASKS_PER_NODE": "\u0662(x2)"},
        "SLURM_STEP_TASKS_PER_NODE must have a count such as 2 or 2(x3), at character",
    ),
    (
        {"SLURM_STEP_TASKS_PER_NODE": "2(x3)"},
        "SLURM_STEP_NODELIST, SLURM_STEP_TASKS_PER_NODE and SLURM_STEP_NUM_TASKS do",
    ),
    (
        {"SLURM_STEP_TASKS_PER_NODE": "3,2"},
        "SLURM_STEP_NODELIST, SLURM_STEP_TASKS_PER_NODE and SLURM_STEP_NUM_TASKS do",
    ),
    (
        {"SLURM_STEP_TASKS_PER_NODE": "4"},
        "SLURM_STEP_NODELIST, SLURM_STEP_TASKS_PER_NODE and SLURM_STEP_NUM_TASKS do",
    ),
    (
        {"SLURM_STEP_NUM_TASKS": "5"},
        "SLURM_STEP_NODELIST, SLURM_STEP_TASKS_PER_NODE and SLURM_STEP_NUM_TASKS do",
    ),
    (
        {"SLURM_STEP_NUM_TASKS": "four"},
        "SLURM_STEP_NUM_TASKS must be a whole number, as `srun` sets it.",
    ),
    (
        {"SLURM_STEP_NUM_TASKS": "0"},
        "SLURM_STEP_NODELIST, SLURM_STEP_TASKS_PER_NODE and SLURM_STEP_NUM_TASKS do",
    ),
    (
        {"SLURM_STEP_NUM_TASKS": "-4"},
        "SLURM_STEP_NUM_TASKS must be a whole number, as `srun` sets it.",
    ),
    (
        {"SLURM_STEP_NUM_TASKS": "999999999999999999999999999999"},
        "SLURM_STEP_NUM_TASKS must be a whole number, as `srun` sets it.",
    ),
    ({"SLURM_PROCID": "4"}, "SLURM_PROCID must be below SLURM_STEP_NUM_TASKS."),
    ({"SLURM_PROCID": "-1"}, "SLURM_PROCID must be a whole number, as `srun` sets it."),
    ({"SLURM_PROCID": "x"}, "SLURM_PROCID must be a whole number, as `srun` sets it."),
    (
        {"SLURM_PROCID": "2.0"},
        "SLURM_PROCID must be a whole number, as `srun` sets it.",
    ),
    ({"SLURM_JOB_ID": None}, "SLURM_JOB_ID must be a whole number, as `srun` sets it."),
    (
        {"SLURM_JOB_ID": "41_3"},
        "SLURM_JOB_ID must be a whole number, as `srun` sets it.",
    ),
    (
        {"SLURM_STEP_ID": "batch"},
        "SLURM_STEP_ID must be a whole number, as `srun` sets it.",
    ),
    ({"SLURM_NODEID": "0"}, "The variables of `srun` tell two places of this process."),
    (
        {"SLURM_LOCALID": "1"},
        "The variables of `srun` tell two places of this process.",
    ),
    (
        {"SLURMD_NODENAME": "n8"},
        "The variables of `srun` tell two places of this process.",
    ),
    (
        {"SLURM_DISTRIBUTION": "arbitrary"},
        "SLURM_DISTRIBUTION does not tell on which node each task is.",
    ),
    (
        {"SLURM_DISTRIBUTION": "spread"},
        "SLURM_DISTRIBUTION does not tell on which node each task is.",
    ),
    (
        {"SLURM_DISTRIBUTION": "plane"},
        "SLURM_DIST_PLANESIZE must be a whole number, as `srun` sets it.",
    ),
    (
        {"SLURM_DISTRIBUTION": "plane", "SLURM_DIST_PLANESIZE": "two"},
        "SLURM_DIST_PLANESIZE must be a whole number, as `srun` sets it.",
    ),
    (
        {"SLURM_DISTRIBUTION": "cyclic"},
        "The variables of `srun` tell two places of this process.",
    ),
    (
        {"SLURM_HET_SIZE": "2", "SLURMD_NODENAME": "n8"},
        "The variables of `srun` tell two places of this process.",
    ),
    (
        {"TFDIST_PORT_BASE": "0"},
        "TFDIST_PORT_BASE must be a port from 1 to 65534, as the 2 tasks of a node",
    ),
    (
        {"TFDIST_PORT_BASE": "65535"},
        "TFDIST_PORT_BASE must be a port from 1 to 65534, as the 2 tasks of a node",
    ),
    (
        {"TFDIST_PORT_BASE": "99999"},
        "TFDIST_PORT_BASE must be a port from 1 to 65534, as the 2 tasks of a node",
    ),
    (
        {"TFDIST_PORT_BASE": "high"},
        "TFDIST_PORT_BASE must be a port from 1 to 65534, as the 2 tasks of a node",
    ),
    (
        {"TFDIST_PORT_BASE": "2222.0"},
        "TFDIST_PORT_BASE must be a port from 1 to 65534, as the 2 tasks of a node",
    ),
    (
        {"TFDIST_PORT_BASE": "-1"},
        "TFDIST_PORT_BASE must be a port from 1 to 65534, as the 2 tasks of a node",
    ),
    (
        {"SLURM_STEP_NODELIST": "n8,n8", "SLURMD_NODENAME": "n8"},
        "cluster.worker[2] has the same address as cluster.worker[0].",
    ),
    (
        {"SLURM_STEP_NODELIST": "localhost,n9"},
        "cluster.worker[0] is on localhost, where processes on other hosts cannot",
    ),
    (
        {"SLURM_STEP_NODELIST": "n[8-10]"},
        "SLURM_STEP_NODELIST, SLURM_STEP_TASKS_PER_NODE and SLURM_STEP_NUM_TASKS do",
    ),
]


@pytest.mark.parametrize(("nodes", "problem"), NODE_LISTS)
def test_node_lists(nodes, problem, refusal):
    variables = {**STEP, "SLURM_STEP_NODELIST": nodes}

    assert f"SLURM_STEP_NODELIST {problem}" in refusal("config", "show", **variables)


@pytest.mark.parametrize(("changes", "problem"), VARIABLES)
def test_variables(changes, problem, refusal):
    assert problem in refusal("config", "show", **{**STEP, **changes})


def test_no_two_are_refused_in_the_same_words(refusal):
    messages = [
        refusal("config", "show", **{**STEP, **changes})
        for changes in (
            *({"SLURM_STEP_NODELIST": nodes} for nodes, _ in NODE_LISTS),
            *(changes for changes, _ in VARIABLES),
        )
    ]

    assert len({*messages}) == len(messages)

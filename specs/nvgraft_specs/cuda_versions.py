"""The CUDA version of each driver branch: NVML's answer for a driver that is not running.

Source: the minimum driver versions in the release notes of the CUDA toolkits (from 7.0 on in one
table, 6.5 in its own). A branch provides the newest toolkit that was released with it.
"""

#: The branch, which is the first number of the driver's version, and its CUDA version.
CUDA_VERSIONS = {
    340: "6.5",
    346: "7.0",
    352: "7.5",
    367: "8.0",
    370: "8.0",
    375: "8.0",
    378: "8.0",
    381: "8.0",
    384: "9.0",
    387: "9.1",
    390: "9.1",
    396: "9.2",
    410: "10.0",
    415: "10.0",
    418: "10.1",
    430: "10.1",
    435: "10.1",
    440: "10.2",
    450: "11.0",
    455: "11.1",
    460: "11.2",
    465: "11.3",
    470: "11.4",
    495: "11.5",
    510: "11.6",
    515: "11.7",
    520: "11.8",
    525: "12.0",
    530: "12.1",
    535: "12.2",
    545: "12.3",
    550: "12.4",
    555: "12.5",
    560: "12.6",
    565: "12.7",
    570: "12.8",
    575: "12.9",
    580: "13.0",
    590: "13.1",
    595: "13.2",
    610: "13.3",
    615: "13.4",
}

#: The least driver on Linux for a CUDA toolkit. From 11 on, one driver serves all versions with the
#: same first number (minor-version compatibility).
#:
#: Source: NVIDIA's CUDA Compatibility, tables 1 and 2 of Minor Version Compatibility
#: (docs.nvidia.com/deploy/cuda-compatibility); before 10, table 2 of CUDA 11.0's release notes.
MINIMUM_DRIVERS = {
    "7.5": "352.31",
    "8.0": "367.48",
    "9.0": "384.81",
    "9.1": "390.46",
    "9.2": "396.26",
    "10.0": "410.48",
    "10.1": "418.39",
    "10.2": "440.33",
    "11": "450.80.02",
    "12": "525",
    "13": "580",
}

#: Compute capability -> the first branch that drives such GPUs: that of the first CUDA that knows
#: the capability. What is missing here is not known, or all branches of CUDA_VERSIONS drive it.
#:
#: Source of this table and the next: NVIDIA's CUDA Toolkit, Driver, and Architecture Matrix; for
#: the last branches of 1.x and 2.x, Debian's descriptions of the legacy drivers.
FIRST_BRANCHES = {
    "6.0": 367,
    "6.1": 367,
    "7.0": 384,
    "7.5": 410,
    "8.0": 450,
    "8.6": 450,
    "8.9": 520,
    "9.0": 520,
    "10.0": 570,
    "12.0": 570,
}

#: Compute capability, or its first number -> the last branch that drives such GPUs. A capability
#: counts before its first number.
LAST_BRANCHES = {"1": 340, "2": 390, "3": 470, "5": 580, "6": 580, "7.0": 580}

#: The first CUDA with minor-version compatibility.
FIRST_COMPATIBLE = 11

"""NVML's brand numbers."""

import pytest

from nvgraft_specs import brands


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (0, "Unknown"),
        (1, "Quadro"),
        (2, "Tesla"),
        (5, "GeForce"),
        (6, "TITAN"),
        (11, "CloudGaming"),
        (14, "Nvidia"),
        (16, "TitanRTX"),
    ],
)
def test_numbers_have_nvmls_names(number: int, name: str) -> None:
    """The names are those of nvmlBrandType_t."""
    assert brands.name(number) == name


@pytest.mark.parametrize(
    ("number", "model", "served"),
    [
        (2, "Tesla T4", True),
        (14, "NVIDIA H100 80GB HBM3", True),
        (13, "NVIDIA RTX A6000", True),
        (5, "NVIDIA GeForce GTX 1080", False),
        (15, "NVIDIA GeForce RTX 4090", False),
        (6, "NVIDIA TITAN V", False),
        (16, "NVIDIA TITAN RTX", False),
        (0, "NVIDIA GeForce RTX 5090", False),
    ],
)
def test_cards_for_desktops_have_no_forward_compatibility(
    number: int, model: str, served: bool
) -> None:
    """The brand tells, or the name where a driver gives another brand."""
    assert brands.has_forward_compatibility(number, model) is served


@pytest.mark.parametrize("number", [-1, 17, 999])
def test_other_numbers_are_unknown(number: int) -> None:
    """A brand newer than the table is "Unknown", and so is a negative number."""
    assert brands.name(number) == "Unknown"


def test_names_are_unique() -> None:
    """Names differ in more than case, and none needs quoting: brand=tesla means one brand."""
    all_names = [brands.name(number) for number in range(17)]
    assert len({name.lower() for name in all_names}) == len(all_names)
    assert all(name.isalnum() and name.isascii() for name in all_names)


def test_numbers_are_nvmls() -> None:
    """The NVML binding of the hook has the same numbers."""
    pynvml = pytest.importorskip("pynvml")
    assert brands.name(pynvml.NVML_BRAND_GEFORCE_RTX) == "GeForceRTX"
    assert brands.name(pynvml.NVML_BRAND_NVIDIA_VWS) == "VWS"
    assert pynvml.NVML_BRAND_COUNT >= 17

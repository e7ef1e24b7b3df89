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
    """As nvmlBrandType_t counts them."""
    assert brands.name(number) == name


@pytest.mark.parametrize("number", [-1, 17, 999])
def test_other_numbers_are_unknown(number: int) -> None:
    """A brand newer than this table is no error, and a negative number is no index from the end."""
    assert brands.name(number) == "Unknown"


def test_names_are_different() -> None:
    """A requirement like brand=tesla means one brand, whatever the case; none of them needs quoting."""
    known = [brands.name(number) for number in range(17)]
    assert len({name.lower() for name in known}) == len(known)
    assert all(name.isalnum() and name.isascii() for name in known)


def test_numbers_are_nvmls() -> None:
    """The NVML binding that the hook uses counts in the same way."""
    pynvml = pytest.importorskip("pynvml")
    assert brands.name(pynvml.NVML_BRAND_GEFORCE_RTX) == "GeForceRTX"
    assert brands.name(pynvml.NVML_BRAND_NVIDIA_VWS) == "VWS"
    assert pynvml.NVML_BRAND_COUNT >= 17

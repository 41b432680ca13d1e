"""Reading py-spy's samples."""

from __future__ import annotations

from measure.proxy.profile import layer, read_profile, show

MAIN = 'process 12:"tiergate serve";main (/src/gateway/cli.py)'
LIB = "/v/lib/python3.11"
RAW = f"""{MAIN};run ({LIB}/asyncio/runners.py) 2
{MAIN};answer (/src/gateway/pipeline.py:20);decide (/src/router/decide.py:9) 5
{MAIN};send ({LIB}/site-packages/uvicorn/protocols/http/httptools_impl.py) 3
"""


def test_self_time_and_all_time_are_told_apart():
    """The one says which lines to make cheaper, the other which stage."""
    profile = read_profile(RAW)

    assert 10 == profile.total
    assert 5 == profile.self_time()["decide (router/decide.py)"]
    assert 5 == profile.all_time()["answer (gateway/pipeline.py)"]
    assert 10 == profile.all_time()["main (gateway/cli.py)"]
    assert 0 == profile.self_time()["main (gateway/cli.py)"]


def test_samples_are_summed_by_package():
    """Ours, the server's, the client's: the first question is whose time it is."""
    assert {"router": 5, "uvicorn": 3, "asyncio": 2} == read_profile(RAW).layers()
    assert "numpy" == layer("_sum (numpy/_core/_methods.py)")


def test_shown_shares_leave_out_what_is_on_every_stack():
    """The entry points are in all samples and would fill the list."""
    text = show(read_profile(RAW), 10)

    assert "| decide (router/decide.py) | 50.0 % |" in text
    assert "main (gateway/cli.py)" not in text

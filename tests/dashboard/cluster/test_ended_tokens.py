"""What a token opened ends with it. Kubernetes is asked again every half minute; the server of this test asks more often."""

from __future__ import annotations

from itertools import islice

import pytest

from tests.dashboard.cluster.reviewing import People
from tests.dashboard.cluster.served_cluster import served_cluster_page
from tests.dashboard.cluster.test_cluster_server import wait_until
from tests.kubernetes.fake_api_server import FakeApiServer
from tranche.dashboard.cluster import cluster_app, kube_reviews


def test_a_token_that_ends_ends_what_it_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (cluster_app, kube_reviews):
        monkeypatch.setattr(module, "FRESH_SECONDS", 0.5)

    def ended(_: FakeApiServer) -> None:
        del people.users["t-ana"]

    people = People({"t-ana": "ana", "t-olga": "olga"})
    with served_cluster_page(people) as page:
        wait_until(page, lambda: page.ask("/", "t-ana").status == 200)
        with page.news("t-ana") as news, page.news("t-olga") as others:
            next(news)
            next(others)
            page.api.change(ended)
            assert len(list(islice(news, 30))) < 30, "the stream ends"
            assert page.ask("/", "t-ana").status == 401
            next(others)
            assert page.ask("/", "t-olga").status == 200

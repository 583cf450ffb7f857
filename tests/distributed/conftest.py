"""What the modules of the equality matrix share."""

import pytest
from equality_matrix import PLAIN, Cells


@pytest.fixture(scope="module")
def cells(request):
    """Run the rows that the chosen tests of a module ask for; see `equality_matrix`."""
    chosen = [
        getattr(item, "callspec", None)
        for item in request.session.items
        if item.module is request.module and "cells" in item.fixturenames
    ]
    asked = [{} if spec is None else spec.params for spec in chosen]
    rows = {params.get("row") for params in asked}
    names = [name for name in request.module.ROWS if name in rows or None in rows]
    columns = {params["column"] for params in asked if "column" in params}
    columns = sorted(columns or (2, 3), key=str)
    return Cells(request.module.run, names, [PLAIN, *columns])

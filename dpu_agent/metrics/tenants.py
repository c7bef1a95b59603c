"""Which row of counts a tenant has: the tenant of a session is its namespace, by name.

The first ones that come have rows of their own for as long as the agent runs, so that no count
ever falls or changes its name. Later ones share one row, so that whoever makes up names cannot
make the agent grow.
"""

from __future__ import annotations

from collections.abc import Mapping

from dpu_agent.data.counting import MAX_TENANTS, OTHER_TENANTS

OTHER = "other"
"""The name of the row that is shared; a namespace that is called so is counted there."""


class TenantRows:
    """Rows by name; ``row_of`` is called from one thread, ``names`` from any."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._rows = {OTHER: OTHER_TENANTS}

    def row_of(self, name: str) -> int:
        """The row of a tenant, from now on always the same."""
        row = self._rows.get(name)
        if row is None:
            row = min(len(self._rows) - 1, MAX_TENANTS)
            if row != OTHER_TENANTS:
                self._rows[name] = row
        if row not in self._names:
            self._names[row] = OTHER if row == OTHER_TENANTS else name
        return row

    def names(self) -> Mapping[int, str]:
        """The names of the rows that somebody has."""
        return dict(self._names)

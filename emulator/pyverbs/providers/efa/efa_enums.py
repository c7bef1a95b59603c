"""Numbers of ``efadv.h``, as far as portable programs import them."""

from __future__ import annotations

EFADV_QP_DRIVER_TYPE_SRD = 0

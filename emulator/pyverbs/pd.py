"""Protection domains."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from emulator.pyverbs.base import Dependents, PyverbsCM, PyverbsObject
from emulator.pyverbs.device import Context
from emulator.pyverbs.libibverbs_enums import ibv_parent_domain_init_attr_mask
from emulator.pyverbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError

if TYPE_CHECKING:
    from emulator.pyverbs.wr import SGE

_SHARED_KIND = "pd"
_MAX_ADVICE = 2
_KNOWN_ADVICE_FLAGS = 1


class PD(PyverbsCM):
    """A protection domain; ``number`` is what the engine knows it by."""

    _kind: ClassVar[str] = "pd"
    _open: bool = False

    def __init__(self, creator: Any, *, handle: int | None = None) -> None:
        """Of a context, or that of a CM ID; with ``handle`` the domain of another context."""
        super().__init__()
        self._is_imported = handle is not None
        if isinstance(creator, Context):
            self.ctx = creator
            self.number = self._allocate(handle)
        elif hasattr(creator, "pd_number"):
            self.ctx = creator.ctx
            self.number = int(creator.pd_number)
            creator.pd = self
        else:
            raise PyverbsUserError(f"Cannot create PD from {type(creator)}")
        self._dependents = Dependents("parent_domain", "qp", "wq", "ah", "mw", "mr", "srq")
        self._open = True
        self.ctx.add_ref(self)

    def _allocate(self, handle: int | None) -> int:
        port = self.ctx.port
        if handle is None:
            number = port.new_pd()
            port.shared[_SHARED_KIND, number] = number
            return number
        if (_SHARED_KIND, handle) not in port.shared:
            raise PyverbsRDMAError("Failed to import PD", errno.ENOENT)
        return handle

    def add_ref(self, obj: PyverbsCM) -> None:
        """Close an object before this."""
        self._dependents.add(obj)

    def remove_ref(self, obj: PyverbsCM) -> None:
        """An object has moved to another domain."""
        self._dependents.remove(obj)

    def advise_mr(self, advise: int, flags: int, sg_list: Sequence[SGE]) -> int:
        """Take advice about ranges of regions; memory here is ready without any."""
        known = 0 <= advise <= _MAX_ADVICE and not flags & ~_KNOWN_ADVICE_FLAGS
        if not known or not sg_list:
            raise PyverbsRDMAError("Failed to advise MR", errno.EINVAL)
        return 0

    def unimport(self) -> None:
        """Give up a domain of another context, which goes on using it."""
        self.close()

    def close(self) -> None:
        """Close everything that belongs to it; an imported domain stays with its owner."""
        if self._open:
            self._dependents.close()
            self._open = False
            if not self._is_imported:
                self.ctx.port.shared.pop((_SHARED_KIND, self.number), None)

    @property
    def handle(self) -> int:
        """By which another context can import it."""
        return self.number

    @property
    def pd(self) -> int:
        """Stands for the address of the C structure."""
        return self.number


class ParentDomainContext(PyverbsObject):
    """A program's own allocator for the memory of queues.

    ``alloc_func(pd, context, size, alignment, resource_type)`` returns an address and
    ``free_func(pd, context, address, resource_type)`` takes it back.
    """

    def __init__(
        self,
        pd: PD,
        alloc_func: Callable[..., int],
        free_func: Callable[..., object],
        user_data: Any = None,
    ) -> None:
        super().__init__()
        self.pd = pd
        self.p_alloc = alloc_func
        self.p_free = free_func
        self.user_data = user_data


class ParentDomainInitAttr(PyverbsObject):
    """What a parent domain is made of."""

    def __init__(self, pd: PD, pd_context: ParentDomainContext | None = None) -> None:
        super().__init__()
        self.pd = pd
        self.pd_context = pd_context

    @property
    def comp_mask(self) -> int:
        """Which attributes are given."""
        if self.pd_context is None:
            return 0
        mask = ibv_parent_domain_init_attr_mask
        return int(
            mask.IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT
            | mask.IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS
        )


class ParentDomain(PD):
    """A domain for a program's own rules of allocation; it protects like the domain below it.

    A device asks the allocators for memory that it needs, and the emulated one needs none
    from the program: its queues are not shared with hardware.
    """

    _kind: ClassVar[str] = "parent_domain"

    def __init__(self, context: Context, attr: ParentDomainInitAttr) -> None:
        self.protection_domain = attr.pd
        self.pd_context = attr.pd_context
        self._queues = Dependents("cq")
        super().__init__(context, handle=attr.pd.number)
        attr.pd.add_ref(self)

    def add_ref(self, obj: PyverbsCM) -> None:
        """Close an object before this; completion queues may have been made of it too."""
        if obj._kind == "cq":
            self._queues.add(obj)
        else:
            super().add_ref(obj)

    def close(self) -> None:
        """Close the completion queues made of it, and everything else."""
        if self._open:
            self._queues.close()
            super().close()

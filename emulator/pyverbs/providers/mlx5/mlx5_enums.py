"""Numbers of ``mlx5dv.h``, as far as portable programs import them."""

# ruff: noqa: N801 -- the names are those of the interface

from __future__ import annotations

from enum import IntFlag

MLX5_RCV_DBR = 0
MLX5_SND_DBR = 1
MLX5_SEND_WQE_BB = 64
MLX5_SEND_WQE_SHIFT = 6
MLX5_WQE_CTRL_CQ_UPDATE = 8
MLX5_OPCODE_SEND_IMM = 11
MLX5_CQE_REQ = 0
MLX5_CQE_RESP_SEND_IMM = 3
MLX5_CQE_REQ_ERR = 13
MLX5_CQE_RESP_ERR = 14
MLX5_CQE_INVALID = 15
_MLX5DV_UAR_ALLOC_TYPE_NC = 1


class mlx5dv_context_attr_flags(IntFlag):
    """How a context is opened."""

    MLX5DV_CONTEXT_FLAGS_DEVX = 1


class mlx5dv_context_attr_comp_mask(IntFlag):
    """Which attributes of a context are given."""

    MLX5DV_CONTEXT_ATTR_MASK_FD_ARRAY = 1


class mlx5dv_qp_init_attr_mask(IntFlag):
    """Which attributes of a queue pair are given."""

    MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS = 1
    MLX5DV_QP_INIT_ATTR_MASK_DC = 2
    MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS = 4
    MLX5DV_QP_INIT_ATTR_MASK_DCI_STREAMS = 8


class mlx5dv_dc_type(IntFlag):
    """Ends of a dynamic connection."""

    MLX5DV_DCTYPE_DCT = 1
    MLX5DV_DCTYPE_DCI = 2


class mlx5dv_obj_type(IntFlag):
    """Objects whose insides can be had."""

    MLX5DV_OBJ_PD = 64

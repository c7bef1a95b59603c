from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SessionState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SESSION_STATE_UNSPECIFIED: _ClassVar[SessionState]
    SESSION_STATE_OPEN: _ClassVar[SessionState]
    SESSION_STATE_DRAINING: _ClassVar[SessionState]
    SESSION_STATE_CLOSED: _ClassVar[SessionState]
SESSION_STATE_UNSPECIFIED: SessionState
SESSION_STATE_OPEN: SessionState
SESSION_STATE_DRAINING: SessionState
SESSION_STATE_CLOSED: SessionState

class Version(_message.Message):
    __slots__ = ("major", "minor", "patch")
    MAJOR_FIELD_NUMBER: _ClassVar[int]
    MINOR_FIELD_NUMBER: _ClassVar[int]
    PATCH_FIELD_NUMBER: _ClassVar[int]
    major: int
    minor: int
    patch: int
    def __init__(self, major: _Optional[int] = ..., minor: _Optional[int] = ..., patch: _Optional[int] = ...) -> None: ...

class QpEndpoint(_message.Message):
    __slots__ = ("gid", "udp_port", "qp_num", "psn", "mtu_bytes")
    GID_FIELD_NUMBER: _ClassVar[int]
    UDP_PORT_FIELD_NUMBER: _ClassVar[int]
    QP_NUM_FIELD_NUMBER: _ClassVar[int]
    PSN_FIELD_NUMBER: _ClassVar[int]
    MTU_BYTES_FIELD_NUMBER: _ClassVar[int]
    gid: bytes
    udp_port: int
    qp_num: int
    psn: int
    mtu_bytes: int
    def __init__(self, gid: _Optional[bytes] = ..., udp_port: _Optional[int] = ..., qp_num: _Optional[int] = ..., psn: _Optional[int] = ..., mtu_bytes: _Optional[int] = ...) -> None: ...

class MemoryRegion(_message.Message):
    __slots__ = ("addr", "length", "rkey")
    ADDR_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    RKEY_FIELD_NUMBER: _ClassVar[int]
    addr: int
    length: int
    rkey: int
    def __init__(self, addr: _Optional[int] = ..., length: _Optional[int] = ..., rkey: _Optional[int] = ...) -> None: ...

class Namespace(_message.Message):
    __slots__ = ("name", "model", "weights_version", "kv_dtype", "quantization", "layout", "block_tokens", "block_bytes", "first_layer", "num_layers", "first_kv_head", "num_kv_heads", "head_dim", "tensor_rank", "tensor_size", "pipeline_rank", "pipeline_size", "context_rank", "context_size", "group", "lora", "engine_key_format", "hash_algorithm", "hash_version")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_VERSION_FIELD_NUMBER: _ClassVar[int]
    KV_DTYPE_FIELD_NUMBER: _ClassVar[int]
    QUANTIZATION_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    BLOCK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    FIRST_LAYER_FIELD_NUMBER: _ClassVar[int]
    NUM_LAYERS_FIELD_NUMBER: _ClassVar[int]
    FIRST_KV_HEAD_FIELD_NUMBER: _ClassVar[int]
    NUM_KV_HEADS_FIELD_NUMBER: _ClassVar[int]
    HEAD_DIM_FIELD_NUMBER: _ClassVar[int]
    TENSOR_RANK_FIELD_NUMBER: _ClassVar[int]
    TENSOR_SIZE_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_RANK_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_SIZE_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_RANK_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_SIZE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    LORA_FIELD_NUMBER: _ClassVar[int]
    ENGINE_KEY_FORMAT_FIELD_NUMBER: _ClassVar[int]
    HASH_ALGORITHM_FIELD_NUMBER: _ClassVar[int]
    HASH_VERSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    model: str
    weights_version: str
    kv_dtype: str
    quantization: str
    layout: str
    block_tokens: int
    block_bytes: int
    first_layer: int
    num_layers: int
    first_kv_head: int
    num_kv_heads: int
    head_dim: int
    tensor_rank: int
    tensor_size: int
    pipeline_rank: int
    pipeline_size: int
    context_rank: int
    context_size: int
    group: str
    lora: str
    engine_key_format: str
    hash_algorithm: str
    hash_version: int
    def __init__(self, name: _Optional[str] = ..., model: _Optional[str] = ..., weights_version: _Optional[str] = ..., kv_dtype: _Optional[str] = ..., quantization: _Optional[str] = ..., layout: _Optional[str] = ..., block_tokens: _Optional[int] = ..., block_bytes: _Optional[int] = ..., first_layer: _Optional[int] = ..., num_layers: _Optional[int] = ..., first_kv_head: _Optional[int] = ..., num_kv_heads: _Optional[int] = ..., head_dim: _Optional[int] = ..., tensor_rank: _Optional[int] = ..., tensor_size: _Optional[int] = ..., pipeline_rank: _Optional[int] = ..., pipeline_size: _Optional[int] = ..., context_rank: _Optional[int] = ..., context_size: _Optional[int] = ..., group: _Optional[str] = ..., lora: _Optional[str] = ..., engine_key_format: _Optional[str] = ..., hash_algorithm: _Optional[str] = ..., hash_version: _Optional[int] = ...) -> None: ...

class GetCapabilitiesRequest(_message.Message):
    __slots__ = ("client_version",)
    CLIENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    client_version: Version
    def __init__(self, client_version: _Optional[_Union[Version, _Mapping]] = ...) -> None: ...

class GetCapabilitiesResponse(_message.Message):
    __slots__ = ("version", "features", "max_capsule_bytes", "max_keys_per_capsule", "max_queue_depth", "max_block_bytes", "device", "boot_id")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    MAX_CAPSULE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_KEYS_PER_CAPSULE_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUE_DEPTH_FIELD_NUMBER: _ClassVar[int]
    MAX_BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    version: Version
    features: _containers.RepeatedScalarFieldContainer[str]
    max_capsule_bytes: int
    max_keys_per_capsule: int
    max_queue_depth: int
    max_block_bytes: int
    device: str
    boot_id: bytes
    def __init__(self, version: _Optional[_Union[Version, _Mapping]] = ..., features: _Optional[_Iterable[str]] = ..., max_capsule_bytes: _Optional[int] = ..., max_keys_per_capsule: _Optional[int] = ..., max_queue_depth: _Optional[int] = ..., max_block_bytes: _Optional[int] = ..., device: _Optional[str] = ..., boot_id: _Optional[bytes] = ...) -> None: ...

class OpenSessionRequest(_message.Message):
    __slots__ = ("client_version", "client_name", "namespace", "endpoint", "regions", "queue_depth")
    CLIENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    CLIENT_NAME_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    REGIONS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_DEPTH_FIELD_NUMBER: _ClassVar[int]
    client_version: Version
    client_name: str
    namespace: Namespace
    endpoint: QpEndpoint
    regions: _containers.RepeatedCompositeFieldContainer[MemoryRegion]
    queue_depth: int
    def __init__(self, client_version: _Optional[_Union[Version, _Mapping]] = ..., client_name: _Optional[str] = ..., namespace: _Optional[_Union[Namespace, _Mapping]] = ..., endpoint: _Optional[_Union[QpEndpoint, _Mapping]] = ..., regions: _Optional[_Iterable[_Union[MemoryRegion, _Mapping]]] = ..., queue_depth: _Optional[int] = ...) -> None: ...

class OpenSessionResponse(_message.Message):
    __slots__ = ("name", "session_id", "endpoint", "queue_depth", "boot_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    QUEUE_DEPTH_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    session_id: int
    endpoint: QpEndpoint
    queue_depth: int
    boot_id: bytes
    def __init__(self, name: _Optional[str] = ..., session_id: _Optional[int] = ..., endpoint: _Optional[_Union[QpEndpoint, _Mapping]] = ..., queue_depth: _Optional[int] = ..., boot_id: _Optional[bytes] = ...) -> None: ...

class WatchSessionRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class WatchSessionResponse(_message.Message):
    __slots__ = ("state", "reason")
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    state: SessionState
    reason: str
    def __init__(self, state: _Optional[_Union[SessionState, str]] = ..., reason: _Optional[str] = ...) -> None: ...

class RegisterMemoryRequest(_message.Message):
    __slots__ = ("name", "regions")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REGIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    regions: _containers.RepeatedCompositeFieldContainer[MemoryRegion]
    def __init__(self, name: _Optional[str] = ..., regions: _Optional[_Iterable[_Union[MemoryRegion, _Mapping]]] = ...) -> None: ...

class RegisterMemoryResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DeregisterMemoryRequest(_message.Message):
    __slots__ = ("name", "rkeys")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RKEYS_FIELD_NUMBER: _ClassVar[int]
    name: str
    rkeys: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., rkeys: _Optional[_Iterable[int]] = ...) -> None: ...

class DeregisterMemoryResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CloseSessionRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class CloseSessionResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StoreStats(_message.Message):
    __slots__ = ("capacity_blocks", "block_bytes", "blocks", "bytes", "hits", "misses", "stored", "already_stored", "evicted", "deleted", "aborted", "refused", "pinned", "writing", "policy_faults")
    CAPACITY_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    HITS_FIELD_NUMBER: _ClassVar[int]
    MISSES_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    ALREADY_STORED_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    ABORTED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    WRITING_FIELD_NUMBER: _ClassVar[int]
    POLICY_FAULTS_FIELD_NUMBER: _ClassVar[int]
    capacity_blocks: int
    block_bytes: int
    blocks: int
    bytes: int
    hits: int
    misses: int
    stored: int
    already_stored: int
    evicted: int
    deleted: int
    aborted: int
    refused: int
    pinned: int
    writing: int
    policy_faults: int
    def __init__(self, capacity_blocks: _Optional[int] = ..., block_bytes: _Optional[int] = ..., blocks: _Optional[int] = ..., bytes: _Optional[int] = ..., hits: _Optional[int] = ..., misses: _Optional[int] = ..., stored: _Optional[int] = ..., already_stored: _Optional[int] = ..., evicted: _Optional[int] = ..., deleted: _Optional[int] = ..., aborted: _Optional[int] = ..., refused: _Optional[int] = ..., pinned: _Optional[int] = ..., writing: _Optional[int] = ..., policy_faults: _Optional[int] = ...) -> None: ...

class NamespaceStats(_message.Message):
    __slots__ = ("namespace", "sessions")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: Namespace
    sessions: int
    def __init__(self, namespace: _Optional[_Union[Namespace, _Mapping]] = ..., sessions: _Optional[int] = ...) -> None: ...

class GetStatsResponse(_message.Message):
    __slots__ = ("boot_id", "uptime_ms", "sessions", "draining", "store", "namespaces", "commands", "device_counters", "device")
    class CommandsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class DeviceCountersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    UPTIME_MS_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    COMMANDS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_COUNTERS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    boot_id: bytes
    uptime_ms: int
    sessions: int
    draining: bool
    store: StoreStats
    namespaces: _containers.RepeatedCompositeFieldContainer[NamespaceStats]
    commands: _containers.ScalarMap[str, int]
    device_counters: _containers.ScalarMap[str, int]
    device: str
    def __init__(self, boot_id: _Optional[bytes] = ..., uptime_ms: _Optional[int] = ..., sessions: _Optional[int] = ..., draining: bool = ..., store: _Optional[_Union[StoreStats, _Mapping]] = ..., namespaces: _Optional[_Iterable[_Union[NamespaceStats, _Mapping]]] = ..., commands: _Optional[_Mapping[str, int]] = ..., device_counters: _Optional[_Mapping[str, int]] = ..., device: _Optional[str] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("sessions",)
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    sessions: int
    def __init__(self, sessions: _Optional[int] = ...) -> None: ...

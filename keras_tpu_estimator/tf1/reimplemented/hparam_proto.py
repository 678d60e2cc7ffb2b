"""`HParamDef`, the protocol buffer of `tf.contrib.training.HParams`."""

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_Field = descriptor_pb2.FieldDescriptorProto
_PACKAGE = "tensorflow"
# Of each kind of value: the protocol buffer type, and the numbers of the field with one
# value and of the field with a list.
_KINDS = {
    "int64": (_Field.TYPE_INT64, 1, 4),
    "float": (_Field.TYPE_FLOAT, 2, 5),
    "bytes": (_Field.TYPE_BYTES, 3, 6),
    "bool": (_Field.TYPE_BOOL, 7, 8),
}


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name="tensorflow/contrib/training/python/training/hparam.proto",
        package=_PACKAGE,
        syntax="proto3",
    )
    message = file.message_type.add(name="HParamDef")
    for kind, (field_type, _, _) in _KINDS.items():
        _list_type(message, kind).field.add(
            name="value", number=1, type=field_type, label=_Field.LABEL_REPEATED
        )
    value = message.nested_type.add(name="HParamType")
    value.oneof_decl.add(name="kind")
    for kind, (field_type, number, list_number) in _KINDS.items():
        optional = {"label": _Field.LABEL_OPTIONAL, "oneof_index": 0}
        value.field.add(
            name=f"{kind}_value", number=number, type=field_type, **optional
        )
        value.field.add(
            name=f"{kind}_list",
            number=list_number,
            type=_Field.TYPE_MESSAGE,
            type_name=f".{_PACKAGE}.HParamDef.{kind.title()}List",
            **optional,
        )
    entry = message.nested_type.add(name="HparamEntry")
    entry.options.map_entry = True
    entry.field.add(
        name="key", number=1, type=_Field.TYPE_STRING, label=_Field.LABEL_OPTIONAL
    )
    for owner, name, number, kind, label in (
        (entry, "value", 2, "HParamType", _Field.LABEL_OPTIONAL),
        (message, "hparam", 1, "HparamEntry", _Field.LABEL_REPEATED),
    ):
        owner.field.add(
            name=name,
            number=number,
            type=_Field.TYPE_MESSAGE,
            type_name=f".{_PACKAGE}.HParamDef.{kind}",
            label=label,
        )
    return file


def _list_type(
    message: descriptor_pb2.DescriptorProto, kind: str
) -> descriptor_pb2.DescriptorProto:
    return message.nested_type.add(name=f"{kind.title()}List")


# A separate pool, because another library may define the same message.
_pool = descriptor_pool.DescriptorPool()
_pool.Add(_file())
HParamDef = message_factory.GetMessageClass(
    _pool.FindMessageTypeByName(f"{_PACKAGE}.HParamDef")
)

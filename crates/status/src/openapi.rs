//! Schemas of what a derive can't tell.

use std::borrow::Cow;

use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        RefOr, Schema,
        schema::{AnyOfBuilder, KnownFormat, ObjectBuilder, SchemaFormat, Type},
    },
};

/// An IPv4 or IPv6 address as text.
#[derive(Clone, Copy, Debug)]
pub struct AddressText;

impl PartialSchema for AddressText {
    fn schema() -> RefOr<Schema> {
        either().description(Some("An IPv4 or IPv6 address.")).into()
    }
}

impl ToSchema for AddressText {
    fn name() -> Cow<'static, str> {
        "Address".into()
    }
}

/// An IPv4 or IPv6 address or prefix as text.
#[derive(Clone, Copy, Debug)]
pub struct PrefixText;

impl PartialSchema for PrefixText {
    fn schema() -> RefOr<Schema> {
        let prefix =
            |pattern: &str| ObjectBuilder::new().schema_type(Type::String).pattern(Some(pattern));
        either()
            .item(prefix("^(25[0-5]|(2[0-4]|1[0-9]|[1-9])?[0-9])(\\.(25[0-5]|(2[0-4]|1[0-9]|[1-9])?[0-9])){3}/(3[0-2]|[12]?[0-9])$"))
            .item(prefix("^([0-9a-f]{1,4}:){1,6}:/(12[0-8]|(1[01]|[1-9])?[0-9])$"))
            .description(Some("An address or prefix, as 192.0.2.7, 192.0.2.0/24 or 2001:db8::/32."))
            .into()
    }
}

impl ToSchema for PrefixText {
    fn name() -> Cow<'static, str> {
        "Prefix".into()
    }
}

fn either() -> AnyOfBuilder {
    let text = |format| {
        let format = SchemaFormat::KnownFormat(format);
        ObjectBuilder::new().schema_type(Type::String).format(Some(format))
    };
    AnyOfBuilder::new().item(text(KnownFormat::Ipv4)).item(text(KnownFormat::Ipv6))
}

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
        let text = |format| {
            let format = SchemaFormat::KnownFormat(format);
            ObjectBuilder::new().schema_type(Type::String).format(Some(format))
        };
        AnyOfBuilder::new()
            .item(text(KnownFormat::Ipv4))
            .item(text(KnownFormat::Ipv6))
            .description(Some("An IPv4 or IPv6 address."))
            .into()
    }
}

impl ToSchema for AddressText {
    fn name() -> Cow<'static, str> {
        "Address".into()
    }
}

//! Compact storage of policies: own fields inline, common fields shared.

pub(crate) mod address_codec;
pub(crate) mod inline;
pub(crate) mod layout;
pub(crate) mod mask_templates;
pub(crate) mod shared;

//! Policies in few bytes: what each has for itself, and what many share.

pub(crate) mod address_codec;
pub(crate) mod inline;
pub(crate) mod layout;
pub(crate) mod shared;

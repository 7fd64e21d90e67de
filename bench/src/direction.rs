//! Which way packets pass a gateway.

/// The `direction` of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TestDirection {
    /// From the protected side into ESP.
    Out,
    /// From ESP to the protected side.
    In,
}

impl TestDirection {
    pub(crate) const BOTH: [Self; 2] = [Self::Out, Self::In];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Out => "out",
            Self::In => "in",
        }
    }
}

//! Who asks, as far as shares of what is scarce go.

/// A client. Those of a kind that can't be told apart share what one may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Client {
    /// This server itself, for those who listen to events; whoever a router without a listener
    /// serves.
    #[default]
    Server,
    /// A user at a Unix socket, by number.
    User(u32),
    /// Who sends the token itself.
    Token,
    /// A browser's session, by number.
    Session(u64),
}

impl Client {
    /// Whether it is a browser's session.
    pub(crate) const fn is_session(&self) -> bool {
        match self {
            Self::Session(_) => true,
            Self::Server | Self::User(_) | Self::Token => false,
        }
    }
}

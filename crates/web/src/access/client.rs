//! Who asks, as far as shares of what is scarce go.

use std::convert::Infallible;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;

/// A client. Those of a kind that can't be told apart share what one may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Client {
    /// This server itself, for those who listen to events; whoever a router without a listener
    /// serves.
    #[default]
    Server,
    /// A user, by number: at a Unix socket, or at a loopback address where the kernel tells.
    User(u32),
    /// Who is connected to a loopback address and of whom the kernel tells nothing.
    Stranger,
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
            Self::Server | Self::User(_) | Self::Stranger | Self::Token => false,
        }
    }

    /// Whether it is root, whom nobody keeps out.
    pub(crate) const fn is_root(&self) -> bool {
        match self {
            Self::User(user) => *user == 0,
            Self::Server | Self::Stranger | Self::Token | Self::Session(_) => false,
        }
    }
}

impl<S: Sync> FromRequestParts<S> for Client {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get().copied().unwrap_or_default())
    }
}

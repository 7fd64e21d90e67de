//! What is wrong with a line, in iproute2's words where it has some.

/// Why a line is no command.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A word.
    #[error(transparent)]
    Word(#[from] uxfrm_cli_grammar::Error),
    /// A word that is no object of ours.
    #[error("Object \"{0}\" is unknown, try \"fou\" or \"link\"")]
    Object(String),
    /// An option of iproute2 that uxfrm does not have.
    #[error("\"{0}\" is not supported by uxfrm")]
    Unsupported(&'static str),
    /// `fou` without port.
    #[error("fou: missing port")]
    FouPort,
    /// `fou add` that does not say as what.
    #[error("fou: must set ipproto or gue")]
    FouNeither,
    /// `fou add` that says two things.
    #[error("fou: cannot set ipproto and gue")]
    FouBoth,
    /// `fou` with half of the other end.
    #[error("fou: both peer and peer port must be set")]
    FouPeer,
    /// `fou show` of something.
    #[error("\"ip fou show\" does not take any arguments.")]
    FouShow,
    /// A link without name.
    #[error("Not enough information: \"dev\" argument is required.")]
    LinkName,
    /// A link without type.
    #[error("Not enough information: \"type\" argument is required")]
    LinkType,
    /// A tunnel in UDP without the port to send to.
    #[error("Must specify encap-dport with encap fou or gue")]
    EncapPort,
    /// What the kernel would refuse.
    #[error("RTNETLINK answers: {0}")]
    Refused(#[from] uxfrm_tunnel::Error),
}

impl Error {
    /// Whether the words are right and a value is not: iproute2 says `Error: ` before such.
    #[must_use]
    pub const fn is_of_a_value(&self) -> bool {
        matches!(self, Self::Word(uxfrm_cli_grammar::Error::Argument { .. }))
    }
}

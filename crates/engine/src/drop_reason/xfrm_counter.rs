//! The lines of `/proc/net/xfrm_stat`.

/// The 32 counters of `/proc/net/xfrm_stat`, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the kernel's own names: Documentation/networking/xfrm_proc.rst")]
#[rustfmt::skip]
pub enum XfrmCounter {
    InError, InBufferError, InHdrError, InNoStates, InStateProtoError, InStateModeError, InStateSeqError,
    InStateExpired, InStateMismatch, InStateInvalid, InTmplMismatch, InNoPols, InPolBlock, InPolError,
    OutError, OutBundleGenError, OutBundleCheckError, OutNoStates, OutStateProtoError, OutStateModeError,
    OutStateSeqError, OutStateExpired, OutPolBlock, OutPolDead, OutPolError,
    FwdHdrError, OutStateInvalid, AcquireError, OutStateDirError, InStateDirError, InIptfsError, OutNoQueueSpace,
}

impl XfrmCounter {
    /// All of them, in the order of `/proc/net/xfrm_stat`.
    #[rustfmt::skip]
    pub const ALL: [Self; 32] = [
        Self::InError, Self::InBufferError, Self::InHdrError, Self::InNoStates, Self::InStateProtoError,
        Self::InStateModeError, Self::InStateSeqError, Self::InStateExpired, Self::InStateMismatch,
        Self::InStateInvalid, Self::InTmplMismatch, Self::InNoPols, Self::InPolBlock, Self::InPolError,
        Self::OutError, Self::OutBundleGenError, Self::OutBundleCheckError, Self::OutNoStates,
        Self::OutStateProtoError, Self::OutStateModeError, Self::OutStateSeqError, Self::OutStateExpired,
        Self::OutPolBlock, Self::OutPolDead, Self::OutPolError, Self::FwdHdrError, Self::OutStateInvalid,
        Self::AcquireError, Self::OutStateDirError, Self::InStateDirError, Self::InIptfsError,
        Self::OutNoQueueSpace,
    ];
}
